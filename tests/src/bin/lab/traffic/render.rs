//! Events and faults for people.

use comfy_table::{CellAlignment, Table, presets};

use super::record::{Fault, Kind};
use super::timeline::{Event, Timeline};

/// How many of a kind there are.
pub(crate) fn faults_of(kind: Kind, faults: &[Fault]) -> usize {
    faults.iter().filter(|fault| fault.kind == kind).count()
}

/// A line an event. Faults are where their connection or question began.
pub(crate) fn table(events: &[Event], faults: &[Fault]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "EVENT", "TOOK", "NEW TCP", "NEW UDP", "ASKED", "SLOW", "FAILED", "RESETS", "LOST",
    ]);
    for event in events {
        let within: Vec<Fault> = faults.iter().filter(|fault| event.holds(fault.at)).cloned().collect();
        table.add_row([
            event.name.clone(),
            format!("{:.1} s", event.took.as_secs_f64()),
            event.counts.tcp.to_string(),
            event.counts.udp.to_string(),
            event.counts.asked.to_string(),
            event.counts.slow.to_string(),
            faults_of(Kind::FailedConnection, &within).to_string(),
            faults_of(Kind::Reset, &within).to_string(),
            faults_of(Kind::LostDatagram, &within).to_string(),
        ]);
    }
    for index in 1..9 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

impl Timeline {
    /// One fault in a line.
    pub(crate) fn line(&self, fault: &Fault) -> String {
        format!(
            "{}: {} after {:.3} s: {}; begun at {}",
            fault.kind,
            fault.way,
            fault.lasted.as_secs_f64(),
            fault.why,
            self.place(fault.at)
        )
    }
}
