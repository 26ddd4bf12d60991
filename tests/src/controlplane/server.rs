//! The two servers and their command lines.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::interrupt;
use crate::patience::patient;

use super::Options;
use super::certs::{ADMIN, Certs};
use super::process::{self, Daemon, ProcessId, Tie};
use super::tools::Tools;

/// The cluster IPs of both families. Certificates know the first address of each.
const SERVICE_RANGE_V4: &str = "10.96.0.0/16";
const SERVICE_RANGE_V6: &str = "fd00:96::/112";
/// The API server's usual port, for namespaces where nobody else listens.
const USUAL_PORT: u16 = 6443;
/// Below the range of NodePorts and that of outgoing connections, so that nothing takes it while the server is down.
const FREE_PORTS: std::ops::Range<u16> = 20000..29000;
/// What the kernel takes as the path of a socket, less the zero at its end.
const SOCKET_PATH_MAX: usize = 107;

/// etcd and kube-apiserver. Dropping it ends them, unless they were let go.
#[derive(Debug)]
pub(super) struct Servers {
    tools: Tools,
    dir: PathBuf,
    certs: Certs,
    netns: Option<PathBuf>,
    address: IpAddr,
    port: u16,
    /// Whether the port is ours to change.
    port_chosen: bool,
    apiserver_args: Vec<String>,
    whole: bool,
    ready_within: Duration,
    tie: Tie,
    apiserver: Option<Daemon>,
    etcd: Option<Daemon>,
}

