//! An endpoint leaves and another comes while connections run.
//!
//! Each of three clients opens a new connection every few milliseconds, and asks again and again over connections that
//! it opened before. In the middle of that the Service's EndpointSlices change, once.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use lb_tests::client::{Client, Connection, Outcome, Protocol};
use lb_tests::interrupt;
use lb_tests::matrix::Asker;
use lb_tests::stage::{Family, Stage};
use serde::Serialize;

/// How long connections run before the change and after its effect.
const AROUND: Duration = Duration::from_millis(500);
/// How long the effect may take.
const LIMIT: Duration = Duration::from_secs(20);
/// Between two new connections of a client.
const PACE: Duration = Duration::from_millis(3);
/// How many connections a client keeps, a family.
const KEPT: usize = 9;

/// What happened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    /// The endpoint that left.
    pub(crate) removed: String,
    /// The endpoint that came.
    pub(crate) added: String,
    /// How long writing the objects took; the rest of the times count from its begin.
    pub(crate) write_ms: f64,
    /// What each client saw.
    pub(crate) clients: Vec<Seen>,
}

/// What one client saw in one family.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seen {
    /// The client.
    pub(crate) from: String,
    /// What it dialled.
    pub(crate) to: SocketAddr,
    /// From the change to the first answer of the new endpoint.
    pub(crate) first_added_ms: Option<f64>,
    /// From the change to the last answer of the old endpoint on a new connection.
    pub(crate) last_removed_ms: Option<f64>,
    /// New connections.
    pub(crate) new: u32,
    /// Connections kept to endpoints that stay.
    pub(crate) kept: u32,
    /// Questions asked over these.
    pub(crate) questions: u32,
    /// Connections kept to the endpoint that left.
    pub(crate) leaving: u32,
    /// Those of them that still answered at the end. No promise is made about them, so they are no probes.
    pub(crate) leaving_alive: u32,
    /// What was wrong, one line a probe.
    pub(crate) wrong: Vec<String>,
}

impl Seen {
    /// How many probes it stands for.
    pub(crate) fn probes(&self) -> u32 {
        // One more for the first answer of the new endpoint.
        self.new + self.questions + 1
    }
}

/// A client and what it dials.
struct Player {
    from: Asker,
    family: Family,
    client: Client,
    to: SocketAddr,
}

/// What a player's connections came to.
#[derive(Default)]
struct Record {
    /// When each new connection was begun, and what came of it.
    new: Vec<(Instant, Outcome)>,
    /// A kept connection, and what was wrong with it.
    kept: Vec<Kept>,
    questions: u32,
}

struct Kept {
    connection: Connection,
    server: String,
    wrong: Option<String>,
}

/// Plays it.
pub(crate) fn play(stage: &Stage) -> Result<Change> {
    let (removed, added) = (&stage.here()[1], &stage.there()[1]);
    let mut service = stage.services().changing.clone();
    service.endpoints.retain(|endpoint| endpoint.name != removed.name());
    service.endpoints.push(added.into());
    let manifests = service.slice_manifests()?;

    let players = players(stage)?;
    let records: Vec<_> = players.iter().map(|_| Mutex::new(Record::default())).collect();
    let stop = AtomicBool::new(false);
    let (begun, written) = thread::scope(|scope| {
        let stop = &stop;
        for (player, record) in players.iter().zip(&records) {
            scope.spawn(move || player.run(stop, record));
        }
        let times = (|| -> Result<_> {
            interrupt::sleep(AROUND)?;
            let begun = Instant::now();
            stage.source().apply(&manifests)?;
            let written = Instant::now();
            wait_for(added.name(), &records)?;
            interrupt::sleep(AROUND)?;
            Ok((begun, written))
        })();
        // Also when it went wrong: the scope waits for the players.
        stop.store(true, Ordering::Relaxed);
        times
    })?;

    let clients = players.iter().zip(records).map(|(player, record)| {
        let record = record.into_inner().map_err(|_| anyhow!("a client panicked"))?;
        Ok(player.judge(record, begun, removed.name(), added.name()))
    });
    Ok(Change {
        removed: removed.name().to_owned(),
        added: added.name().to_owned(),
        write_ms: milliseconds(written - begun),
        clients: clients.collect::<Result<_>>()?,
    })
}

fn players(stage: &Stage) -> Result<Vec<Player>> {
    let service = &stage.services().changing;
    let mut players = Vec::new();
    for family in Family::ALL {
        let cluster_ip = Stage::cluster_ip(service, family);
        let node_port = stage.node_port(service, family)?;
        players.extend([
            Player {
                from: Asker::BridgePod,
                family,
                client: stage.bridge_pod().client(),
                to: cluster_ip,
            },
            Player {
                from: Asker::Host,
                family,
                client: stage.host().clone(),
                to: cluster_ip,
            },
            Player {
                from: Asker::Outside,
                family,
                client: stage.network().outside().client(),
                to: node_port,
            },
        ]);
    }
    Ok(players)
}

