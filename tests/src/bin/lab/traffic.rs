//! Connections all the time, while something else happens: new ones at a rate, and long ones that are asked over again and
//! again. What became of each is in a [`Record`].

mod fresh;
mod kept;
mod lane;
mod record;
mod render;
mod talk;
mod timeline;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lb_tests::client::Protocol;
use lb_tests::interrupt::{self, eventually};
use lb_tests::network::{self, Network};
use lb_tests::source::Source;
use lb_tests::stage::Stage;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::progress::Step;
use kept::{Group, Kept};
use lane::Dialler;
/// Where it goes: two nodes with pods and servers, and objects in a folder, or else in a real API server.
pub(crate) fn stage(folder: bool) -> Result<Stage> {
    let step = Step::start("two nodes, a client outside, pods on bridges and on veths, a tunnel");
    let network = Network::with(network::Options {
        // Who looks on costs as much as what is looked at, and what kube-proxy does is not ours to answer for.
        verify_checksums: false,
        ..network::Options::default()
    })?;
    step.done();
    let source = if folder {
        Source::folder()?
    } else {
        let step = Step::start("etcd and kube-apiserver");
        let source = Source::api_server(&network)?;
        step.done();
        source
    };
    let step = Step::start("pods, servers in them, Services");
    let stage = Stage::build(network, source)?;
    step.done();
    Ok(stage)
}

#[cfg(test)]
pub(crate) use record::Counts;
pub(crate) use record::{Fault, Kind, Record};
pub(crate) use render::{faults_of, table};
pub(crate) use timeline::{Event, Timeline};

/// Longer than the last of them take, however slow.
const LAST: Duration = Duration::from_secs(70);
/// How long long connections may take to open.
const OPEN: Duration = Duration::from_secs(60);

/// It. Dropping it ends all of it at once.
#[derive(Debug)]
pub(crate) struct Traffic {
    diallers: Vec<Arc<Dialler>>,
    record: Arc<Record>,
    pacers: Vec<thread::JoinHandle<()>>,
    kept: Vec<tokio::task::JoinHandle<()>>,
    over: watch::Sender<bool>,
    no_more: Arc<AtomicBool>,
    // Last: it goes once nobody makes tasks any more.
    runtime: Option<Runtime>,
}

impl Traffic {
    /// Begins with no connection at all.
    pub(crate) fn new(stage: &Stage) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("traffic")
            .enable_all()
            .build()
            .context("making a runtime")?;
        Ok(Self {
            diallers: lane::diallers(stage)?.map(Arc::new).into(),
            record: Arc::new(Record::new()),
            pacers: Vec::new(),
            kept: Vec::new(),
            over: watch::Sender::new(false),
            no_more: Arc::default(),
            runtime: Some(runtime),
        })
    }

    /// What became of it so far.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Lets new TCP connections come at this rate, all diallers together.
    pub(crate) fn start_fresh(&mut self, rate: u32) -> Result<()> {
        let rate = f64::from(rate) / self.diallers.len() as f64;
        for dialler in self.diallers.clone() {
            let (record, no_more) = (Arc::clone(&self.record), Arc::clone(&self.no_more));
            let tasks = self.runtime()?.handle().clone();
            let pacer = thread::Builder::new().name("fresh".into());
            let pacer = pacer.spawn(move || fresh::run(&dialler, rate, &record, &tasks, &no_more));
            self.pacers.push(pacer.context("starting a thread")?);
        }
        Ok(())
    }

    /// Opens so many long ones, and waits until they are open. About half of them are TCP: says how many.
    pub(crate) fn keep(&mut self, name: &'static str, size: usize, is_refilled: bool) -> Result<usize> {
        let group = Arc::new(Group {
            name,
            is_refilled,
            open: AtomicUsize::new(0),
        });
        let steady = |dialler: &Arc<Dialler>| {
            let lanes = dialler.lanes.iter().filter(|lane| lane.is_steady);
            let dialler = Arc::clone(dialler);
            lanes
                .map(move |lane| (Arc::clone(&dialler), lane.clone()))
                .collect::<Vec<_>>()
        };
        let ways: Vec<_> = self.diallers.iter().flat_map(steady).collect();
        let mut tcp = 0;
        for number in 0..size {
            // A step that shares no factor with the number of ways, so that few of them are of each kind too.
            let (dialler, lane) = &ways[number * 11 % ways.len()];
            tcp += usize::from(lane.protocol == Protocol::Tcp);
            let kept = Kept {
                dialler: Arc::clone(dialler),
                lane: lane.clone(),
                group: Arc::clone(&group),
                number,
                record: Arc::clone(&self.record),
                over: self.over.subscribe(),
            };
            let task = self.runtime()?.spawn(kept.run());
            self.kept.push(task);
        }
        eventually(OPEN, "long connections open", || {
            Ok((group.open.load(Ordering::Relaxed) == size).then_some(tcp))
        })
    }

    fn runtime(&self) -> Result<&Runtime> {
        self.runtime.as_ref().context("the traffic is over")
    }

    /// Lets no more come, asks over each long one for a last time, and waits until all have an answer or none.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.no_more.store(true, Ordering::Relaxed);
        for pacer in self.pacers.drain(..) {
            pacer.join().ok().context("what opens connections has panicked")?;
        }
        self.over.send_replace(true);
        eventually(LAST, "the last answers", || {
            let is_over = self.record.in_flight() == 0 && self.kept.iter().all(tokio::task::JoinHandle::is_finished);
            Ok(is_over.then_some(()))
        })?;
        let runtime = self.runtime.take().context("the traffic is over")?;
        for task in self.kept.drain(..) {
            runtime.block_on(task).context("what keeps a connection has panicked")?;
        }
        runtime.shutdown_background();
        interrupt::check()?;
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.no_more.store(true, Ordering::Relaxed);
        for pacer in self.pacers.drain(..) {
            // Whatever it was, the program is about to say so.
            let _ = pacer.join();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_nobody_serves_is_a_fault_of_its_way() {
        let stage = Stage::build(Network::new().unwrap(), Source::folder().unwrap()).unwrap();
        let mut traffic = Traffic::new(&stage).unwrap();
        traffic.start_fresh(100).unwrap();
        let refused = eventually(OPEN, "a connection that failed", || {
            // No agent runs: a node refuses at once what comes to its own address.
            let mut faults = traffic.record().faults().into_iter();
            Ok(faults.find(|fault| fault.why == "refused" && fault.way.contains("TCP")))
        })
        .unwrap();
        assert_eq!(refused.kind, Kind::FailedConnection);
        assert!(
            refused.way.starts_with("TCP from outside client to NodePort "),
            "{refused:?}"
        );
        assert!(traffic.record().counts().tcp > 0);
    }
}
