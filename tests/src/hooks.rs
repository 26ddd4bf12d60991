//! What programs are on the links of a node, and what an agent has pinned.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TcAttachType, loaded_links};
use serde::Deserialize;

use crate::kernel::Feature;
use crate::netlink::Link;
use crate::network::Node;
use crate::process;

/// The programs on one hook of a link, in the order in which they see packets: by name and, on TCX, number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hook {
    /// On TCX: none where the kernel has no TCX.
    pub tcx: Vec<(String, u32)>,
    /// Filters on the clsact qdisc, which come after.
    pub filters: Vec<String>,
}

/// Before the names of the agent's filters.
const FILTER_PREFIX: &str = "lb-agent/";
/// The agent's programs for links. The kernel keeps 15 bytes of a name.
const PROGRAMS: [&str; 6] = [
    "from_pod",
    "from_pod_l3",
    "from_outside",
    "from_outside_l3",
    "to_link",
    "to_link_l3",
];

impl Hook {
    /// How many of them are the agent's.
    #[must_use]
    pub fn ours(&self) -> usize {
        let filters = self.filters.iter().filter(|name| name.starts_with(FILTER_PREFIX));
        let tcx = self.tcx.iter().filter(|(name, _)| PROGRAMS.contains(&name.as_str()));
        filters.count() + tcx.count()
    }

    /// The names.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let tcx = self.tcx.iter().map(|(name, _)| name.as_str());
        tcx.chain(self.filters.iter().map(String::as_str)).collect()
    }
}

/// What is on a link of a node, in one direction.
pub fn on(node: &Node, link: &str, direction: TcAttachType) -> Result<Hook> {
    let what = || format!("looking for programs on {link} of {}", node.name());
    let query = || SchedClassifier::query_tcx(link, direction);
    let programs = if Feature::Tcx.is_there()? {
        node.netns().run(query)?.with_context(what)?.1
    } else {
        Vec::new()
    };
    let tcx = programs
        .iter()
        .map(|program| (program.name_as_str().unwrap_or_default().to_owned(), program.id()));
    Ok(Hook {
        tcx: tcx.collect(),
        filters: filters(node, link, direction).with_context(what)?,
    })
}

#[derive(Deserialize)]
struct Filter {
    options: Option<FilterOptions>,
}

#[derive(Deserialize)]
struct FilterOptions {
    bpf_name: Option<String>,
}

fn filters(node: &Node, link: &str, direction: TcAttachType) -> Result<Vec<String>> {
    let text = tc(node, &["-j", "filter", "show", "dev", link, side(direction)])?;
    let filters: Vec<Filter> = serde_json::from_str(&text).with_context(|| format!("tc said {text}"))?;
    let options = filters.into_iter().filter_map(|filter| filter.options);
    Ok(options
        .map(|options| options.bpf_name.unwrap_or_else(|| "another kind".to_owned()))
        .collect())
}

fn side(direction: TcAttachType) -> &'static str {
    match direction {
        TcAttachType::Egress => "egress",
        _ => "ingress",
    }
}

/// What `tc` says on a node.
fn tc(node: &Node, args: &[&str]) -> Result<String> {
    let mut tc = Command::new("tc");
    tc.args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = process::spawn(tc, node.netns(), None)?.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The names of the BPF links that the agent of a node has pinned for hooks on links, such as `ingress-7`.
pub fn pins(node: &Node) -> Result<BTreeSet<String>> {
    let names = paths(node)?
        .into_iter()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    Ok(names.collect())
}

/// Takes the agent's program off a hook: removes its pin, which is all that holds it on TCX, or every filter.
pub fn take_off(node: &Node, link: &Link, direction: TcAttachType) -> Result<()> {
    let side = side(direction);
    if !Feature::Tcx.is_there()? {
        return tc(node, &["filter", "del", "dev", &link.name, side]).map(drop);
    }
    let name = format!("{side}-{}", link.index);
    let path = paths(node)?.into_iter().find(|path| path.ends_with(&name));
    fs::remove_file(path.with_context(|| format!("no pin {name}"))?).with_context(|| format!("unpinning {name}"))
}

fn paths(node: &Node) -> Result<Vec<PathBuf>> {
    let mut pins = Vec::new();
    let root = node.bpffs().path().join("lb-agent");
    for version in fs::read_dir(&root).with_context(|| root.display().to_string())? {
        let version = version?;
        // The others hold what is not filled yet, and what drains.
        if !version.file_name().to_string_lossy().starts_with('v') {
            continue;
        }
        for pin in fs::read_dir(version.path().join("links"))? {
            let path = pin?.path();
            if path.to_string_lossy().contains("gress-") {
                pins.push(path);
            }
        }
    }
    Ok(pins)
}

/// How many BPF links hold one of these programs, on a hook or on none.
pub fn holders(programs: &BTreeSet<u32>) -> usize {
    // One that goes while it is looked at is none.
    let links = loaded_links().filter_map(Result::ok);
    links.filter(|link| programs.contains(&link.program_id())).count()
}
