//! Clusters whose machines run in one process, for tests. Packages name this one only as a development dependency.
//!
//! A [`TestCluster`] has workers on threads of their own, and shared memory, sockets and rings like machines in
//! separate processes. Its functions panic where a program would return an error.
#![forbid(unsafe_code)]

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use farm_core::config::Config;
use farm_core::machine::{Attach, Machine, forget_kept, start_all};
use farm_core::worker::Worker;
use tempfile::TempDir;

/// Longest wait of [`receive`] and of [`TestCluster::wait_for`].
const PATIENCE: Duration = Duration::from_secs(90);

/// The machines of a cluster, all in this process. Dropping it stops them, and removes what they keep.
pub struct TestCluster {
    /// The machines, in the order of the configuration. A test that ends some of them before the others moves them out.
    pub machines: Vec<Machine>,
    /// Dropped after the machines.
    _kept: Kept,
    /// Dropped after the machines, which have their sockets in it.
    _run_dir: TempDir,
}

/// What the machines of this configuration keep. Dropping it removes that.
struct Kept(Config);

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.keeps_memory() {
            forget_kept(&self.0).expect("what a cluster has kept can be removed");
        }
    }
}

impl TestCluster {
    /// Starts the machines of `config`, in a temporary directory and with `name` as the name of the cluster. Every
    /// worker calls `attach` before its first turn.
    ///
    /// # Panics
    ///
    /// If a machine does not start.
    #[track_caller]
    pub fn start(
        name: &str,
        mut config: Config,
        attach: impl Fn(&mut Worker) + Send + Sync + 'static,
    ) -> Self {
        let run_dir = tempfile::tempdir().expect("a temporary directory can be created");
        config.cluster.name = name.into();
        config.cluster.run_dir = run_dir.path().to_path_buf().into();
        let attach: Attach = Arc::new(attach);
        let machines = start_all(&config, &attach);
        Self {
            machines: machines.unwrap_or_else(|error| panic!("{name} did not start: {error}")),
            _kept: Kept(config),
            _run_dir: run_dir,
        }
    }

    /// As [`on`], for a machine by its index.
    ///
    /// # Panics
    ///
    /// As [`on`], and if the cluster has no such machine.
    #[track_caller]
    pub fn on<T: Send + 'static>(
        &self,
        machine: usize,
        worker: usize,
        work: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> T {
        on(&self.machines[machine], worker, work)
    }

    /// Runs `work` on every worker of every machine, on one after the other, and returns the results in this order.
    ///
    /// # Panics
    ///
    /// As [`on`].
    #[track_caller]
    pub fn on_all<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> T + Send + Clone + 'static,
    ) -> Vec<T> {
        let mut results = Vec::new();
        for machine in &self.machines {
            for worker in 0..machine.workers() {
                results.push(on(machine, worker, work.clone()));
            }
        }
        results
    }

    /// Waits at most 90 seconds until a condition holds. `what` describes it, for the panic message.
    ///
    /// # Panics
    ///
    /// If the condition does not hold by then.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "real threads, in real time")]
    pub fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
            std::thread::yield_now();
        }
    }

    /// Stops the machines, one after the other.
    ///
    /// # Panics
    ///
    /// If a machine has failed.
    #[track_caller]
    pub fn stop(self) {
        for machine in self.machines {
            let id = machine.id();
            machine
                .stop()
                .unwrap_or_else(|error| panic!("{id} failed: {error}"));
        }
    }
}

/// Runs `work` on a worker, in one of its next turns, and returns the result.
///
/// # Panics
///
/// If the machine has no such worker, or stops before the work is done.
#[track_caller]
pub fn on<T: Send + 'static>(
    machine: &Machine,
    worker: usize,
    work: impl FnOnce(&mut Worker) -> T + Send + 'static,
) -> T {
    let result = machine.ask(worker, |worker, answer| {
        // The caller waits for the result unless the machine has stopped.
        let _ = answer.send(work(worker));
    });
    let result = result.unwrap_or_else(|error| panic!("{}.w{worker}: {error}", machine.id()));
    // Addresses that `work` returns can be used on other machines.
    while machine.store().map().is_recording() && !machine.control().is_stopping() {
        std::thread::yield_now();
    }
    result
}

/// Waits at most 90 seconds for a result that a worker sends.
///
/// # Panics
///
/// If no result arrives in this time, or the senders are dropped.
#[track_caller]
pub fn receive<T>(results: &mpsc::Receiver<T>) -> T {
    let result = results.recv_timeout(PATIENCE);
    result.unwrap_or_else(|error| panic!("no result of a worker: {error}"))
}
