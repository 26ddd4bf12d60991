//! The one async runtime of the process, for netlink and for the servers in the pods.
//!
//! A socket stays in the network namespace it was made in, whichever thread uses it later. So one runtime with plain
//! worker threads can serve sockets of every namespace; only making them needs a thread that is inside.

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("lb-tests")
        .enable_all()
        .build()
        .expect("a process that may start threads can have a runtime")
});

/// The runtime. Blocking on it from one of its own tasks panics.
pub(crate) fn runtime() -> &'static Runtime {
    &RUNTIME
}
