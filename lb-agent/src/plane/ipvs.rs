//! The plane of nodes without BPF: the kernel's IPVS.

pub mod rules;
