//! What the hashtable keeps with each worker.

use std::collections::VecDeque;

use farm_core::worker::Worker;
use slab::Slab;

use crate::KvError;
use crate::lookup::Lookup;
use crate::ops::Pending;
use crate::owner::{ChangeCounters, ChangeQueue};
use crate::shard::Delta;
use crate::table::{Initialising, OpenCont, Table, TableId};
use crate::tx::Under;

/// Lookups counted, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounters {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Reads of objects by hits, local ones included; restarts by the table are, tries of one read
    /// are not.
    pub reads_of_hits: u64,
    /// Reads by misses.
    pub reads_of_misses: u64,
    /// Lookups begun again: joint versions differed, or a block was not the one that was meant.
    pub restarts: u64,
    /// Lookups whose shard is on this machine.
    pub local: u64,
    /// Lookups whose shard is on another one.
    pub remote: u64,
}

/// Open tables, by their numbers.
#[derive(Default)]
pub(crate) struct Tables(Vec<Option<Box<Table>>>);

impl Tables {
    /// A table whose opening has begun: its shards may not be there yet.
    #[inline]
    pub(crate) fn get(&self, id: &u16) -> Option<&Table> {
        self.0.get(usize::from(*id))?.as_deref()
    }

    /// A table that was opened, with all of its shards.
    ///
    /// # Errors
    /// [`KvError::NotOpen`].
    #[inline]
    pub(crate) fn open(&self, id: TableId) -> Result<&Table, KvError> {
        match self.get(&id.0) {
            Some(table) if table.is_open() => Ok(table),
            _ => Err(KvError::NotOpen(id.0)),
        }
    }

    pub(crate) fn get_mut(&mut self, id: &u16) -> Option<&mut Table> {
        self.0.get_mut(usize::from(*id))?.as_deref_mut()
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

    /// The table of an operation that has begun. Tables are never closed.
    #[inline]
    fn index(&self, id: &u16) -> &Table {
        self.get(id)
            .expect("an operation begins on an open table only")
    }
}

/// State of the layer on one worker.
pub(crate) struct Kv {
    pub(crate) tables: Tables,
    /// By the slot that each has.
    pub(crate) lookups: Vec<Option<Lookup>>,
    pub(crate) changes: Slab<Pending>,
    /// Changes that wait for room in the rings.
    pub(crate) waiting: VecDeque<usize>,
    /// Changes to this worker's shards that have not ended.
    pub(crate) owner: ChangeQueue,
    pub(crate) change_counters: ChangeCounters,
    /// Operations inside transactions.
    pub(crate) in_tx: Slab<Under>,
    /// How transactions of this worker moved the counts of others' shards.
    pub(crate) untold: Vec<(TableId, u32, Delta)>,
    pub(crate) initialising: Vec<Initialising>,
    /// Openings that have ended and whose continuations are to be called, in their order.
    pub(crate) ended_opens: VecDeque<(OpenCont, Result<TableId, KvError>)>,
    /// Message bodies that keep their capacity.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// A value longer than fits the stack, on its way to a continuation.
    pub(crate) value: Vec<u8>,
    pub(crate) counters: LookupCounters,
}

/// Attaches the hashtable to a worker, on top of [`farm_txn::attach`].
pub fn attach(worker: &mut Worker) {
    let slots = worker.arena().slots();
    worker.put_layer(Box::new(Kv {
        tables: Tables::default(),
        lookups: (0..slots).map(|_| None).collect(),
        changes: Slab::with_capacity(1024),
        waiting: VecDeque::with_capacity(1024),
        owner: ChangeQueue::default(),
        change_counters: ChangeCounters::default(),
        in_tx: Slab::new(),
        untold: Vec::new(),
        initialising: Vec::new(),
        ended_opens: VecDeque::new(),
        bodies: Vec::with_capacity(1024),
        value: Vec::new(),
        counters: LookupCounters::default(),
    }));
    worker.register(crate::table::SHARD, crate::table::answer);
    worker.register(crate::ops::CHANGE, crate::owner::handle);
    worker.register(crate::tx::COUNTS, crate::tx::hear);
}

#[inline]
pub(crate) fn kv(worker: &mut Worker) -> &mut Kv {
    worker
        .layer()
        .expect("farm_kv::attach was called for this worker")
}

/// Lookups of this worker so far.
pub fn counters(worker: &mut Worker) -> LookupCounters {
    kv(worker).counters
}
