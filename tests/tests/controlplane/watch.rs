//! The agent's watches of a real API server: what they make of it when the line breaks and the server forgets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lb_agent::desired::ServedBy;
use lb_agent::model::{AnyService, Cluster, EndpointSlice, Event, ServiceCidr, Update};
use lb_agent::objects::kube::{ApiServer, ApiServerOptions, Pods, Watches, watch};
use lb_agent::objects::{self, Batch, Skipped};
use lb_tests::controlplane::{ControlPlane, Options};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longer than any watch waits before it tries again.
const SOON: Duration = Duration::from_secs(90);

/// The only way from the watches to the server.
struct Line {
    runtime: Runtime,
    at: SocketAddr,
    server: SocketAddr,
    connections: JoinSet<()>,
}

impl Line {
    fn to(server: SocketAddr) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let mut line = Self {
            runtime,
            at: listener.local_addr().unwrap(),
            server,
            connections: JoinSet::new(),
        };
        line.serve(listener);
        line
    }

    fn serve(&mut self, listener: TcpListener) {
        let server = self.server;
        let connections = async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                connections.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(server).await {
                        // A connection that breaks ends the other one.
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        };
        self.connections.spawn_on(connections, self.runtime.handle());
    }

    fn cut(&mut self) {
        self.runtime.block_on(self.connections.shutdown());
    }

    fn restore(&mut self) {
        let listener = self.runtime.block_on(TcpListener::bind(self.at)).unwrap();
        self.serve(listener);
    }
}

/// What the watches have told so far.
struct Watched {
    batches: mpsc::Receiver<Batch>,
    services: BTreeSet<String>,
    /// The addresses of each slice.
    slices: BTreeMap<String, BTreeSet<String>>,
    /// The networks of each ServiceCIDR, once there has been a list.
    service_cidrs: Option<BTreeMap<String, Vec<String>>>,
    /// How many complete lists of Services and of EndpointSlices have come.
    lists: [usize; 2],
    /// What the agent makes of it.
    model: Cluster,
    _watches: JoinSet<()>,
    line: Line,
    cluster: ControlPlane,
}

impl Watched {
    fn start(options: &Options) -> Self {
        let cluster = ControlPlane::start(options).unwrap();
        let line = Line::to(cluster.url().trim_start_matches("https://").parse().unwrap());
        let options = ApiServerOptions {
            kubeconfig: Some(cluster.kubeconfig_agent()),
            url: Some(format!("https://{}", line.at).into()),
        };
        let (sender, batches) = objects::channel();
        let watches = line.runtime.block_on(async {
            let server = ApiServer::configure(&options).await.unwrap();
            watch(
                &server,
                "this-node",
                Pods::Asked,
                &sender,
                &Watches::default(),
                &Skipped::default(),
            )
        });
        Self {
            batches,
            services: BTreeSet::new(),
            slices: BTreeMap::new(),
            service_cidrs: None,
            lists: [0, 0],
            model: Cluster::default(),
            _watches: watches,
            line,
            cluster,
        }
    }

    fn note(&mut self, event: Event) {
        self.model.apply(event.clone());
        match event {
            Event::Services(Update::Replace { objects, .. }) => {
                self.lists[0] += 1;
                self.services = objects.iter().map(service_name).collect();
            }
            Event::Services(Update::Apply(service)) => {
                self.services.insert(service_name(&service));
            }
            Event::Services(Update::Delete(name)) => {
                self.services.remove(&name.name);
            }
            Event::EndpointSlices(Update::Replace { objects, .. }) => {
                self.lists[1] += 1;
                self.slices = objects.iter().map(addresses).collect();
            }
            Event::EndpointSlices(Update::Apply(slice)) => self.slices.extend([addresses(&slice)]),
            Event::EndpointSlices(Update::Delete(name)) => {
                self.slices.remove(&name.name);
            }
            Event::ServiceCidrs(Update::Replace { objects, .. }) => {
                self.service_cidrs = Some(objects.iter().map(networks).collect());
            }
            Event::ServiceCidrs(Update::Apply(cidr)) => {
                self.service_cidrs.as_mut().unwrap().extend([networks(&cidr)]);
            }
            Event::ServiceCidrs(Update::Delete(name)) => {
                self.service_cidrs.as_mut().unwrap().remove(&name.name);
            }
            Event::Pods(_) | Event::Node(_) | Event::UnreadableNode | Event::NodeAddresses(_) => {}
        }
    }

