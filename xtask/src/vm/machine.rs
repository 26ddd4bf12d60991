//! The virtual machine: qemu without KVM, which boots Debian's own kernels anywhere.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::guest::DONE;
use super::kernel::Kernel;
use crate::run::{self, say};

/// How long a guest may take. Tests take some ten times as long there as outside.
const LIMIT: Duration = Duration::from_secs(75 * 60);
/// How often it is tried: a machine that gave no result at all, which a test cannot bring about, is started once more.
const TRIES: u32 = 2;
/// How much of the console is shown if there is no result.
const SHOWN_LINES: usize = 40;

/// How much memory a machine has. All its files are in it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// For the tests.
    #[default]
    Usual,
    /// For the control plane too, whose programs alone are 250 MB, twice while they are unpacked.
    Large,
}

impl Memory {
    const fn megabytes(self) -> &'static str {
        match self {
            Self::Usual => "2048",
            Self::Large => "4096",
        }
    }
}

/// Boots the kernel, and passes on what the guest prints: to stdout, to the file `output` in the folder, and to `line`.
pub fn boot(
    kernel: &Kernel,
    initramfs: &Path,
    memory: Memory,
    folder: &Path,
    mut line: impl FnMut(&str),
) -> Result<()> {
    let console = folder.join("console");
    for attempt in 1..=TRIES {
        let mut qemu = qemu(kernel, initramfs, memory, &console);
        let output = folder.join("output");
        let mut output = Both(File::create(&output).with_context(|| format!("cannot write {}", output.display()))?);
        let mut is_done = false;
        let mut has_result = false;
        let status = run::show_and_read(&mut qemu, LIMIT, &mut output, |text| {
            is_done |= text == DONE;
            has_result |= text.starts_with("test ");
            line(text);
        })?;
        if is_done {
            return Ok(());
        }
        let text = std::fs::read(&console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n  ");
        say(format_args!(
            "the machine ended ({status}) and was not done; its console:\n  {shown}"
        ));
        if has_result || attempt == TRIES {
            break;
        }
        say("Trying once more, since there was no result at all");
    }
    bail!(
        "the machine with kernel {} gave no result; its console is in {}",
        kernel.version,
        console.display()
    )
}

fn qemu(kernel: &Kernel, initramfs: &Path, memory: Memory, console: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    // With a thread for each processor, qemu now and then runs code that the kernel has just patched: a panic.
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "max", "-machine", "q35"]);
    qemu.args(["-smp", "2", "-m", memory.megabytes()]);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none"]);
    qemu.arg("-no-reboot");
    qemu.arg("-serial")
        .arg(format!("file:{}", console.display()))
        .args(["-serial", "stdio"]);
    qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initramfs);
    // Not `mitigations=off`: the verifier would then take programs that it refuses elsewhere.
    qemu.args(["-append", "console=ttyS0 panic=-1 loglevel=4 cryptomgr.notests"]);
    qemu
}

/// Writes to stdout and to a file.
struct Both(File);

impl Write for Both {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(bytes)?;
        io::stdout().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
