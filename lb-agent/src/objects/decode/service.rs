//! Service.

use std::{
    collections::BTreeSet,
    num::{NonZeroU16, NonZeroU32},
    slice,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;

use super::{
    ALGORITHM, Decode, Decoded, FieldError, SERVICE_PROXY_NAME, annotation, has_label, ip, keep, network, port_number,
    protocol, required_name,
};
use crate::desired::Distribution;
use crate::model::{
    AnyService, ClusterIps, Event, Kind, Service, ServiceIp, ServicePort, ServicePorts, TrafficPolicy, Update,
};

/// Seconds of session affinity, where the object does not say: the API server's default.
const DEFAULT_AFFINITY: NonZeroU32 = NonZeroU32::new(10_800).unwrap();

impl Decode for AnyService {
    type Wire = core::Service;

    const KIND: Kind = Kind::Service;

    fn decode(wire: Self::Wire, _: &str) -> Result<Decoded<Self>, FieldError> {
        let name = required_name(Self::KIND, &wire.metadata)?;
        let spec = wire.spec.ok_or_else(|| FieldError::new("spec", "missing"))?;
        if spec.type_.as_deref() == Some("ExternalName") {
            return Ok(Decoded::Ignored("type ExternalName"));
        }
        if spec.cluster_ip.as_deref() == Some("None") {
            return Ok(Decoded::Ignored("headless"));
        }
        let cluster_ips = cluster_ips(&spec)?;
        let mut skipped = Vec::new();
        if has_label(wire.metadata.labels.as_ref(), SERVICE_PROXY_NAME) {
            let object = Self::OfAnotherProxy { name, cluster_ips };
            return Ok(Decoded::Object { object, skipped });
        }

        let policy = external_traffic_policy(&spec)?;
        let health_check_node_port = health_check_node_port(&spec, policy, &mut skipped);
        let affinity = affinity(&spec, &mut skipped);
        let annotations = wire.metadata.annotations.as_ref();
        let algorithm = annotations.and_then(|annotations| annotations.get(ALGORITHM));
        let distribution = algorithm.and_then(|algorithm| keep(distribution(algorithm), &mut skipped));
        let external_ips = spec.external_ips.unwrap_or_default();
        let ports = spec.ports.unwrap_or_default().into_iter().enumerate();
        let ports = ports.map(|(index, port)| service_port(index, port));
        let ports = ServicePorts::new(ports.collect::<Result<_, _>>()?)
            .map_err(|error| FieldError::new(format!("spec.ports[{}]", error.index()), error))?;
        let service = Service {
            name,
            cluster_ips,
            external_ips: service_ips("spec.externalIPs", external_ips, &mut skipped),
            load_balancer_ips: load_balancer_ips(wire.status.unwrap_or_default(), &mut skipped),
            source_ranges: source_ranges(spec.load_balancer_source_ranges.unwrap_or_default(), &mut skipped),
            ports,
            internal_traffic_policy: traffic_policy(
                "spec.internalTrafficPolicy",
                spec.internal_traffic_policy.as_deref(),
            )?,
            external_traffic_policy: policy,
            affinity,
            health_check_node_port,
            distribution,
        };
        Ok(Decoded::Object {
            object: service.into(),
            skipped,
        })
    }

    fn event(update: Update<Self>) -> Event {
        Event::Services(update)
    }
}

fn cluster_ips(spec: &core::ServiceSpec) -> Result<ClusterIps, FieldError> {
    let one = spec.cluster_ip.as_ref().filter(|ip| !ip.is_empty());
    let (path, addresses) = match spec.cluster_ips.as_deref() {
        Some(all) if !all.is_empty() => ("spec.clusterIPs", all),
        _ => ("spec.clusterIP", one.map_or(&[][..], slice::from_ref)),
    };
    let addresses = addresses.iter().map(|address| ip(path, address));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    ClusterIps::new(addresses).map_err(|error| FieldError::new(path, error))
}

/// Addresses of which each counts by itself. Blank ones are none: API servers have let them pass.
fn service_ips(path: &str, addresses: Vec<String>, skipped: &mut Vec<FieldError>) -> BTreeSet<ServiceIp> {
    let addresses = addresses.into_iter().enumerate();
    let addresses = addresses.filter(|(_, address)| !address.trim().is_empty());
    addresses
        .filter_map(|(index, address)| keep(service_ip(format!("{path}[{index}]"), &address), skipped))
        .collect()
}

fn service_ip(path: String, address: &str) -> Result<ServiceIp, FieldError> {
    ServiceIp::new(ip(path.clone(), address)?).map_err(|error| FieldError::new(path, error))
}

/// The addresses of load balancers that leave a packet's destination as it is. One that proxies
/// (`ipMode: Proxy`) dials NodePorts or pods, and its own address is none of the nodes' business.
fn load_balancer_ips(status: core::ServiceStatus, skipped: &mut Vec<FieldError>) -> BTreeSet<ServiceIp> {
    let ingress = status
        .load_balancer
        .and_then(|status| status.ingress)
        .unwrap_or_default();
    let mut addresses = BTreeSet::new();
    for (index, ingress) in ingress.into_iter().enumerate() {
        let is_vip = ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
        if let Some(address) = ingress.ip.filter(|address| is_vip && !address.is_empty()) {
            let path = format!("status.loadBalancer.ingress[{index}].ip");
            addresses.extend(keep(service_ip(path, &address), skipped));
        }
    }
    addresses
}

/// Networks, with white space around them as API servers have let it pass.
fn source_ranges(ranges: Vec<String>, skipped: &mut Vec<FieldError>) -> BTreeSet<IpNet> {
    let ranges = ranges.iter().map(|range| range.trim()).enumerate();
    ranges
        .filter(|(_, range)| !range.is_empty())
        .filter_map(|(index, range)| {
            let path = format!("spec.loadBalancerSourceRanges[{index}]");
            keep(network(path, range), skipped)
        })
        .collect()
}

/// For Services that clients outside the cluster can dial; that of others means nothing.
fn external_traffic_policy(spec: &core::ServiceSpec) -> Result<TrafficPolicy, FieldError> {
    let policy = traffic_policy("spec.externalTrafficPolicy", spec.external_traffic_policy.as_deref())?;
    let is_external = match spec.type_.as_deref() {
        Some("LoadBalancer" | "NodePort") => true,
        _ => spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()),
    };
    Ok(if is_external { policy } else { TrafficPolicy::Cluster })
}

