//! The fabric: the transport of bytes between machines. The layers above use an [`Endpoint`], a
//! worker's own handle, and the guarantees below. They do not depend on the backend.
//!
//! The guarantees are those of an RC queue pair on a NIC and no more (`FaRM'14 §2, §3.1`), so that
//! RDMA verbs can implement them without a change to the layers above:
//!
//! - Posts name slots of the endpoint's [`Arena`]. The fabric owns a slot from post to completion.
//!   A post can return [`Rejected::Full`].
//! - On one connection, writes are ordered among themselves and before later reads. A write or read
//!   without a fence may pass the reads and atomics that were posted before and are outstanding. A
//!   write or read with a fence may not. There is no ordering across connections.
//! - A write lands in increasing address order. A completed write is in the remote memory, but a
//!   remote CPU need not have observed it.
//! - A *raw* read returns whole aligned words. A read of *objects* returns headers that did not
//!   change during the read. If an object is not locked exclusively and the versions of its lines
//!   agree, all its lines belong to that version. If [`Capabilities::whole_lines`] is set, every
//!   single line is consistent.
//! - An error breaks the connection: each outstanding operation completes once, with
//!   [`Status::Broken`], and later posts return [`Rejected::Closed`].
//!
//! The conformance suite (`farm_conformance`) checks every backend against this list.

mod access;
mod arena;
mod eviction;
mod handshake;
mod lease_book;
mod machine;
pub mod shm;
mod turns;
pub mod verbs;

use std::time::Duration;

pub use arena::{Arena, ArenaConfig, Slot};
pub use eviction::{Eviction, Standing};
pub(crate) use handshake::Reporter;
pub(crate) use handshake::random_words;
pub use handshake::{Admission, Begins, ConnectError, Departed, Patience, PeerOffer, Roster};
pub use lease_book::{LeaseBook, LeaseMessage, LeaseTerms, Start};
pub use machine::{ExportError, Exporter, FabricConfig, FabricMachine, FabricStartError};

use crate::ids::{MachineId, WorkerId};

/// The poster's identifier of an operation, returned with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// The identifier by which other machines import exported memory, comparable to a NIC's remote key
/// and base address. Valid for one start (`boot`) of the machine that exported the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Capability {
    /// The machine that exported the memory.
    pub machine: MachineId,
    /// Number of the exporting machine's start. After a restart, the machine exports its memory
    /// under another number.
    pub boot: u64,
    /// Key of the exported memory within the machine.
    pub key: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether peers may write the memory (rings) or only read it (regions).
    pub writable: bool,
}

impl Capability {
    /// Checks that the exporting machine has not been restarted since the export: `current` is the
    /// number of the machine's current start.
    ///
    /// # Errors
    /// [`ImportError::Restarted`].
    pub fn check_start(&self, current: u64) -> Result<(), ImportError> {
        match self.boot == current {
            true => Ok(()),
            false => Err(ImportError::Restarted {
                machine: self.machine,
                stale: self.boot,
                current,
            }),
        }
    }
}

/// Memory of another machine, imported into this endpoint: a small index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory(pub(crate) u32);

impl RemoteMemory {
    /// Creates a handle, for backends outside this crate (the simulator's).
    pub fn from_index(index: u32) -> Self {
        Self(index)
    }
    /// Returns the index assigned by the backend that imported the memory.
    pub fn index(self) -> u32 {
        self.0
    }
}

/// An address in another machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The imported memory.
    pub memory: RemoteMemory,
    /// Offset in bytes from the start of the memory, a multiple of 8.
    pub offset: u64,
}

/// The consistency that a read requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadKind {
    /// Aligned words are whole. No other guarantee.
    #[default]
    Raw,
    /// Adjacent objects of `stride` bytes (whole lines). The last object may be cut off at a line.
    Objects {
        /// Bytes of one object.
        stride: u32,
    },
}

