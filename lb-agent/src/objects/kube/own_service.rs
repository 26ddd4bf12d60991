//! An API server that is asked for through a Service which this very agent serves.
//!
//! It goes well as long as somebody else serves that Service, or an agent before has left it in the kernel. After the
//! node starts anew nobody does: the agent waits for the API server, and the way there waits for the agent. So it is
//! refused when it shows, which is while it still goes well.

use std::{env, net::IpAddr};

/// The variable by which the kubelet tells each pod the ClusterIP of the API server's Service. Whoever sets
/// `KUBERNETES_SERVICE_HOST` to something better leaves this one as it is.
const CLUSTER_IP: &str = "KUBERNETES_PORT_443_TCP_ADDR";
/// The API server's Service, as the cluster's DNS has it.
const NAME: &str = "kubernetes";

const ADVICE: &str = "nobody serves it after a start of the node until the agent has reached the API server: give the \
                      API server's own address, or that of a load balancer outside of the cluster, by --apiserver URL, or \
                      in a pod by the variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT";

/// The way to the API server leads through what the agent serves.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Loop {
    /// By an address.
    #[error("the API server is at {0}, the ClusterIP of a Service that this agent serves, and {ADVICE}")]
    ClusterIp(IpAddr),
    /// By a name that only the cluster's DNS knows, which is a Service as well.
    #[error(
        "the API server is at {0}, a name of the cluster's DNS, which is a Service that this agent serves, and {ADVICE}"
    )]
    ClusterDns(String),
}

/// Looks at the host of a URL, as far as it tells without asking anybody.
pub(super) fn check(host: &str) -> Result<(), Loop> {
    check_with(host, env::var(CLUSTER_IP).ok().as_deref())
}

fn check_with(host: &str, cluster_ip: Option<&str>) -> Result<(), Loop> {
    if let Some(ip) = address(host)
        && cluster_ip.and_then(address) == Some(ip)
    {
        return Err(Loop::ClusterIp(ip));
    }
    let mut labels = host.trim_end_matches('.').split('.');
    let is_of_cluster = labels.next() == Some(NAME)
        && labels.next().is_none_or(|namespace| namespace == "default")
        && labels.next().is_none_or(|service| service == "svc");
    if is_of_cluster {
        return Err(Loop::ClusterDns(host.to_owned()));
    }
    Ok(())
}

/// The address that the host of a URL is, if it is one.
pub(super) fn address(host: &str) -> Option<IpAddr> {
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    host.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_ip_that_the_kubelet_tells_is_refused_and_an_address_in_its_place_is_not() {
        for (host, told) in [
            ("10.96.0.1", "10.96.0.1"),
            ("[fd00:96::1]", "fd00:96::1"),
            ("[fd00:96:0::1]", "fd00:96::1"),
            ("[::ffff:10.96.0.1]", "10.96.0.1"),
        ] {
            let refused = check_with(host, Some(told)).unwrap_err();
            assert_eq!(refused, Loop::ClusterIp(told.parse().unwrap()), "{host}");
            for part in [told, "--apiserver", "KUBERNETES_SERVICE_HOST"] {
                assert!(refused.to_string().contains(part), "no {part} in: {refused}");
            }
        }
        for told in [None, Some("10.96.0.1"), Some("")] {
            assert_eq!(check_with("192.168.0.10", told), Ok(()));
            assert_eq!(check_with("api.example.org", told), Ok(()));
        }
    }

    #[test]
    fn names_of_the_clusters_dns_are_refused() {
        for name in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "kubernetes.default.svc.example.org.",
        ] {
            assert_eq!(check_with(name, None), Err(Loop::ClusterDns(name.to_owned())));
        }
        for name in [
            "kubernetes.example.org",
            "kubernetes.default.example.org",
            "api.kubernetes",
        ] {
            assert_eq!(check_with(name, None), Ok(()), "{name}");
        }
    }
}
