//! Runs other programs: with a title, a time limit, progress on stderr, and their output kept for the case that they fail.
//!
//! Each program gets a process group of its own, so that a time limit or Ctrl-C reaches it and all that it started, and nothing else.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, sigaction};
use nix::unistd::Pid;

/// How many lines of a program's output an error shows.
const SHOWN_LINES: usize = 30;
/// How often a long step says in a log that it is still running.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How long a program may take to clean up after Ctrl-C before it is killed.
const CLEAN_UP: Duration = Duration::from_secs(20);

/// The last signal that asked us to stop; 0 means none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// How many such signals came: the second one kills at once.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// The error of a run that Ctrl-C or another signal ended.
#[derive(Debug, Clone, Copy)]
pub struct Interrupted(pub i32);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

extern "C" fn note_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::SeqCst);
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Passes SIGINT, SIGTERM and SIGHUP on to the program that runs instead of dying of them. Called once, at the start.
pub fn forward_signals() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(note_signal), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to atomics, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot install a handler for {signal}"))?;
    }
    Ok(())
}

/// Fails if a signal has asked us to stop: for loops that run no program.
pub fn check_interrupted() -> Result<()> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(Interrupted(signal).into()),
    }
}

/// A line for the person who watches; stdout belongs to the verbs' results.
pub fn say(line: impl fmt::Display) {
    eprintln!("{line}");
}

/// One piece of work done by another program.
#[derive(Debug, Clone)]
pub struct Step {
    title: String,
    limit: Duration,
    hint: Option<String>,
}

impl Step {
    /// A step called `title` ("building etcd 3.6") that is killed after `limit`.
    pub fn new(title: impl Into<String>, limit: Duration) -> Self {
        Self {
            title: title.into(),
            limit,
            hint: None,
        }
    }

    /// What the person can do when the step fails; shown under the error.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Runs the command to its end and returns what it wrote to stdout.
    ///
    /// In a terminal a spinner shows the last line of output; in a log there is a line at the start, one now and then, and one at the
    /// end. The output is shown only if the command fails, exceeds the limit or cannot be started.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let progress = Progress::start(&self.title);
        let result = self.run_quietly(command, &progress);
        progress.finish(result.is_ok());
        result
    }

    /// The same without a word unless it fails: for short questions ("rustc -Vv").
    pub fn ask(&self, command: &mut Command) -> Result<String> {
        self.run_quietly(command, &Progress::silent())
    }

    fn run_quietly(&self, command: &mut Command, progress: &Progress) -> Result<String> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut stdout = Vec::new();
        let mut tail = Tail::default();
        let started = Instant::now();
        let end = supervise(command, Some(self.limit), |event| match event {
            Event::Output(stream, bytes) => {
                if matches!(stream, Stream::Out) {
                    stdout.extend_from_slice(bytes);
                }
                tail.push(bytes);
            }
            Event::Tick => progress.tick(tail.last_line()),
        })?;
        let what = match end {
            End::Exited(status) if status.success() => return Ok(String::from_utf8_lossy(&stdout).into_owned()),
            End::Exited(status) => format!("{}: failed ({status})", self.title),
            End::TimedOut => format!("{}: not done after {} s, stopped", self.title, self.limit.as_secs()),
        };
        let output = tail.text();
        let mut error = format!(
            "{what}, {:.0} s after its start\n  command: {}",
            started.elapsed().as_secs_f32(),
            shown(command)
        );
        if !output.trim().is_empty() {
            error.push_str("\n  its last words:");
            for line in output.lines() {
                error.push_str("\n    ");
                error.push_str(line);
            }
        }
        for advice in likely_cause(&output).into_iter().chain(self.hint.as_deref()) {
            error.push_str("\n  ");
            error.push_str(advice);
        }
        bail!(error)
    }
}

/// Runs a command whose output goes straight to the person. An error means that it could not be run, was interrupted or exceeded the
/// limit; a bad exit status is the caller's to judge.
pub fn show(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    command.stdin(Stdio::null());
    finished(supervise(command, Some(limit), |_| ())?, command, limit)
}

/// Like [`show`], and `line` sees each line of stdout as well. `to` is where stdout goes to.
pub fn show_and_read(
    command: &mut Command,
    limit: Duration,
    to: &mut impl Write,
    mut line: impl FnMut(&str),
) -> Result<ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut rest = Vec::new();
    let mut broken = None;
    let end = supervise(command, Some(limit), |event| {
        let Event::Output(_, bytes) = event else { return };
        if let Err(error) = to.write_all(bytes).and_then(|()| to.flush()) {
            broken.get_or_insert(error);
        }
        rest.extend_from_slice(bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            line(String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r'));
            rest.drain(..=end);
        }
    })?;
    if !rest.is_empty() {
        line(&String::from_utf8_lossy(&rest));
    }
    if let Some(error) = broken {
        return Err(error).context("cannot write to stdout");
    }
    finished(end, command, limit)
}