    /// Listens until what was told comes to this. The API server's own Service is not counted.
    #[track_caller]
    fn becomes(&mut self, services: &[&str], slices: &[(&str, &str)]) {
        let expected_slices: BTreeMap<_, _> = slices
            .iter()
            .map(|(name, address)| ((*name).to_owned(), BTreeSet::from([(*address).to_owned()])))
            .collect();
        let until = Instant::now() + SOON;
        loop {
            let known: Vec<_> = self.services.iter().filter(|name| *name != "kubernetes").collect();
            if known == services && self.slices == expected_slices {
                return;
            }
            let told = format!("{known:?} and {:?}", self.slices);
            assert!(
                self.hear(until),
                "expected {services:?} and {slices:?}, and told are {told}"
            );
        }
    }

    /// Listens until the Service `web` is served by these endpoints, or not served at all.
    #[track_caller]
    fn serves(&mut self, endpoints: Option<&[&str]>) {
        let until = Instant::now() + SOON;
        let expected = endpoints.map(|endpoints| endpoints.iter().map(|ip| ip.parse().unwrap()).collect());
        loop {
            self.model.take_change();
            let services = &self.model.state().services;
            let web = services.iter().find(|(name, _)| name.name == "web");
            let served: Option<BTreeSet<IpAddr>> =
                web.map(|(_, web)| web.endpoints.keys().map(SocketAddr::ip).collect());
            if served == expected {
                return;
            }
            assert!(self.hear(until), "expected {endpoints:?}, and served are {served:?}");
        }
    }

    /// Listens until this is who serves a ClusterIP, if anybody does.
    #[track_caller]
    fn is_served_by(&mut self, cluster_ip: IpAddr, expected: Option<ServedBy>) {
        let until = Instant::now() + SOON;
        loop {
            self.model.take_change();
            let served_by = self.model.state().cluster_ips.get(&cluster_ip).copied();
            if served_by == expected {
                return;
            }
            assert!(self.hear(until), "expected {expected:?}, and it is {served_by:?}");
        }
    }

    /// Listens until these are the ServiceCIDRs.
    #[track_caller]
    fn service_cidrs_become(&mut self, expected: &[(&str, &[&str])]) {
        let until = Instant::now() + SOON;
        let owned = |networks: &[&str]| networks.iter().map(|&network| network.to_owned()).collect();
        let expected = expected
            .iter()
            .map(|(name, networks)| ((*name).to_owned(), owned(networks)));
        let expected: Option<BTreeMap<String, Vec<String>>> = Some(expected.collect());
        while self.service_cidrs != expected {
            let told = format!("{:?}", self.service_cidrs);
            assert!(self.hear(until), "expected {expected:?}, and told are {told}");
        }
    }

    /// Listens until these pods have their sockets left alone.
    #[track_caller]
    fn opted_out_become(&mut self, expected: &[&str]) {
        let until = Instant::now() + SOON;
        let uid = |pod: &&str| {
            let args = ["get", "pod", *pod, "-o", "jsonpath={.metadata.uid}"];
            self.cluster.kubectl(&args).unwrap()
        };
        let expected: Option<BTreeSet<String>> = Some(expected.iter().map(uid).collect());
        loop {
            self.model.take_change();
            let told = &self.model.state().untranslated_pods;
            if *told == expected {
                return;
            }
            let told = format!("{told:?}");
            assert!(self.hear(until), "expected {expected:?}, and told are {told}");
        }
    }

    /// Listens once.
    fn hear(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let batch = self
            .line
            .runtime
            .block_on(async { timeout(left, self.batches.recv()).await });
        let Ok(batch) = batch else {
            return false;
        };
        batch.unwrap().into_iter().for_each(|event| self.note(event));
        true
    }

    fn apply(&self, manifest: &str) {
        self.cluster.apply(manifest).unwrap();
    }

    /// Puts a label on the Service `web`, or takes it away.
    fn label(&self, label: &str) {
        self.cluster.kubectl(&["label", "service", "web", label]).unwrap();
    }

    fn delete(&self, kind: &str, name: &str) {
        self.cluster.kubectl(&["delete", "--wait=false", kind, name]).unwrap();
    }
}

fn service_name(service: &AnyService) -> String {
    service.name().name.clone()
}

fn addresses(slice: &EndpointSlice) -> (String, BTreeSet<String>) {
    let addresses = slice.endpoints().iter().map(|endpoint| endpoint.address.to_string());
    (slice.name().name.clone(), addresses.collect())
}

fn networks(cidr: &ServiceCidr) -> (String, Vec<String>) {
    (cidr.name.clone(), cidr.cidrs.iter().map(ToString::to_string).collect())
}

fn service(name: &str) -> String {
    format!("{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{ports: [{{port: 80}}]}}}}\n---\n")
}

fn slice(name: &str, service: &str, address: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{{port: 8080}}]\n\
         metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         endpoints: [{{addresses: [{address}]}}]\n---\n"
    )
}

