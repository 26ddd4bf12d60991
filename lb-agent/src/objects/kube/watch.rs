//! The watch of one kind.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    pin::pin,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _};
use kube::{
    Api, Client, Resource as _,
    core::DeserializeGuard,
    runtime::watcher::{self, InitialListStrategy},
};
use tokio::{sync::mpsc, time};

use super::{
    ApiServer,
    backoff::Backoff,
    connection::{Cause, Outages, describe, describe_watch},
    pace::Pace,
    watches::Watches,
};
use crate::{
    model::{ObjectName, Update},
    objects::{
        Batch, Skipped,
        decode::{Decode, Decoded, object_name},
    },
};

/// First minor version whose servers stream their first list unless told otherwise. (1.32 had it
/// on as well, 1.33 off again.)
const STREAMING_SINCE: u32 = 34;

/// A watch that has been asked for again and is silent for this long works: a server that refuses
/// does so at once, and one that has nothing to tell says nothing.
const PATIENCE: Duration = Duration::from_secs(3);

/// A watch that breaks off again within this time does not work.
const STABLE: Duration = Duration::from_secs(60);

/// When to ask again a server that does not know a kind: it may be newer then.
const UPGRADE: Duration = Duration::from_secs(5 * 60);

/// Watches a kind for ever: whatever happens, it tries again.
pub(super) struct Watch<T: Decode> {
    client: Client,
    api: Api<DeserializeGuard<T::Wire>>,
    config: watcher::Config,
    this_node: String,
    batches: mpsc::Sender<Batch>,
    outages: Outages,
    watches: Watches,
    skipped: Skipped,
    pace: Pace,
    backoff: Backoff,
    failing: bool,
    broke_off: Option<Instant>,
    is_unknown: bool,
}

/// Why a stream of events ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Nobody listens any more.
    Unheard,
    /// The server does not stream lists, whatever its version says.
    StreamingRefused,
    /// The server does not know the kind, as it need not.
    Unknown,
    /// What it knew is too old for the server: begin again with a list.
    Expired,
}

/// A list that is not complete yet.
struct Listing<T> {
    objects: BTreeMap<ObjectName, T>,
    unreadable: Vec<ObjectName>,
}

impl<T: Decode> Watch<T> {
    pub(super) fn new(
        server: &ApiServer,
        config: watcher::Config,
        this_node: &str,
        batches: mpsc::Sender<Batch>,
        outages: Outages,
        watches: Watches,
        skipped: Skipped,
    ) -> Self {
        watches.begins(T::KIND);
        let pace = Pace::new();
        let client = pace.client(&server.client(), T::KIND, &watches);
        Self {
            client: server.client(),
            api: Api::all(client),
            config,
            this_node: this_node.to_owned(),
            batches,
            outages,
            watches,
            skipped,
            pace,
            backoff: Backoff::new(),
            failing: false,
            broke_off: None,
            is_unknown: false,
        }
    }

    pub(super) async fn run(mut self) {
        self.config.initial_list_strategy = if self.server_streams_lists().await {
            InitialListStrategy::StreamingList
        } else {
            InitialListStrategy::ListWatch
        };
        loop {
            let stream = watcher::watcher(self.api.clone(), self.config.clone());
            match self.follow(stream).await {
                End::Unheard => return,
                End::Expired => time::sleep(self.backoff.next()).await,
                End::Unknown => time::sleep(UPGRADE).await,
                End::StreamingRefused => {
                    tracing::debug!("{}: the server refuses to stream the list", T::KIND);
                    self.config.initial_list_strategy = InitialListStrategy::ListWatch;
                }
            }
        }
    }

    async fn server_streams_lists(&mut self) -> bool {
        let minor = loop {
            match self.client.apiserver_version().await {
                Ok(version) => break minor_version(&version.minor),
                // It answers, even if not this question.
                Err(kube::Error::Api(_)) => break None,
                Err(error) => {
                    self.watches.erred(T::KIND, Cause::of(&error));
                    self.fail(describe(&error));
                    time::sleep(self.backoff.next()).await;
                }
            }
        };
        minor.is_some_and(|minor| minor >= STREAMING_SINCE)
    }

    async fn follow(
        &mut self,
        stream: impl Stream<Item = watcher::Result<watcher::Event<DeserializeGuard<T::Wire>>>>,
    ) -> End {
        let mut stream = pin!(stream);
        let mut listing = None;
        let mut complete = false;
        loop {
            let next = if self.failing {
                let Ok(next) = time::timeout(PATIENCE, stream.next()).await else {
                    self.recover();
                    continue;
                };
                next
            } else {
                stream.next().await
            };
            match next {
                Some(Ok(watcher::Event::Init)) => listing = Some(Listing::default()),
                Some(Ok(event)) => {
                    self.recover();
                    if !matches!(event, watcher::Event::InitApply(_)) {
                        self.watches.heard(T::KIND);
                    }
                    complete |= matches!(event, watcher::Event::InitDone);
                    let Some(update) = self.update(event, &mut listing) else {
                        continue;
                    };
                    if self.batches.send(vec![T::event(update)].into()).await.is_err() {
                        return End::Unheard;
                    }
                }
                Some(Err(error)) => {
                    self.pace.broke_off();
                    let streaming = self.config.initial_list_strategy == InitialListStrategy::StreamingList;
                    if streaming && !complete && refuses_streaming(&error) {
                        return End::StreamingRefused;
                    }
                    if T::MAY_BE_UNKNOWN && status_code(&error) == Some(404) {
                        return self.note_unknown().await;
                    }
                    self.watches.erred(T::KIND, Cause::of_watch(&error));
                    if status_code(&error) == Some(410) {
                        let reason = describe_watch(&error);
                        tracing::debug!("{}: begins again with a list: {reason}", T::KIND);
                        // An answer, if not the one hoped for.
                        self.recover();
                        return End::Expired;
                    }
                    self.wait(error).await;
                }
                // kube's watcher has no end; if it had one, the thing to do would be this.
                None => return End::Expired,
            }
        }
    }

