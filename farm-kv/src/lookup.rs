//! Lookups: one lock-free read of two adjacent buckets, and rarely one read of an overflow block.

mod many;

use farm_core::fabric::Slot;
use farm_core::object::Incarnation;
use farm_core::worker::{Cont, ReadRequest, ReadResult, Worker};
use farm_core::{marks, mutants};

use crate::layout::{Found, Layout, Next, candidates};
pub use crate::pending::Place;
use crate::pending::{End, GetCont, Lookup};
use crate::state::{Kv, LookupCounters, kv};
use crate::table::{Table, TableId};
use crate::{KEY_BYTES, Key, KvError};
pub use many::get_many;

/// Number of restarts after which a lookup fails.
const MAX_RESTARTS: u32 = 10_000;
/// Number of reads after which a lookup fails: a chain in another machine's memory may contain a cycle.
const MAX_READS: u32 = 10 * MAX_RESTARTS;

/// What a lookup searches.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    key: &'a [u8],
    /// The pointer by which a block was read.
    block: Option<Next>,
}

/// What a lookup does after a read.
enum Step {
    Found(Found),
    Missing,
    Follow(Next),
    Restart,
}

/// Looks up a key. The continuation is called from the event loop, never before this function returns.
///
/// # Errors
/// [`KvError::NotOpen`], [`KvError::KeyLength`]; [`KvError::Busy`] if too many reads are in flight. Nothing was started.
#[inline]
pub fn get(worker: &mut Worker, table: TableId, key: &[u8], cont: GetCont) -> Result<(), KvError> {
    begin(worker, table, key, cont, |open| Place::of(open, table, key))
}

/// As [`get`], for a key whose place is already known.
///
/// # Errors
/// As [`get`].
#[inline]
pub fn get_at(worker: &mut Worker, place: Place, key: &[u8], cont: GetCont) -> Result<(), KvError> {
    begin(worker, place.table, key, cont, |_| place)
}

// Always inlined, as are the functions of a worker that start its read: as calls they cost a lookup 76 instructions
// more, because their arguments pass through memory.
#[inline(always)]
fn begin(
    worker: &mut Worker,
    table: TableId,
    key: &[u8],
    cont: GetCont,
    place: impl FnOnce(&Table) -> Place,
) -> Result<(), KvError> {
    let machine = worker.me().machine;
    let guard = worker.pin();
    let (state, arena) = worker.layer_and_arena::<Kv>();
    let open = state.tables.open(table);
    let open = match open.and_then(|open| open.check_key(key).map(|()| open)) {
        Ok(open) => open,
        Err(error) => {
            worker.unpin(guard);
            return Err(error);
        }
    };
    let Some(slot) = arena.take(open.layout.lookup_bytes()) else {
        marks::mark("read: arena full");
        worker.unpin(guard);
        return Err(KvError::Busy);
    };
    let place = place(open);
    let request = open.buckets_request(place.shard(), place.bucket());
    let local = open.shards[place.shard() as usize].owner.machine == machine;
    state.counters.local += u64::from(local);
    state.counters.remote += u64::from(!local);
    let lookup = slot.index();
    if key.len() > KEY_BYTES {
        state.long_keys[lookup][..key.len()].copy_from_slice(key);
    }
    state.lookups[lookup] = Some(Lookup {
        place,
        key: first_of(key),
        reads: 1,
        restarts: 0,
        block: None,
        guard: Some(guard),
        cont,
    });
    worker.read_within(slot, request, Cont::new(buckets_came, lookup as u64));
    Ok(())
}

/// Returns the first bytes of a key, followed by zeros if it is shorter.
#[inline(always)]
fn first_of(key: &[u8]) -> Key {
    if let Some(first) = key.first_chunk() {
        return *first;
    }
    let mut first = [0; KEY_BYTES];
    first[..key.len()].copy_from_slice(key);
    first
}

/// Calls the continuation when there is room for a lookup in a table, after [`get`] returned [`KvError::Busy`]. Waiting
/// lookups start in order, and before any lookup that did not wait.
///
/// # Panics
/// If the table is not open on this worker.
pub fn when_slot(worker: &mut Worker, table: TableId, cont: Cont<()>) {
    let bytes = kv(worker).tables[&table.0].layout.lookup_bytes();
    worker.when_slot(bytes, cont);
}

#[inline]
fn buckets_came(worker: &mut Worker, lookup: u64, result: ReadResult) {
    came(worker, lookup as usize, result, search_buckets);
}

fn block_came(worker: &mut Worker, lookup: u64, result: ReadResult) {
    came(worker, lookup as usize, result, search_block);
}

