//! The archive, read as the OCI Image Format Specification has it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use oci_spec::image::{
    Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, OciLayout, Os, SCHEMA_VERSION,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The files of the archive.
pub(crate) struct Image {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// The one under test.
    pub(crate) fn open() -> Self {
        let path =
            std::env::var_os("LB_IMAGE").expect("`cargo xtask test deploy` builds an image and names it in LB_IMAGE");
        let archive = fs::read(&path).unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.header().entry_type().is_file() {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                files.insert(entry.path().unwrap().into_owned(), content);
            }
        }
        Self { files }
    }

    fn file(&self, path: &str) -> &[u8] {
        &self.files[&PathBuf::from(path)]
    }

    /// The content that a descriptor is about, which is as long and has the digest as it says.
    fn blob(&self, descriptor: &Descriptor) -> &[u8] {
        let content = self.file(&format!("blobs/sha256/{}", descriptor.digest().digest()));
        assert_eq!(content.len() as u64, descriptor.size());
        assert_eq!(sha256(content), descriptor.digest().to_string());
        content
    }

    fn index(&self) -> ImageIndex {
        ImageIndex::from_reader(self.file("index.json")).unwrap()
    }

    pub(crate) fn manifest(&self) -> ImageManifest {
        ImageManifest::from_reader(self.blob(&self.index().manifests()[0])).unwrap()
    }

    pub(crate) fn config(&self) -> ImageConfiguration {
        ImageConfiguration::from_reader(self.blob(self.manifest().config())).unwrap()
    }

    /// The layers as they are stored, the lowest first.
    pub(crate) fn layers(&self) -> Vec<&[u8]> {
        let manifest = self.manifest();
        manifest.layers().iter().map(|layer| self.blob(layer)).collect()
    }
}

fn sha256(content: &[u8]) -> String {
    let digits: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{digits}")
}

#[test]
fn it_is_an_image_layout_with_one_image() {
    let image = Image::open();
    let layout = OciLayout::from_reader(image.file("oci-layout")).unwrap();
    assert_eq!(layout.image_layout_version(), "1.0.0");
    let index = image.index();
    assert_eq!(index.schema_version(), SCHEMA_VERSION);
    let [descriptor] = index.manifests().as_slice() else {
        panic!("{index:?}");
    };
    assert_eq!(*descriptor.media_type(), MediaType::ImageManifest);
    let names = descriptor.annotations().as_ref().unwrap();
    assert_eq!(names["org.opencontainers.image.ref.name"], "test");
    assert_eq!(names["io.containerd.image.name"], "localhost/lb-agent:test");
    // Blobs that nothing names would be carried about for nothing.
    let blobs = image.files.keys().filter(|path| path.starts_with("blobs")).count();
    assert_eq!(blobs, 2 + image.layers().len());
}

#[test]
fn its_manifest_names_what_is_there_and_the_digests_are_true() {
    let image = Image::open();
    let manifest = image.manifest();
    assert_eq!(manifest.schema_version(), SCHEMA_VERSION);
    assert_eq!(*manifest.media_type(), Some(MediaType::ImageManifest));
    assert_eq!(*manifest.config().media_type(), MediaType::ImageConfig);
    for layer in manifest.layers() {
        assert_eq!(*layer.media_type(), MediaType::ImageLayerGzip);
    }
    // The digests that whoever unpacks it compares are of the archives before they were compressed.
    let unpacked: Vec<_> = image
        .layers()
        .into_iter()
        .map(|layer| {
            let mut archive = Vec::new();
            GzDecoder::new(layer).read_to_end(&mut archive).unwrap();
            sha256(&archive)
        })
        .collect();
    assert_eq!(*image.config().rootfs().diff_ids(), unpacked);
}

#[test]
fn docker_finds_the_same_image_in_it() {
    let image = Image::open();
    let place = |descriptor: &Descriptor| format!("blobs/sha256/{}", descriptor.digest().digest());
    let manifest = image.manifest();
    let list: Value = serde_json::from_slice(image.file("manifest.json")).unwrap();
    let layers: Vec<_> = manifest.layers().iter().map(place).collect();
    let expected = json!([{
        "Config": place(manifest.config()),
        "RepoTags": ["localhost/lb-agent:test"],
        "Layers": layers,
    }]);
    assert_eq!(list, expected);
}

#[test]
fn it_says_what_it_is_and_how_it_is_run() {
    let image = Image::open();
    let config = image.config();
    assert_eq!(*config.os(), Os::Linux);
    assert_eq!(config.history().as_ref().unwrap().len(), image.layers().len());
    let run = config.config().as_ref().unwrap();
    assert_eq!(*run.entrypoint(), Some(vec!["/usr/bin/lb-agent".to_owned()]));
    assert_eq!(*run.cmd(), Some(vec!["run".to_owned()]));
    assert_eq!(run.stop_signal().as_deref(), Some("SIGTERM"));
    let labels = run.labels().as_ref().unwrap();
    assert_eq!(labels["org.opencontainers.image.title"], "lb-agent");
    assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0 OR MIT");
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(image.manifest().annotations().as_ref(), Some(labels));
}

#[test]
fn its_files_belong_to_root_and_nobody_else_can_write_them() {
    let image = Image::open();
    let mut seen = 0;
    for layer in image.layers() {
        for entry in tar::Archive::new(GzDecoder::new(layer)).entries().unwrap() {
            let entry = entry.unwrap();
            let (header, path) = (entry.header(), entry.path().unwrap());
            assert_eq!(
                (header.uid().unwrap(), header.gid().unwrap()),
                (0, 0),
                "{}",
                path.display()
            );
            // A symbolic link has no rights of its own.
            if !header.entry_type().is_symlink() {
                assert_eq!(header.mode().unwrap() & 0o7022, 0, "{}", path.display());
            }
            assert_eq!(header.mtime().unwrap(), 0, "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 10);
}
