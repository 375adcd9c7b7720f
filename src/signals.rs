//! Ends the machines of a process before a signal ends the process.

use std::sync::{Mutex, OnceLock, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Received;

type End = Box<dyn Fn() + Send>;

/// What to do before a signal ends the process, with numbers.
static ENDS: Mutex<Vec<(u64, End)>> = Mutex::new(Vec::new());

/// Calls a function when the process receives a signal that ends it: see [`Signals::watch`].
pub(crate) struct Signals(u64);

impl Signals {
    /// Calls `end` when the process receives a signal that ends it, until the result is dropped. When all functions have
    /// been called, the signal ends the process. If the system refuses, signals have their usual effect.
    pub(crate) fn watch(end: impl Fn() + Send + 'static) -> Self {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            if let Err(error) = start() {
                tracing::warn!(%error, "a signal that ends the process will leave its files; `farm clean` removes them");
            }
        });
        let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = ends.last().map_or(0, |(last, _)| last + 1);
        ends.push((number, Box::new(end)));
        Self(number)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|(number, _)| *number != self.0);
    }
}

/// Held from the time when a signal has been received until the process ends.
static ENDING: Mutex<()> = Mutex::new(());

/// If a signal is ending the process, waits for that: the process ends by the signal, and not by what happens to code whose
/// machines have stopped. Otherwise returns at once.
pub(crate) fn wait_if_ending() {
    drop(ENDING.lock());
}

/// Returns whether the process ignores a signal, as one does that was started by `nohup`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or_default() >> (signal - 1) & 1 == 1
}

/// Starts the thread that waits for signals, for as long as the process runs. The first signal calls the functions in
/// another thread; a second one ends the process at once.
fn start() -> std::io::Result<()> {
    let signals = [SIGHUP, SIGINT, SIGTERM];
    let mut received = Received::new(signals.iter().filter(|signal| !is_ignored(**signal)))?;
    let wait = move || {
        let mut received = received.forever();
        let Some(signal) = received.next() else {
            return;
        };
        let ending = ENDING.lock();
        let ended = std::thread::Builder::new().name("farm-end".into());
        let ended = ended.spawn(move || {
            let ends = std::mem::take(&mut *ENDS.lock().unwrap_or_else(PoisonError::into_inner));
            for (_, end) in ends {
                end();
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        });
        if ended.is_ok()
            && let Some(again) = received.next()
        {
            let _ = signal_hook::low_level::emulate_default_handler(again);
        }
        drop(ending);
    };
    let thread = std::thread::Builder::new().name("farm-signals".into());
    thread.spawn(wait)?;
    Ok(())
}
