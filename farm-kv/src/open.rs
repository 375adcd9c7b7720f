//! Opens tables on a worker: finds them in the catalog, or has them created ([`crate::create`]).

use std::time::Duration;

use farm_core::ids::Address;
use farm_core::marks;
use farm_core::messaging::{Handler, Request};
use farm_core::worker::{Cont, Worker};
use farm_txn::{Handle, spawn};

use crate::KvError;
use crate::calls::at_once;
use crate::catalog;
use crate::create;
use crate::owners::owner_of;
use crate::pending::{Opening, Postponed};
use crate::refusals::LOOK_AGAIN;
use crate::state::kv;
use crate::table::{OpenCont, Shard, Table, TableId, TableSpec, possible};

/// Interval between tries after a machine was lost.
const LOOK_AFTER_LOSS: Duration = Duration::from_millis(2);
/// Maximum number of times that a worker looks up a table to open it, and the creator of tables.
const MOST_LOOKUPS: u32 = 1000;

/// Opens a table on a worker: finds its shards in the catalog. If the catalog has no such table, it is created, once for all
/// workers that open it. The continuation is called from the event loop, when this worker can access all shards. Every worker
/// that calls operations on the table must open it. A worker that owns shards opens the table when it gets the first message
/// for it.
///
/// If this worker has opened the table before, it is not opened again: the continuation receives the same [`TableId`]. If the
/// opening failed, it is tried again.
///
/// The continuation receives [`KvError::Spec`] if no such table is possible, or if the number belongs to a table with
/// another specification; [`KvError::Memory`] if a machine has no memory for its shards; [`KvError::PeerLost`];
/// [`KvError::Catalog`].
pub fn open(worker: &mut Worker, spec: TableSpec, cont: Cont<Result<TableId, KvError>>) {
    if let Err(error) = possible(worker, &spec) {
        return end_open(worker, cont, Err(error));
    }
    if let Some(table) = kv(worker).tables.get(&spec.id) {
        let outcome = same(&table.spec, &spec);
        return end_open(worker, cont, outcome);
    }
    let (opening, begins) = opening(worker, spec.id);
    opening.waiting.push((spec, cont));
    if begins {
        begin(worker, spec.id, Some(spec));
    }
}

/// Returns the opening of a table, and whether it is new.
fn opening(worker: &mut Worker, id: u16) -> (&mut Opening, bool) {
    let openings = &mut kv(worker).openings;
    let begins = !openings.contains_key(&id);
    (openings.entry(id).or_default(), begins)
}

/// Calls `handler` with a message for a table when the table is open, or when it cannot be opened: then it is not open.
pub(crate) fn when_open(
    worker: &mut Worker,
    table: Option<u16>,
    (request, body): (Request, &[u8]),
    handler: Handler,
) {
    let closed = table.filter(|id| kv(worker).tables.get(id).is_none());
    let Some(id) = closed else {
        return handler(worker, request, body);
    };
    marks::mark("kv: a table opened for a message");
    let (opening, begins) = opening(worker, id);
    opening.messages.push(Postponed {
        request,
        body: body.to_vec(),
        handler,
    });
    if begins {
        begin(worker, id, None);
    }
}

/// Begins to open a table. If it is `wanted` and the catalog does not have it, it is created.
fn begin(worker: &mut Worker, id: u16, wanted: Option<TableSpec>) {
    spawn(worker, move |farm| async move {
        let found = find(&farm, id, wanted).await;
        at_once(&farm, |worker| end(worker, id, wanted.is_some(), found));
    });
}

/// Returns the tables of the cluster.
pub(crate) async fn existing(farm: &Handle) -> Result<Vec<TableSpec>, KvError> {
    match at_once(farm, |worker| worker.store().map().catalog()) {
        Some(root) => catalog::tables(farm, root).await,
        None => Ok(Vec::new()),
    }
}

/// Finds a table in the catalog.
async fn find(
    farm: &Handle,
    id: u16,
    wanted: Option<TableSpec>,
) -> Result<(Table, Vec<Address>), KvError> {
    for _ in 0..MOST_LOOKUPS {
        if let Some(root) = at_once(farm, |worker| worker.store().map().catalog())
            && let Some(found) = catalog::find(farm, root, id).await?
        {
            let spec = found.spec;
            let layout = at_once(farm, |worker| possible(worker, &spec))?;
            let shards = Vec::new();
            let table = Table {
                spec,
                layout,
                shards,
            };
            return Ok((table, catalog::shards(farm, &found).await?));
        }
        let spec = wanted.ok_or(KvError::NotOpen(id))?;
        let survives = at_once(farm, |worker| worker.survives());
        match create::request(farm, spec).await {
            Ok(true) => {}
            Ok(false) => farm.sleep(LOOK_AGAIN).await,
            // Its creator, or a machine on which it was to be made. The next configuration is without it.
            Err(KvError::PeerLost(_)) if survives => farm.sleep(LOOK_AFTER_LOSS).await,
            Err(error) => return Err(error),
        }
    }
    let why = format!("no worker takes itself for the one that creates table {id}");
    Err(KvError::Catalog(why))
}

/// Ends the opening of a table.
fn end(
    worker: &mut Worker,
    id: u16,
    was_wanted: bool,
    found: Result<(Table, Vec<Address>), KvError>,
) {
    let wanted = kv(worker).openings[&id].waiting.first().map(|one| one.0);
    if let (Err(KvError::NotOpen(_)), false, Some(wanted)) = (&found, was_wanted, wanted) {
        // A caller of `open` came while the table was looked up for a message.
        return begin(worker, id, Some(wanted));
    }
    let opened = found.map(|(table, shards)| {
        let spec = table.spec;
        insert(worker, table, &shards);
        spec
    });
    let opening = kv(worker).openings.remove(&id).unwrap_or_default();
    for (spec, cont) in opening.waiting {
        let outcome = opened.clone().and_then(|found| same(&found, &spec));
        end_open(worker, cont, outcome);
    }
    if let Err(error) = opened
        && !opening.messages.is_empty()
    {
        tracing::warn!(table = id, %error, "cannot open a table for which another worker has sent a message");
    }
    for message in opening.messages {
        (message.handler)(worker, message.request, &message.body);
    }
}

/// Makes a table usable on this worker.
fn insert(worker: &mut Worker, mut table: Table, shards: &[Address]) {
    let shard = |(shard, first): (u32, &Address)| Shard {
        owner: owner_of(worker, *first, shard),
        first: *first,
    };
    table.shards = (0..).zip(shards).map(shard).collect();
    let (spec, layout) = (table.spec, table.layout);
    kv(worker).tables.insert(spec.id, table);
    kv(worker).make_keys(spec.key_bytes);
    kv(worker).make_bodies(&layout);
}

/// Compares the specification of a table with the expected one.
fn same(found: &TableSpec, expected: &TableSpec) -> Result<TableId, KvError> {
    if found == expected {
        return Ok(TableId(found.id));
    }
    Err(KvError::Spec(format!(
        "table {} exists with another specification ({found:?}, not {expected:?}); use another number for this table",
        found.id
    )))
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

#[cfg(test)]
mod tests;
