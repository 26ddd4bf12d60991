//! The modules of a kernel that the tests need, in the order in which they can be loaded.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::kernel::Kernel;
use crate::packages::find_program;
use crate::run::{Step, say};

/// Nothing loads a module by itself in the guest, so all are named: links, hooks, the packet filter, questions about sockets, IPVS.
/// Some are built into some kernels, and some kernels do not have all of them.
const WANTED: &[&str] = &[
    "veth",
    "bridge",
    "br_netfilter",
    "vxlan",
    "tun",
    "dummy",
    "macvlan",
    "netkit",
    "sch_ingress",
    "cls_bpf",
    "cls_u32",
    "act_bpf",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_tables",
    "nft_chain_nat",
    "nft_masq",
    "nft_nat",
    "nft_ct",
    "nft_counter",
    "nft_fib_inet",
    "nft_hash",
    "nft_limit",
    "nft_log",
    "nft_numgen",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_tproxy",
    "nf_log_syslog",
    "sctp",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "ip_set",
    "ip_set_hash_ipport",
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_wrr",
    "ip_vs_lc",
    "ip_vs_wlc",
    "ip_vs_sh",
    "ip_vs_mh",
    "ip_vs_dh",
    "ip_vs_sed",
    "ip_vs_nq",
];

/// What kube-proxy's rules of iptables and its sets need, by the legacy tools.
pub const KUBE_PROXY: &[&str] = &[
    "iptable_nat",
    "iptable_filter",
    "iptable_mangle",
    "ip6table_nat",
    "ip6table_filter",
    "ip6table_mangle",
    "ipt_REJECT",
    "ip6t_REJECT",
    "xt_MASQUERADE",
    "xt_REDIRECT",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_ipvs",
    "xt_mark",
    "xt_multiport",
    "xt_nat",
    "xt_nfacct",
    "xt_physdev",
    "xt_recent",
    "xt_set",
    "xt_statistic",
    "xt_tcpudp",
    "nfnetlink_acct",
    "ip_set_bitmap_port",
    "ip_set_hash_ip",
    "ip_set_hash_ipportip",
    "ip_set_hash_ipportnet",
    "ip_set_hash_net",
];

/// The files of those, and of `more`, each behind those that it depends on.
pub fn files(kernel: &Kernel, more: &[&str]) -> Result<Vec<PathBuf>> {
    let modprobe = find_program("modprobe").context("there is no program modprobe")?;
    let mut files = Vec::new();
    let mut absent = Vec::new();
    for name in WANTED.iter().chain(more) {
        let mut command = Command::new(&modprobe);
        // Neither configuration nor modules of this machine matter.
        command
            .args(["--show-depends", "--config", "/dev/null", "--dirname"])
            .arg(&kernel.root)
            .args(["--set-version", &kernel.version, name]);
        match Step::new("modprobe", Duration::from_secs(10)).ask(&mut command) {
            Ok(text) => {
                for file in parse(&text) {
                    if !files.contains(&file) {
                        files.push(file);
                    }
                }
            }
            Err(error) if error.to_string().contains("not found in directory") => absent.push(*name),
            Err(error) => return Err(error),
        }
    }
    if !absent.is_empty() {
        say(format_args!("{} has no module {}", kernel.version, absent.join(", ")));
    }
    Ok(files)
}

/// Reads lines such as `insmod /lib/modules/V/kernel/net/a.ko`; other lines name what is built in.
fn parse(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .map(|file| PathBuf::from(file.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_has_no_file() {
        let text = "builtin udp_tunnel\ninsmod /k/lib/modules/V/a.ko \ninsmod /k/lib/modules/V/b.ko \n";
        assert_eq!(
            parse(text),
            ["/k/lib/modules/V/a.ko", "/k/lib/modules/V/b.ko"].map(PathBuf::from)
        );
    }
}
