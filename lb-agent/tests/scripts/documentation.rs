//! That `docs/semantics.md` and the scripts name each other.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, ensure};

/// Every script is in the table of behaviours, and every script in the table is there.
pub(crate) fn test(scripts: &BTreeSet<String>) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/semantics.md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let topics: BTreeSet<&str> = scripts
        .iter()
        .filter_map(|name| Some(name.split_once('/')?.0))
        .collect();
    let quoted = text.split('`').skip(1).step_by(2);
    let named: BTreeSet<String> = quoted
        .filter(|word| word.split_once('/').is_some_and(|(topic, _)| topics.contains(topic)))
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = scripts.difference(&named).collect();
    ensure!(missing.is_empty(), "not in docs/semantics.md: {missing:?}");
    let unknown: Vec<_> = named.difference(scripts).collect();
    ensure!(
        unknown.is_empty(),
        "docs/semantics.md names scripts that do not exist: {unknown:?}"
    );
    Ok(())
}
