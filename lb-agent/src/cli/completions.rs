//! `lb-agent completions`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{Args, Command};
use clap_complete::Shell;

use super::output::{Answer, written};

/// Print what a shell needs to complete the words of this command line: `source <(lb-agent completions bash)`
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, mut command: Command) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        // It cannot tell that nobody reads, so it is not given the pipe.
        clap_complete::generate(self.shell, &mut command, "lb-agent", &mut script);
        let mut out = io::stdout().lock();
        written(out.write_all(&script).and_then(|()| out.flush()))?;
        Ok(Answer::Good.into())
    }
}
