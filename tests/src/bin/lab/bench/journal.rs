//! What a run has measured so far, in a file, so that the next one can go on where it was interrupted.
//!
//! A line an entry, as JSON; the first says what the run is. What was measured in a round counts once the line is there
//! that the round is done, since only targets that were measured right after each other are compared.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::sample::{Distribution, Sample};

/// A round of one scenario with one number of services, of all targets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) scenario: String,
    pub(crate) services: usize,
    pub(crate) round: u32,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) samples: Vec<Sample>,
    pub(crate) distributions: Vec<Distribution>,
    /// What could not be, and why.
    pub(crate) notes: Vec<String>,
}

impl Measured {
    /// All of both.
    pub(crate) fn add(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.distributions.extend(other.distributions);
        self.notes.extend(other.notes);
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Entry {
    Run(String),
    Sample(Sample),
    Distribution(Distribution),
    Note(String),
    Done(Round),
}

/// The file, open, and what is in it.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    measured: Measured,
    done: BTreeSet<Round>,
}

impl Journal {
    /// Opens the journal of a run, with what it has measured before if it was interrupted. That of another run is begun
    /// anew: one with other arguments, on another kernel, or of other programs.
    pub(crate) fn open(path: &Path, run: &str, from_scratch: bool) -> Result<Self> {
        let kept = match fs::read_to_string(path) {
            Ok(text) if !from_scratch => read(&text, run),
            _ => None,
        };
        let (measured, done) = kept.unwrap_or_default();
        // Written anew, without what rounds left that were not finished.
        let mut journal = Self {
            path: path.to_owned(),
            file: File::create(path).with_context(|| format!("writing {}", path.display()))?,
            measured: Measured::default(),
            done: BTreeSet::new(),
        };
        journal.write(&[Entry::Run(run.to_owned())])?;
        for note in &measured.notes {
            journal.note(note.clone())?;
        }
        for round in done {
            let mut of_round = Measured::default();
            let samples = measured.samples.iter().filter(|sample| sample_round(sample) == round);
            of_round.samples.extend(samples.cloned());
            let distributions = measured.distributions.iter();
            let distributions = distributions.filter(|times| distribution_round(times) == round);
            of_round.distributions.extend(distributions.cloned());
            journal.finish(round, of_round)?;
        }
        Ok(journal)
    }

    /// Whether a round has been measured.
    pub(crate) fn has(&self, round: &Round) -> bool {
        self.done.contains(round)
    }

    /// How many rounds have been.
    pub(crate) fn rounds(&self) -> usize {
        self.done.len()
    }

    /// Adds what a round has measured.
    pub(crate) fn finish(&mut self, round: Round, measured: Measured) -> Result<()> {
        let samples = measured.samples.iter().cloned().map(Entry::Sample);
        let distributions = measured.distributions.iter().cloned().map(Entry::Distribution);
        let mut entries: Vec<_> = samples.chain(distributions).collect();
        entries.push(Entry::Done(round.clone()));
        self.write(&entries)?;
        self.measured.samples.extend(measured.samples);
        self.measured.distributions.extend(measured.distributions);
        measured.notes.into_iter().try_for_each(|note| self.note(note))?;
        self.done.insert(round);
        Ok(())
    }

    /// Adds what could not be measured, unless it is known.
    pub(crate) fn note(&mut self, note: String) -> Result<()> {
        if !self.measured.notes.contains(&note) {
            self.write(&[Entry::Note(note.clone())])?;
            self.measured.notes.push(note);
        }
        Ok(())
    }

    /// All that counts.
    pub(crate) fn measured(&self) -> &Measured {
        &self.measured
    }

    /// Removes the file: the run is over.
    pub(crate) fn close(self) -> Result<Measured> {
        fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()))?;
        Ok(self.measured)
    }

    fn write(&mut self, entries: &[Entry]) -> Result<()> {
        let mut text = String::new();
        for entry in entries {
            text += &serde_json::to_string(entry).context("writing an entry as JSON")?;
            text.push('\n');
        }
        let written = self.file.write_all(text.as_bytes());
        written.with_context(|| format!("writing {}", self.path.display()))
    }
}

fn sample_round(sample: &Sample) -> Round {
    Round {
        scenario: sample.subject.scenario.clone(),
        services: sample.subject.services,
        round: sample.round,
    }
}

