//! kube-proxy's configuration, so that lb-agent can be put in its place with the file and the flags that it had.
//!
//! [`TABLE`] has every field and every flag, and says of each what becomes of it: it is a setting of ours, it does
//! nothing here and is named in a warning, or it is refused since clients would notice that it is missing. Values that
//! say nothing, or what kube-proxy does by default, are not worth a word.
//!
//! Flags are a document too: each is put where its field is, so that there is one translation. What the file says for
//! another mode than its own is not looked at, as kube-proxy does not.

mod duration;
mod flags;
mod table;
#[cfg(test)]
mod tests;
mod translate;
mod types;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::Value;

pub use self::{
    flags::Flags,
    table::{Fate, Kind, Row, TABLE},
    types::Mode,
};
use self::{translate::Origin, types::KubeProxyConfiguration};
use super::Given;

const GROUP: &str = "kubeproxy.config.k8s.io";
const VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// What a file says of what it is.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
}

/// Whether a file is one of kube-proxy's.
///
/// # Errors
/// It is, but of a version or a kind that there is not.
pub fn recognises(text: &str) -> anyhow::Result<bool> {
    // What is no map at all is nothing of kube-proxy's, and told by whoever reads it.
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::FirstWins };
    let Ok(Some(header)) = serde_saphyr::from_str_with_options::<Option<Header>>(text, options) else {
        return Ok(false);
    };
    let (version, kind) = (header.api_version.as_deref(), header.kind.as_deref());
    match (version, kind) {
        (Some(VERSION), Some(KIND)) => Ok(true),
        (Some(version), kind) if version.split('/').next() == Some(GROUP) => {
            let kind = kind.unwrap_or("nothing");
            bail!("apiVersion {version} and kind {kind}: of this group only {VERSION} {KIND} is understood")
        }
        (_, Some(KIND)) => bail!("kind {KIND} needs apiVersion: {VERSION}"),
        _ => Ok(false),
    }
}

/// What a file of kube-proxy's says.
///
/// # Errors
/// A field that kube-proxy has not, a value that it would not take, or something that is refused.
pub(super) fn parse(text: &str) -> anyhow::Result<Given> {
    let options = || serde_saphyr::options! { with_snippet: false };
    let configuration: KubeProxyConfiguration = serde_saphyr::from_str_with_options(text, options())?;
    let document: Value = serde_saphyr::from_str_with_options(text, options()).context("not a document")?;
    translate::translate(&configuration, &document, Origin::File)
}
