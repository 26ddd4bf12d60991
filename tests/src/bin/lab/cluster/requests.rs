//! Requests through each kind of Service, from each kind of client.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use comfy_table::Table;
use lb_tests::controlplane::Administrator;
use lb_tests::http;
use lb_tests::netns::Netns;
use serde_json::Value;

use super::network::{self, NODE_V4, NODE_V6};

/// How many of each: that one of three pods is never chosen then is as likely as 1 to 60,000.
const REQUESTS: usize = 30;
const PODS: usize = 3;

/// From where to where.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) client: &'static str,
    pub(super) from: Arc<Netns>,
    pub(super) service: &'static str,
    pub(super) to: SocketAddr,
}

/// What is known of the Services.
struct Known {
    cluster_ips: Vec<IpAddr>,
    client: IpAddr,
}

impl Known {
    fn ask(administrator: &Administrator) -> Result<Self> {
        let get = |what: &str| -> Result<Value> {
            Ok(serde_json::from_str(
                &administrator.kubectl(&["get", what, "-o", "json"])?,
            )?)
        };
        let service = get("service/cluster-ip")?;
        let addresses = service["spec"]["clusterIPs"].as_array().context("no clusterIPs")?;
        let parse = |value: &Value| value.as_str().unwrap_or_default().parse::<IpAddr>();
        Ok(Self {
            cluster_ips: addresses.iter().map(parse).collect::<Result<_, _>>()?,
            client: parse(&get("pod/client")?["status"]["podIP"]).context("the pod's address")?,
        })
    }
}

/// Those by address: from outside, from the node, and from a pod.
pub(super) fn ways(administrator: &Administrator) -> Result<Vec<Way>> {
    let known = Known::ask(administrator)?;
    let outside = ("outside", Arc::new(network::outside()?));
    let node = ("node", Arc::new(Netns::current()?));
    let pod = ("pod", Arc::new(network::pod(known.client)?));
    let mut ways = Vec::new();
    let mut add = |(client, from): &(&'static str, Arc<Netns>), service, address: IpAddr, port| {
        ways.push(Way {
            client,
            from: Arc::clone(from),
            service,
            to: (address, port).into(),
        });
    };
    for client in [&node, &pod] {
        for address in &known.cluster_ips {
            add(client, "ClusterIP", *address, 80);
        }
    }
    for client in [&outside, &node, &pod] {
        for address in [NODE_V4.into(), NODE_V6.into()] {
            add(client, "NodePort", address, 30080);
        }
        // As balancer.yaml and web.yaml say.
        for address in ["192.0.2.10", "2001:db8::10"] {
            add(client, "LoadBalancer", address.parse()?, 80);
        }
        add(client, "externalIPs", "192.0.2.20".parse()?, 80);
    }
    for address in [NODE_V4.into(), NODE_V6.into()] {
        add(&outside, "nginx at a NodePort", address, 30443);
    }
    Ok(ways)
}

const HEADLESS: &str = "headless";

/// Services, and the names that a pod asks them by.
const NAMES: [(&str, &str); 6] = [
    ("ClusterIP", "cluster-ip"),
    ("NodePort", "node-port"),
    ("LoadBalancer", "load-balancer"),
    ("externalIPs", "external-ips"),
    (HEADLESS, "headless:8080"),
    ("ExternalName", "external-name"),
];

/// Asks through all of them, prints what came of it, and says whether all was right.
pub(super) fn through_each(administrator: &Administrator) -> Result<bool> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["from", "service", "asked", "answered", "by pods"]);
    let mut right = look_up(administrator)?;
    let mut row = |client: &str, service: &str, to: String, answers: Vec<String>| {
        // A client that gets the pods' own addresses chooses by rules of its own, always the same.
        let expected = if service == HEADLESS { 1 } else { PODS };
        let pods: BTreeSet<_> = answers.iter().filter(|name| name.starts_with("web-")).collect();
        right &= answers.len() == REQUESTS && pods.len() == expected;
        let answered = format!("{} of {REQUESTS}", answers.len());
        table.add_row([
            client.to_owned(),
            service.to_owned(),
            to,
            answered,
            pods.len().to_string(),
        ]);
    };
    for (service, name) in NAMES {
        let script = format!(
            "i=0; while [ $i -lt {REQUESTS} ]; do timeout 5 wget -q -O - http://{name}/ || echo failed; i=$((i+1)); done"
        );
        let said = administrator.kubectl(&["exec", "client", "--", "sh", "-c", &script])?;
        let answers = said.lines().filter(|line| *line != "failed").map(str::to_owned);
        row("pod", service, format!("http://{name}/"), answers.collect());
    }
    for way in ways(administrator)? {
        let mut answers = Vec::new();
        for _ in 0..REQUESTS {
            match way.ask() {
                Ok(pod) => answers.push(pod),
                Err(error) => eprintln!("{} to {}: {error:#}", way.client, way.to),
            }
        }
        row(way.client, way.service, way.to.to_string(), answers);
    }
    println!("{table}");
    Ok(right)
}

impl Way {
    /// One request over a connection of its own. Returns which pod answered.
    pub(super) fn ask(&self) -> Result<String> {
        let answer = http::get(&self.from, self.to, "/")?;
        ensure!(answer.status == 200, "status {}", answer.status);
        if self.to.port() == 30443 {
            ensure!(answer.header("x-ingress").is_some(), "the ingress did not see it");
        }
        Ok(answer.body.trim().to_owned())
    }
}

/// Has a pod look names up, and says whether it was told what the API server says.
fn look_up(administrator: &Administrator) -> Result<bool> {
    let mut right = true;
    for name in ["cluster-ip", "headless"] {
        let full = format!("{name}.default.svc.cluster.local");
        let said = administrator.kubectl(&["exec", "client", "--", "nslookup", &full, "10.96.0.10"])?;
        let expected = if name == "headless" {
            let pods = [
                "get",
                "pods",
                "-l",
                "app=web",
                "-o",
                "jsonpath={.items[*].status.podIP}",
            ];
            administrator.kubectl(&pods)?
        } else {
            let service = format!("service/{name}");
            administrator.kubectl(&["get", &service, "-o", "jsonpath={.spec.clusterIPs[*]}"])?
        };
        let mut told: Vec<_> = said
            .lines()
            .filter_map(|line| line.strip_prefix("Address: "))
            .map(str::trim)
            .collect();
        told.sort_unstable();
        let all = expected.split_whitespace().all(|address| told.contains(&address));
        right &= all && !expected.trim().is_empty();
        println!("{full} by 10.96.0.10: {}", told.join(" "));
        if !all {
            eprintln!("{full} has {expected}, but nslookup said: {said}");
        }
    }
    println!();
    Ok(right)
}
