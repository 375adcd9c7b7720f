//! A worker: one pinned thread with one event loop. One struct owns all state of the worker (`FaRM'14 §3.1`).
//!
//! [`Worker::turn`] is the whole loop body. The thread of a worker calls it in a loop ([`crate::machine`]); the
//! simulator calls it for every worker of a cluster in one thread. All code that runs on a worker runs inside a turn:
//! message handlers, continuations, and work items submitted by threads outside.

mod adopt;
mod connectivity;
mod continuation;
mod drain;
mod epoch;
mod extend;
mod fill;
mod idle;
mod inbox;
mod join;
mod layers;
mod leases;
mod leave;
mod link;
mod log;
mod long;
mod members;
mod memory;
mod reads;
mod regions;
mod request;
mod rest;
mod room;
mod timers;
mod token;
mod turn;
mod unposted;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

pub use crate::mem::{Borrowed, Context};
pub use continuation::{BorrowCont, Cont};
pub use drain::{Drained, Drainer, Handled};
use epoch::EpochBarrier;
pub use epoch::{EpochCounters, EpochGuard};
pub use fill::FillStatus;
pub use idle::{Idle, IdlePolicy, Idler};
pub use inbox::{Inbox, InboxFull};
pub use leave::LeaveHook;
use leave::Leaving;
pub use link::Linking;
pub use log::{Append, LogBytes, LogCounters, LogHandler, LogId, LogRecord};
pub use long::LongHandler;
pub use members::{MembersParts, MembersStatus, MembershipHook};
pub use memory::AddressError;
pub use reads::ReadCounters;
pub use request::{ReadError, ReadRequest, ReadResult};
pub use rest::Leftover;

use crate::alloc::BlockTable;
use crate::config::TransactionsConfig;
use crate::control::Control;
use crate::fabric::{Arena, Completion, Counters, Endpoint, Eviction, Slot, Status, Wake};
use crate::ids::{MachineId, RegionId, WorkerId, WorkerRef};
use crate::kept::Kept;
use crate::limits::ReadTries;
use crate::membership::Membership;
use crate::membership::manager::Manager;
use crate::messaging::{
    CallError, Garbage, Handler, Links, MessageCounters, MessageId, Messaging, ReplyCont, Request,
};
use crate::region::store::Store;
use crate::region::table::RegionTable;
use crate::time::{Clock, Nanos};
use crate::{marks, mutants};
use layers::Layers;
use reads::Reads;
use timers::Timers;

/// The parts of a worker, provided by the builder of the machine or by the simulator.
pub struct WorkerParts {
    /// Name of the worker.
    pub me: WorkerRef,
    /// Handle on the fabric.
    pub endpoint: Endpoint,
    /// Rings to and from other workers.
    pub links: Links,
    /// Memory of the worker's machine.
    pub store: Arc<Store>,
    /// Machines of the cluster.
    pub membership: Membership,
    /// The manager of the configuration, on the first worker of its machine.
    pub manager: Option<Box<Manager>>,
    /// What takes part in changes of the configuration, on the first worker of a machine that survives the loss of others.
    pub members: Option<MembersParts>,
    /// Stop request of the machine, with the reason.
    pub control: Arc<Control>,
    /// Queue of work items from threads outside.
    pub inbox: Arc<Inbox>,
    /// Clock of the worker.
    pub clock: Clock,
    /// Seed of the worker's random numbers.
    pub seed: u64,
    /// What the machine keeps beyond its process, if it keeps anything.
    pub kept: Option<Arc<dyn Kept>>,
    /// Sizes of the worker's tables.
    pub limits: WorkerLimits,
}

/// Sizes of a worker's tables.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Longest message body, in bytes.
    pub max_message_bytes: usize,
    /// Number of operations in flight for which tables reserve room.
    pub operations: usize,
    /// How often a read of an object that stays locked is tried until it fails.
    pub read_tries: ReadTries,
    /// Bytes that all workers of the machine read in a second while they fill replicas.
    pub fill_rate: u64,
    /// Configuration of the transaction layer.
    pub transactions: TransactionsConfig,
}

