//! Changes of tables: shipped to the owner of the key's shard, which performs them (`owner`).

use farm_core::ids::Address;
use farm_core::worker::Worker;
use farm_txn::Handle;

use crate::KvError;
use crate::calls::at_once;
use crate::catalog;
use crate::change::Change;
use crate::count::read_shard;
use crate::create::creator;
use crate::owner::{Waiter, send};
use crate::owners::look_up_all;
use crate::pending::{ChangeCont, PendingChange};
use crate::shard::{Editor, ShardFacts, ShardPlace, complete};
use crate::state::kv;
use crate::table::{TableId, TableSpec};

/// Changes a table. The continuation is called from the event loop, never before this returns.
///
/// # Errors
/// [`KvError::NotOpen`], [`KvError::KeyLength`] and [`KvError::ValueLength`]: nothing was started.
pub fn change(
    worker: &mut Worker,
    table: TableId,
    key: &[u8],
    change: Change<'_>,
    cont: ChangeCont,
) -> Result<(), KvError> {
    let me = worker.me();
    let state = kv(worker);
    let open = state.tables.open(table)?;
    open.check_key(key)?;
    change.check_length(open.spec.value_bytes)?;
    let (shard, bucket) = open.locate(key);
    let owner = open.shards[shard as usize].owner;
    let mut body = state.bodies.pop().unwrap_or_default();
    change.encode(&mut body, (table, shard, bucket), key);
    if crate::owner::makes_changes(me, owner) {
        crate::owner::queue(worker, Waiter::Own(cont), body);
    } else {
        let pending = PendingChange::new((table.0, shard), owner.machine, body, cont);
        let pending = state.changes.insert(pending);
        send(worker, pending);
    }
    Ok(())
}

/// What the shards contain that a worker owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnShards {
    /// Number of pairs.
    pub pairs: u64,
    /// Number of slots of the buckets, without those of overflow blocks (`FaRM'14 §3.6`).
    pub slots: u64,
    /// Bytes of buckets and overflow blocks, including headers and line versions.
    pub bytes: u64,
}

/// Reads what the shards contain that the task's worker owns. If they have more than `most` buckets in total, about this many are
/// read, and the numbers of pairs and bytes are estimates.
///
/// # Errors
/// [`KvError::NotOpen`]; [`KvError::Conflict`]; [`KvError::PeerLost`].
///
/// # Panics
/// If it is polled by another task than one of a worker.
pub async fn own_shards(farm: &Handle, table: TableId, most: u32) -> Result<OwnShards, KvError> {
    let own = at_once(farm, |worker| own_places(worker, table))?;
    let most = (most / own.len().max(1) as u32).max(1);
    let mut sum = OwnShards::default();
    for (_, place) in own {
        let found = read_shard(farm, &place, most).await?;
        let (layout, buckets) = (&place.layout, u64::from(place.buckets));
        sum.pairs += found.pairs;
        sum.slots += buckets * layout.slots as u64;
        sum.bytes += (buckets + 1) * layout.bucket_bytes() as u64
            + found.blocks * layout.block_bytes() as u64;
    }
    Ok(sum)
}

/// Returns the tables that are open on this worker.
pub fn open_tables(worker: &mut Worker) -> Vec<TableSpec> {
    let all = kv(worker).tables.all();
    all.map(|table| table.spec).collect()
}

/// Returns the address ranges of the buckets of this worker's shards: first address and bytes, including the spare last
/// bucket.
///
/// # Errors
/// [`KvError::NotOpen`].
pub fn own_spans(worker: &mut Worker, table: TableId) -> Result<Vec<(Address, u64)>, KvError> {
    let me = worker.me();
    look_up_all(worker, table.0);
    let open = kv(worker).tables.open(table)?;
    let bytes = (u64::from(open.spec.buckets) + 1) * open.layout.bucket_bytes() as u64;
    let own = open.shards.iter().filter(|shard| shard.owner == me);
    Ok(own.map(|shard| (shard.first, bytes)).collect())
}

