//! Builds programs from Go modules, of which a module of ours says the versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::run::{self, Step};
use crate::workspace::{self, Lock};

/// A first build of one program, with everything it shares with the others, on a slow and busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Downloading all modules of one program over a slow line.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Asking go for its version, which may make it download a newer self.
const VERSION_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Where the archive from Go's own site is unpacked by its instructions, often without being in PATH.
const USUAL_GO: &str = "/usr/local/go/bin/go";

/// A Go module of ours that names programs, as its tools, and their versions.
pub struct Module {
    dir: PathBuf,
    text: String,
}

impl Module {
    /// Reads the one in this folder of the repository.
    pub fn read(folder: &str) -> Result<Self> {
        let dir = workspace::root().join(folder);
        let path = dir.join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { dir, text })
    }

    /// What its file says.
    #[cfg(test)]
    pub fn lines(&self) -> std::str::Lines<'_> {
        self.text.lines()
    }

    /// The required version of a module, without its `v`.
    pub fn version(&self, module: &str) -> Result<&str> {
        self.text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(module)?.strip_prefix(" v"))
            .find_map(|rest| rest.split_whitespace().next())
            .with_context(|| format!("{} does not require {module}", self.dir.join("go.mod").display()))
    }

    /// The oldest Go that builds it.
    pub fn go(&self) -> Result<&str> {
        self.text
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .map(str::trim)
            .with_context(|| format!("{} does not say which Go it needs", self.dir.join("go.mod").display()))
    }
}

/// The go command.
pub struct Go {
    program: PathBuf,
}

impl Go {
    /// Finds one that is new enough.
    pub fn find(module: &Module) -> Result<Self> {
        let need = module.go()?;
        let install = format!(
            "It is built from source by Go {need} or newer: install your distribution's `golang-go` if it is that new, \
             else unpack the archive from Go's own site into /usr/local; then run the same command again."
        );
        let in_path = std::env::var_os("PATH")
            .into_iter()
            .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
            .map(|dir| dir.join("go"))
            .chain([PathBuf::from(USUAL_GO)])
            .find(|go| go.is_file());
        let Some(program) = in_path else {
            bail!("go is not installed (not in PATH, no {USUAL_GO}).\n  {install}")
        };
        let go = Self { program };

        let step = Step::new("asking go for its version", VERSION_LIMIT).hint(install.clone());
        let version = step.ask(go.command(module).args(["env", "GOVERSION"]))?;
        let have = version.trim().trim_start_matches("go");
        if numbers(have) < numbers(need) {
            bail!("{} is Go {have}, which is too old.\n  {install}", go.program.display());
        }
        Ok(go)
    }

    fn command(&self, module: &Module) -> Command {
        let mut command = Command::new(&self.program);
        // Neither a workspace above this folder nor settings for cross builds may change what is built.
        command
            .current_dir(&module.dir)
            .env("GOWORK", "off")
            .env("CGO_ENABLED", "0")
            .env_remove("GOOS")
            .env_remove("GOARCH");
        command
    }

    /// Builds the program of a package, with these flags for the linker, into this file.
    pub fn build(&self, module: &Module, title: &str, package: &str, ldflags: &str, to: &Path) -> Result<()> {
        // Listing what a program is made of makes go fetch all its modules: what fails here is the line, not the code.
        let step = Step::new(format!("downloading the modules of {title}"), DOWNLOAD_LIMIT);
        let mut list = self.command(module);
        list.args(["list", "-mod=readonly", "-deps", "-f", "{{.ImportPath}}", package]);
        step.run(&mut list)
            .map_err(|error| explained(error, Some(NO_DOWNLOAD)))?;

        // Go refuses to write over a file that is not a program, such as the half of one that an earlier stop left.
        let new = to.with_file_name(format!(".{}.part", to.file_name().unwrap_or_default().display()));
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}", new.display()));
        }
        let step = Step::new(format!("building {title}"), BUILD_LIMIT);
        let mut build = self.command(module);
        build.args([
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-v",
            "-ldflags",
            ldflags,
            "-o",
        ]);
        build.arg(&new).arg(package);
        step.run(&mut build).map_err(|error| explained(error, None))?;
        fs::rename(&new, to).with_context(|| format!("cannot rename {} to {}", new.display(), to.display()))
    }
}

/// A program alone in its module of ours.
#[derive(Debug)]
pub struct Tool {
    /// What it is called.
    pub name: &'static str,
    /// Where the module of ours is.
    pub folder: &'static str,
    /// The module that it comes from.
    pub module: &'static str,
    /// Its package there.
    pub package: &'static str,
}

/// Builds a program into the tools folder unless it is there, and says where it is.
pub fn tool(tools: &Path, tool: &Tool) -> Result<PathBuf> {
    let Tool { name, .. } = tool;
    let module = Module::read(tool.folder)?;
    let version = module.version(tool.module)?;
    let bin = tools.join(format!("{name}-{version}"));
    let program = bin.join(name);
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let _lock = Lock::take(&bin)?;
    if !program.is_file() {
        let go = Go::find(&module)?;
        go.build(&module, &format!("{name} {version}"), tool.package, "-s -w", &program)
            .with_context(|| format!("{name} could not be built"))?;
    }
    Ok(program)
}

const NO_DOWNLOAD: &str = "The Go modules could not be fetched. Check the network, and what `go env GOPROXY` and the proxy variables of \
    the environment say; what has been fetched is kept, so running the same command again goes on from there.";
const DISK_FULL: &str = "The disk is full. A first build wants about 4 GB, in the tools folder, in the temporary folder and in Go's \
    caches (`go env GOCACHE GOMODCACHE`); free some space and run the same command again.";
const NO_MEMORY: &str = "A compiler was killed, most likely for lack of memory: a build wants about 2 GB free. Running the same command \
    again goes on from where it stopped.";

/// Adds to an error of go what can be done about it.
fn explained(error: anyhow::Error, otherwise: Option<&'static str>) -> anyhow::Error {
    if error.is::<run::Interrupted>() {
        return error;
    }
    let text = format!("{error:#}");
    let advice = if text.contains("no space left on device") || text.contains("disk quota exceeded") {
        Some(DISK_FULL)
    } else if text.contains("signal: killed") || text.contains("cannot allocate memory") {
        Some(NO_MEMORY)
    } else {
        otherwise
    };
    match advice {
        Some(advice) => anyhow!("{text}\n  {advice}"),
        None => error,
    }
}

/// The leading numbers of a version, to compare: 1.26.8 and 1.26rc1 are [1, 26, 8] and [1, 26].
pub fn numbers(version: &str) -> Vec<u32> {
    version
        .split('.')
        .map_while(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(numbers("1.9.2") < numbers("1.26.0"));
        assert!(numbers("1.26.8") > numbers("1.26.0"));
        assert_eq!(numbers("1.27rc1"), [1, 27]);
    }

    #[test]
    fn go_errors_say_what_to_do() {
        let error = explained(anyhow!("link: write a.out: no space left on device"), None).to_string();
        assert!(error.contains("The disk is full"), "{error}");
        assert_eq!(explained(anyhow!("syntax error"), None).to_string(), "syntax error");
    }
}
