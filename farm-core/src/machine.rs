//! A machine of a cluster: its share of the memory, and one thread for each worker that runs
//! [`Worker::turn`]. A process is usually one machine. A process may also run several machines, for
//! tests, examples and embedding, through the same code.

mod admission;
mod error;
mod fabric;
mod kept;
mod left;
mod manager;
mod meet;
mod pages;
mod parts;
mod run;
mod sizing;
mod spare;
mod start;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::Config;
use crate::control::Control;
use crate::fabric::verbs::DevicePlace;
use crate::fabric::{Departed, Departure, Exporter, FabricMachine};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::region::store::Store;
use crate::worker::{Inbox, InboxFull, Worker};

pub use error::{Awaited, MachineError};
pub use fabric::fabric_config;
use kept::KeptFiles;
pub use left::{find_journals, forget_kept, named_starts, stale_files, without_memory};
pub use manager::newest_configuration;
use parts::reads_in_flight;
use run::{idle_policy, is_missed};
pub use sizing::Sizing;
use spare::Spare;

/// Longest wait of machines of one process for each other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for which a machine that joins waits for the members of one configuration.
const JOIN_ATTEMPT: Duration = Duration::from_millis(500);
/// Time until it tries again after an error.
const JOIN_AGAIN: Duration = Duration::from_millis(5);
/// Time between two looks at machines that join.
const JOINED_LOOK: Duration = Duration::from_micros(100);
/// Longest sleep of a worker without notification. Bounds the delay until the worker sees a stop
/// request.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Maximum number of work items from external threads that may wait for a worker.
const INBOX_ITEMS: usize = 1024;

/// The function that is called on each worker before its first turn, to attach layers and register handlers.
pub type Attach = Arc<dyn Fn(&mut Worker) + Send + Sync>;

/// Starts all machines of a configuration in this process, and waits until all are connected. They use the same shared memory,
/// sockets and rings as machines in separate processes.
///
/// # Errors
/// [`MachineError`] of the first machine, in the order of the configuration, that could not start.
pub fn start_all(config: &Config, attach: &Attach) -> Result<Vec<Machine>, MachineError> {
    let started: Result<Vec<Machine>, MachineError> = std::thread::scope(|scope| {
        let starts: Vec<_> = config
            .machines
            .iter()
            .map(|machine| {
                scope.spawn(|| Machine::start(config, machine.id, Arc::clone(attach), PATIENCE))
            })
            .collect();
        let started = starts.into_iter().map(|start| {
            start
                .join()
                .expect("no thread panics while it starts a machine")
        });
        started.collect()
    });
    let started = started?;
    for machine in &started {
        machine.wait_until_joined(|| false);
    }
    Ok(started)
}

