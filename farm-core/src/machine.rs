//! A machine of a cluster: its share of the memory, and a thread for each worker around
//! [`Worker::turn`]. A process is one machine; a process may also run several, for tests, examples
//! and embedding, through the same code.

mod fabric;
mod pages;
mod sizing;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::alloc::{BlockConfig, class_for_payload};
use crate::config::{Config, ConfigError};
use crate::control::Control;
use crate::fabric::verbs::{SecretError, VerbsError};
use crate::fabric::{
    ArenaConfig, ConnectError, Departed, ExportError, Exporter, FabricMachine, FabricStartError,
    Patience, PeerOffer, Reporter,
};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::limits::{Limits, MAX_OBJECT_BYTES, READ_TRIES, RECORD_OVERHEAD_BYTES};
use crate::membership::Membership;
use crate::messaging::{LinkError, LinkPeer, Links, RingFormat, SegmentLayout};
use crate::region::placement::Placement;
use crate::region::store::Store;
use crate::ring::Wholeness;
use crate::time::Clock;
use crate::worker::{Idle, IdlePolicy, Idler, Inbox, InboxFull, Worker, WorkerLimits, WorkerParts};

pub use fabric::fabric_config;
use pages::Pages;
pub use sizing::Sizing;

/// How long machines of one process wait for each other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest sleep of a worker that nobody notifies: how late it sees that it is to stop.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Most bytes of a worker's arena that are for lookups of a table of large values.
const LOOKUP_ARENA_BYTES: usize = 8 << 20;
/// What a bucket of a table holds beside its pairs.
const BUCKET_LINKS_BYTES: usize = 20;
/// Work items from threads outside that may wait for a worker.
const INBOX_ITEMS: usize = 1024;

/// Why a machine could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration has no such machine.
    #[error("the configuration has no machine {0}")]
    NoSuchMachine(MachineId),
    /// It could not start.
    #[error(transparent)]
    Start(#[from] FabricStartError),
    /// There is no secret by which machines know each other.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The device of its fabric refused.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The machines did not meet.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its memory could not be made.
    #[error(transparent)]
    Memory(#[from] ExportError),
    /// A peer's memory could not be reached.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The operating system refused a thread.
    #[error("cannot start the thread of a worker: {0}")]
    Thread(#[source] std::io::Error),
    /// The machine stopped because of a failure.
    #[error("{0}")]
    Failed(String),
    /// Too many work items wait for a worker, and the caller must not be blocked.
    #[error(
        "{items} work items wait for worker {worker} already: submit fewer at a time, or from a thread of your own, which waits"
    )]
    Full {
        /// The worker.
        worker: WorkerRef,
        /// The most items that may wait.
        items: usize,
    },
    /// A worker panicked.
    #[error("worker {0} panicked; its message is above")]
    Panicked(WorkerRef),
    /// A task panicked. Its transaction is aborted, and the worker goes on.
    #[error("a task on worker {worker} panicked: {message}")]
    TaskPanicked {
        /// The worker that ran it.
        worker: WorkerRef,
        /// The panic's message.
        message: String,
    },
}

/// What a machine does with each of its workers before the first turn: attach layers, register
/// handlers.
pub type Attach = Arc<dyn Fn(&mut Worker) + Send + Sync>;

/// Starts all machines of a configuration in this process, through the same shared memory, sockets
/// and rings as processes have.
///
/// # Errors
/// [`MachineError`] of the first machine that could not start.
pub fn start_all(config: &Config, attach: &Attach) -> Result<Vec<Machine>, MachineError> {
    std::thread::scope(|scope| {
        let starts: Vec<_> = config
            .machines
            .iter()
            .map(|machine| {
                scope.spawn(|| Machine::start(config, machine.id, Arc::clone(attach), PATIENCE))
            })
            .collect();
        let started = starts
            .into_iter()
            .map(|start| start.join().expect("starting does not panic"));
        started.collect()
    })
}

