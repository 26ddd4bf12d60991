//! `lb-agent links`.

use std::{fmt, process::ExitCode};

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use super::{
    output::{Answer, Output, columns},
    places::Places,
    programmed,
};
use crate::plane::ebpf::{self, Attached, ServedLink, Way};

/// Print which links of this node have programs of ours for what comes in and goes out, and what is in their way. The
/// kernel is asked, beside a running agent or without one
#[derive(Debug, Args)]
#[command(after_help = "\
A program is named with its number and how it is there: by TCX, or by a filter of the clsact qdisc. `from_pod` is on the
links of pods, `from_outside` on uplinks and tunnels. One that drains is of an earlier agent, and goes on with the
connections that this has begun. Names of programs on TCX are told to CAP_SYS_ADMIN alone.

Exit codes: 0 all is well, 1 a link has one direction only, or programs of others that see packets before ours,
2 no link has a program of ours, or it cannot be told.")]
pub(super) struct Links {
    /// Those without a program of ours too
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    places: Places,
}

impl Links {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let bpffs = self.places.paths()?.bpffs;
        let instead = "it needs nothing on links";
        let mut links = programmed::by_programs(&bpffs, instead, || ebpf::links(&bpffs))?;
        if !self.all {
            links.retain(ServedLink::is_served);
            ensure!(
                !links.is_empty(),
                "no link here has a program of ours; --all shows the others"
            );
        }
        let links: Vec<Link> = links.into_iter().map(Link::new).collect();
        self.output.print(&links, &Table(&links))?;
        let is_good = links.iter().all(|link| link.problems.is_empty());
        Ok(if is_good { Answer::Good } else { Answer::Problem }.into())
    }
}

/// What is shown of a link.
#[derive(Debug, Serialize)]
struct Link {
    #[serde(flatten)]
    link: ServedLink,
    problems: Vec<String>,
}

impl Link {
    fn new(link: ServedLink) -> Self {
        Self {
            problems: link.problems(),
            link,
        }
    }
}

/// For people.
struct Table<'a>(&'a [Link]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|Link { link, problems }| {
            let of_others = link.proxy.map(|proxy| format!("served by {proxy}"));
            let draining = [(&link.ingress, "ingress"), (&link.egress, "egress")].map(|(hook, name)| {
                let programs: Vec<String> = hook.draining.iter().map(|one| program(Some(one))).collect();
                (!programs.is_empty())
                    .then(|| format!("of an earlier agent, draining at {name}: {}", programs.join(", ")))
            });
            let notes: Vec<String> = of_others
                .into_iter()
                .chain(draining.into_iter().flatten())
                .chain(problems.iter().cloned())
                .collect();
            [
                link.name.clone(),
                link.index.to_string(),
                program(link.ingress.program.as_ref()),
                program(link.egress.program.as_ref()),
                notes.join("; "),
            ]
        });
        f.write_str(&columns(["LINK", "INDEX", "INGRESS", "EGRESS", "NOTES"], rows))
    }
}

/// Of one direction.
fn program(attached: Option<&Attached>) -> String {
    let Some(attached) = attached else {
        return String::new();
    };
    let name = attached.name.as_deref().unwrap_or("?");
    let way = match attached.way {
        Way::Tcx => "tcx",
        Way::Filter => "filter",
    };
    match attached.id {
        Some(id) => format!("{name} ({way}, id {id})"),
        None => format!("{name} ({way})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::ebpf::Hook;

    fn link(name: &str, ingress: Hook, egress: Hook) -> ServedLink {
        ServedLink {
            index: 7,
            name: name.to_owned(),
            master: None,
            ingress,
            egress,
            proxy: None,
        }
    }

    fn hook(name: &str, way: Way) -> Hook {
        let attached = Attached {
            id: Some(12),
            name: Some(name.to_owned()),
            way,
        };
        Hook {
            program: Some(attached),
            ..Hook::default()
        }
    }

    #[test]
    fn a_link_is_a_line_with_what_is_wrong_there() {
        let hidden = Hook {
            before: vec!["firewall (id 7)".to_owned()],
            ..hook("from_outside", Way::Filter)
        };
        let behind = Hook {
            draining: hook("to_link", Way::Tcx).program.into_iter().collect(),
            ..hook("to_link", Way::Tcx)
        };
        let links = [
            link("up2", hook("from_outside", Way::Tcx), behind),
            link("pod3", hook("from_pod", Way::Tcx), hook("to_link", Way::Tcx)),
            link("up", hidden, hook("to_link", Way::Filter)),
            link("half", hook("from_pod", Way::Tcx), Hook::default()),
        ];
        let expected = "\
LINK   INDEX   INGRESS                        EGRESS                    NOTES
up2    7       from_outside (tcx, id 12)      to_link (tcx, id 12)      of an earlier agent, draining at egress: to_link (tcx, id 12)
pod3   7       from_pod (tcx, id 12)          to_link (tcx, id 12)      <none>
up     7       from_outside (filter, id 12)   to_link (filter, id 12)   before ours at ingress: firewall (id 7)
half   7       from_pod (tcx, id 12)          <none>                    no program where packets go out: answers keep the backend's address";
        assert_eq!(Table(&links.map(Link::new)).to_string(), expected);
    }
}
