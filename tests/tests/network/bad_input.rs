//! What is wrong with what the agent is given is said so that somebody can mend it, and stops nothing else.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lb_tests::agent::{self, Agent, Maps, Options};
use lb_tests::client::Protocol;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node, plan};
use lb_tests::owner::Folder;
use lb_tests::patience::patient;
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;
use lb_tests::source::Source;
use lb_tests::stage::{Family, TARGET};
use nix::unistd::{Uid, chown};

use crate::fixture::{BRIEFLY, SOON, World, becomes, becomes_answered_by, cluster_ip, cluster_ips, is_silence};

/// Why these are tests of one plane only.
const COMMAND_LINE: &str = "the command line is one for all planes";

/// Longer than an agent takes to find out that it cannot run.
const LIMIT: Duration = Duration::from_secs(30);

/// How an agent ended that cannot run.
struct Ended {
    code: Option<i32>,
    said: String,
}

impl Ended {
    /// Runs a command on a node to its end, which comes by itself.
    #[track_caller]
    fn of(node: &Node, mut command: Command) -> Self {
        let folder = Folder::new().unwrap();
        let log = folder.path().join("log");
        let file = File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        let mut child = process::spawn(command, node.netns(), Some(node.cgroup())).unwrap();
        let status = process::wait(&mut child, LIMIT).unwrap();
        let said = fs::read_to_string(log).unwrap();
        let Some(status) = status else {
            process::stop(&mut child, Duration::ZERO).unwrap();
            panic!("it runs, and says: {said}");
        };
        Self {
            code: status.code(),
            said,
        }
    }

    /// It failed, and said all of this.
    #[track_caller]
    fn with(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.said);
        for text in said {
            assert!(self.said.contains(text), "no {text:?} in: {}", self.said);
        }
    }
}

/// `lb-agent run` with no arguments but these.
fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(agent::binary().unwrap());
    command.arg("run").args(args);
    command
}

/// Where nothing is wrong yet.
fn good_args(world: &World) -> Vec<(&'static str, OsString)> {
    let node = world.node1();
    let [source, folder] = world.source.agent_args();
    assert_eq!(source, Path::new("--source"));
    vec![
        // Named, or another would take its place where this one cannot be run.
        ("--plane", Plane::under_test().word().into()),
        ("--source", folder.into()),
        ("--node-name", node.name().into()),
        ("--run-dir", node.run_dir().into()),
        ("--bpffs", node.bpffs().path().into()),
        ("--cgroup", node.cgroup().path().into()),
    ]
}

/// The same with another value of one of them.
fn good_args_but(world: &World, flag: &str, value: &Path) -> Vec<OsString> {
    let args = good_args(world).into_iter().map(|(name, good)| {
        let value = if name == flag { value.into() } else { good };
        [name.into(), value]
    });
    args.flatten().collect()
}

#[test]
fn a_flag_that_there_is_not_is_a_usage_error_that_names_it() {
    if other_than(Plane::Ebpf, COMMAND_LINE) {
        return;
    }
    let world = World::new();
    Ended::of(world.node1(), run(["--max-service=1"])).with(2, &["--max-service", "--help"]);
    Ended::of(world.node1(), run(["--max-services=many"])).with(2, &["--max-services", "many"]);
    let mut command = run([] as [&str; 0]);
    command.env("LB_AGENT_MASQUERADE_MARK", "3");
    Ended::of(world.node1(), command).with(2, &["--masquerade-mark", "0x3 is not one bit"]);
}

#[test]
fn a_field_that_there_is_not_is_an_error_that_names_it() {
    if other_than(Plane::Ebpf, COMMAND_LINE) {
        return;
    }
    let world = World::new();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("config.yaml");
    for (text, said) in [
        ("maxServices: 1\nmaxService: 1\n", "maxService`"),
        ("maxServices: many\n", "line 1"),
        ("maxServices: [\n", "line 1"),
    ] {
        fs::write(&file, text).unwrap();
        let ended = Ended::of(world.node1(), run([OsStr::new("--config"), file.as_os_str()]));
        ended.with(1, &["config.yaml", said]);
    }
    fs::remove_file(&file).unwrap();
    let mut command = run([] as [&str; 0]);
    command.env("LB_AGENT_CONFIG", &file);
    Ended::of(world.node1(), command).with(1, &["config.yaml", "No such file"]);
}

