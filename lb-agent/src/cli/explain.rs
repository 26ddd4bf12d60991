//! `lb-agent explain`.

mod packet;
mod text;

use std::{net::IpAddr, process::ExitCode};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use super::{
    output::{Answer, Output},
    places::Places,
    programmed,
};
use crate::{
    kernel::routes::{self, Towards},
    plane::ebpf::{self, Explanation, Fate, ServedLink},
};
use packet::{End, Kind, Question};

/// Print what becomes of a packet that comes in by a link, and why: the program on that link is asked, not the objects.
/// A copy of it, with the same instructions and constants, is run on a packet that begins a flow, on the maps that the
/// agent fills and with the rows of the flows that the packet may meet. What a run writes goes to maps of the copy's own,
/// so that no flow, no affinity and no count stays behind, and no traffic is touched
#[derive(Debug, Args)]
#[command(after_help = "\
  lb-agent explain tcp 10.0.0.9:40000 10.96.0.1:443
  lb-agent explain udp [fd00::9]:40000 [fd00:96::a]:53 --from pod3
  lb-agent explain icmp 10.0.0.9 10.96.0.1

Without --from it is the link by which the node would send to the source. Which backend a new flow gets is drawn: each
run may name another of those that are possible. Other programs, routes and filters are not asked.

Exit codes: 0 the packet goes to a backend, or is none for a service and passes, 1 it is refused or dropped,
2 it cannot be told.")]
pub(super) struct Explain {
    /// Protocol; icmp is an echo request of the family of the addresses
    protocol: Kind,

    /// Who sends it: an address, with a port unless it is icmp
    source: End,

    /// What it is sent to: the same
    destination: End,

    /// The link by which it comes in
    #[arg(long, value_name = "LINK")]
    from: Option<String>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    places: Places,
}

/// A question and its answer.
#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    question: Question,
    #[serde(flatten)]
    answer: Explanation,
}

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let question = Question::new(self.protocol, self.source, self.destination)?;
        let packet = question.packet()?;
        let bpffs = self.places.paths()?.bpffs;
        let instead =
            "`lb-agent services` says where the destination leads, `ipvsadm -Lnc` what has come of connections";
        let answer = programmed::by_programs(&bpffs, instead, || {
            let links = ebpf::links(&bpffs)?;
            let link = match &self.from {
                Some(name) => by_name(&links, name)?,
                None => by_source(&links, question.source())?,
            };
            ebpf::explain(&bpffs, link, &packet)
        })?;
        let is_good = matches!(answer.verdict, Fate::Sent | Fate::Untouched);
        let explained = Explained { question, answer };
        self.output.print(&explained, &explained)?;
        Ok(if is_good { Answer::Good } else { Answer::Problem }.into())
    }
}

fn by_name<'a>(links: &'a [ServedLink], name: &str) -> anyhow::Result<&'a ServedLink> {
    links
        .iter()
        .find(|link| link.name == name)
        .with_context(|| format!("there is no link {name} here"))
}

/// The link by which packets of this source come in, as far as routes tell. Of the ports of a bridge it is one whose
/// program is the same on each of them.
fn by_source(links: &[ServedLink], source: IpAddr) -> anyhow::Result<&ServedLink> {
    let index = match routes::towards(source).with_context(|| format!("by which link {source} comes in"))? {
        Towards::Link(index) => index,
        Towards::ThisNode => bail!(
            "{source} is an address of this node: its processes are translated in their sockets, where the kernel runs \
             no program on a packet that is made up. `--from LINK` asks for one that comes in by a link all the same"
        ),
        Towards::Nowhere => bail!("no route leads to {source}: say by which link it comes in, `--from LINK`"),
    };
    let is_served = |link: &&ServedLink| link.ingress.program.is_some();
    let by_route = links.iter().find(|link| link.index == index);
    if let Some(link) = by_route.filter(is_served) {
        return Ok(link);
    }
    let mut ports = links.iter().filter(|link| link.master == Some(index)).filter(is_served);
    let name = by_route.map_or_else(|| format!("of index {index}"), |link| link.name.clone());
    let Some(port) = ports.next() else {
        bail!(
            "{source} is behind link {name}, which has no program of ours: `lb-agent links` says which have, `--from` takes one"
        );
    };
    let program = |link: &ServedLink| link.ingress.program.as_ref().and_then(|program| program.id);
    if let Some(other) = ports.find(|other| program(other) != program(port)) {
        bail!(
            "{source} is behind the bridge {name}, and its ports {} and {} have different programs: say which, `--from LINK`",
            port.name,
            other.name
        );
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::ebpf::{Attached, Hook, Way};

    fn link(name: &str, master: Option<u32>, program: Option<u32>) -> ServedLink {
        let attached = program.map(|id| Attached {
            id: Some(id),
            name: None,
            way: Way::Tcx,
        });
        ServedLink {
            index: 7,
            name: name.to_owned(),
            master,
            ingress: Hook {
                program: attached,
                ..Hook::default()
            },
            egress: Hook::default(),
            proxy: None,
        }
    }

    #[test]
    fn a_link_is_found_by_its_name() {
        let links = [link("eth0", None, Some(1)), link("pod3", None, Some(2))];
        assert_eq!(by_name(&links, "pod3").unwrap(), &links[1]);
        let error = by_name(&links, "pod4").unwrap_err().to_string();
        assert!(error.contains("pod4"), "{error}");
    }

    #[test]
    fn a_process_of_the_node_itself_comes_by_no_link() {
        let error = by_source(&[], "127.0.0.1".parse().unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("address of this node") && error.contains("--from"),
            "{error}"
        );
    }
}
