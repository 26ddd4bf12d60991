//! The images of a cluster: the agent's, and those of what its pods run besides.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::image::archive::Image;
use crate::image::files::{Files, Mode};
use crate::image::{self, layer};
use crate::lab::Profile;

/// What of busybox is called by name.
const APPLETS: [&str; 7] = ["sh", "sleep", "timeout", "cat", "ip", "wget", "nslookup"];

/// Writes all of them into a folder.
pub fn write(node: &Path, coredns: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    image::write(Profile::Dev, "localhost/lb-agent:first", &folder.join("lb-agent.tar"))?;

    let mut files = Files::default();
    files.unpacked(node, Path::new("bin/busybox"))?;
    for applet in APPLETS {
        files.link(Path::new("bin").join(applet), "busybox");
    }
    files.add("etc/passwd", Mode::Data, b"root:x:0:0:root:/:/bin/sh\n".into());
    files.add("etc/nsswitch.conf", Mode::Data, b"hosts: files dns\n".into());
    // Without arguments it is what keeps a pod's namespaces.
    save(&files, "busybox", "/bin/sleep", &["infinity"], folder)?;

    let mut files = Files::default();
    files.unpacked(node, Path::new("usr/sbin/nginx"))?;
    files.add(
        "etc/passwd",
        Mode::Data,
        b"root:x:0:0:root:/:/\nnobody:x:65534:65534::/:/\n".into(),
    );
    files.add(
        "etc/group",
        Mode::Data,
        b"root:x:0:\nnobody:x:65534:\nnogroup:x:65534:\n".into(),
    );
    // nginx makes only the last of its folders itself.
    files.add("var/lib/nginx/README", Mode::Data, b"Bodies of requests\n".into());
    save(
        &files,
        "nginx",
        "/usr/sbin/nginx",
        &["-e", "stderr", "-g", "daemon off;"],
        folder,
    )?;

    let mut files = Files::default();
    files.copy(Path::new("usr/bin/coredns"), coredns, Mode::Program)?;
    save(&files, "coredns", "/usr/bin/coredns", &[], folder)
}

fn save(files: &Files, name: &'static str, program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let image = Image {
        name: &format!("localhost/{name}:cluster"),
        program,
        arguments,
        path: "/usr/sbin:/usr/bin:/sbin:/bin",
        labels: json!({ "org.opencontainers.image.title": name }),
        layers: vec![layer::pack(name, files)?],
    };
    image::save(&image, &folder.join(format!("{name}.tar"))).map(drop)
}