#[test]
fn a_wrong_rule_for_links_is_named_wherever_it_is_given() {
    if other_than(Plane::Ebpf, COMMAND_LINE) {
        return;
    }
    let world = World::new();
    let mut command = run(good_args(&world)
        .into_iter()
        .flat_map(|(name, value)| [name.into(), value]));
    command.env("LB_AGENT_LINK", "eth0=uplink\neth1=downlink\n");
    let said = ["eth1=downlink", "\"downlink\" is none of pod, uplink, tunnel, ignore"];
    Ended::of(world.node1(), command).with(1, &said);
}

#[test]
fn a_kubeconfig_that_makes_no_sense_is_named_without_what_is_in_it() {
    if other_than(Plane::Ebpf, "the API server is asked in one way by all planes") {
        return;
    }
    let world = World::new();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("kubeconfig");
    fs::write(&file, "apiVersion: v1\nusers:\n- name: u\n  user: s3cret\n").unwrap();
    let ended = Ended::of(world.node1(), run([OsStr::new("--kubeconfig"), file.as_os_str()]));
    ended.with(1, &["kubeconfig: line 4, column 9"]);
    assert!(!ended.said.contains("s3cret"), "{}", ended.said);
}

#[test]
fn a_credential_plugin_that_fails_gives_no_secret_away() {
    if other_than(Plane::Ebpf, "the API server is asked in one way by all planes") {
        return;
    }
    let world = World::new();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = r#"
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://172.18.0.1:6443"}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: IfAvailable
      command: sh
      args: [-c, "echo s3cret-token; echo s3cret-token >&2; exit 1", s3cret-argument]
      env: [{name: PASSWORD, value: s3cret-variable}]
"#;
    fs::write(&file, text).unwrap();
    let mut command = run([OsStr::new("--kubeconfig"), file.as_os_str()]);
    command.env("LB_AGENT_LOG_LEVEL", "trace");
    let ended = Ended::of(world.node1(), command);
    ended.with(1, &["the credential plugin of the kubeconfig failed, exit status: 1"]);
    assert!(!ended.said.contains("s3cret"), "{}", ended.said);
}

/// A system that knows no certificate authority, as an image without the package has it.
const NO_AUTHORITIES: [(&str, &str); 4] = [
    ("SSL_CERT_FILE", "/dev/null"),
    ("SSL_CERT_DIR", "/dev/null"),
    // No kubeconfig names any, either.
    ("KUBECONFIG", ""),
    ("HOME", "/dev/null"),
];

#[test]
fn an_api_server_without_tls_takes_no_certificate_authorities() {
    if other_than(Plane::Ebpf, COMMAND_LINE) {
        return;
    }
    let world = World::new();
    let options = Options {
        env: NO_AUTHORITIES.map(|(name, value)| (name.into(), value.into())).into(),
        ..Options::default()
    };
    // Nobody listens there.
    let server = ["--apiserver", "http://127.0.0.1:1"];
    let mut agent = Agent::spawn_reading(world.node1(), server, &options).unwrap();
    agent.wait_for_log(SOON, "Connection refused").unwrap();
}

#[test]
fn an_api_server_whose_certificate_cannot_be_judged_is_refused_with_what_to_do() {
    if other_than(Plane::Ebpf, COMMAND_LINE) {
        return;
    }
    let world = World::new();
    let mut command = run(["--apiserver", "https://127.0.0.1:1"].map(OsStr::new));
    command.envs(NO_AUTHORITIES);
    let said = ["https://127.0.0.1:1", "certificate-authority", "ca-certificates"];
    Ended::of(world.node1(), command).with(1, &said);
}

#[test]
fn without_privileges_it_says_which_are_missing() {
    let world = World::new();
    // Whoever runs the tests, and wherever they are built: user 65534 can read this folder.
    let folder = Folder::new().unwrap();
    let program = folder.path().join("lb-agent");
    fs::copy(agent::binary().unwrap(), &program).unwrap();
    chown(world.node1().run_dir(), Some(Uid::from_raw(65534)), None).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--",
        ])
        .arg(program)
        .arg("run");
    for (name, value) in good_args(&world) {
        command.arg(name).arg(value);
    }
    let said: &[&str] = match Plane::under_test() {
        Plane::Ebpf => &["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "run as root"],
        Plane::Ipvs => &["CAP_NET_ADMIN", "run as root"],
    };
    Ended::of(world.node1(), command).with(1, said);
}

