//! The map `SOURCES`: by which address the node speaks on each of its links. It follows the links and their addresses by
//! itself: Services have no part in it.

use std::{
    collections::BTreeMap,
    sync::mpsc::{self, SyncSender},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use lb_common::{Address, SourceKey, source::ANY_LINK};
use tokio::sync::oneshot;
use tracing::warn;

use super::table::{self, BpfTable};
use crate::kernel::addresses::sources::{self, Sources as Wanted};

/// How long the kernel has to tell of its links and addresses.
const FIRST: Duration = Duration::from_secs(10);

/// The thread that follows. It ends when this is dropped.
pub(super) struct Sources {
    _end: oneshot::Sender<()>,
}

impl Sources {
    /// Starts it in the network namespace of this thread, and waits until the map is filled.
    pub(super) fn start(map: BpfTable<SourceKey, Address>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime for the addresses of links")?;
        let (end, ended) = oneshot::channel();
        let (filled, first) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("sources".to_owned())
            .spawn(move || runtime.block_on(follow(map, ended, filled)))
            .context("no thread for the addresses of links")?;
        first
            .recv_timeout(FIRST)
            .context("the kernel does not tell the addresses of its links")?;
        Ok(Self { _end: end })
    }
}

async fn follow(mut map: BpfTable<SourceKey, Address>, mut ended: oneshot::Receiver<()>, filled: SyncSender<()>) {
    let (mut sources, _task) = sources::watch();
    loop {
        tokio::select! {
            _ = &mut ended => return,
            changed = sources.changed() => if changed.is_err() {
                return;
            },
        }
        let wanted = sources.borrow_and_update().as_ref().map(rows);
        if let Some(wanted) = wanted {
            if let Err(error) = table::hold(&mut map, &wanted) {
                warn!(%error, "clients may be masqueraded with an address of another link: map SOURCES");
            }
            // Whoever waits does so once.
            let _ = filled.try_send(());
        }
    }
}

fn rows(wanted: &Wanted) -> BTreeMap<SourceKey, Address> {
    let rows = wanted.iter().map(|((link, _), address)| {
        let address = Address::from(*address);
        (SourceKey::new(link.unwrap_or(ANY_LINK), &address), address)
    });
    rows.collect()
}
