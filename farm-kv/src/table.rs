//! Tables: how keys map to shards and buckets, where the shards are, and opening a table on a worker.

use std::time::Duration;

use farm_core::alloc::ArrayRun;
use farm_core::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{payload_capacity, write};
use farm_core::region::placement::Placement;
use farm_core::worker::{Cont, ReadRequest, Worker};
use xxhash_rust::xxh3::xxh3_64;

use crate::layout::Layout;
use crate::shard::Delta;
use crate::state::{Kv, kv};
use crate::{Key, KvError};

/// Asks the owner of a shard where it is.
pub(crate) const SHARD: MessageId = MessageId(MessageId::KV);
/// Bytes of the question: table, shard, and digest of what the table is.
const ASK_BYTES: usize = 14;
/// The answer of an owner that has opened another table by that number.
const ANOTHER_TABLE: u8 = 1;
/// A worker asks again this often while an owner is still making its shards.
const ASK_AGAIN: Duration = Duration::from_micros(200);
/// Buckets initialised in one turn.
const INIT_STEP: u32 = 4096;

/// What a table is. Every worker of the cluster opens it with the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableSpec {
    /// Its number in the cluster.
    pub id: u16,
    /// H, one of [`crate::layout::NEIGHBOURHOODS`].
    pub neighbourhood: u32,
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Shards in all.
    pub shards: u32,
    /// Buckets of a shard, the spare one not counted.
    pub buckets: u32,
}

impl TableSpec {
    /// A table in which `pairs` pairs fill `occupancy` of the slots, in `shards` shards.
    ///
    /// # Errors
    /// [`KvError::Spec`] when no such table is possible.
    pub fn sized(
        id: u16,
        neighbourhood: u32,
        value_bytes: usize,
        shards: u32,
        pairs: u64,
        occupancy: f64,
    ) -> Result<Self, KvError> {
        Layout::new(neighbourhood, value_bytes)?;
        if shards == 0 || pairs == 0 || !(occupancy > 0.0 && occupancy <= 1.0) {
            let why = format!(
                "{shards} shards for {pairs} pairs at occupancy {occupancy}: want at least one of each and an occupancy in (0, 1]"
            );
            return Err(KvError::Spec(why));
        }
        let slots = pairs as f64 / occupancy / f64::from(shards);
        let buckets = (slots / f64::from(neighbourhood / 2)).round().max(1.0);
        if buckets >= f64::from(u32::MAX - 1) {
            return Err(KvError::Spec(format!(
                "{pairs} pairs in {shards} shards: a shard is too large"
            )));
        }
        Ok(Self {
            id,
            neighbourhood,
            value_bytes,
            shards,
            buckets: buckets as u32,
        })
    }

    /// Tells tables apart that are not opened the same everywhere.
    fn digest(&self) -> u64 {
        let words = [
            u64::from(self.neighbourhood),
            self.value_bytes as u64,
            u64::from(self.shards),
            u64::from(self.buckets),
        ];
        xxh3_64(bytemuck::cast_slice(&words.map(u64::to_le)))
    }

    /// Slots in the buckets of all shards.
    pub fn slots(&self) -> u64 {
        u64::from(self.shards) * u64::from(self.buckets) * u64::from(self.neighbourhood / 2)
    }
}

/// An open table, as the workers that opened it name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId(pub(crate) u16);

/// A shard, as a worker knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard {
    pub(crate) owner: WorkerRef,
    /// Its first bucket; null until the owner has made it.
    pub(crate) first: Address,
    /// Pairs and overflow blocks; known to the owner alone.
    pub(crate) pairs: u64,
    pub(crate) blocks: u64,
}

impl Shard {
    /// Counts what a committed change did.
    pub(crate) fn add(&mut self, delta: Delta) {
        self.pairs = self.pairs.wrapping_add_signed(delta.pairs);
        self.blocks = self.blocks.wrapping_add_signed(delta.blocks);
    }
}

/// Called with the table when it can be used, or with why it cannot be.
pub(crate) type OpenCont = Cont<Result<TableId, KvError>>;

/// A table on one worker.
pub(crate) struct Table {
    pub(crate) spec: TableSpec,
    pub(crate) layout: Layout,
    pub(crate) shards: Vec<Shard>,
    /// Shards whose place is not known yet.
    missing: u32,
    failed: Option<KvError>,
    /// Callers of [`open`] that wait for the missing shards.
    waiting: Vec<OpenCont>,
}

