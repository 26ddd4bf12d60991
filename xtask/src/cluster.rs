//! `cargo xtask cluster`: what a whole cluster of one node is made of. `lab` starts it.

mod debian;
mod images;

use std::ffi::OsString;

use anyhow::{Context as _, Result};

use crate::go::{self, Tool};
use crate::lab::{self, Profile};
use crate::{build_ebpf, chart, image, setup, workspace};

const COREDNS: Tool = Tool {
    name: "coredns",
    folder: "tests/coredns",
    module: "github.com/coredns/coredns",
    package: "github.com/coredns/coredns",
};

/// The verb. What does not start anything needs nothing but `lab`.
pub fn run(args: &[OsString]) -> Result<()> {
    if !args.first().is_some_and(|arg| arg == "up" || arg == "check") || args.iter().any(|arg| arg == "--help") {
        return lab::run(&lab::CLUSTER, args, &[]);
    }
    let tools = workspace::tools_dir()?;
    build_ebpf::build(&setup::bpf_tools()?, build_ebpf::Kind::Usual)?;
    lab::build(Profile::Dev)?;
    let helm = chart::helm(&tools)?;
    let coredns = go::tool(&tools, &COREDNS)?;
    let node = debian::ensure(&tools)?;
    let images = image::folder()?.join("cluster");
    images::write(&node, &coredns, &images)?;
    let text = |path: std::path::PathBuf| path.into_os_string().into_string().ok().context("a path is not UTF-8");
    let variables = [
        ("LB_HELM", text(helm)?),
        ("LB_NODE_PROGRAMS", text(node)?),
        ("LB_IMAGES", text(images)?),
        ("LB_CHART", text(workspace::root().join(chart::CHART))?),
    ];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    lab::run(&lab::CLUSTER, args, &variables)
}
