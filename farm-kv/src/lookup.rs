//! Lookups: one lock-free read of two adjacent buckets, and seldom one of an overflow block.

use farm_core::fabric::Slot;
use farm_core::ids::WorkerRef;
use farm_core::object::Incarnation;
use farm_core::worker::{Cont, ReadRequest, ReadResult, Worker};

use crate::layout::Next;
use crate::state::{Kv, kv};
use crate::table::TableId;
use crate::{Key, KvError};

/// Times that a lookup begins again before it is given up.
const MAX_RESTARTS: u32 = 10_000;
/// Values up to this long go to their continuation by the stack.
const STACK_VALUE: usize = 64;

/// Called with the context and the value, or `None` if the table has no such key.
pub type GetFn = fn(&mut Worker, u64, Result<Option<&[u8]>, KvError>);

/// What to do with the value of a key.
#[derive(Clone, Copy)]
pub struct GetCont {
    run: GetFn,
    context: u64,
}

impl GetCont {
    /// The continuation that calls `run` with `context`.
    pub fn new(run: GetFn, context: u64) -> Self {
        Self { run, context }
    }

    fn resume(self, worker: &mut Worker, result: Result<Option<&[u8]>, KvError>) {
        (self.run)(worker, self.context, result);
    }
}

/// A lookup in flight.
pub(crate) struct Lookup {
    table: u16,
    shard: u32,
    bucket: u32,
    key: Key,
    reads: u32,
    restarts: u32,
    /// The overflow block that is being read.
    block: Option<Next>,
    cont: GetCont,
}

/// What a read showed.
enum Step {
    Found,
    Missing,
    Follow(Next),
    Restart,
}

/// Looks a key up. The continuation is called from the event loop, never before this returns.
///
/// # Errors
/// [`KvError::Busy`] when too many reads are in flight: nothing was started.
///
/// # Panics
/// If the table is not open on this worker.
#[inline]
pub fn get(worker: &mut Worker, table: TableId, key: &Key, cont: GetCont) -> Result<(), KvError> {
    let machine = worker.me().machine;
    let state = kv(worker);
    let open = state
        .tables
        .get(&table.0)
        .expect("the table is open on this worker");
    let (shard, bucket) = open.locate(key);
    let (address, bytes) = (
        open.bucket(shard, bucket),
        open.layout.bucket_bytes() as u32,
    );
    let local = open.shards[shard as usize].owner.machine == machine;
    state.counters.local += u64::from(local);
    state.counters.remote += u64::from(!local);
    let entry = Lookup {
        table: table.0,
        shard,
        bucket,
        key: *key,
        reads: 1,
        restarts: 0,
        block: None,
        cont,
    };
    let lookup = state.lookups.insert(entry);
    let request = ReadRequest {
        address,
        stride: bytes,
        bytes: 2 * bytes,
    };
    let posted = worker.read_lock_free(request, Cont::new(buckets_came, lookup as u64));
    posted.map_err(|error| {
        let state = kv(worker);
        state.lookups.remove(lookup);
        state.counters.local -= u64::from(local);
        state.counters.remote -= u64::from(!local);
        error.into()
    })
}

fn buckets_came(worker: &mut Worker, lookup: u64, result: ReadResult) {
    came(worker, lookup as usize, result, search_buckets);
}

fn block_came(worker: &mut Worker, lookup: u64, result: ReadResult) {
    came(worker, lookup as usize, result, search_block);
}

/// Searches what a read brought. The value, if it is there, goes to `value`.
type Search = fn(&Kv, &Lookup, &[u8], &mut [u8]) -> Step;

#[inline]
fn came(worker: &mut Worker, lookup: usize, result: ReadResult, search: Search) {
    let slot = match result {
        Ok(slot) => slot,
        Err(error) => return fail(worker, lookup, error.into()),
    };
    let (state, arena) = worker.layer_and_arena::<Kv>();
    let length = state.tables[&state.lookups[lookup].table]
        .layout
        .value_bytes;
    if length > STACK_VALUE {
        return long_came(worker, lookup, slot, search, length);
    }
    let mut value = [0; STACK_VALUE];
    let value = &mut value[..length];
    let bytes = bytemuck::cast_slice(arena.words(&slot));
    let step = search(state, &state.lookups[lookup], bytes, value);
    arena.give(slot);
    match step {
        Step::Found => {
            let cont = state.hit(lookup);
            cont.resume(worker, Ok(Some(value)));
        }
        other => go_on(worker, lookup, other),
    }
}

/// As [`came`], for values that the stack is not meant for.
fn long_came(worker: &mut Worker, lookup: usize, slot: Slot, search: Search, length: usize) {
    let (state, arena) = worker.layer_and_arena::<Kv>();
    let mut value = std::mem::take(&mut state.value);
    value.resize(length, 0);
    let bytes = bytemuck::cast_slice(arena.words(&slot));
    let step = search(state, &state.lookups[lookup], bytes, &mut value);
    arena.give(slot);
    match step {
        Step::Found => {
            let cont = state.hit(lookup);
            cont.resume(worker, Ok(Some(&value)));
        }
        other => go_on(worker, lookup, other),
    }
    kv(worker).value = value;
}

