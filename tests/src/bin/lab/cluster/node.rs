//! The node: containerd with the CNI plugin `bridge`, and a kubelet.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::controlplane::{ControlPlane, Detached, NODE};
use lb_tests::interrupt;
use serde_json::json;

use super::network::{NODE_V4, NODE_V6};

const SOCKET: &str = "/run/containerd/containerd.sock";
/// The image that keeps a pod's namespaces.
const PAUSE: &str = "localhost/busybox:cluster";
/// Names of the agent's image before and after an upgrade.
pub(super) const AGENT_TAGS: [&str; 2] = ["first", "second"];
const READY_WITHIN: Duration = Duration::from_secs(120);

/// What `cargo xtask` has brought and says in the environment.
pub(super) fn from_xtask(variable: &str) -> Result<PathBuf> {
    let path = env::var_os(variable).with_context(|| format!("`cargo xtask cluster` sets {variable}"))?;
    Ok(path.into())
}

/// Starts both, and waits until the node is ready.
pub(super) fn start(control_plane: &ControlPlane, folder: &Path) -> Result<()> {
    let programs = Programs {
        root: from_xtask("LB_NODE_PROGRAMS")?,
    };
    let containerd = start_containerd(&programs, folder)?;
    interrupt::eventually(READY_WITHIN, "containerd starts", || {
        containerd.check()?;
        Ok(Path::new(SOCKET).exists().then_some(()))
    })?;
    import(&programs)?;
    let kubelet = start_kubelet(control_plane, &programs, folder)?;
    interrupt::eventually(READY_WITHIN, "the node becomes ready", || {
        kubelet.check()?;
        containerd.check()?;
        let wait = ["wait", "--for=condition=Ready", "--timeout=1s"];
        let node = format!("node/{NODE}");
        Ok(control_plane.kubectl(&[&wait[..], &[&node]].concat()).ok())
    })?;
    Ok(())
}

/// Debian's packages, unpacked.
struct Programs {
    root: PathBuf,
}

impl Programs {
    fn command(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(self.root.join("usr/bin").join(name));
        let system = env::var_os("PATH").unwrap_or_default();
        let own = ["usr/sbin", "usr/bin", "sbin", "bin"].map(|folder| self.root.join(folder));
        command.env("PATH", join(own.into_iter().chain(env::split_paths(&system)))?);
        let triplet = format!("{}-linux-gnu", env::consts::ARCH);
        let libraries = ["lib", "usr/lib"].map(|folder| self.root.join(folder).join(&triplet));
        command.env("LD_LIBRARY_PATH", join(libraries)?);
        Ok(command)
    }
}

fn join(folders: impl IntoIterator<Item = PathBuf>) -> Result<OsString> {
    env::join_paths(folders).context("a path has a colon")
}

fn start_containerd(programs: &Programs, folder: &Path) -> Result<Detached> {
    let plugins = folder.join("cni");
    fs::create_dir_all(&plugins).with_context(|| format!("making {}", plugins.display()))?;
    let network = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni-ipam",
                "ranges": [[{ "subnet": "10.244.0.0/24" }], [{ "subnet": "fd00:244::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            },
        }],
    });
    write(&plugins.join("pods.conflist"), &network.to_string())?;
    let config = format!(
        "version = 2
root = {root:?}
state = \"/run/containerd\"
disabled_plugins = [\"io.containerd.internal.v1.opt\"]
[grpc]
address = \"{SOCKET}\"
[plugins.\"io.containerd.grpc.v1.cri\"]
sandbox_image = \"{PAUSE}\"
# Who starts this may lack the right to make a process more precious than itself.
restrict_oom_score_adj = true
[plugins.\"io.containerd.grpc.v1.cri\".cni]
bin_dir = {bin:?}
conf_dir = {plugins:?}
",
        root = folder.join("containerd"),
        bin = programs.root.join("usr/lib/cni"),
    );
    let file = folder.join("containerd.toml");
    write(&file, &config)?;
    let mut command = programs.command("containerd")?;
    command.arg("--config").arg(file);
    Detached::start("containerd", command, folder)
}

/// Imports all images, and gives the agent's its second name.
fn import(programs: &Programs) -> Result<()> {
    let images = from_xtask("LB_IMAGES")?;
    for entry in fs::read_dir(&images).with_context(|| format!("reading {}", images.display()))? {
        let path = entry.context("reading a folder")?.path();
        let mut command = ctr(programs)?;
        run(command.arg("import").arg(&path))?;
    }
    let [first, second] = AGENT_TAGS.map(|tag| format!("localhost/lb-agent:{tag}"));
    let mut command = ctr(programs)?;
    run(command.args(["tag", &first, &second]))
}

fn ctr(programs: &Programs) -> Result<Command> {
    let mut command = programs.command("ctr")?;
    command.args(["--address", SOCKET, "--namespace", "k8s.io", "images"]);
    Ok(command)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().context("starting ctr")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

fn start_kubelet(control_plane: &ControlPlane, programs: &Programs, folder: &Path) -> Result<Detached> {
    let own = folder.join("kubelet");
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
            "x509": { "clientCAFile": control_plane.authority()? },
        },
        // Whoever has a certificate is the administrator.
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupDriver": "cgroupfs",
        // Machines with version 1 are good enough to look at services.
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "volumePluginDir": own.join("plugins"),
        "podLogsDir": folder.join("pods"),
        // However full this machine's disk is, it is not for this cluster to make room.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": false,
        "enforceNodeAllocatable": [],
        "kernelMemcgNotification": false,
    });
    let file = folder.join("kubelet.json");
    write(&file, &config.to_string())?;
    let mut command = control_plane.kubelet()?;
    command.arg("--config").arg(file).arg("--root-dir").arg(&own);
    command.arg("--cert-dir").arg(own.join("pki"));
    command.arg(format!("--node-ip={NODE_V4},{NODE_V6}"));
    // It calls programs of the machine, and finds those that containerd does too.
    for (name, value) in programs.command("kubelet")?.get_envs() {
        if name == "PATH" {
            command.env(name, value.unwrap_or_default());
        }
    }
    Detached::start("kubelet", command, folder)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