fn distribution(algorithm: &str) -> Result<Distribution, FieldError> {
    match algorithm {
        "random" => Ok(Distribution::Random),
        "maglev" => Ok(Distribution::Maglev),
        other => Err(FieldError::new(
            annotation(ALGORITHM),
            format_args!("{other:?} is neither random nor maglev"),
        )),
    }
}

fn health_check_node_port(
    spec: &core::ServiceSpec,
    policy: TrafficPolicy,
    skipped: &mut Vec<FieldError>,
) -> Option<NonZeroU16> {
    let has_one = spec.type_.as_deref() == Some("LoadBalancer") && policy == TrafficPolicy::Local;
    let number = spec.health_check_node_port.filter(|number| has_one && *number != 0)?;
    keep(port_number("spec.healthCheckNodePort".into(), number), skipped)
}

/// Seconds of session affinity, if there is any.
fn affinity(spec: &core::ServiceSpec, skipped: &mut Vec<FieldError>) -> Option<NonZeroU32> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            let reason = format_args!("{other:?} is neither None nor ClientIP");
            skipped.push(FieldError::new("spec.sessionAffinity", reason));
            return None;
        }
    }
    let config = spec.session_affinity_config.as_ref();
    let client_ip = config.and_then(|config| config.client_ip.as_ref());
    let Some(seconds) = client_ip.and_then(|client_ip| client_ip.timeout_seconds) else {
        return Some(DEFAULT_AFFINITY);
    };
    let valid = u32::try_from(seconds).ok().and_then(NonZeroU32::new);
    Some(valid.unwrap_or_else(|| {
        let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        let reason = format_args!("{seconds} is not positive, {DEFAULT_AFFINITY} counts");
        skipped.push(FieldError::new(path, reason));
        DEFAULT_AFFINITY
    }))
}

