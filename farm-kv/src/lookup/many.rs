//! Lookups of many keys at once, where the processor itself performs reads. What a single lookup pays for each key (the epoch
//! guard, the state of the layer, a slot of the arena, entries in tables, a completion, a continuation) is paid for the
//! batch; each key costs its hash, the prefetch of its buckets, their checked copy, and the comparison.

use std::collections::VecDeque;

use farm_core::marks;
use farm_core::worker::{ReadRequest, Worker};

use super::{Step, Wanted, search_block, search_buckets};
use crate::KvError;
use crate::layout::{Found, Layout, Next};
use crate::pending::Buffers;
use crate::state::{Kv, LookupCounters};
use crate::table::TableId;

/// Number of keys after which other work of the worker should run.
const BEFORE_OTHERS: usize = 512;
/// Maximum number of overflow blocks that are followed for a key.
const MOST_BLOCKS: u32 = 8;

/// Looks up keys without waiting, as far as that is possible. `key` returns the key of an index below `count`. `found` receives
/// each index with the value, or `None` if the table has no such key.
///
/// Appends to `left` the indexes of all other keys: a device performs the reads, or a writer interferes, or a read fails.
/// [`get`](super::get) looks these up, or reports the error. What `found` has received for them does not count.
///
/// Each value is of a moment of its own.
///
/// Returns whether the caller should let other work of the worker run before it looks up more keys; one that waits for
/// nothing would otherwise keep the worker. Callers pass some hundred keys at a time.
///
/// # Errors
/// [`KvError::NotOpen`], [`KvError::KeyLength`].
#[inline]
pub fn get_many<K: AsRef<[u8]>>(
    worker: &mut Worker,
    table: TableId,
    count: usize,
    key: impl Fn(usize) -> K,
    found: impl FnMut(usize, Option<&[u8]>),
    left: &mut Vec<usize>,
) -> Result<bool, KvError> {
    let guard = worker.pin();
    // No continuation runs meanwhile.
    let mut state = worker.take_layer::<Kv>();
    let done = run(worker, &mut state, table, count, key, found, left);
    worker.put_layer(state);
    worker.unpin(guard);
    done
}

#[inline]
fn run<K: AsRef<[u8]>>(
    worker: &mut Worker,
    state: &mut Kv,
    table: TableId,
    count: usize,
    key: impl Fn(usize) -> K,
    found: impl FnMut(usize, Option<&[u8]>),
    left: &mut Vec<usize>,
) -> Result<bool, KvError> {
    let open = state.tables.open(table)?;
    for index in 0..count {
        open.check_key(key(index).as_ref())?;
    }
    let (me, left_before) = (worker.me().machine, left.len());
    let mut local = 0;
    let Buffers {
        follow,
        objects,
        value,
        keys,
    } = &mut state.buffers;
    objects.resize(open.layout.lookup_bytes() / 8, 0);
    follow.clear();
    let request = |index: usize| {
        let (shard, bucket) = open.locate(key(index).as_ref());
        local += u64::from(open.shards[shard as usize].owner.machine == me);
        open.buckets_request(shard, bucket)
    };
    let mut search = Search {
        layout: &open.layout,
        counters: &mut state.counters,
        follow,
        value,
        found,
        left,
    };
    let trusted = worker.read_many(count, request, objects, |index, again, words| {
        let block = match again {
            true => search.follow.pop_front(),
            false => None,
        };
        search.visit(index, key(index).as_ref(), block, words)
    });
    if !trusted {
        left.truncate(left_before);
        left.extend(0..count);
    }
    state.counters.local += local;
    state.counters.remote += count as u64 - local;
    *keys += count;
    let enough = *keys >= BEFORE_OTHERS;
    if enough {
        *keys = 0;
    }
    Ok(enough)
}

/// The lookups of a batch.
struct Search<'a, F> {
    layout: &'a Layout,
    counters: &'a mut LookupCounters,
    follow: &'a mut VecDeque<(Next, u32)>,
    value: &'a mut Vec<u8>,
    found: F,
    left: &'a mut Vec<usize>,
}

impl<F: FnMut(usize, Option<&[u8]>)> Search<'_, F> {
    /// Searches the buckets of a key, or an overflow block, which was read by a pointer after some other blocks. Returns the
    /// request for the next block, if the chain goes on.
    #[inline]
    fn visit(
        &mut self,
        index: usize,
        key: &[u8],
        block: Option<(Next, u32)>,
        words: Option<&[u64]>,
    ) -> Option<ReadRequest> {
        let Some(words) = words else {
            self.left.push(index);
            return None;
        };
        let bytes = bytemuck::cast_slice(words);
        let wanted = Wanted {
            key,
            block: block.map(|(next, _)| next),
        };
        let (step, blocks) = match block {
            None => (search_buckets(self.layout, wanted, bytes), 0),
            Some((_, before)) => (search_block(self.layout, wanted, bytes), before + 1),
        };
        match step {
            Step::Found(pair) => {
                self.counters.hits += 1;
                self.counters.reads_of_hits += 1 + u64::from(blocks);
                self.report(index, bytes, pair);
            }
            Step::Missing => {
                self.counters.misses += 1;
                self.counters.reads_of_misses += 1 + u64::from(blocks);
                (self.found)(index, None);
            }
            Step::Follow(next) if blocks < MOST_BLOCKS => {
                marks::mark("kv: block followed at once");
                self.follow.push_back((next, blocks));
                return Some(ReadRequest::object(next.address, self.layout.block_class));
            }
            Step::Follow(_) | Step::Restart => self.left.push(index),
        }
        None
    }

    /// Passes on a value that was found.
    #[inline]
    fn report(&mut self, index: usize, objects: &[u8], pair: Found) {
        match self.layout.short_value(objects, pair) {
            Some(value) => (self.found)(index, Some(&value[..self.layout.value_bytes])),
            None => {
                self.value.resize(self.layout.value_bytes, 0);
                self.layout.copy_value(objects, pair, self.value);
                (self.found)(index, Some(self.value));
            }
        }
    }
}
