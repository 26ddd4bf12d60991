//! The planes of the agent that tests can be about.

/// Which plane the agents of the tests have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Plane {
    /// BPF programs on links and at sockets
    Ebpf,
    /// The kernel's IPVS
    Ipvs,
}

impl Plane {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ebpf, Self::Ipvs];
    /// What tells the tests, as `lb_tests::plane` reads it.
    pub const VARIABLE: &str = "LB_TEST_PLANE";

    /// The word for it, also in that variable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
        }
    }

    /// As a headline has it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ebpf => "The BPF plane",
            Self::Ipvs => "The IPVS plane",
        }
    }

    /// The command that runs its tests on other kernels, before what it is to run.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Ebpf => "cargo xtask test",
            Self::Ipvs => "cargo xtask test --plane ipvs",
        }
    }
}
