//! See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    lb_agent::cli::main()
}
