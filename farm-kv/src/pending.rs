//! Operations in flight: lookups, changes, and operations inside of transactions.

use std::collections::VecDeque;

use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::messaging::{Handler, Request};
use farm_core::worker::{BorrowCont, Borrowed, Cont, EpochGuard, Worker};
use farm_txn::tasks::Slot;
use farm_txn::{ObjectId, Tx, TxError, TxHandle};
use smallvec::SmallVec;

use crate::layout::{Layout, Next};
use crate::refusals::Refusals;
use crate::shard::Changed;
use crate::table::{OpenCont, Table, TableId, TableSpec};
use crate::{KEY_BYTES, Key, KvError};

/// The result of a lookup: the value, or `None` if the table has no such key.
#[derive(Debug)]
pub enum Value {}

impl Borrowed for Value {
    // The error is passed by reference, so that the result has no destructor and its parts can be passed on without a copy
    // of the whole: such a copy would wait until the preceding stores to the parts have left the processor's store buffer.
    type Of<'a> = Result<Option<&'a [u8]>, &'a KvError>;
}

/// The continuation of a lookup. The value and the error are valid only during the call.
pub type GetCont = BorrowCont<Value>;

/// A lookup in flight. It uses one slot of the arena from start to end, and is identified by the slot's index.
pub(crate) struct Lookup {
    pub(crate) place: Place,
    /// The key, or its beginning if it is longer: see [`Kv::long_keys`](crate::state::Kv).
    pub(crate) key: Key,
    pub(crate) reads: u32,
    pub(crate) restarts: u32,
    /// Pointer to the overflow block that is being read.
    pub(crate) block: Option<Next>,
    /// Epoch guard from the first read to the last, because the read of a bucket returns the address for the read of a
    /// block.
    pub(crate) guard: Option<EpochGuard>,
    pub(crate) cont: GetCont,
}

/// The data that are needed to end a lookup.
pub(crate) struct End {
    pub(crate) guard: EpochGuard,
    pub(crate) cont: GetCont,
}

impl Lookup {
    /// Takes the data that are needed to end the lookup; can be called once.
    #[inline]
    pub(crate) fn end(&mut self) -> End {
        let guard = self.guard.take();
        End {
            guard: guard.expect("a lookup ends only once, and has its epoch guard until then"),
            cont: self.cont,
        }
    }
}

impl End {
    #[inline]
    pub(crate) fn resume(self, worker: &mut Worker, result: Result<Option<&[u8]>, &KvError>) {
        worker.unpin(self.guard);
        self.cont.resume(worker, result);
    }
}

/// The shard and the bucket of a key in a table. A caller that routes by it can store it, so that the key is hashed
/// once.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(crate) table: TableId,
    owner: WorkerRef,
    /// The shard in the high half, and the bucket in the low half.
    position: u64,
}

impl Place {
    #[inline]
    pub(crate) fn of(open: &Table, table: TableId, key: &[u8]) -> Self {
        let (shard, bucket) = open.locate(key);
        Self {
            table,
            owner: open.shards[shard as usize].owner,
            position: u64::from(shard) << 32 | u64::from(bucket),
        }
    }

    /// Returns the worker that owned the shard when the place was determined. Changes of the key are executed there.
    #[inline]
    pub fn owner(self) -> WorkerRef {
        self.owner
    }

    #[inline]
    pub(crate) fn shard(self) -> u32 {
        (self.position >> 32) as u32
    }

    #[inline]
    pub(crate) fn bucket(self) -> u32 {
        self.position as u32
    }
}

/// The continuation that receives the outcome of a change.
pub type ChangeCont = Cont<Result<Changed, KvError>>;

/// A change in flight.
pub(crate) struct PendingChange {
    pub(crate) table: u16,
    pub(crate) shard: u32,
    /// Body of the message.
    pub(crate) body: Vec<u8>,
    /// The machine to which it was sent last.
    pub(crate) asked: MachineId,
    /// The workers that have not made it, because they do not own the shard, or were lost before.
    pub(crate) refusals: Refusals,
    /// Outcome of a change that was not made.
    pub(crate) outcome: Option<Result<Changed, KvError>>,
    pub(crate) cont: ChangeCont,
}

