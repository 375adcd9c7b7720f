//! A worker: one pinned thread, one event loop, everything it owns in one struct (`FaRM'14 §3.1`).
//!
//! [`Worker::turn`] is the whole loop body. A thread is a loop around it ([`crate::machine`]); the
//! simulator calls it for every worker of a cluster in one thread. All that runs on a worker runs
//! inside a turn: message handlers, continuations, work brought by threads outside.

mod continuation;
mod epoch;
mod idle;
mod inbox;
mod layers;
mod log;
mod memory;
mod reads;
mod request;
mod rest;
mod room;
mod timers;
mod turn;
mod unposted;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

pub use continuation::Cont;
pub use epoch::{EpochCounters, Operation};
pub use idle::{Idle, IdlePolicy, Idler};
pub use inbox::{Inbox, InboxFull};
pub use log::{Append, LogCounters, LogHandler, LogId, LogRecord};
pub use memory::AddressError;
pub use reads::ReadCounters;
pub use request::{ReadError, ReadRequest, ReadResult};
pub use rest::Leftover;

use crate::config::TransactionsConfig;
use crate::control::Control;
use crate::fabric::{Arena, Completion, Counters, Endpoint, Slot, Status, Wake};
use crate::ids::{MachineId, WorkerRef};
use crate::membership::Membership;
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

/// What a worker is made of; whoever builds the machine (or the simulator) provides it.
pub struct WorkerParts {
    /// Its name.
    pub me: WorkerRef,
    /// Its handle on the fabric.
    pub endpoint: Endpoint,
    /// Its rings.
    pub links: Links,
    /// The memory of its machine.
    pub store: Arc<Store>,
    /// Who is in the cluster.
    pub membership: Membership,
    /// How the machine is told to stop, and why it did.
    pub control: Arc<Control>,
    /// Work from threads outside.
    pub inbox: Arc<Inbox>,
    /// Its time.
    pub clock: Clock,
    /// Seed of its random choices.
    pub seed: u64,
    /// Limits.
    pub limits: WorkerLimits,
}

/// Sizes of a worker's tables.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Longest message body.
    pub max_message_bytes: usize,
    /// Operations that it keeps in flight.
    pub operations: usize,
    /// Tries before a read is given up: its object is locked and stays so.
    pub read_tries: u16,
    /// For the layer of transactions.
    pub transactions: TransactionsConfig,
}

/// A worker. See the [module](self).
pub struct Worker {
    me: WorkerRef,
    now: Nanos,
    clock: Clock,
    rng: Xoshiro256PlusPlus,
    endpoint: Endpoint,
    messaging: Messaging,
    logs: log::Logs,
    handlers: Vec<Option<Handler>>,
    timers: Timers,
    reads: Reads,
    epochs: epoch::Epochs,
    changes: epoch::Changes,
    regions: RegionTable,
    region_waits: memory::RegionWaits,
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
    /// Reads that failed when they were begun; told of from the loop.
    failed_reads: VecDeque<(Cont<ReadResult>, Slot, ReadError)>,
    /// Buffers that keep their capacity from turn to turn.
    completions: Vec<Completion>,
    local_done: Vec<(Slot, Status)>,
    message_body: Vec<u8>,
}

impl Worker {
    /// Puts a worker together.
    pub fn new(mut parts: WorkerParts) -> Self {
        let WorkerLimits {
            max_message_bytes,
            operations,
            read_tries,
            transactions,
        } = parts.limits;
        let slots = parts.endpoint.arena().slots();
        let classes = parts.endpoint.arena().classes();
        let logs = log::Logs::new(&mut parts.links, operations);
        let mut worker = Self {
            me: parts.me,
            now: parts.clock.now(),
            clock: parts.clock,
            rng: Xoshiro256PlusPlus::seed_from_u64(parts.seed),
            endpoint: parts.endpoint,
            messaging: Messaging::new(parts.me, parts.links, max_message_bytes, operations),
            logs,
            handlers: vec![None; MessageId::LIMIT as usize],
            timers: Timers::with_capacity(operations),
            reads: Reads::new(slots, operations, read_tries),
            epochs: epoch::Epochs::default(),
            changes: epoch::Changes::default(),
            regions: RegionTable::default(),
            region_waits: memory::RegionWaits::default(),
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
            failed_reads: VecDeque::with_capacity(operations),
            completions: Vec::with_capacity(operations),
            local_done: Vec::with_capacity(operations),
            message_body: Vec::with_capacity(max_message_bytes),
        };
        worker.register_core_handlers();
        worker
    }

