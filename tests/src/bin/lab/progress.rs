//! What is going on, on stderr: a bar or spinner in a terminal, plain lines in a log.

use std::fmt;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A line for the person who watches.
pub(crate) fn say(line: impl fmt::Display) {
    eprintln!("{line}");
}

/// One step of a longer piece of work. Dropping it without [`Step::done`] says that it went wrong.
#[derive(Debug)]
pub(crate) struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
    done: bool,
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
        Self {
            title,
            started: Instant::now(),
            bar,
            done: false,
        }
    }

    /// One part is done.
    pub(crate) fn advance(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
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
