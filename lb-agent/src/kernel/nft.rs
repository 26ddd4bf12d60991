//! The one nftables table: masquerades what the data path marked.
//!
//! The chain sits at the hook `postrouting`, priority `srcnat` (100), where kube-proxy, flannel and
//! every other masquerading rule sit too. That is no clash: the first of them that has a rule for a
//! connection decides, and only packets of new connections with our bit in their mark have one here.
//! kube-proxy (iptables and nftables modes) masquerades by the same bit unless told otherwise and
//! clears it afterwards; if both run, the one whose chain was registered first decides, and the
//! outcome is a masqueraded connection either way. What differs is the range of source ports, which
//! is why the two should not run side by side for good. Flannel's and the CNI plugins' rules match by
//! pod addresses; a connection that has our mark gets the same source address from them. The bit
//! stays set: whatever follows in the same hook is done with the packet, and nothing later reads it.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
};

use lb_common::config::{FIRST_SNAT_PORT, LAST_SNAT_PORT};

/// Family and name of the table.
pub const TABLE: &str = "inet lb-agent";

const PROGRAM: &str = "nft";

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

/// Puts the rules for `mark` in place of whatever the table holds, in one transaction.
pub fn apply(mark: u32) -> Result<(), NftError> {
    run("the masquerade rules", &rules(mark))
}

/// Removes the table; says whether there was one. Without the program there cannot be one of ours.
pub fn remove() -> Result<bool, NftError> {
    let listed = Command::new(PROGRAM)
        .args(["list", "table"])
        .args(TABLE.split(' '))
        .stdin(Stdio::null())
        .output();
    match listed {
        Ok(output) if output.status.success() => {
            run("the removal of our table", &format!("delete table {TABLE}\n"))?;
            Ok(true)
        }
        Ok(output) => {
            let answer = answer(&output);
            if answer.contains("No such file or directory") {
                Ok(false)
            } else {
                Err(NftError::Refused {
                    what: "to list our table",
                    answer,
                })
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
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

fn run(what: &'static str, transaction: &str) -> Result<(), NftError> {
    let mut child = Command::new(PROGRAM)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NftError::Missing,
            _ => NftError::Run(error),
        })?;
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
