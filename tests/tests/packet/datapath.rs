//! The programs and maps of the object, loaded for one test, and small words to fill and read them.

use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr},
};

use aya::{
    Ebpf, EbpfLoader, TestRun as _, TestRunOptions,
    maps::{
        Array, HashMap, MapData, PerCpuArray, RingBuf,
        lpm_trie::{Key, LpmTrie},
    },
    programs::SchedClassifier,
};
use lb_common::{
    Address, AddressValue, AffinityKey, AffinityValue, BackendValue, Counter, Event, FlowKey, FlowValue, HeldFragment,
    Port, PrefixKey, Range, Scoped, ServiceKey, ServiceValue, SourceKey, Verdict,
    address::NODE_PORTS,
    backend::{IN_CLUSTER_SET, IN_LOCAL_SET, LOCAL, SERVING},
    config::{MASQUERADES, UDP_TIMEOUT},
    maps,
};

use crate::{Family, frame::Transport};

pub(crate) const PASS: i32 = -1;
pub(crate) const DROP: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;

/// Which program a packet goes through.
#[derive(Clone, Copy)]
pub(crate) enum Hook {
    PodIngress,
    OutsideIngress,
    Egress,
}

impl Hook {
    fn program(self) -> &'static str {
        match self {
            Self::PodIngress => "from_pod",
            Self::OutsideIngress => "from_outside",
            Self::Egress => "to_link",
        }
    }
}

/// A loaded data path, empty at first.
pub(crate) struct Datapath {
    /// Programs are loaded when they are first run: the verifier's time is most of a test's.
    ebpf: RefCell<Ebpf>,
    next_slot: u32,
    next_service: u32,
}

/// What became of a packet.
pub(crate) struct Outcome {
    pub(crate) verdict: i32,
    pub(crate) mark: u32,
    pub(crate) frame: Vec<u8>,
}

/// Offset of `mark` in the kernel's `__sk_buff`, and the size that the kernel takes a context for.
const MARK: std::ops::Range<usize> = 8..12;
const CONTEXT: usize = 192;

impl Datapath {
    pub(crate) fn new() -> Self {
        Self::with_udp_timeout(lb_common::config::DEFAULT_UDP_TIMEOUT)
    }

    pub(crate) fn with_udp_timeout(nanoseconds: u64) -> Self {
        Self::with(nanoseconds, 1)
    }

    /// What is masqueraded is left to the kernel.
    pub(crate) fn with_kernel_masquerade() -> Self {
        Self::with(lb_common::config::DEFAULT_UDP_TIMEOUT, 0)
    }

