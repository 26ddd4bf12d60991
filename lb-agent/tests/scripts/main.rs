//! Script tests: files of Kubernetes objects, and what this node is to serve after each step.
//!
//! A script is one behaviour of a service proxy, in a file named for it; `script.rs` says how one
//! is written. What it expects is written from the rules of kube-proxy, which its header names.
//! Each is a test: `cargo test -p lb-agent --test scripts endpoints` runs those on endpoints.

mod documentation;
mod play;
mod script;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let scripts = match scripts_in(&folder) {
        Ok(scripts) => scripts,
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    };
    let mut trials: Vec<Trial> = scripts
        .iter()
        .map(|script| {
            let path = script.path.clone();
            Trial::test(&script.name, move || test(&path))
        })
        .collect();
    let names = scripts.into_iter().map(|script| script.name).collect();
    trials.push(Trial::test("documentation", move || {
        documentation::test(&names).map_err(failed)
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A file of the folder.
struct Script {
    path: PathBuf,
    /// Its path in the folder, without extension.
    name: String,
}

/// The scripts of each topic, which is a folder.
fn scripts_in(folder: &Path) -> io::Result<Vec<Script>> {
    let mut scripts = Vec::new();
    for topic in fs::read_dir(folder)? {
        let topic = topic?.path();
        if !topic.is_dir() {
            continue;
        }
        for file in fs::read_dir(topic)? {
            let path = file?.path();
            let name = path.strip_prefix(folder).unwrap_or(&path).with_extension("");
            let name = name.to_string_lossy().into_owned();
            scripts.push(Script { path, name });
        }
    }
    scripts.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(scripts)
}

fn test(path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    let script = script::parse(&text).map_err(failed)?;
    play::play(script).map_err(failed)
}

fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}
