//! A link without Ethernet header between two namespaces, as WireGuard or a VPN makes one: two tun devices, and two
//! threads that carry packets from each to the other.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::netlink::{Cidr, Link};
use crate::netns::Netns;

/// What both ends are called.
pub const NAME: &str = "tun0";
/// How long a thread takes to notice that it is not needed any more.
const PATIENCE_MS: u16 = 50;

/// The link. Dropping it removes both ends.
#[derive(Debug)]
pub struct Tun {
    stop: Arc<AtomicBool>,
    carriers: Vec<JoinHandle<()>>,
}

impl Tun {
    /// Makes the link, with the given addresses on either end, up.
    pub fn between(ends: [(&Netns, &[Cidr]); 2]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let [a, b] = ends.map(|(netns, addresses)| open(netns, addresses));
        let (a, b) = (a?, b?);
        let carriers = vec![
            carry(a.try_clone()?, b.try_clone()?, Arc::clone(&stop)),
            carry(b, a, Arc::clone(&stop)),
        ];
        Ok(Self { stop, carriers })
    }

    /// One end.
    pub fn end(netns: &Netns) -> Result<Link> {
        netns.netlink()?.link(NAME)
    }
}

impl Drop for Tun {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for carrier in self.carriers.drain(..) {
            // One that panicked has said so already.
            let _ = carrier.join();
        }
    }
}

fn open(netns: &Netns, addresses: &[Cidr]) -> Result<File> {
    let file = netns
        .run(create)?
        .with_context(|| format!("making a tun in {}", netns.name()))?;
    let netlink = netns.netlink()?;
    let link = netlink.link(NAME)?.index;
    for address in addresses {
        netlink.add_address(link, *address)?;
    }
    netlink.up(link)?;
    Ok(file)
}

/// The device belongs to the namespace of the thread that opens it.
fn create() -> Result<File> {
    let path = "/dev/net/tun";
    let file = OpenOptions::new().read(true).write(true).open(path).context(path)?;
    // SAFETY: all zeros is a value of this struct of integers and unions of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(NAME.bytes()) {
        *to = from.cast_signed();
    }
    // No header before the packet, not even the four bytes of tun's own.
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI)?;
    // SAFETY: the request lives across the call, and the kernel reads and writes no more than it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("TUNSETIFF");
    }
    Ok(file)
}

fn carry(mut from: File, mut to: File, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut packet = vec![0; 65536];
        while !stop.load(Ordering::Relaxed) {
            let mut ready = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut ready, PollTimeout::from(PATIENCE_MS)), Ok(1..)) {
                continue;
            }
            // A link that is down or full loses packets, as links do.
            if let Ok(length) = from.read(&mut packet) {
                let _ = to.write_all(&packet[..length]);
            }
        }
    })
}