/// A server that streams its first list, and one that does not.
fn servers() -> [Options; 2] {
    [true, false].map(|streams_lists| Options {
        apiserver_args: vec![format!("--feature-gates=WatchList={streams_lists}")],
        ..Options::default()
    })
}

#[test]
fn the_servers_are_what_they_are_said_to_be() {
    let streams = "/api/v1/services?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                   &allowWatchBookmarks=true&timeoutSeconds=1";
    let [streaming, ordinary] = servers().map(|options| {
        let cluster = ControlPlane::start(&options).unwrap();
        cluster.kubectl(&["get", "--raw", streams])
    });
    assert!(streaming.unwrap().contains("k8s.io/initial-events-end"));
    let refusal = format!("{:#}", ordinary.unwrap_err());
    assert!(refusal.contains("sendInitialEvents is forbidden"), "{refusal}");
}

#[test]
fn what_happens_while_the_line_is_cut_is_made_up_for() {
    for options in servers() {
        let mut watched = Watched::start(&options);
        watched.apply(&[service("kept"), service("deleted"), slice("s", "kept", "10.0.0.1")].concat());
        watched.becomes(&["deleted", "kept"], &[("s", "10.0.0.1")]);

        watched.line.cut();
        watched.delete("service", "deleted");
        watched.apply(&[service("new"), slice("s", "kept", "10.0.0.2")].concat());
        watched.line.restore();
        watched.becomes(&["kept", "new"], &[("s", "10.0.0.2")]);
        // The server remembers what happened: nothing had to be listed again.
        assert_eq!(watched.lists, [1, 1]);
    }
}

#[test]
fn what_a_server_has_forgotten_is_listed_again_and_what_is_not_in_the_list_is_gone() {
    for options in servers() {
        let mut watched = Watched::start(&options);
        let before = [
            service("kept"),
            service("deleted"),
            slice("s", "kept", "10.0.0.1"),
            slice("t", "kept", "10.0.0.9"),
        ];
        watched.apply(&before.concat());
        watched.becomes(&["deleted", "kept"], &[("s", "10.0.0.1"), ("t", "10.0.0.9")]);

        watched.line.cut();
        watched.delete("service", "deleted");
        watched.delete("endpointslice", "t");
        watched.apply(&[service("new"), slice("s", "kept", "10.0.0.2")].concat());
        // One that starts knows of nothing that happened before: it answers 410 Gone.
        watched.cluster.stop_apiserver().unwrap();
        watched.cluster.start_apiserver().unwrap();
        watched.line.restore();
        watched.becomes(&["kept", "new"], &[("s", "10.0.0.2")]);
        assert_eq!(watched.lists, [2, 2]);

        // And from there on it is followed.
        watched.delete("service", "kept");
        watched.becomes(&["new"], &[("s", "10.0.0.2")]);
        assert_eq!(watched.lists, [2, 2]);
    }
}

#[test]
fn slices_may_come_late_before_their_service_and_one_by_one() {
    let mut watched = Watched::start(&Options::default());
    watched.apply(&slice("s", "web", "10.0.0.1"));
    watched.becomes(&[], &[("s", "10.0.0.1")]);
    watched.serves(None);
    watched.apply(&service("web"));
    watched.serves(Some(&["10.0.0.1"]));
    watched.apply(&slice("t", "web", "10.0.0.2"));
    watched.serves(Some(&["10.0.0.1", "10.0.0.2"]));

    // The other way round: slices outlive their Service, and wait for the next one of its name.
    watched.delete("service", "web");
    watched.serves(None);
    watched.delete("endpointslice", "s");
    watched.apply(&service("web"));
    watched.serves(Some(&["10.0.0.2"]));
    watched.delete("endpointslice", "t");
    watched.serves(Some(&[]));
}

#[test]
fn pods_of_the_node_that_opt_out_of_translation_in_sockets_are_followed() {
    let pod = |name: &str, node: &str, socket_lb: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, annotations: {{lb-agent.io/socket-lb: '{socket_lb}'}}}}, \
             spec: {{nodeName: {node}, containers: [{{name: c, image: c}}]}}}}\n---\n"
        )
    };
    let mut watched = Watched::start(&Options::default());
    watched.opted_out_become(&[]);
    watched.apply(&(pod("elsewhere", "other-node", "off") + &pod("here", "this-node", "off")));
    watched.opted_out_become(&["here"]);
    watched.apply(&(pod("here", "this-node", "on") + &pod("second", "this-node", "off")));
    watched.opted_out_become(&["second"]);
    watched.delete("pod", "second");
    // Nobody plays its kubelet, so that it ends by force only.
    watched
        .cluster
        .kubectl(&["delete", "pod", "second", "--force", "--ignore-not-found"])
        .unwrap();
    watched.opted_out_become(&[]);
}

