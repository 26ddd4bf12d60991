//! What is shipped to be installed: the image that `cargo xtask image` makes, with the agent in it.
//!
//! They need root, `lab` and an image (`LB_LAB`, `LB_IMAGE`): `cargo xtask test deploy` builds both. The agent of that image is a debug build; what it is packed with, and how, is the same.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod archive;
mod inside;
