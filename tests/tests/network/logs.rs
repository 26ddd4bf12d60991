//! The agent's log: for people or for machines, a line a change and none a packet, and nothing that is secret.

use std::net::{Ipv4Addr, SocketAddr};

use lb_tests::agent::{Agent, Options};
use lb_tests::client::Protocol;
use lb_tests::http;
use lb_tests::interrupt::eventually;
use lb_tests::manifests::Service;
use lb_tests::network::Attachment;
use lb_tests::stage::TARGET;
use serde_json::Value;

use crate::fixture::{SOON, World, becomes_answered_by, cluster_ips};

/// Lines of a log, each of which is to be a JSON object.
#[track_caller]
fn objects(agent: &Agent) -> Vec<Value> {
    let log = agent.log().unwrap();
    // The last one may not be complete.
    let complete = &log[..log.rfind('\n').unwrap()];
    let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    complete.lines().map(object).collect()
}

#[test]
fn in_json_each_line_is_an_object_and_at_debug_each_change_of_a_service_port_is_a_line_and_no_packet_is() {
    let mut world = World::new();
    let backend = world.backend(1, "backend", Attachment::Veth);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    world.start_agent_with(1, &["--log-format=json", "--log-level=debug"]);
    let web = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&web);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for to in cluster_ips(&web) {
            becomes_answered_by(&client.client(), protocol, to, "backend");
        }
    }
    let agent = &world.agents[0];
    let lines = objects(agent);
    for line in &lines {
        for field in ["timestamp", "level", "message"] {
            assert!(line[field].is_string(), "no {field} in {line}");
        }
    }
    let programmed = |service: &str| {
        let is_it = |line: &&Value| line["message"] == "changed" && line["service"] == service;
        lines.iter().rfind(is_it)
    };
    for protocol in ["TCP", "UDP"] {
        for family in ["IPv4", "IPv6"] {
            let of = web.name.as_str();
            let port = protocol.to_lowercase();
            let name = format!("default/{of}:{port} {protocol} {family}");
            let line = programmed(&name).unwrap_or_else(|| panic!("no change of {name} in {lines:#?}"));
            assert_eq!(
                (&line["frontends"], &line["endpoints"]),
                (&1.into(), &1.into()),
                "{line}"
            );
            assert_eq!(line["level"], "DEBUG");
        }
    }
    for _ in 0..20 {
        client.client().ask(Protocol::Tcp, cluster_ips(&web)[0]).unwrap();
    }
    let address = client.addresses()[0].to_string();
    assert!(!agent.log().unwrap().contains(&address), "a packet is told");
}

#[test]
fn a_log_for_errors_alone_says_nothing_of_what_goes_well() {
    let world = World::new();
    let options = Options {
        args: ["--log-level=error"].map(Into::into).to_vec(),
        ..Options::default()
    };
    let agent = Agent::spawn(world.node1(), &world.source, &options).unwrap();
    let node = world.node1();
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10249);
    // Its log is what usually tells.
    let is_ready = || {
        let metrics = http::get(node.netns(), at, "/metrics").ok();
        Ok(metrics.filter(|answer| answer.body.lines().any(|line| line == "lb_ready 1")))
    };
    eventually(SOON, "a complete state in the kernel", is_ready).unwrap();
    assert_eq!(agent.log().unwrap(), "");
    agent.stop().unwrap();
}

#[test]
fn a_password_in_a_url_is_not_in_the_log_however_much_that_says() {
    let world = World::new();
    let nobody = ["--apiserver", "http://user:s3cret@127.0.0.1:1"];
    let options = Options {
        args: ["--log-level=trace"].map(Into::into).to_vec(),
        // It would be whoever this machine's user is.
        env: vec![("KUBECONFIG".into(), "".into()), ("HOME".into(), "/nowhere".into())],
        ..Options::default()
    };
    let mut agent = Agent::spawn_reading(world.node1(), nobody, &options).unwrap();
    let told = agent.wait_for_log(SOON, "the API server cannot be watched").unwrap();
    assert!(told.contains("http://127.0.0.1:1"), "{told}");
    let log = agent.log().unwrap();
    assert!(!log.contains("s3cret"), "{log}");
}
