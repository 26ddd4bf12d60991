//! The BPF programs: one line an entry point, the work in the modules.
//!
//! A packet of a client is translated where it comes in from the client's link ([`forward`]), the
//! answer where it goes out to that link ([`reverse`]). What lies between, netfilter, connection
//! tracking, policies, bridges, sees client and backend only.
#![no_std]
#![no_main]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "a key passed by value is copied, on a stack of 512 bytes"
)]
#![allow(missing_docs, reason = "the macros of aya-ebpf generate items without documentation")]

mod affinity;
mod checksum;
mod client;
mod config;
mod counter;
mod event;
mod family;
mod flow;
mod forward;
mod fragment;
mod icmp;
mod maps;
mod masquerade;
mod opaque;
mod packet;
mod peek;
mod reject;
mod reverse;
mod rewrite;
mod sctp;
mod service;
mod socket;
mod stage;
mod trace;
mod verdict;
mod vlan;

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr, classifier},
    programs::{SockAddrContext, SockContext, TcContext},
};

use crate::{
    client::Link,
    family::{V4, V6},
    packet::link_header::{ETHERNET, NONE},
};

/// Packets that a pod of this node sends.
#[classifier]
fn from_pod(ctx: TcContext) -> i32 {
    forward::packet::<ETHERNET>(&ctx.skb, Link::Pod)
}

/// The same, where packets have no link header: netkit in its default mode.
#[classifier]
fn from_pod_l3(ctx: TcContext) -> i32 {
    forward::packet::<NONE>(&ctx.skb, Link::Pod)
}

/// Packets that come to this node from an uplink or a tunnel.
#[classifier]
fn from_outside(ctx: TcContext) -> i32 {
    forward::packet::<ETHERNET>(&ctx.skb, Link::Outside)
}

/// The same, where packets have no link header: WireGuard, IP in IP, tun.
#[classifier]
fn from_outside_l3(ctx: TcContext) -> i32 {
    forward::packet::<NONE>(&ctx.skb, Link::Outside)
}

/// Packets that go out to a link, whichever.
#[classifier]
fn to_link(ctx: TcContext) -> i32 {
    reverse::packet::<ETHERNET>(&ctx.skb)
}

/// The same, where packets have no link header.
#[classifier]
fn to_link_l3(ctx: TcContext) -> i32 {
    reverse::packet::<NONE>(&ctx.skb)
}

#[cgroup_sock_addr(connect4)]
fn connect4(ctx: SockAddrContext) -> i32 {
    socket::connect::<V4>(&ctx)
}

#[cgroup_sock_addr(connect6)]
fn connect6(ctx: SockAddrContext) -> i32 {
    socket::connect::<V6>(&ctx)
}

#[cgroup_sock_addr(sendmsg4)]
fn sendmsg4(ctx: SockAddrContext) -> i32 {
    socket::send::<V4>(&ctx)
}

#[cgroup_sock_addr(sendmsg6)]
fn sendmsg6(ctx: SockAddrContext) -> i32 {
    socket::send::<V6>(&ctx)
}

#[cgroup_sock_addr(recvmsg4)]
fn recvmsg4(ctx: SockAddrContext) -> i32 {
    socket::receive::<V4>(&ctx)
}

#[cgroup_sock_addr(recvmsg6)]
fn recvmsg6(ctx: SockAddrContext) -> i32 {
    socket::receive::<V6>(&ctx)
}

#[cgroup_sock_addr(getpeername4)]
fn getpeername4(ctx: SockAddrContext) -> i32 {
    socket::peer_name::<V4>(&ctx)
}

#[cgroup_sock_addr(getpeername6)]
fn getpeername6(ctx: SockAddrContext) -> i32 {
    socket::peer_name::<V6>(&ctx)
}

#[cgroup_sock(sock_release)]
fn sock_release(ctx: SockContext) -> i32 {
    socket::release(&ctx)
}

/// Nothing here panics, and `build-ebpf` checks the object for it: the verifier would refuse the
/// endless loop.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers that matter are for GPL-compatible programs only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
