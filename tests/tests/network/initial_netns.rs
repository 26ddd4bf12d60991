//! Programs for sockets that are told of no network namespace go by the one that the kernel began with: where a kernel
//! (before 5.14) has no way to tell the agent the number of its own.

use std::net::SocketAddr;
use std::path::Path;

use aya::maps::{Array, HashMap};
use aya::programs::{CgroupAttachMode, CgroupSockAddr};
use aya::{Ebpf, EbpfLoader};
use lb_common::{
    Address, AddressValue, BackendValue, Port, Range, ServiceKey, ServiceValue, Translation,
    address::EXTERNAL,
    backend::{IN_CLUSTER_SET, SERVING},
    config, maps,
    net::UDP,
};
use lb_tests::cgroup::Cgroup;
use lb_tests::kernel::Feature;
use lb_tests::netns::Netns;
use lb_tests::place::HostProcess;
use lb_tests::plane::{Plane, other_than};
use socket2::Type;

/// The object's own defaults, but for maps that need not be big; `connect4` is at the cgroup.
fn loaded(cgroup: &Cgroup) -> Ebpf {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bpf/lb-ebpf.o");
    let path = std::env::var("LB_EBPF_OBJECT").unwrap_or_else(|_| path.to_owned());
    let object = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}; run `cargo xtask build-ebpf`"));
    let mut loader = EbpfLoader::new();
    for map in [
        maps::SERVICES,
        maps::SLOTS,
        maps::BACKENDS,
        maps::FLOWS,
        maps::CONNECTED,
    ] {
        loader.map_max_entries(map, 64);
    }
    loader.override_global(config::NETNS_COOKIE, &config::INITIAL_NETNS, true);
    let has_set_retval = u32::from(Feature::SetRetval.is_there().unwrap());
    loader.override_global(config::HAS_SET_RETVAL, &has_set_retval, true);
    let mut ebpf = loader.load(&object).unwrap();
    let program: &mut CgroupSockAddr = ebpf.program_mut("connect4").unwrap().try_into().unwrap();
    program.load().unwrap();
    let folder = std::fs::File::open(cgroup.path()).unwrap();
    program.attach(folder, CgroupAttachMode::Single).unwrap();
    ebpf
}

/// One frontend with one backend.
fn serve(ebpf: &mut Ebpf, frontend: SocketAddr, backend: SocketAddr) {
    let mut backends: Array<_, BackendValue> = ebpf.map_mut(maps::BACKENDS).unwrap().try_into().unwrap();
    let value = BackendValue {
        service: 1,
        generation: 1,
        address: Address::from(backend.ip()),
        port: Port::new(backend.port()),
        state: SERVING,
        flags: IN_CLUSTER_SET,
    };
    backends.set(1, value, 0).unwrap();
    let mut slots: Array<_, u32> = ebpf.map_mut(maps::SLOTS).unwrap().try_into().unwrap();
    slots.set(0, 1, 0).unwrap();
    let mut services: HashMap<_, ServiceKey, ServiceValue> = ebpf.map_mut(maps::SERVICES).unwrap().try_into().unwrap();
    let range = Range { base: 0, count: 1 };
    let value = ServiceValue {
        service: 1,
        near: range,
        far: range,
        flags: 0,
        affinity: 0,
    };
    let key = ServiceKey::new(Address::from(frontend.ip()), Port::new(frontend.port()), UDP);
    services.insert(key, value, 0).unwrap();
    let mut addresses: HashMap<_, Address, AddressValue> = ebpf.map_mut(maps::ADDRESSES).unwrap().try_into().unwrap();
    let value = AddressValue { flags: EXTERNAL };
    addresses.insert(key.address, value, 0).unwrap();
}

#[test]
fn sockets_of_the_initial_network_namespace_are_translated_and_no_others() {
    if other_than(Plane::Ebpf, "programs go by the network namespace of a socket") {
        return;
    }
    let cgroup = Cgroup::new().unwrap();
    let mut ebpf = loaded(&cgroup);
    // Nobody is asked anything: a UDP socket is connected without a packet.
    let frontend: SocketAddr = "127.0.0.2:80".parse().unwrap();
    serve(&mut ebpf, frontend, "127.0.0.3:8080".parse().unwrap());
    let own = Netns::current().unwrap();
    // Where these tests themselves are in a namespace of their own, nobody here is in the initial one.
    let is_initial = Path::new("/proc/sys/net/core/netdev_max_backlog").exists();
    let other = Netns::new("other").unwrap();
    for (netns, expected) in [(&own, is_initial), (&other, false)] {
        let process = HostProcess::start(netns, &cgroup).unwrap();
        let socket = process.connect(Type::DGRAM, frontend).unwrap();
        let connected: HashMap<_, u64, Translation> = ebpf.map(maps::CONNECTED).unwrap().try_into().unwrap();
        assert_eq!(connected.keys().count(), usize::from(expected), "in {}", netns.name());
        let peer = socket.peer_addr().unwrap().as_socket().unwrap();
        assert_eq!(peer == frontend, !expected, "in {}", netns.name());
        // Without the program at `sock_release` the row stays.
        let mut connected: HashMap<_, u64, Translation> = ebpf.map_mut(maps::CONNECTED).unwrap().try_into().unwrap();
        let keys: Vec<_> = connected.keys().map(Result::unwrap).collect();
        keys.iter().for_each(|key| connected.remove(key).unwrap());
    }
}