/// Becomes the command: signals, terminal and exit status are then its own. Returns only if that fails.
pub fn exec(command: &mut Command) -> anyhow::Error {
    if let Err(error) = check_interrupted() {
        return error;
    }
    let error = command.exec();
    anyhow::Error::new(error).context(format!("cannot start {}", shown(command)))
}

fn finished(end: End, command: &Command, limit: Duration) -> Result<ExitStatus> {
    match end {
        End::Exited(status) => Ok(status),
        End::TimedOut => bail!("not done after {} s, stopped: {}", limit.as_secs(), shown(command)),
    }
}

/// The command as one would type it, without its environment.
pub fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

#[derive(Debug, Clone, Copy)]
enum Stream {
    Out,
    Err,
}

enum Event<'a> {
    Output(Stream, &'a [u8]),
    Tick,
}

enum End {
    Exited(ExitStatus),
    TimedOut,
}

/// Starts the command in a process group of its own and sees it to its end.
fn supervise(command: &mut Command, limit: Option<Duration>, mut on: impl FnMut(Event<'_>)) -> Result<End> {
    check_interrupted()?;
    let mut child = command.process_group(0).spawn().with_context(|| {
        format!(
            "cannot start {}: is it installed and in PATH?",
            command.get_program().to_string_lossy()
        )
    })?;
    let started = Instant::now();
    let (send, receive) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        read_in_thread(out, Stream::Out, send.clone());
    }
    if let Some(err) = child.stderr.take() {
        read_in_thread(err, Stream::Err, send.clone());
    }
    drop(send);

    loop {
        match receive.recv_timeout(Duration::from_millis(50)) {
            Ok((stream, bytes)) => on(Event::Output(stream, &bytes)),
            Err(mpsc::RecvTimeoutError::Timeout) => on(Event::Tick),
            // No pipe is open (any more), so there is only the end to wait for.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                thread::sleep(Duration::from_millis(20));
                on(Event::Tick);
            }
        }
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            // What is still in the pipes; bounded, since a daemon that it left behind would hold them open for ever.
            let until = Instant::now() + Duration::from_secs(1);
            while let Ok((stream, bytes)) = receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
                on(Event::Output(stream, &bytes));
            }
            // A signal from the terminal's keyboard may have ended both of us.
            if !status.success() {
                check_interrupted()?;
            }
            return Ok(End::Exited(status));
        }
        if let Err(interrupted) = check_interrupted() {
            stop(
                &mut child,
                Signal::try_from(SIGNAL.load(Ordering::SeqCst)).unwrap_or(Signal::SIGTERM),
            );
            return Err(interrupted);
        }
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            stop(&mut child, Signal::SIGTERM);
            return Ok(End::TimedOut);
        }
    }
}

fn read_in_thread(mut from: impl Read + Send + 'static, stream: Stream, to: mpsc::Sender<(Stream, Vec<u8>)>) {
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length) = from.read(&mut buffer) {
            if length == 0 || to.send((stream, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
}

/// Sends the signal to the child's process group, waits until the whole group is gone, and kills what does not go.
fn stop(child: &mut Child, signal: Signal) {
    let Ok(group) = i32::try_from(child.id()).map(Pid::from_raw) else {
        return;
    };
    let before = SIGNALS.load(Ordering::SeqCst);
    let until = Instant::now() + CLEAN_UP;
    let _ = killpg(group, signal);
    loop {
        // Reaped, or it would count as a member of its group. A failure here means that it is gone.
        let _ = child.try_wait();
        if killpg(group, None).is_err() {
            return;
        }
        if Instant::now() >= until || SIGNALS.load(Ordering::SeqCst) > before {
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait();
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The last lines of a program's output.
#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    open: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if !matches!(byte, b'\n' | b'\r') {
                self.open.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.open).trim_end().to_owned();
            self.open.clear();
            if !line.is_empty() {
                self.lines.push_back(line);
                if self.lines.len() > SHOWN_LINES {
                    self.lines.pop_front();
                }
            }
        }
    }

    fn last_line(&self) -> &str {
        self.lines.back().map_or("", |line| line.trim_start())
    }

    fn text(&self) -> String {
        let mut lines: Vec<_> = self.lines.iter().cloned().collect();
        lines.push(String::from_utf8_lossy(&self.open).into_owned());
        lines.join("\n")
    }
}

/// The error without the output that it quotes, for a list of several: what failed, and what is usually behind it.
pub fn brief(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let what = text.lines().next().unwrap_or_default();
    match likely_cause(&text) {
        Some(cause) => format!("{what}. {cause}"),
        None => what.to_owned(),
    }
}

/// What is usually behind such an output, in words that say what to do.
fn likely_cause(output: &str) -> Option<&'static str> {
    const CAUSES: &[(&[&str], &str)] = &[
        (
            &["No space left on device", "ENOSPC"],
            "The disk is full: free some space and run the same command again.",
        ),
        (
            &[
                "Could not resolve",
                "Temporary failure resolving",
                "Network is unreachable",
                "Couldn't connect",
                "dns error",
                "no such host",
            ],
            "There seems to be no network, or no way to the package registry: check it (or its proxy) and run the same command again.",
        ),
        (
            &["are you root?", "Permission denied", "Operation not permitted"],
            "A permission is missing: run it as root, or as the owner of the folder.",
        ),
    ];
    CAUSES
        .iter()
        .find(|(signs, _)| signs.iter().any(|sign| output.contains(sign)))
        .map(|(_, advice)| *advice)
}

