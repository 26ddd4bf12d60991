//! Makes the kernel hold what service ports want.
//!
//! Order of a change: rows and sets of the rules, then IPVS, then the addresses of the dummy link; what goes
//! does so the other way round. So nobody comes to IPVS whose rows are not there, and an IPVS service that an
//! agent left is known by its row to the next one.
//!
//! Whoever wants nothing any more may have connections. So what goes is refused to new clients first, and goes
//! with its last connection ([`Programmed::sweep`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use nix::sys::socket::SockaddrStorage;
use tracing::{debug, warn};

use super::{
    ports::{Ports, Touched},
    rules::{Change, Key, Mark, Row, Rules, Verdict},
    servers::Servers,
};
use crate::{
    desired::{Masquerade, Protocol, ServicePortName, State},
    kernel::{
        conntrack::{self, Datagrams},
        dummy::{self, DummyLink},
        ipvs::{Command, Ipvs, ServiceKey},
    },
    plane::PlaneError,
};

/// How many virtual services are asked for their connections at one time. The others have their turn the
/// next time.
const ASKED_AT_ONCE: usize = 256;

/// The kernel, and what it holds of ours.
pub(super) struct Programmed {
    pub(super) ports: Ports,
    pub(super) rules: Rules,
    pub(super) ipvs: Ipvs,
    pub(super) servers: Servers,
    pub(super) link: DummyLink,
    /// What is on the link.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Addresses that were on it before this agent.
    pub(super) stale: BTreeSet<IpAddr>,
    /// Rows that nobody wants, until their connections are gone.
    pub(super) leaving: BTreeSet<Key>,
    /// Frontends at which somebody else has a virtual service.
    pub(super) foreign: BTreeSet<Key>,
    /// Addresses of endpoints that went from this node.
    pub(super) lost_endpoints: BTreeSet<IpAddr>,
    /// Where the last round of questions ended.
    asked: Option<ServiceKey>,
}

/// What did not come about.
#[derive(Default)]
pub(super) struct Failures {
    pub(super) services: BTreeMap<ServicePortName, PlaneError>,
    pub(super) addresses: Option<PlaneError>,
    /// The rules are not as they are to be, and IPVS was left as it was.
    pub(super) is_out_of_step: bool,
}

impl Programmed {
    pub(super) fn new(rules: Rules, ipvs: Ipvs, link: DummyLink, addresses: BTreeSet<IpAddr>) -> Self {
        Self {
            ports: Ports::default(),
            rules,
            ipvs,
            servers: Servers::default(),
            link,
            stale: addresses.clone(),
            addresses,
            leaving: BTreeSet::new(),
            foreign: BTreeSet::new(),
            lost_endpoints: BTreeSet::new(),
            asked: None,
        }
    }

    /// Makes what was touched as it is wanted. `around` is the state that holds for all service ports. Returns
    /// how many writes it took.
    pub(super) fn write(&mut self, touched: &Touched, edit: Change, around: &State, failures: &mut Failures) -> usize {
        self.look_for_foreign(&touched.rows);
        let (wanted, unwanted): (Vec<Key>, Vec<Key>) = touched
            .rows
            .iter()
            .copied()
            .partition(|key| self.ports.row(*key).is_some());
        for key in &wanted {
            self.leaving.remove(key);
        }
        self.leaving.extend(unwanted);
        self.lost_endpoints.extend(&touched.endpoints);

        let mut writes = self.write_rules(touched, edit, around, failures);
        if failures.is_out_of_step {
            // Without rows nothing may follow.
            return writes;
        }
        writes += self.write_servers(touched, failures);
        writes += self.leave_foreign(touched, failures);
        writes += self.write_addresses(touched, failures);
        let draining: Vec<ServiceKey> = self
            .servers
            .draining()
            .filter(|key| touched.servers.contains(key))
            .collect();
        writes += self.drain(&draining);
        writes + self.sweep()
    }

    /// What a frontend has in the rules, if somebody wants it.
    pub(super) fn row(&self, key: Key) -> Option<&Row> {
        let row = self.ports.row(key)?;
        Some(if self.foreign.contains(&key) { &Row::LEFT } else { row })
    }

