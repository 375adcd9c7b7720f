//! Ends the machines of a process before a signal ends the process.

use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals as Iterator};

/// Calls a function when the process receives a signal that ends it, and lets the signal end the process then. Stops
/// watching when it is dropped.
pub(crate) struct Signals {
    watch: Option<(Handle, JoinHandle<()>)>,
}

impl Signals {
    /// Starts a thread that watches the signals. If the system refuses, signals have their usual effect.
    pub(crate) fn watch(end: impl Fn() + Send + 'static) -> Self {
        let watch = Iterator::new([SIGHUP, SIGINT, SIGTERM]).and_then(|mut signals| {
            let handle = signals.handle();
            let wait = move || {
                if let Some(signal) = signals.forever().next() {
                    end();
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            };
            let thread = std::thread::Builder::new().name("farm-signals".into());
            Ok((handle, thread.spawn(wait)?))
        });
        if let Err(error) = &watch {
            tracing::warn!(%error, "a signal that ends the process will leave its files; `farm clean` removes them");
        }
        Self { watch: watch.ok() }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.watch.take() {
            handle.close();
            let _ = thread.join();
        }
    }
}
