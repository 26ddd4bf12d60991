//! The chart, as helm renders it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A file of the repository.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(path)
}

/// Calls helm at the root of the repository.
pub(crate) fn helm(args: &[&str]) -> Output {
    let program = env::var_os("LB_HELM").expect("`cargo xtask test deploy` builds helm and names it in LB_HELM");
    let mut command = Command::new(program);
    command.current_dir(file("")).args(args);
    command.output().unwrap()
}

/// What the chart renders.
pub(crate) struct Rendered {
    pub(crate) text: String,
}

/// Renders the chart with what the shipped manifests are rendered with, and these arguments.
pub(crate) fn render(args: &[&str]) -> Result<Rendered, String> {
    let first = [
        "template",
        "lb-agent",
        "deploy/helm/lb-agent",
        "--namespace=kube-system",
        "--values=deploy/values.yaml",
    ];
    let output = helm(&[&first, args].concat());
    if output.status.success() {
        let text = String::from_utf8(output.stdout).unwrap();
        Ok(Rendered { text })
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

impl Rendered {
    /// Its objects.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let documents = self.text.split("---\n").filter(|document| !document.trim().is_empty());
        documents
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect()
    }

    /// The only object of this type and kind, of which nothing gets lost in the type.
    pub(crate) fn object<T: DeserializeOwned + Serialize>(&self, kind: &str) -> T {
        let objects = self.objects();
        let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).collect();
        let [object] = found.as_slice() else {
            panic!("{} objects of kind {kind}", found.len());
        };
        let decoded: T = serde_json::from_value((*object).clone()).unwrap();
        assert_eq!(
            serde_json::to_value(&decoded).unwrap(),
            **object,
            "a field that {kind} does not have"
        );
        decoded
    }

    pub(crate) fn pod(&self) -> PodSpec {
        self.object::<DaemonSet>("DaemonSet")
            .spec
            .unwrap()
            .template
            .spec
            .unwrap()
    }

    /// What the agent reads.
    pub(crate) fn config(&self) -> String {
        self.object::<ConfigMap>("ConfigMap").data.unwrap()["config.yaml"].clone()
    }
}
