//! What one place says of the settings.

use std::{fs, path::Path};

use anyhow::Context as _;

use super::{Settings, kube_proxy};

/// Settings out of one place: a file, or kube-proxy's flags.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// What it says.
    pub settings: Settings,
    /// What follows from it where no place says otherwise, such as another default.
    pub implied: Settings,
    /// The mode that it asks kube-proxy for, if it does.
    pub mode: Option<kube_proxy::Mode>,
    /// What it says that does nothing here, each with the reason.
    pub warnings: Vec<String>,
}

impl Given {
    /// What a file says: one in the fields of [`Settings`], or a `KubeProxyConfiguration`.
    ///
    /// # Errors
    /// It cannot be read, has a field or a value that makes no sense, or asks for what lb-agent does in no way and
    /// must not pass over.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("--config {}", path.display());
        let text = fs::read_to_string(path).with_context(context)?;
        Self::parse(&text).with_context(context)
    }

    /// What the text of a file says.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        if kube_proxy::recognises(text)? {
            return kube_proxy::parse(text);
        }
        Ok(Self {
            settings: Settings::parse(text)?,
            ..Self::default()
        })
    }
}
