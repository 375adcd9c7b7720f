//! The fabric: what moves bytes between machines. Everything above sees an [`Endpoint`], a worker's
//! own handle, and the promises below; nothing above knows which backend it is.
//!
//! The promises are those of an RC queue pair on a NIC and no more (`FaRM'14 §2, §3.1`), so that
//! RDMA verbs fit without a change above:
//!
//! - Posts name slots of the endpoint's [`Arena`]; a slot belongs to the fabric from post to
//!   completion. A post can answer [`Rejected::Full`].
//! - Writes are ordered among themselves and before later reads on one connection. A write or read
//!   posted after an outstanding read or atomic may pass it unless posted with a fence. Nothing is
//!   promised across connections.
//! - A write lands in increasing address order. A completed write is in the remote memory, though
//!   no remote CPU need have seen it.
//! - A *raw* read gives whole aligned words. A read of *objects* gives headers that did not change
//!   during the read. Lines of an object that is not locked exclusively, and whose line versions agree,
//!   are of that version; where [`Capabilities::whole_lines`] says so, every line is whole by itself.
//! - An error breaks the connection: each outstanding operation completes once, with
//!   [`Status::Broken`], and later posts answer [`Rejected::Closed`].
//!
//! The conformance suite (`farm_sim::conformance`) holds every backend to this list.

mod access;
mod arena;
mod machine;
mod meeting;
pub mod shm;
pub mod verbs;

use std::time::Duration;

pub use arena::{Arena, ArenaConfig, Slot};
pub use machine::{ExportError, Exporter, FabricConfig, FabricMachine, FabricStartError};
pub(crate) use meeting::Reporter;
pub use meeting::{ConnectError, Departed, Patience, PeerOffer};

use crate::ids::{MachineId, WorkerId};

/// What comes back with a completion to tell the poster which operation it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Names exported memory to other machines: what a NIC calls a remote key with its base. Valid for
/// one start (`boot`) of the machine that exported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Capability {
    /// The machine whose memory it is.
    pub machine: MachineId,
    /// That machine's start; a restarted machine's memory has other capabilities.
    pub boot: u64,
    /// The exported memory within the machine.
    pub key: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether peers may write it (rings) or only read it (regions).
    pub writable: bool,
}

/// Memory of another machine, imported into this endpoint: an index that is cheap to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory(pub(crate) u32);

impl RemoteMemory {
    /// For backends outside this crate (the simulator's).
    pub fn from_index(index: u32) -> Self {
        Self(index)
    }
    /// The index given by the backend that imported it.
    pub fn index(self) -> u32 {
        self.0
    }
}

/// A place in another machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which imported memory.
    pub memory: RemoteMemory,
    /// Bytes from its start, a multiple of 8.
    pub offset: u64,
}

/// How much consistency a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// Aligned words are whole, nothing more.
    Raw,
    /// Objects of `stride` bytes (whole lines), adjacent, the last possibly cut short at a line.
    Objects {
        /// Bytes of one object.
        stride: u32,
    },
}

/// A one-sided read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Where from.
    pub from: Remote,
    /// Bytes, a multiple of 8 (of 64 for objects), at most the slot's length.
    pub bytes: u32,
    /// Consistency asked for.
    pub kind: ReadKind,
    /// Wait for outstanding reads and atomics of this connection first.
    pub fence: bool,
    /// Comes back in the completion.
    pub token: Token,
}

/// A one-sided write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Where to.
    pub to: Remote,
    /// Wait for outstanding reads and atomics of this connection first.
    pub fence: bool,
    /// Wake this worker of the receiving machine if it sleeps; done once per [`Endpoint::flush`].
    pub notify: Option<WorkerId>,
    /// A completion is wanted, with this token. `None`: unsignalled.
    pub signal: Option<Token>,
}

/// An atomic operation on an aligned remote word.
#[derive(Clone, Copy, Debug)]
pub enum Atomic {
    /// Store `new` if the word is `expected`.
    CompareSwap {
        /// Value it must have.
        expected: u64,
        /// Value it gets.
        new: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// What is added.
        delta: u64,
    },
}

