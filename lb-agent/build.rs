//! Finds the BPF object that `plane::ebpf::object` embeds.

use std::{env, path::PathBuf, process::exit};

/// Names an object elsewhere, at build time.
const OVERRIDE: &str = "LB_EBPF_OBJECT";

fn main() {
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    println!("cargo::rerun-if-changed=build.rs");

    let object = match env::var_os(OVERRIDE) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf/lb-ebpf.o"),
    };
    println!("cargo::rerun-if-changed={}", object.display());
    match object.canonicalize() {
        Ok(path) => println!("cargo::rustc-env=LB_EBPF_EMBEDDED={}", path.display()),
        Err(error) => {
            println!(
                "cargo::error=the BPF object {} cannot be read ({error}): run `cargo xtask \
                 build-ebpf` first",
                object.display()
            );
            exit(1);
        }
    }
}
