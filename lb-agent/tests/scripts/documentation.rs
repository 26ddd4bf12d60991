//! That `docs/semantics.md` and the tests it names are there for each other.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, ensure};

/// Where the modules of other tests are, from this crate.
const MODULES: [(&str, &str); 5] = [
    ("packet", "../tests/tests/packet"),
    ("network", "../tests/tests/network"),
    ("controlplane", "../tests/tests/controlplane"),
    ("model", "src/model/tests"),
    ("health", "src/health"),
];

/// Every script is in the table of behaviours, and whatever the table names exists.
pub(crate) fn test(scripts: &BTreeSet<String>) -> anyhow::Result<()> {
    let this_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = this_crate.join("../docs/semantics.md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (_, behaviours) = text.split_once("\n## Behaviour\n").context("no section Behaviour")?;
    let quoted: BTreeSet<&str> = behaviours.split('`').skip(1).step_by(2).collect();

    let is_missing = |script: &&String| !quoted.contains(script.as_str());
    let missing: Vec<&String> = scripts.iter().filter(is_missing).collect();
    ensure!(missing.is_empty(), "not in docs/semantics.md: {missing:?}");

    let is_script = |name: &str| name.matches('/').count() == 1;
    let unknown: Vec<&&str> = quoted
        .iter()
        .filter(|name| is_script(name) && !scripts.contains(**name) || names_no_module(name, this_crate))
        .collect();
    ensure!(
        unknown.is_empty(),
        "docs/semantics.md names what does not exist: {unknown:?}"
    );
    Ok(())
}

/// Whether this looks like a module of tests and is none.
fn names_no_module(name: &str, this_crate: &Path) -> bool {
    let Some((suite, module)) = name.split_once("::") else {
        return false;
    };
    let folder = MODULES.iter().find(|(known, _)| *known == suite);
    folder.is_none_or(|(_, folder)| !this_crate.join(folder).join(module).with_extension("rs").is_file())
}
