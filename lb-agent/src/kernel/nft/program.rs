//! The program `nft`, which writes and lists tables: one transaction a call.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
};

use lb_common::config::{FIRST_SNAT_PORT, LAST_SNAT_PORT};

use crate::desired::Family;

const PROGRAM: &str = "nft";

/// Why the rules are not in place.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// There is no program.
    #[error(
        "the program `nft` is needed for the rules of services: install nftables, or give \
         its folder in PATH"
    )]
    Missing,
    /// It cannot be run.
    #[error("cannot run `nft`: {0}")]
    Run(#[from] io::Error),
    /// It says no.
    #[error("nft refuses {what}: {answer}")]
    Refused {
        /// What it was given.
        what: &'static str,
        /// What it wrote.
        answer: String,
    },
    /// What it lists is not what this version writes.
    #[error("the nftables table {table} is not one of this version: {what}")]
    Foreign {
        /// Family and name of the table.
        table: &'static str,
        /// What was not understood.
        what: String,
    },
}

/// How much of a table is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detail {
    /// All of it, as text.
    Everything,
    /// Without the elements of sets, as text. What it costs does not grow with them.
    WithoutElements,
    /// All of it, as JSON, and numbers in place of names.
    Json,
}

/// Makes a transaction: all of it, or nothing and an error.
pub(crate) fn run(what: &'static str, transaction: &str) -> Result<(), NftError> {
    run_with(what, &[], transaction)
}

/// Asks the kernel whether it would make a transaction. Changes nothing.
pub(crate) fn check(what: &'static str, transaction: &str) -> Result<(), NftError> {
    run_with(what, &["--check"], transaction)
}

fn run_with(what: &'static str, options: &[&str], transaction: &str) -> Result<(), NftError> {
    let mut child = Command::new(PROGRAM)
        .args(options)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may end without reading all; what it says then is of more use than the broken pipe.
        match stdin.write_all(transaction.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(NftError::Refused {
        what,
        answer: answer(&output),
    })
}

/// The table with this family and name, if there is one.
pub(crate) fn list(table: &str, detail: Detail) -> Result<Option<String>, NftError> {
    match detail {
        Detail::Everything => ask(&format!("list table {table}")),
        Detail::Json => ask(&format!("--json --numeric list table {table}")),
        Detail::WithoutElements => {
            // `nft` 1.0.6 fetches the elements of a single table that it is not to list, but none of whole families.
            let family = table.split(' ').next().unwrap_or_default();
            let tables = ask(&format!("--terse list ruleset {family}"))?;
            Ok(tables.and_then(|tables| cut(table, &tables)))
        }
    }
}

/// One of the tables of a listing.
fn cut(table: &str, tables: &str) -> Option<String> {
    let first = format!("table {table} {{\n");
    let start = match tables.starts_with(&first) {
        true => 0,
        false => tables.find(&format!("\n{first}"))? + 1,
    };
    let rest = &tables[start..];
    let end = rest.find("\n}\n").map_or(rest.len(), |end| end + "\n}\n".len());
    Some(rest[..end].to_owned())
}

/// What the program answers to these arguments; `None` where it finds nothing of that name.
fn ask(arguments: &str) -> Result<Option<String>, NftError> {
    let output = Command::new(PROGRAM)
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .map_err(not_run)?;
    if output.status.success() {
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let answer = answer(&output);
    if answer.contains("No such file or directory") {
        return Ok(None);
    }
    Err(NftError::Refused {
        what: "to list a table",
        answer,
    })
}

/// Removes a table; says whether there was one. Without the program there is none that we could know of.
pub(crate) fn remove(table: &str) -> Result<bool, NftError> {
    match list(table, Detail::WithoutElements) {
        Ok(None) | Err(NftError::Missing) => Ok(false),
        Ok(Some(_)) => {
            run("the removal of a table", &format!("delete table {table}\n"))?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// What somebody has done to a table that was applied, if anything.
pub(crate) fn damage(applied: Option<&str>, found: Option<&str>) -> Option<&'static str> {
    match found {
        None => Some("removed"),
        found if found != applied => Some("changed"),
        _ => None,
    }
}

/// The rule that gives packets of a family the node's address, at the hook `postrouting` of a chain of type `nat`.
/// `condition` ends with a space, and lets through what has ports alone.
pub(crate) fn masquerade(family: Family, condition: &str) -> String {
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    format!(
        "meta nfproto {family} {condition}\
         masquerade to :{FIRST_SNAT_PORT}-{LAST_SNAT_PORT} fully-random"
    )
}

fn not_run(error: io::Error) -> NftError {
    match error.kind() {
        io::ErrorKind::NotFound => NftError::Missing,
        _ => NftError::Run(error),
    }
}

/// What the program wrote, in one line.
fn answer(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return output.status.to_string();
    }
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_not_as_it_was_is_damaged() {
        let applied = "table inet lb-agent {\n\tchain postrouting {\n\t}\n}\n";
        assert_eq!(damage(Some(applied), Some(applied)), None);
        assert_eq!(damage(Some(applied), None), Some("removed"));
        assert_eq!(
            damage(Some(applied), Some("table inet lb-agent {\n}\n")),
            Some("changed")
        );
        // It went between the transaction and the look at it.
        assert_eq!(damage(None, None), Some("removed"));
    }

    #[test]
    fn a_table_is_cut_out_of_those_of_its_family() {
        let ours = "table inet lb-agent-ipvs {\n\tset a {\n\t}\n}\n";
        let other = "table inet lb-agent {\n\tchain b {\n\t}\n}\n";
        for tables in [ours.to_owned(), format!("{other}{ours}"), format!("{ours}{other}")] {
            assert_eq!(cut("inet lb-agent-ipvs", &tables).as_deref(), Some(ours));
        }
        assert_eq!(cut("inet lb-agent-ipvs", other), None);
        assert_eq!(cut("inet lb-agent", ours), None);
    }
}
