//! What became of connections: numbers, and each that failed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lb_tests::client::{Failure, Protocol};
use serde::{Serialize, Serializer};

use super::lane::Lane;

/// Longer than a connection takes of which no packet was lost: the kernel sends a SYN again after a second.
const SLOW: Duration = Duration::from_secs(1);

/// It, as it grows.
#[derive(Debug)]
pub(crate) struct Record {
    begun: Instant,
    /// New connections that have begun, and new questions by UDP.
    tcp: AtomicU64,
    udp: AtomicU64,
    /// Questions over long connections.
    asked: AtomicU64,
    slow: AtomicU64,
    in_flight: AtomicU64,
    /// How many were slow of each way: of few ways, it is the proxy's doing; of all, the machine's.
    slow_ways: Mutex<BTreeMap<String, u64>>,
    faults: Mutex<Vec<Fault>>,
}

/// How many there were of what, until some moment or between two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// New TCP connections.
    pub(crate) tcp: u64,
    /// Questions by UDP from new sockets.
    pub(crate) udp: u64,
    /// Questions over long connections and flows.
    pub(crate) asked: u64,
    /// New ones that were answered after more than a second.
    pub(crate) slow: u64,
}

impl Counts {
    /// What came after an earlier count.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            tcp: self.tcp - before.tcp,
            udp: self.udp - before.udp,
            asked: self.asked - before.asked,
            slow: self.slow - before.slow,
        }
    }
}

/// What a fault is counted as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A new connection that came to nothing.
    FailedConnection,
    /// A long connection that broke.
    Reset,
    /// A datagram of a long flow without an answer.
    LostDatagram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FailedConnection => "failed connection",
            Self::Reset => "reset",
            Self::LostDatagram => "lost datagram",
        })
    }
}

/// One thing that went wrong.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// When the connection or the question began, from the begin of the traffic.
    #[serde(rename = "at_s", serialize_with = "seconds")]
    pub(crate) at: Duration,
    /// How long it took until that was clear.
    #[serde(rename = "lasted_s", serialize_with = "seconds")]
    pub(crate) lasted: Duration,
    /// Which long connections it is one of.
    pub(crate) group: Option<&'static str>,
    /// Its number in the group.
    pub(crate) number: usize,
    pub(crate) way: String,
    pub(crate) why: String,
}

/// As a number in JSON.
pub(crate) fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 1e6).round() / 1e6)
}

impl Record {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            tcp: AtomicU64::new(0),
            udp: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            slow_ways: Mutex::default(),
            faults: Mutex::default(),
        }
    }

    /// How long it has been growing.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What it has come to so far.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            tcp: self.tcp.load(Ordering::Relaxed),
            udp: self.udp.load(Ordering::Relaxed),
            asked: self.asked.load(Ordering::Relaxed),
            slow: self.slow.load(Ordering::Relaxed),
        }
    }

    /// All that went wrong so far, by time.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut faults = lock(&self.faults).clone();
        faults.sort_by_key(|fault| fault.at);
        faults
    }

    /// How many new ones have no answer yet.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// A new one begins.
    pub(super) fn begin(&self, lane: &Lane) -> Duration {
        let counter = match lane.protocol {
            Protocol::Tcp => &self.tcp,
            Protocol::Udp => &self.udp,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.now()
    }

    /// It has ended.
    pub(super) fn end(&self, lane: &Lane, at: Duration, outcome: Result<(), Failure>) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let lasted = self.now() - at;
        match outcome {
            Ok(()) if lasted > SLOW => {
                self.slow.fetch_add(1, Ordering::Relaxed);
                *lock(&self.slow_ways).entry(lane.to_string()).or_default() += 1;
            }
            Ok(()) => {}
            Err(failure) => self.add(Fault {
                kind: Kind::FailedConnection,
                at,
                lasted,
                group: None,
                number: 0,
                way: lane.to_string(),
                why: failure.to_string(),
            }),
        }
    }

    /// A question over a long connection was asked.
    pub(super) fn asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add(&self, fault: Fault) {
        lock(&self.faults).push(fault);
    }

    /// How many were slow of each way.
    pub(crate) fn slow_ways(&self) -> BTreeMap<String, u64> {
        lock(&self.slow_ways).clone()
    }
}

/// A list or a map is whole wherever another thread has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