/// Visits all pairs in the shards that this worker owns, within one turn. Each bucket is visited as it was at one moment; a pair
/// that moves to another bucket meanwhile may be visited twice, or not at all. For reports on small tables.
///
/// # Errors
/// [`KvError::NotOpen`]; [`KvError::Conflict`] if a bucket is locked.
pub fn own_pairs(
    worker: &mut Worker,
    table: TableId,
    mut visit: impl FnMut(&[u8], &[u8]),
) -> Result<(), KvError> {
    for (_, place) in own_places(worker, table)? {
        let mut tx = farm_txn::checkout(worker);
        let mut visited = Ok(());
        for bucket in 0..=place.buckets {
            let mut pairs = Vec::new();
            let mut editor = Editor::new(&mut tx, place);
            let found = complete(worker, &mut editor, |editor| {
                pairs.clear();
                editor.pairs_of_bucket(bucket, &mut pairs)
            });
            tx.abort(worker);
            if found.is_err() {
                visited = Err(KvError::Conflict);
                break;
            }
            for pair in &pairs {
                let (key, value) = pair.split_at(place.layout.key_bytes);
                visit(key, value);
            }
        }
        farm_txn::checkin(worker, tx);
        visited?;
    }
    Ok(())
}

/// Returns the shards that this worker owns, each with its index and its place.
fn own_places(worker: &mut Worker, table: TableId) -> Result<Vec<(u32, ShardPlace)>, KvError> {
    let me = worker.me();
    look_up_all(worker, table.0);
    let open = kv(worker).tables.open(table)?;
    let shards = (0..).zip(&open.shards);
    let own = shards.filter(|(_, shard)| shard.owner == me);
    Ok(own.map(|(index, _)| (index, open.place(index))).collect())
}

/// Checks the invariants of all shards that this worker owns, except in buckets whose chains reach other machines, as they may after a
/// loss. Slow: it reads all of their objects.
///
/// # Errors
/// A description of the first violation, or that the table is not open on this worker.
pub fn check(worker: &mut Worker, table: TableId) -> Result<Vec<ShardFacts>, String> {
    let own = own_places(worker, table).map_err(|error| error.to_string())?;
    let spec = kv(worker).tables[&table.0].spec;
    let mut all = Vec::with_capacity(own.len());
    for (index, place) in own {
        let mut tx = farm_txn::checkout(worker);
        let home_of = |key: &[u8]| match crate::table::locate(key, &spec) {
            (shard, bucket) if shard == index => bucket,
            _ => u32::MAX - 1,
        };
        let found = check_shard(worker, &mut tx, place, &home_of);
        farm_txn::checkin(worker, tx);
        all.push(found?);
    }
    Ok(all)
}

/// Checks the catalog, if this worker is the one that creates tables. Returns the number of its objects, without those of lists; 0
/// on any other worker, and if there is no catalog.
///
/// # Errors
/// A description of the first violation.
pub fn check_catalog(worker: &mut Worker) -> Result<u64, String> {
    match worker.store().map().catalog() {
        Some(root) if creator(worker) == worker.me() => {
            catalog::check_here(worker, root).map_err(|error| error.to_string())
        }
        _ => Ok(0),
    }
}

fn check_shard(
    worker: &mut Worker,
    tx: &mut farm_txn::Tx,
    place: ShardPlace,
    home_of: &dyn Fn(&[u8]) -> u32,
) -> Result<ShardFacts, String> {
    let (mut facts, mut joint) = (ShardFacts::default(), None);
    for bucket in 0..=place.buckets {
        let mut editor = Editor::new(tx, place);
        let checked = complete(worker, &mut editor, |editor| {
            editor.check_bucket(bucket, joint, home_of)
        });
        match checked {
            Ok(checked) => {
                let (found, next) = checked?;
                facts.add(found);
                joint = Some(next);
            }
            Err(incomplete) if incomplete.is_elsewhere() => joint = None,
            Err(incomplete) => return Err(incomplete.error.to_string()),
        }
        tx.abort(worker);
    }
    Ok(facts)
}
