//! An explanation in words.

use std::fmt;

use lb_common::Counter;

use super::Explained;
use crate::{
    cli::output::columns,
    plane::ebpf::{Client, Explanation, Fate},
};

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation {
            program,
            frontend,
            client,
            is_restricted,
            affinity_seconds,
            sent,
            possible,
            verdict,
            reason,
        } = &self.answer;
        writeln!(f, "Packet:      {}", self.question)?;
        let id = program.id.map_or_else(String::new, |id| format!(" id {id}"));
        writeln!(
            f,
            "Program:     {}{id} tag {} on {}",
            program.name, program.tag, program.link
        )?;
        if !program.before.is_empty() {
            writeln!(f, "Before it:   {}, which were not asked", program.before.join(", "))?;
        }
        match frontend {
            Some(frontend) if frontend.ip().is_unspecified() => {
                writeln!(f, "Frontend:    NodePort {}", frontend.port())?;
            }
            Some(frontend) => writeln!(f, "Frontend:    {frontend}")?,
            None => writeln!(f, "Frontend:    <none>")?,
        }
        if frontend.is_some() {
            let client = match client {
                Some(Client::Near) => "near: the internal traffic policy counts",
                Some(Client::Far) => "far: the external traffic policy counts",
                None => "none: the source is an address of this node or of a Service",
            };
            writeln!(f, "Client:      {client}")?;
        }
        if *is_restricted {
            writeln!(f, "Ranges:      only clients in the source ranges may begin flows")?;
        }
        if let Some(seconds) = affinity_seconds {
            writeln!(f, "Affinity:    the same backend for {seconds}s after a flow began")?;
        }
        if let Some(sent) = sent {
            let how = if sent.is_new {
                format!("chosen for a new flow, {} possible", possible.len())
            } else {
                "of a flow that goes on".to_owned()
            };
            writeln!(f, "Backend:     {} ({how})", sent.backend)?;
            if let Some(port) = sent.client_port {
                writeln!(f, "Client port: {port}, since its own is another flow's there")?;
            }
            let masquerade = if sent.masquerade {
                "yes, the backend sees an address of this node"
            } else {
                "no, the backend sees the client"
            };
            writeln!(f, "Masquerade:  {masquerade}")?;
        }
        let verdict = match verdict {
            Fate::Sent => "goes to the backend",
            Fate::Untouched => "passes untouched",
            Fate::Refused => "refused with port unreachable",
            Fate::Dropped => "dropped",
        };
        writeln!(f, "Verdict:     {verdict}")?;
        if let Some(name) = reason {
            writeln!(f, "Reason:      {name}: {}", why(name))?;
        } else if frontend.is_none() {
            writeln!(f, "Reason:      nothing is served at that address and port")?;
        }
        if !possible.is_empty() {
            let rows = possible.iter().map(|possible| {
                let yes = |is: bool, yes: &str, no: &str| if is { yes } else { no }.to_owned();
                [
                    possible.backend.to_string(),
                    yes(possible.on_node, "this", "other"),
                    yes(possible.masquerade, "yes", "no"),
                ]
            });
            writeln!(f, "\n{}", columns(["POSSIBLE BACKEND", "NODE", "MASQUERADE"], rows))?;
        }
        Ok(())
    }
}

/// What a counter means to somebody who asks about one packet.
fn why(name: &str) -> &'static str {
    let counter = Counter::ALL.into_iter().find(|counter| counter.name() == name);
    match counter {
        Some(Counter::Rejected) => "the Service has no endpoint, or the address is a Service's and has no such port",
        Some(Counter::DroppedNoLocalEndpoint) => "the traffic policy is Local and no endpoint is on this node",
        Some(Counter::DroppedFlowCollision) => "the client's port is in use to every backend that was drawn",
        Some(Counter::DroppedFlowTable) => "the table of flows takes no more",
        Some(Counter::DroppedRewrite) => "the packet cannot be rewritten",
        Some(Counter::DroppedRejectFailed) => {
            "it is to be refused, and nobody could be told: the source is no single host"
        }
        Some(Counter::DroppedNoBackend) => "every backend that was drawn had just gone: ask again",
        Some(Counter::DroppedSourceRange) => "the client is in none of the source ranges",
        Some(Counter::DroppedUnallocated) => "the address is for Services, and none has it",
        Some(Counter::DroppedFragment) => "a fragment that cannot be translated",
        Some(Counter::DroppedSpoofedSource) => {
            "the source is an address of this node or of a Service, which no client has"
        }
        Some(Counter::DroppedNoSource) => "it is to be masqueraded, and the node has no address of its family",
        Some(Counter::DroppedNoSourcePort) => {
            "it is to be masqueraded, and no port of the node is free towards the backend"
        }
        Some(Counter::PassedWithoutFlow) => "it belongs to no flow and begins none",
        Some(Counter::FlowNew | Counter::SocketTranslated | Counter::EventsLost) | None => {
            "see `lb-agent monitor --help`"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::explain::packet::{Kind, Question},
        plane::ebpf::{Possible, ProgramOnLink, Sent},
    };

    fn explained(change: impl FnOnce(&mut Explanation)) -> String {
        let question = Question::new(
            Kind::Tcp,
            "10.0.0.9:40000".parse().unwrap(),
            "10.96.0.1:443".parse().unwrap(),
        );
        let mut answer = Explanation {
            program: ProgramOnLink {
                link: "eth0".to_owned(),
                name: "from_outside".to_owned(),
                id: Some(12),
                tag: "0123456789abcdef".to_owned(),
                before: Vec::new(),
            },
            frontend: Some("10.96.0.1:443".parse().unwrap()),
            client: Some(Client::Far),
            is_restricted: false,
            affinity_seconds: None,
            sent: None,
            possible: Vec::new(),
            verdict: Fate::Untouched,
            reason: None,
        };
        change(&mut answer);
        let question = question.unwrap();
        Explained { question, answer }.to_string()
    }

    #[test]
    fn who_is_sent_on_is_told_where_and_as_whom() {
        let backend = "10.244.2.2:6443".parse().unwrap();
        let text = explained(|answer| {
            answer.verdict = Fate::Sent;
            answer.sent = Some(Sent {
                backend,
                client_port: None,
                masquerade: true,
                is_new: true,
            });
            answer.possible = vec![Possible {
                backend,
                on_node: false,
                masquerade: true,
            }];
        });
        let expected = "\
Packet:      tcp 10.0.0.9:40000 -> 10.96.0.1:443
Program:     from_outside id 12 tag 0123456789abcdef on eth0
Frontend:    10.96.0.1:443
Client:      far: the external traffic policy counts
Backend:     10.244.2.2:6443 (chosen for a new flow, 1 possible)
Masquerade:  yes, the backend sees an address of this node
Verdict:     goes to the backend

POSSIBLE BACKEND   NODE    MASQUERADE
10.244.2.2:6443    other   yes
";
        assert_eq!(text, expected);
    }

    #[test]
    fn who_is_not_is_told_why() {
        let text = explained(|answer| {
            answer.verdict = Fate::Dropped;
            answer.reason = Some(Counter::DroppedNoLocalEndpoint.name());
        });
        let end = "\
Verdict:     dropped
Reason:      dropped_no_local_endpoint: the traffic policy is Local and no endpoint is on this node
";
        assert!(text.ends_with(end), "{text}");
        let text = explained(|answer| {
            answer.frontend = None;
            answer.client = None;
        });
        assert!(
            text.contains("Frontend:    <none>\nVerdict:     passes untouched\n"),
            "{text}"
        );
    }
}
