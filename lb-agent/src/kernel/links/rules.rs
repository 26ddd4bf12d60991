//! What the user says about links, by name.

use regex::Regex;

use super::Role;

/// Which links are those of pods, where no rule of the user's names the link.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PodLinks {
    /// Those of a kind that pods have.
    #[default]
    ByKind,
    /// Those of a kind that pods have, or a VM, that are ports of the bridge of this name.
    PortsOf(String),
    /// Those whose names begin so, whatever they are.
    Named {
        /// The beginning.
        prefix: String,
    },
}

/// Rules of the form `REGEX=ROLE`; the first whose expression matches the whole name decides.
#[derive(Clone, Debug, Default)]
pub struct LinkRules {
    rules: Vec<(Regex, Option<Role>)>,
    pods: PodLinks,
}

/// Why a rule is none.
#[derive(Debug, thiserror::Error)]
pub enum LinkRuleError {
    /// No `=`.
    #[error("link rule {0:?}: not of the form REGEX=pod|uplink|tunnel|ignore")]
    Form(String),
    /// No such role.
    #[error("link rule {rule:?}: {role:?} is none of pod, uplink, tunnel, ignore")]
    Role {
        /// The rule.
        rule: String,
        /// What stands for the role.
        role: String,
    },
    /// Not a regular expression.
    #[error("link rule {rule:?}: {source}")]
    Regex {
        /// The rule.
        rule: String,
        /// What is wrong with the expression.
        source: regex::Error,
    },
}

impl LinkRules {
    /// From rules as the user writes them.
    pub fn parse<S: AsRef<str>>(rules: &[S]) -> Result<Self, LinkRuleError> {
        let rules = rules.iter().map(|rule| parse(rule.as_ref()));
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            pods: PodLinks::ByKind,
        })
    }

    /// These, and what is known of pods' links besides.
    #[must_use]
    pub fn with_pods(self, pods: PodLinks) -> Self {
        Self { pods, ..self }
    }

    /// Which of the links that no rule names are those of pods.
    #[must_use]
    pub const fn pods(&self) -> &PodLinks {
        &self.pods
    }

    /// What the rules say about a name: nothing, or a role, which may be none.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<Option<Role>> {
        let rule = self.rules.iter().find(|(regex, _)| regex.is_match(name));
        rule.map(|(_, role)| *role)
    }
}

fn parse(rule: &str) -> Result<(Regex, Option<Role>), LinkRuleError> {
    // An expression may hold `=`, a role does not.
    let Some((regex, role)) = rule.rsplit_once('=') else {
        return Err(LinkRuleError::Form(rule.to_owned()));
    };
    let role = match role {
        "pod" => Some(Role::Pod),
        "uplink" => Some(Role::Uplink),
        "tunnel" => Some(Role::Tunnel),
        "ignore" => None,
        _ => {
            return Err(LinkRuleError::Role {
                rule: rule.to_owned(),
                role: role.to_owned(),
            });
        }
    };
    let regex = Regex::new(&format!("^(?:{regex})$")).map_err(|source| LinkRuleError::Regex {
        rule: rule.to_owned(),
        source,
    })?;
    Ok((regex, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_the_whole_name_decides() {
        let rules = LinkRules::parse(&["eth0=ignore", "eth.*=uplink", "tap[0-9]+=pod"]).unwrap();
        assert_eq!(rules.role("eth0"), Some(None));
        assert_eq!(rules.role("eth1"), Some(Some(Role::Uplink)));
        assert_eq!(rules.role("tap12"), Some(Some(Role::Pod)));
        assert_eq!(rules.role("mytap12"), None);
        assert_eq!(LinkRules::default().role("eth0"), None);
    }

    #[test]
    fn a_bad_rule_is_named() {
        let error = |rule: &str| LinkRules::parse(&[rule]).unwrap_err().to_string();
        assert_eq!(
            error("eth0"),
            "link rule \"eth0\": not of the form REGEX=pod|uplink|tunnel|ignore"
        );
        assert_eq!(
            error("eth0=pods"),
            "link rule \"eth0=pods\": \"pods\" is none of pod, uplink, tunnel, ignore"
        );
        assert!(error("eth(=pod").starts_with("link rule \"eth(=pod\": regex parse error"));
    }
}
