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

/// Starts the thread that waits for signals, for as long as the process runs.
fn start() -> std::io::Result<()> {
    let mut received = Received::new([SIGHUP, SIGINT, SIGTERM])?;
    let wait = move || {
        if let Some(signal) = received.forever().next() {
            let ends = std::mem::take(&mut *ENDS.lock().unwrap_or_else(PoisonError::into_inner));
            for (_, end) in ends {
                end();
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    let thread = std::thread::Builder::new().name("farm-signals".into());
    thread.spawn(wait)?;
    Ok(())
}