/// The words of a write.
#[derive(Debug)]
pub enum Source<'a> {
    /// Copied at the post; at most [`Capabilities::max_inline_bytes`].
    Inline(&'a [u64]),
    /// A slot of the arena, given back by the completion (a signalled write) or, for an unsignalled
    /// one, when the fabric has read it.
    Slot {
        /// The slot.
        slot: Slot,
        /// Bytes of it to write, a multiple of 8.
        bytes: u32,
    },
}

/// Why a post was not taken. A slot that went with it is given back.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// No room for more outstanding operations: poll first.
    #[error("the endpoint's queue is full")]
    Full(Option<Slot>),
    /// The connection is broken or the memory is not imported any more.
    #[error("the connection is closed")]
    Closed(Option<Slot>),
    /// The range, the alignment or the access right is wrong: a bug, or data from a peer that was
    /// not validated.
    #[error("the access is outside the memory, misaligned, or not allowed")]
    BadAccess(Option<Slot>),
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// A read of objects that changed at every one of a bounded number of tries.
    Torn,
    /// The connection broke; whether the operation took place is unknown.
    Broken,
}

/// The end of a posted operation.
#[derive(Debug)]
pub struct Completion {
    /// The poster's token.
    pub token: Token,
    /// How it ended.
    pub status: Status,
    /// The slot that went with the post.
    pub slot: Option<Slot>,
    /// Old value of the word, for atomics.
    pub value: u64,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The peer said that it was leaving.
    Left,
    /// The connection broke without a word (the peer was killed, or the network failed), or the peer
    /// reported that it stops because of a failure.
    Lost,
}

/// Scope in which a fabric's atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicScope {
    /// Among operations of the same device only: never mix with the CPU's on one word.
    Device,
    /// With the CPU's own atomics too.
    Global,
}

/// What a backend offers; asked, never assumed.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Reads of objects give whole lines, of whatever is locked too.
    pub whole_lines: bool,
    /// Memory that was never exported is refused when it is imported. Else the first access breaks the
    /// connection.
    pub imports_are_checked: bool,
    /// Writes land in increasing address order (rings rely on it).
    pub ordered_placement: bool,
    /// Reads take place when they are polled, not between post and completion: what a read can have
    /// overlapped with is the poll alone.
    pub reads_begin_at_poll: bool,
    /// Reads of objects are what they say however long they took, because whole headers were compared.
    /// Else the versions of lines vouch for them, and those come round.
    pub reads_of_any_age: bool,
    /// What atomics are atomic with.
    pub atomics: AtomicScope,
    /// Most bytes of an inline write.
    pub max_inline_bytes: usize,
    /// Most outstanding reads and atomics.
    pub max_outstanding_reads: usize,
    /// Signalled writes that are taken however many reads and atomics are outstanding. What releases a lock
    /// is a write, and must not wait for reads that may wait for the lock.
    pub max_outstanding_writes: usize,
}

/// Operations counted where they happen and nowhere else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// One-sided reads posted.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Copies tried again because the memory changed under them.
    pub read_retries: u64,
    /// Reads that ended [`Status::Torn`].
    pub reads_torn: u64,
    /// One-sided writes posted.
    pub writes: u64,
    /// Bytes they carried.
    pub write_bytes: u64,
    /// Atomics posted.
    pub atomics: u64,
    /// Sleeping workers woken.
    pub wakes: u64,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Somebody notified, or might have.
    Notified,
    /// The time ran out.
    TimedOut,
}

