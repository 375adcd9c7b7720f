//! The `farm` program: parses the arguments, sets up logging, and runs one subcommand.
#![forbid(unsafe_code)]

mod bench;
mod beside;
mod campaign;
mod clean;
mod cli;
mod cluster;
mod destroy;
mod doctor;
mod edges;
mod files;
mod linkbench;
mod losing;
mod measure;
mod oltp;
mod scratch;
mod sim;
mod status;
mod taobench;
mod verify;
mod workload;
mod ycsb;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use farm_bench::data::DataError;
use farm_bench::graph::edge_list::EdgeError;
use farm_bench::oltp::OptionsError;
use farm_bench::properties::PropertyError;
use farm_bench::ycsb::spec::SpecError;
use farm_core::config::ConfigError;
use farm_core::config::host::HostError;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use cli::{Cli, Command};

/// Exit status if the command line or the configuration is wrong. clap uses the same.
const EXIT_USAGE: u8 = 2;
/// Exit status of `farm verify` if the replicas could not be compared.
const EXIT_NOT_COMPARED: u8 = 3;
/// Exit status after SIGINT or SIGTERM: 128 + 2, as shells report SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    if std::env::var_os(farm_bench::micro::CHILD_VARIABLE).is_some() {
        return farm_bench::micro::child_main();
    }
    if std::env::var_os(farm_bench::losses::CHILD_VARIABLE).is_some() {
        return farm_bench::losses::child_main();
    }
    let cli = Cli::parse();
    // Off for `farm sim`: simulated machines log warnings about simulated faults in correct runs, too.
    let level = match cli.command {
        Command::Sim(_) => LevelFilter::OFF,
        _ => LevelFilter::WARN,
    };
    let result = log_to_stderr(cli.log.as_deref(), level)
        .and_then(|()| run(cli.command, cli.log.as_deref()));
    match result {
        Ok(code) => code,
        Err(error) if error.is::<cluster::Interrupted>() => {
            write_stderr(format_args!("farm: {error}"));
            ExitCode::from(EXIT_INTERRUPTED)
        }
        Err(error) => {
            write_stderr(format_args!("farm: error: {}", with_causes(&error)));
            exit_code_of(&error)
        }
    }
}

fn run(command: Command, log: Option<&str>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Clean(args) => clean::run(&args),
        Command::Destroy(args) => destroy::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Demo(args) => ycsb::demo(&args, log),
        Command::Ycsb(args) => ycsb::run(&args, log),
        Command::Tatp(args) => oltp::tatp(&args, log),
        Command::Smallbank(args) => oltp::smallbank(&args, log),
        Command::Linkbench(args) => linkbench::run(&args, log),
        Command::Taobench(args) => taobench::run(&args, log),
        Command::Edges(args) => edges::run(&args, log),
        Command::Node(args) => cluster::node::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Workload(args) => workload::run(&args, log),
        Command::Campaign(args) => campaign::run(&args, log),
        Command::Sim(args) => sim::run(&args),
    }
}

/// Sets up logging to standard error; standard output has only results. `level` applies if `filter` (`--log`)
/// is absent and `RUST_LOG` is not set.
fn log_to_stderr(filter: Option<&str>, level: LevelFilter) -> anyhow::Result<()> {
    let filter = match filter {
        Some(filter) => EnvFilter::try_new(filter).map_err(|error| {
            let why = format!("--log {filter:?} is not a log filter: {error}; try --log debug");
            Usage::error(why)
        })?,
        None => EnvFilter::builder()
            .with_default_directive(level.into())
            .from_env()
            .map_err(|error| {
                let why = format!(
                    "the environment variable RUST_LOG is not a log filter: {error}; \
                     try RUST_LOG=debug"
                );
                Usage::error(why)
            })?,
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// Standard output. After its reader has closed the pipe, as `head` does, writes have no effect and succeed, so that
/// the exit status is that of the command.
pub(crate) struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_closed(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_closed(io::stdout().flush(), ())
    }

    // Locks standard output once for the whole text, so that lines of several threads do not mix.
    fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        unless_closed(io::stdout().write_fmt(text), ())
    }
}

/// Returns the result of a write, or `otherwise` if the reader of the pipe has closed it.
fn unless_closed<T>(written: io::Result<T>, otherwise: T) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(otherwise),
        written => written,
    }
}

/// Writes a line to standard error. Ignores errors, so that a closed standard error does not end the command.
pub(crate) fn write_stderr(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Formats an error and its causes. Leaves out a cause whose text the lines before it already contain.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str("\n  caused by: ");
            text.push_str(&cause);
        }
    }
    text
}

/// An error in the command line that clap cannot detect. The exit status is [`EXIT_USAGE`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(String);

impl Usage {
    pub(crate) fn error(why: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self(why.into()))
    }
}

fn exit_code_of(error: &anyhow::Error) -> ExitCode {
    let usage = error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.is::<ConfigError>()
            || cause.is::<HostError>()
            || cause.is::<SpecError>()
            || cause.is::<PropertyError>()
            || cause.is::<DataError>()
            || cause.is::<EdgeError>()
            || cause.is::<OptionsError>()
            || cause.is::<oltp::SettingsError>()
    });
    let not_compared =
        |cause: &(dyn std::error::Error + 'static)| cause.is::<verify::NotCompared>();
    if usage {
        ExitCode::from(EXIT_USAGE)
    } else if error.chain().any(not_compared) {
        ExitCode::from(EXIT_NOT_COMPARED)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn repeated_causes_are_printed_once() {
        let error = io::Error::other("no such device");
        let error = anyhow::Error::from(error).context("cannot map region r5.12");
        let error = Err::<(), _>(error)
            .context("machine m3: cannot map region r5.12")
            .unwrap_err();
        assert_eq!(
            with_causes(&error),
            "machine m3: cannot map region r5.12\n  caused by: no such device"
        );
    }
}
