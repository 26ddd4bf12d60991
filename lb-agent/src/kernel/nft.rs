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

pub mod program;

use std::{thread, time::Duration};

use tracing::warn;

pub use program::NftError;
use program::{Detail, list, masquerade};

use crate::desired::Family;

/// Family and name of the table.
pub const TABLE: &str = "inet lb-agent";

/// How often the table is looked at. `systemctl reload nftables` takes all tables away, and nothing but
/// clients without answer would tell of it.
pub(crate) const CHECK: Duration = Duration::from_secs(30);

/// Asks the kernel whether it would take the rules for `mark`. Changes nothing.
pub fn check(mark: u32) -> Result<(), NftError> {
    program::check("the masquerade rules", &rules(mark))
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
    program::remove(TABLE)
}

/// Replaces the table in one transaction. Returns it in the words of `nft`, which are not ours.
fn apply(mark: u32) -> Result<Option<String>, NftError> {
    program::run("the masquerade rules", &rules(mark))?;
    list(TABLE, Detail::Everything)
}

/// Puts the rules back where somebody took them away.
fn restore(mark: u32, applied: &mut Option<String>) -> Result<(), NftError> {
    let Some(what) = program::damage(applied.as_deref(), list(TABLE, Detail::Everything)?.as_deref()) else {
        return Ok(());
    };
    *applied = apply(mark)?;
    warn!("somebody {what} the nftables table {TABLE}, without which clients get no answer: put back");
    Ok(())
}

/// The transaction. The table is declared before it is deleted, so that the deletion finds one.
fn rules(mark: u32) -> String {
    let condition = format!("meta mark & {mark:#x} == {mark:#x} ");
    let rule = |family| format!("        {}\n", masquerade(family, &condition));
    format!(
        "table {TABLE} {{}}\n\
         delete table {TABLE}\n\
         table {TABLE} {{\n    \
             chain postrouting {{\n        \
                 type nat hook postrouting priority srcnat; policy accept;\n\
                 {}{}    \
             }}\n\
         }}\n",
        rule(Family::V4),
        rule(Family::V6),
    )
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