thread_local! {
    /// Whether this thread is a worker's, of whichever machine of the process.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// A running machine. Dropping it stops it.
pub struct Machine {
    id: MachineId,
    fabric: FabricMachine,
    exporter: Exporter,
    control: Arc<Control>,
    store: Arc<Store>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<(WorkerRef, JoinHandle<()>)>,
}

impl Machine {
    /// Starts machine `id` of the configuration, waits for the others as long as `patience` says (a
    /// [`Duration`] will do), and runs.
    ///
    /// # Errors
    /// [`MachineError`]: the configuration cannot be, the name is taken, memory is short, a machine is missing or
    /// does not fit.
    pub fn start<'p>(
        config: &Config,
        id: MachineId,
        attach: Attach,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Self, MachineError> {
        config.validate_within(&Limits::TINY)?;
        let own = config.machines.iter().find(|machine| machine.id == id);
        let own = own.ok_or(MachineError::NoSuchMachine(id))?;
        let workers = usize::from(own.workers);
        Pages::of(config)
            .check_directory()
            .map_err(ExportError::from)?;
        let mut fabric = FabricMachine::start(fabric_config(config, id)?)?;
        let peers = Self::meet(config, id, workers, &mut fabric, patience.into())?;
        let exporter = fabric.exporter();
        let store = Arc::new(make_store(config, id, &exporter));
        let control = Arc::new(Control::default());
        let mut machine = Self {
            id,
            fabric,
            exporter,
            control,
            store,
            inboxes: Vec::new(),
            threads: Vec::new(),
        };
        let last = Arc::new(LastWorker {
            control: Arc::clone(&machine.control),
            reporter: machine.fabric.reporter(),
        });
        for index in 0..workers {
            let started = machine.start_worker(config, index, &peers, &attach, &last);
            started.inspect_err(|error| machine.fabric.fail(&error.to_string()))?;
        }
        Ok(machine)
    }

    fn meet(
        config: &Config,
        id: MachineId,
        workers: usize,
        fabric: &mut FabricMachine,
        patience: Patience<'_>,
    ) -> Result<Vec<LinkPeer>, MachineError> {
        let (format, pages) = (ring_format(config), Pages::of(config));
        let mut segments = Vec::with_capacity(config.machines.len());
        for machine in &config.machines {
            let layout = if machine.id == id {
                SegmentLayout::within(format, workers)
            } else {
                SegmentLayout::between(format, workers, usize::from(machine.workers))
            };
            let (memory, capability) = fabric.exporter().export(layout.bytes(), true)?;
            pages.check_segment(&memory).map_err(ExportError::from)?;
            segments.push((machine.id, usize::from(machine.workers), memory, capability));
        }
        let machines: Vec<MachineId> = segments.iter().map(|segment| segment.0).collect();
        let mut offer = |peer: MachineId| {
            segments
                .iter()
                .filter(|segment| segment.0 == peer)
                .map(|segment| segment.3)
                .collect()
        };
        let met = fabric.connect(&machines, &mut offer, patience)?;
        let segment_of = |machine: MachineId, met: &[PeerOffer]| {
            let peer = met.iter().find(|peer| peer.machine == machine);
            peer.and_then(|peer| peer.offer.first().copied())
                .ok_or_else(|| {
                    let why = "it offered no segment for rings".into();
                    ConnectError::Refused { machine, why }
                })
        };
        let mut peers = Vec::with_capacity(segments.len());
        for (machine, workers, ours, _) in &segments {
            let theirs = segment_of(*machine, &met)?;
            if theirs.bytes != ours.len() as u64 && *machine == id {
                return Err(MachineError::NoSuchMachine(id));
            }
            peers.push(LinkPeer {
                machine: *machine,
                workers: *workers,
                ours: ours.clone(),
                theirs,
            });
        }
        Ok(peers)
    }

    fn start_worker(
        &mut self,
        config: &Config,
        index: usize,
        peers: &[LinkPeer],
        attach: &Attach,
        last: &Arc<LastWorker>,
    ) -> Result<(), MachineError> {
        let worker =
            WorkerId::new(index as u16).expect("the configuration bounds the number of workers");
        let me = WorkerRef::new(self.id, worker);
        let operations = config.worker.operations_in_flight as usize;
        let reads = reads_in_flight(config);
        let arena = arena(config, reads);
        let mut endpoint = self.fabric.endpoint(worker, &arena, reads)?;
        let links = Links::wire(&mut endpoint, self.id, worker, peers, ring_format(config))?;
        let exporter = self.exporter.clone();
        let inbox = Arc::new(Inbox::new(
            INBOX_ITEMS,
            Box::new(move || exporter.wake(worker)),
        ));
        self.inboxes.push(Arc::clone(&inbox));
        let machines: Vec<MachineId> = peers.iter().map(|peer| peer.machine).collect();
        let parts = WorkerParts {
            me,
            endpoint,
            links,
            store: Arc::clone(&self.store),
            membership: Membership::fixed(&machines),
            control: Arc::clone(&self.control),
            inbox,
            clock: Clock::Host,
            seed: u64::from(me.to_bits()),
            limits: WorkerLimits {
                max_message_bytes: (config.rings.max_message_bytes - RECORD_OVERHEAD_BYTES)
                    as usize,
                operations,
                read_tries: READ_TRIES,
                transactions: config.transactions,
            },
        };
        let policy = idle_policy(config, self.id);
        let core = core_of(config, self.id, index);
        let (control, attach) = (Arc::clone(&self.control), Arc::clone(attach));
        let last = Arc::clone(last);
        let thread = std::thread::Builder::new()
            .name(me.to_string())
            .spawn(move || {
                let _last = last;
                IS_WORKER.set(true);
                if let Some(core) = core {
                    pin(core);
                }
                let _stop_all = StopOnPanic(Arc::clone(&control), me);
                let mut worker = Worker::new(parts);
                attach(&mut worker);
                run(&mut worker, policy, &control);
            })
            .map_err(MachineError::Thread)?;
        self.threads.push((me, thread));
        Ok(())
    }

    /// Its id.
    pub fn id(&self) -> MachineId {
        self.id
    }

    /// Its workers.
    pub fn workers(&self) -> usize {
        self.inboxes.len()
    }

    /// How it is told to stop.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Machines of the cluster whose connections with this one have ended, in the order in which that was
    /// noticed. This machine stops because of the first.
    pub fn departed(&self) -> Vec<Departed> {
        self.fabric.departed()
    }

    /// Its memory.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Brings a work item to a worker, which runs it in one of its next turns. While the worker has
    /// [many](MachineError::Full) items waiting the calling thread is blocked, unless it is a worker itself.
    ///
    /// # Errors
    /// [`MachineError::Full`] when the caller is a worker, which must not be blocked, and too many items
    /// wait. [`MachineError::Failed`] when the machine has stopped. The item was dropped without being run.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn submit(
        &self,
        worker: usize,
        item: impl FnOnce(&mut Worker) + Send + 'static,
    ) -> Result<(), MachineError> {
        let inbox = &self.inboxes[worker];
        let may_wait = !IS_WORKER.get();
        let runs = || !self.control.is_stopping();
        if !runs() {
            return Err(MachineError::Failed(self.why_no_answer()));
        }
        inbox
            .submit_when_room(item, || may_wait && runs())
            .map_err(|InboxFull(items)| match may_wait {
                true => MachineError::Failed(self.why_no_answer()),
                false => MachineError::Full {
                    worker: self.threads[worker].0,
                    items,
                },
            })
    }

    /// Runs `start` on a worker and waits for what it sends: `start` begins operations whose
    /// continuations send the answer when they are done.
    ///
    /// # Errors
    /// [`MachineError::Failed`] when the machine stopped before the answer came, or when this is that worker's
    /// own thread, which would wait for itself.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn ask<T: Send + 'static>(
        &self,
        worker: usize,
        start: impl FnOnce(&mut Worker, mpsc::Sender<T>) + Send + 'static,
    ) -> Result<T, MachineError> {
        let asked = self.threads.get(worker);
        if asked.is_some_and(|(_, thread)| thread.thread().id() == std::thread::current().id()) {
            let why = "a worker cannot wait for an answer of its own: begin it by a continuation or a task";
            return Err(MachineError::Failed(why.into()));
        }
        let (answer, answered) = mpsc::channel();
        self.submit(worker, move |worker| start(worker, answer))?;
        self.wait_for(&answered)
    }

    /// Waits for an answer that one of this machine's workers is to send.
    ///
    /// # Errors
    /// [`MachineError::Failed`] when the machine stopped before the answer came.
    pub fn wait_for<T>(&self, answered: &mpsc::Receiver<T>) -> Result<T, MachineError> {
        loop {
            match answered.recv_timeout(LONGEST_SLEEP) {
                Ok(answer) => return Ok(answer),
                Err(mpsc::RecvTimeoutError::Timeout) if !self.control.is_stopping() => {}
                Err(_) => return Err(MachineError::Failed(self.why_no_answer())),
            }
        }
    }

    fn why_no_answer(&self) -> String {
        // A worker that panics drops the answer first, and then says why.
        let (_open, nothing) = mpsc::channel::<()>();
        let mut waits = LONGEST_SLEEP.as_millis();
        while !self.control.is_stopping() && waits > 0 {
            let _ = nothing.recv_timeout(Duration::from_millis(1));
            waits -= 1;
        }
        let stopped = match self.control.is_stopping() {
            true => "the machine has stopped",
            false => "what was to answer was dropped",
        };
        self.control.failure().unwrap_or_else(|| stopped.into())
    }

    /// Waits until the machine stops: because it was asked to, or because of a failure.
    ///
    /// # Errors
    /// [`MachineError::Failed`] with the reason, [`MachineError::Panicked`].
    pub fn join(mut self) -> Result<(), MachineError> {
        self.join_threads()
    }

    /// Asks the machine to stop and waits for it.
    ///
    /// # Errors
    /// As [`Machine::join`].
    pub fn stop(mut self) -> Result<(), MachineError> {
        self.control.stop();
        self.wake();
        self.join_threads()
    }

    /// Stops the machine because of a failure of what runs on it, and waits for it. The other machines take it
    /// for lost, and report the reason.
    pub fn stop_because(mut self, why: &str) {
        self.control.stop();
        self.wake();
        // What the caller reports is why it stops.
        let _ = self.join_threads();
        self.fabric.fail(why);
    }

    fn wake(&self) {
        for index in 0..self.inboxes.len() {
            self.exporter
                .wake(WorkerId::new(index as u16).expect("a worker that runs"));
        }
    }

    fn join_threads(&mut self) -> Result<(), MachineError> {
        let mut panicked = None;
        for (me, thread) in self.threads.drain(..) {
            if thread.join().is_err() {
                panicked = Some(me);
            }
        }
        let failed = match (panicked, self.control.failure()) {
            (Some(me), _) => MachineError::Panicked(me),
            (None, Some(why)) => MachineError::Failed(why),
            (None, None) => return Ok(()),
        };
        self.fabric.fail(&failed.to_string());
        Err(failed)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.control.stop();
        self.wake();
        // Failures were told when they happened; whoever wants the outcome calls stop or join.
        let _ = self.join_threads();
    }
}

