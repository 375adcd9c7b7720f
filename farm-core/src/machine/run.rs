//! The threads of workers: their loop, their cores, and what they leave when they end.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::{LONGEST_SLEEP, MachineError};
use crate::config::Config;
use crate::control::Control;
use crate::fabric::Reporter;
use crate::ids::{MachineId, WorkerRef};
use crate::region::store::Store;
use crate::worker::{Idle, IdlePolicy, Idler, Worker};

/// Fails the machine when dropped by a panicking worker.
pub(super) struct StopOnPanic(pub(super) Arc<Control>, pub(super) WorkerRef);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(MachineError::Panicked(self.1).to_string());
        }
    }
}

/// Shared by the threads of a machine's workers. When the last worker ends because of a failure,
/// its drop notifies the peers at once. In a process of several machines, the [`Machine`](super::Machine)
/// itself may not be dropped while the other machines run.
pub(super) struct LastWorker {
    pub(super) control: Arc<Control>,
    pub(super) reporter: Option<Reporter>,
    /// The file whose lock shows that the machine runs.
    pub(super) life: Option<File>,
    pub(super) store: Arc<Store>,
}

/// Returns whether the others cannot continue as if this machine had left in order when it fails: objects may be locked by it, or it
/// stores memory, and they may have a configuration that has it. A machine without memory that has not joined them has no operation.
pub(super) fn is_missed(store: &Store) -> bool {
    store.is_used() || store.map().is_complete()
}

impl Drop for LastWorker {
    fn drop(&mut self) {
        if let (Some(reporter), Some(why)) = (&self.reporter, self.control.failure())
            && is_missed(&self.store)
        {
            reporter.fail(&why);
        }
        if self.control.failure().is_some() {
            // No worker is left, so the machine does nothing more, whatever its program does. If the lock cannot be released now, it
            // is when the program ends.
            let _ = self.life.as_ref().map(File::unlock);
        }
    }
}

/// Runs the loop of a worker's thread.
pub(super) fn run(worker: &mut Worker, policy: IdlePolicy, control: &Control) {
    let clock = worker.clock().clone();
    let mut idler = Idler::new(policy, clock.now());
    while !control.is_stopping() {
        if control.is_leaving() {
            worker.leave();
        }
        let now = clock.now();
        let next = match worker.turn(now) {
            true => idler.busy(worker.in_flight(), now),
            false => idler.idle(now),
        };
        match next {
            Idle::Turn => {}
            Idle::Spin => std::hint::spin_loop(),
            Idle::Park if !worker.must_poll() => {
                worker.sleep(LONGEST_SLEEP);
                idler.slept(clock.now());
            }
            Idle::Yield | Idle::Park => {
                let before = clock.now();
                std::thread::yield_now();
                idler.yielded(before, clock.now());
            }
        }
    }
}

/// Returns the number of workers on the host of a machine.
fn workers_beside(config: &Config, id: MachineId) -> usize {
    let machines = config.machines_beside(id);
    machines.map(|machine| usize::from(machine.workers)).sum()
}

pub(super) fn idle_policy(config: &Config, id: MachineId) -> IdlePolicy {
    let workers = workers_beside(config, id);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match config.worker.idle.resolve(workers, cores) {
        crate::config::Idle::Spin => IdlePolicy::Spin,
        crate::config::Idle::SpinOrYield => IdlePolicy::SpinOrYield,
        crate::config::Idle::Park => IdlePolicy::Park {
            spin: Duration::from_micros(config.worker.spin_us.into()),
            yielding: Duration::from_micros(config.worker.yield_us.into()),
        },
    }
}

/// Returns the core to which a worker is pinned, if it is pinned. If the machine lists cores, the core is one of these.
/// Otherwise, if the host has a core for every worker on it, each worker gets a core of its own, out of the cores that
/// this process may use.
pub(super) fn core_of(config: &Config, id: MachineId, index: usize) -> Option<u32> {
    let own = config.machine(id).filter(|_| config.worker.pin)?;
    if !own.cores.is_empty() {
        return Some(own.cores[index % own.cores.len()]);
    }
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let mut cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    if workers_beside(config, id) > allowed.count() as usize {
        return None;
    }
    let before = config.machines_beside(id);
    let before = before.filter(|machine| machine.id < id);
    let first: usize = before.map(|machine| usize::from(machine.workers)).sum();
    cores.nth(first + index).map(|core| core as u32)
}

pub(super) fn pin(core: u32) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core as usize);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
        tracing::warn!(core, %error, "cannot pin a worker to the core; the worker runs on any core");
    }
}
