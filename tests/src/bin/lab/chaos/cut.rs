//! The way to the API server, cut: packets go neither way, and nobody is told so.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use lb_tests::netns::Netns;
use lb_tests::network::Network;
use lb_tests::process;

/// A cut. Dropping it mends it.
#[derive(Debug)]
pub(crate) struct Cut<'a> {
    switch: &'a Netns,
}

impl<'a> Cut<'a> {
    /// Cuts off all but the switch itself, where the API server is.
    pub(crate) fn make(network: &'a Network) -> Result<Self> {
        let switch = network.switch();
        nft(
            switch,
            "add table inet cut; \
             add chain inet cut in { type filter hook input priority 0; }; \
             add chain inet cut out { type filter hook output priority 0; }; \
             add rule inet cut in iifname br0 tcp dport 6443 drop; \
             add rule inet cut out oifname br0 tcp sport 6443 drop",
        )?;
        Ok(Self { switch })
    }

    /// Mends it.
    pub(crate) fn mend(self) -> Result<()> {
        nft(self.switch, "delete table inet cut")?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // The network is about to go; this is for whoever ends before it.
        let _ = nft(self.switch, "delete table inet cut");
    }
}

fn nft(netns: &Netns, commands: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command
        .arg(commands)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = process::spawn(command, netns, None)?
        .wait_with_output()
        .context("running nft")?;
    ensure!(
        output.status.success(),
        "nft: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