#[test]
fn without_a_bpf_file_system_it_says_how_to_mount_one() {
    if other_than(Plane::Ebpf, "it needs what programs need") {
        return;
    }
    let world = World::new();
    let folder = Folder::new().unwrap();
    let here = format!("mount -t bpf bpf {}", folder.path().display());
    let ended = Ended::of(world.node1(), run(good_args_but(&world, "--bpffs", folder.path())));
    ended.with(1, &["is not on a bpf filesystem", &here]);
    let absent = folder.path().join("absent");
    let ended = Ended::of(world.node1(), run(good_args_but(&world, "--bpffs", &absent)));
    ended.with(1, &["no bpf filesystem at", "make the folder", "/absent"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn without_a_cgroup_v2_it_says_what_that_is_for_and_how_to_go_without() {
    if other_than(Plane::Ebpf, "it needs what programs need") {
        return;
    }
    let world = World::new();
    let folder = Folder::new().unwrap();
    let shown = folder.path().display().to_string();
    let ended = Ended::of(world.node1(), run(good_args_but(&world, "--cgroup", folder.path())));
    ended.with(1, &[&shown, "is no cgroup v2", "--socket-lb off"]);
    let absent = folder.path().join("absent");
    let ended = Ended::of(world.node1(), run(good_args_but(&world, "--cgroup", &absent)));
    ended.with(1, &["no cgroup at", "/absent", "--socket-lb off"]);
}

#[test]
fn an_object_that_makes_no_sense_costs_itself_alone() {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let client = client.client();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let good = Service::new("good", 1, TARGET).with_endpoints([&backend]);
    let neighbour = Service::new("neighbour", 2, TARGET).with_endpoints([&backend]);
    world.apply(&good);
    let Source::Folder(folder) = &world.source else {
        panic!("a folder expected")
    };
    let folder = folder.path().to_owned();
    // Bad objects in files of their own and in one with a good one, and a file that is no YAML.
    let service = |namespace: &str, name: &str, spec: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{namespace: {namespace}, name: {name}}}, spec: {spec}}}\n"
        )
    };
    let mixed = service("shop", "no-address", "{clusterIP: web, ports: [{port: 80}]}")
        + &service("shop", "no-number", "{clusterIP: 10.96.0.77, ports: [{port: many}]}")
        + &neighbour
            .manifests()
            .unwrap()
            .iter()
            .map(|manifest| format!("---\n{}", manifest.yaml().unwrap()))
            .collect::<String>();
    fs::write(folder.join("a-mixed.yaml"), mixed).unwrap();
    fs::write(folder.join("b-broken.yaml"), "kind: [\n").unwrap();

    world.start_agent(1);
    let log = world.agents[0].log().unwrap();
    for said in [
        "Service shop/no-address is skipped",
        "spec.clusterIP: \"web\" is not an IP address",
        "Service shop/no-number is skipped",
        "a-mixed.yaml:",
        "b-broken.yaml: ",
    ] {
        assert!(log.contains(said), "no {said:?} in: {log}");
    }
    for to in [cluster_ips(&good), cluster_ips(&neighbour)].concat() {
        becomes_answered_by(&client, Protocol::Tcp, to, "backend");
    }

    // One that turns bad stays as it was, and is followed again when it is mended.
    let slice = &good.slice_manifests().unwrap()[0];
    let path = folder.join(format!("endpointslice-{}.yaml", slice.name));
    let yaml = slice.yaml().unwrap();
    assert!(yaml.contains("addressType: IPv4"), "{yaml}");
    fs::write(&path, yaml.replace("addressType: IPv4", "addressType: IPv5")).unwrap();
    let said = format!(
        "EndpointSlice default/{} is skipped, its last good version stays",
        slice.name
    );
    world.agents[0].wait_for_log(SOON, &said).unwrap();
    becomes_answered_by(&client, Protocol::Tcp, cluster_ip(&good, Family::V4), "backend");
    let other = world.backend(1, "other", Attachment::Bridge);
    world.apply(&good.clone().with_endpoints([&other]));
    becomes_answered_by(&client, Protocol::Tcp, cluster_ip(&good, Family::V4), "other");
}

