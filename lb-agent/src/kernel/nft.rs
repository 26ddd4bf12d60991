//! The one nftables table: masquerades what the data path marked.
//!
//! The chain sits at the hook `postrouting`, priority `srcnat` (100), where kube-proxy, flannel and
//! every other masquerading rule sit too. That is no clash: the first of them that has a rule for a
//! connection decides, and only packets of new connections with our bit in their mark have one here.
//! kube-proxy (iptables and nftables modes) masquerades by the same bit unless told otherwise and
//! clears it afterwards; if both run, the one whose chain was registered first decides, and the
//! outcome is a masqueraded connection either way. What differs is the range of source ports, which
//! is why the two should not run side by side for good. Flannel's and the CNI plugins' rules match by
//! pod addresses; a connection that has our mark gets the same source address from them. The rule
//! leaves the bit set; the program on the outgoing link clears it, since a tunnel would copy it to the
//! packet that it wraps around this one.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use lb_common::config::{FIRST_SNAT_PORT, LAST_SNAT_PORT};
use tracing::warn;

/// Family and name of the table.
pub const TABLE: &str = "inet lb-agent";

const PROGRAM: &str = "nft";
/// How often the table is looked at. `systemctl reload nftables` takes all tables away, and nothing but
/// clients without answer would tell of it.
const CHECK: Duration = Duration::from_secs(30);

/// Why the rules are not in place.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// There is no program.
    #[error(
        "the program `nft` is needed to masquerade clients of services: install nftables, or give \
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
}

/// Asks the kernel whether it would take the rules for `mark`. Changes nothing.
pub fn check(mark: u32) -> Result<(), NftError> {
    run("the masquerade rules", &["--check"], &rules(mark))
}

/// Puts the rules for `mark` in place of whatever the table holds, and sees to it that they stay, from a
/// thread that ends with the process.
pub fn keep(mark: u32) -> Result<(), NftError> {
    let mut applied = apply(mark)?;
    thread::Builder::new()
        .name("masquerade".to_owned())
        .spawn(move || {
            loop {
                thread::sleep(CHECK);
                if let Err(error) = restore(mark, &mut applied) {
                    warn!("the masquerade rules may be missing: {error}");
                }
            }
        })
        .map(drop)
        .map_err(NftError::Run)
}

/// Removes the table; says whether there was one. Without the program there cannot be one of ours.
pub fn remove() -> Result<bool, NftError> {
    match list() {
        Ok(None) | Err(NftError::Missing) => Ok(false),
        Ok(Some(_)) => {
            run("the removal of our table", &[], &format!("delete table {TABLE}\n"))?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Replaces the table in one transaction. Returns it in the words of `nft`, which are not ours.
fn apply(mark: u32) -> Result<Option<String>, NftError> {
    run("the masquerade rules", &[], &rules(mark))?;
    list()
}

/// Puts the rules back where somebody took them away.
fn restore(mark: u32, applied: &mut Option<String>) -> Result<(), NftError> {
    let Some(what) = damage(applied.as_deref(), list()?.as_deref()) else {
        return Ok(());
    };
    *applied = apply(mark)?;
    warn!("somebody {what} the nftables table {TABLE}, without which clients get no answer: put back");
    Ok(())
}

/// What somebody has done to the table that was applied, if anything.
fn damage(applied: Option<&str>, found: Option<&str>) -> Option<&'static str> {
    match found {
        None => Some("removed"),
        found if found != applied => Some("changed"),
        _ => None,
    }
}

/// The table, if there is one.
fn list() -> Result<Option<String>, NftError> {
    let output = Command::new(PROGRAM)
        .args(["list", "table"])
        .args(TABLE.split(' '))
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
        what: "to list our table",
        answer,
    })
}

/// The transaction. The table is declared before it is deleted, so that the deletion finds one.
fn rules(mark: u32) -> String {
    let rule = |family| {
        format!(
            "        meta nfproto {family} meta l4proto {{ tcp, udp, sctp }} \
             meta mark & {mark:#x} == {mark:#x} \
             masquerade to :{FIRST_SNAT_PORT}-{LAST_SNAT_PORT} fully-random\n"
        )
    };
    format!(
        "table {TABLE} {{}}\n\
         delete table {TABLE}\n\
         table {TABLE} {{\n    \
             chain postrouting {{\n        \
                 type nat hook postrouting priority srcnat; policy accept;\n\
                 {}{}    \
             }}\n\
         }}\n",
        rule("ipv4"),
        rule("ipv6"),
    )
}

fn run(what: &'static str, options: &[&str], transaction: &str) -> Result<(), NftError> {
    let mut child = Command::new(PROGRAM)
        .args(options)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
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
    fn the_transaction_replaces_the_table() {
        assert_eq!(
            rules(0x4000),
            "\
table inet lb-agent {}
delete table inet lb-agent
table inet lb-agent {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        meta nfproto ipv4 meta l4proto { tcp, udp, sctp } meta mark & 0x4000 == 0x4000 masquerade to :10000-29999 fully-random
        meta nfproto ipv6 meta l4proto { tcp, udp, sctp } meta mark & 0x4000 == 0x4000 masquerade to :10000-29999 fully-random
    }
}
"
        );
    }
}