impl Table {
    /// Whether it can be used: all of its shards are there.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.missing == 0
    }

    /// The shard and the bucket of a key: equal slices of the hash space, and of each shard's.
    #[inline]
    pub(crate) fn locate(&self, key: &Key) -> (u32, u32) {
        locate(key, &self.spec)
    }

    /// The read of a bucket and the one after it.
    #[inline]
    pub(crate) fn buckets_request(&self, shard: u32, bucket: u32) -> ReadRequest {
        ReadRequest::objects(self.bucket(shard, bucket), self.layout.bucket_class, 2)
    }

    /// The address of a bucket.
    #[inline]
    pub(crate) fn bucket(&self, shard: u32, bucket: u32) -> Address {
        let first = self.shards[shard as usize].first;
        Address::new(
            first.region(),
            first.offset() + bucket * self.layout.bucket_bytes() as u32,
        )
    }
}

/// The shard and the bucket of a key in a table.
#[inline]
pub(crate) fn locate(key: &Key, spec: &TableSpec) -> (u32, u32) {
    let wide = u128::from(xxh3_64(key)) * u128::from(spec.shards);
    let bucket = u128::from(wide as u64) * u128::from(spec.buckets);
    ((wide >> 64) as u32, (bucket >> 64) as u32)
}

/// Who owns each shard: consistent hashing chooses the machine, no machine getting more than its
/// part by more than one, and the workers of a machine take turns.
pub(crate) fn owners(
    placement: &Placement,
    machines: &[(MachineId, usize)],
    shards: u32,
) -> Vec<WorkerRef> {
    let workers: usize = machines.iter().map(|machine| machine.1).sum();
    let mut taken: Vec<usize> = vec![0; machines.len()];
    let part = |index: usize| (shards as usize * machines[index].1).div_ceil(workers);
    (0..shards)
        .map(|shard| {
            let hash = xxh3_64(&shard.to_le_bytes());
            let position = (hash >> 32) as u32 & RegionId::MAX_POSITION;
            let point =
                RegionId::new((hash % 100) as u32, position.max(1)).expect("a ring and a position");
            let index = placement
                .replicas(point, machines.len())
                .filter_map(|machine| machines.iter().position(|entry| entry.0 == machine))
                .find(|index| taken[*index] < part(*index))
                .expect("the parts add up to all shards");
            let worker = taken[index] % machines[index].1;
            taken[index] += 1;
            let worker =
                WorkerId::new(worker as u16).expect("the configuration bounds the workers");
            WorkerRef::new(machines[index].0, worker)
        })
        .collect()
}

/// Opens a table on a worker: makes the shards that the worker owns, and learns where the others
/// are. Every worker of the cluster has to open it; the continuation is called from the event loop, when
/// this one can reach all shards.
///
/// A table that this worker has opened before is not opened again: the continuation gets the same
/// [`TableId`], or the error that the first opening ended with.
///
/// The continuation gets [`KvError::Spec`] if no such table is possible, or if the number is that of a table
/// with another specification; [`KvError::Memory`] if a machine has no memory for its shards;
/// [`KvError::PeerLost`].
pub fn open(worker: &mut Worker, spec: TableSpec, cont: Cont<Result<TableId, KvError>>) {
    if kv(worker).tables.get(&spec.id).is_some() {
        return open_again(worker, spec, cont);
    }
    let layout = match possible(worker, &spec) {
        Ok(layout) => layout,
        Err(error) => return end_open(worker, cont, Err(error)),
    };
    let machines = worker.machines().to_vec();
    let owners = owners(worker.store().placement(), &machines, spec.shards);
    let shards = owners.into_iter().map(|owner| Shard {
        owner,
        first: Address::NULL,
        pairs: 0,
        blocks: 0,
    });
    let shards: Vec<Shard> = shards.collect();
    let table = Table {
        spec,
        layout,
        missing: shards.len() as u32,
        shards,
        failed: None,
        waiting: vec![cont],
    };
    let me = worker.me();
    let own: Vec<u32> = (0..spec.shards)
        .filter(|s| table.shards[*s as usize].owner == me)
        .collect();
    kv(worker).tables.insert(spec.id, table);
    crate::ops::make_bodies(worker, &layout);
    for shard in 0..spec.shards {
        if own.binary_search(&shard).is_err() {
            ask(worker, context(spec.id, shard), ());
        }
    }
    for shard in own {
        if let Err(error) = make(worker, spec, layout, shard) {
            fail(worker, spec.id, error);
        }
    }
}

