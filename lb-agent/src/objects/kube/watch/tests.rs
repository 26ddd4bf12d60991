//! A watch, with what a server may say.

use futures::stream;
use kube::core::{ObjectMeta, Status, error_boundary::InvalidObject};
use serde_json::json;

use super::*;
use InitialListStrategy::{ListWatch, StreamingList};
use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

use crate::{
    model::{AnyService, Event, Node, ServiceCidr},
    objects::kube::ApiServerOptions,
};

type Guarded = DeserializeGuard<<AnyService as Decode>::Wire>;
type Said = watcher::Result<watcher::Event<Guarded>>;

fn service(name: &str, cluster_ip: &str) -> Guarded {
    let object = json!({
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "clusterIP": cluster_ip, "ports": [{ "port": 80 }] },
    });
    serde_json::from_value(object).unwrap()
}

/// One that the API's own type cannot hold.
fn malformed(name: &str) -> Guarded {
    DeserializeGuard(Err(InvalidObject {
        error: "invalid type: string \"many\", expected i32".into(),
        metadata: ObjectMeta {
            namespace: Some("shop".into()),
            name: Some(name.into()),
            ..Default::default()
        },
    }))
}

fn status(code: u16) -> Box<Status> {
    Box::new(Status {
        code,
        ..Default::default()
    })
}

fn api_error(code: u16) -> kube::Error {
    kube::Error::Api(status(code))
}

async fn watch<T: Decode>(strategy: InitialListStrategy) -> (Watch<T>, mpsc::Receiver<Batch>) {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = "{current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                users: [{name: u}], contexts: [{name: c, context: {cluster: c, user: u}}]}";
    std::fs::write(&kubeconfig, text).unwrap();
    let options = ApiServerOptions {
        kubeconfig: Some(kubeconfig),
        url: None,
    };
    let server = ApiServer::configure(&options).await.unwrap();
    let (sender, batches) = mpsc::channel(64);
    let config = watcher::Config {
        initial_list_strategy: strategy,
        ..Default::default()
    };
    let watches = Watches::default();
    let outages = Outages::new(server.url().into(), watches.clone());
    let watch = Watch::new(&server, config, "n", sender, outages, watches, Skipped::default());
    (watch, batches)
}

/// What the model hears of what the server says, and how the stream ends.
async fn hear(strategy: InitialListStrategy, said: Vec<Said>) -> (Vec<String>, End) {
    let (mut watch, mut batches) = watch::<AnyService>(strategy).await;
    let end = watch.follow(stream::iter(said)).await;
    let mut heard = Vec::new();
    while let Ok(batch) = batches.try_recv() {
        heard.extend(batch.into_iter().map(describe));
    }
    (heard, end)
}