/// Waits until every client has been answered by this endpoint, or for as long as that may take.
fn wait_for(server: &str, records: &[Mutex<Record>]) -> Result<()> {
    let until = Instant::now() + LIMIT;
    let has_seen = |record: &Mutex<Record>| {
        let record = record.lock().ok().context("a client panicked")?;
        Ok(record
            .new
            .iter()
            .rev()
            .any(|(_, outcome)| matches!(outcome, Ok(answer) if answer.server == server)))
    };
    while Instant::now() < until {
        let seen: Vec<bool> = records.iter().map(has_seen).collect::<Result<_>>()?;
        if seen.iter().all(|seen| *seen) {
            break;
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(())
}

impl Player {
    fn run(&self, stop: &AtomicBool, record: &Mutex<Record>) {
        let mut kept = self.open_kept(record);
        let mut questions = 0;
        for turn in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let outcome = self.client.ask(Protocol::Tcp, self.to);
            if let Ok(mut record) = record.lock() {
                record.new.push((begun, outcome));
            }
            if let Some(kept) = kept.get_mut(turn % KEPT).filter(|kept| kept.wrong.is_none()) {
                questions += 1;
                kept.ask();
            }
            thread::sleep(PACE);
        }
        // Each once more, now that all is over.
        for kept in kept.iter_mut().filter(|kept| kept.wrong.is_none()) {
            questions += 1;
            kept.ask();
        }
        if let Ok(mut record) = record.lock() {
            record.kept = kept;
            record.questions += questions;
        }
    }

    fn open_kept(&self, record: &Mutex<Record>) -> Vec<Kept> {
        let mut kept = Vec::new();
        for _ in 0..KEPT {
            let begun = Instant::now();
            let opened = self.client.connect(Protocol::Tcp, self.to);
            let opened = opened.and_then(|mut connection| connection.ask("first").map(|answer| (connection, answer)));
            match opened {
                Ok((connection, answer)) => kept.push(Kept {
                    connection,
                    server: answer.server,
                    wrong: None,
                }),
                Err(failure) => {
                    if let Ok(mut record) = record.lock() {
                        record.new.push((begun, Err(failure)));
                    }
                }
            }
        }
        kept
    }

    fn judge(&self, record: Record, begun: Instant, removed: &str, added: &str) -> Seen {
        let since = |at: &Instant| at.checked_duration_since(begun).map(milliseconds);
        let answered_by = |name: &str| {
            let of = record
                .new
                .iter()
                .filter(|(_, outcome)| matches!(outcome, Ok(answer) if answer.server == name));
            of.map(|(at, _)| *at).collect::<Vec<_>>()
        };
        let (by_added, by_removed) = (answered_by(added), answered_by(removed));
        let first_added = by_added.first();
        let mut wrong: Vec<String> = Vec::new();
        for (_, outcome) in &record.new {
            if let Err(failure) = outcome {
                wrong.push(format!("a new connection: {failure}"));
            }
        }
        match first_added {
            None => wrong.push(format!("{added} never answered")),
            // The change is one write: who has been sent to the new endpoint is sent to the old one no more.
            Some(first) => {
                let late = by_removed.iter().filter(|at| *at > first);
                wrong.extend(late.map(|_| format!("{removed} answered a new connection after {added} had")));
            }
        }
        let (leaving, staying): (Vec<_>, Vec<_>) = record.kept.iter().partition(|kept| kept.server == removed);
        wrong.extend(
            staying
                .iter()
                .filter_map(|kept| Some(format!("to {}: {}", kept.server, kept.wrong.as_ref()?))),
        );
        let leaving_alive = leaving.iter().filter(|kept| kept.wrong.is_none()).count();
        Seen {
            from: format!("{}, {}", self.from, self.family),
            to: self.to,
            first_added_ms: first_added.and_then(since),
            last_removed_ms: by_removed.last().and_then(since),
            new: count(record.new.len()),
            kept: count(staying.len()),
            questions: record.questions,
            leaving: count(leaving.len()),
            leaving_alive: count(leaving_alive),
            wrong,
        }
    }
}

impl Kept {
    fn ask(&mut self) {
        self.wrong = match self.connection.ask("again") {
            Ok(answer) if answer.server == self.server => None,
            Ok(answer) => Some(format!("answered by {} all of a sudden", answer.server)),
            Err(failure) => Some(failure.to_string()),
        };
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}
