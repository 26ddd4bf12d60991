//! What the demo came to, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comfy_table::{Table, presets};
use lb_tests::client::Protocol;
use lb_tests::matrix::{Asker, Backend, Frontend, Played};
use lb_tests::stage::Family;

use super::result::Demo;

/// How many complaints are printed.
const SHOWN: usize = 20;

/// Both tables, the complaints, and the sum.
pub(crate) fn render(played: &[Played], result: &Demo) -> String {
    let mut text = String::new();
    let parts = [matrix(played), change(result), wrong(played, result), sum(result)];
    for part in parts.iter().filter(|part| !part.is_empty()) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{part}\n");
    }
    text
}

const KINDS: [(Protocol, Family); 4] = [
    (Protocol::Tcp, Family::V4),
    (Protocol::Tcp, Family::V6),
    (Protocol::Udp, Family::V4),
    (Protocol::Udp, Family::V6),
];

/// A row for each client, frontend and place; how the connections were spread for each protocol and family.
fn matrix(played: &[Played]) -> String {
    let mut rows: BTreeMap<(Asker, Frontend, Backend), Vec<&Played>> = BTreeMap::new();
    for played in played {
        let cell = &played.cell;
        rows.entry((cell.from, cell.frontend, cell.backend))
            .or_default()
            .push(played);
    }
    let mut table = table(
        ["CLIENT", "DIALS", "BACKENDS ON"].map(str::to_owned).into_iter().chain(
            KINDS
                .iter()
                .map(|(protocol, family)| format!("{protocol} {family}"))
                .chain(["BACKEND SAW".into(), "".into()]),
        ),
    );
    for ((from, frontend, backend), cells) in rows {
        let of_kind = |kind: &(Protocol, Family)| {
            let cell = cells
                .iter()
                .find(|played| (played.cell.protocol, played.cell.family) == *kind);
            cell.map_or_else(String::new, |played| spread(played))
        };
        let seen: BTreeSet<String> = cells
            .iter()
            .flat_map(|played| &played.seen)
            .map(ToString::to_string)
            .collect();
        let right = cells.iter().all(|played| played.is_right());
        let mut row = vec![from.to_string(), frontend.to_string(), backend.to_string()];
        row.extend(KINDS.iter().map(of_kind));
        row.push(seen.into_iter().collect::<Vec<_>>().join(", "));
        row.push(if right { "ok" } else { "WRONG" }.into());
        table.add_row(row);
    }
    format!(
        "Connections, by the backend that answered them (a / b / c):\n\n{}",
        table.trim_fmt()
    )
}

fn spread(played: &Played) -> String {
    let counts: Vec<_> = played.spread.values().map(u32::to_string).collect();
    counts.join(" / ")
}

fn change(result: &Demo) -> String {
    let change = &result.change;
    let mut table = table(
        [
            "CLIENT",
            "DIALS",
            "FIRST NEW",
            "LAST OLD",
            "NEW CONNS",
            "KEPT",
            "KEPT TO OLD",
            "",
        ]
        .map(str::to_owned),
    );
    let time = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"));
    for seen in &change.clients {
        table.add_row([
            seen.from.clone(),
            seen.to.to_string(),
            time(seen.first_added_ms),
            time(seen.last_removed_ms),
            seen.new.to_string(),
            format!("{}, {} asked", seen.kept, seen.questions),
            format!("{} of {} answer", seen.leaving_alive, seen.leaving),
            if seen.wrong.is_empty() { "ok" } else { "WRONG" }.into(),
        ]);
    }
    format!(
        "{} leaves and {} comes, in one change of the EndpointSlices that took {:.1} ms to write:\n\n{}",
        change.removed,
        change.added,
        change.write_ms,
        table.trim_fmt()
    )
}

fn wrong(played: &[Played], result: &Demo) -> String {
    let of_cells = played.iter().flat_map(|played| {
        played
            .wrong
            .iter()
            .map(move |wrong| format!("{} at {}: {wrong}", played.cell, played.to))
    });
    let of_clients = result.change.clients.iter().flat_map(|seen| {
        seen.wrong
            .iter()
            .map(move |wrong| format!("change, {}: {wrong}", seen.from))
    });
    let mut lines: Vec<String> = of_cells.chain(of_clients).collect();
    if lines.len() > SHOWN {
        let more = lines.len() - SHOWN;
        lines.truncate(SHOWN);
        lines.push(format!("and {more} more"));
    }
    lines.join("\n")
}

fn sum(result: &Demo) -> String {
    format!(
        "{} probes, {} failed, in {:.1} s",
        result.probes, result.failed, result.seconds
    )
}

fn table(header: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.into_iter().collect::<Vec<_>>());
    table
}