thread_local! {
    /// Whether this thread is a worker of any machine of the process.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// A running machine. Dropping it stops the machine.
pub struct Machine {
    id: MachineId,
    fabric: FabricMachine,
    exporter: Exporter,
    control: Arc<Control>,
    store: Arc<Store>,
    spare: Spare,
    /// What the machine keeps beyond its process.
    files: Option<Arc<KeptFiles>>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<(WorkerRef, JoinHandle<()>)>,
}

impl Machine {
    fn fail_to_start(&self, why: &str) {
        self.control.stop();
        self.report(why);
    }

    /// Reports a failure to the other machines.
    fn report(&self, why: &str) {
        if is_missed(&self.store) {
            self.fabric.fail(why);
        }
    }

    /// Waits until this machine has joined the others, if they ran before. Returns false if it stops before, or if `cancelled`
    /// returns true.
    pub fn wait_until_joined(&self, cancelled: impl Fn() -> bool) -> bool {
        while !self.store.map().is_complete() {
            if self.control.is_stopping() || cancelled() {
                return false;
            }
            std::thread::park_timeout(JOINED_LOOK);
        }
        true
    }

    /// Returns the machine's id.
    pub fn id(&self) -> MachineId {
        self.id
    }

    /// Returns the number of the machine's workers.
    pub fn workers(&self) -> usize {
        self.inboxes.len()
    }

    /// Returns the control by which the machine is stopped.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Returns the machines without which the cluster stops and whose connections with this machine have
    /// ended, in the order in which this machine noticed. The first one is the reason why this machine
    /// stops. Machines that store nothing and left in order are not among them.
    pub fn departed(&self) -> Vec<Departed> {
        let placement = self.store.placement();
        let mut departed = self.fabric.departed();
        departed.retain(|peer| peer.how == Departure::Lost || placement.contains(peer.machine));
        departed
    }

    /// Returns the RDMA device, port and address that the machine uses; `None` on shared memory.
    pub fn device(&self) -> Option<DevicePlace> {
        match &self.fabric {
            FabricMachine::Verbs(machine) => Some(machine.device()),
            FabricMachine::Shm(_) => None,
        }
    }

    /// Returns the machine's region store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Submits a work item to a worker, which runs it in one of its next turns. While the worker's
    /// inbox is [full](MachineError::Full), the calling thread blocks, unless it is a worker
    /// itself.
    ///
    /// # Errors
    /// [`MachineError::Full`] when the inbox is full and the caller is a worker, which must not
    /// block. [`MachineError::Failed`] when the machine has stopped. In both cases the item was
    /// dropped without being run.
    ///
    /// # Panics
    /// If the machine has no such worker.
    pub fn submit(
        &self,
        worker: usize,
        item: impl FnOnce(&mut Worker) + Send + 'static,
    ) -> Result<(), MachineError> {
        let inbox = &self.inboxes[worker];
        let may_wait = !IS_WORKER.get();
        let runs = || !self.control.is_stopping();
        if !runs() {
            return Err(MachineError::Failed(self.no_answer_reason()));
        }
        inbox
            .submit_when_room(item, || may_wait && runs())
            .map_err(|InboxFull(items)| match may_wait {
                true => MachineError::Failed(self.no_answer_reason()),
                false => MachineError::Full {
                    worker: self.threads[worker].0,
                    items,
                },
            })
    }

    /// Runs `start` on a worker and waits for the answer that `start` sends, or that the
    /// continuations of its operations send when they are done.
    ///
    /// # Errors
    /// [`MachineError::Failed`] when the machine stopped before the answer arrived, or when the
    /// caller is this worker's own thread, which would wait for itself.
    ///
    /// # Panics
    /// If the machine has no such worker.
    pub fn ask<T: Send + 'static>(
        &self,
        worker: usize,
        start: impl FnOnce(&mut Worker, mpsc::Sender<T>) + Send + 'static,
    ) -> Result<T, MachineError> {
        let asked = self.threads.get(worker);
        if asked.is_some_and(|(_, thread)| thread.thread().id() == std::thread::current().id()) {
            let why = "a worker thread cannot block on an answer of its own worker: use a continuation or a task";
            return Err(MachineError::Failed(why.into()));
        }
        let (answer, answered) = mpsc::channel();
        self.submit(worker, move |worker| start(worker, answer))?;
        self.wait_for(&answered)
    }

    /// Waits for an answer from one of this machine's workers.
    ///
    /// # Errors
    /// [`MachineError::Failed`] when the machine stopped before the answer arrived.
    pub fn wait_for<T>(&self, answered: &mpsc::Receiver<T>) -> Result<T, MachineError> {
        loop {
            match answered.recv_timeout(LONGEST_SLEEP) {
                Ok(answer) => return Ok(answer),
                Err(mpsc::RecvTimeoutError::Timeout) if !self.control.is_stopping() => {}
                Err(_) => return Err(MachineError::Failed(self.no_answer_reason())),
            }
        }
    }

    fn no_answer_reason(&self) -> String {
        // A worker that panics drops the answer's sender first, and then records the reason.
        let (_open, nothing) = mpsc::channel::<()>();
        let mut waits = LONGEST_SLEEP.as_millis();
        while !self.control.is_stopping() && waits > 0 {
            let _ = nothing.recv_timeout(Duration::from_millis(1));
            waits -= 1;
        }
        let stopped = match self.control.is_stopping() {
            true => "the machine has stopped",
            false => "the work item ended without sending its answer",
        };
        self.control.why_stopped().unwrap_or_else(|| stopped.into())
    }

    /// Waits until the machine stops, because of a stop request or a failure.
    ///
    /// # Errors
    /// [`MachineError::Failed`] with the reason, or [`MachineError::Panicked`].
    pub fn join(mut self) -> Result<(), MachineError> {
        self.end()
    }

    /// Requests that the machine stop, and waits for it. A machine that stores nothing leaves the cluster in order: it
    /// finishes its commits, within 10 s, and the other machines continue.
    ///
    /// # Errors
    /// As [`Machine::join`].
    pub fn stop(mut self) -> Result<(), MachineError> {
        self.begin_stop();
        self.end()
    }

    /// Requests that the machine stop, as [`Machine::stop`] does.
    pub fn begin_stop(&self) {
        match self.store.is_used() {
            true => self.control.stop(),
            false => self.control.leave(),
        }
        self.wake();
    }

    /// Waits for the workers. If a machine that stores nothing stopped before its operations ended, while the others run, they
    /// treat it as lost: its locks remain. So they do if one that stores memory has not joined them: they may wait for it.
    fn end(&mut self) -> Result<(), MachineError> {
        let ran = !self.threads.is_empty();
        self.join_threads()?;
        let leaves_locks = !self.store.is_used() && !self.control.has_left();
        if ran && leaves_locks && self.departed().is_empty() {
            self.report("it stopped before its operations had ended");
        }
        if ran && self.store.is_used() && !self.store.map().is_complete() {
            self.report("it stopped before it had joined the others");
        }
        Ok(())
    }

    /// Stops the machine because of a failure of the code that runs on it, and waits for it. The
    /// other machines treat it as lost, and report the reason.
    pub fn stop_because(mut self, why: &str) {
        self.control.stop();
        self.wake();
        // The caller reports `why` as the reason, so this result is not needed.
        let _ = self.join_threads();
        self.fabric.fail(why);
    }

    fn wake(&self) {
        for index in 0..self.inboxes.len() {
            self.exporter.wake(
                WorkerId::new(index as u16)
                    .expect("a machine has no more workers than there are worker ids"),
            );
        }
    }

    fn join_threads(&mut self) -> Result<(), MachineError> {
        let (mut panicked, current) = (None, std::thread::current().id());
        for (me, thread) in self.threads.drain(..) {
            // A worker that stops its own machine ends by itself, after its turn.
            if thread.thread().id() != current && thread.join().is_err() {
                panicked = Some(me);
            }
        }
        let failed = match (panicked, self.control.failure()) {
            (Some(me), _) => MachineError::Panicked(me),
            (None, Some(why)) => MachineError::Failed(why),
            (None, None) => return Ok(()),
        };
        self.report(&failed.to_string());
        Err(failed)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.begin_stop();
        // Failures were logged when they occurred. A caller that needs the outcome calls stop or
        // join.
        let _ = self.end();
        // The machine's files are removed next.
        self.spare.end();
    }
}