    fn with(udp_timeout: u64, masquerades: u32) -> Self {
        let path = std::env::var("LB_EBPF_OBJECT")
            .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bpf/lb-ebpf.o").to_owned());
        let object =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}; run `cargo xtask build-ebpf`"));
        let mut loader = EbpfLoader::new();
        for map in [
            maps::SERVICES,
            maps::SLOTS,
            maps::BACKENDS,
            maps::FLOWS,
            maps::CONNECTED,
        ] {
            loader.map_max_entries(map, 4096);
        }
        loader.override_global(UDP_TIMEOUT, &udp_timeout, true);
        loader.override_global(MASQUERADES, &masquerades, true);
        let ebpf = loader.load(&object).expect("load the maps: this needs root");
        Self {
            ebpf: RefCell::new(ebpf),
            next_slot: 0,
            next_service: 1,
        }
    }

    /// Runs a program on a frame that carries `mark`.
    pub(crate) fn run_marked(&self, hook: Hook, frame: &[u8], mark: u32) -> Outcome {
        let name = hook.program();
        let mut ebpf = self.ebpf.borrow_mut();
        let program: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("load {name}: {error}"));
        }
        let mut context = [0; CONTEXT];
        context[MARK].copy_from_slice(&mark.to_ne_bytes());
        let mut context_out = [0; CONTEXT];
        let mut out = vec![0; frame.len() + 256];
        let result = program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ctx_out: Some(&mut context_out),
                ..Default::default()
            })
            .unwrap_or_else(|error| panic!("run {name}: {error}"));
        out.truncate(result.data_size_out as usize);
        Outcome {
            verdict: result.return_value.cast_signed(),
            mark: u32::from_ne_bytes(context_out[MARK].try_into().unwrap()),
            frame: out,
        }
    }

    pub(crate) fn run(&self, hook: Hook, frame: &[u8]) -> Outcome {
        self.run_marked(hook, frame, 0)
    }

    /// Writes a backend, on another node unless `local`, and gives its number.
    pub(crate) fn backend(&mut self, number: u32, address: SocketAddr, local: bool) -> u32 {
        self.set_backend(
            number,
            BackendValue {
                address: address.ip().into(),
                port: Port::new(address.port()),
                state: SERVING,
                flags: IN_CLUSTER_SET | if local { LOCAL | IN_LOCAL_SET } else { 0 },
                generation: 1,
                service: 1,
            },
        );
        number
    }

    pub(crate) fn set_backend(&mut self, number: u32, value: BackendValue) {
        self.array::<BackendValue>(maps::BACKENDS)
            .set(number, value, 0)
            .unwrap();
    }

    pub(crate) fn get_backend(&mut self, number: u32) -> BackendValue {
        self.array::<BackendValue>(maps::BACKENDS).get(&number, 0).unwrap()
    }

    /// Writes slots and gives their range.
    pub(crate) fn slots(&mut self, backends: &[u32]) -> Range {
        let base = self.next_slot;
        for &backend in backends {
            let slot = self.next_slot;
            self.array::<u32>(maps::SLOTS).set(slot, backend, 0).unwrap();
            self.next_slot += 1;
        }
        Range {
            base,
            count: backends.len().try_into().unwrap(),
        }
    }

    /// Writes a frontend of a service of its own, the same for all clients.
    pub(crate) fn service(&mut self, transport: Transport, frontend: SocketAddr, range: Range, flags: u32) {
        self.service_for(transport, frontend, range, range, flags);
    }

    pub(crate) fn service_for(
        &mut self,
        transport: Transport,
        frontend: SocketAddr,
        near: Range,
        far: Range,
        flags: u32,
    ) {
        let value = ServiceValue {
            service: self.next_service,
            near,
            far,
            flags,
            affinity: 0,
        };
        self.next_service += 1;
        self.set_service(transport, frontend, value);
    }

    /// The same as [`Self::simple`] for any protocol.
    pub(crate) fn simple_of(&mut self, protocol: u8, frontend: SocketAddr, backends: &[SocketAddr]) {
        let numbers: Vec<u32> = (1..)
            .zip(backends)
            .map(|(number, &address)| self.backend(number, address, false))
            .collect();
        let range = match self.slots(&numbers) {
            Range { count: 0, .. } => Range::empty(Verdict::Reject),
            range => range,
        };
        let value = ServiceValue {
            service: self.next_service,
            near: range,
            far: range,
            flags: 0,
            affinity: 0,
        };
        self.next_service += 1;
        self.set_row(protocol, frontend, value);
    }

    /// Writes the row of a frontend; the unspecified address is that of a NodePort.
    pub(crate) fn set_service(&mut self, transport: Transport, frontend: SocketAddr, value: ServiceValue) {
        self.set_row(transport.number(), frontend, value);
    }

    fn set_row(&mut self, protocol: u8, frontend: SocketAddr, value: ServiceValue) {
        let address = if frontend.ip().is_unspecified() {
            match frontend {
                SocketAddr::V4(_) => Address::ANY_V4,
                SocketAddr::V6(_) => Address::ANY_V6,
            }
        } else {
            frontend.ip().into()
        };
        let key = ServiceKey::new(address, Port::new(frontend.port()), protocol);
        self.hash::<ServiceKey, ServiceValue>(maps::SERVICES)
            .insert(key, value, 0)
            .unwrap();
    }

    /// Deletes a frontend.
    pub(crate) fn no_service(&mut self, transport: Transport, frontend: SocketAddr) {
        let key = ServiceKey::new(frontend.ip().into(), Port::new(frontend.port()), transport.number());
        self.hash::<ServiceKey, ServiceValue>(maps::SERVICES)
            .remove(&key)
            .unwrap();
    }

    /// A frontend with the given backends on other nodes, numbered from 1.
    pub(crate) fn simple(&mut self, transport: Transport, frontend: SocketAddr, backends: &[SocketAddr]) {
        let numbers: Vec<u32> = (1..)
            .zip(backends)
            .map(|(number, &address)| self.backend(number, address, false))
            .collect();
        let range = self.slots(&numbers);
        self.service(transport, frontend, range, 0);
    }

    /// Serves NodePorts on an address.
    pub(crate) fn node_address(&mut self, address: IpAddr) {
        self.address(address, NODE_PORTS);
    }

    /// Says what an address is.
    pub(crate) fn address(&mut self, address: IpAddr, flags: u32) {
        self.hash::<Address, AddressValue>(maps::ADDRESSES)
            .insert(Address::from(address), AddressValue { flags }, 0)
            .unwrap();
    }

    /// The node speaks by this address on a link.
    pub(crate) fn source(&mut self, link: u32, address: IpAddr) {
        let address = Address::from(address);
        self.hash::<SourceKey, Address>(maps::SOURCES)
            .insert(SourceKey::new(link, &address), address, 0)
            .unwrap();
    }

    /// Says what a network is, in a scope of `SOURCE_RANGES` or `CIDRS`.
    pub(crate) fn prefix(&mut self, map: &str, scope: u32, network: IpAddr, length: u8, value: u32) {
        let PrefixKey { length, network } = PrefixKey::new(scope, Address::from(network), length);
        let mut trie: LpmTrie<_, Scoped, u32> = self.ebpf.get_mut().map_mut(map).unwrap().try_into().unwrap();
        trie.insert(&Key::new(length, network), value, 0).unwrap();
    }

    /// Which backend a client of a service is remembered to have.
    pub(crate) fn affinity(&mut self, service: u32, client: IpAddr) -> Option<AffinityValue> {
        let client = Address::from(client);
        self.hash::<AffinityKey, AffinityValue>(maps::AFFINITY)
            .get(&AffinityKey { service, client }, 0)
            .ok()
    }

    /// Remembers another backend, or another time.
    pub(crate) fn set_affinity(&mut self, service: u32, client: IpAddr, value: AffinityValue) {
        let client = Address::from(client);
        self.hash::<AffinityKey, AffinityValue>(maps::AFFINITY)
            .insert(AffinityKey { service, client }, value, 0)
            .unwrap();
    }

    /// Every row of the flow table.
    pub(crate) fn flows(&mut self) -> Vec<(FlowKey, FlowValue)> {
        self.hash::<FlowKey, FlowValue>(maps::FLOWS)
            .iter()
            .map(Result::unwrap)
            .collect()
    }

    /// Deletes the rows of one direction, as if they had been evicted.
    pub(crate) fn forget_flows(&mut self, direction: u8) {
        let rows = self.flows();
        let mut flows = self.hash::<FlowKey, FlowValue>(maps::FLOWS);
        for (key, _) in rows.iter().filter(|(key, _)| key.direction == direction) {
            flows.remove(key).unwrap();
        }
    }

    /// All flows have been silent since the machine started.
    pub(crate) fn age_flows(&mut self) {
        let rows = self.flows();
        let mut flows = self.hash::<FlowKey, FlowValue>(maps::FLOWS);
        for (key, value) in rows {
            flows.insert(key, FlowValue { last_seen: 0, ..value }, 0).unwrap();
        }
    }

    /// What was told since the last call.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let mut ring = RingBuf::try_from(self.ebpf.get_mut().map_mut(maps::EVENTS).unwrap()).unwrap();
        let mut events = Vec::new();
        while let Some(item) = ring.next() {
            assert_eq!(item.len(), size_of::<Event>());
            // SAFETY: an `Event` is made of integers, and these are its bytes.
            events.push(unsafe { std::ptr::read_unaligned(item.as_ptr().cast()) });
        }
        events
    }

    /// How many fragments wait for the first of their datagram.
    pub(crate) fn held(&mut self) -> usize {
        let ring = self.array::<HeldFragment>(maps::HELD_FRAGMENTS);
        ring.iter().filter(|held| held.as_ref().unwrap().length != 0).count()
    }

    pub(crate) fn counter(&mut self, counter: Counter) -> u64 {
        let map = self.ebpf.get_mut().map(maps::COUNTERS).unwrap();
        let counters = PerCpuArray::<_, u64>::try_from(map).unwrap();
        counters.get(&(counter as u32), 0).unwrap().iter().sum()
    }

    fn array<V: aya::Pod>(&mut self, name: &str) -> Array<&mut MapData, V> {
        self.ebpf.get_mut().map_mut(name).unwrap().try_into().unwrap()
    }

    fn hash<K: aya::Pod, V: aya::Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        self.ebpf.get_mut().map_mut(name).unwrap().try_into().unwrap()
    }
}

/// Runs `test` for each family and transport, each with a data path of its own.
pub(crate) fn each(test: impl Fn(Datapath, Family, Transport)) {
    for family in Family::BOTH {
        for transport in Transport::BOTH {
            eprintln!("{family:?} {transport:?}");
            test(Datapath::new(), family, transport);
        }
    }
}