/// The layout of a table that this worker can open.
fn possible(worker: &mut Worker, spec: &TableSpec) -> Result<Layout, KvError> {
    let layout = Layout::new(spec.neighbourhood, spec.value_bytes)?;
    let (shards, buckets) = (spec.shards, spec.buckets);
    let bucket_bytes = layout.bucket_bytes();
    let shard_bytes = (u64::from(buckets) + 1) * bucket_bytes as u64;
    let read_bytes = worker.arena().largest();
    let why = if shards == 0 || buckets == 0 {
        format!("{shards} shards of {buckets} buckets: want at least one of each")
    } else if shard_bytes > u64::from(u32::MAX) {
        format!("a shard of {shard_bytes} bytes is larger than any region; use more shards")
    } else if layout.lookup_bytes() > read_bytes {
        format!(
            "buckets of {bucket_bytes} bytes make a lookup read {} bytes, more than the {read_bytes} \
             that one read brings; use smaller values or a smaller neighbourhood",
            layout.lookup_bytes()
        )
    } else {
        return Ok(layout);
    };
    Err(KvError::Spec(why))
}

/// Opens a table that was opened before, or is being opened.
fn open_again(worker: &mut Worker, spec: TableSpec, cont: OpenCont) {
    let Some(table) = kv(worker).tables.get_mut(&spec.id) else {
        return;
    };
    let outcome = if table.spec != spec {
        let why = format!(
            "table {} is open with another specification ({:?}, not {spec:?}); give this one another number",
            spec.id, table.spec
        );
        Err(KvError::Spec(why))
    } else if let Some(error) = &table.failed {
        Err(error.clone())
    } else if table.is_open() {
        Ok(TableId(spec.id))
    } else {
        return table.waiting.push(cont);
    };
    end_open(worker, cont, outcome);
}

/// Has the event loop call the continuation of an opening that has ended.
fn end_open(worker: &mut Worker, cont: OpenCont, outcome: Result<TableId, KvError>) {
    kv(worker).ended_opens.push_back((cont, outcome));
    worker.defer(Cont::new(resume_open, 0));
}

fn resume_open(worker: &mut Worker, _: u64, (): ()) {
    if let Some((cont, outcome)) = kv(worker).ended_opens.pop_front() {
        cont.resume(worker, outcome);
    }
}

fn context(table: u16, shard: u32) -> u64 {
    u64::from(table) << 32 | u64::from(shard)
}

fn make(worker: &mut Worker, spec: TableSpec, layout: Layout, shard: u32) -> Result<(), KvError> {
    let machine = worker.me().machine;
    let run = worker
        .reserve_array(layout.bucket_class, spec.buckets + 1, None)
        .map_err(|error| KvError::Memory {
            machine,
            why: error.to_string(),
        })?;
    let state = kv(worker);
    state.initialising.push(Initialising {
        table: spec.id,
        shard,
        buckets: run,
        next: 0,
    });
    worker.defer(Cont::new(initialise, 0));
    Ok(())
}

/// A shard whose buckets are being marked as allocated.
pub(crate) struct Initialising {
    table: u16,
    shard: u32,
    buckets: ArrayRun,
    next: u32,
}

/// Some buckets of the shard that is being made; the event loop goes on in between.
fn initialise(worker: &mut Worker, _: u64, (): ()) {
    let Some(mut work) = kv(worker).initialising.pop() else {
        return;
    };
    let Some(table) = kv(worker).tables.get(&work.table) else {
        return;
    };
    let (bytes, buckets) = (table.layout.bucket_bytes(), table.spec.buckets + 1);
    let until = buckets.min(work.next + INIT_STEP);
    let empty = vec![0; payload_capacity(bytes)];
    let first = work.buckets.first();
    let (memory, at) = worker
        .local_memory(first)
        .expect("the shard was allocated here");
    for bucket in work.next..until {
        let room = work.buckets.begin(bucket);
        // New memory is zero; that of freed objects of the same class is not.
        let payload = if room.is_new { &[] } else { &empty[..] };
        let (version, born) = (room.version.next(), room.incarnation.allocated());
        let at = at + bucket as usize * bytes;
        write::install_new(memory, at, bytes, version, born, payload);
    }
    work.next = until;
    if until < buckets {
        kv(worker).initialising.push(work);
        return worker.defer(Cont::new(initialise, 0));
    }
    found(worker, work.table, work.shard, first);
}