/// A worker that panics takes its machine down with it.
struct StopOnPanic(Arc<Control>, WorkerRef);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(MachineError::Panicked(self.1).to_string());
        }
    }
}

/// Shared by the threads of a machine's workers. When the last of them ends because of a failure, the peers are
/// told at once: in a process of several machines, nobody may drop the [`Machine`] for as long as the others run.
struct LastWorker {
    control: Arc<Control>,
    reporter: Option<Reporter>,
}

impl Drop for LastWorker {
    fn drop(&mut self) {
        if let (Some(reporter), Some(why)) = (&self.reporter, self.control.failure()) {
            reporter.fail(&why);
        }
    }
}

/// The loop of a worker's thread.
fn run(worker: &mut Worker, policy: IdlePolicy, control: &Control) {
    let clock = worker.clock().clone();
    let mut idler = Idler::new(policy, clock.now());
    while !control.is_stopping() {
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

fn ring_format(config: &Config) -> RingFormat {
    RingFormat {
        ring_bytes: config.rings.ring_bytes as usize,
        log_bytes: config.rings.log_bytes as usize,
        wholeness: Wholeness::by_checksum(config.rings.checksums),
    }
}

/// Workers on the host of a machine.
fn workers_beside(config: &Config, id: MachineId) -> usize {
    let machines = config.machines_beside(id);
    machines.map(|machine| usize::from(machine.workers)).sum()
}

fn idle_policy(config: &Config, id: MachineId) -> IdlePolicy {
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

/// Reads that a worker may have outstanding: those of its operations, and some of headers.
fn reads_in_flight(config: &Config) -> usize {
    config.worker.operations_in_flight as usize + 64
}

/// Slots for `reads` reads in flight; fewer of what the table's lookups read, where that is large.
fn arena(config: &Config, reads: usize) -> ArenaConfig {
    let arena = ArenaConfig::for_reads(reads, MAX_OBJECT_BYTES as usize);
    let table = &config.table;
    // A lookup reads two adjacent buckets, each of H/2 pairs and some bytes of links; or, where that
    // is more, a block of two pairs.
    let pair = (table.key_bytes + table.value_bytes) as usize;
    let object = |pairs: usize| class_for_payload(pairs * pair + BUCKET_LINKS_BYTES);
    match (object(table.neighbourhood as usize / 2), object(2)) {
        (Ok(bucket), Ok(block)) => {
            let bytes = (2 * bucket.object_bytes()).max(block.object_bytes());
            arena.with(bytes, reads.min((LOOKUP_ARENA_BYTES / bytes).max(4)))
        }
        // Such a table cannot be opened.
        _ => arena,
    }
}

fn make_store(config: &Config, id: MachineId, exporter: &Exporter) -> Store {
    let machines: Vec<MachineId> = config.machines.iter().map(|machine| machine.id).collect();
    let blocks = BlockConfig {
        block_bytes: config.memory.block_bytes as usize,
        region_bytes: config.memory.region_bytes as usize,
        per_machine_bytes: config.memory.per_machine_bytes,
        seed: exporter.boot(),
    };
    let exporter = exporter.clone();
    let pages = Pages::of(config);
    let export = Box::new(move |bytes| {
        let (memory, capability) = exporter.export(bytes, false)?;
        let page_bytes = pages.check(&memory)?;
        tracing::debug!(bytes, page_bytes, "made a region");
        Ok((memory, capability))
    });
    Store::new(
        blocks,
        id,
        Placement::new(&machines),
        u64::from(id.get()),
        export,
    )
}

/// The core that a worker is pinned to, if it is: one of those its machine lists; else, where there
/// is a core for every worker of its host, its own of those that this process may use.
fn core_of(config: &Config, id: MachineId, index: usize) -> Option<u32> {
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

fn pin(core: u32) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core as usize);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
        tracing::warn!(core, %error, "cannot pin a worker; it runs on any core");
    }
}
