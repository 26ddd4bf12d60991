//! What a node can do for a plane, found out by doing it: not by the number of its kernel.

use std::fmt;

use serde::Serialize;

use super::PlaneName;

/// One thing that a plane needs, and what became of it here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// The thing.
    pub what: String,
    /// Whether the node has it.
    #[serde(flatten)]
    pub found: Found,
}

/// Whether a node has what a plane needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "result", rename_all = "lowercase")]
pub enum Found {
    /// It has, and here is how.
    Good {
        /// In a few words.
        how: String,
    },
    /// It cannot be found out beforehand, which keeps nobody from doing it.
    Untried {
        /// What is in the way.
        why: String,
    },
    /// It has not.
    Missing {
        /// What was tried, and the answer.
        why: String,
        /// What to do about it, unless the answer says that.
        #[serde(skip_serializing_if = "Option::is_none")]
        advice: Option<String>,
    },
}

impl Check {
    /// Of something that was done, or failed with an error that says what to do.
    pub fn of(what: impl Into<String>, done: anyhow::Result<Found>) -> Self {
        let found = done.unwrap_or_else(|error| Found::Missing {
            why: format!("{error:#}"),
            advice: None,
        });
        Self {
            what: what.into(),
            found,
        }
    }

    /// Whether the plane cannot be run for want of it.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.found, Found::Missing { .. })
    }
}

impl Found {
    /// The node has it.
    pub fn good(how: impl Into<String>) -> Self {
        Self::Good { how: how.into() }
    }

    /// It has not.
    pub fn missing(why: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Missing {
            why: why.into(),
            advice: Some(advice.into()),
        }
    }
}

/// What a node can do for one plane.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlaneReport {
    /// The plane.
    pub plane: PlaneName,
    /// All that it needs.
    pub checks: Vec<Check>,
}

impl PlaneReport {
    /// Whether the plane can be run here.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.checks.iter().any(Check::is_missing)
    }

    /// What is missing, a line each.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let missing = |check: &Check| match &check.found {
            Found::Missing { why, .. } => Some(format!("{}: {why}", check.what)),
            Found::Good { .. } | Found::Untried { .. } => None,
        };
        self.checks.iter().filter_map(missing).collect()
    }
}

impl fmt::Display for PlaneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usable = if self.is_usable() {
            "can be run"
        } else {
            "cannot be run"
        };
        write!(f, "{} {usable}", self.plane)?;
        for Check { what, found } in &self.checks {
            match found {
                Found::Good { how } => write!(f, "\n  √ {what}: {how}")?,
                Found::Untried { why } => write!(f, "\n  ‼ {what}: not tried: {why}")?,
                Found::Missing { why, advice } => {
                    write!(f, "\n  × {what}: {why}")?;
                    if let Some(advice) = advice {
                        write!(f, "\n      {advice}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> PlaneReport {
        PlaneReport {
            plane: PlaneName::Ipvs,
            checks: vec![
                Check::of("nftables", Ok(Found::good("takes our table"))),
                Check::of(
                    "links",
                    Ok(Found::Untried {
                        why: "no CAP_SYS_ADMIN".to_owned(),
                    }),
                ),
                Check::of("IPVS", Ok(Found::missing("there is none", "`modprobe ip_vs`"))),
                Check::of("capabilities", Err(anyhow::anyhow!("CAP_NET_ADMIN: run as root"))),
            ],
        }
    }

    #[test]
    fn a_plane_is_usable_while_nothing_is_missing() {
        let mut report = report();
        assert!(!report.is_usable());
        assert_eq!(
            report.missing(),
            ["IPVS: there is none", "capabilities: CAP_NET_ADMIN: run as root"]
        );
        report.checks.retain(|check| !check.is_missing());
        assert!(report.is_usable(), "what was not tried may work");
    }

    #[test]
    fn people_read_what_is_missing_and_what_to_do() {
        assert_eq!(
            report().to_string(),
            "\
ipvs cannot be run
  √ nftables: takes our table
  ‼ links: not tried: no CAP_SYS_ADMIN
  × IPVS: there is none
      `modprobe ip_vs`
  × capabilities: CAP_NET_ADMIN: run as root"
        );
    }

    #[test]
    fn programs_read_the_same() {
        assert_eq!(
            serde_json::to_value(report()).unwrap(),
            json!({
                "plane": "ipvs",
                "checks": [
                    { "what": "nftables", "result": "good", "how": "takes our table" },
                    { "what": "links", "result": "untried", "why": "no CAP_SYS_ADMIN" },
                    { "what": "IPVS", "result": "missing", "why": "there is none", "advice": "`modprobe ip_vs`" },
                    { "what": "capabilities", "result": "missing", "why": "CAP_NET_ADMIN: run as root" },
                ],
            })
        );
    }
}
