//! The documents of an image, and the archive that holds it: an OCI image layout in a tar file, which `docker load` takes
//! too.
//!
//! Names and values are those of the OCI Image Format Specification 1.1. The documents are three small ones, so xtask writes
//! them itself; the tests read them with a library that knows the specification.

use std::env::consts::ARCH;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::files::{Files, Mode};
use super::layer::{self, Digest, Layer};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The signal at which programs end as they should.
const STOP: &str = "SIGTERM";

/// An image that is not written yet.
#[derive(Debug)]
pub struct Image<'a> {
    /// Its repository and tag.
    pub name: &'a str,
    /// The program that is run, by its path.
    pub program: &'a str,
    /// Its arguments, which whoever runs it can change.
    pub arguments: &'a [&'a str],
    /// Where it finds others.
    pub path: &'a str,
    /// As people and registries read them.
    pub labels: Value,
    /// The lowest first.
    pub layers: Vec<Layer>,
}

impl Image<'_> {
    /// The archive, and the digest of the manifest, which is the image's.
    pub fn archive(&self) -> Result<(Vec<u8>, String)> {
        let mut files = Files::default();
        let mut blob = |kind: &str, bytes: Vec<u8>| {
            let digest = Digest::of(&bytes);
            let descriptor = json!({ "mediaType": kind, "digest": digest.to_string(), "size": bytes.len() });
            files.add(Path::new("blobs/sha256").join(digest.hex()), Mode::Data, bytes);
            (descriptor, digest)
        };
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|layer| blob(LAYER, layer.blob.clone()))
            .collect();
        let (config, config_digest) = blob(CONFIG, text(&self.config())?);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers.iter().map(|(descriptor, _)| descriptor).collect::<Vec<_>>(),
            "annotations": self.labels,
        });
        let (mut manifest, digest) = blob(MANIFEST, text(&manifest)?);
        manifest["platform"] = json!({ "os": "linux", "architecture": architecture() });
        manifest["annotations"] = json!({
            "org.opencontainers.image.ref.name": tag(self.name),
            // By this containerd knows the whole name.
            "io.containerd.image.name": self.name,
        });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
        files.add("index.json", Mode::Data, text(&index)?);
        files.add(
            "oci-layout",
            Mode::Data,
            text(&json!({ "imageLayoutVersion": "1.0.0" }))?,
        );
        // The list of `docker save`, without which Docker takes no archive.
        let place = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
        let layers: Vec<_> = layers.iter().map(|(_, digest)| place(digest)).collect();
        let list = json!([{ "Config": place(&config_digest), "RepoTags": [self.name], "Layers": layers }]);
        files.add("manifest.json", Mode::Data, text(&list)?);
        Ok((layer::tar(&files)?, digest.to_string()))
    }

    fn config(&self) -> Value {
        let history = |layer: &Layer| json!({ "created_by": "cargo xtask image", "comment": layer.what });
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": [self.program],
                "Cmd": self.arguments,
                "Env": [format!("PATH={}", self.path)],
                "WorkingDir": "/",
                "StopSignal": STOP,
                "Labels": self.labels,
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": self.layers.iter().map(|layer| layer.diff_id.to_string()).collect::<Vec<_>>(),
            },
            "history": self.layers.iter().map(history).collect::<Vec<_>>(),
        })
    }
}

/// Go's name of the architecture, which OCI uses.
fn architecture() -> &'static str {
    match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn tag(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, tag)| tag)
}

fn text(document: &Value) -> Result<Vec<u8>> {
    serde_json::to_vec(document).context("cannot write a document of the image")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_make_the_same_image() {
        let image = |content: &[u8]| {
            let mut files = Files::default();
            files.add("usr/bin/lb-agent", Mode::Program, content.into());
            let layers = vec![layer::pack("lb-agent", &files).unwrap()];
            let image = Image {
                name: "localhost/lb-agent:1",
                program: "/usr/bin/lb-agent",
                arguments: &["run"],
                path: "/usr/bin",
                labels: json!({}),
                layers,
            };
            image.archive().unwrap()
        };
        assert_eq!(image(b"one"), image(b"one"));
        assert_ne!(image(b"one").1, image(b"two").1);
    }
}
