//! Whether the API server can be watched, and saying so without repeating it all the time.

use std::{
    collections::BTreeMap,
    error::Error,
    iter::successors,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kube::{client::AuthError, runtime::watcher};

use super::watches::Watches;
use crate::model::Kind;

/// While nothing changes, it is said again after this long, then after twice as long, and so on.
const FIRST_REMINDER: Duration = Duration::from_secs(30);
const SLOWEST_REMINDER: Duration = Duration::from_secs(15 * 60);

/// What is wrong with the watches of one API server; shared by them, since one server that is down
/// is one message and not three.
#[derive(Clone, Debug)]
pub(super) struct Outages {
    url: Arc<str>,
    state: Arc<Mutex<State>>,
    watches: Watches,
}

#[derive(Debug, Default)]
struct State {
    failing: BTreeMap<Kind, String>,
    since: Option<Instant>,
    reminder: Option<(Instant, Duration)>,
}

impl Outages {
    /// Those of the server at `url`, told to `watches` too.
    pub(super) fn new(url: String, watches: Watches) -> Self {
        Self {
            url: url.into(),
            state: Arc::default(),
            watches,
        }
    }

    /// The watch of a kind failed with this.
    pub(super) fn failed(&self, kind: Kind, reason: String) {
        self.watches.failed(kind, &reason);
        let url = &self.url;
        let mut state = self.lock();
        if let Some(time) = state.failed(kind, &reason, Instant::now()) {
            tracing::warn!(
                %url,
                failing_s = time.as_secs(),
                "the API server cannot be watched, its last word stays in force: {reason}"
            );
        }
    }

    /// The watch of a kind works.
    pub(super) fn recovered(&self, kind: Kind) {
        self.watches.recovered(kind);
        let mut state = self.lock();
        if let Some(time) = state.recovered(kind, Instant::now()) {
            let url = &self.url;
            tracing::info!(%url, failed_s = time.as_secs(), "the API server is watched again");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes a failure. Returns for how long there have been any if it is time to speak.
    fn failed(&mut self, kind: Kind, reason: &str, now: Instant) -> Option<Duration> {
        let known = self.failing.values().any(|other| other == reason);
        self.failing.insert(kind, reason.to_owned());
        let since = *self.since.get_or_insert(now);
        let interval = match self.reminder {
            Some((due, interval)) if known => {
                if now < due {
                    return None;
                }
                (interval * 2).min(SLOWEST_REMINDER)
            }
            _ => FIRST_REMINDER,
        };
        self.reminder = Some((now + interval, interval));
        Some(now - since)
    }

    /// Notes a success. Returns for how long there had been failures if this ends the last one.
    fn recovered(&mut self, kind: Kind, now: Instant) -> Option<Duration> {
        self.failing.remove(&kind)?;
        if !self.failing.is_empty() {
            return None;
        }
        self.reminder = None;
        self.since.take().map(|since| now - since)
    }
}

/// Why a watch failed, in a word for those who count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The server is not reached, or the connection broke off.
    Connection,
    /// It answers with a refusal.
    Refused,
    /// What is known is too old for it: a list follows.
    Expired,
    /// There is nothing to show it that says who we are.
    Credentials,
}

impl Cause {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [Self::Connection, Self::Refused, Self::Expired, Self::Credentials];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Credentials => "credentials",
        }
    }

    /// Of an error of a request.
    pub(super) fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status.code),
            kube::Error::Auth(_) => Self::Credentials,
            kube::Error::Service(error) if auth_error(error.as_ref()).is_some() => Self::Credentials,
            _ => Self::Connection,
        }
    }

    /// Of an error of a watch.
    pub(super) fn of_watch(error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => Self::of(error),
            watcher::Error::WatchError(status) => Self::of_status(status.code),
            watcher::Error::NoResourceVersion => Self::Refused,
        }
    }

    const fn of_status(code: u16) -> Self {
        match code {
            410 => Self::Expired,
            _ => Self::Refused,
        }
    }
}

/// Says what went wrong, from the outside in. kube's own messages repeat their causes, and those
/// about credentials hold the command line, the environment and the output of a plugin, which are
/// secrets: no error of kube's may be shown but by this.
pub(super) fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (status {})", status.message, status.code),
        kube::Error::Service(error) => causes(error.as_ref()),
        kube::Error::HyperError(error) => causes(error),
        other => causes(other),
    }
}