fn service_port(index: usize, port: core::ServicePort) -> Result<ServicePort, FieldError> {
    let path = |field: &str| format!("spec.ports[{index}].{field}");
    let node_port = match port.node_port {
        None | Some(0) => None,
        Some(number) => Some(port_number(path("nodePort"), number)?),
    };
    Ok(ServicePort {
        name: port.name.unwrap_or_default(),
        protocol: protocol(path("protocol"), port.protocol.as_deref())?,
        port: port_number(path("port"), port.port)?,
        node_port,
    })
}

fn traffic_policy(path: &str, policy: Option<&str>) -> Result<TrafficPolicy, FieldError> {
    match policy {
        None | Some("" | "Cluster") => Ok(TrafficPolicy::Cluster),
        Some("Local") => Ok(TrafficPolicy::Local),
        Some(other) => Err(FieldError::new(
            path,
            format_args!("{other:?} is neither Cluster nor Local"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::tests::{decode, object},
        *,
    };
    use crate::{desired::Protocol, model::ObjectName};

    fn service(spec: Value) -> Value {
        json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": spec })
    }

    fn ours(wire: Value) -> Service {
        let service: AnyService = object(wire);
        service.ours().expect("a Service of ours").clone()
    }

    #[test]
    fn a_service_as_the_api_server_writes_it() {
        let service = ours(service(json!({
            "type": "NodePort",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "fd00:96::1"],
            "internalTrafficPolicy": "Cluster",
            "externalTrafficPolicy": "Local",
            "ports": [{
                "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30080,
            }],
        })));
        assert_eq!(service.name.to_string(), "shop/web");
        let cluster_ips: Vec<_> = service.cluster_ips.iter().map(|ip| ip.to_string()).collect();
        assert_eq!(cluster_ips, ["10.96.0.1", "fd00:96::1"]);
        assert_eq!(service.internal_traffic_policy, TrafficPolicy::Cluster);
        assert_eq!(service.external_traffic_policy, TrafficPolicy::Local);
        let [port] = &service.ports.iter().collect::<Vec<_>>()[..] else {
            panic!("one port expected");
        };
        assert_eq!((port.name.as_str(), port.protocol), ("http", Protocol::Tcp));
        assert_eq!(
            (port.port.get(), port.node_port.map(NonZeroU16::get)),
            (80, Some(30080))
        );
    }

    #[test]
    fn a_service_as_a_person_writes_it() {
        let service = ours(json!({
            "metadata": { "name": "web" },
            "spec": { "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] },
        }));
        assert_eq!(service.name.to_string(), "default/web");
        assert_eq!(service.internal_traffic_policy, TrafficPolicy::Cluster);
        assert_eq!(service.ports.iter().next().unwrap().protocol, Protocol::Tcp);
    }

    #[test]
    fn services_that_no_proxy_serves_are_ignored_whatever_their_label_says() {
        let external_name = json!({ "type": "ExternalName", "externalName": "example.org" });
        for spec in [json!({ "clusterIP": "None", "ports": [{ "port": 80 }] }), external_name] {
            for ignored in [service(spec.clone()), of_another_proxy(spec)] {
                assert!(matches!(decode::<AnyService>(ignored), Ok(Decoded::Ignored(_))));
            }
        }
    }

    fn of_another_proxy(spec: Value) -> Value {
        let mut service = service(spec);
        service["metadata"]["labels"] = json!({ SERVICE_PROXY_NAME: "" });
        service
    }

    #[test]
    fn of_a_service_of_another_proxy_its_cluster_ips_are_read_and_nothing_else() {
        let service: AnyService = object(of_another_proxy(json!({
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "fd00:96::1"],
            "externalIPs": ["nonsense"],
            "sessionAffinity": "Cookie",
            "ports": [{ "port": 0 }],
        })));
        let cluster_ips = ["10.96.0.1", "fd00:96::1"].map(|ip| ip.parse().unwrap());
        let expected = AnyService::OfAnotherProxy {
            name: ObjectName::new("shop", "web"),
            cluster_ips: ClusterIps::new(cluster_ips).unwrap(),
        };
        assert_eq!(service, expected);

        let nonsense = decode::<AnyService>(of_another_proxy(json!({ "clusterIP": "web" })));
        assert_eq!(
            nonsense.unwrap_err().to_string(),
            "spec.clusterIP: \"web\" is not an IP address"
        );
    }

    #[test]
    fn a_service_that_says_nonsense_is_an_error_with_the_path_of_the_field() {
        let table = [
            (json!({ "ports": [] }), "spec.clusterIP: no ClusterIP"),
            (
                json!({ "clusterIP": "web" }),
                "spec.clusterIP: \"web\" is not an IP address",
            ),
            (
                json!({ "clusterIPs": ["10.96.0.1", "10.96.0.2"] }),
                "spec.clusterIPs: 10.96.0.2 is a second IPv4 ClusterIP",
            ),
            (
                json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }, { "port": 0 }] }),
                "spec.ports[1].port: 0 is not a port (1-65535)",
            ),
            (
                json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 1, "nodePort": 65536 }] }),
                "spec.ports[0].nodePort: 65536 is not a port (1-65535)",
            ),
            (
                json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 1, "protocol": "ICMP" }] }),
                "spec.ports[0].protocol: \"ICMP\" is none of TCP, UDP, SCTP",
            ),
            (
                json!({ "clusterIP": "10.96.0.1", "internalTrafficPolicy": "local" }),
                "spec.internalTrafficPolicy: \"local\" is neither Cluster nor Local",
            ),
            (
                json!({ "clusterIP": "10.96.0.1", "ports": [
                    { "name": "a", "port": 80 }, { "name": "b", "port": 80 },
                ] }),
                "spec.ports[1]: 80/TCP is there already",
            ),
        ];
        for (spec, expected) in table {
            let error = decode::<AnyService>(service(spec)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    fn with_skipped(wire: Value) -> (Service, Vec<String>) {
        let Decoded::Object {
            object: AnyService::Ours(service),
            skipped,
        } = decode(wire).unwrap()
        else {
            panic!("a Service of ours expected");
        };
        (service, skipped.iter().map(ToString::to_string).collect())
    }

    fn addresses(addresses: &BTreeSet<ServiceIp>) -> Vec<String> {
        addresses.iter().map(|ip| ip.get().to_string()).collect()
    }

    fn load_balancer(ingress: Value) -> Value {
        let mut service = service(json!({ "type": "LoadBalancer", "clusterIP": "10.96.0.1" }));
        service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        service
    }

    #[test]
    fn a_load_balancer_has_the_addresses_that_keep_a_packets_destination() {
        let service = ours(load_balancer(json!([
            { "ip": "203.0.113.2", "ipMode": "VIP" },
            { "ip": "203.0.113.1" },
            { "ip": "2001:db8::1" },
            { "ip": "203.0.113.9", "ipMode": "Proxy" },
            { "hostname": "example.org" },
        ])));
        assert_eq!(
            addresses(&service.load_balancer_ips),
            ["203.0.113.1", "203.0.113.2", "2001:db8::1"]
        );
    }

    #[test]
    fn an_address_or_range_that_says_nonsense_costs_itself_and_not_its_service() {
        let mut wire = load_balancer(json!([{ "ip": "203.0.113.1" }, { "ip": "balancer" }, { "ip": "127.0.0.1" }]));
        wire["spec"]["externalIPs"] = json!(["192.0.2.1", "", "192.0.2.256", "0.0.0.0", "224.0.0.1"]);
        wire["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24", "198.51.100.0", "198.51.100.0/33", ""]);
        let (service, skipped) = with_skipped(wire);
        assert_eq!(addresses(&service.load_balancer_ips), ["203.0.113.1"]);
        assert_eq!(addresses(&service.external_ips), ["192.0.2.1"]);
        assert_eq!(
            service.source_ranges,
            BTreeSet::from(["198.51.100.0/24".parse().unwrap()])
        );
        assert_eq!(
            skipped,
            [
                "spec.externalIPs[2]: \"192.0.2.256\" is not an IP address",
                "spec.externalIPs[3]: 0.0.0.0 cannot be the address of a Service",
                "spec.externalIPs[4]: 224.0.0.1 cannot be the address of a Service",
                "status.loadBalancer.ingress[1].ip: \"balancer\" is not an IP address",
                "status.loadBalancer.ingress[2].ip: 127.0.0.1 cannot be the address of a Service",
                "spec.loadBalancerSourceRanges[1]: \"198.51.100.0\" is not a CIDR",
                "spec.loadBalancerSourceRanges[2]: \"198.51.100.0/33\" is not a CIDR",
            ]
        );
    }

    #[test]
    fn source_ranges_may_have_white_space_leading_zeros_and_bits_beyond_the_prefix() {
        let mut wire = load_balancer(json!([]));
        wire["spec"]["loadBalancerSourceRanges"] = json!([" 198.051.100.7/24\n", "2001:db8::1/32", "198.51.100.0/24"]);
        let service = ours(wire);
        let ranges: Vec<_> = service.source_ranges.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["198.51.100.0/24", "2001:db8::/32"]);
    }

    #[test]
    fn the_external_policy_counts_where_clients_outside_can_dial() {
        let policy = |kind: Value, external_ips: Value| {
            let service = ours(service(json!({
                "type": kind,
                "clusterIP": "10.96.0.1",
                "externalIPs": external_ips,
                "externalTrafficPolicy": "Local",
            })));
            service.external_traffic_policy
        };
        assert_eq!(policy(json!("LoadBalancer"), json!([])), TrafficPolicy::Local);
        assert_eq!(policy(json!("NodePort"), json!([])), TrafficPolicy::Local);
        assert_eq!(policy(json!("ClusterIP"), json!(["192.0.2.1"])), TrafficPolicy::Local);
        assert_eq!(policy(json!("ClusterIP"), json!([])), TrafficPolicy::Cluster);
        assert_eq!(policy(Value::Null, json!([])), TrafficPolicy::Cluster);
    }

    #[test]
    fn load_balancers_that_keep_to_the_node_have_a_health_check() {
        let port = |kind: &str, policy: &str, number: i32| {
            let (service, skipped) = with_skipped(service(json!({
                "type": kind,
                "clusterIP": "10.96.0.1",
                "externalTrafficPolicy": policy,
                "healthCheckNodePort": number,
            })));
            (service.health_check_node_port.map(NonZeroU16::get), skipped.len())
        };
        assert_eq!(port("LoadBalancer", "Local", 32000), (Some(32000), 0));
        assert_eq!(port("LoadBalancer", "Local", 0), (None, 0));
        assert_eq!(port("LoadBalancer", "Local", 65536), (None, 1));
        assert_eq!(port("LoadBalancer", "Cluster", 32000), (None, 0));
        assert_eq!(port("NodePort", "Local", 32000), (None, 0));
    }

    #[test]
    fn session_affinity_is_by_client_ip_and_for_three_hours_unless_said() {
        let affinity = |word: Value, config: Value| {
            let (service, skipped) = with_skipped(service(json!({
                "clusterIP": "10.96.0.1",
                "sessionAffinity": word,
                "sessionAffinityConfig": config,
            })));
            (service.affinity.map(NonZeroU32::get), skipped.len())
        };
        let seconds = |seconds: i32| json!({ "clientIP": { "timeoutSeconds": seconds } });
        assert_eq!(affinity(json!("None"), Value::Null), (None, 0));
        assert_eq!(affinity(Value::Null, seconds(5)), (None, 0));
        assert_eq!(affinity(json!("ClientIP"), Value::Null), (Some(10_800), 0));
        assert_eq!(affinity(json!("ClientIP"), json!({})), (Some(10_800), 0));
        assert_eq!(affinity(json!("ClientIP"), seconds(5)), (Some(5), 0));
        assert_eq!(affinity(json!("ClientIP"), seconds(0)), (Some(10_800), 1));
        assert_eq!(affinity(json!("Cookie"), Value::Null), (None, 1));
    }
}
