//! Debian packages that are fetched and unpacked into our own folder, without installing anything: apt's own state is not touched.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::packages::find_program;
use crate::run::Step;

/// Suites of the main archive whatever the release; one of them marks the machine's own main archive.
const GENERIC_SUITES: &[&str] = &["stable", "testing", "unstable", "sid", "oldstable"];
const FETCH_LIMIT: Duration = Duration::from_secs(300);

/// What is said about the machine in `os-release`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Os {
    /// "debian"
    pub id: String,
    /// "bookworm"; empty where there is none.
    pub codename: String,
}

impl Os {
    /// Reads `/etc/os-release`.
    pub fn detect() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))
                .map(|value| value.trim_matches(['"', '\'']).to_owned())
                .unwrap_or_default()
        };
        Self {
            id: field("ID"),
            codename: field("VERSION_CODENAME"),
        }
    }

    /// Debian itself with its tools: the suites that we ask for are not in the archives of its derivatives.
    pub fn is_debian(&self) -> bool {
        self.id == "debian"
            && ["apt-get", "apt-cache", "dpkg-deb"]
                .iter()
                .all(|tool| find_program(tool).is_some())
    }
}

/// A source of binary packages, as apt knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    uri: String,
    suites: Vec<String>,
    signed_by: Option<String>,
}

/// Reads the machine's own apt sources.
pub fn machine_sources() -> Vec<Source> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("list") => sources.extend(parse_lines(&text)),
            Some("sources") => sources.extend(parse_deb822(&text)),
            // apt ignores other files, too.
            _ => {}
        }
    }
    sources
}

/// The one-line format: `deb [signed-by=KEY] URI SUITE COMPONENT...`
fn parse_lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    let mut rest = rest.strip_prefix(char::is_whitespace)?.trim_start();
    let mut signed_by = None;
    if let Some(after) = rest.strip_prefix('[') {
        let (options, after) = after.split_once(']')?;
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .and_then(key_file);
        rest = after;
    }
    let mut words = rest.split_whitespace();
    let uri = words.next()?.trim_end_matches('/').to_owned();
    Some(Source {
        uri,
        suites: vec![words.next()?.to_owned()],
        signed_by,
    })
}

/// The deb822 format: stanzas of `Field: value`, where a line that begins with a blank goes on with the field above it.
fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).chain([""]) {
        if line.trim().is_empty() {
            sources.extend(stanza(&std::mem::take(&mut fields)));
        } else if line.starts_with(char::is_whitespace) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

fn stanza(fields: &[(String, String)]) -> Vec<Source> {
    let field = |name: &str| {
        fields
            .iter()
            .find(|(field, _)| field == name)
            .map_or("", |(_, value)| value.as_str())
    };
    let enabled = !matches!(
        field("enabled").to_ascii_lowercase().as_str(),
        "no" | "false" | "0" | "off"
    );
    if !enabled || !field("types").split_whitespace().any(|kind| kind == "deb") {
        return Vec::new();
    }
    let suites: Vec<_> = field("suites").split_whitespace().map(str::to_owned).collect();
    field("uris")
        .split_whitespace()
        .map(|uri| Source {
            uri: uri.trim_end_matches('/').to_owned(),
            suites: suites.clone(),
            signed_by: key_file(field("signed-by")),
        })
        .collect()
}

/// A key may also be written into the source itself, or named by fingerprint: those cannot be passed on in one line.
fn key_file(value: &str) -> Option<String> {
    value.starts_with('/').then(|| value.to_owned())
}

/// The source that serves the machine's own release: its server has the other suites of the main archive as well.
pub fn main_archive<'a>(sources: &'a [Source], codename: &str) -> Option<&'a Source> {
    sources.iter().find(|source| {
        source
            .suites
            .iter()
            .any(|suite| (!codename.is_empty() && suite == codename) || GENERIC_SUITES.contains(&suite.as_str()))
    })
}

/// The source of security updates: its server has those of other releases as well.
pub fn security_archive(sources: &[Source]) -> Option<&Source> {
    let is_security = |suite: &String| suite.ends_with("-security");
    sources.iter().find(|source| source.suites.iter().any(is_security))
}

