//! The steps of the way from kube-proxy to lb-agent, and back.

use std::fmt;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    There,
    Back,
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Nothing is done: it is how it was before.
    Before,
    StartAgent,
    StopKubeProxy,
    CleanUpKubeProxy,
    /// Long connections are opened through what serves now.
    OpenMore,
    StartKubeProxy,
    StopAgent,
    CleanUpAgent,
}

impl Action {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 8] = [
        Self::Before,
        Self::StartAgent,
        Self::StopKubeProxy,
        Self::CleanUpKubeProxy,
        Self::OpenMore,
        Self::StartKubeProxy,
        Self::StopAgent,
        Self::CleanUpAgent,
    ];

    /// The way it is on.
    pub(crate) fn way(self) -> Way {
        match self {
            Self::Before | Self::StartAgent | Self::StopKubeProxy | Self::CleanUpKubeProxy => Way::There,
            Self::OpenMore | Self::StartKubeProxy | Self::StopAgent | Self::CleanUpAgent => Way::Back,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "kube-proxy alone",
            Self::StartAgent => "lb-agent is started beside it",
            Self::StopKubeProxy => "kube-proxy is stopped",
            Self::CleanUpKubeProxy => "lb-agent cleanup --kube-proxy",
            Self::OpenMore => "lb-agent alone",
            Self::StartKubeProxy => "kube-proxy is started beside it",
            Self::StopAgent => "lb-agent is stopped",
            Self::CleanUpAgent => "lb-agent cleanup",
        })
    }
}
