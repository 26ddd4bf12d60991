//! The agent's short commands, with nothing but the image around them.

use std::fs;
use std::process::{Command, Output};

use lb_tests::bpffs::Bpffs;
use lb_tests::container::{Capability, RootFs};

use crate::archive::Image;

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
fn it_knows_certificate_authorities() {
    let image = Image::open();
    let rootfs = RootFs::unpack(image.layers()).unwrap();
    let bundle = fs::read_to_string(rootfs.path().join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    assert!(bundle.matches("-----BEGIN CERTIFICATE-----").count() > 50);
}
