//! What load balancers and kubelet are told by HTTP: the same, to the byte, by both proxies.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::controlplane::{ControlPlane, Mode};
use lb_tests::http::{Answer, get};
use lb_tests::interrupt;
use serde_json::Value;

use super::play::Sides;
use super::twin::Twin;

/// Where both proxies tell how they are.
const HEALTHZ: u16 = 10256;
/// A proxy may hear of an endpoint a moment after the other one.
const PATIENCE: Duration = Duration::from_secs(10);

/// A question, and what both said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Checked {
    mode: Mode,
    whose: String,
    at: SocketAddr,
    theirs: String,
    ours: String,
}

impl Checked {
    /// Whether both said the same.
    pub(crate) fn agrees(&self) -> bool {
        self.theirs == self.ours
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            whose,
            at,
            theirs,
            ours,
        } = self;
        write!(
            f,
            "{}: {whose} at {at}\n  kube-proxy: {theirs}\n  lb-agent:   {ours}",
            mode.word()
        )
    }
}

/// Asks both at every health check of a Service, and how they are themselves, in both families.
pub(crate) fn compare(cluster: &ControlPlane, sides: Sides<'_>) -> Result<Vec<Checked>> {
    let mut checked = Vec::new();
    let mut questions: Vec<(String, u16, &str)> = ports(cluster)?
        .into_iter()
        .map(|(service, port)| (format!("health check of {service}"), port, "/"))
        .collect();
    questions.extend(["/healthz", "/livez"].map(|path| (path.to_owned(), HEALTHZ, path)));
    for (whose, port, path) in &questions {
        for ip in sides.ours.network().node1().addresses() {
            interrupt::check()?;
            let at = SocketAddr::new(ip, *port);
            let until = Instant::now() + PATIENCE;
            let (theirs, ours) = loop {
                let said = (said(sides.theirs, at, path), said(sides.ours, at, path));
                if said.0 == said.1 || Instant::now() >= until {
                    break said;
                }
            };
            checked.push(Checked {
                mode: sides.mode,
                whose: whose.clone(),
                at,
                theirs,
                ours,
            });
        }
    }
    for status in ["200", "503"] {
        let has_said = checked.iter().any(|checked| checked.theirs.starts_with(status));
        ensure!(
            has_said,
            "no health check of kube-proxy has said {status}: they prove nothing"
        );
    }
    Ok(checked)
}

/// The healthCheckNodePorts, by Service. The API server gives them.
fn ports(cluster: &ControlPlane) -> Result<Vec<(String, u16)>> {
    let services = cluster.kubectl(&["get", "services", "--all-namespaces", "--output", "json"])?;
    let services: Value = serde_json::from_str(&services).context("kubectl speaks JSON")?;
    let services = services["items"].as_array().context("a list has items")?;
    let port = |service: &Value| {
        let port = service["spec"]["healthCheckNodePort"].as_u64()?;
        let name = service["metadata"]["name"].as_str()?;
        Some((name.to_owned(), u16::try_from(port).ok()?))
    };
    Ok(services.iter().filter_map(port).collect())
}

/// What a client outside is told, without what tells the time.
fn said(twin: &Twin, at: SocketAddr, path: &str) -> String {
    match get(twin.network().outside().netns(), at, path) {
        Ok(answer) => timeless(answer),
        Err(error) => format!("nothing: {:#}", error.root_cause()),
    }
}

fn timeless(mut answer: Answer) -> String {
    answer
        .headers
        .retain(|(name, _)| name != "date" && name != "content-length");
    answer.headers.sort();
    let body = match serde_json::from_str::<Value>(&answer.body) {
        Ok(mut body) if body.get("currentTime").is_some() => {
            forget_times(&mut body);
            body.to_string()
        }
        _ => answer.body,
    };
    format!("{} {:?} {body:?}", answer.status, answer.headers)
}

fn forget_times(value: &mut Value) {
    if let Value::Object(fields) = value {
        for (name, field) in fields {
            match name.as_str() {
                "currentTime" | "lastUpdated" => *field = "a time".into(),
                _ => forget_times(field),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_the_same_but_for_what_tells_the_time() {
        let answer = |time: &str, healthy: bool| {
            timeless(Answer {
                status: 200,
                headers: vec![("date".into(), time.into()), ("x".into(), "y".into())],
                body: format!(
                    r#"{{"currentTime":"{time}","status":{{"IPv4":{{"lastUpdated":"{time}"}}}},"healthy":{healthy}}}"#
                ),
            })
        };
        assert_eq!(answer("now", true), answer("then", true));
        assert_ne!(answer("now", true), answer("now", false));
    }
}