#[test]
fn the_networks_of_cluster_ips_are_followed() {
    let mut watched = Watched::start(&Options::default());
    let first: (&str, &[&str]) = ("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    watched.service_cidrs_become(&[first]);
    watched.apply(
        "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}, spec: {cidrs: [10.97.0.0/24]}}",
    );
    watched.service_cidrs_become(&[first, ("more", &["10.97.0.0/24"])]);
    watched.delete("servicecidr", "more");
    watched.service_cidrs_become(&[first]);
}

#[test]
fn a_server_that_does_not_know_service_cidrs_has_none_and_is_watched_all_the_same() {
    let mut watched = Watched::start(&Options {
        // As Kubernetes 1.33 may be set up; before, it was like that unless somebody turned it on.
        apiserver_args: [
            "--emulated-version=1.33",
            "--feature-gates=MultiCIDRServiceAllocator=false,DisableAllocatorDualWrite=false",
            "--runtime-config=networking.k8s.io/v1/servicecidrs=false",
        ]
        .map(Into::into)
        .into(),
        ..Options::default()
    });
    let refusal = watched
        .cluster
        .kubectl(&["get", "--raw", "/apis/networking.k8s.io/v1/servicecidrs"]);
    let refusal = format!("{:#}", refusal.unwrap_err());
    assert!(refusal.contains("NotFound"), "{refusal}");
    watched.service_cidrs_become(&[]);
    watched.apply(&service("web"));
    watched.becomes(&["web"], &[]);
}

#[test]
fn of_a_service_of_another_proxy_the_addresses_are_known_as_the_label_comes_and_goes() {
    let mut watched = Watched::start(&Options::default());
    watched.apply(&service("web"));
    let cluster_ip = ["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"];
    let cluster_ip = watched.cluster.kubectl(&cluster_ip).unwrap().parse().unwrap();
    for _ in 0..2 {
        watched.is_served_by(cluster_ip, Some(ServedBy::Us));
        watched.serves(Some(&[]));
        watched.label("service.kubernetes.io/service-proxy-name=another");
        watched.is_served_by(cluster_ip, Some(ServedBy::AnotherProxy));
        watched.serves(None);
        watched.label("service.kubernetes.io/service-proxy-name-");
    }
    watched.label("service.kubernetes.io/service-proxy-name=another");
    watched.is_served_by(cluster_ip, Some(ServedBy::AnotherProxy));
    watched.delete("service", "web");
    watched.is_served_by(cluster_ip, None);
}

/// How long a server remembers what happened, however much it was. After that, it remembers this many events.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(75), 100);

/// Slices of headless Services: the agent's watch is not told of them.
fn others(generation: usize) -> String {
    let other = |number: usize| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nendpoints: []\n\
             metadata: {{name: other-{number}, annotations: {{generation: '{generation}'}}, \
             labels: {{service.kubernetes.io/headless: ''}}}}\n---\n"
        )
    };
    (0..=REMEMBERED.1).map(other).collect()
}

#[test]
fn a_watch_that_hears_of_no_object_goes_on_from_its_last_bookmark() {
    let mut watched = Watched::start(&Options::default());
    watched.apply(&slice("s", "web", "10.0.0.1"));
    watched.becomes(&[], &[("s", "10.0.0.1")]);
    let version = [
        "get",
        "endpointslice",
        "s",
        "-o",
        "jsonpath={.metadata.resourceVersion}",
    ];
    let version = watched.cluster.kubectl(&version).unwrap();
    let slices = "/apis/discovery.k8s.io/v1/endpointslices";
    let from_there = format!("{slices}?watch=true&timeoutSeconds=1&resourceVersion={version}");
    let is_forgotten = |watched: &Watched| {
        let answer = watched.cluster.kubectl(&["get", "--raw", &from_there]);
        format!("{answer:?}").contains("too old resource version")
    };

    watched.apply(&others(0));
    assert!(!is_forgotten(&watched));
    // Meanwhile there is a bookmark, as there is every minute.
    sleep(REMEMBERED.0);
    let until = Instant::now() + SOON;
    for generation in 1.. {
        watched.apply(&others(generation));
        if is_forgotten(&watched) {
            break;
        }
        assert!(Instant::now() < until, "the server remembers everything");
    }

    watched.line.cut();
    watched.line.restore();
    watched.apply(&slice("new", "web", "10.0.0.2"));
    watched.becomes(&[], &[("new", "10.0.0.2"), ("s", "10.0.0.1")]);
    assert_eq!(watched.lists, [1, 1]);
}
