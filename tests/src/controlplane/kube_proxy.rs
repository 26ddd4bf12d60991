//! The real kube-proxy on a node of a network, for comparisons.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::ControlPlane;
use super::server::tail_of;
use super::tools::{Tools, tools_dir};
use crate::interrupt::{Interrupted, eventually};
use crate::network::Node;
use crate::owner::Folder;
use crate::patience::patient;
use crate::process;

/// How long it may take to write its rules for the first time. Two cores may be building and testing.
const READY: Duration = Duration::from_secs(90);
/// How long it may take to end.
const STOP: Duration = Duration::from_secs(5);
/// Where it serves its metrics unless told otherwise, in the namespace it is in.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// Says of each family when its rules were last written, in seconds since 1970; 0 if never.
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// Which part of the kernel it makes Services with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Tables of nftables.
    Nftables,
    /// Chains of iptables.
    Iptables,
    /// Virtual services of IPVS, and chains of iptables beside them.
    Ipvs,
}

impl Mode {
    /// The word for it in kube-proxy's configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// Which programs of iptables it calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IptablesTools {
    /// Those that the system has under these names.
    OfTheSystem,
    /// Those that write the kernel's own tables of iptables.
    Legacy,
    /// Those that write tables of nftables.
    Nft,
}

impl IptablesTools {
    /// The programs that it calls, by the names that the variants of each have.
    const PROGRAMS: [(&'static str, &'static str); 3] = [
        ("iptables", ""),
        ("iptables-save", "-save"),
        ("iptables-restore", "-restore"),
    ];

    /// The part of a program's name that says which variant it is.
    const fn variant(self) -> Option<&'static str> {
        match self {
            Self::OfTheSystem => None,
            Self::Legacy => Some("legacy"),
            Self::Nft => Some("nft"),
        }
    }

    /// The name of the program of this variant that prints rules of IPv4.
    #[must_use]
    pub fn save(self) -> String {
        match self.variant() {
            None => "iptables-save".to_owned(),
            Some(variant) => format!("iptables-{variant}-save"),
        }
    }

    /// Makes a folder in which the usual names lead to these. None where they do so anyway.
    fn link(self, folder: &Folder) -> Result<Option<PathBuf>> {
        let Some(variant) = self.variant() else {
            return Ok(None);
        };
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).with_context(|| format!("making {}", bin.display()))?;
        for version in ["", "6"] {
            for (name, suffix) in Self::PROGRAMS {
                let name = name.replacen("ip", &format!("ip{version}"), 1);
                let original = system_program(&format!("ip{version}tables-{variant}{suffix}"))?;
                symlink(&original, bin.join(&name)).with_context(|| format!("making the link {name}"))?;
            }
        }
        Ok(Some(bin))
    }
}

/// How it is configured. What is not here has kube-proxy's own default, but for what a namespace does not allow.
#[derive(Clone, Debug)]
pub struct KubeProxyOptions {
    /// `mode`.
    pub mode: Mode,
    /// What it calls in iptables mode.
    pub tools: IptablesTools,
    /// `detectLocalMode`: how it tells pods of this node, or of the cluster, from others.
    pub detect_local_mode: String,
    /// `clusterCIDR`: what `detectLocalMode: ClusterCIDR` compares with.
    pub cluster_cidr: String,
    /// `detectLocal.bridgeInterface`.
    pub bridge_interface: String,
    /// `detectLocal.interfaceNamePrefix`.
    pub interface_name_prefix: String,
    /// `nodePortAddresses`.
    pub node_port_addresses: Vec<String>,
}

impl KubeProxyOptions {
    /// In this mode, with the tools of the system, pods being those at addresses of the node's own network.
    pub fn in_mode(mode: Mode) -> Self {
        Self {
            mode,
            tools: match mode {
                Mode::Nftables | Mode::Iptables => IptablesTools::OfTheSystem,
                // Beside IPVS it calls iptables too, and a machine that is made for tests has the legacy ones.
                Mode::Ipvs => IptablesTools::Legacy,
            },
            detect_local_mode: "NodeCIDR".to_owned(),
            cluster_cidr: String::new(),
            bridge_interface: String::new(),
            interface_name_prefix: String::new(),
            node_port_addresses: Vec::new(),
        }
    }
}

/// A running kube-proxy. Dropping it ends it; its rules stay until its namespace goes.
#[derive(Debug)]
pub struct KubeProxy {
    child: Child,
    folder: Folder,
}

impl KubeProxy {
    /// Starts it on a node and waits until it has written the rules of both families.
    ///
    /// It writes nothing before it has the complete lists, so objects that are there before it starts are in its rules
    /// when this returns.
    pub fn start(node: &Node, cluster: &ControlPlane, options: &KubeProxyOptions) -> Result<Self> {
        let mut proxy = Self::spawn(node, cluster, options)?;
        proxy.wait_synced(node, READY)?;
        Ok(proxy)
    }