/// A spinner in a terminal, plain lines in a log.
struct Progress {
    title: String,
    started: Instant,
    kind: ProgressKind,
}

enum ProgressKind {
    Silent,
    Spinner(ProgressBar),
    Lines { last: std::cell::Cell<Instant> },
}

impl Progress {
    fn silent() -> Self {
        Self {
            title: String::new(),
            started: Instant::now(),
            kind: ProgressKind::Silent,
        }
    }

    fn start(title: &str) -> Self {
        let started = Instant::now();
        let kind = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg:.dim}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = ProgressBar::new_spinner()
                .with_style(style)
                .with_prefix(title.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            ProgressKind::Spinner(bar)
        } else {
            say(format_args!("...  {title}"));
            ProgressKind::Lines {
                last: std::cell::Cell::new(started),
            }
        };
        Self {
            title: title.to_owned(),
            started,
            kind,
        }
    }

    fn tick(&self, last_line: &str) {
        match &self.kind {
            ProgressKind::Silent => {}
            ProgressKind::Spinner(bar) => bar.set_message(last_line.to_owned()),
            ProgressKind::Lines { last } => {
                if last.get().elapsed() >= HEARTBEAT {
                    last.set(Instant::now());
                    say(format_args!(
                        "...  {}, {:.0} s: {last_line}",
                        self.title,
                        self.started.elapsed().as_secs_f32()
                    ));
                }
            }
        }
    }

    fn finish(self, good: bool) {
        match &self.kind {
            ProgressKind::Silent => return,
            ProgressKind::Spinner(bar) => bar.finish_and_clear(),
            ProgressKind::Lines { .. } => {}
        }
        let word = if good { "ok  " } else { "FAIL" };
        say(format_args!(
            "{word} {} ({:.1} s)",
            self.title,
            self.started.elapsed().as_secs_f32()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn returns_stdout_only() {
        let out = Step::new("t", Duration::from_secs(10))
            .ask(&mut sh("echo out; echo err >&2"))
            .unwrap();
        assert_eq!(out, "out\n");
    }

    #[test]
    fn a_failure_shows_output_cause_and_hint() {
        let step = Step::new("unpacking", Duration::from_secs(10)).hint("do this");
        let error = step
            .ask(&mut sh("echo 'write: No space left on device' >&2; exit 3"))
            .unwrap_err()
            .to_string();
        for part in [
            "unpacking: failed (exit status: 3)",
            "write: No space",
            "The disk is full",
            "do this",
        ] {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
    }

    #[test]
    fn a_brief_error_is_one_line() {
        let error = Step::new("t", Duration::from_secs(10)).ask(&mut sh("echo 'Network is unreachable'; exit 1"));
        let brief = brief(&error.unwrap_err());
        assert!(
            brief.starts_with("t: failed (exit status: 1)") && brief.contains("no network"),
            "{brief}"
        );
        assert_eq!(brief.lines().count(), 1);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Step::new("t", Duration::from_secs(10))
            .ask(&mut Command::new("no-such-program-here"))
            .unwrap_err();
        assert!(error.to_string().contains("no-such-program-here"));
    }

    #[test]
    fn the_limit_ends_grandchildren_too() {
        let started = Instant::now();
        // The grandchild holds the pipe open: were it left alive, the read would go on.
        let error = Step::new("t", Duration::from_millis(300))
            .ask(&mut sh("sleep 60 & echo $!; wait"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("not done after"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
        let pid = error
            .lines()
            .filter_map(|line| line.trim().parse::<i32>().ok())
            .next()
            .unwrap();
        assert!(
            nix::sys::signal::kill(Pid::from_raw(pid), None).is_err(),
            "{pid} is still alive"
        );
    }

    #[test]
    fn lines_are_read_whole() {
        let (mut echo, mut lines) = (Vec::new(), Vec::new());
        let mut command = sh("printf 'a b\\nc'; printf 'd\\ne'");
        let status = show_and_read(&mut command, Duration::from_secs(10), &mut echo, |line| {
            lines.push(line.to_owned())
        })
        .unwrap();
        assert!(status.success());
        assert_eq!(echo, b"a b\ncd\ne");
        assert_eq!(lines, ["a b", "cd", "e"]);
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::default();
        for n in 0..100 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        tail.push(b"open");
        assert_eq!(tail.text().lines().count(), SHOWN_LINES + 1);
        assert_eq!(tail.last_line(), "line 99");
    }
}