/// A one-sided read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Source of the read.
    pub from: Remote,
    /// Number of bytes, a multiple of 8 (of 64 for objects), at most the slot's length.
    pub bytes: u32,
    /// Requested consistency.
    pub kind: ReadKind,
    /// Whether to wait for outstanding reads and atomics of this connection first.
    pub fence: bool,
    /// Returned in the completion.
    pub token: Token,
}

/// A one-sided write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Destination of the write.
    pub to: Remote,
    /// Whether to wait for outstanding reads and atomics of this connection first.
    pub fence: bool,
    /// Worker of the receiving machine to wake if it sleeps. It is woken at most once per
    /// [`Endpoint::flush`].
    pub notify: Option<WorkerId>,
    /// Token of the requested completion. `None`: unsignalled.
    pub signal: Option<Token>,
}

/// An atomic operation on an aligned remote word.
#[derive(Clone, Copy, Debug)]
pub enum Atomic {
    /// Store `new` if the word is `expected`.
    CompareSwap {
        /// Expected value.
        expected: u64,
        /// New value.
        new: u64,
    },
    /// Add `delta`, wrapping.
    FetchAdd {
        /// The addend.
        delta: u64,
    },
}

/// The source of a write's words.
#[derive(Debug)]
pub enum Source<'a> {
    /// Words copied during the post; at most [`Capabilities::max_inline_bytes`].
    Inline(&'a [u64]),
    /// A slot of the arena. A signalled write returns it in the completion. After an unsignalled
    /// write, the fabric returns it to the arena once it has read the words.
    Slot {
        /// The slot.
        slot: Slot,
        /// Number of bytes to write, a multiple of 8.
        bytes: u32,
    },
}

/// Why a post was rejected. The post's slot is returned.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// There is no room for more outstanding operations: poll first.
    #[error(
        "the operation was not posted: the queue of the endpoint is full; poll, and post again"
    )]
    Full(Option<Slot>),
    /// The connection is broken or the memory is no longer imported.
    #[error(
        "the operation was not posted: the connection is closed, or the memory is no longer imported"
    )]
    Closed(Option<Slot>),
    /// The range, the alignment or the access right is invalid: a bug, or data from a peer that was
    /// not validated.
    #[error(
        "the operation was not posted: the access is outside the memory, misaligned, or not allowed"
    )]
    BadAccess(Option<Slot>),
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The operation succeeded.
    Ok,
    /// A read of objects that changed during every one of a bounded number of attempts.
    Torn,
    /// The connection broke. It is unknown whether the operation took place.
    Broken,
}

/// The completion of a posted operation.
#[derive(Debug)]
pub struct Completion {
    /// Token given at the post.
    pub token: Token,
    /// How the operation ended.
    pub status: Status,
    /// The slot given at the post.
    pub slot: Option<Slot>,
    /// The word's old value, for atomics.
    pub value: u64,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The peer announced that it leaves.
    Left,
    /// The connection broke without an announcement (the peer was killed, or the network failed),
    /// or the peer reported that it stops because of a failure.
    Lost,
}

/// A change of the lease of a peer to which this machine is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The peer.
    pub machine: MachineId,
    /// The number of its start.
    pub boot: u64,
    /// Whether it has shown no sign of life for the time of a lease. It may only be stopped, or slow.
    pub has_expired: bool,
}

/// The scope in which a fabric's atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// Among operations of the same device only: do not mix them with the CPU's atomics on one
    /// word.
    Device,
    /// Also with the CPU's own atomics.
    Global,
}