/// A worker. See the [module](self).
pub struct Worker {
    me: WorkerRef,
    now: Nanos,
    clock: Clock,
    rng: Xoshiro256PlusPlus,
    endpoint: Endpoint,
    eviction: Eviction,
    messaging: Messaging,
    logs: log::Logs,
    long: long::LongMessages,
    kept: Option<Arc<dyn Kept>>,
    handlers: Vec<Option<Handler>>,
    timers: Timers,
    reads: Reads,
    epochs: EpochBarrier,
    end_of_epoch_hooks: Vec<fn(&mut Worker)>,
    leaving: Leaving,
    leave_hooks: Vec<LeaveHook>,
    /// Announcements of workers that leave, to be answered when records are taken from logs again.
    leavers: Vec<Request>,
    regions: RegionTable,
    region_waits: memory::RegionWaits,
    recorder: regions::RegionRecorder,
    members: members::Members,
    newcomers: join::Newcomers,
    connectivity: connectivity::Connectivity,
    /// Machines to which this worker is to be connected when it has applied another configuration.
    unlinked: Vec<Arc<Linking>>,
    extending: extend::Extending,
    fill: Option<Box<fill::Fill>>,
    /// Number of replicas that this worker has filled, and that are not recorded as full.
    filled: usize,
    /// The region of a lost machine that this worker scans.
    scans: Option<RegionId>,
    /// Whether copies must not be changed by filling, because the configuration changes.
    fill_pauses: bool,
    /// Bytes that the workers of this machine read in a second while they fill replicas.
    fill_rate: u64,
    /// The copies of other machines' regions that this worker has changed.
    backups: BTreeMap<RegionId, BlockTable>,
    store: Arc<Store>,
    slab: crate::alloc::Slab,
    membership: Membership,
    control: Arc<Control>,
    inbox: Arc<Inbox>,
    layers: Layers,
    transactions: TransactionsConfig,
    room: room::Room,
    unposted: unposted::Unposted,
    deferred: VecDeque<Cont<()>>,
    /// What waits until this process may report what it finds out.
    held: Vec<Cont<()>>,
    /// Reads that failed when they were started; the event loop calls their continuations.
    failed_reads: VecDeque<(Cont<ReadResult>, Slot, ReadError)>,
    /// Buffers, kept here so that they keep their capacity from turn to turn.
    completions: Vec<Completion>,
    local_done: Vec<(Slot, Status)>,
    message_body: Vec<u8>,
}

impl Worker {
    /// Creates a worker from its parts.
    pub fn new(mut parts: WorkerParts) -> Self {
        let WorkerLimits {
            max_message_bytes,
            operations,
            read_tries,
            fill_rate,
            transactions,
        } = parts.limits;
        let slots = parts.endpoint.arena().slots();
        let classes = parts.endpoint.arena().classes();
        let logs = log::Logs::new(parts.me.machine, &mut parts.links, operations);
        let epochs = EpochBarrier::new(parts.me, &parts.links.connected());
        let mut worker = Self {
            me: parts.me,
            members: members::Members::new(
                parts.members,
                parts.clock.now(),
                parts.endpoint.capabilities().leases_by_time,
            ),
            now: parts.clock.now(),
            clock: parts.clock,
            rng: Xoshiro256PlusPlus::seed_from_u64(parts.seed),
            eviction: parts.endpoint.eviction(),
            endpoint: parts.endpoint,
            messaging: Messaging::new(parts.me, parts.links, max_message_bytes, operations),
            logs,
            kept: parts.kept,
            long: long::LongMessages::default(),
            handlers: vec![None; MessageId::LIMIT as usize],
            timers: Timers::with_capacity(operations),
            reads: Reads::new(slots, operations, read_tries),
            epochs,
            end_of_epoch_hooks: Vec::new(),
            leaving: Leaving::No,
            leave_hooks: Vec::new(),
            leavers: Vec::new(),
            regions: RegionTable::default(),
            region_waits: memory::RegionWaits::default(),
            backups: BTreeMap::new(),
            newcomers: join::Newcomers::default(),
            connectivity: connectivity::Connectivity::default(),
            unlinked: Vec::new(),
            extending: extend::Extending::default(),
            fill: None,
            filled: 0,
            scans: None,
            fill_pauses: false,
            fill_rate,
            recorder: regions::RegionRecorder::new(parts.manager, max_message_bytes),
            slab: parts.store.slab(parts.me.worker),
            store: parts.store,
            membership: parts.membership,
            control: parts.control,
            inbox: parts.inbox,
            layers: Layers::default(),
            transactions,
            room: room::Room::new(classes, operations),
            unposted: unposted::Unposted::default(),
            deferred: VecDeque::with_capacity(operations),
            held: Vec::new(),
            failed_reads: VecDeque::with_capacity(operations),
            completions: Vec::with_capacity(operations),
            local_done: Vec::with_capacity(operations),
            message_body: Vec::with_capacity(max_message_bytes),
        };
        worker.register_core_handlers();
        worker.renew_lease_terms();
        worker
    }

