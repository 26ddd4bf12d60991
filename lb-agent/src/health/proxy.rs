//! Whether what the objects say reaches the kernel, and whether the node is to have traffic.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

use crate::desired::Family;

/// How long a change may wait for the kernel before the proxy counts as unhealthy: kube-proxy waits
/// for twice its sync period, which is 30 s unless it is told otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// The health of this proxy, told by the agent and asked for by the servers. Clones share it.
///
/// It is healthy from the beginning, as kube-proxy is, so that nobody restarts an agent whose API
/// server is away. The node counts as eligible for traffic once its object has said so.
#[derive(Clone, Debug)]
pub struct ProxyHealth {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    v4: Programming,
    v6: Programming,
    is_node_eligible: bool,
}

/// How the programming of one family goes.
#[derive(Clone, Copy, Debug)]
struct Programming {
    last_updated: Timestamp,
    /// Since when the oldest change waits that is not in the kernel.
    waiting_since: Option<Instant>,
}

/// A moment: the clock that goes on evenly decides, the other one is shown.
#[derive(Clone, Copy, Debug)]
struct Moment {
    instant: Instant,
    time: Timestamp,
}

/// What `/livez` says; with the node's eligibility, what `/healthz` says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    last_updated: Timestamp,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: FamilyReports,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct FamilyReports {
    #[serde(rename = "IPv4")]
    v4: FamilyReport,
    #[serde(rename = "IPv6")]
    v6: FamilyReport,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyReport {
    last_updated: Timestamp,
    healthy: bool,
}