fn ask(worker: &mut Worker, context: u64, (): ()) {
    let (id, shard) = ((context >> 32) as u16, context as u32);
    let Some(table) = kv(worker).tables.get(&id) else {
        return;
    };
    let owner = table.shards[shard as usize].owner;
    let mut body = [0; ASK_BYTES];
    body[..2].copy_from_slice(&id.to_le_bytes());
    body[2..6].copy_from_slice(&shard.to_le_bytes());
    body[6..].copy_from_slice(&table.spec.digest().to_le_bytes());
    match worker.call(owner, SHARD, &[&body], 8, ReplyCont::new(told, context)) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, context)),
        Err(_) => fail(worker, id, KvError::PeerLost(owner.machine)),
    }
}

fn told(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (id, shard) = ((context >> 32) as u16, context as u32);
    let owner = match kv(worker).tables.get(&id) {
        Some(table) => table.shards[shard as usize].owner,
        None => return,
    };
    if let Ok([ANOTHER_TABLE]) = reply {
        let why = format!("worker {owner} has opened another table as table {id}");
        return fail(worker, id, KvError::Spec(why));
    }
    match reply.map(|bytes| bytes.try_into().map(u64::from_le_bytes)) {
        Ok(Ok(bits)) => match Address::from_bits(bits) {
            Some(first) if !first.is_null() => found(worker, id, shard, first),
            _ => worker.set_timer(ASK_AGAIN, Cont::new(ask, context)),
        },
        Ok(Err(_)) => fail(
            worker,
            id,
            KvError::Memory {
                machine: owner.machine,
                why: "it could not make a shard, and its log says why".into(),
            },
        ),
        Err(_) => fail(worker, id, KvError::PeerLost(owner.machine)),
    }
}

/// Answers where a shard is: its address, null while it is not there yet, nothing if it will not be.
pub(crate) fn answer(worker: &mut Worker, request: Request, body: &[u8]) {
    let asked = <[u8; ASK_BYTES]>::try_from(body).ok().map(|bytes| {
        let id = u16::from_le_bytes([bytes[0], bytes[1]]);
        let shard = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        let digest = u64::from_le_bytes(bytes[6..].try_into().expect("a word"));
        (id, shard, digest)
    });
    let me = worker.me().machine;
    let state: &mut Kv = kv(worker);
    let table = asked.and_then(|(id, ..)| state.tables.get(&id));
    let (Some((_, shard, digest)), Some(table)) = (asked, table) else {
        return worker.reply(request, &[&Address::NULL.to_bits().to_le_bytes()]);
    };
    if table.spec.digest() != digest {
        return worker.reply(request, &[&[ANOTHER_TABLE]]);
    }
    // Any other failure is not of this machine's shards; the asker finds out about it by itself.
    if let Some(KvError::Memory { machine, .. }) = table.failed
        && machine == me
    {
        return worker.reply(request, &[]);
    }
    let shard = table.shards.get(shard as usize);
    let first = shard.map_or(Address::NULL, |shard| shard.first);
    worker.reply(request, &[&first.to_bits().to_le_bytes()]);
}

fn found(worker: &mut Worker, id: u16, shard: u32, first: Address) {
    let Some(table) = kv(worker).tables.get_mut(&id) else {
        return;
    };
    table.shards[shard as usize].first = first;
    table.missing -= 1;
    if table.is_open() {
        for cont in std::mem::take(&mut table.waiting) {
            cont.resume(worker, Ok(TableId(id)));
        }
    }
}

fn fail(worker: &mut Worker, id: u16, error: KvError) {
    let Some(table) = kv(worker).tables.get_mut(&id) else {
        return;
    };
    table.failed.get_or_insert(error.clone());
    for cont in std::mem::take(&mut table.waiting) {
        end_open(worker, cont, Err(error.clone()));
    }
}

#[cfg(test)]
mod tests;