/// The properties of a backend. Layers above query them and do not assume them.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Whether object reads return consistent lines, also of locked objects.
    pub whole_lines: bool,
    /// Whether importing memory that was never exported fails. Otherwise the first access breaks
    /// the connection.
    pub imports_are_checked: bool,
    /// Whether writes land in increasing address order (rings rely on it).
    pub ordered_placement: bool,
    /// Whether reads take place during the poll that completes them, so that a read can overlap
    /// only with that poll.
    pub reads_begin_at_poll: bool,
    /// Whether object reads are valid regardless of their duration, because whole headers were
    /// compared. Otherwise their consistency relies on line versions, which wrap around.
    pub reads_of_any_age: bool,
    /// Scope in which atomics are atomic.
    pub atomics: AtomicScope,
    /// Whether leases end by time, and not by a word in the memory of a process ([`Eviction`]).
    pub leases_by_time: bool,
    /// Largest inline write, in bytes.
    pub max_inline_bytes: usize,
    /// Maximum number of outstanding reads and atomics.
    pub max_outstanding_reads: usize,
    /// Maximum number of outstanding signalled writes. The endpoint accepts them independently of
    /// outstanding reads and atomics, because the write that releases a lock must not wait for
    /// reads that may wait for the lock.
    pub max_outstanding_writes: usize,
}

/// Counters of operations. Only the backend that performs an operation counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// One-sided reads posted.
    pub reads: u64,
    /// Bytes requested by the reads.
    pub read_bytes: u64,
    /// Copies retried because the memory changed during the copy.
    pub read_retries: u64,
    /// Reads that ended with [`Status::Torn`].
    pub reads_torn: u64,
    /// One-sided writes posted.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Atomics posted.
    pub atomics: u64,
    /// Sleeping workers woken.
    pub wakes: u64,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A notification arrived, or may have arrived.
    Notified,
    /// The wait timed out.
    TimedOut,
}

/// The interface of a backend. [`Endpoint`] documents the methods.
pub trait Backend: Send {
    /// See [`Endpoint::capabilities`].
    fn capabilities(&self) -> &Capabilities;
    /// See [`Endpoint::counters`].
    fn counters(&self) -> Counters;
    /// See [`Endpoint::arena`].
    fn arena(&mut self) -> &mut Arena;
    /// See [`Endpoint::import`].
    fn import(&mut self, capability: &Capability) -> Result<RemoteMemory, ImportError>;
    /// See [`Endpoint::post_read`].
    fn post_read(&mut self, read: Read, slot: Slot) -> Result<(), Rejected>;
    /// See [`Endpoint::prefetch`].
    fn prefetch(&self, _from: Remote, _bytes: usize) {}
    /// See [`Endpoint::read_now`].
    fn read_now(&mut self, _from: Remote, _stride: usize, _out: &mut [u64]) -> Option<Status> {
        None
    }
    /// See [`Endpoint::post_write`].
    fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected>;
    /// See [`Endpoint::post_atomic`].
    fn post_atomic(
        &mut self,
        at: Remote,
        op: Atomic,
        fence: bool,
        token: Token,
    ) -> Result<(), Rejected>;
    /// See [`Endpoint::poll`].
    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> usize;
    /// See [`Endpoint::flush`].
    fn flush(&mut self);
    /// See [`Endpoint::outstanding`].
    fn outstanding(&self) -> usize;
    /// See [`Endpoint::take_broken`].
    fn take_broken(&mut self) -> Option<(MachineId, Departure)>;
    /// See [`Endpoint::has_died`].
    fn has_died(&self, _machine: MachineId, _boot: u64) -> bool {
        false
    }
    /// See [`Endpoint::take_lease`].
    fn take_lease(&mut self) -> Option<Lease> {
        None
    }
    /// See [`Endpoint::eviction`].
    fn eviction(&self) -> Eviction {
        Eviction::never()
    }
    /// See [`Endpoint::evict`].
    fn evict(&self, _machine: MachineId, _boot: u64) -> bool {
        false
    }
    /// See [`Endpoint::may_hold_a_lease`].
    fn may_hold_a_lease(&self, _machine: MachineId, _boot: u64) -> bool {
        false
    }
    /// See [`Endpoint::set_lease_terms`].
    fn set_lease_terms(&self, _terms: LeaseTerms) {}
    /// See [`Endpoint::close`].
    fn close(&mut self, machine: MachineId);
    /// See [`Endpoint::close_start`].
    fn close_start(&mut self, machine: MachineId, _boot: u64) {
        self.close(machine);
    }
    /// See [`Endpoint::arm`].
    fn arm(&mut self);
    /// See [`Endpoint::disarm`].
    fn disarm(&mut self);
    /// See [`Endpoint::wait`].
    fn wait(&mut self, most: Duration) -> Wake;
}