    /// Its name.
    pub fn me(&self) -> WorkerRef {
        self.me
    }

    /// The moment at which the current turn began.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Its clock, for measuring within a turn.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Its random numbers.
    pub fn rng(&mut self) -> &mut Xoshiro256PlusPlus {
        &mut self.rng
    }

    /// The registered memory; slots that reads brought are looked at and given back here.
    #[inline]
    pub fn arena(&mut self) -> &mut Arena {
        self.endpoint.arena()
    }

    /// One-sided operations so far.
    pub fn fabric_counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// Ring messages so far.
    pub fn message_counters(&self) -> MessageCounters {
        self.messaging.counters
    }

    /// Lock-free reads so far.
    pub fn read_counters(&self) -> ReadCounters {
        self.reads.counters
    }

    /// Who is in the cluster.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Stops the machine, with a reason if it is a failure.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// The queue through which threads outside reach it.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// The machines of the cluster, ascending, each with its number of workers.
    pub fn machines(&self) -> &[(MachineId, usize)] {
        self.messaging.machines()
    }

    /// What the configuration says about transactions: for the layer that runs them.
    pub fn transactions_config(&self) -> TransactionsConfig {
        self.transactions
    }

    /// Bytes of the longest message body.
    pub fn max_message_body(&self) -> usize {
        self.messaging.max_body()
    }

    /// Operations of the fabric and calls that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.endpoint.outstanding() + self.messaging.calls_in_flight()
    }

    /// Calls that wait for a reply.
    pub fn calls_in_flight(&self) -> usize {
        self.messaging.calls_in_flight()
    }

    /// Handles messages of this id from now on (`msgRegisterHandler`).
    ///
    /// # Panics
    /// If the id has a handler, or is not below [`MessageId::LIMIT`].
    pub fn register(&mut self, id: MessageId, handler: Handler) {
        let entry = &mut self.handlers[id.0 as usize];
        assert!(entry.is_none(), "message {id:?} has a handler");
        *entry = Some(handler);
    }

    /// Sends a message that has no reply (`msgSend`).
    ///
    /// # Errors
    /// [`CallError::Busy`] when the ring is full: nothing was sent.
    pub fn send(&mut self, to: WorkerRef, id: MessageId, body: &[&[u8]]) -> Result<(), CallError> {
        self.messaging
            .send_one_way(&mut self.endpoint, to, id, body)
    }

    /// Sends a request; the continuation gets the reply, of at most `most_reply` bytes, or the
    /// reason why there is none. The body is the parts one after the other.
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

    /// Answers a request. Of a one-way message, nothing.
    ///
    /// # Panics
    /// If the body is longer than any ring carries.
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

    /// Keeps a layer's state with the worker, one value of each type.
    pub fn put_layer<T: Any + Send>(&mut self, state: Box<T>) {
        self.layers.put(state);
    }

    /// Takes a layer's state out; [`Worker::put_layer`] it back before the turn ends.
    ///
    /// # Panics
    /// If the layer is not attached to this worker, or its state is out.
    #[inline]
    pub fn take_layer<T: Any + Send>(&mut self) -> Box<T> {
        match self.layers.take() {
            Some(state) => state,
            None => panic!(
                "{} is not attached to worker {}, or is in use",
                std::any::type_name::<T>(),
                self.me
            ),
        }
    }

    /// A layer's state, where nothing else of the worker is needed meanwhile.
    #[inline]
    pub fn layer<T: Any + Send>(&mut self) -> Option<&mut T> {
        self.layers.get()
    }

    /// Sleeps until it is notified, its next timer is due, or `most` has passed; unless a last look
    /// finds something to do, or something that waits for room and of which nobody will notify.
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

    /// A layer's state together with the arena that its reads came to.
    ///
    /// # Panics
    /// If the layer is not attached to this worker, or its state is out.
    #[inline]
    pub fn layer_and_arena<T: Any + Send>(&mut self) -> (&mut T, &mut Arena) {
        let layer = self
            .layers
            .get()
            .expect("the layer is attached and not in use");
        (layer, self.endpoint.arena())
    }

    /// Stops the cluster because of what a machine did.
    fn cut_off(&mut self, machine: MachineId, why: String) {
        marks::mark("worker: peer cut off");
        tracing::error!(%machine, why, "cutting a machine off");
        self.endpoint.close(machine);
        self.control
            .fail(crate::membership::Stop::Misbehaved { machine, why }.to_string());
    }
}
