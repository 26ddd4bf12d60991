//! Listening, and answering over HTTP/1.1.

use std::{
    convert::Infallible,
    io,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// When to try again to listen where it failed: whoever holds the port may have let go, and an IPv6
/// address that is new cannot be listened at for a moment.
pub(crate) const LISTEN_RETRY: Duration = Duration::from_secs(1);
/// After a connection that could not be accepted, mostly for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listens at an address as soon as that can be: unspecified ones are all addresses of both families. Says once that
/// it cannot answer `what`, and that it does.
pub(crate) async fn listen_in_time(address: SocketAddr, what: &str) -> TcpListener {
    let mut has_failed = false;
    let listener = loop {
        match listen_in_both_families(address) {
            Ok(listener) => break listener,
            Err(error) if !has_failed => {
                tracing::warn!("{what} are not answered at {address}: {error}");
                has_failed = true;
            }
            Err(_) => {}
        }
        sleep(LISTEN_RETRY).await;
    };
    tracing::info!("{what} are answered at {address}");
    listener
}

/// Listens at an address, of which an unspecified one is all of its own family.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    bind(address, true)
}

/// The same, but unspecified addresses, whichever family they are written in, are all of both. This is
/// how kube-proxy's library takes its `0.0.0.0`.
fn listen_in_both_families(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen(address);
    }
    let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    match bind(all, false) {
        // A kernel without IPv6.
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => listen(address),
        result => result,
    }
}

fn bind(address: SocketAddr, is_only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of the agent before may linger.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(is_only_v6)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Answers a request for a path, whatever its method. A request that takes long holds up its connection only. When this is dropped, nobody listens any more and
/// the connections are closed.
pub(crate) async fn serve<A, F>(listener: TcpListener, answer: A) -> Infallible
where
    A: Fn(String) -> F + Clone + Send + 'static,
    F: Future<Output = Response<String>> + Send,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    let service = service_fn(move |request: Request<Incoming>| {
                        let response = answer(request.uri().path().to_owned());
                        async { Ok::<_, Infallible>(response.await) }
                    });
                    // With a timer, a client that never completes its request is not waited for.
                    // Headers are spelled as kube-proxy's, should somebody look for them by letter.
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .title_case_headers(true)
                        .serve_connection(TokioIo::new(stream), service);
                    connections.spawn(async {
                        if let Err(error) = connection.await {
                            tracing::debug!("a connection: {error}");
                        }
                    });
                }
                Err(error) => {
                    tracing::debug!("a connection is not accepted: {error}");
                    sleep(ACCEPT_RETRY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// An answer in JSON, with the headers that kube-proxy gives it.
pub(crate) fn json(is_good: bool, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = if is_good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
