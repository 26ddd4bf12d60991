//! Where the log goes: to standard error.

use std::{
    env,
    io::{self, IsTerminal as _},
};

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogLevel};

/// Starts logging. To be called once.
pub(super) fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    // kube logs each failed request, which the watches say once, in words of their own.
    let filter = format!("warn,lb_agent={level},lb_ebpf={level},kube_client=off,kube_runtime=off");
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr)
        .with_target(false);
    match format {
        LogFormat::Text => subscriber.with_ansi(has_colours()).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
}

/// To a terminal, unless its user has none of it (<https://no-color.org>).
fn has_colours() -> bool {
    let is_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !is_unwanted
}
