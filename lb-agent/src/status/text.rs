//! The status for people.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::{Remark, Seen, State, Status};
use crate::objects::kube::Outage;

/// How many remarks of a kind are shown; `-o json` has all of them.
const SHOWN: usize = 10;

/// The status as it is read at some time.
pub struct Text<'a> {
    seen: &'a Seen,
    now: Timestamp,
}

impl Seen {
    /// In words.
    #[must_use]
    pub const fn text(&self, now: Timestamp) -> Text<'_> {
        Text { seen: self, now }
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.seen.state {
            State::Ready => "ready",
            State::Degraded => "degraded",
            State::NotRunning => "not running",
        };
        write!(f, "Agent:      {state}")?;
        let Some(status) = &self.seen.status else {
            return writeln!(f, ", and none has been here");
        };
        let Status { version, pid, node, .. } = status;
        if self.seen.state == State::NotRunning {
            writeln!(f, "; the last was v{version} on {node}, what it programmed serves on")?;
        } else {
            let up = Age(self.now.duration_since(status.since));
            writeln!(f, ", v{version} on {node}, pid {pid}, up {up}")?;
        }
        if let Some(failed) = &status.failed {
            writeln!(f, "Ended:      {}", failed.replace('\n', "\n            "))?;
        }
        match &status.plane {
            Some(choice) => writeln!(f, "Plane:      {} ({})", choice.plane, choice.reason)?,
            None => writeln!(f, "Plane:      none yet")?,
        }
        let progress = &status.progress;
        writeln!(
            f,
            "Services:   {}, with {} service ports and {} frontends in the kernel",
            progress.services, progress.service_ports, progress.frontends
        )?;
        if let Some(last) = progress.last_sync {
            writeln!(f, "Last sync:  {} ago", Age(self.now.duration_since(last)))?;
        }
        if let Some(Outage { since, kinds, reason }) = &status.outage {
            let age = Age(self.now.duration_since(*since));
            let kinds = kinds.join(", ");
            writeln!(
                f,
                "API server: not watched for {age} ({kinds}), its last word stays in force: {reason}"
            )?;
        }
        if let Some(since) = self.seen.draining_since {
            let age = Age(self.now.duration_since(since));
            writeln!(
                f,
                "Draining:   programs of an earlier agent go on with its connections, for {age} now; --drain ends them"
            )?;
        }
        if !progress.ready {
            writeln!(f, "Not ready:  the kernel has not been given a complete state")?;
        }
        remarks(f, "Failures:", &progress.failures)?;
        remarks(f, "Not done:", &progress.unsupported)
    }
}

fn remarks(f: &mut fmt::Formatter<'_>, title: &str, remarks: &[Remark]) -> fmt::Result {
    for (index, Remark { service, what }) in remarks.iter().take(SHOWN).enumerate() {
        let title = if index == 0 { title } else { "" };
        match service {
            Some(service) => writeln!(f, "{title:<12}{service}: {what}")?,
            None => writeln!(f, "{title:<12}{what}")?,
        }
    }
    match remarks.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "            and {more} more: `-o json` has all of them"),
    }
}

/// A time that has gone by, in its two largest units.
struct Age(SignedDuration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A clock that was set back leaves no age.
        let seconds = self.0.as_secs().max(0);
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{seconds}s"),
            (0, 0, _) => write!(f, "{minutes}m{}s", seconds % 60),
            (0, ..) => write!(f, "{hours}h{}m", minutes % 60),
            _ => write!(f, "{days}d{}h", hours % 24),
        }
    }
}