    /// Finds out which of these frontends somebody else has let go of.
    pub(super) fn look_for_foreign<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        let known: Vec<Key> = keys
            .into_iter()
            .filter(|key| self.foreign.contains(key))
            .copied()
            .collect();
        if known.is_empty() {
            return;
        }
        let there: BTreeSet<ServiceKey> = match self.ipvs.services() {
            Ok(services) => services.into_iter().map(|(key, _)| key).collect(),
            Err(error) => {
                debug!("IPVS does not say what it holds: {error}");
                return;
            }
        };
        for key in known {
            if self.ports.row(key).is_none() || !there.contains(&by_address(key)) {
                self.foreign.remove(&key);
            }
        }
    }

    /// Notes in the rules which of these frontends turned out to be somebody else's, so that no agent takes them for
    /// ours.
    fn leave_foreign(&mut self, touched: &Touched, failures: &mut Failures) -> usize {
        let rows = touched.servers.iter().filter_map(|key| match *key {
            ServiceKey::Address { protocol, address } => Some(Key { protocol, address }),
            ServiceKey::Mark { .. } => None,
        });
        let rows = rows.filter(|key| self.foreign.contains(key) && self.ports.row(*key).is_some());
        let edit = Change {
            frontends: rows.map(|key| (key, Some(Row::LEFT))).collect(),
            ..Change::default()
        };
        match self.rules.apply(edit) {
            Ok(writes) => writes,
            Err(error) => {
                failures.addresses = Some(PlaneError::kernel("the rules beside IPVS", error));
                failures.is_out_of_step = true;
                0
            }
        }
    }

    fn write_rules(&mut self, touched: &Touched, mut edit: Change, around: &State, failures: &mut Failures) -> usize {
        for key in &touched.rows {
            match self.row(*key) {
                Some(row) => {
                    edit.frontends.insert(*key, Some(row.clone()));
                }
                // Its connections go on; nobody begins one.
                None if self.is_held(*key) => {
                    edit.frontends.insert(*key, Some(closed(key, around)));
                }
                None => {}
            }
        }
        let endpoints = touched.endpoints.iter().copied();
        edit.local_endpoints
            .added
            .extend(endpoints.filter(|ip| self.ports.has_endpoint(*ip)));
        // Of those that are on the link it is known, unless a ClusterIP has changed; the others are looked for among
        // all addresses of the node.
        let is_known = |ip: &&IpAddr| self.addresses.contains(*ip) && !edit.cluster_ips.contains_key(*ip);
        let unknown = touched.addresses.iter().filter(|ip| !is_known(ip)).copied().collect();
        edit.own_addresses.added = self.own_addresses(&unknown, around);
        match self.rules.apply(edit) {
            Ok(writes) => writes,
            Err(error) => {
                failures.addresses = Some(PlaneError::kernel("the rules beside IPVS", error));
                failures.is_out_of_step = true;
                0
            }
        }
    }

    /// Those of these addresses whose other ports are refused. The node may have one of them for itself, and
    /// processes that listen there.
    pub(super) fn own_addresses(&self, of: &BTreeSet<IpAddr>, around: &State) -> BTreeSet<IpAddr> {
        let is_own = |ip: &&IpAddr| self.ports.wants_address(**ip) && !around.cluster_ips.contains_key(*ip);
        let own: BTreeSet<IpAddr> = of.iter().filter(is_own).copied().collect();
        if own.is_empty() {
            return own;
        }
        let of_node = addresses_of_other_links();
        own.difference(&of_node).copied().collect()
    }

    fn write_servers(&mut self, touched: &Touched, failures: &mut Failures) -> usize {
        let mut commands = Vec::new();
        for key in &touched.servers {
            let wanted = self.ports.server(*key);
            if let ServiceKey::Address { protocol, address } = *key
                && self.foreign.contains(&Key { protocol, address })
            {
                if let Some(name) = self.ports.owner_of_server(*key) {
                    failures.services.entry(name.clone()).or_insert(foreign(*key));
                }
                continue;
            }
            self.servers.want(*key, wanted.is_some());
            commands.extend(self.servers.commands(*key, wanted));
        }
        let failed = self.send(&commands);
        forget_datagrams(&commands);
        for (key, error) in failed {
            match self.ports.owner_of_server(key) {
                Some(name) => {
                    failures.services.entry(name.clone()).or_insert(error);
                }
                // It is tried again with the next round.
                None => warn!("a virtual service that nobody wants stays for now: {error}"),
            }
        }
        commands.len()
    }

    /// Whether there is, or may be, a connection by this frontend.
    fn is_held(&self, key: Key) -> bool {
        self.servers.contains(by_address(key))
    }

    /// Sends commands and notes what came of them. Returns the first error of each virtual service.
    fn send(&mut self, commands: &[Command]) -> BTreeMap<ServiceKey, PlaneError> {
        // A destination must not come to a virtual service that turns out to be somebody else's.
        let (first, then): (Vec<Command>, Vec<Command>) = commands
            .iter()
            .partition(|command| matches!(command, Command::AddService(..)));
        let mut failed = self.send_at_once(&first);
        let then: Vec<Command> = then
            .into_iter()
            .filter(|command| !failed.contains_key(command.service()))
            .collect();
        for (key, error) in self.send_at_once(&then) {
            failed.entry(key).or_insert(error);
        }
        failed
    }

    fn send_at_once(&mut self, commands: &[Command]) -> BTreeMap<ServiceKey, PlaneError> {
        let mut failed = BTreeMap::new();
        if commands.is_empty() {
            return failed;
        }
        let answers = match self.ipvs.send(commands) {
            Ok(answers) => answers,
            Err(error) => {
                // What was done is not known: the kernel is asked, by another socket.
                let text = error.to_string();
                match Ipvs::open() {
                    Ok(ipvs) => self.ipvs = ipvs,
                    Err(error) => warn!("IPVS cannot be asked: {error}"),
                }
                let keys: BTreeSet<ServiceKey> = commands.iter().map(|command| *command.service()).collect();
                self.ask(&keys);
                for key in keys {
                    failed.insert(key, PlaneError::kernel(key.to_string(), text.clone()));
                }
                return failed;
            }
        };
        for (command, answer) in commands.iter().zip(answers) {
            let key = *command.service();
            let error = match answer {
                Ok(()) => {
                    self.note(command);
                    continue;
                }
                Err(error) => error,
            };
            if failed.contains_key(&key) {
                continue;
            }
            let error = match command {
                Command::DeleteService(_) | Command::DeleteDestination(..) if error.is_gone() => {
                    self.note(command);
                    continue;
                }
                Command::AddService(..) if error.is_exists() => {
                    if let ServiceKey::Address { protocol, address } = key {
                        self.foreign.insert(Key { protocol, address });
                    }
                    foreign(key)
                }
                _ => PlaneError::kernel(format!("IPVS service {key}"), error),
            };
            failed.insert(key, error);
        }
        if !failed.is_empty() {
            self.ask(&failed.keys().copied().collect());
        }
        failed
    }

    fn note(&mut self, command: &Command) {
        let key = *command.service();
        let protocol = self.ports.server(key).map_or(Protocol::Tcp, |server| server.protocol);
        self.servers.done(command, protocol);
        if let (Command::DeleteService(_), ServiceKey::Mark { family, mark }) = (command, key)
            && let Some(mark) = Mark::of(mark.get())
            && !self.servers.has_mark(family, mark)
        {
            self.ports.free_mark(mark);
        }
    }

    /// Takes from the kernel what it holds of these virtual services of ours.
    fn ask(&mut self, keys: &BTreeSet<ServiceKey>) {
        // Of one that is not there the kernel tells no destination, and no error.
        let there: BTreeSet<ServiceKey> = match self.ipvs.services() {
            Ok(services) => services.into_iter().map(|(key, _)| key).collect(),
            Err(error) => {
                debug!("IPVS does not say what it holds: {error}");
                return;
            }
        };
        for key in keys {
            match there.contains(key).then(|| self.ipvs.destinations(key)).transpose() {
                Ok(found) => self.servers.correct(*key, found.as_deref()),
                Err(error) => debug!("IPVS does not say what it holds of {key}: {error}"),
            }
        }
    }

    fn write_addresses(&mut self, touched: &Touched, failures: &mut Failures) -> usize {
        let missing = touched.addresses.iter().copied();
        let missing = missing.filter(|ip| self.ports.wants_address(*ip) && !self.addresses.contains(ip));
        self.change_addresses(&missing.collect(), &BTreeSet::new(), failures)
    }

    fn change_addresses(
        &mut self,
        add: &BTreeSet<IpAddr>,
        remove: &BTreeSet<IpAddr>,
        failures: &mut Failures,
    ) -> usize {
        if add.is_empty() && remove.is_empty() {
            return 0;
        }
        let failed = self.link.change(add, remove);
        let has_changed = |ip: &&IpAddr| !failed.contains_key(*ip);
        self.addresses.extend(add.iter().filter(has_changed));
        for ip in remove.iter().filter(has_changed) {
            self.addresses.remove(ip);
        }
        if let Some((ip, error)) = failed.into_iter().next() {
            failures.addresses = Some(PlaneError::kernel(format!("address {ip} of a service"), error));
        }
        add.len() + remove.len()
    }

    /// Lets go of destinations and virtual services without connections. Returns how many writes it took.
    pub(super) fn drain(&mut self, keys: &[ServiceKey]) -> usize {
        let mut commands = Vec::new();
        for key in keys {
            match self.ipvs.destinations(key) {
                Ok(counted) => commands.extend(self.servers.drained(*key, &counted)),
                Err(error) => warn!("IPVS does not tell the connections of {key}: {error}"),
            }
        }
        for (key, error) in self.send(&commands) {
            warn!("{key} is not rid of what nobody uses: {error}");
        }
        commands.len()
    }

    /// One round of questions about those that drain, and what follows from the answers.
    pub(super) fn tick(&mut self) -> usize {
        let after = |key: &ServiceKey| self.asked.is_none_or(|asked| *key > asked);
        let mut keys: Vec<ServiceKey> = self.servers.draining().filter(after).take(ASKED_AT_ONCE).collect();
        if keys.len() < ASKED_AT_ONCE {
            let others = self.servers.draining().take(ASKED_AT_ONCE - keys.len());
            let others: Vec<ServiceKey> = others.filter(|key| !keys.contains(key)).collect();
            keys.extend(others);
        }
        self.asked = keys.last().copied();
        self.drain(&keys) + self.sweep()
    }

    /// Virtual services and addresses that are wanted and that the kernel has lost: noted as such.
    pub(super) fn missing(&mut self) -> anyhow::Result<Touched> {
        let held: BTreeSet<ServiceKey> = self.ipvs.services()?.into_iter().map(|(key, _)| key).collect();
        let servers: BTreeSet<ServiceKey> = self.servers.keys().filter(|key| !held.contains(key)).collect();
        for key in &servers {
            self.servers.correct(*key, None);
        }
        let on_link = self.link.addresses()?;
        let addresses: BTreeSet<IpAddr> = self.addresses.difference(&on_link).copied().collect();
        self.addresses = on_link;
        Ok(Touched {
            servers,
            addresses,
            ..Touched::default()
        })
    }

    /// Takes away rows and addresses that nobody wants or uses.
    pub(super) fn sweep(&mut self) -> usize {
        let gone: BTreeSet<Key> = self.leaving.iter().copied().filter(|key| !self.is_held(*key)).collect();
        let staying: BTreeSet<IpAddr> = self.leaving.difference(&gone).map(|key| key.address.ip()).collect();
        let unused = gone
            .iter()
            .map(|key| key.address.ip())
            .chain(self.stale.iter().copied());
        let unused = unused.filter(|ip| !self.ports.wants_address(*ip) && !staying.contains(ip));
        let unused: BTreeSet<IpAddr> = unused.filter(|ip| self.addresses.contains(ip)).collect();

        let mut failures = Failures::default();
        let mut writes = self.change_addresses(&BTreeSet::new(), &unused, &mut failures);
        let mut edit = Change::default();
        edit.frontends.extend(gone.iter().map(|key| (*key, None)));
        edit.own_addresses.removed.clone_from(&unused);
        edit.local_endpoints.removed = std::mem::take(&mut self.lost_endpoints);
        edit.local_endpoints.removed.retain(|ip| !self.ports.has_endpoint(*ip));
        match self.rules.apply(edit) {
            Ok(applied) => {
                writes += applied;
                self.leaving.retain(|key| !gone.contains(key));
                self.stale.retain(|ip| self.addresses.contains(ip));
            }
            Err(error) => warn!("rows of the rules that nobody wants stay for now: {error}"),
        }
        if let Some(error) = failures.addresses {
            warn!("addresses that nobody wants stay for now: {error}");
        }
        writes
    }
}