impl Servers {
    pub(super) fn new(tools: &Tools, dir: &Path, certs: Certs, options: &Options, tie: Tie) -> Result<Self> {
        let usual = options.netns.is_some().then_some(USUAL_PORT);
        let (port, port_chosen) = match options.port.or(usual) {
            Some(port) => (port, false),
            None => (free_port(options.address)?, true),
        };
        let servers = Self {
            tools: tools.clone(),
            dir: dir.to_owned(),
            certs,
            netns: options.netns.clone(),
            address: options.address,
            port,
            port_chosen,
            apiserver_args: options.apiserver_args.clone(),
            whole: options.whole,
            ready_within: options.ready_within,
            tie,
            apiserver: None,
            etcd: None,
        };
        let socket = servers.socket("etcd");
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            bail!(
                "{} is longer than the path of a socket may be ({SOCKET_PATH_MAX})",
                socket.display()
            );
        }
        Ok(servers)
    }

    pub(super) fn certs(&self) -> &Certs {
        &self.certs
    }

    pub(super) fn ready_within(&self) -> Duration {
        self.ready_within
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.address, self.port))
    }

    pub(super) fn etcd(&self) -> Option<&ProcessId> {
        self.etcd.as_ref().map(Daemon::id)
    }

    pub(super) fn apiserver(&self) -> Option<&ProcessId> {
        self.apiserver.as_ref().map(Daemon::id)
    }

    /// Leaves both running when this is dropped.
    pub(super) fn let_go(&mut self) {
        self.etcd = None;
        self.apiserver = None;
    }

    /// Starts etcd. It listens at sockets in our folder only, which need no port and let nobody else in.
    pub(super) fn start_etcd(&mut self) -> Result<()> {
        let mut command = Command::new(self.tools.etcd());
        command
            .args(["--name", "lb-test", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(self.dir.join("etcd"))
            .arg(option("--listen-client-urls=unix://", self.socket("etcd")))
            .arg(option("--listen-peer-urls=unix://", self.socket("etcd-peer")))
            // A cluster of one dials no peer, but insists on an address that looks like one.
            .arg("--initial-cluster=lb-test=http://127.0.0.1:2380")
            .arg("--initial-advertise-peer-urls=http://127.0.0.1:2380")
            .arg("--advertise-client-urls=http://127.0.0.1:2379")
            // A test's objects need not survive a power cut, and waiting for the disk is most of a write.
            .arg("--unsafe-no-fsync");
        // Not in the namespace: its sockets are files.
        self.etcd = Some(Daemon::spawn(command, &self.log("etcd"), None, self.tie)?);
        Ok(())
    }

    /// Waits until etcd serves. An API server that is started earlier waits longer than that between its attempts.
    pub(super) fn wait_for_etcd(&mut self, until: Instant) -> Result<()> {
        let socket = self.socket("etcd");
        // It makes the socket when it has elected itself and is ready to serve.
        while let Err(error) = UnixStream::connect(&socket) {
            self.check()?;
            if Instant::now() >= until {
                let limit = self.ready_within.as_secs();
                return Err(error).with_context(|| format!("etcd is not ready after {limit} s; {}", self.log_tail()));
            }
            interrupt::sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// Starts the API server without waiting for it, unless it runs.
    pub(super) fn start_apiserver(&mut self) -> Result<()> {
        if self.apiserver.is_some() {
            return Ok(());
        }
        // The first range is the cluster's first family, and the server's own address has to be of that one.
        let (first, second) = match self.address {
            IpAddr::V4(_) => (SERVICE_RANGE_V4, SERVICE_RANGE_V6),
            IpAddr::V6(_) => (SERVICE_RANGE_V6, SERVICE_RANGE_V4),
        };
        let mut command = Command::new(self.tools.apiserver());
        command
            .arg(option("--etcd-servers=unix://", self.socket("etcd")))
            .arg(format!("--bind-address={}", self.address))
            .arg(format!("--advertise-address={}", self.address))
            .arg(format!("--secure-port={}", self.port))
            .arg(format!("--service-cluster-ip-range={first},{second}"))
            .arg(option("--tls-cert-file=", self.certs.cert("apiserver")))
            .arg(option("--tls-private-key-file=", self.certs.key("apiserver")))
            .arg(option("--client-ca-file=", self.certs.ca()))
            .arg(option("--service-account-signing-key-file=", self.certs.key("tokens")))
            .arg(option("--service-account-key-file=", self.certs.tokens_public()))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg("--authorization-mode=RBAC")
            .arg("--allow-privileged=true")
            // Making its configuration objects is a good part of a first start.
            .arg("--enable-priority-and-fairness=false");
        if self.whole {
            command
                // A kubelet has the rights of its node by it.
                .arg("--authorization-mode=Node")
                // The name of a node is nowhere to be looked up.
                .arg("--kubelet-preferred-address-types=InternalIP")
                .arg(option("--kubelet-client-certificate=", self.certs.cert(ADMIN.file)))
                .arg(option("--kubelet-client-key=", self.certs.key(ADMIN.file)));
        } else {
            // Nothing makes the accounts that it would ask for, and Pods are to be created all the same.
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        if self.address.is_loopback() {
            // A loopback address is not allowed in an EndpointSlice: it would try and fail every ten seconds.
            command.arg("--endpoint-reconciler-type=none");
        }
        command.args(&self.apiserver_args);
        self.apiserver = Some(Daemon::spawn(
            command,
            &self.log("kube-apiserver"),
            self.netns.as_deref(),
            self.tie,
        )?);
        Ok(())
    }

    pub(super) fn stop_apiserver(&mut self) -> Result<()> {
        match self.apiserver.take() {
            Some(mut apiserver) => apiserver.stop().context("stopping kube-apiserver"),
            None => Ok(()),
        }
    }

    /// Fails if one of them has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        let mut ended = None;
        for (name, slot) in [("etcd", &mut self.etcd), ("kube-apiserver", &mut self.apiserver)] {
            if let Some(status) = slot.as_mut().map(Daemon::exited).transpose()?.flatten() {
                *slot = None;
                // etcd first: without it the other one ends too.
                ended = ended.or(Some((name, status)));
            }
        }
        match ended {
            Some((name, status)) => bail!("{name} ended ({status}); {}", self.log_tail()),
            None => Ok(()),
        }
    }

    /// Fails unless the API server accepts connections.
    pub(super) fn accepts(&self) -> Result<()> {
        let at = SocketAddr::new(self.address, self.port);
        process::in_netns(self.netns.as_deref(), || {
            TcpStream::connect_timeout(&at, patient(Duration::from_secs(2)))
        })?
        .map(drop)
        .with_context(|| format!("connecting to {at}"))
    }

    /// Whether the API server ended because somebody else listens at the port that was free when it was chosen; then
    /// another one has been chosen.
    pub(super) fn lost_its_port(&mut self) -> Result<bool> {
        let lost = self.apiserver.is_none()
            && self.port_chosen
            && tail_of(&self.log("kube-apiserver")).is_ok_and(|text| text.contains("address already in use"));
        if lost {
            self.port = free_port(self.address)?;
            // Its last words must not be taken for those of the next one.
            fs::remove_file(self.log("kube-apiserver")).context("removing a log")?;
        }
        Ok(lost)
    }

    /// The end of both logs, for errors.
    pub(super) fn log_tail(&self) -> String {
        let mut text = String::new();
        for name in ["etcd", "kube-apiserver"] {
            let path = self.log(name);
            text.push_str(&format!("the end of {}:\n", path.display()));
            match tail_of(&path) {
                Ok(tail) if tail.is_empty() => text.push_str("    (empty)\n"),
                Ok(tail) => tail.lines().for_each(|line| text.push_str(&format!("    {line}\n"))),
                Err(error) => text.push_str(&format!("    ({error})\n")),
            }
        }
        text
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for daemon in [&mut self.apiserver, &mut self.etcd].into_iter().flatten() {
            if let Err(error) = daemon.kill() {
                eprintln!("the control plane could not be stopped: {error:#}");
            }
        }
    }
}

fn option(name: &str, path: PathBuf) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// A port of [`FREE_PORTS`] at which nobody listens. Each process starts looking elsewhere, since they do it at once.
fn free_port(address: IpAddr) -> Result<u16> {
    let count = FREE_PORTS.end - FREE_PORTS.start;
    let first = random_below(count);
    (0..count)
        .map(|n| FREE_PORTS.start + (first + n) % count)
        .find(|port| TcpListener::bind((address, *port)).is_ok())
        .ok_or_else(|| {
            anyhow!("no port at {address} is free for the API server, or that is no address of this machine")
        })
}

/// A number below `count` that differs from call to call and from process to process.
fn random_below(count: u16) -> u16 {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new().hash_one(std::process::id()) % u64::from(count);
    // It is below a u16.
    random as u16
}

/// The last lines of a log, each cut to what a terminal can show.
pub(super) fn tail_of(path: &Path) -> io::Result<String> {
    const BYTES: u64 = 64 * 1024;
    const LINES: usize = 15;
    const COLUMNS: usize = 400;
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let cut = |line: &&str| line.chars().take(COLUMNS).collect::<String>();
    Ok(lines[lines.len().saturating_sub(LINES)..]
        .iter()
        .map(cut)
        .collect::<Vec<_>>()
        .join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_tail_is_the_last_lines() {
        let folder = crate::owner::Folder::new().unwrap();
        let file = folder.path().join("log");
        let text: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
        fs::write(&file, text).unwrap();
        let tail = tail_of(&file).unwrap();
        assert_eq!(tail.lines().count(), 15);
        assert!(tail.ends_with("line 19999"), "{tail}");
    }

    #[test]
    fn a_free_port_is_free() {
        let port = free_port(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert!(FREE_PORTS.contains(&port));
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