/// An apt with lists, sources and cache in a folder of ours.
#[derive(Debug)]
pub struct PrivateApt {
    dir: PathBuf,
    own_sources: bool,
}

impl PrivateApt {
    /// One that knows one suite of the given source's archive.
    pub fn with_suite(dir: &Path, source: &Source, suite: &str) -> Result<Self> {
        let apt = Self::with_machine_sources(dir)?;
        let key = match &source.signed_by {
            Some(key) => format!("[signed-by={key}] "),
            None => String::new(),
        };
        let file = dir.join("sources.list");
        std::fs::write(&file, format!("deb {key}{} {suite} main\n", source.uri))
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self {
            own_sources: true,
            ..apt
        })
    }

    /// One that knows what the machine's own apt knows, with fresh lists.
    pub fn with_machine_sources(dir: &Path) -> Result<Self> {
        for folder in ["lists/partial", "cache/archives/partial", "debs"] {
            let folder = dir.join(folder);
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            own_sources: false,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut option = |name: &str, value: &str| {
            command.arg("-o").arg(format!("{name}={value}"));
        };
        option("Dir::State::Lists", &self.dir.join("lists").to_string_lossy());
        option("Dir::Cache", &self.dir.join("cache").to_string_lossy());
        if self.own_sources {
            option("Dir::Etc::SourceList", &self.dir.join("sources.list").to_string_lossy());
            option("Dir::Etc::SourceParts", "/nonexistent");
        }
        // Root's apt would otherwise fetch as a user who may not write here.
        option("APT::Sandbox::User", "root");
        option("Acquire::http::Timeout", "30");
        option("Acquire::Retries", "2");
        command.current_dir(self.dir.join("debs"));
        command
    }

    /// Reads the package lists.
    pub fn update(&self, what: &str) -> Result<()> {
        // Without this a suite that is not there would only be a warning.
        let mut command = self.command("apt-get");
        command.args(["-o", "APT::Update::Error-Mode=any", "update"]);
        Step::new(format!("reading the package lists of {what}"), FETCH_LIMIT)
            .run(&mut command)
            .map(drop)
    }

    /// The versions that there are of a package, newest first.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        let text = Step::new("apt-cache madison", FETCH_LIMIT).ask(command.args(["madison", package]))?;
        Ok(parse_madison(&text))
    }

    /// The package and what it needs, as far as the names begin with one of the given words.
    pub fn with_dependencies(&self, packages: &[&str], beginnings: &[&str]) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args([
            "depends",
            "--recurse",
            "--no-recommends",
            "--no-suggests",
            "--no-conflicts",
            "--no-breaks",
        ]);
        command.args(["--no-replaces", "--no-enhances"]).args(packages);
        let text = Step::new("apt-cache depends", FETCH_LIMIT).ask(&mut command)?;
        Ok(parse_depends(&text, beginnings))
    }

    /// Fetches packages ("NAME" or "NAME=VERSION") and returns the files.
    pub fn download(&self, packages: &[String]) -> Result<Vec<PathBuf>> {
        let mut command = self.command("apt-get");
        Step::new(format!("fetching {}", packages.join(", ")), FETCH_LIMIT)
            .run(command.arg("download").args(packages))?;
        let debs = self.dir.join("debs");
        let entries = std::fs::read_dir(&debs).with_context(|| format!("cannot list {}", debs.display()))?;
        let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        if files.len() < packages.len() {
            bail!(
                "apt-get fetched {} of {} packages into {}",
                files.len(),
                packages.len(),
                debs.display()
            );
        }
        Ok(files)
    }
}

/// Unpacks the parts of a package that match one of the patterns ("./usr/src/*"); no pattern means all.
pub fn unpack(deb: &Path, into: &Path, patterns: &[&str]) -> Result<()> {
    std::fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
    let mut command = Command::new("sh");
    // tar notices itself when what comes before it ends early.
    command.args([
        "-c",
        r#"deb=$1 to=$2; shift 2; dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$to" --wildcards "$@""#,
        "sh",
    ]);
    command.arg(deb).arg(into).args(patterns);
    let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Step::new(format!("unpacking {name}"), FETCH_LIMIT)
        .run(&mut command)
        .map(drop)
}

