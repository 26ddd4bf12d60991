//! Where `lb-agent run` pins what it makes, for the verbs that look there.

use std::path::PathBuf;

use clap::Args;

use crate::config::{DEFAULT_BPFFS, Settings};

/// The flags that tell where; to be given as they are to `lb-agent run`.
#[derive(Debug, Args)]
pub(super) struct Bpffs {
    /// The file that `lb-agent run` has its settings from, of which only `bpffs` counts here
    #[arg(long, value_name = "FILE", env = "LB_AGENT_CONFIG")]
    config: Option<PathBuf>,

    /// The BPF file system [default: /sys/fs/bpf]
    #[arg(long, value_name = "DIR", env = "LB_AGENT_BPFFS")]
    bpffs: Option<PathBuf>,
}

impl Bpffs {
    /// The BPF file system.
    pub(super) fn path(&self) -> anyhow::Result<PathBuf> {
        // Read in any case: a file that makes no sense is said, whatever else is given.
        let file = self.config.as_deref().map(Settings::read).transpose()?;
        let from_file = file.and_then(|settings| settings.bpffs);
        Ok(self.bpffs.clone().or(from_file).unwrap_or_else(|| DEFAULT_BPFFS.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bpffs(text: Option<&str>, flag: Option<&str>) -> anyhow::Result<PathBuf> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("config.yaml");
        if let Some(text) = text {
            fs::write(&path, text)?;
        }
        let bpffs = Bpffs {
            config: text.is_some().then_some(path),
            bpffs: flag.map(PathBuf::from),
        };
        bpffs.path()
    }

    #[test]
    fn the_flag_comes_before_the_file_and_the_file_before_the_default() {
        let file = Some("bpffs: /file\nmaxServices: 10\nsource: /manifests\nkubeconfig: /kubeconfig");
        assert_eq!(bpffs(file, Some("/flag")).unwrap(), PathBuf::from("/flag"));
        assert_eq!(bpffs(file, None).unwrap(), PathBuf::from("/file"));
        assert_eq!(
            bpffs(Some("maxServices: 10"), None).unwrap(),
            PathBuf::from(DEFAULT_BPFFS)
        );
        assert_eq!(bpffs(None, None).unwrap(), PathBuf::from(DEFAULT_BPFFS));
    }

    #[test]
    fn a_field_that_there_is_not_is_an_error_here_too() {
        let error = bpffs(Some("bpfs: /file"), None).unwrap_err();
        assert!(format!("{error:#}").contains("bpfs`"), "{error:#}");
    }
}
