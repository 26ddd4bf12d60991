//! Builds the programs of the real control plane from their Go modules, once, into the tools folder.
//!
//! What is built and from which versions is said by `tests/controlplane/go.mod` and nowhere else.

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

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The command line client.
    Kubectl,
    /// The proxy that lb-agent replaces, for comparisons.
    KubeProxy,
}

impl Component {
    /// What the tests and `cargo xtask controlplane` need.
    pub const FOR_TESTS: &[Self] = &[Self::Etcd, Self::ApiServer, Self::Kubectl];

    /// What a comparison with kube-proxy needs.
    pub const FOR_PARITY: &[Self] = &[Self::Etcd, Self::ApiServer, Self::Kubectl, Self::KubeProxy];

    /// The name of its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Kubectl => "kubectl",
            Self::KubeProxy => "kube-proxy",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::KubeProxy => "k8s.io/kubernetes/cmd/kube-proxy",
        }
    }

    fn module(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer | Self::Kubectl | Self::KubeProxy => KUBERNETES,
        }
    }
}

const KUBERNETES: &str = "k8s.io/kubernetes";

/// Builds those of the wanted programs that are not there yet, into [`bin_dir`]. Does nothing if all are.
pub fn build(tools: &Path, want: &[Component]) -> Result<()> {
    let bin = bin_dir(tools)?;
    if missing(&bin, want).is_empty() {
        return Ok(());
    }
    let module = Module::read()?;
    let go = Go::find(&module)?;
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let _lock = Lock::take(&bin)?;
    // Another command may have built them while this one waited.
    for component in missing(&bin, want) {
        go.build(&module, component, &bin)
            .with_context(|| format!("{} could not be built", component.program()))?;
    }
    Ok(())
}

/// The folder of the programs, whether they are built or not: one for each version of Kubernetes.
pub fn bin_dir(tools: &Path) -> Result<PathBuf> {
    let module = Module::read()?;
    Ok(tools.join(format!("controlplane-{}", module.kubernetes()?)).join("bin"))
}

fn missing(bin: &Path, want: &[Component]) -> Vec<Component> {
    want.iter()
        .copied()
        .filter(|component| !bin.join(component.program()).is_file())
        .collect()
}

/// The Go module that names the programs and their versions.
struct Module {
    dir: PathBuf,
    text: String,
}

impl Module {
    fn read() -> Result<Self> {
        let dir = workspace::root().join("tests/controlplane");
        let path = dir.join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { dir, text })
    }

    /// The required version of a module, without its `v`.
    fn version(&self, module: &str) -> Result<&str> {
        self.text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(module)?.strip_prefix(" v"))
            .find_map(|rest| rest.split_whitespace().next())
            .with_context(|| format!("{} does not require {module}", self.dir.join("go.mod").display()))
    }

    fn kubernetes(&self) -> Result<&str> {
        self.version(KUBERNETES)
    }

    /// The oldest Go that builds it.
    fn go(&self) -> Result<&str> {
        self.text
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .map(str::trim)
            .with_context(|| format!("{} does not say which Go it needs", self.dir.join("go.mod").display()))
    }
}

/// The go command.
struct Go {
    program: PathBuf,
}

impl Go {
    /// Finds one that is new enough.
    fn find(module: &Module) -> Result<Self> {
        let need = module.go()?;
        let install = format!(
            "The control plane is built from source by Go {need} or newer: install your distribution's `golang-go` if it is that new, \
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

    fn build(&self, module: &Module, component: Component, bin: &Path) -> Result<()> {
        let title = format!("{} {}", component.program(), module.version(component.module())?);

        // Listing what a program is made of makes go fetch all its modules: what fails here is the line, not the code.
        let step = Step::new(format!("downloading the modules of {title}"), DOWNLOAD_LIMIT);
        let mut list = self.command(module);
        list.args([
            "list",
            "-mod=readonly",
            "-deps",
            "-f",
            "{{.ImportPath}}",
            component.package(),
        ]);
        step.run(&mut list)
            .map_err(|error| explained(error, Some(NO_DOWNLOAD)))?;

        // Go refuses to write over a file that is not a program, such as the half of one that an earlier stop left.
        let new = bin.join(format!(".{}.part", component.program()));
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
            &ldflags(module.kubernetes()?),
            "-o",
        ]);
        build.arg(&new).arg(component.package());
        step.run(&mut build).map_err(|error| explained(error, None))?;

        let done = bin.join(component.program());
        fs::rename(&new, &done).with_context(|| format!("cannot rename {} to {}", new.display(), done.display()))
    }
}

/// Without these variables the server says that it is v0.0.0, and clients complain.
fn ldflags(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut flags = String::from("-s -w");
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", &*format!("v{version}")),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    flags
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
fn numbers(version: &str) -> Vec<u32> {
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
    fn the_module_names_every_program() {
        let module = Module::read().unwrap();
        for component in [
            Component::Etcd,
            Component::ApiServer,
            Component::Kubectl,
            Component::KubeProxy,
        ] {
            assert!(
                module.text.lines().any(|line| line.trim() == component.package()),
                "no tool line for {component:?}"
            );
            assert!(numbers(module.version(component.module()).unwrap()).len() == 3);
        }
        assert!(numbers(module.go().unwrap()) >= vec![1, 26]);
    }

    #[test]
    fn the_kubernetes_version_is_the_staging_modules_version() {
        // k8s.io/kubernetes 1.x.y goes with k8s.io/api 0.x.y and so on; a half-done update would build something nobody ships.
        let module = Module::read().unwrap();
        let staging = module.kubernetes().unwrap().replacen('1', "0", 1);
        let replaced: Vec<_> = module.text.lines().filter(|line| line.contains("=>")).collect();
        assert!(replaced.len() > 20);
        for line in replaced {
            assert!(line.ends_with(&format!(" v{staging}")), "{line}");
        }
    }

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

    #[test]
    fn the_server_is_told_its_version() {
        let flags = ldflags("1.36.3");
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.3 "),
            "{flags}"
        );
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitMinor=36 "),
            "{flags}"
        );
    }
}