fn go_on(worker: &mut Worker, lookup: usize, step: Step) {
    match step {
        Step::Found | Step::Missing => miss(worker, lookup),
        Step::Follow(next) => follow(worker, lookup, next),
        Step::Restart => restart(worker, lookup),
    }
}

#[inline]
fn search_buckets(state: &Kv, lookup: &Lookup, bytes: &[u8], value: &mut [u8]) -> Step {
    let layout = &state.tables[&lookup.table].layout;
    let (home, next) = bytes[..2 * layout.bucket_bytes()].split_at(layout.bucket_bytes());
    let (home_meta, next_meta) = (layout.meta_in_object(home), layout.meta_in_object(next));
    if home_meta.forward != next_meta.backward {
        return Step::Restart;
    }
    for (object, wanted) in [
        (home, home_meta.occupied & home_meta.native),
        (next, next_meta.occupied & !next_meta.native),
    ] {
        if let Some(slot) = layout.find_in_object(object, wanted, &lookup.key) {
            layout.value_in_object(object, slot, value);
            return Step::Found;
        }
    }
    layout
        .next_in_bucket(home)
        .map_or(Step::Missing, Step::Follow)
}

fn search_block(state: &Kv, lookup: &Lookup, bytes: &[u8], value: &mut [u8]) -> Step {
    let layout = &state.tables[&lookup.table].layout;
    let object = &bytes[..layout.block_bytes()];
    let incarnation = Incarnation(u64::from_le_bytes(
        object[8..16].try_into().expect("a word"),
    ));
    if !lookup.block.is_some_and(|meant| meant.names(incarnation)) {
        return Step::Restart;
    }
    let (next, occupied) = layout.next_in_block(object);
    match layout.find_in_object(object, occupied, &lookup.key) {
        Some(slot) => {
            layout.value_in_object(object, slot, value);
            Step::Found
        }
        None => next.map_or(Step::Missing, Step::Follow),
    }
}

#[cold]
fn follow(worker: &mut Worker, lookup: usize, next: Next) {
    let state = kv(worker);
    let entry = &mut state.lookups[lookup];
    entry.block = Some(next);
    entry.reads += 1;
    let bytes = state.tables[&entry.table].layout.block_bytes() as u32;
    let request = ReadRequest {
        address: next.address,
        stride: bytes,
        bytes,
    };
    post(worker, lookup, request, block_came);
}

#[cold]
fn restart(worker: &mut Worker, lookup: usize) {
    let state = kv(worker);
    state.counters.restarts += 1;
    let entry = &mut state.lookups[lookup];
    entry.reads += 1;
    entry.restarts += 1;
    if entry.restarts > MAX_RESTARTS {
        return fail(worker, lookup, KvError::Conflict);
    }
    let table = &state.tables[&entry.table];
    let bytes = table.layout.bucket_bytes() as u32;
    let request = ReadRequest {
        address: table.bucket(entry.shard, entry.bucket),
        stride: bytes,
        bytes: 2 * bytes,
    };
    post(worker, lookup, request, buckets_came);
}

/// A further read of a lookup. It gave a slot back just now, so there is one.
fn post(
    worker: &mut Worker,
    lookup: usize,
    request: ReadRequest,
    came: fn(&mut Worker, u64, ReadResult),
) {
    if let Err(error) = worker.read_lock_free(request, Cont::new(came, lookup as u64)) {
        fail(worker, lookup, error.into());
    }
}

impl Kv {
    /// Ends a lookup that found its key.
    #[inline]
    fn hit(&mut self, lookup: usize) -> GetCont {
        let entry = self.lookups.remove(lookup);
        self.counters.hits += 1;
        self.counters.reads_of_hits += u64::from(entry.reads);
        entry.cont
    }
}

fn miss(worker: &mut Worker, lookup: usize) {
    let state = kv(worker);
    let entry = state.lookups.remove(lookup);
    state.counters.misses += 1;
    state.counters.reads_of_misses += u64::from(entry.reads);
    entry.cont.resume(worker, Ok(None));
}

#[cold]
fn fail(worker: &mut Worker, lookup: usize, error: KvError) {
    let entry = kv(worker).lookups.remove(lookup);
    entry.cont.resume(worker, Err(error));
}

/// The worker that owns the shard of a key.
///
/// # Panics
/// If the table is not open on this worker.
#[inline]
pub fn owner_of(worker: &mut Worker, table: TableId, key: &Key) -> WorkerRef {
    let open = kv(worker)
        .tables
        .get(&table.0)
        .expect("the table is open on this worker");
    open.shards[open.locate(key).0 as usize].owner
}

#[cfg(test)]
mod tests;
