//! Opens tables on a worker.

use std::time::Duration;

use farm_core::ids::Address;
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{payload_capacity, write};
use farm_core::region::map::Unrecorded;
use farm_core::worker::{Cont, Worker};
use farm_txn::TxError;
use farm_txn::arrays::create_reserved;

use crate::KvError;
use crate::layout::Layout;
use crate::state::{Kv, kv};
use crate::table::{
    Initialising, Made, OpenCont, SPEC_BYTES, Shard, Table, TableId, TableSpec, owners,
};

/// Message id of the request for the location of a shard, sent to the shard's owner.
pub(crate) const SHARD: MessageId = MessageId(MessageId::KV);
/// Bytes of the request: the shard, and the table's specification.
const ASK_BYTES: usize = 4 + SPEC_BYTES;
/// Reply of an owner that has opened another table with this number.
const ANOTHER_TABLE: u8 = 1;
/// Reply of an owner that cannot open the table.
const IMPOSSIBLE: u8 = 2;
/// Maximum number of shards of a table.
pub(crate) const MAX_SHARDS: u32 = 1 << 20;
/// Interval between requests while an owner is still creating its shards.
const ASK_AGAIN: Duration = Duration::from_micros(200);
/// Buckets that are initialised in one turn.
const INIT_STEP: u32 = 4096;

/// Opens a table on a worker: creates the shards that the worker owns, and requests the locations of the others, whose
/// owners open the table, too. The continuation is called from the event loop, when this worker can access all shards.
/// Every worker that uses the table must open it.
///
/// If this worker has opened the table before, it is not opened again: the continuation receives the same [`TableId`],
/// or the error of the first opening.
///
/// The continuation receives [`KvError::Spec`] if no such table is possible, or if the number belongs to a table with
/// another specification; [`KvError::Memory`] if a machine has no memory for its shards; [`KvError::PeerLost`].
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
    kv(worker).make_keys(spec.key_bytes);
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

/// Checks that this worker can open a table, and returns its layout.
fn possible(worker: &mut Worker, spec: &TableSpec) -> Result<Layout, KvError> {
    let layout = Layout::new(spec.neighbourhood, spec.key_bytes, spec.value_bytes)?;
    let (shards, buckets) = (spec.shards, spec.buckets);
    let bucket_bytes = layout.bucket_bytes();
    let shard_bytes = (u64::from(buckets) + 1) * bucket_bytes as u64;
    let read_bytes = worker.arena().largest();
    let why = if shards == 0 || buckets == 0 {
        format!("{shards} shards of {buckets} buckets: at least one of each is required")
    } else if shards > MAX_SHARDS {
        format!("{shards} shards are more than {MAX_SHARDS}")
    } else if shard_bytes > u64::from(u32::MAX) {
        format!("a shard of {shard_bytes} bytes is larger than any region; use more shards")
    } else if layout.lookup_bytes() > read_bytes {
        format!(
            "buckets of {bucket_bytes} bytes make a lookup read {} bytes, more than the {read_bytes} \
             that one read can fetch; use smaller values or a smaller neighbourhood",
            layout.lookup_bytes()
        )
    } else {
        return Ok(layout);
    };
    Err(KvError::Spec(why))
}