/// Why a capability could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// There is no connection to the machine, or it is broken.
    #[error("cannot import memory of machine {0}: the machine is not connected")]
    NotConnected(MachineId),
    /// The capability belongs to an earlier start of the machine.
    #[error(
        "cannot import memory of machine {machine}: the machine was restarted (the capability is from start \
         {stale:#x}, the current start is {current:#x})"
    )]
    Restarted {
        /// The machine.
        machine: MachineId,
        /// Start in the capability.
        stale: u64,
        /// Current start of the machine.
        current: u64,
    },
    /// The machine never exported the memory.
    #[error("cannot import memory of machine {machine}: the machine has not exported it")]
    Unknown {
        /// The machine.
        machine: MachineId,
    },
    /// The memory could not be mapped.
    #[error(transparent)]
    Mapping(#[from] crate::mem::MappingError),
}

/// A worker's own handle on the fabric. It is an enum and not a type parameter, so that public
/// types do not depend on the backend. The cost of each call is one branch, which the processor
/// predicts.
pub enum Endpoint {
    /// Processes on one host.
    Shm(Box<shm::ShmEndpoint>),
    /// RDMA devices.
    Verbs(Box<verbs::VerbsEndpoint>),
    /// Any other backend, such as the simulator's.
    Other(Box<dyn Backend>),
}

macro_rules! dispatch {
    ($self:ident, $endpoint:ident => $call:expr) => {
        match $self {
            Endpoint::Shm($endpoint) => $call,
            Endpoint::Verbs($endpoint) => $call,
            Endpoint::Other($endpoint) => $call,
        }
    };
}

impl Endpoint {
    /// Returns the properties of the fabric.
    pub fn capabilities(&self) -> &Capabilities {
        dispatch!(self, e => e.capabilities())
    }

    /// Returns the counters of posted operations.
    pub fn counters(&self) -> Counters {
        dispatch!(self, e => e.counters())
    }

    /// Returns the registered memory whose slots posts use.
    #[inline]
    pub fn arena(&mut self) -> &mut Arena {
        dispatch!(self, e => e.arena())
    }

    /// Imports memory of another machine, so that posts can use it.
    ///
    /// # Errors
    /// [`ImportError`] with the machine and the reason.
    pub fn import(&mut self, capability: &Capability) -> Result<RemoteMemory, ImportError> {
        dispatch!(self, e => e.import(capability))
    }

    /// Starts a one-sided read into `slot`.
    ///
    /// # Errors
    /// [`Rejected`] returns the slot.
    #[inline]
    pub fn post_read(&mut self, read: Read, slot: Slot) -> Result<(), Rejected> {
        dispatch!(self, e => e.post_read(read, slot))
    }

    /// Prefetches what [`Endpoint::read_now`] is about to read.
    #[inline]
    pub fn prefetch(&self, from: Remote, bytes: usize) {
        dispatch!(self, e => e.prefetch(from, bytes));
    }

    /// Reads adjacent objects of `stride` bytes at once, if the processor itself performs the reads of this backend:
    /// `out` is written as the slot of a completed read of [`ReadKind::Objects`] is. It may pass reads that were posted
    /// before.
    ///
    /// Returns `None`, and reads nothing, if a device performs the reads, if the connection is closed, or if the access is
    /// invalid: [`Endpoint::post_read`] reports why.
    #[inline]
    pub fn read_now(&mut self, from: Remote, stride: usize, out: &mut [u64]) -> Option<Status> {
        dispatch!(self, e => e.read_now(from, stride, out))
    }

    /// Starts a one-sided write.
    ///
    /// # Errors
    /// [`Rejected`] returns the slot, if the source is a slot.
    #[inline]
    pub fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected> {
        dispatch!(self, e => e.post_write(write, source))
    }

