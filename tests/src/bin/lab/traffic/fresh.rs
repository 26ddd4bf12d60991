//! New connections at a rate: each opens, asks one question and closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::place::Here;
use tokio::runtime::Handle;

use super::lane::{Dialler, Lane};
use super::record::Record;
use super::talk::Talk;

/// For so many new TCP connections there is one question by UDP from a new socket.
const TCP_TO_UDP: usize = 5;
/// So many are without an answer at most. More would be the machine's trouble, and no proxy's.
const MOST: u64 = 2000;

/// Opens so many TCP connections a second, and some questions by UDP beside them, until it is told that it is over.
pub(super) fn run(dialler: &Dialler, rate: f64, record: &Arc<Record>, tasks: &Handle, over: &AtomicBool) {
    let client = match &dialler.inside {
        // On a thread that is there already a socket costs a tenth.
        Some(netns) if netns.enter().is_ok() => Client::new(Arc::new(Here)),
        _ => dialler.client.clone(),
    };
    let of = |protocol| {
        let lanes = dialler.lanes.iter().filter(move |lane| lane.protocol == protocol);
        lanes.cloned().map(Arc::new).collect::<Vec<_>>()
    };
    let (tcp, udp) = (of(Protocol::Tcp), of(Protocol::Udp));
    let pause = Duration::from_secs_f64(TCP_TO_UDP as f64 / (TCP_TO_UDP + 1) as f64 / rate);
    let mut next = Instant::now();
    for turn in 0.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        if let Some(early) = next.checked_duration_since(now) {
            thread::sleep(early);
        } else if now - next > Duration::from_secs(1) {
            // What a busy machine had no time for is not made up for.
            next = now;
        }
        next += pause;
        if record.in_flight() >= MOST {
            continue;
        }
        let (round, place) = (turn / (TCP_TO_UDP + 1), turn % (TCP_TO_UDP + 1));
        let lane = match place {
            TCP_TO_UDP => &udp[round % udp.len()],
            _ => &tcp[(round * TCP_TO_UDP + place) % tcp.len()],
        };
        open(&client, lane, record, tasks);
    }
}

fn open(client: &Client, lane: &Arc<Lane>, record: &Arc<Record>, tasks: &Handle) {
    let at = record.begin(lane);
    let socket = client.socket(lane.protocol, lane.to);
    let (lane, record) = (Arc::clone(lane), Arc::clone(record));
    tasks.spawn(async move {
        let outcome: Result<(), Failure> =
            async { Talk::connect(socket?, &lane).await?.ask("?").await.map(drop) }.await;
        record.end(&lane, at, outcome);
    });
}