    /// Returns the name of this worker.
    pub fn me(&self) -> WorkerRef {
        self.me
    }

    /// Returns the number of this start of the machine, which no other start of it has.
    pub fn boot(&self) -> u64 {
        self.messaging.boot_of(self.me.machine)
    }

    /// Returns the time at which the current turn began.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the worker's clock, for measurements within a turn.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the worker's random number generator.
    pub fn rng(&mut self) -> &mut Xoshiro256PlusPlus {
        &mut self.rng
    }

    /// Returns the arena: the registered memory whose slots hold the results of reads. Callers return the slots to the
    /// arena.
    #[inline]
    pub fn arena(&mut self) -> &mut Arena {
        self.endpoint.arena()
    }

    /// Returns the counts of one-sided operations so far.
    pub fn fabric_counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// Returns the counts of ring messages so far.
    pub fn message_counters(&self) -> MessageCounters {
        self.messaging.counters
    }

    /// Returns the counts of lock-free reads so far.
    pub fn read_counters(&self) -> ReadCounters {
        self.reads.counters
    }

    /// Returns the membership of the cluster.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the control, which stops the machine, with a reason if it failed.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Returns the queue through which threads outside submit work to this worker.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Returns the machines of the cluster, ascending, each with its number of workers.
    pub fn machines(&self) -> &[(MachineId, usize)] {
        self.messaging.machines()
    }

    /// Returns the workers of this machine, ascending.
    pub fn own_workers(&self) -> impl Iterator<Item = WorkerRef> + use<> {
        let me = self.me.machine;
        let own = self.machines().iter().find(|machine| machine.0 == me);
        let workers = (0..own.map_or(0, |own| own.1)).filter_map(|at| WorkerId::new(at as u16));
        workers.map(move |worker| WorkerRef::new(me, worker))
    }

    /// Returns the other workers of this machine, ascending.
    fn other_own_workers(&self) -> Vec<WorkerRef> {
        let me = self.me;
        self.own_workers().filter(|one| *one != me).collect()
    }

    /// Returns what the machine keeps beyond its process, if it keeps anything.
    pub fn kept(&self) -> Option<&Arc<dyn Kept>> {
        self.kept.as_ref()
    }

    /// Returns the configuration of the transaction layer.
    pub fn transactions_config(&self) -> TransactionsConfig {
        self.transactions
    }

    /// Returns the length of the longest message body, in bytes.
    pub fn max_message_body(&self) -> usize {
        self.messaging.max_body()
    }

    /// Returns the number of unfinished fabric operations and calls.
    pub(crate) fn in_flight(&self) -> usize {
        self.endpoint.outstanding() + self.messaging.calls_in_flight()
    }

    /// Returns the number of calls that wait for a reply.
    pub fn calls_in_flight(&self) -> usize {
        self.messaging.calls_in_flight()
    }

    /// Registers the handler of all messages with this id (`msgRegisterHandler`).
    ///
    /// # Panics
    /// If the id already has a handler, or is not below [`MessageId::LIMIT`].
    pub fn register(&mut self, id: MessageId, handler: Handler) {
        let entry = &mut self.handlers[id.0 as usize];
        assert!(entry.is_none(), "message {id:?} already has a handler");
        *entry = Some(handler);
    }

