//! The state of the hashtable on each worker.

use std::collections::{BTreeMap, VecDeque};

use farm_core::messaging::Request;
use farm_core::worker::Worker;
use slab::Slab;

use crate::change::HEADER_BYTES;
use crate::layout::Layout;
use crate::owner::queue::{ChangeCounters, ChangeQueue};
use crate::pending::{Buffers, Lookup, Making, Opening, PendingChange, PendingTxOp, WaitingLookup};
use crate::table::{OpenCont, Table, TableId};
use crate::{KEY_BYTES, KvError, MAX_KEY_BYTES};

/// Maximum number of bytes of message bodies that are allocated in advance.
const BODIES_BYTES: usize = 1 << 20;

/// Counters of lookups, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounters {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not find their key.
    pub misses: u64,
    /// Reads of objects by hits, including local reads. The reads of restarts are counted; the retries of a single read
    /// are not.
    pub reads_of_hits: u64,
    /// Reads by misses.
    pub reads_of_misses: u64,
    /// Restarts of lookups: joint versions differed, or a block had another incarnation than expected.
    pub restarts: u64,
    /// Lookups whose shard is on this machine.
    pub local: u64,
    /// Lookups whose shard is on another machine.
    pub remote: u64,
}

/// Open tables, by table number.
#[derive(Default)]
pub(crate) struct Tables(Vec<Option<Box<Table>>>);

impl Tables {
    /// Returns an open table.
    #[inline]
    pub(crate) fn get(&self, id: &u16) -> Option<&Table> {
        self.0.get(usize::from(*id))?.as_deref()
    }

    /// Returns an open table.
    ///
    /// # Errors
    /// [`KvError::NotOpen`].
    #[inline]
    pub(crate) fn open(&self, id: TableId) -> Result<&Table, KvError> {
        self.get(&id.0).ok_or(KvError::NotOpen(id.0))
    }

    pub(crate) fn get_mut(&mut self, id: &u16) -> Option<&mut Table> {
        self.0.get_mut(usize::from(*id))?.as_deref_mut()
    }

    /// Returns all tables, in the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Table> {
        self.0.iter().filter_map(Option::as_deref)
    }

    pub(crate) fn insert(&mut self, id: u16, table: Table) {
        if self.0.len() <= usize::from(id) {
            self.0.resize_with(usize::from(id) + 1, || None);
        }
        self.0[usize::from(id)] = Some(Box::new(table));
    }
}

impl std::ops::Index<&u16> for Tables {
    type Output = Table;

    /// Returns the table of an operation that has started. Tables are never closed.
    #[inline]
    fn index(&self, id: &u16) -> &Table {
        self.get(id)
            .expect("only operations on open tables are started")
    }
}

/// State of the hashtable on one worker.
pub(crate) struct Kv {
    pub(crate) tables: Tables,
    /// Indexed by the arena slot of the lookup.
    pub(crate) lookups: Vec<Option<Lookup>>,
    /// The keys of lookups that are longer than [`KEY_BYTES`], by arena slot; empty until a table with
    /// such keys is opened.
    pub(crate) long_keys: Vec<[u8; MAX_KEY_BYTES]>,
    /// Lookups of tasks and of other threads for which there is no room yet.
    pub(crate) waiting_lookups: Slab<WaitingLookup>,
    pub(crate) changes: Slab<PendingChange>,
    /// Changes that wait for room in the rings.
    pub(crate) waiting: VecDeque<usize>,
    /// Changes to this worker's shards that have not ended.
    pub(crate) owner: ChangeQueue,
    pub(crate) change_counters: ChangeCounters,
    /// Operations on tables inside of callers' transactions.
    pub(crate) in_tx: Slab<PendingTxOp>,
    /// Tables that are being opened, by number.
    pub(crate) openings: BTreeMap<u16, Opening>,
    /// Workers that wait for tables that this worker creates, by number.
    pub(crate) creations: BTreeMap<u16, Vec<Request>>,
    /// Tables whose shards are being made for this worker.
    pub(crate) making: Slab<Making>,
    /// Openings that have ended and whose continuations are not called yet, in order.
    pub(crate) ended_opens: VecDeque<(OpenCont, Result<TableId, KvError>)>,
    /// Message bodies for reuse, with their capacity.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// Buffer for a value that is too long for the stack, until it is passed to a continuation.
    pub(crate) value: Vec<u8>,
    /// Buffers of lookups of many keys.
    pub(crate) buffers: Buffers,
    pub(crate) counters: LookupCounters,
}

impl Kv {
    /// Creates the state of a worker whose arena has `slots` slots. No table is open and no operation is in flight.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            tables: Tables::default(),
            lookups: (0..slots).map(|_| None).collect(),
            long_keys: Vec::new(),
            waiting_lookups: Slab::new(),
            changes: Slab::with_capacity(1024),
            waiting: VecDeque::with_capacity(1024),
            owner: ChangeQueue::default(),
            change_counters: ChangeCounters::default(),
            in_tx: Slab::new(),
            openings: BTreeMap::new(),
            creations: BTreeMap::new(),
            making: Slab::new(),
            ended_opens: VecDeque::new(),
            bodies: Vec::with_capacity(1024),
            value: Vec::new(),
            buffers: Buffers::default(),
            counters: LookupCounters::default(),
        }
    }

    /// Allocates message bodies for the expected number of concurrent changes, limited to one mebibyte in total, so that a
    /// change need not allocate. More bodies are allocated on demand.
    pub(crate) fn make_bodies(&mut self, layout: &Layout) {
        let bytes = HEADER_BYTES + layout.pair_bytes();
        let bodies = &mut self.bodies;
        for body in bodies.iter_mut() {
            body.clear();
            body.reserve(bytes);
        }
        let enough = (BODIES_BYTES / bytes).min(bodies.capacity());
        while bodies.len() < enough {
            bodies.push(Vec::with_capacity(bytes));
        }
    }

    /// Allocates memory for the keys of lookups in a table with keys of `key_bytes`.
    pub(crate) fn make_keys(&mut self, key_bytes: usize) {
        if key_bytes > KEY_BYTES {
            self.long_keys
                .resize(self.lookups.len(), [0; MAX_KEY_BYTES]);
        }
    }
}

#[inline]
pub(crate) fn kv(worker: &mut Worker) -> &mut Kv {
    worker
        .layer()
        .expect("farm_kv::attach must be called for a worker before it uses tables")
}

/// Returns the counters of this worker's lookups so far.
pub fn counters(worker: &mut Worker) -> LookupCounters {
    kv(worker).counters
}