fn describe(event: Event) -> String {
    match event {
        Event::Services(Update::Replace { objects, unreadable }) => {
            let objects: Vec<String> = objects.iter().map(|service| service.name().name.clone()).collect();
            let unreadable: Vec<String> = unreadable.iter().map(|name| format!("{}?", name.name)).collect();
            format!("= {}", [objects, unreadable].concat().join(" "))
        }
        Event::Services(Update::Apply(service)) => format!("+ {}", service.name().name),
        Event::Services(Update::Delete(name)) => format!("- {}", name.name),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_list_is_published_in_one_piece_when_it_is_complete() {
    let list = || {
        vec![
            Ok(Init),
            Ok(InitApply(service("a", "10.96.0.1"))),
            Ok(InitApply(service("b", "10.96.0.2"))),
        ]
    };
    assert_eq!(hear(ListWatch, list()).await.0, [""; 0]);
    let complete = list().into_iter().chain([Ok(InitDone)]).collect();
    assert_eq!(hear(ListWatch, complete).await.0, ["= a b"]);
}

#[tokio::test]
async fn a_list_that_begins_again_leaves_nothing_of_the_one_before() {
    let said = vec![
        Ok(Init),
        Ok(InitApply(service("a", "10.96.0.1"))),
        Ok(Init),
        Ok(InitApply(service("b", "10.96.0.2"))),
        Ok(InitDone),
    ];
    assert_eq!(hear(ListWatch, said).await.0, ["= b"]);
}

#[tokio::test]
async fn what_cannot_be_read_is_told_from_what_is_not_there() {
    let said = vec![
        Ok(Init),
        Ok(InitApply(service("a", "10.96.0.1"))),
        Ok(InitApply(malformed("b"))),
        Ok(InitApply(service("c", "nonsense"))),
        Ok(InitDone),
        Ok(Apply(malformed("a"))),
        Ok(Delete(malformed("a"))),
    ];
    assert_eq!(hear(ListWatch, said).await.0, ["= a b? c?", "- a"]);
}

#[tokio::test]
async fn a_node_that_cannot_be_read_is_not_taken_for_gone() {
    let unreadable = || {
        DeserializeGuard(Err(InvalidObject {
            error: "invalid type: string \"many\", expected a sequence".into(),
            metadata: ObjectMeta {
                name: Some("n".into()),
                ..Default::default()
            },
        }))
    };
    let said: Vec<watcher::Result<_>> = vec![
        Ok(Apply(unreadable())),
        Ok(Init),
        Ok(InitApply(unreadable())),
        Ok(InitDone),
        Ok(Delete(unreadable())),
    ];
    let (mut watch, mut batches) = watch::<Node>(ListWatch).await;
    watch.follow(stream::iter(said)).await;
    let mut heard = Vec::new();
    while let Ok(batch) = batches.try_recv() {
        heard.extend(batch);
    }
    assert_eq!(heard, [Event::UnreadableNode, Event::Node(None)]);
}

#[tokio::test]
async fn a_service_that_becomes_headless_is_gone() {
    let said = vec![
        Ok(Init),
        Ok(InitApply(service("headless", "None"))),
        Ok(InitDone),
        Ok(Apply(service("a", "10.96.0.1"))),
        Ok(Apply(service("a", "None"))),
    ];
    assert_eq!(hear(ListWatch, said).await.0, ["= ", "+ a", "- a"]);
}

#[tokio::test]
async fn a_server_that_refuses_to_stream_the_first_list_is_asked_for_an_ordinary_one() {
    for code in [400, 403, 422] {
        let said = || vec![Err(watcher::Error::WatchStartFailed(api_error(code)))];
        assert_eq!(hear(StreamingList, said()).await.1, End::StreamingRefused);
    }
    let after_the_list = vec![
        Ok(Init),
        Ok(InitDone),
        Err(watcher::Error::WatchError(status(410))),
        Err(watcher::Error::WatchStartFailed(api_error(403))),
    ];
    assert_eq!(hear(StreamingList, after_the_list).await.1, End::Expired);
}

#[tokio::test]
async fn what_is_too_old_for_the_server_begins_again() {
    for error in [
        watcher::Error::WatchError(status(410)),
        watcher::Error::WatchStartFailed(api_error(410)),
    ] {
        let said = vec![Ok(Init), Ok(InitDone), Err(error), Ok(Apply(service("a", "10.96.0.1")))];
        let (heard, end) = hear(ListWatch, said).await;
        assert_eq!((heard, end), (vec!["= ".to_owned()], End::Expired));
    }
}

#[tokio::test]
async fn a_kind_that_older_servers_do_not_know_is_an_empty_list_there() {
    for error in [
        watcher::Error::InitialListFailed(api_error(404)),
        watcher::Error::WatchStartFailed(api_error(404)),
    ] {
        let said: Vec<watcher::Result<_>> = vec![Err(error)];
        let (mut watch, mut batches) = watch::<ServiceCidr>(StreamingList).await;
        assert_eq!(watch.follow(stream::iter(said)).await, End::Unknown);
        let nothing = Event::ServiceCidrs(Update::Replace {
            objects: Vec::new(),
            unreadable: Vec::new(),
        });
        assert_eq!(batches.try_recv().unwrap().events, [nothing]);
    }
}

#[tokio::test]
async fn it_ends_when_nobody_listens() {
    let (mut watch, batches) = watch::<AnyService>(ListWatch).await;
    drop(batches);
    let said: Vec<Said> = vec![Ok(Init), Ok(InitDone)];
    assert_eq!(watch.follow(stream::iter(said)).await, End::Unheard);
}

#[test]
fn minor_versions_of_vendors_are_numbers_too() {
    assert_eq!(minor_version("34"), Some(34));
    assert_eq!(minor_version("29+"), Some(29));
    assert_eq!(minor_version(""), None);
}