    /// Sends a one-way message (`msgSend`).
    ///
    /// # Errors
    /// [`CallError::Busy`] when the ring is full: nothing was sent.
    pub fn send(&mut self, to: WorkerRef, id: MessageId, body: &[&[u8]]) -> Result<(), CallError> {
        self.messaging
            .send_one_way(&mut self.endpoint, to, id, body)
    }

    /// Sends a request. The continuation is called with the reply, of at most `most_reply` bytes, or with the error.
    /// The body is the concatenation of the parts.
    ///
    /// # Errors
    /// [`CallError::Busy`] when rings or reservations are full: nothing was sent, and the
    /// continuation will not be called.
    pub fn call(
        &mut self,
        to: WorkerRef,
        id: MessageId,
        body: &[&[u8]],
        most_reply: usize,
        cont: ReplyCont,
    ) -> Result<(), CallError> {
        self.messaging
            .call(&mut self.endpoint, to, id, body, most_reply, cont)
    }

    /// Replies to a request. No-op for one-way messages.
    ///
    /// # Panics
    /// If the body is longer than the largest ring record.
    pub fn reply(&mut self, request: Request, body: &[&[u8]]) {
        let answered = self.messaging.reply(&mut self.endpoint, request, body);
        if let Err(Garbage { machine, why }) = answered {
            self.cut_off(machine, why);
        }
    }

    /// Calls the continuation from the event loop, in this turn or the next.
    pub fn defer(&mut self, cont: Cont<()>) {
        self.deferred.push_back(cont);
    }

    /// Calls the continuation from the event loop, not before `after` has passed.
    pub fn set_timer(&mut self, after: Duration, cont: Cont<()>) {
        self.timers.set(self.now.after(after), cont);
    }

    /// Stores the state of a layer with the worker, one value of each type.
    pub fn put_layer<T: Any>(&mut self, state: Box<T>) {
        self.layers.put(state);
    }

    /// Takes the state of a layer out. The caller must [`Worker::put_layer`] it back before the turn ends.
    ///
    /// # Panics
    /// If the layer is not attached to this worker, or its state is already taken out.
    #[inline]
    pub fn take_layer<T: Any>(&mut self) -> Box<T> {
        match self.layers.take() {
            Some(state) => state,
            None => panic!(
                "the layer {} is not attached to worker {}, or its state is already taken out",
                std::any::type_name::<T>(),
                self.me
            ),
        }
    }

    /// Returns the state of a layer, for callers that need nothing else of the worker meanwhile.
    #[inline]
    pub fn layer<T: Any>(&mut self) -> Option<&mut T> {
        self.layers.get()
    }

    /// Arms the notification, takes a last turn, and sleeps until a notification, the next timer, or the end of `most`.
    /// Does not sleep if that turn found work, or if the worker must poll for something that sends no notification.
    pub fn sleep(&mut self, most: Duration) {
        self.endpoint.arm();
        let looks = !mutants::is_on("skip the re-poll after arm");
        if looks && (self.turn(self.clock.now()) || self.must_poll()) {
            marks::mark("worker: armed and found work");
            return self.endpoint.disarm();
        }
        let due = self
            .timers
            .next()
            .map_or(most, |due| due.since(self.clock.now()));
        marks::mark("worker: parked");
        if self.endpoint.wait(due.min(most)) == Wake::Notified {
            marks::mark("worker: woken");
        }
    }

    /// Returns the state of a layer together with the arena that holds the results of its reads.
    ///
    /// # Panics
    /// If the layer is not attached to this worker, or its state is taken out.
    #[inline]
    pub fn layer_and_arena<T: Any>(&mut self) -> (&mut T, &mut Arena) {
        let layer = self.layers.get().expect(
            "the layer must be attached to this worker, and its state must not be taken out",
        );
        (layer, self.endpoint.arena())
    }

    /// Closes the connection to a machine that misbehaved, and stops this machine with that reason.
    fn cut_off(&mut self, machine: MachineId, why: String) {
        marks::mark("worker: peer cut off");
        tracing::error!(%machine, why, "closing the connection to a machine that violated the protocol; stopping this machine");
        self.endpoint.close(machine);
        self.control
            .fail(crate::membership::Stop::Misbehaved { machine, why }.to_string());
    }
}