impl PendingChange {
    /// Returns a change that `owner` is asked for.
    pub(crate) fn new(
        (table, shard): (u16, u32),
        owner: MachineId,
        body: Vec<u8>,
        cont: ChangeCont,
    ) -> Self {
        Self {
            table,
            shard,
            body,
            asked: owner,
            refusals: Refusals::default(),
            outcome: None,
            cont,
        }
    }
}

/// The place of a value in a transaction; valid until the transaction changes the table again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRef {
    pub(crate) object: ObjectId,
    pub(crate) at: u32,
    pub(crate) len: u32,
}

impl ValueRef {
    pub(crate) fn new(object: ObjectId, at: usize, layout: &Layout) -> Self {
        Self {
            object,
            at: at as u32,
            len: layout.value_bytes as u32,
        }
    }

    /// Returns the object that contains the value, and the range in its payload.
    pub(crate) fn place(self) -> (ObjectId, std::ops::Range<usize>) {
        let at = self.at as usize;
        (self.object, at..at + self.len as usize)
    }

    /// Returns the value, from the context of the transaction that looked it up.
    pub fn of(self, tx: &Tx) -> &[u8] {
        let (object, bytes) = self.place();
        &tx.payload(object)[bytes]
    }
}

/// The continuation that receives the result of a lookup.
pub type FoundCont = Cont<Result<Option<ValueRef>, TxError>>;
/// The continuation that receives the outcome of a change.
pub type ChangedCont = Cont<Result<Changed, TxError>>;

/// The kind of an operation inside of a transaction, with its continuation.
#[derive(Clone, Copy)]
pub(crate) enum TxOpKind {
    Get(FoundCont),
    /// Whether the operation may insert, and whether it may update; a remove has neither flag.
    Change(bool, bool, ChangedCont),
}

/// A lookup of a task or of another thread, for which there is no room yet.
pub(crate) struct WaitingLookup {
    pub(crate) table: TableId,
    pub(crate) key: SmallVec<[u8; KEY_BYTES]>,
    /// The call that waits for it.
    pub(crate) slot: Slot,
}

/// An operation in progress.
pub(crate) struct PendingTxOp {
    pub(crate) tx: TxHandle,
    pub(crate) table: TableId,
    pub(crate) shard: u32,
    pub(crate) home: u32,
    pub(crate) kind: TxOpKind,
    /// The key, and the value of a change.
    pub(crate) pair: Vec<u8>,
    /// New block that was allocated for the operation.
    pub(crate) spare: Option<ObjectId>,
    /// Why the operation was refused at its start.
    pub(crate) refusal: Option<KvError>,
}

/// Buffers of lookups of many keys, kept for the next batch.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Keys whose chains go on, in the order in which their blocks are read: the pointer to the block, and how many blocks
    /// were read before.
    pub(crate) follow: VecDeque<(Next, u32)>,
    pub(crate) objects: Vec<u64>,
    /// A value that is too long for the stack.
    pub(crate) value: Vec<u8>,
    /// Number of keys that were looked up since a caller was last asked to let other work run.
    pub(crate) keys: usize,
}

/// A table that is being opened.
#[derive(Default)]
pub(crate) struct Opening {
    /// Callers of [`open`](crate::open()), each with the specification that it expects.
    pub(crate) waiting: Vec<(TableSpec, OpenCont)>,
    /// Messages for the table.
    pub(crate) messages: Vec<Postponed>,
}

/// A message for a table that is not open yet.
pub(crate) struct Postponed {
    pub(crate) request: Request,
    pub(crate) body: Vec<u8>,
    pub(crate) handler: Handler,
}

/// A table whose shards are being made.
pub(crate) struct Making {
    pub(crate) spec: TableSpec,
    /// The worker that makes each shard.
    pub(crate) owners: Vec<WorkerRef>,
    /// The first bucket of each shard that was made, or null.
    pub(crate) shards: Vec<Address>,
    /// Number of workers whose shards are not all made.
    pub(crate) unfinished: usize,
    pub(crate) failed: Option<KvError>,
    pub(crate) cont: Cont<Result<Made, TxError>>,
}

/// The shards of a table, as far as they were made, and why some were not.
pub(crate) struct Made {
    pub(crate) shards: Vec<Address>,
    pub(crate) failed: Option<KvError>,
}