    /// Starts it without waiting.
    pub fn spawn(node: &Node, cluster: &ControlPlane, options: &KubeProxyOptions) -> Result<Self> {
        let folder = Folder::new()?;
        let config = folder.path().join("config.json");
        // JSON is YAML.
        fs::write(&config, configuration(node, cluster, options).to_string())
            .with_context(|| format!("writing {}", config.display()))?;
        let log = File::create(log_path(&folder)).context("making kube-proxy's log")?;
        let mut command = Command::new(Tools::kube_proxy(&tools_dir())?);
        command
            .arg("--config")
            .arg(&config)
            // A machine's proxy has no way into our networks.
            .env("NO_PROXY", "*")
            .env("no_proxy", "*")
            // It calls nft and iptables, which are not in every user's PATH.
            .env("PATH", path(options.tools.link(&folder)?)?)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("duplicating a descriptor")?)
            .stderr(log);
        let child = process::spawn(command, node.netns(), Some(node.cgroup()))?;
        Ok(Self { child, folder })
    }

    /// Waits until it has written the rules of both families.
    pub fn wait_synced(&mut self, node: &Node, within: Duration) -> Result<()> {
        let synced = eventually(within, "rules of both families", || {
            if let Some(status) = self.child.try_wait().context("waiting for kube-proxy")? {
                bail!("it has ended: {}", process::ended(status));
            }
            let metrics = node.netns().run(metrics)?.unwrap_or_default();
            Ok(has_synced(&metrics).then_some(()))
        });
        match synced {
            // Its log is no answer to Ctrl-C.
            Err(error) if !error.is::<Interrupted>() => {
                let tail = tail_of(&self.log_path()).unwrap_or_default();
                Err(error.context(format!("kube-proxy on {} is not ready; its log:\n{tail}", node.name())))
            }
            result => result,
        }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it answers at `/metrics` on this node, which it has to run on.
    pub fn metrics(&self, node: &Node) -> Result<String> {
        let answer = node.netns().run(metrics)??;
        let (_, body) = answer
            .split_once("\r\n\r\n")
            .context("the head of the answer has no end")?;
        Ok(body.to_owned())
    }

    /// Where it logs to, as long as it runs.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        log_path(&self.folder)
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        if let Err(error) = process::stop(&mut self.child, STOP) {
            eprintln!("lb-tests: stopping kube-proxy: {error}");
        }
    }
}

/// Runs the program with arguments after which it ends by itself, and returns what it writes to standard output.
pub fn output(args: &[&std::ffi::OsStr]) -> Result<String> {
    let output = Command::new(Tools::kube_proxy(&tools_dir())?)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("running kube-proxy")?;
    if !output.status.success() {
        bail!("kube-proxy {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn log_path(folder: &Folder) -> PathBuf {
    folder.path().join("kube-proxy.log")
}

fn configuration(node: &Node, cluster: &ControlPlane, options: &KubeProxyOptions) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": options.mode.word(),
        "clientConnection": { "kubeconfig": cluster.kubeconfig_kube_proxy() },
        "hostnameOverride": node.name(),
        "detectLocalMode": options.detect_local_mode,
        "clusterCIDR": options.cluster_cidr,
        "detectLocal": {
            "bridgeInterface": options.bridge_interface,
            "interfaceNamePrefix": options.interface_name_prefix,
        },
        "nodePortAddresses": options.node_port_addresses,
        // These sysctls are the whole machine's, and read-only in a namespace.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        // When memory is short, this process may go before others.
        "oomScoreAdj": 0,
    })
}

/// The metrics of the kube-proxy in the namespace of the calling thread.
fn metrics() -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&METRICS, patient(Duration::from_secs(1)))?;
    stream.set_read_timeout(Some(patient(Duration::from_secs(5))))?;
    // Version 1.0 has no chunks, which could cut a line in two.
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn has_synced(metrics: &str) -> bool {
    ["IPv4", "IPv6"].iter().all(|family| {
        let gauge = format!("{LAST_SYNC}{{ip_family=\"{family}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&gauge));
        value
            .and_then(|value| value.trim().parse::<f64>().ok())
            .is_some_and(|seconds| seconds > 0.0)
    })
}

/// Where system programs are, which is not in every user's PATH.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The PATH for it, with a folder before all others.
fn path(first: Option<PathBuf>) -> Result<std::ffi::OsString> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::split_paths(&own);
    let folders = first.into_iter().chain(own).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    std::env::join_paths(folders).context("joining the folders of PATH")
}

fn system_program(name: &str) -> Result<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&own).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("there is no program {name}: it is in the package iptables"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_names_lead_to_the_tools_that_are_wanted() {
        let folder = Folder::new().unwrap();
        let bin = IptablesTools::Legacy.link(&folder).unwrap().unwrap();
        let original = fs::read_link(bin.join("ip6tables-restore")).unwrap();
        assert_eq!(original.file_name().unwrap(), "ip6tables-legacy-restore");
        let path = path(Some(bin.clone())).unwrap();
        assert_eq!(std::env::split_paths(&path).next(), Some(bin));
        assert_eq!(IptablesTools::OfTheSystem.link(&folder).unwrap(), None);
        assert_eq!(IptablesTools::Nft.save(), "iptables-nft-save");
    }

    #[test]
    fn it_has_synced_when_both_families_have() {
        let line = |family, seconds| format!("{LAST_SYNC}{{ip_family=\"{family}\"}} {seconds}\n");
        assert!(!has_synced(""));
        assert!(!has_synced(&line("IPv4", "1.7e+09")));
        assert!(!has_synced(&(line("IPv4", "1.7e+09") + &line("IPv6", "0"))));
        assert!(has_synced(&(line("IPv4", "1.7e+09") + &line("IPv6", "1.7e+09"))));
    }
}