/// Opens a table whose opening has started or ended before.
fn open_again(worker: &mut Worker, spec: TableSpec, cont: OpenCont) {
    let Some(table) = kv(worker).tables.get_mut(&spec.id) else {
        return;
    };
    let outcome = if table.spec != spec {
        let why = format!(
            "table {} is open with another specification ({:?}, not {spec:?}); use another number for this table",
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

/// Schedules the continuation of an opening that has ended, to be called by the event loop.
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
    let work = Initialising {
        table: spec.id,
        shard,
        buckets: run,
        next: 0,
    };
    match worker.store().replication().logged {
        true => {
            let key = kv(worker).formatting.insert(work);
            worker.defer(Cont::new(format_some, key as u64));
        }
        false => {
            kv(worker).initialising.push(work);
            worker.defer(Cont::new(initialise, 0));
        }
    }
    Ok(())
}

/// Creates some buckets of a shard by a transaction, so that all copies get them.
fn format_some(worker: &mut Worker, key: u64, (): ()) {
    let Initialising { buckets, next, .. } = &kv(worker).formatting[key as usize];
    let (buckets, next) = (buckets.clone(), *next);
    let cont = Cont::new(formatted, key);
    kv(worker).formatting[key as usize].next = create_reserved(worker, &buckets, next, cont);
}

fn formatted(worker: &mut Worker, key: u64, outcome: Result<(), TxError>) {
    let work = &kv(worker).formatting[key as usize];
    if outcome.is_ok() && work.next < work.buckets.count {
        return worker.defer(Cont::new(format_some, key));
    }
    let Initialising {
        table,
        shard,
        buckets,
        ..
    } = kv(worker).formatting.remove(key as usize);
    match outcome {
        Ok(()) => found(worker, table, shard, buckets.first()),
        Err(error) => {
            let (machine, why) = (worker.me().machine, error.to_string());
            fail(worker, table, KvError::Memory { machine, why });
        }
    }
}

/// Initialises some buckets of a shard. The event loop continues between the steps.
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
        .expect("the buckets of a shard are in the memory of its owner's machine");
    for bucket in work.next..until {
        let room = work.buckets.begin(bucket);
        // New memory is zeroed; the memory of freed objects of the same class is not.
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
    let made = Made {
        table: work.table,
        shard: work.shard,
        first,
    };
    let key = kv(worker).made.insert(made);
    publish(worker, key as u64, ());
}

/// Makes a shard known when its region is recorded: until then other machines do not find it.
fn publish(worker: &mut Worker, key: u64, (): ()) {
    let Made {
        table,
        shard,
        first,
    } = kv(worker).made[key as usize];
    match worker.region_state(first.region()) {
        Some(Unrecorded::UnderWay) => {
            return worker.set_timer(ASK_AGAIN, Cont::new(publish, key));
        }
        Some(Unrecorded::Failed(why)) => {
            let machine = worker.me().machine;
            fail(worker, table, KvError::Memory { machine, why });
        }
        None => found(worker, table, shard, first),
    }
    kv(worker).made.remove(key as usize);
}

fn ask(worker: &mut Worker, context: u64, (): ()) {
    let (id, shard) = ((context >> 32) as u16, context as u32);
    let Some(table) = kv(worker).tables.get(&id) else {
        return;
    };
    let owner = table.shards[shard as usize].owner;
    let mut body = [0; ASK_BYTES];
    body[..4].copy_from_slice(&shard.to_le_bytes());
    body[4..].copy_from_slice(&table.spec.to_bytes());
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
    let refused = match reply {
        Ok([ANOTHER_TABLE]) => Some(format!(
            "worker {owner} has opened another table as table {id}; use the same specification on every worker"
        )),
        Ok([IMPOSSIBLE]) => Some(format!(
            "worker {owner} cannot open table {id}; see the log of that machine for the reason"
        )),
        _ => None,
    };
    if let Some(why) = refused {
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
                why: "creating a shard failed; see the log of that machine for the reason".into(),
            },
        ),
        Err(_) => fail(worker, id, KvError::PeerLost(owner.machine)),
    }
}

/// Decodes a request: the shard, and the table's specification.
fn parse(body: &[u8]) -> Option<(u32, TableSpec)> {
    let (shard, spec) = body.split_first_chunk()?;
    let spec = TableSpec::from_bytes(spec.try_into().ok()?);
    Some((u32::from_le_bytes(*shard), spec))
}

/// Replies to a request for the location of a shard: with its address, with null if the shard does not exist yet, or
/// with an empty body if the shard cannot be created. Opens the table first, if it is not open.
pub(crate) fn answer(worker: &mut Worker, request: Request, body: &[u8]) {
    let Some((shard, spec)) = parse(body) else {
        return worker.reply(request, &[&[IMPOSSIBLE]]);
    };
    if kv(worker).tables.get(&spec.id).is_none() {
        if let Err(error) = possible(worker, &spec) {
            tracing::warn!(from = %request.from, %error, "refusing to open a table that another worker has opened");
            return worker.reply(request, &[&[IMPOSSIBLE]]);
        }
        marks::mark("kv: a table opened for another worker");
        open(worker, spec, Cont::new(opened_for_another, 0));
    }
    let me = worker.me().machine;
    let state: &mut Kv = kv(worker);
    let Some(table) = state.tables.get(&spec.id) else {
        return worker.reply(request, &[&[IMPOSSIBLE]]);
    };
    if table.spec != spec {
        return worker.reply(request, &[&[ANOTHER_TABLE]]);
    }
    // Any other failure does not concern the shards of this machine; the requester detects that failure itself.
    if let Some(KvError::Memory { machine, .. }) = table.failed
        && machine == me
    {
        return worker.reply(request, &[]);
    }
    let shard = table.shards.get(shard as usize);
    let first = shard.map_or(Address::NULL, |shard| shard.first);
    worker.reply(request, &[&first.to_bits().to_le_bytes()]);
}

/// Ends an opening that another worker has caused: that worker learns an error from the replies to its requests.
fn opened_for_another(_: &mut Worker, _: u64, outcome: Result<TableId, KvError>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "cannot open a table that another worker has opened");
    }
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
