//! Ctrl-C and its relatives, at any point, leave nothing behind.
//!
//! The handler only counts and wakes a thread. In a program that can unwind (`lab`), the first signal makes
//! [`check`] fail from then on, and the values on the stack clean up as they are dropped. A second signal, or the first
//! one in a program that cannot unwind (a test runner), makes the thread clean up itself and end the process: it
//! removes what has a name in the file system ([`crate::owner`]), the kernel does the rest.

use std::io::{Read as _, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use anyhow::{Context as _, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::owner;
use crate::patience::patient;

/// What the first signal does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// It is for the program to notice, by [`check`].
    Unwind,
    /// It ends the process at once, though tidily.
    End,
}

/// The signal that came; 0 if none has.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// How many came.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Where the handler writes to wake the thread.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// The error of a program that was told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted {
    signal: i32,
}

impl Interrupted {
    /// What a shell would report.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        128 + u8::try_from(self.signal).unwrap_or(0)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.signal) {
            Ok(signal) => write!(f, "stopped by {signal}"),
            Err(_) => write!(f, "stopped by signal {}", self.signal),
        }
    }
}

impl std::error::Error for Interrupted {}

/// Takes over SIGINT, SIGTERM and SIGHUP. The first call decides.
pub fn install(policy: Policy) -> Result<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| result = take_over(policy));
    result
}

fn take_over(policy: Policy) -> Result<()> {
    let (wake, woken) = UnixStream::pair().context("making a pair of sockets")?;
    WAKE.store(wake.into_raw_fd(), Ordering::SeqCst);
    thread::Builder::new()
        .name("lb-signals".into())
        .spawn(move || wait_for_signals(woken, policy))
        .context("starting a thread")?;
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler stores to atomics and writes to a descriptor, which is all async-signal-safe.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("installing a handler for {signal}"))?;
    }
    Ok(())
}

extern "C" fn on_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::SeqCst);
    COUNT.fetch_add(1, Ordering::SeqCst);
    // SAFETY: one byte from a constant; errno of the interrupted code is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::send(
            WAKE.load(Ordering::SeqCst),
            b"!".as_ptr().cast(),
            1,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        );
        *errno = before;
    }
}

fn wait_for_signals(mut woken: UnixStream, policy: Policy) {
    let mut byte = [0];
    while woken.read_exact(&mut byte).is_ok() {
        if policy == Policy::Unwind && COUNT.load(Ordering::SeqCst) == 1 {
            let _ = writeln!(std::io::stderr(), "\nstopping; once more to stop at once");
            continue;
        }
        owner::remove_all();
        let signal = SIGNAL.load(Ordering::SeqCst);
        // SAFETY: ends the process without destructors, which other threads may be in the middle of.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Fails once the process has been told to stop.
pub fn check() -> Result<(), Interrupted> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(Interrupted { signal }),
    }
}

/// Sleeps, but not longer than until the process is told to stop.
pub fn sleep(duration: Duration) -> Result<(), Interrupted> {
    let until = Instant::now() + duration;
    loop {
        check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Waits until a function returns a value, fails when the time is over, and stops when the process is told to.
pub fn eventually<T>(within: Duration, what: &str, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let within = patient(within);
    let until = Instant::now() + within;
    loop {
        check()?;
        if let Some(value) = poll()? {
            return Ok(value);
        }
        anyhow::ensure!(Instant::now() < until, "{what}: not within {} s", within.as_secs_f32());
        thread::sleep(Duration::from_millis(5));
    }
}
