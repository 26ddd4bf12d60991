//! The agent's short commands, with nothing but the image around them.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use lb_tests::bpffs::Bpffs;
use lb_tests::container::{Capability, RootFs};
use lb_tests::netns::Netns;

use crate::archive::Image;
use crate::node::shipped;

/// Every tool of iptables that a kube-proxy may have used.
const TOOLS: [&str; 4] = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"];
/// Chains of kube-proxy's with what its rules are made of, and a chain of somebody else.
const CHAINS: &str = "\
*nat
:CNI-OTHER - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A CNI-OTHER -m addrtype --dst-type LOCAL -j RETURN
-A KUBE-SERVICES -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
";

fn run(capabilities: &[Capability], args: &[&str]) -> Output {
    let image = Image::open();
    let rootfs = RootFs::unpack(image.layers()).unwrap();
    let launcher = rootfs.launcher(capabilities).unwrap();
    let mut command = Command::new(&launcher[0]);
    command.args(&launcher[1..]).arg("lb-agent").args(args);
    command.output().unwrap()
}

#[test]
fn it_says_its_version() {
    let output = run(&[], &["version"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = concat!("lb-agent ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn it_probes_the_node() {
    let rights = [
        Capability::NetAdmin,
        Capability::Perfmon,
        Capability::Bpf,
        // For a network namespace to try it in, and to reach the file system of this test.
        Capability::SysAdmin,
        Capability::SysPtrace,
    ];
    let bpffs = Bpffs::new().unwrap();
    let output = run(
        &rights,
        &["probe", "--plane", "ebpf", "--bpffs", bpffs.path().to_str().unwrap()],
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("ebpf can be run"), "{said}");
    assert!(said.contains("ebpf would serve"), "{said}");
}

#[test]
fn it_is_told_which_rights_it_lacks() {
    let output = run(&[Capability::NetAdmin], &["probe", "--plane", "ebpf"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && said.contains("CAP_BPF"), "{said}");
}

#[test]
fn each_of_the_shipped_rights_is_needed() {
    for missing in shipped() {
        let rest: Vec<_> = shipped().into_iter().filter(|right| *right != missing).collect();
        let output = run(&rest, &["probe", "--plane", "ebpf"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success(), "{missing:?}: {said}");
        let refused: Vec<_> = said.lines().filter(|line| line.contains("× capabilities")).collect();
        let named = |right: &Capability| refused.concat().contains(&format!("CAP_{}", right.name()));
        assert!(named(&missing), "{missing:?}: {said}");
        assert!(!rest.iter().any(named), "{missing:?}: {said}");
    }
}

#[test]
fn it_cleans_up_after_a_kube_proxy_with_the_tools_of_the_image() {
    let netns = Netns::new("node").unwrap();
    let here = |program: &str, args: &[&str], input: &str| -> String {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = netns.run(|| command.spawn().unwrap()).unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program} {args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for tool in TOOLS {
        here(&format!("{tool}-restore"), &["--noflush"], CHAINS);
    }
    here("nft", &["-f", "-"], "add table ip kube-proxy\nadd table ip foreign\n");
    here(
        "ipset",
        &["create", "KUBE-NODE-PORT-TCP", "bitmap:port", "range", "0-65535"],
        "",
    );
    here("ipset", &["create", "OTHER", "bitmap:port", "range", "0-65535"], "");

    let cleanup = |rights: &[Capability]| netns.run(|| run(rights, &["cleanup", "--kube-proxy"])).unwrap();
    let mut rights = shipped();
    let refused = cleanup(&rights);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    for tool in ["iptables-legacy", "ip6tables-legacy"] {
        assert!(told.contains(&format!("{tool}: {tool}-save: ")), "{told}");
    }
    assert!(told.contains("Permission denied"), "{told}");

    // The legacy tools of iptables ask the kernel by a raw socket.
    rights.push(Capability::NetRaw);
    let output = cleanup(&rights);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!said.contains("there is no program"), "{said}");
    for tool in TOOLS {
        let left = here(&format!("{tool}-save"), &[], "");
        assert!(left.contains("CNI-OTHER") && !left.contains("KUBE-"), "{tool}: {left}");
    }
    let tables = here("nft", &["list", "tables"], "");
    assert!(
        tables.contains("table ip foreign") && !tables.contains("kube-proxy"),
        "{tables}"
    );
    assert_eq!(here("ipset", &["list", "-name"], ""), "OTHER\n");
}

#[test]
fn it_knows_certificate_authorities() {
    let image = Image::open();
    let rootfs = RootFs::unpack(image.layers()).unwrap();
    let bundle = fs::read_to_string(rootfs.path().join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    assert!(bundle.matches("-----BEGIN CERTIFICATE-----").count() > 50);
}
