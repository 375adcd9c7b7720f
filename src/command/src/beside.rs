//! `--beside`: the same requests by other engines, after the cluster has stopped.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context;
use farm_bench::engines;
use farm_bench::report::{Beside, Compared, Engine};
use farm_core::config::Config;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::Usage;
use crate::cli::BesideArgs;
use crate::scratch::Scratch;

/// The exit status of a command that a signal ended.
const INTERRUPTED: i32 = 130;

/// Returns an error if an engine of the command line cannot be started.
pub(crate) fn check(args: &BesideArgs) -> anyhow::Result<()> {
    for (index, engine) in args.beside.iter().enumerate() {
        if args.beside[..index].contains(engine) {
            let why = format!("--beside has {} twice", engine.name());
            return Err(Usage::error(why));
        }
        let possible = engines::check(*engine);
        possible.map_err(|why| Usage::error(format!("--beside {}: {why}", engine.name())))?;
    }
    Ok(())
}

/// Runs the engines of the command line one after the other, each with an empty directory, and returns their results with
/// the one of the platform. `one` runs an engine with a number of threads.
pub(crate) fn compare<R>(
    args: &BesideArgs,
    config: &Config,
    run: R,
    mut one: impl FnMut(&R, Engine, &Path, usize) -> anyhow::Result<Beside<R>>,
) -> Compared<R> {
    let threads = args
        .beside_threads
        .map_or(config.total_workers(), usize::from);
    let (mut beside, mut beside_failures) = (Vec::new(), Vec::new());
    for engine in &args.beside {
        let name = engine.name();
        crate::write_stderr(format_args!("beside: {name}, {threads} client threads"));
        let result = in_directory(config, |dir| one(&run, *engine, dir, threads));
        match result {
            Ok(result) => beside.push(result),
            // The results of the platform and of other engines are not lost.
            Err(why) => beside_failures.push(format!("cannot compare with {name}: {why:#}")),
        }
    }
    Compared {
        run,
        beside,
        beside_failures,
    }
}

/// Calls `act` with an empty directory in shared memory, which is removed afterwards, also if a signal ends the command.
fn in_directory<T>(
    config: &Config,
    act: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let scratch = Scratch::new(&config.memory.dir)?;
    let dir = scratch.path().join("data");
    std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let _end = EndOnSignal::start(scratch.path().to_owned())?;
    act(&dir)
}

/// Removes a directory and ends this process when SIGINT or SIGTERM arrives, until this is dropped. The calls of engines
/// cannot be interrupted.
struct EndOnSignal {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl EndOnSignal {
    fn start(dir: PathBuf) -> anyhow::Result<Self> {
        let signals = Signals::new([SIGINT, SIGTERM]);
        let mut signals = signals.context("cannot install handlers for SIGINT and SIGTERM")?;
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            if signals.forever().next().is_none() {
                return;
            }
            crate::write_stderr(format_args!(
                "farm: error: interrupted; there are no results"
            ));
            // An engine may create files meanwhile.
            while std::fs::remove_dir_all(&dir).is_err() && dir.exists() {
                std::thread::yield_now();
            }
            std::process::exit(INTERRUPTED);
        });
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for EndOnSignal {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
