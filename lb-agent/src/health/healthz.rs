//! `/healthz` and `/livez`.

use std::{convert::Infallible, future::ready, net::SocketAddr};

use hyper::{Response, StatusCode};

use super::proxy::{ProxyHealth, Report};
use crate::{http, metrics::Probes};

/// Answers at an address for as long as this is polled; `0.0.0.0` and `::` are both families. Where it
/// cannot listen, it says so once and tries again: services do not depend on it. What it answers is counted.
pub async fn serve(address: SocketAddr, health: ProxyHealth, probes: Probes) -> Infallible {
    let listener = http::listen_in_time(address, "/healthz and /livez").await;
    http::serve(listener, move |path| ready(answer(&path, &health, &probes))).await
}

fn answer(path: &str, health: &ProxyHealth, probes: &Probes) -> Response<String> {
    match path {
        "/healthz" => {
            let response = response(&health.healthz());
            probes.healthz(response.status().as_u16());
            response
        }
        "/livez" => {
            let response = response(&health.livez());
            probes.livez(response.status().as_u16());
            response
        }
        _ => {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

fn response(report: &Report) -> Response<String> {
    // Names, booleans and times always have a JSON form.
    let body = serde_json::to_string(report).unwrap_or_default();
    http::json(report.is_good(), body)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use serde_json::Value;
    use tokio::net::TcpListener;

    use super::*;
    use crate::health::tests::{ask, becomes_answered, free_port};

    fn eligible() -> ProxyHealth {
        let health = ProxyHealth::new();
        health.set_node_eligible(true);
        health
    }

    #[tokio::test]
    async fn each_path_answers_for_what_it_is_about() {
        let health = eligible();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port());
        let _server = tokio::spawn(serve(at, health.clone(), Probes::default()));
        becomes_answered(at).await;

        for path in ["/healthz", "/livez"] {
            let answer = ask(at, path).await.unwrap();
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.header("Content-Type"), Some("application/json"));
            assert_eq!(answer.header("X-Content-Type-Options"), Some("nosniff"));
        }
        health.set_node_eligible(false);
        let healthz = ask(at, "/healthz").await.unwrap();
        assert_eq!(healthz.status, 503);
        let report: Value = serde_json::from_str(&healthz.body).unwrap();
        assert_eq!(
            (&report["nodeEligible"], &report["healthy"]),
            (&false.into(), &true.into())
        );
        assert_eq!(ask(at, "/livez").await.unwrap().status, 200);
        for elsewhere in ["/", "/healthz/", "/livez/x"] {
            assert_eq!(ask(at, elsewhere).await.unwrap().status, 404, "{elsewhere}");
        }
    }

    #[tokio::test]
    async fn a_proxy_that_is_behind_says_so_at_both_paths() {
        let health = ProxyHealth::stale();
        health.set_node_eligible(true);
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port());
        let _server = tokio::spawn(serve(at, health, Probes::default()));
        becomes_answered(at).await;
        for path in ["/healthz", "/livez"] {
            let answer = ask(at, path).await.unwrap();
            let report: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((answer.status, &report["healthy"]), (503, &false.into()), "{path}");
        }
    }

    #[tokio::test]
    async fn the_wildcard_of_either_family_is_both() {
        for wildcard in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let port = free_port();
            let _server = tokio::spawn(serve(SocketAddr::new(wildcard, port), eligible(), Probes::default()));
            for loopback in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
                becomes_answered(SocketAddr::new(loopback, port)).await;
            }
        }
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_tried_again() {
        let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = holder.local_addr().unwrap();
        let _server = tokio::spawn(serve(at, eligible(), Probes::default()));
        // It has tried by the time that the holder, on the same thread, goes on.
        tokio::task::yield_now().await;
        drop(holder);
        becomes_answered(at).await;
    }
}
