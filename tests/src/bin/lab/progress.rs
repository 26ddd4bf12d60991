//! What is going on, on stderr: a bar or spinner in a terminal, plain lines in a log, some of them while it goes on.

use std::fmt;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A line for the person who watches.
pub(crate) fn say(line: impl fmt::Display) {
    eprintln!("{line}");
}

/// How long a log has no line of a step that goes on.
const QUIET: Duration = Duration::from_secs(20);

/// One step of a longer piece of work. Dropping it without [`Step::done`] says that it went wrong.
#[derive(Debug)]
pub(crate) struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
    log: Option<Mutex<Log>>,
    done: bool,
}

/// How far a step is that a log tells of.
#[derive(Debug)]
struct Log {
    parts: u64,
    of: u64,
    told: Instant,
}

impl Log {
    /// Another part is done. Says how far it is if that has not been said for long.
    fn advance(&mut self, now: Instant) -> Option<String> {
        self.parts += 1;
        if now.saturating_duration_since(self.told) < QUIET || self.parts == self.of {
            return None;
        }
        self.told = now;
        Some(format!("{} of {}", self.parts, self.of))
    }
}

impl Step {
    /// A step of unknown length.
    pub(crate) fn start(title: impl Into<String>) -> Self {
        Self::new(title.into(), None)
    }

    /// A step that consists of `length` parts.
    pub(crate) fn of(title: impl Into<String>, length: usize) -> Self {
        Self::new(title.into(), Some(length as u64))
    }

    fn new(title: String, length: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = match length {
                Some(_) => "{bar:24} {pos}/{len} {msg}",
                None => "{spinner} {msg} {elapsed}",
            };
            let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(title.clone());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let log = |of| Log {
            parts: 0,
            of,
            told: Instant::now(),
        };
        Self {
            title,
            started: Instant::now(),
            log: length.filter(|_| bar.is_none()).map(|length| Mutex::new(log(length))),
            bar,
            done: false,
        }
    }

    /// One part is done.
    pub(crate) fn advance(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        if let Some(log) = &self.log {
            // A number is whole wherever another thread has panicked.
            let told = log
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .advance(Instant::now());
            if let Some(told) = told {
                say(format_args!("      {}: {told}", self.title));
            }
        }
    }

    /// The step went well.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let word = if self.done { "done" } else { "FAIL" };
        say(format_args!(
            "{word}  {} ({:.1} s)",
            self.title,
            self.started.elapsed().as_secs_f32()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_of_a_step_now_and_then_and_not_of_its_last_part() {
        let begun = Instant::now();
        let mut log = Log {
            parts: 0,
            of: 4,
            told: begun,
        };
        let told = [1, 25, 30, 60].map(|seconds| log.advance(begun + Duration::from_secs(seconds)));
        assert_eq!(told, [None, Some("2 of 4".to_owned()), None, None]);
    }
}