/// Handles a read of a lookup; `search` examines the bytes that were read.
#[inline(always)]
fn came(
    worker: &mut Worker,
    lookup: usize,
    result: ReadResult,
    search: impl Fn(&Layout, Wanted<'_>, &[u8]) -> Step,
) {
    let (state, arena) = worker.layer_and_arena::<Kv>();
    let entry = state.lookups[lookup]
        .as_mut()
        .expect("the slot of a lookup in flight has an entry in the table of lookups");
    let slot = match result {
        Ok(slot) => slot,
        // The read has returned the slot to the arena. No other lookup takes the slot before this lookup's continuation
        // is called, so the entry still belongs to this lookup.
        Err(error) => {
            let end = entry.end();
            return end.resume(worker, Err(&error.into()));
        }
    };
    let layout = &state.tables[&entry.place.table.0].layout;
    let bytes = bytemuck::cast_slice(arena.words(&slot));
    let block = entry.block;
    let step = match layout.key_bytes {
        // The compiler knows the length of the key here.
        KEY_BYTES => {
            let key = &entry.key[..];
            search(layout, Wanted { key, block }, bytes)
        }
        length => {
            let key = match length {
                ..KEY_BYTES => &entry.key[..length],
                _ => &state.long_keys[lookup][..length],
            };
            search(layout, Wanted { key, block }, bytes)
        }
    };
    match step {
        Step::Found(pair) => {
            let Some(value) = layout.short_value(bytes, pair) else {
                return long_found(worker, slot, pair);
            };
            let length = layout.value_bytes;
            let end = state.counters.hit(entry);
            arena.give(slot);
            end.resume(worker, Ok(Some(&value[..length])));
        }
        Step::Missing => miss(worker, slot),
        Step::Follow(next) => follow(worker, slot, next),
        Step::Restart => restart(worker, slot),
    }
}

/// Handles a value that was found and is too long for the stack.
fn long_found(worker: &mut Worker, slot: Slot, pair: Found) {
    let (state, arena) = worker.layer_and_arena::<Kv>();
    let entry = state.lookups[slot.index()].as_mut();
    let entry = entry.expect("the slot of a lookup in flight has an entry in the table of lookups");
    let layout = &state.tables[&entry.place.table.0].layout;
    let mut value = std::mem::take(&mut state.value);
    value.resize(layout.value_bytes, 0);
    layout.copy_value(bytemuck::cast_slice(arena.words(&slot)), pair, &mut value);
    let end = state.counters.hit(entry);
    arena.give(slot);
    end.resume(worker, Ok(Some(&value)));
    kv(worker).value = value;
}

#[inline]
fn search_buckets(layout: &Layout, lookup: Wanted<'_>, bytes: &[u8]) -> Step {
    let stride = layout.bucket_bytes();
    let both = &bytes[..2 * stride];
    let (home, next) = both.split_at(stride);
    let (home_meta, next_meta) = (layout.meta_of_bucket(home), layout.meta_of_bucket(next));
    if home_meta.forward != next_meta.backward && !mutants::is_on("lookup ignores joint versions") {
        marks::mark("kv: lookup restarted: joint version");
        return Step::Restart;
    }
    let wanted = candidates(home_meta, next_meta);
    match layout.find(both, stride, wanted, lookup.key) {
        Some(pair) => Step::Found(pair),
        None => layout
            .next_of_bucket(home)
            .map_or(Step::Missing, Step::Follow),
    }
}

fn search_block(layout: &Layout, lookup: Wanted<'_>, bytes: &[u8]) -> Step {
    let object = &bytes[..layout.block_bytes()];
    let incarnation = Incarnation(u64::from_le_bytes(
        object[8..16]
            .try_into()
            .expect("the header of an object has two words"),
    ));
    let meant = lookup.block.is_some_and(|block| block.names(incarnation));
    if !meant && !mutants::is_on("lookup ignores incarnations") {
        marks::mark("kv: lookup restarted: block gone");
        return Step::Restart;
    }
    let (next, occupied) = layout.next_of_block(object);
    match layout.find(object, object.len(), occupied.into(), lookup.key) {
        Some(pair) => Step::Found(pair),
        None => next.map_or(Step::Missing, Step::Follow),
    }
}

#[cold]
fn follow(worker: &mut Worker, slot: Slot, next: Next) {
    marks::mark("kv: block followed");
    let state = kv(worker);
    let entry = state.lookup(&slot);
    entry.block = Some(next);
    entry.reads += 1;
    if entry.reads > MAX_READS {
        return give_up(worker, slot);
    }
    let table = entry.place.table;
    let class = state.tables[&table.0].layout.block_class;
    let request = ReadRequest::object(next.address, class);
    let cont = Cont::new(block_came, slot.index() as u64);
    worker.read_within(slot, request, cont);
}

#[cold]
fn restart(worker: &mut Worker, slot: Slot) {
    let state = kv(worker);
    state.counters.restarts += 1;
    let entry = state.lookup(&slot);
    entry.reads += 1;
    entry.restarts += 1;
    if entry.restarts > MAX_RESTARTS {
        return give_up(worker, slot);
    }
    let place = entry.place;
    let table = &state.tables[&place.table.0];
    let request = table.buckets_request(place.shard(), place.bucket());
    let cont = Cont::new(buckets_came, slot.index() as u64);
    worker.read_within(slot, request, cont);
}

fn give_up(worker: &mut Worker, slot: Slot) {
    let end = kv(worker).lookup(&slot).end();
    worker.arena().give(slot);
    end.resume(worker, Err(&KvError::Conflict));
}

fn miss(worker: &mut Worker, slot: Slot) {
    let state = kv(worker);
    let entry = state.lookup(&slot);
    let end = entry.end();
    let reads = u64::from(entry.reads);
    state.counters.misses += 1;
    state.counters.reads_of_misses += reads;
    worker.arena().give(slot);
    end.resume(worker, Ok(None));
}

impl Kv {
    /// Returns the lookup that uses a slot.
    fn lookup(&mut self, slot: &Slot) -> &mut Lookup {
        self.lookups[slot.index()]
            .as_mut()
            .expect("the slot of a lookup in flight has an entry in the table of lookups")
    }
}

impl LookupCounters {
    /// Counts a lookup that found its key.
    #[inline]
    fn hit(&mut self, lookup: &mut Lookup) -> End {
        self.hits += 1;
        self.reads_of_hits += u64::from(lookup.reads);
        lookup.end()
    }
}

/// Returns the place of a key.
///
/// # Errors
/// [`KvError::NotOpen`].
#[inline]
pub fn place_of(worker: &mut Worker, table: TableId, key: &[u8]) -> Result<Place, KvError> {
    Ok(Place::of(kv(worker).tables.open(table)?, table, key))
}

#[cfg(test)]
mod tests;