/// What a backend implements. Methods are those of [`Endpoint`], which see.
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
    /// See [`Endpoint::close`].
    fn close(&mut self, machine: MachineId);
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
    /// No connection to that machine, or it is broken.
    #[error("machine {0} is not connected")]
    NotConnected(MachineId),
    /// The capability is of an earlier start of that machine.
    #[error(
        "machine {machine} was restarted: the capability is of start {stale:#x}, it runs {current:#x}"
    )]
    Restarted {
        /// The machine.
        machine: MachineId,
        /// Start in the capability.
        stale: u64,
        /// Start that is running.
        current: u64,
    },
    /// That machine never exported it.
    #[error("machine {machine} has exported no such memory")]
    Unknown {
        /// The machine.
        machine: MachineId,
    },
    /// The memory could not be mapped.
    #[error(transparent)]
    Mapping(#[from] crate::mem::MappingError),
}

/// A worker's own handle on the fabric. An enum and not a type parameter: nothing that a user names
/// carries the fabric in its type, and the hot backend costs one predicted branch.
pub enum Endpoint {
    /// Processes on one host.
    Shm(Box<shm::ShmEndpoint>),
    /// RDMA devices.
    Verbs(Box<verbs::VerbsEndpoint>),
    /// Any other backend: the simulator's.
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
    /// What the fabric offers.
    pub fn capabilities(&self) -> &Capabilities {
        dispatch!(self, e => e.capabilities())
    }

    /// Operations posted so far.
    pub fn counters(&self) -> Counters {
        dispatch!(self, e => e.counters())
    }

    /// The registered memory that posts name slots of.
    #[inline]
    pub fn arena(&mut self) -> &mut Arena {
        dispatch!(self, e => e.arena())
    }

    /// Makes memory of another machine usable in posts.
    ///
    /// # Errors
    /// [`ImportError`] names the machine and the reason.
    pub fn import(&mut self, capability: &Capability) -> Result<RemoteMemory, ImportError> {
        dispatch!(self, e => e.import(capability))
    }

    /// Starts a one-sided read into `slot`.
    ///
    /// # Errors
    /// [`Rejected`] gives the slot back.
    #[inline]
    pub fn post_read(&mut self, read: Read, slot: Slot) -> Result<(), Rejected> {
        dispatch!(self, e => e.post_read(read, slot))
    }

    /// Starts a one-sided write.
    ///
    /// # Errors
    /// [`Rejected`] gives the slot back, if there was one.
    #[inline]
    pub fn post_write(&mut self, write: Write, source: Source<'_>) -> Result<(), Rejected> {
        dispatch!(self, e => e.post_write(write, source))
    }

    /// Starts an atomic on a remote word; the completion carries the old value.
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

    /// Appends at most `most` completions to `out` and tells how many.
    #[inline]
    pub fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> usize {
        dispatch!(self, e => e.poll(most, out))
    }

    /// Rings the doorbells: everything posted is on its way, everybody to be notified is.
    #[inline]
    pub fn flush(&mut self) {
        dispatch!(self, e => e.flush())
    }

    /// Operations posted whose completion has not been polled.
    #[inline]
    pub fn outstanding(&self) -> usize {
        dispatch!(self, e => e.outstanding())
    }

    /// A machine whose connection broke since the last call, each once.
    #[inline]
    pub fn take_broken(&mut self) -> Option<(MachineId, Departure)> {
        dispatch!(self, e => e.take_broken())
    }

    /// Breaks the connection to a machine that does not keep to the protocol; it is then
    /// [`Departure::Lost`].
    pub fn close(&mut self, machine: MachineId) {
        dispatch!(self, e => e.close(machine))
    }

    /// Announces a sleep. Whoever notifies from now on wakes it; the caller polls everything once
    /// more, and then either [`Endpoint::wait`]s or [`Endpoint::disarm`]s.
    pub fn arm(&mut self) {
        dispatch!(self, e => e.arm())
    }

    /// Takes [`Endpoint::arm`] back: the re-poll found something.
    pub fn disarm(&mut self) {
        dispatch!(self, e => e.disarm())
    }

    /// Sleeps until notified or for `most`. Only after [`Endpoint::arm`]; disarms.
    pub fn wait(&mut self, most: Duration) -> Wake {
        dispatch!(self, e => e.wait(most))
    }
}