    /// A server that does not know the kind has no object of it.
    async fn note_unknown(&mut self) -> End {
        if !std::mem::replace(&mut self.is_unknown, true) {
            tracing::info!("the API server knows no kind {}: there is none", T::KIND);
        }
        self.recover();
        let nothing = Update::Replace {
            objects: Vec::new(),
            unreadable: Vec::new(),
        };
        match self.batches.send(vec![T::event(nothing)].into()).await {
            Ok(()) => End::Unknown,
            Err(_) => End::Unheard,
        }
    }

    /// What an event is to the model, once it is complete.
    fn update(
        &self,
        event: watcher::Event<DeserializeGuard<T::Wire>>,
        listing: &mut Option<Listing<T>>,
    ) -> Option<Update<T>> {
        match event {
            watcher::Event::Init => None,
            watcher::Event::InitApply(object) => {
                let listing = listing.get_or_insert_default();
                let name = object_name(T::KIND, object.meta());
                match self.read(&name, object) {
                    Some(Decoded::Object { object, .. }) => {
                        listing.objects.insert(name, object);
                    }
                    Some(Decoded::Ignored(_)) => {}
                    None => listing.unreadable.push(name),
                }
                None
            }
            watcher::Event::InitDone => {
                let Listing { objects, unreadable } = listing.take().unwrap_or_default();
                Some(Update::Replace {
                    objects: objects.into_values().collect(),
                    unreadable,
                })
            }
            watcher::Event::Apply(object) => {
                let name = object_name(T::KIND, object.meta());
                Some(match self.read(&name, object)? {
                    Decoded::Object { object, .. } => Update::Apply(object),
                    Decoded::Ignored(_) => Update::Delete(name),
                })
            }
            watcher::Event::Delete(object) => Some(Update::Delete(object_name(T::KIND, object.meta()))),
        }
    }

    fn read(&self, name: &ObjectName, object: DeserializeGuard<T::Wire>) -> Option<Decoded<T>> {
        let decoded = match object.0 {
            Ok(object) => T::decode(object, &self.this_node).map_err(|error| error.to_string()),
            Err(invalid) => Err(invalid.error),
        };
        match decoded {
            Ok(decoded) => {
                match &decoded {
                    Decoded::Object { skipped, .. } => self.skipped.parts(T::KIND, name, skipped),
                    Decoded::Ignored(reason) => {
                        tracing::debug!("{} {name} is ignored: {reason}", T::KIND);
                    }
                }
                Some(decoded)
            }
            Err(reason) => {
                self.skipped.object(T::KIND, name, &reason);
                None
            }
        }
    }

    /// Waits until it is worth asking again. A watch that breaks off once in a while is no outage
    /// as long as the server answers; a server that refuses is one, although it answers.
    async fn wait(&mut self, error: watcher::Error) {
        let reason = format!("{}: {}", T::KIND, describe_watch(&error));
        tracing::debug!("{reason}");
        let now = Instant::now();
        let broke_off_before = self.broke_off.replace(now);
        let again = broke_off_before.is_some_and(|before| now - before < STABLE);
        if again || status_code(&error).is_some() {
            self.fail(reason);
        }
        loop {
            time::sleep(self.backoff.next()).await;
            match self.client.apiserver_version().await {
                Ok(_) | Err(kube::Error::Api(_)) => return,
                Err(error) => {
                    self.watches.erred(T::KIND, Cause::of(&error));
                    self.fail(describe(&error));
                }
            }
        }
    }

    fn fail(&mut self, reason: String) {
        self.failing = true;
        self.outages.failed(T::KIND, reason);
    }

    fn recover(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.failing) {
            self.outages.recovered(T::KIND);
        }
    }
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            unreadable: Vec::new(),
        }
    }
}

/// The number in a minor version, which some vendors follow up with a plus.
fn minor_version(minor: &str) -> Option<u32> {
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    minor[..digits].parse().ok()
}

/// The status that the server answered with, if it did answer.
fn status_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

/// Whether the server may have taken offence at the request for a streamed list. It may have had
/// another reason, which will be seen when the list has been asked for the ordinary way.
fn refuses_streaming(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(_)) && matches!(status_code(error), Some(400 | 403 | 422))
}
