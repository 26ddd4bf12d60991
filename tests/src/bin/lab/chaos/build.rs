//! What an agent may be upgraded to: the same program, told something by which what it loads into the kernel differs, or
//! another one.

use std::fmt;

use lb_tests::agent::{self, Maps, Options};
use lb_tests::plane::Plane;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Build {
    /// As it is by default
    #[value(skip)]
    Usual,
    /// With maps of other sizes: all rows are carried over
    #[value(name = "sizes")]
    OtherSizes,
    /// Another one, whose maps have another layout: what is open goes on in those of the one before
    #[value(name = "layout")]
    OtherLayout,
    /// With another mark for what is to be masqueraded: another constant in the programs, and another rule of the packet filter
    #[value(name = "mark")]
    OtherMark,
    /// With the sockets of pods translated as well: another constant in the programs on sockets
    #[value(name = "sockets")]
    AllSockets,
    /// With the kernel masquerading in place of the programs
    #[value(name = "snat")]
    KernelSnat,
}

impl Build {
    /// Whether it is different on the plane under test: the other one has neither maps nor programs.
    pub(crate) fn is_other(self) -> bool {
        self == Self::OtherMark || Plane::under_test() == Plane::Ebpf
    }

    /// How an agent is started that is this one.
    pub(crate) fn options(self) -> Options {
        let args: &[&str] = match self {
            Self::Usual | Self::OtherLayout => &[],
            Self::OtherSizes => &[
                "--max-services=131072",
                "--max-slots=524288",
                "--max-backends=262144",
                "--max-flows=262144",
                "--max-sockets=65536",
                "--max-affinity=65536",
            ],
            Self::OtherMark => &["--masquerade-mark=0x100000"],
            Self::AllSockets => &["--socket-lb=all"],
            Self::KernelSnat => &["--snat=kernel"],
        };
        Options {
            build: match self {
                Self::OtherLayout => agent::Build::NextLayout,
                _ => agent::Build::Usual,
            },
            // As on a node: what is carried over is to be as much.
            maps: Maps::Default,
            args: args.iter().map(Into::into).collect(),
            ..Options::default()
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usual => "the usual one",
            Self::OtherSizes => "one with maps of other sizes",
            Self::OtherLayout => "one of another layout",
            Self::OtherMark => "one with another mark",
            Self::AllSockets => "one with all sockets",
            Self::KernelSnat => "one with the kernel's masquerading",
        })
    }
}