fn distribution_round(times: &Distribution) -> Round {
    Round {
        scenario: times.subject.scenario.clone(),
        services: times.subject.services,
        round: times.round,
    }
}

/// What was written of this run: of rounds that are done, and up to the first line that is none, which a process leaves
/// that ends while it writes.
fn read(text: &str, run: &str) -> Option<(Measured, BTreeSet<Round>)> {
    let mut entries = text.lines().map_while(|line| serde_json::from_str::<Entry>(line).ok());
    if !matches!(entries.next()?, Entry::Run(written) if written == run) {
        return None;
    }
    let (mut measured, mut done) = (Measured::default(), BTreeSet::new());
    for entry in entries {
        match entry {
            Entry::Run(_) => return None,
            Entry::Sample(sample) => measured.samples.push(sample),
            Entry::Distribution(times) => measured.distributions.push(times),
            Entry::Note(note) => measured.notes.push(note),
            Entry::Done(round) => {
                done.insert(round);
            }
        }
    }
    measured.samples.retain(|sample| done.contains(&sample_round(sample)));
    measured
        .distributions
        .retain(|times| done.contains(&distribution_round(times)));
    Some((measured, done))
}

/// Takes the lock of the folder that journals and states are in, until it is dropped: two runs would disturb each other's
/// figures as well as their files.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join("lock");
    let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("another benchmark runs: it holds {}", path.display()),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use lb_tests::owner::Folder;

    use super::super::sample::{Subject, Times, Unit};
    use super::super::target::Target;
    use super::*;

    fn round(round: u32) -> Round {
        Round {
            scenario: "connect".into(),
            services: 100,
            round,
        }
    }

    fn measured(round: u32, value: f64) -> Measured {
        let subject = Subject {
            scenario: "connect".into(),
            case: "pod-last".into(),
            services: 100,
            endpoints: 2,
            metric: "connect".into(),
            unit: Unit::Microseconds,
        };
        let times = Times(vec![(1000, 2)]);
        let (target, of) = (Target::LbAgent, subject.clone());
        let distribution = Distribution {
            subject: of,
            target,
            round,
            times,
        };
        let sample = Sample {
            subject,
            target,
            round,
            value,
        };
        Measured {
            samples: vec![sample],
            distributions: vec![distribution],
            notes: vec!["nothing answers".into()],
        }
    }

    #[test]
    fn a_run_goes_on_where_it_was_interrupted() {
        let folder = Folder::new().unwrap();
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path, "this", false).unwrap();
        journal.finish(round(0), measured(0, 1.5)).unwrap();
        // In the middle of a round, and of a line.
        let mut text = fs::read_to_string(&path).unwrap();
        let unfinished = Entry::Sample(measured(1, 9.0).samples.remove(0));
        text += &serde_json::to_string(&unfinished).unwrap();
        text += "\n{\"sam";
        fs::write(&path, text).unwrap();

        let mut journal = Journal::open(&path, "this", false).unwrap();
        assert!(journal.has(&round(0)) && !journal.has(&round(1)));
        assert_eq!(*journal.measured(), measured(0, 1.5));
        journal.finish(round(1), measured(1, 2.5)).unwrap();
        let journal = Journal::open(&path, "this", false).unwrap();
        assert_eq!(journal.rounds(), 2);
        assert_eq!(journal.measured().samples[1], measured(1, 2.5).samples[0]);
        journal.close().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn another_run_or_one_from_scratch_begins_anew() {
        let folder = Folder::new().unwrap();
        let path = folder.path().join("journal");
        for (run, from_scratch) in [("that", false), ("this", true)] {
            let mut journal = Journal::open(&path, "this", false).unwrap();
            journal.finish(round(0), measured(0, 1.5)).unwrap();
            let journal = Journal::open(&path, run, from_scratch).unwrap();
            assert_eq!((journal.rounds(), journal.measured().samples.len()), (0, 0));
        }
    }

    #[test]
    fn two_runs_at_once_are_refused() {
        let folder = Folder::new().unwrap();
        let first = lock(folder.path()).unwrap();
        let error = format!("{:#}", lock(folder.path()).unwrap_err());
        assert!(error.contains("another benchmark runs"), "{error}");
        drop(first);
        lock(folder.path()).unwrap();
    }
}
