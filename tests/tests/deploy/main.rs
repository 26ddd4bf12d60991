//! What is shipped to be installed: the image that `cargo xtask image` makes, with the agent in it, and the Helm chart.
//!
//! They need root, `lab`, an image and helm (`LB_LAB`, `LB_IMAGE`, `LB_HELM`): `cargo xtask test deploy` builds all of
//! them. The agent of that image is a debug build; what it is packed with, and how, is the same.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod api_server;
mod archive;
mod chart;
mod helm;
mod inside;
mod node;
mod readme;
mod values;
