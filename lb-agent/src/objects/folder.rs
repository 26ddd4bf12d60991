//! Objects from a folder of manifests: every `*.yaml`, `*.yml` and `*.json` in it, for as long as
//! the agent runs. Files whose names begin with a dot are left alone.
//!
//! Files are watched by inotify, and only those that changed are looked at. Every ten seconds all
//! are, since neither a network file system nor a link to another folder says that it has changed.

mod changes;
mod manifest;
mod scan;

use std::{path::PathBuf, thread};

use anyhow::Context;
use tokio::sync::mpsc;

use self::{
    changes::{Changed, Changes},
    scan::Scanner,
};
use super::{Batch, Skipped};

/// Reads a folder on behalf of the node `this_node`, and follows its changes on a thread of its
/// own, which ends when nobody listens any more. Fails if the folder cannot be read now; later,
/// what it said last stays. What makes no sense is told to `skipped`.
pub fn watch(folder: PathBuf, this_node: &str, batches: mpsc::Sender<Batch>, skipped: Skipped) -> anyhow::Result<()> {
    let context = format!("--source {}", folder.display());
    // Watched before it is read, so that no change falls between the two.
    let mut changes = Changes::of(folder.clone());
    let mut scanner = Scanner::new(folder, this_node, skipped);
    let first = scanner.scan(&Changed::Anything).context(context)?;
    thread::Builder::new().name("folder".into()).spawn(move || {
        let mut next = first;
        loop {
            if !next.is_empty() && batches.blocking_send(next.into()).is_err() {
                return;
            }
            let changed = changes.wait();
            next = scanner.scan(&changed).unwrap_or_else(|error| {
                tracing::warn!("the folder of manifests cannot be read, it stays as it was: {error}");
                Vec::new()
            });
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

    use super::*;
    use crate::model::{Event, Update};

    const NODE: &str = "this-node";

    fn service(name: &str, address: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n---\n"
        )
    }

    async fn next(batches: &mut mpsc::Receiver<Batch>) -> Vec<String> {
        let batch = tokio::time::timeout(Duration::from_secs(5), batches.recv()).await;
        let events = batch.unwrap().unwrap().into_iter();
        events
            .map(|event| match event {
                Event::Services(Update::Apply(service)) => {
                    let ip = service.ours().unwrap().cluster_ips.iter().next().unwrap();
                    format!("+ {} {ip}", service.name())
                }
                Event::Services(Update::Delete(name)) => format!("- {name}"),
                Event::Services(Update::Replace { objects, .. }) => {
                    format!("{} services", objects.len())
                }
                Event::EndpointSlices(Update::Replace { objects, .. }) => {
                    format!("{} slices", objects.len())
                }
                Event::EndpointSlices(_) => "a slice".into(),
                Event::ServiceCidrs(Update::Replace { objects, .. }) => {
                    format!("{} ServiceCIDRs", objects.len())
                }
                Event::ServiceCidrs(_) => "a ServiceCIDR".into(),
                Event::Pods(Update::Replace { objects, .. }) => {
                    format!("{} pods", objects.len())
                }
                Event::Pods(_) => "a pod".into(),
                Event::Node(node) => format!("node: {}", node.is_some()),
                Event::UnreadableNode => "node: unreadable".into(),
                Event::NodeAddresses(_) => "no object".into(),
            })
            .collect()
    }

    fn replace_by_rename(path: &Path, text: &str) {
        let draft = path.with_extension("draft");
        fs::write(&draft, text).unwrap();
        fs::rename(draft, path).unwrap();
    }

    #[tokio::test]
    async fn a_folder_is_listed_and_then_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, mut batches) = mpsc::channel(8);
        let web = folder.path().join("web.yaml");
        fs::write(&web, service("web", "10.96.0.1")).unwrap();
        watch(folder.path().into(), NODE, sender, Skipped::default()).unwrap();
        assert_eq!(
            next(&mut batches).await,
            ["1 services", "0 slices", "0 ServiceCIDRs", "0 pods", "node: false"]
        );

        fs::write(&web, service("web", "10.96.0.2")).unwrap();
        assert_eq!(next(&mut batches).await, ["+ default/web 10.96.0.2"]);
        replace_by_rename(&web, &service("web", "10.96.0.3"));
        assert_eq!(next(&mut batches).await, ["+ default/web 10.96.0.3"]);
        fs::write(folder.path().join("db.yml"), service("db", "10.96.0.9")).unwrap();
        assert_eq!(next(&mut batches).await, ["+ default/db 10.96.0.9"]);
        fs::remove_file(web).unwrap();
        assert_eq!(next(&mut batches).await, ["- default/web"]);
    }

    #[tokio::test]
    async fn a_config_map_that_is_swapped_by_its_link_is_one_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (version, a, b) in [("..1", "10.96.0.1", "10.96.0.5"), ("..2", "10.96.0.2", "10.96.0.6")] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("a.yaml"), service("a", a)).unwrap();
            fs::write(path(version).join("b.yaml"), service("b", b)).unwrap();
        }
        symlink("..1", path("..data")).unwrap();
        symlink("..data/a.yaml", path("a.yaml")).unwrap();
        symlink("..data/b.yaml", path("b.yaml")).unwrap();

        let (sender, mut batches) = mpsc::channel(8);
        watch(folder.path().into(), NODE, sender, Skipped::default()).unwrap();
        assert_eq!(
            next(&mut batches).await,
            ["2 services", "0 slices", "0 ServiceCIDRs", "0 pods", "node: false"]
        );
        symlink("..2", path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
        assert_eq!(
            next(&mut batches).await,
            ["+ default/a 10.96.0.2", "+ default/b 10.96.0.6"]
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let (sender, _batches) = mpsc::channel(8);
        let error = watch("/nowhere".into(), NODE, sender, Skipped::default()).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "--source /nowhere: No such file or directory (os error 2)"
        );
    }
}
