//! Where `lb-agent run` has what it makes, for the verbs that look there.

use std::path::PathBuf;

use clap::Args;

use crate::config::{DEFAULT_BPFFS, DEFAULT_RUN_DIR, Given};

/// The flags that tell where; to be given as they are to `lb-agent run`.
#[derive(Clone, Debug, Args)]
pub(super) struct Places {
    /// The file that `lb-agent run` has its settings from, of which only `bpffs` and `runDir` count here
    #[arg(long, value_name = "FILE", env = "LB_AGENT_CONFIG")]
    config: Option<PathBuf>,

    /// The BPF file system [default: /sys/fs/bpf]
    #[arg(long, value_name = "DIR", env = "LB_AGENT_BPFFS")]
    bpffs: Option<PathBuf>,

    /// The folder of the agent's own files [default: /run/lb-agent]
    #[arg(long, value_name = "DIR", env = "LB_AGENT_RUN_DIR")]
    run_dir: Option<PathBuf>,
}

/// The places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Paths {
    /// The BPF file system.
    pub(super) bpffs: PathBuf,
    /// The folder of the agent's own files.
    pub(super) run_dir: PathBuf,
}

impl Places {
    /// The places, with every default filled in.
    pub(super) fn paths(self) -> anyhow::Result<Paths> {
        // Read in any case: a file that makes no sense is said, whatever else is given.
        let file = self.config.as_deref().map(Given::read).transpose()?;
        let (bpffs, run_dir) = file
            .map(|file| (file.settings.bpffs, file.settings.run_dir))
            .unwrap_or_default();
        Ok(Paths {
            bpffs: self.bpffs.or(bpffs).unwrap_or_else(|| DEFAULT_BPFFS.into()),
            run_dir: self.run_dir.or(run_dir).unwrap_or_else(|| DEFAULT_RUN_DIR.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What a file and flags come to, each flag for both places.
    fn paths(text: Option<&str>, flag: Option<&str>) -> anyhow::Result<[PathBuf; 2]> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("config.yaml");
        if let Some(text) = text {
            fs::write(&path, text)?;
        }
        let places = Places {
            config: text.is_some().then_some(path),
            bpffs: flag.map(PathBuf::from),
            run_dir: flag.map(PathBuf::from),
        };
        places.paths().map(|paths| [paths.bpffs, paths.run_dir])
    }

    #[test]
    fn the_flag_comes_before_the_file_and_the_file_before_the_default() {
        let file = Some("bpffs: /file/bpf\nrunDir: /file/run\nmaxServices: 10\nsource: /manifests");
        let expected = |places: [&str; 2]| places.map(PathBuf::from);
        assert_eq!(paths(file, Some("/flag")).unwrap(), expected(["/flag", "/flag"]));
        assert_eq!(paths(file, None).unwrap(), expected(["/file/bpf", "/file/run"]));
        let defaults = expected([DEFAULT_BPFFS, DEFAULT_RUN_DIR]);
        assert_eq!(paths(Some("maxServices: 10"), None).unwrap(), defaults);
        assert_eq!(paths(None, None).unwrap(), defaults);
    }

    #[test]
    fn a_field_that_there_is_not_is_an_error_here_too() {
        let error = paths(Some("bpfs: /file"), None).unwrap_err();
        assert!(format!("{error:#}").contains("bpfs`"), "{error:#}");
    }
}
