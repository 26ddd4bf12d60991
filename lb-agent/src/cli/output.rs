//! What verbs print, for people or for programs, and the exit codes that go with it.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use serde::Serialize;

/// The flag that tells for whom.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// A form of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For people
    #[value(alias = "table")]
    Text,
    /// One JSON object; of what goes on, one a line
    Json,
    /// The same in YAML; of what goes on, a document each
    Yaml,
}

/// The answer that an exit code is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// All is as it should be.
    Good,
    /// Something is not.
    Problem,
    /// It cannot be told.
    Unknown,
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> Self {
        Self::from(match answer {
            Answer::Good => 0,
            Answer::Problem => 1,
            Answer::Unknown => 2,
        })
    }
}

impl Output {
    /// Prints all there is to print.
    ///
    /// # Errors
    /// [`NobodyReads`], or it cannot be written.
    pub(super) fn print(self, object: &impl Serialize, text: &impl fmt::Display) -> anyhow::Result<()> {
        let printed = match self.output {
            Format::Text => text.to_string(),
            Format::Json => serde_json::to_string_pretty(object)?,
            Format::Yaml => serde_saphyr::to_string(object)?,
        };
        let mut out = io::stdout().lock();
        let printed = printed.trim_end();
        if !printed.is_empty() {
            written(writeln!(out, "{printed}"))?;
        }
        written(out.flush())
    }

    /// Prints one of many, as they come.
    ///
    /// # Errors
    /// As for [`Self::print`].
    pub(super) fn print_next(
        self,
        object: &impl Serialize,
        text: &impl fmt::Display,
        out: &mut impl io::Write,
    ) -> anyhow::Result<()> {
        written(match self.output {
            Format::Text => writeln!(out, "{text}"),
            Format::Json => writeln!(out, "{}", serde_json::to_string(object)?),
            Format::Yaml => write!(out, "---\n{}", serde_saphyr::to_string(object)?),
        })
    }
}

/// Says what has been done. What is being done is not left half way because nobody listens.
pub(super) fn say(line: impl fmt::Display) {
    // There is nowhere to tell that nothing can be told.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Columns as kubectl has them: capitals above, no lines.
pub(super) fn columns<const N: usize>(titles: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(titles);
    table.add_rows(rows.into_iter().map(|row| row.map(or_none)));
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.trim_fmt()
}

/// What stands where nothing does.
const NONE: &str = "<none>";

fn or_none(cell: String) -> String {
    if cell.is_empty() { NONE.to_owned() } else { cell }
}

/// Who reads has seen enough: no failure, and an error only so that nothing more is printed. Of a type of its own, since
/// other pipes that break are failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
pub(super) struct NobodyReads;

/// What came of writing to standard output.
///
/// # Errors
/// [`NobodyReads`], or it cannot be written.
pub(super) fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        result => result.context("cannot write the output"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them_and_three_spaces_apart() {
        let rows = [
            ["10.96.0.1:443".to_owned(), "TCP".to_owned(), String::new()],
            ["[fd00::1]:53".to_owned(), "UDP".to_owned(), "2".to_owned()],
        ];
        let expected = "\
FRONTEND        PROTO   BACKENDS
10.96.0.1:443   TCP     <none>
[fd00::1]:53    UDP     2";
        assert_eq!(columns(["FRONTEND", "PROTO", "BACKENDS"], rows), expected);
    }

    #[test]
    fn one_of_many_is_a_line_or_a_document() {
        let print = |output| {
            let mut out = Vec::new();
            let object = json!({"reason": "rejected"});
            let output = Output { output };
            output.print_next(&object, &"rejected", &mut out).unwrap();
            output.print_next(&object, &"rejected", &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(Format::Text), "rejected\nrejected\n");
        assert_eq!(
            print(Format::Json),
            "{\"reason\":\"rejected\"}\n{\"reason\":\"rejected\"}\n"
        );
        assert_eq!(print(Format::Yaml), "---\nreason: rejected\n---\nreason: rejected\n");
    }

    #[test]
    fn who_does_not_read_any_more_is_told_from_what_cannot_be_written() {
        let error = |kind| written(Err(io::Error::from(kind))).unwrap_err();
        assert!(error(io::ErrorKind::BrokenPipe).is::<NobodyReads>());
        assert!(!error(io::ErrorKind::StorageFull).is::<NobodyReads>());
        // One to a child, say.
        assert!(!anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).is::<NobodyReads>());
    }
}