/// Of datagrams that were sent before the change, to nobody or to an endpoint that is gone, nothing is to stay: the
/// kernel would take the next ones for more of the same.
fn forget_datagrams(commands: &[Command]) {
    let of_frontend = |key: &ServiceKey| match *key {
        ServiceKey::Address {
            protocol: Protocol::Udp,
            address,
        } => Some(Some(address)),
        ServiceKey::Address { .. } => None,
        ServiceKey::Mark { .. } => Some(None),
    };
    let gone = |command: &Command| match *command {
        Command::AddService(key, _) | Command::DeleteService(key) => of_frontend(&key)?.map(Datagrams::To),
        Command::DeleteDestination(key, backend) => Some(match of_frontend(&key)? {
            Some(frontend) => Datagrams::Between(frontend, backend),
            None => Datagrams::TranslatedTo(backend),
        }),
        Command::SetService(..) | Command::AddDestination(..) | Command::SetDestination(..) => None,
    };
    let gone: BTreeSet<Datagrams> = commands.iter().filter_map(gone).collect();
    if gone.is_empty() {
        return;
    }
    match conntrack::forget(&gone) {
        Ok(0) => {}
        Ok(connections) => debug!(connections, "forgotten: their datagrams go elsewhere now"),
        Err(error) => warn!("clients that go on sending datagrams may stay with endpoints that are gone: {error}"),
    }
}

