//! The one nftables table of the plane `ebpf`: what the kernel is to do beside the programs.
//!
//! **Where programs masquerade**, it is to put datagrams together that come in pieces, before they are routed: answers have
//! to reach the program on the client's link in order. A rule that redirects to a socket (`tproxy`) has the kernel do that, and
//! the chain it is in hangs on no hook, so that no packet ever meets it. Where the kernel has no such rule, one that
//! looks at connections does the same, only that the kernel then tracks all of the node.
//!
//! Connections that the kernel translates already, for a kube-proxy before us or by our own rule of another time, would lose that
//! with the last chain of type `nat`. Where there are any, one that does nothing goes along, until an agent starts and finds none.
//! Our own rule of another time stays until programs that masquerade are on all links.
//!
//! **Where the kernel masquerades**, what the programs marked. The chain sits at the hook `postrouting`, priority `srcnat` (100),
//! where kube-proxy, flannel and
//! every other masquerading rule sit too. That is no clash: the first of them that has a rule for a
//! connection decides, and only packets of new connections with our bit in their mark have one here.
//! kube-proxy (iptables and nftables modes) masquerades by the same bit unless told otherwise and
//! clears it afterwards; if both run, the one whose chain was registered first decides, and the
//! outcome is a masqueraded connection either way. What differs is the range of source ports, which
//! is why the two should not run side by side for good. Flannel's and the CNI plugins' rules match by
//! pod addresses; a connection that has our mark gets the same source address from them. Of TCP, the rule is about
//! first segments only: a connection that is under way has had its address from the programs. The rule
//! leaves the bit set; the program on the outgoing link clears it, since a tunnel would copy it to the
//! packet that it wraps around this one.

pub mod program;

use std::{thread, time::Duration};

use tracing::{debug, info, warn};

pub use program::NftError;
use program::{Detail, list, masquerade};

use super::conntrack;
use crate::desired::Family;

/// Family and name of the table.
pub const TABLE: &str = "inet lb-agent";

/// How often the table is looked at. `systemctl reload nftables` takes all tables away, and nothing but
/// clients without answer would tell of it.
pub(crate) const CHECK: Duration = Duration::from_secs(30);

/// What is asked of the kernel, in the words of errors.
const WHAT: &str = "the rules beside the programs";

/// A table that the kernel would take.
#[derive(Debug)]
pub struct Rules {
    /// The transaction that puts it in place of whatever there is.
    transaction: String,
    /// The kernel masquerades only until programs do on all links.
    is_passing: bool,
}

impl Rules {
    /// The kernel masquerades what has `mark`.
    pub fn masquerade(mark: u32) -> Result<Self, NftError> {
        Self::checked(masquerading(mark))
    }

    /// The kernel puts together what comes in pieces, and goes on translating what it translates. If it has masqueraded
    /// by our own rule, that goes with `mark` for a while.
    pub fn reassemble(mark: u32) -> Result<Self, NftError> {
        let rules = Self::without_masquerading()?;
        let masquerades = list(TABLE, Detail::Everything)?.is_some_and(|table| table.contains(MASQUERADES));
        if !masquerades {
            return Ok(rules);
        }
        Ok(Self {
            is_passing: true,
            ..Self::checked(masquerading(mark))?
        })
    }

    fn without_masquerading() -> Result<Self, NftError> {
        let others = match conntrack::has_translated() {
            Ok(false) => "",
            Ok(true) => {
                info!(
                    "the kernel goes on tracking connections: it translates some, by rules that are not of this agent"
                );
                TRANSLATES_ON
            }
            Err(error) => {
                debug!(%error, "cannot ask for the connections that the kernel tracks");
                ""
            }
        };
        Self::checked(reassembling(REDIRECTS, others)).or_else(|error| {
            let rules = Self::checked(reassembling(LOOKS_AT_CONNECTIONS, others))?;
            info!(%error, "the kernel tracks connections, to put datagrams together: it has no tproxy for nftables");
            Ok(rules)
        })
    }

    fn checked(transaction: String) -> Result<Self, NftError> {
        program::check(WHAT, &transaction)?;
        Ok(Self {
            transaction,
            is_passing: false,
        })
    }

    /// Replaces the table in one transaction. Returns it in the words of `nft`, which are not ours.
    fn apply(&self) -> Result<Option<String>, NftError> {
        program::run(WHAT, &self.transaction)?;
        list(TABLE, Detail::Everything)
    }

