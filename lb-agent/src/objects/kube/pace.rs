//! How often a watch is asked for.
//!
//! A server ends each watch after some minutes, and kube's watcher asks for the next one at once, without a word to
//! whoever listens. Something on the way that ends each watch as soon as it has begun would be asked without a pause
//! for ever. So requests for a watch go through here, and those that follow each other too fast wait.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper::Request;
use kube::{Client, client::Body};
use tokio::time::sleep;
use tower::service_fn;

use super::{backoff::Backoff, watches::Watches};
use crate::model::Kind;

/// A watch that is over sooner did not do what it is for.
const SHORT: Duration = Duration::from_secs(10);

/// The pace of one kind's watch. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pace(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// When the server last agreed to a watch, unless it broke off with an error, after which others wait.
    started: Option<Instant>,
    backoff: Backoff,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            started: None,
            backoff: Backoff::new(),
        })))
    }

    /// A client that keeps this pace and tells of each watch that begins.
    pub(super) fn client(&self, client: &Client, kind: Kind, watches: &Watches) -> Client {
        let (pace, inner, watches) = (self.clone(), client.clone(), watches.clone());
        let service = service_fn(move |request: Request<Body>| {
            let (pace, inner, watches) = (pace.clone(), inner.clone(), watches.clone());
            async move {
                if !is_watch(&request) {
                    return inner.send(request).await;
                }
                let wait = pace.lock().wait(Instant::now());
                if let Some(wait) = wait {
                    tracing::debug!("{kind}: the server ended the watch at once: the next one in {wait:?}");
                    sleep(wait).await;
                }
                let response = inner.send(request).await?;
                if response.status().is_success() {
                    pace.lock().started = Some(Instant::now());
                    watches.started(kind);
                }
                Ok(response)
            }
        });
        Client::new(service, client.default_namespace())
    }

    /// The watch ended with an error, which is waited for elsewhere.
    pub(super) fn broke_off(&self) {
        self.lock().started = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How long the next request is to wait.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        let started = self.started.take()?;
        if now.duration_since(started) >= SHORT {
            self.backoff.reset();
            return None;
        }
        Some(self.backoff.next())
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|parameter| parameter == "watch=true")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::{StreamExt as _, stream};
    use hyper::Response;
    use k8s_openapi::api::core::v1::Service;
    use kube::{Api, runtime::watcher};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn one_watch_after_the_other_waits_and_the_longer_the_more_of_them_were_short() {
        let mut state = State {
            started: None,
            backoff: Backoff::new(),
        };
        let mut now = Instant::now();
        assert_eq!(state.wait(now), None, "the first one");
        let mut limit = Duration::from_millis(250);
        for _ in 0..12 {
            state.started = Some(now);
            now += SHORT / 2;
            let wait = state.wait(now).unwrap();
            assert!(wait >= limit / 2 && wait <= limit, "{wait:?} of {limit:?}");
            limit = (limit * 2).min(Duration::from_secs(30));
        }
        assert_eq!(state.wait(now), None, "the server did not agree to it");
        state.started = Some(now);
        assert_eq!(state.wait(now + SHORT), None, "it did what it is for");
        state.started = Some(now);
        assert!(state.wait(now).unwrap() <= Duration::from_millis(250));
    }

    #[tokio::test]
    async fn kubes_watcher_asks_no_faster_where_each_watch_ends_at_once() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        // A list, and watches that end well before they tell anything.
        let server = service_fn(move |request: Request<Body>| {
            let body = if is_watch(&request) {
                count.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            } else {
                br#"{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":[]}"#.to_vec()
            };
            async move { Ok::<_, kube::Error>(Response::new(Body::from(body))) }
        });
        let (pace, watches) = (Pace::new(), Watches::default());
        let client = pace.client(&Client::new(server, "default"), Kind::Service, &watches);
        let api: Api<Service> = Api::all(client);
        let start = Instant::now();
        let watched = watcher::watcher(api, watcher::Config::default());
        // It says nothing after its list, and never ends.
        let said = stream::StreamExt::take_until(watched, async {
            while asked.load(Ordering::Relaxed) < 4 {
                sleep(Duration::from_millis(10)).await;
            }
        });
        let said = timeout(Duration::from_secs(60), said.count()).await.unwrap();
        assert_eq!(said, 2, "the beginning and the end of the list");
        // Between the first and the fourth.
        let least = Duration::from_millis(125 + 250 + 500);
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        let (_, state) = watches.states().remove(0);
        assert_eq!(state.starts, asked.load(Ordering::Relaxed) as u64);
    }
}
