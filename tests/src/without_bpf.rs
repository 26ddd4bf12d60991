//! A process that the kernel takes no BPF program from: what a container runtime's seccomp profile makes of one without
//! the right to them, and what a kernel without BPF answers to all.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::place::program;

/// What `bpf(2)` fails with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Refusal {
    /// `ENOSYS`, of a kernel that was built without it.
    NoSuchCall,
    /// `EPERM`, of a runtime that allows it to nobody.
    NotPermitted,
}

impl Refusal {
    /// Both.
    pub const ALL: [Self; 2] = [Self::NoSuchCall, Self::NotPermitted];

    const fn word(self) -> &'static str {
        match self {
            Self::NoSuchCall => "no-such-call",
            Self::NotPermitted => "not-permitted",
        }
    }

    const fn errno(self) -> i32 {
        match self {
            Self::NoSuchCall => libc::ENOSYS,
            Self::NotPermitted => libc::EPERM,
        }
    }

    /// The command that starts another one so: `lab without-bpf`.
    pub fn launcher(self) -> Result<[OsString; 3]> {
        Ok([
            program("lab", "LB_LAB")?.into(),
            "without-bpf".into(),
            self.word().into(),
        ])
    }

    /// Becomes this program, and returns only if that fails. It and its children are refused from then on, and may not
    /// lift that.
    pub fn exec(self, command: &[OsString]) -> Result<()> {
        let [program, args @ ..] = command else {
            anyhow::bail!("no program is named");
        };
        self.install().context("installing a seccomp filter")?;
        let error = Command::new(program).args(args).exec();
        Err(error).with_context(|| format!("starting {}", program.display()))
    }

    fn install(self) -> io::Result<()> {
        let bpf = u32::try_from(libc::SYS_bpf).unwrap_or(u32::MAX);
        let refused = libc::SECCOMP_RET_ERRNO | self.errno().cast_unsigned();
        // Whoever wanted to get round it would use another ABI's numbers; the agent does not.
        let mut filter = [
            // Offset 0 of what a filter sees is the number of the call.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            libc::sock_filter {
                jf: 1,
                ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, bpf)
            },
            statement(libc::BPF_RET | libc::BPF_K, refused),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: `program` and the filter that it points to live across the call, and its length is the filter's.
        let result = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                std::ptr::from_ref(&program),
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        // Codes are of 16 bits.
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}