impl ProxyHealth {
    /// Of a proxy that starts.
    #[must_use]
    pub fn new() -> Self {
        let programming = Programming {
            last_updated: Timestamp::now(),
            waiting_since: None,
        };
        let state = State {
            v4: programming,
            v6: programming,
            is_node_eligible: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Changes have come in that may concern either family. To be said before they are programmed,
    /// which may take for ever.
    pub fn changes_wait(&self) {
        self.lock().changes_wait(Moment::now());
    }

    /// The kernel has all that is asked of it in this family.
    pub fn is_programmed(&self, family: Family) {
        self.lock().is_programmed(family, Moment::now());
    }

    /// Whether the node is to have traffic, as its object says. While there is no object, what the
    /// last one said counts, as with kube-proxy.
    pub fn set_node_eligible(&self, is_eligible: bool) {
        self.lock().is_node_eligible = is_eligible;
    }

    /// Whether changes reach the kernel.
    pub(super) fn is_healthy(&self) -> bool {
        self.lock().livez(Moment::now()).is_good()
    }

    pub(super) fn livez(&self) -> Report {
        self.lock().livez(Moment::now())
    }

    pub(super) fn healthz(&self) -> Report {
        self.lock().healthz(Moment::now())
    }

    /// Whether a change of this family is not in the kernel.
    #[cfg(test)]
    pub(crate) fn waits(&self, family: Family) -> bool {
        let state = self.lock();
        let programming = match family {
            Family::V4 => state.v4,
            Family::V6 => state.v6,
        };
        programming.waiting_since.is_some()
    }

    #[cfg(test)]
    pub(crate) fn is_node_eligible(&self) -> bool {
        self.lock().is_node_eligible
    }

    /// Of a proxy that has not come to terms with the kernel for too long.
    #[cfg(test)]
    pub(super) fn stale() -> Self {
        let health = Self::new();
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        health.lock().v6.waiting_since = Some(long_ago);
        health
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ProxyHealth {
    fn default() -> Self {
        Self::new()
    }
}

impl Moment {
    fn now() -> Self {
        Self {
            instant: Instant::now(),
            time: Timestamp::now(),
        }
    }
}

impl Report {
    /// Whether it is worth status 200.
    pub(super) fn is_good(&self) -> bool {
        self.healthy && self.node_eligible != Some(false)
    }
}

impl State {
    fn changes_wait(&mut self, now: Moment) {
        for programming in [&mut self.v4, &mut self.v6] {
            programming.waiting_since.get_or_insert(now.instant);
        }
    }

    fn is_programmed(&mut self, family: Family, now: Moment) {
        let programming = match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        *programming = Programming {
            last_updated: now.time,
            waiting_since: None,
        };
    }

    fn livez(&self, now: Moment) -> Report {
        self.report(now, None)
    }

    fn healthz(&self, now: Moment) -> Report {
        self.report(now, Some(self.is_node_eligible))
    }

    fn report(&self, now: Moment, node_eligible: Option<bool>) -> Report {
        let status = FamilyReports {
            v4: self.v4.report(now),
            v6: self.v6.report(now),
        };
        let mut report = Report {
            last_updated: self.v4.last_updated.max(self.v6.last_updated),
            current_time: now.time,
            node_eligible,
            healthy: status.v4.healthy && status.v6.healthy,
            status,
        };
        // Old readers of `lastUpdated` take it for a sign of life: where all is well, it is recent
        // although nothing has changed for days.
        if report.is_good() {
            report.last_updated = now.time;
        }
        report
    }
}

impl Programming {
    fn report(&self, now: Moment) -> FamilyReport {
        let waits = self.waiting_since.map(|since| now.instant.duration_since(since));
        FamilyReport {
            last_updated: self.last_updated,
            healthy: waits.is_none_or(|waits| waits < PATIENCE),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const START: &str = "2026-11-30T12:00:00Z";

    /// A proxy on an eligible node, and the moment that it started at.
    fn started() -> (State, Moment) {
        let start = Moment {
            instant: Instant::now(),
            time: START.parse().unwrap(),
        };
        let programming = Programming {
            last_updated: start.time,
            waiting_since: None,
        };
        let state = State {
            v4: programming,
            v6: programming,
            is_node_eligible: true,
        };
        (state, start)
    }

    fn after(start: Moment, seconds: u64) -> Moment {
        let time = Duration::from_secs(seconds);
        Moment {
            instant: start.instant + time,
            time: start.time + time,
        }
    }

    fn json(report: &Report) -> Value {
        serde_json::to_value(report).unwrap()
    }

    #[test]
    fn a_proxy_is_healthy_while_nothing_is_asked_of_it() {
        let (state, start) = started();
        assert!(state.livez(start).is_good());
        assert!(state.livez(after(start, 86_400)).is_good());
    }

    #[test]
    fn a_change_may_wait_for_a_minute_and_the_oldest_counts() {
        let (mut state, start) = started();
        state.changes_wait(start);
        state.changes_wait(after(start, 59));
        assert!(state.livez(after(start, 59)).is_good());
        assert!(!state.livez(after(start, 60)).is_good());
        assert!(!state.healthz(after(start, 60)).is_good());

        state.is_programmed(Family::V4, after(start, 61));
        assert!(!state.livez(after(start, 61)).is_good(), "the other family waits");
        state.is_programmed(Family::V6, after(start, 62));
        assert!(state.livez(after(start, 62)).is_good());
        state.changes_wait(after(start, 70));
        assert!(state.livez(after(start, 129)).is_good(), "what waits is newer");
    }

    #[test]
    fn the_report_is_kube_proxys() {
        let (mut state, start) = started();
        state.is_programmed(Family::V4, after(start, 1));
        state.is_programmed(Family::V6, after(start, 2));
        let good = r#"{"lastUpdated":"2026-11-30T12:00:05Z","currentTime":"2026-11-30T12:00:05Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-30T12:00:01Z","healthy":true},"IPv6":{"lastUpdated":"2026-11-30T12:00:02Z","healthy":true}}}"#;
        let report = state.healthz(after(start, 5));
        assert_eq!(serde_json::to_string(&report).unwrap(), good);

        state.changes_wait(after(start, 5));
        state.is_programmed(Family::V4, after(start, 6));
        let stale = json!({
            "lastUpdated": "2026-11-30T12:00:06Z",
            "currentTime": "2026-11-30T12:05:00Z",
            "healthy": false,
            "status": {
                "IPv4": { "lastUpdated": "2026-11-30T12:00:06Z", "healthy": true },
                "IPv6": { "lastUpdated": "2026-11-30T12:00:02Z", "healthy": false },
            },
        });
        assert_eq!(json(&state.livez(after(start, 300))), stale);
    }

    #[test]
    fn a_node_that_is_to_go_is_no_concern_of_livez() {
        let (mut state, start) = started();
        state.is_node_eligible = false;
        let now = after(start, 5);
        assert!(state.livez(now).is_good());
        assert_eq!(json(&state.livez(now)).get("nodeEligible"), None);

        let report = state.healthz(now);
        assert!(!report.is_good());
        let report = json(&report);
        assert_eq!(
            (&report["nodeEligible"], &report["healthy"]),
            (&json!(false), &json!(true))
        );
        assert_eq!(
            report["lastUpdated"], START,
            "of what is not well, the last update is shown"
        );
    }

    #[test]
    fn a_node_is_eligible_once_its_object_says_so() {
        let health = ProxyHealth::new();
        assert!(health.livez().is_good());
        assert!(!health.healthz().is_good());
        health.set_node_eligible(true);
        assert!(health.healthz().is_good());
    }
}
