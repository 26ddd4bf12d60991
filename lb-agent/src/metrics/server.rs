//! `/metrics`, and `/proxyMode`.

use std::{convert::Infallible, net::SocketAddr};

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

use super::Metrics;
use crate::http;

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Answers at an address for as long as this is polled; `0.0.0.0` and `::` are both families. Where it cannot listen,
/// it says so once and tries again: services do not depend on it.
pub async fn serve(address: SocketAddr, metrics: Metrics) -> Infallible {
    let listener = http::listen_in_time(address, "/metrics and /proxyMode").await;
    http::serve(listener, move |path| {
        let metrics = metrics.clone();
        async move {
            // Counting what the kernel holds takes a while, for which others are not to wait.
            let answered = tokio::task::spawn_blocking(move || answer(&path, &metrics)).await;
            answered.unwrap_or_else(|_| failed(StatusCode::INTERNAL_SERVER_ERROR))
        }
    })
    .await
}

fn answer(path: &str, metrics: &Metrics) -> Response<String> {
    let (content_type, body) = match path {
        "/metrics" => (OPEN_METRICS, metrics.text()),
        "/proxyMode" => (TEXT, metrics.plane.word().to_owned()),
        _ => return failed(StatusCode::NOT_FOUND),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn failed(status: StatusCode) -> Response<String> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{
        health::tests::{ask, becomes_answered, free_port},
        metrics::Sources,
        plane::{
            PlaneName,
            choice::{Choice, Reason},
        },
    };

    #[tokio::test]
    async fn each_path_has_its_answer_and_no_other_has_one() {
        let choice = Choice {
            plane: PlaneName::Ebpf,
            reason: Reason::Configured,
        };
        let metrics = Metrics::new(&choice, Sources::default());
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port());
        let _server = tokio::spawn(serve(at, metrics));
        becomes_answered(at).await;

        let mode = ask(at, "/proxyMode").await.unwrap();
        assert_eq!((mode.status, mode.body.as_str()), (200, "ebpf"));
        assert_eq!(mode.header("Content-Type"), Some("text/plain; charset=utf-8"));
        let metrics = ask(at, "/metrics").await.unwrap();
        assert_eq!(metrics.status, 200);
        assert!(
            metrics
                .header("Content-Type")
                .unwrap()
                .starts_with("application/openmetrics-text")
        );
        assert!(
            metrics
                .body
                .contains(r#"lb_plane_info{plane="ebpf",reason="configured"} 1"#)
        );
        assert!(metrics.body.ends_with("# EOF\n"));
        assert_eq!(ask(at, "/").await.unwrap().status, 404);
    }
}
