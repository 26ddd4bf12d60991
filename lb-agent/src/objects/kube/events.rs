//! Events on the Node object of this node, for people who look at it from afar.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::sleep;

use super::{ApiServer, backoff::Backoff, connection::describe};

/// Who reports.
const CONTROLLER: &str = "lb-agent";
/// What the API server takes of a note, in bytes.
const NOTE: usize = 1024;

/// Something that happened to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeEvent {
    /// Whether somebody should look at it.
    pub is_warning: bool,
    /// What happened, in one word of several.
    pub reason: &'static str,
    /// What was done, likewise.
    pub action: &'static str,
    /// What there is to say.
    pub note: String,
}

/// Puts an event on a node, as soon as the API server can be reached. One that it does not want is told in the log and
/// forgotten.
pub async fn tell(server: ApiServer, node: String, event: NodeEvent) {
    let reporter = Reporter {
        controller: CONTROLLER.to_owned(),
        instance: Some(node.clone()),
    };
    let recorder = Recorder::new(server.client(), reporter);
    // As the kubelet has it: `kubectl describe node` looks for events by a UID that is the name.
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.clone()),
        uid: Some(node),
        ..ObjectReference::default()
    };
    let NodeEvent {
        is_warning,
        reason,
        action,
        note,
    } = event;
    let event = Event {
        type_: if is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: reason.to_owned(),
        note: Some(shortened(note)),
        action: action.to_owned(),
        secondary: None,
    };
    let mut backoff = Backoff::new();
    loop {
        match recorder.publish(&event, &regarding).await {
            Ok(()) => return,
            // Refused: by its rules, or since it makes no sense to the server.
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                tracing::warn!(
                    "the event {reason} is not on this Node: {} (status {}); it takes create and patch of events in \
                     the API group events.k8s.io",
                    status.message,
                    status.code
                );
                return;
            }
            Err(error) => tracing::debug!("the event {reason} waits: {}", describe(&error)),
        }
        sleep(backoff.next()).await;
    }
}

/// As much of a text as fits.
fn shortened(mut note: String) -> String {
    const MORE: &str = " …";
    if note.len() > NOTE {
        note.truncate(note.floor_char_boundary(NOTE - MORE.len()));
        note.push_str(MORE);
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_as_long_as_the_server_takes() {
        assert_eq!(shortened("short".to_owned()), "short");
        let whole = "x".repeat(NOTE);
        assert_eq!(shortened(whole.clone()), whole);
        for long in ["x".repeat(NOTE + 1), "√".repeat(NOTE)] {
            let note = shortened(long);
            assert!(
                note.len() <= NOTE && note.len() > NOTE - 4 && note.ends_with(" …"),
                "{note}"
            );
        }
    }
}
