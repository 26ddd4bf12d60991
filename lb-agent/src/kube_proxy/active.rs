//! Whether kube-proxy runs on this node.
//!
//! Its rules are no sign of it: they stay when it ends. Its process is, where this process sees those of the node
//! (outside of a container, or with `hostPID`), and so is what it answers at the port of its metrics, where no other
//! program answers with that group of settings. One that hides both is not found.

use std::{
    fmt, fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

/// How often to look.
pub const INTERVAL: Duration = Duration::from_secs(30);
/// Its name as the kernel has it.
const NAME: &str = "kube-proxy";
/// Where it serves its metrics unless it is told otherwise, and its configuration with them.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// The name of the configuration in the answer.
const GROUP: &str = "\"kubeproxy.config.k8s.io\"";
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How much of an answer is read, in bytes. The whole configuration is about 3 kB.
const ANSWER: u64 = 64 * 1024;

/// What tells that it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// There is its process.
    Process(u32),
    /// Its configuration is answered here.
    Answer(SocketAddr),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Answer(address) => write!(f, "it answers at {address}"),
        }
    }
}

/// Looks in the network namespace of this thread. May take two seconds.
#[must_use]
pub fn look() -> Option<Evidence> {
    process()
        .map(Evidence::Process)
        .or_else(|| matches!(answers(METRICS), Ok(true)).then_some(Evidence::Answer(METRICS)))
}

/// A process of that name in this network namespace.
fn process() -> Option<u32> {
    let here = fs::read_link("/proc/thread-self/ns/net").ok()?;
    let processes = fs::read_dir("/proc").ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // One that ends meanwhile has no files any more.
    pids.into_iter().find(|pid| {
        let folder = Path::new("/proc").join(pid.to_string());
        let is_named = fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim_end() == NAME);
        is_named && fs::read_link(folder.join("ns/net")).is_ok_and(|netns| netns == here)
    })
}

/// Whether somebody answers with kube-proxy's configuration.
fn answers(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // Version 1.0 has no chunks.
    stream.write_all(b"GET /configz HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).contains(GROUP))
}

#[cfg(test)]
mod tests {
    use std::{io::BufRead as _, io::BufReader, net::TcpListener, thread};

    use super::*;

    /// A server on loopback that answers one request with a body, once its path was asked for.
    fn server(body: &'static str) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "GET /configz HTTP/1.0");
            assert_eq!(lines.next().unwrap().unwrap(), "");
            write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}").unwrap();
        });
        address
    }

    #[test]
    fn kube_proxy_is_known_by_the_name_of_its_configuration() {
        assert!(answers(server("{\"kubeproxy.config.k8s.io\":{\"Mode\":\"iptables\"}}")).unwrap());
        assert!(!answers(server("{\"kubeletconfig\":{}}")).unwrap());
    }
}