/// The same for an error of a watch.
pub(super) fn describe_watch(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => describe(error),
        watcher::Error::WatchError(status) => {
            format!("{} (status {})", status.message, status.code)
        }
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |error| (*error).source())
}

fn auth_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a AuthError> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn causes(error: &(dyn Error + 'static)) -> String {
    // Looked for first, since what stands around it repeats it.
    if let Some(error) = auth_error(error) {
        return credentials(error);
    }
    let mut messages: Vec<String> = Vec::new();
    for error in chain(error) {
        let message = error.to_string();
        // A message that ends with its cause leaves the word to the cause.
        let repeated = error
            .source()
            .is_some_and(|cause| message.ends_with(&cause.to_string()));
        if !repeated {
            messages.push(message);
        }
    }
    messages.join(": ")
}

/// Never quotes what came from a plugin or from the kubeconfig's user.
fn credentials(error: &AuthError) -> String {
    let reason = match error {
        AuthError::AuthExecRun { out, .. } => {
            format!("the credential plugin of the kubeconfig failed, {}", out.status)
        }
        AuthError::AuthExecStart(error) => {
            format!("the credential plugin of the kubeconfig does not start: {error}")
        }
        AuthError::AuthExecParse(_)
        | AuthError::ExecPluginFailed
        | AuthError::MalformedTokenExpirationDate(_)
        | AuthError::ParseTokenKey(_) => {
            "the credential plugin of the kubeconfig answers with something that is no credential".to_owned()
        }
        AuthError::ReadTokenFile(error, path) => format!("{}: {error}", path.display()),
        _ => "check the user in the kubeconfig".to_owned(),
    };
    format!("no credentials: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_that_is_down_is_said_once_for_all_kinds() {
        let mut state = State::default();
        let now = Instant::now();
        assert!(state.failed(Kind::Service, "connection refused", now).is_some());
        assert!(state.failed(Kind::EndpointSlice, "connection refused", now).is_none());
        assert!(state.failed(Kind::Node, "connection refused", now).is_none());
    }

    #[test]
    fn it_is_said_again_ever_more_rarely_or_when_the_reason_changes() {
        let mut state = State::default();
        let start = Instant::now();
        let mut said = Vec::new();
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            if state.failed(Kind::Service, "connection refused", now).is_some() {
                said.push(second);
            }
        }
        assert_eq!(said, [0, 30, 90, 210, 450]);
        let now = start + Duration::from_secs(600);
        let failing = state.failed(Kind::Service, "services is forbidden", now);
        assert_eq!(failing, Some(Duration::from_secs(600)));
    }

    #[test]
    fn it_is_over_when_no_kind_fails_any_more() {
        let mut state = State::default();
        let start = Instant::now();
        let later = start + Duration::from_secs(7);
        state.failed(Kind::Service, "connection refused", start);
        state.failed(Kind::Node, "connection refused", start);
        assert_eq!(state.recovered(Kind::EndpointSlice, later), None);
        assert_eq!(state.recovered(Kind::Service, later), None);
        assert_eq!(state.recovered(Kind::Node, later), Some(Duration::from_secs(7)));
        assert!(state.failed(Kind::Node, "connection refused", later).is_some());
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words_and_no_token_is_told() {
        let status = kube::core::Status {
            code: 403,
            message: "services is forbidden".into(),
            ..Default::default()
        };
        assert_eq!(
            describe(&kube::Error::Api(Box::new(status))),
            "services is forbidden (status 403)"
        );

        let output = std::process::Output {
            status: std::process::ExitStatus::default(),
            stdout: b"s3cret".to_vec(),
            stderr: Vec::new(),
        };
        let failed = || AuthError::AuthExecRun {
            cmd: "PASSWORD=\"s3cret\" \"aws\"".into(),
            out: Box::new(output.clone()),
        };
        // As kube has it at the start, and from the layer that makes a new token later.
        for error in [
            kube::Error::Auth(failed()),
            kube::Error::Service(Box::new(failed())),
            kube::Error::Service(Box::new(Around(kube::Error::Auth(failed())))),
        ] {
            let expected = "no credentials: the credential plugin of the kubeconfig failed, exit status: 0";
            assert_eq!(describe(&error), expected);
            assert_eq!(Cause::of(&error), Cause::Credentials);
            assert_eq!(describe_watch(&watcher::Error::WatchFailed(error)), expected);
        }
    }

    /// An error that shows its cause in the middle, as layers around a client do.
    #[derive(Debug, thiserror::Error)]
    #[error("the service ({0:?}) failed")]
    struct Around(#[source] kube::Error);
}
