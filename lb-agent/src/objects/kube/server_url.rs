//! The URL of an API server, which may have a password in it.

use std::{convert::Infallible, fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};

/// A URL as somebody gave it. What is shown of it, in whichever way, has no name and no password of a user.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ServerUrl(String);

impl ServerUrl {
    /// With all that is in it: to be given to nobody but the client.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl From<String> for ServerUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&str> for ServerUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl FromStr for ServerUrl {
    type Err = Infallible;

    /// Whether it is a URL is for the client to say.
    fn from_str(url: &str) -> Result<Self, Infallible> {
        Ok(url.into())
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let Some(at) = rest[..end].rfind('@') else {
            return f.write_str(&self.0);
        };
        if !scheme.is_empty() {
            write!(f, "{scheme}://")?;
        }
        write!(f, "***{}", &rest[at..])
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ServerUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("https://user:p@ss@10.0.0.1:6443/x@y", "https://***@10.0.0.1:6443/x@y"),
            ("https://10.0.0.1:6443/x@y", "https://10.0.0.1:6443/x@y"),
            // No URL, but somebody may take it for one.
            ("user:pass@10.0.0.1:6443", "***@10.0.0.1:6443"),
        ] {
            let url = ServerUrl::from(url);
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
        }
    }
}