fn parse_madison(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split('|').nth(1))
        .map(|version| version.trim().to_owned())
        .collect()
}

fn parse_depends(text: &str, beginnings: &[&str]) -> Vec<String> {
    let mut names: Vec<_> = text
        .lines()
        // Dependencies are indented, and each is listed again as a package of its own. Virtual ones are in angle brackets.
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .map(|line| line.trim().split(':').next().unwrap_or_default().to_owned())
        .filter(|name| beginnings.iter().any(|beginning| name.starts_with(beginning)))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suites: &[&str], signed_by: Option<&str>) -> Source {
        Source {
            uri: uri.to_owned(),
            suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
            signed_by: signed_by.map(str::to_owned),
        }
    }

    #[test]
    fn reads_os_release() {
        let os = Os::parse("PRETTY_NAME=\"X\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=\"debian\"\n");
        assert_eq!(
            os,
            Os {
                id: "debian".into(),
                codename: "bookworm".into()
            }
        );
        assert_eq!(Os::parse(""), Os::default());
    }

    #[test]
    fn reads_the_one_line_format() {
        let text = "# deb http://old.example/debian x main\n\
            deb http://mirror.example/debian/ bookworm main contrib # comment\n\
            deb-src http://mirror.example/debian bookworm main\n\
            deb [ arch=amd64 signed-by=/k.gpg ] http://other.example/debian sid main\n\
            debian\ndeb\n";
        assert_eq!(
            parse_lines(text),
            [
                source("http://mirror.example/debian", &["bookworm"], None),
                source("http://other.example/debian", &["sid"], Some("/k.gpg")),
            ]
        );
    }

    #[test]
    fn reads_the_deb822_format() {
        let text = "Types: deb deb-src\n# a comment inside\nURIs: http://a.example/debian/ http://b.example/debian\n\
            suites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n\n\
            Types: deb\nEnabled: no\nURIs: http://c.example/x\nSuites: s\n\n\
            Types: deb-src\nURIs: http://d.example/x\nSuites: s\n\n\n\
            Types: deb\nURIs: http://e.example/x\nSuites: e\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n";
        assert_eq!(
            parse_deb822(text),
            [
                source(
                    "http://a.example/debian",
                    &["bookworm", "bookworm-updates"],
                    Some("/k.gpg")
                ),
                source(
                    "http://b.example/debian",
                    &["bookworm", "bookworm-updates"],
                    Some("/k.gpg")
                ),
                source("http://e.example/x", &["e"], None),
            ]
        );
    }

    #[test]
    fn the_main_archive_is_not_the_security_one() {
        let sources = [
            source("http://a.example/debian-security", &["bookworm-security"], None),
            source("http://a.example/debian", &["bookworm", "bookworm-updates"], None),
        ];
        assert_eq!(main_archive(&sources, "bookworm"), Some(&sources[1]));
        assert_eq!(main_archive(&sources[..1], "bookworm"), None);
        assert_eq!(security_archive(&sources), Some(&sources[0]));
        assert_eq!(security_archive(&sources[1..]), None);
        assert_eq!(
            main_archive(&[source("u", &["testing"], None)], ""),
            Some(&source("u", &["testing"], None))
        );
    }

    #[test]
    fn reads_what_apt_cache_prints() {
        let madison = "  rust-src | 1.97.1+dfsg1-1~bpo13+1 | http://m.example trixie-backports/main amd64 Packages\n \
            rust-src | 1.95.0+dfsg1-2~bpo13+1 | http://m.example trixie-backports/main amd64 Packages\n";
        assert_eq!(
            parse_madison(madison),
            ["1.97.1+dfsg1-1~bpo13+1", "1.95.0+dfsg1-2~bpo13+1"]
        );

        let depends = "rustc-web\n  Depends: libc6\n  Depends: libllvm22\n  Depends: <libc-dev>\n    libc6-dev\n\
            libc6\nlibllvm22:amd64\n<libc-dev>\nlibstd-rust-web-1.96\n";
        assert_eq!(
            parse_depends(depends, &["rustc-web", "libllvm", "libstd-rust-web"]),
            ["libllvm22", "libstd-rust-web-1.96", "rustc-web"]
        );
    }
}
