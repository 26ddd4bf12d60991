//! Looks at the kernel's settings that the data path depends on, and says what to do.
//!
//! * Forwarding has to be on: packets of outside clients go on to pods.
//! * Loose or strict reverse path filtering (`rp_filter`) drops replies or requests on nodes whose
//!   routes are not symmetric. The data path itself never makes a packet with a source that its link
//!   does not lead to, so strict filtering is fine as long as routing is; it is pointed out only.
//! * Bridge settings (`bridge-nf-call-*`) do not matter: translation happens on the pod's own link.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use crate::desired::Family;

/// Where this network namespace has its settings.
const SYSCTLS: &str = "/proc/sys/net";

/// How much a setting matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Worth knowing where packets go missing.
    Note,
    /// Services do not work for some clients.
    Problem,
}

/// A setting that is not as the data path would have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Name, as sysctl(8) takes it.
    pub name: String,
    /// What it is now.
    pub value: String,
    /// What it should be; `None` where that is for the operator to say.
    pub wanted: Option<&'static str>,
    /// How much it matters.
    pub severity: Severity,
    /// What goes wrong.
    pub reason: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}", self.name, self.value, self.reason)?;
        if let Some(wanted) = self.wanted {
            write!(f, "; `sysctl -w {}={wanted}`, or start with --set-sysctls", self.name)?;
        }
        Ok(())
    }
}

/// Looks at the settings for the families that are served.
pub fn check(families: &[Family]) -> io::Result<Vec<Finding>> {
    check_under(Path::new(SYSCTLS), families)
}

/// Sets what has a wanted value. Returns what was set, and what could not be, with the reason.
pub fn set(findings: &[Finding]) -> (Vec<&Finding>, Vec<(&Finding, io::Error)>) {
    set_under(Path::new(SYSCTLS), findings)
}

fn check_under(root: &Path, families: &[Family]) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for family in families {
        let (path, name, reason) = match family {
            Family::V4 => (
                "ipv4/ip_forward",
                "net.ipv4.ip_forward",
                "IPv4 packets of outside clients, and between pods, are not forwarded",
            ),
            Family::V6 => (
                "ipv6/conf/all/forwarding",
                "net.ipv6.conf.all.forwarding",
                "IPv6 packets of outside clients, and between pods, are not forwarded",
            ),
        };
        // Without the family in the kernel there is no such setting, and nothing to forward.
        let Some(value) = read(&root.join(path))? else {
            continue;
        };
        if value == "0" {
            findings.push(Finding {
                name: name.to_owned(),
                value,
                wanted: Some("1"),
                severity: Severity::Problem,
                reason,
            });
        }
    }
    if families.contains(&Family::V4) {
        // A link is filtered as strictly as the larger of its own value and that of `all` says.
        for link in ["all", "default"] {
            let path = root.join("ipv4/conf").join(link).join("rp_filter");
            if read(&path)?.as_deref() == Some("1") {
                findings.push(Finding {
                    name: format!("net.ipv4.conf.{link}.rp_filter"),
                    value: "1".to_owned(),
                    wanted: None,
                    severity: Severity::Note,
                    reason: "packets whose way back leads through another link are dropped; where \
                             routes are not symmetric, 2 is enough",
                });
            }
        }
    }
    Ok(findings)
}

fn set_under<'a>(root: &Path, findings: &'a [Finding]) -> (Vec<&'a Finding>, Vec<(&'a Finding, io::Error)>) {
    let (mut set, mut failed) = (Vec::new(), Vec::new());
    for finding in findings {
        let Some(wanted) = finding.wanted else {
            continue;
        };
        match fs::write(path(root, &finding.name), wanted) {
            Ok(()) => set.push(finding),
            Err(error) => failed.push((finding, error)),
        }
    }
    (set, failed)
}

/// The file of a setting. None of the names here has a link name with a dot in it.
fn path(root: &Path, name: &str) -> PathBuf {
    let below = name.strip_prefix("net.").unwrap_or(name);
    root.join(below.replace('.', "/"))
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, value) in values {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    const BOTH: [Family; 2] = [Family::V4, Family::V6];

    #[test]
    fn nothing_is_said_of_a_node_that_is_right() {
        let root = settings(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "2"),
        ]);
        assert_eq!(check_under(root.path(), &BOTH).unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do_and_can_be_set() {
        let root = settings(&[
            ("ipv4/ip_forward", "0"),
            ("ipv6/conf/all/forwarding", "0"),
            ("ipv4/conf/all/rp_filter", "1"),
        ]);
        let findings = check_under(root.path(), &BOTH).unwrap();
        let names: Vec<_> = findings.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "net.ipv4.ip_forward",
                "net.ipv6.conf.all.forwarding",
                "net.ipv4.conf.all.rp_filter"
            ]
        );
        assert!(findings[0].to_string().contains("`sysctl -w net.ipv4.ip_forward=1`"));

        let (set, failed) = set_under(root.path(), &findings);
        assert_eq!((set.len(), failed.len()), (2, 0));
        let left = check_under(root.path(), &BOTH).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].severity, Severity::Note);
    }

    #[test]
    fn only_served_families_count() {
        let root = settings(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "0")]);
        assert_eq!(check_under(root.path(), &[Family::V4]).unwrap(), []);
    }
}
