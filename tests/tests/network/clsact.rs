//! Kernels before 6.6 have no TCX: the plane then attaches to the clsact qdisc. This kernel has it, so the plane is
//! told to do without.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use aya::programs::TcAttachType;

use lb_agent::desired::{
    Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol as Transport, Route, ServicePort,
    ServicePortName, State, Target, Weight,
};
use lb_agent::kernel::links::{Link, LinkEvent, Role};
use lb_agent::plane::ebpf::{
    DEFAULT_TABLE_SIZE, EbpfOptions, EbpfPlane, LinkHooks, MapSizes, Masquerading, PodSockets, cleanup,
};
use lb_agent::plane::{LinkPlane as _, LinkState, Pace, Plane as _};
use lb_tests::client::{Client, Protocol};
use lb_tests::hooks;
use lb_tests::interrupt::eventually;
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::plane::{Plane, other_than};

use crate::fixture::{SOON, World, patiently};

const NODE_PORT: u16 = 30_001;
const SMALL: MapSizes = MapSizes {
    services: 1024,
    slots: 1024,
    backends: 1024,
    flows: 1024,
    sockets: 1024,
    affinity: 1024,
    source_ranges: 1024,
};

/// One backend behind a NodePort, in both families and protocols.
pub(crate) fn state(node: &Node, backend: &Pod) -> State {
    let route = Route {
        near: Target::Cluster,
        far: Target::Cluster,
        masquerade: Masquerade::WhereNeeded,
        restricted: false,
    };
    let mut services = BTreeMap::new();
    for address in backend.addresses() {
        for protocol in [Transport::Tcp, Transport::Udp] {
            let family = Family::of(address);
            let name = ServicePortName {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                port: String::new(),
                protocol,
                family,
            };
            let frontend = Frontend {
                address: FrontendAddress::NodePort(family),
                port: NODE_PORT.try_into().unwrap(),
                protocol,
            };
            let endpoint = Endpoint {
                on_node: false,
                cluster: true,
                local: false,
                weight: Weight::ONE,
            };
            let endpoints = BTreeMap::from([(SocketAddr::new(address, lb_tests::stage::TARGET), endpoint)]);
            services.insert(
                name,
                ServicePort {
                    frontends: BTreeMap::from([(frontend, route)]),
                    endpoints,
                    ..ServicePort::default()
                },
            );
        }
    }
    State {
        services,
        node_port_addresses: BTreeSet::from(node.addresses()),
        ..State::default()
    }
}

/// Starts a plane in the node's namespace, fills it and attaches it to the tunnel, the uplink and the pod's link. It works
/// on when it is dropped, as always.
pub(crate) fn serve(node: &Node, pod: &Pod, state: &State) {
    drop(served(node, pod, state, SMALL));
}

/// The same with maps of some size. Both sides of the plane come back.
fn served(node: &Node, pod: &Pod, state: &State, sizes: MapSizes) -> (EbpfPlane, LinkHooks) {
    let tunnel = node.netns().netlink().unwrap().link(plan::TUNNEL).unwrap();
    let links = [
        (&tunnel, Role::Tunnel),
        (node.uplink(), Role::Uplink),
        (pod.host_link(), Role::Pod),
    ];
    let serve = || {
        let (mut plane, mut hooks) = EbpfPlane::start(EbpfOptions {
            bpffs: node.bpffs().path(),
            cgroup: None,
            pod_sockets: PodSockets::Left,
            masquerading: Masquerading::ByPrograms,
            masquerade_mark: 0x4000,
            sizes,
            maglev_table: DEFAULT_TABLE_SIZE,
            drain: Duration::ZERO,
            force_clsact: true,
        })?;
        let outcome = plane.replace(state)?;
        assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
        for (link, role) in links {
            let event = LinkEvent::Is(Link {
                index: link.index,
                name: link.name.clone(),
                role,
                is_ip_only: false,
                is_by_rule: false,
                bridge: None,
            });
            assert_eq!(hooks.link(&event, Pace::Steady)?, LinkState::Served, "{}", link.name);
        }
        hooks.links_are_served();
        anyhow::Ok((plane, hooks))
    };
    node.netns().run(|| patiently(serve)).unwrap().unwrap()
}

#[track_caller]
pub(crate) fn answered(client: &Client, node: &Node) {
    for ip in node.addresses() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let answer = client.ask(protocol, (ip, NODE_PORT).into());
            assert_eq!(
                answer.map(|answer| answer.server),
                Ok("backend".to_owned()),
                "{protocol} to {ip}"
            );
        }
    }
}

#[test]
fn filters_serve_where_programs_cannot_be_attached_by_tcx_and_a_restart_replaces_them() {
    if other_than(Plane::Ebpf, "it serves by filters on links") {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let (node, outside) = (world.node1(), world.network.outside().client());
    let state = state(node, &backend);
    for _ in 0..2 {
        serve(node, &pod, &state);
        answered(&pod.client(), node);
        answered(&outside, node);
    }
    let cleanup = || patiently(|| cleanup(&node.bpffs().path()));
    let removed = node.netns().run(cleanup).unwrap().unwrap();
    let filters = removed.iter().filter(|what| what.contains("filter")).count();
    assert_eq!(filters, 6, "one for each direction of three links: {removed:#?}");
    let refused = outside.ask(Protocol::Tcp, (node.addresses()[0], NODE_PORT).into());
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn nothing_is_lost_when_maps_get_other_sizes_though_programs_are_filters() {
    if other_than(Plane::Ebpf, "it serves by filters on links") {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let (node, outside) = (world.node1(), world.network.outside().client());
    let state = state(node, &backend);
    let filters = || -> Vec<usize> {
        let links = [&*pod.host_link().name, &*node.uplink().name, plan::TUNNEL];
        let hooks = links.into_iter().flat_map(|link| {
            [TcAttachType::Ingress, TcAttachType::Egress].map(|direction| hooks::on(node, link, direction).unwrap())
        });
        hooks.map(|hook| hook.filters.len()).collect()
    };
    // Room for all that is asked: a table that is full forgets what is open.
    let of_size = |flows| MapSizes { flows, ..SMALL };
    drop(served(node, &pod, &state, of_size(16_384)));
    let mut open = Vec::new();
    for client in [&pod.client(), &outside] {
        for ip in node.addresses() {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let mut connection = client.connect(protocol, (ip, NODE_PORT).into()).unwrap();
                connection.ask("who").unwrap();
                open.push(connection);
            }
        }
    }
    for flows in [32_768, 16_384, 32_768] {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    answered(&outside, node);
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let _plane = served(node, &pod, &state, of_size(flows));
            let is_alone = || Ok((filters() == [1; 6]).then_some(()));
            let ended = eventually(SOON, "one filter on each hook", is_alone);
            over.store(true, Ordering::Relaxed);
            asking.join().unwrap();
            ended.unwrap();
        });
        for connection in &mut open {
            assert_eq!(connection.ask("still you?").unwrap().server, "backend", "{flows} flows");
        }
    }
}