#[test]
fn a_full_map_refuses_what_has_no_room_and_takes_it_when_there_is() {
    if other_than(Plane::Ebpf, "maps have a size") {
        return;
    }
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let client = client.client();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let [first, second] = [("first", 1), ("second", 2)]
        .map(|(name, number)| Service::new(name, number, TARGET).with_endpoints([&backend]));
    world.apply(&first);
    let options = Options {
        maps: Maps::Default,
        args: [
            // Two families and two protocols: one Service.
            "--max-services=4",
            "--max-slots=1024",
            "--max-backends=1024",
            "--max-flows=1024",
            "--max-sockets=1024",
        ]
        .map(OsString::from)
        .into(),
        ..Options::default()
    };
    let agent = Agent::start(world.node1(), &world.source, &options).unwrap();
    world.agents.push(agent);

    world.apply(&second);
    for said in [
        "map SERVICES is full (4 entries): raise --max-services",
        "default/second",
    ] {
        let line = world.agents[0].wait_for_log(SOON, said).unwrap();
        assert!(line.contains("keeps its former state"), "{line}");
    }
    let hasty = client.with_timeout(BRIEFLY);
    for (served, unserved) in cluster_ips(&first).into_iter().zip(cluster_ips(&second)) {
        becomes_answered_by(&client, Protocol::Udp, served, "backend");
        assert!(is_silence(&hasty.ask(Protocol::Udp, unserved)));
    }

    // Changes of what has its place go on.
    let other = world.backend(1, "other", Attachment::Bridge);
    let moved = first.clone().with_endpoints([&other]);
    world.apply(&moved);
    for to in cluster_ips(&first) {
        becomes_answered_by(&client, Protocol::Tcp, to, "other");
    }

    world.delete(&moved);
    for to in cluster_ips(&second) {
        for protocol in crate::fixture::BOTH {
            let is_backend = |outcome: &lb_tests::client::Outcome| outcome.is_ok();
            becomes("the one that had no room", || hasty.ask(protocol, to), is_backend);
        }
    }
}

#[test]
fn an_api_server_that_is_out_of_reach_is_named_and_asked_again_and_again() {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let client = client.client();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    world.agents.pop().unwrap().stop().unwrap();

    // It takes over what the one before has programmed, and cannot know whether that is still wanted.
    let address = SocketAddr::new(plan::SWITCH_V4.into(), 6443);
    let url = format!("http://{address}");
    let folder = Folder::new().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u}}], \
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}]}}"
    );
    fs::write(&kubeconfig, text).unwrap();
    let source = [OsStr::new("--kubeconfig"), kubeconfig.as_os_str()];
    let mut agent = Agent::spawn_reading(world.node1(), source, &Options::default()).unwrap();
    let line = agent.wait_for_log(SOON, "the API server cannot be watched").unwrap();
    for said in [&url, "its last word stays in force", "onnection refused"] {
        assert!(line.contains(said), "no {said:?} in: {line}");
    }
    for to in cluster_ips(&service) {
        for protocol in crate::fixture::BOTH {
            becomes_answered_by(&client, protocol, to, "backend");
        }
    }
    let late = world.node1().add_pod("late", Attachment::Veth).unwrap();
    becomes_answered_by(&late.client(), Protocol::Tcp, cluster_ips(&service)[0], "backend");

    // It comes to whoever listens there now, more than once, and does not repeat itself meanwhile.
    let listener = world
        .network
        .switch()
        .run(|| TcpListener::bind(address))
        .unwrap()
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + patient(SOON);
    let mut visits = 0;
    while visits < 2 {
        visits += usize::from(listener.accept().is_ok());
        assert!(
            Instant::now() < until,
            "{visits} visits; the log: {}",
            agent.log().unwrap()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = agent.log().unwrap();
    let said = log.lines().filter(|line| line.contains("onnection refused")).count();
    assert_eq!(said, 1, "{log}");
    assert!(!log.contains(" ready "), "{log}");
    becomes_answered_by(&client, Protocol::Tcp, cluster_ips(&service)[0], "backend");
    agent.stop().unwrap();
}