    /// Puts the rules back where somebody took them away.
    fn restore(&self, applied: &mut Option<String>) -> Result<(), NftError> {
        let Some(what) = program::damage(applied.as_deref(), list(TABLE, Detail::Everything)?.as_deref()) else {
            return Ok(());
        };
        *applied = self.apply()?;
        warn!("somebody {what} the nftables table {TABLE}, without which clients get no answer: put back");
        Ok(())
    }

    /// Looks after the table once more; `applied` is how it was left.
    fn look_after(&mut self, applied: &mut Option<String>) -> Result<(), NftError> {
        if !self.is_passing {
            return self.restore(applied);
        }
        let rules = Self::without_masquerading()?;
        *applied = rules.apply()?;
        *self = rules;
        Ok(())
    }
}

/// Puts the rules in place of whatever the table holds, and sees to it that they stay, from a
/// thread that ends with the process.
pub fn keep(mut rules: Rules) -> Result<(), NftError> {
    let mut applied = rules.apply()?;
    thread::Builder::new()
        .name("nft".to_owned())
        .spawn(move || {
            loop {
                // The programs are on all links before that.
                thread::sleep(CHECK);
                if let Err(error) = rules.look_after(&mut applied) {
                    warn!("{WHAT} may be missing: {error}");
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

/// One each for a family.
const REDIRECTS: [&str; 2] = [
    "meta nfproto ipv4 meta l4proto udp tproxy ip to :1",
    "meta nfproto ipv6 meta l4proto udp tproxy ip6 to :1",
];
const LOOKS_AT_CONNECTIONS: [&str; 2] = [
    "meta nfproto ipv4 ct state invalid",
    "meta nfproto ipv6 ct state invalid",
];

/// The chain has the kernel translate, and its rule has it track.
const TRANSLATES_ON: &str = "    chain translated {
        type nat hook postrouting priority srcnat; policy accept;
        ct state invalid
    }
";

/// How `nft` lists, and is told, that the kernel masquerades.
const MASQUERADES: &str = "masquerade to";

/// The transaction for rules on no hook, and `others`.
fn reassembling(rules: [&str; 2], others: &str) -> String {
    let [v4, v6] = rules;
    replace(&format!(
        "    chain reassemble {{\n        {v4}\n        {v6}\n    }}\n{others}"
    ))
}

/// The transaction for rules that masquerade. A connection that the kernel tracks from its middle on is nobody's new one:
/// programs masquerade it.
fn masquerading(mark: u32) -> String {
    let condition = format!("meta mark & {mark:#x} == {mark:#x} ");
    let mut rules = String::new();
    for family in [Family::V4, Family::V6] {
        for begins in ["tcp flags & (syn | ack) == syn ", "meta l4proto { udp, sctp } "] {
            let rule = masquerade(family, &format!("{begins}{condition}"));
            rules.push_str(&format!("        {rule}\n"));
        }
    }
    replace(&format!(
        "    chain postrouting {{\n        \
             type nat hook postrouting priority srcnat; policy accept;\n\
             {rules}    \
         }}\n"
    ))
}

/// The table is declared before it is deleted, so that the deletion finds one.
fn replace(chains: &str) -> String {
    format!(
        "table {TABLE} {{}}\n\
         delete table {TABLE}\n\
         table {TABLE} {{\n\
         {chains}\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transaction_replaces_the_table() {
        assert_eq!(
            masquerading(0x4000),
            "\
table inet lb-agent {}
delete table inet lb-agent
table inet lb-agent {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        meta nfproto ipv4 tcp flags & (syn | ack) == syn meta mark & 0x4000 == 0x4000 masquerade to :10000-29999 fully-random
        meta nfproto ipv4 meta l4proto { udp, sctp } meta mark & 0x4000 == 0x4000 masquerade to :10000-29999 fully-random
        meta nfproto ipv6 tcp flags & (syn | ack) == syn meta mark & 0x4000 == 0x4000 masquerade to :10000-29999 fully-random
        meta nfproto ipv6 meta l4proto { udp, sctp } meta mark & 0x4000 == 0x4000 masquerade to :10000-29999 fully-random
    }
}
"
        );
    }
    #[test]
    fn what_the_kernel_translates_it_goes_on_to_translate() {
        assert_eq!(
            reassembling(REDIRECTS, TRANSLATES_ON),
            "\
table inet lb-agent {}
delete table inet lb-agent
table inet lb-agent {
    chain reassemble {
        meta nfproto ipv4 meta l4proto udp tproxy ip to :1
        meta nfproto ipv6 meta l4proto udp tproxy ip6 to :1
    }
    chain translated {
        type nat hook postrouting priority srcnat; policy accept;
        ct state invalid
    }
}
"
        );
    }
}
