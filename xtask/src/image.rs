//! `cargo xtask image`: the OCI image of the agent, without a container daemon.
//!
//! It holds what `lb-agent` calls and reads, and nothing else: the agent, the programs that it calls, the libraries of all,
//! the certificate authorities of Debian's package. The same inputs make the same bytes: no time is in it, so that there is
//! nothing for `SOURCE_DATE_EPOCH` to say, and names are sorted.

pub mod archive;
pub mod files;
pub mod layer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::lab::{self, Profile};
use crate::packages;
use crate::run::{self, Step};
use crate::{build_ebpf, setup, workspace};
use archive::Image;
use files::{Files, Mode};

/// Where the agent is in the image.
const AGENT: &str = "usr/bin/lb-agent";
/// Where it finds the tools in the image, and others find it.
const PATH: &str = "/usr/sbin:/usr/bin";

const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
const STRIP_LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `image`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The archive to write [default: target/image/lb-agent-VERSION.tar]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Repository and tag, under which a container runtime knows the image once it has imported it
    #[arg(long, value_name = "NAME:TAG", default_value = concat!("localhost/lb-agent:", env!("CARGO_PKG_VERSION")), value_parser = parse_tag)]
    tag: String,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    let tools = setup::bpf_tools()?;
    build_ebpf::build(&tools, build_ebpf::Kind::Usual)?;
    let mut cargo = workspace::cargo("build");
    cargo.args(["--release", "-p", "lb-agent"]);
    if !run::show(&mut cargo, BUILD_LIMIT)?.success() {
        bail!("lb-agent does not build; the messages are above");
    }
    let output = match &args.output {
        Some(output) => output.clone(),
        None => folder()?.join(format!("lb-agent-{}.tar", env!("CARGO_PKG_VERSION"))),
    };
    let digest = write(Profile::Release, &args.tag, &output)?;
    println!(
        "{}",
        output.strip_prefix(workspace::root()).unwrap_or(&output).display()
    );
    println!("{digest}");
    run::say(
        "Bring it to a node by `ctr -n k8s.io images import FILE`, `podman load -i FILE` or `docker load -i FILE`, to a \
         registry by `skopeo copy oci-archive:FILE docker://NAME:TAG`.",
    );
    Ok(())
}

/// Writes the image of an agent that is built, and returns the digest of its manifest.
pub fn write(profile: Profile, name: &str, output: &Path) -> Result<String> {
    setup::packages(&packages::IMAGE)?;
    let agent = stripped(&lab::program("lb-agent", profile)?)?;
    let mut base = files::base()?;
    base.libraries(&agent)?;
    let mut top = Files::default();
    top.copy(Path::new(AGENT), &agent, Mode::Program)?;

    // What changes with each build is a layer of its own, and the rest is fetched once.
    let image = Image {
        name,
        program: &format!("/{AGENT}"),
        arguments: &["run"],
        path: PATH,
        labels: labels(),
        layers: vec![
            layer::pack("programs, libraries and certificate authorities", &base)?,
            layer::pack("lb-agent", &top)?,
        ],
    };
    save(&image, output)
}

/// Writes an image to a file, and returns the digest of its manifest.
pub fn save(image: &Image<'_>, output: &Path) -> Result<String> {
    if let Some(folder) = output.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let (bytes, digest) = image.archive()?;
    fs::write(output, bytes).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(digest)
}

/// As people and registries read them.
fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "lb-agent",
        "org.opencontainers.image.description": "Kubernetes Services on a node, in BPF or IPVS",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
    })
}

/// Where images go to.
pub fn folder() -> Result<PathBuf> {
    Ok(workspace::target_dir()?.join("image"))
}

/// A copy without debug information, which is most of the program and of use to nobody on a node.
fn stripped(program: &Path) -> Result<PathBuf> {
    let folder = folder()?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let profile = program.parent().and_then(Path::file_name).unwrap_or_default();
    let copy = folder.join(format!("lb-agent-{}", profile.display()));
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "-o"]).arg(&copy).arg(program);
    Step::new("taking the debug information off the agent", STRIP_LIMIT)
        .hint("`strip` belongs to the package binutils, as the linker does.")
        .ask(&mut strip)?;
    Ok(copy)
}

/// A name without a tag would be imported under one that no DaemonSet names.
fn parse_tag(text: &str) -> Result<String, String> {
    let tag = text.rsplit('/').next().and_then(|last| last.split_once(':'));
    match tag {
        Some((repository, tag)) if !repository.is_empty() && !tag.is_empty() => Ok(text.to_owned()),
        _ => Err("a repository and a tag, such as localhost/lb-agent:0.1.0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_tag_is_refused() {
        assert!(parse_tag("localhost/lb-agent:0.1.0").is_ok());
        assert!(parse_tag("registry.example:5000/a/lb-agent:0.1.0").is_ok());
        for name in ["lb-agent", "lb-agent:", "registry.example:5000/lb-agent", "x/:1"] {
            assert!(parse_tag(name).is_err(), "{name}");
        }
    }
}
