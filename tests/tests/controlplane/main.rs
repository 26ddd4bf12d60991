//! What runs against the real control plane.

mod selftest;
