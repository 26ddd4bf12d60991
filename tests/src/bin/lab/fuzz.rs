//! `lab fuzz`: sends the BPF programs packets that nobody would send, and says what they do wrong.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use lb_tests::fuzz::script::{self, Script};
use lb_tests::fuzz::{Found, Fuzzer, Tally, minimise};
use lb_tests::interrupt;

use crate::progress::{Step, say};

/// How many packets one step of the progress bar is.
const PART: u64 = 10_000;

/// Arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many packets to make up
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    packets: u64,
    /// Where to begin: the same packets come for the same number
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Play a file instead: a reproducer, or one of the corpus
    #[arg(long, value_name = "FILE", conflicts_with_all = ["packets", "seed"])]
    play: Option<PathBuf>,
}

/// Says whether all was right.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut fuzzer = Fuzzer::new()?;
    if let Some(path) = &args.play {
        return play(&mut fuzzer, path);
    }
    let corpus = Script::read_all(&Fuzzer::corpus())?;
    corpus.iter().for_each(|script| fuzzer.learn(script));
    let first = args.seed.unwrap_or_else(|| u64::from(std::process::id()) << 32);
    let parts = usize::try_from(args.packets.div_ceil(PART))?;
    let step = Step::of(format!("{} packets from seed {first} on", args.packets), parts);
    for (episode, part) in (first..).zip(1..) {
        interrupt::check()?;
        let before = fuzzer.tally().packets() / PART;
        if let Some(found) = fuzzer.episode(episode)? {
            drop(step);
            say(format_args!("      {}", found.fault));
            return report(&mut fuzzer, episode, found).map(|()| false);
        }
        for _ in before..fuzzer.tally().packets() / PART {
            step.advance();
        }
        if fuzzer.tally().packets() >= args.packets {
            say(format_args!("      {part} times from an empty flow table"));
            break;
        }
    }
    step.done();
    println!("{}", table(fuzzer.tally()).trim_fmt());
    Ok(true)
}

fn play(fuzzer: &mut Fuzzer, path: &Path) -> Result<bool> {
    let script = Script::read(path)?;
    match fuzzer.play(&script.steps)? {
        None => {
            println!("{}: {} steps, all right", script.name, script.steps.len());
            Ok(true)
        }
        Some(found) => {
            println!("{}: step {}: {}", script.name, found.steps.len(), found.fault);
            Ok(false)
        }
    }
}

/// Writes what is left of the steps once those are gone that the fault does not need.
fn report(fuzzer: &mut Fuzzer, episode: u64, found: Found) -> Result<()> {
    let step = Step::start("leaving out what it does not need");
    let found = minimise::minimise(fuzzer, found)?;
    step.done();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("target")
        .join("fuzz");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("{episode}.txt"));
    let text = script::write(&found.fault, &found.steps);
    std::fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
    print!("{text}");
    say(format_args!(
        "      it is in {0}; once it is right: move it to tests/corpus, with a sentence on top",
        path.display()
    ));
    Ok(())
}

fn table(tally: &Tally) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["PACKETS", "WHAT BECAME OF THEM"]);
    for (fate, count) in tally.iter() {
        table.add_row([count.to_string(), fate.to_owned()]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