    /// Starts an atomic operation on a remote word. The completion contains the old value.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn post_atomic(
        &mut self,
        at: Remote,
        op: Atomic,
        fence: bool,
        token: Token,
    ) -> Result<(), Rejected> {
        dispatch!(self, e => e.post_atomic(at, op, fence, token))
    }

    /// Appends at most `most` completions to `out`. Returns how many.
    #[inline]
    pub fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> usize {
        dispatch!(self, e => e.poll(most, out))
    }

    /// Rings the doorbells: starts all posted operations and sends all pending notifications.
    #[inline]
    pub fn flush(&mut self) {
        dispatch!(self, e => e.flush())
    }

    /// Returns the number of posted operations whose completion has not been polled.
    #[inline]
    pub fn outstanding(&self) -> usize {
        dispatch!(self, e => e.outstanding())
    }

    /// Returns a machine whose connection has ended, and how the connection ended. Returns each
    /// ended connection once.
    #[inline]
    pub fn take_broken(&mut self) -> Option<(MachineId, Departure)> {
        dispatch!(self, e => e.take_broken())
    }

    /// Returns whether a start of a peer, whose connection has ended, is proved to have ended: it performs no operation any more. A
    /// peer that is stopped, or slow, has not. False on RDMA devices, where nothing proves it.
    pub fn has_died(&self, machine: MachineId, boot: u64) -> bool {
        dispatch!(self, e => e.has_died(machine, boot))
    }

    /// Returns a peer whose lease has expired, or was renewed after that. Returns each change once, to the first worker of this machine
    /// that asks.
    #[inline]
    pub fn take_lease(&mut self) -> Option<Lease> {
        dispatch!(self, e => e.take_lease())
    }

    /// Returns a handle that says whether this process may report what it finds out.
    pub fn eviction(&self) -> Eviction {
        dispatch!(self, e => e.eviction())
    }

    /// Sets the [`Eviction`] of a start of a peer to which this machine is or was connected. Returns false if it cannot, because the peer
    /// has had another start since. If leases end by time, this returns whether what this machine has granted to it has ended; it grants no
    /// more since the process is no member.
    pub fn evict(&self, machine: MachineId, boot: u64) -> bool {
        dispatch!(self, e => e.evict(machine, boot))
    }

    /// Returns whether a start of a peer may hold a lease by time that this machine has granted.
    pub fn may_hold_a_lease(&self, machine: MachineId, boot: u64) -> bool {
        dispatch!(self, e => e.may_hold_a_lease(machine, boot))
    }

    /// Sets who takes part in leases by time from now on.
    pub fn set_lease_terms(&self, terms: LeaseTerms) {
        dispatch!(self, e => e.set_lease_terms(terms));
    }

    /// Breaks the connection to a machine that violates the protocol. The machine is then
    /// [`Departure::Lost`].
    pub fn close(&mut self, machine: MachineId) {
        dispatch!(self, e => e.close(machine))
    }

    /// As [`Endpoint::close`], unless the connection is to another start of the machine.
    pub fn close_start(&mut self, machine: MachineId, boot: u64) {
        dispatch!(self, e => e.close_start(machine, boot))
    }

    /// Announces a sleep. Every notification from now on wakes the worker. The caller must poll
    /// everything once more, and then call either [`Endpoint::wait`] or [`Endpoint::disarm`].
    pub fn arm(&mut self) {
        dispatch!(self, e => e.arm())
    }

    /// Cancels [`Endpoint::arm`], because the poll after it found work.
    pub fn disarm(&mut self) {
        dispatch!(self, e => e.disarm())
    }

    /// Sleeps until notified, for at most `most`, and then cancels [`Endpoint::arm`]. To be called
    /// only after [`Endpoint::arm`].
    pub fn wait(&mut self, most: Duration) -> Wake {
        dispatch!(self, e => e.wait(most))
    }
}