const fn by_address(key: Key) -> ServiceKey {
    let Key { protocol, address } = key;
    ServiceKey::Address { protocol, address }
}

fn foreign(key: ServiceKey) -> PlaneError {
    PlaneError::Foreign {
        what: format!("IPVS service {key}"),
    }
}

/// The addresses of the node's links, but for ours.
fn addresses_of_other_links() -> BTreeSet<IpAddr> {
    addresses_where(|name| name != dummy::NAME)
}

/// The addresses of one link, none where it is not there.
pub fn addresses_of(link: &str) -> BTreeSet<IpAddr> {
    addresses_where(|name| name == link)
}

/// The addresses of links by their names.
pub(super) fn addresses_where(is_wanted: impl Fn(&str) -> bool) -> BTreeSet<IpAddr> {
    match nix::ifaddrs::getifaddrs() {
        Ok(all) => all
            .filter(|found| is_wanted(&found.interface_name))
            .filter_map(|found| ip(&found.address?))
            .collect(),
        Err(error) => {
            warn!("the addresses of the node are not known: {error}");
            BTreeSet::new()
        }
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// For a frontend that goes while it has connections.
pub(super) fn closed(key: &Key, around: &State) -> Row {
    let ip = key.address.ip();
    // As an address that is nobody's is treated.
    let verdict = if around.service_cidrs.iter().any(|cidr| cidr.contains(&ip)) {
        Verdict::Drop
    } else {
        Verdict::Reject
    };
    Row {
        near: verdict,
        far: verdict,
        masquerade: Masquerade::WhereNeeded,
        allowed: None,
    }
}
