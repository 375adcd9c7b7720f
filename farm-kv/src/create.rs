//! Creates tables.
//!
//! One worker creates a table for all workers that want to open it at the same time: the first worker of the primary of the
//! catalog's root, or of the manager while the cluster has no catalog. If two workers take themselves for it, because one of them
//! does not know a new configuration yet, the transaction that links the description decides, and the other one frees what it made.
//!
//! 1. Every shard is made by the worker that will own it: it reserves the buckets on its machine, and creates them by
//!    transactions.
//! 2. The addresses of the shards are written into the list of the table.
//! 3. One transaction creates the description of the table and links it into the catalog, if there is none.

use std::collections::BTreeSet;

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, WorkerRef};
use farm_core::membership::manager::Recorded;
use farm_core::messaging::{MessageId, Request};
use farm_core::worker::{Cont, Worker};
use farm_txn::{Abort, Handle, TxError, spawn};

use crate::KvError;
use crate::calls::{at_once, call};
use crate::catalog::{self, Description, NODE_BYTES, WORDS};
use crate::layout::Layout;
use crate::owners::propose;
use crate::pending::{Made, Making};
use crate::refusals::LOOK_AGAIN;
use crate::state::kv;
use crate::table::{SPEC_BYTES, TableSpec, possible};

/// Message id of the request to create a table. The body is its specification. The reply comes when the table exists.
pub(crate) const CREATE: MessageId = MessageId(MessageId::KV);
/// Message id of the request to make a shard of a table on the receiver's machine. The body is the specification of the table.
/// The reply is the address of the first bucket, or empty.
pub(crate) const MAKE: MessageId = MessageId(MessageId::KV + 4);
/// Bytes of the reply to CREATE: a code, and a machine.
const CREATED_BYTES: usize = 3;
const MADE_BYTES: usize = 8;

/// The table is in the catalog.
const CREATED: u8 = 0;
/// The receiver does not create tables.
const NOT_HERE: u8 = 1;
/// A machine has no memory for a shard.
const NO_MEMORY: u8 = 2;
/// A machine is lost.
const LOST: u8 = 3;
/// The log of the receiver has the reason.
const FAILED: u8 = 4;

/// Returns the worker that creates tables.
pub(crate) fn creator(worker: &Worker) -> WorkerRef {
    let machine = match worker.store().map().catalog() {
        Some(root) => worker.machine_of(root.region()),
        None => worker.membership().manager(),
    };
    WorkerRef::first_of(machine)
}

/// Has a table created. Returns false if the worker that was asked does not create tables: the caller looks up again.
pub(crate) async fn request(farm: &Handle, spec: TableSpec) -> Result<bool, KvError> {
    let to = at_once(farm, |worker| creator(worker));
    let reply = call(farm, to, CREATE, &spec.to_bytes(), CREATED_BYTES).await?;
    let failed = |why: &str| {
        KvError::Catalog(format!(
            "worker {to} could not create table {}: {why}",
            spec.id
        ))
    };
    let machine = |low, high| {
        let id = farm_core::ids::MachineId::new(u16::from_le_bytes([low, high]));
        id.ok_or_else(|| failed("its reply is not valid"))
    };
    match reply[..] {
        [CREATED, ..] => Ok(true),
        [NOT_HERE, ..] => Ok(false),
        [NO_MEMORY, low, high] => Err(KvError::Memory {
            machine: machine(low, high)?,
            why: "creating a shard failed; see the log of that machine for the reason".into(),
        }),
        [LOST, low, high] => Err(KvError::PeerLost(machine(low, high)?)),
        _ => Err(failed("see the log of its machine for the reason")),
    }
}

/// Handles a request to create a table.
pub(crate) fn handle_create(worker: &mut Worker, request: Request, body: &[u8]) {
    let spec = body.try_into().map(TableSpec::from_bytes);
    let spec = spec.ok().filter(|spec| possible(worker, spec).is_ok());
    let Some(spec) = spec else {
        tracing::warn!(from = %request.from, "refusing to create a table with an impossible specification");
        return worker.reply(request, &[&[FAILED]]);
    };
    if creator(worker) != worker.me() {
        return worker.reply(request, &[&[NOT_HERE]]);
    }
    let waiting = kv(worker).creations.entry(spec.id).or_default();
    waiting.push(request);
    if waiting.len() > 1 {
        return farm_core::marks::mark("kv: a creation waited for");
    }
    spawn(worker, move |farm| async move {
        let created = create(&farm, spec).await;
        at_once(&farm, |worker| report(worker, spec.id, created));
    });
}

/// Replies to all workers that wait for a table.
fn report(worker: &mut Worker, table: u16, created: Result<(), KvError>) {
    let (code, machine) = match &created {
        Ok(()) => (CREATED, 0),
        Err(KvError::Memory { machine, .. }) => (NO_MEMORY, machine.get()),
        Err(KvError::PeerLost(machine)) => (LOST, machine.get()),
        Err(_) => (FAILED, 0),
    };
    if let Err(error) = created {
        tracing::warn!(table, %error, "cannot create a table");
    }
    let [low, high] = machine.to_le_bytes();
    for request in kv(worker).creations.remove(&table).unwrap_or_default() {
        worker.reply(request, &[&[code, low, high]]);
    }
}

/// Creates a table, unless it is in the catalog.
async fn create(farm: &Handle, spec: TableSpec) -> Result<(), KvError> {
    let root = root(farm).await?;
    if catalog::find(farm, root, spec.id).await?.is_some() {
        return Ok(());
    }
    let made = farm.operation(move |worker, cont| make_all(worker, spec, cont));
    let Made { shards, failed } = made.await.map_err(KvError::of_catalog)?;
    let recorded = match failed {
        None => record(farm, root, spec, &shards).await,
        Some(error) => Err(error),
    };
    if !matches!(recorded, Ok(true)) {
        free_shards(farm, spec, &shards).await?;
    }
    recorded.map(|_| ())
}

/// Returns the root of the catalog, which is created if there is none.
async fn root(farm: &Handle) -> Result<Address, KvError> {
    let known = || at_once(farm, |worker| worker.store().map().catalog());
    if let Some(root) = known() {
        return Ok(root);
    }
    let new = farm.transact(async |tx| {
        let root = tx.alloc(NODE_BYTES, None).await?;
        tx.address(root).await
    });
    let new = new.await.map_err(KvError::of_catalog)?;
    let refused = loop {
        match at_once(farm, |worker| worker.record_catalog(new)) {
            Recorded::NotYet => farm.sleep(LOOK_AGAIN).await,
            Recorded::Yes => break None,
            Recorded::No(why) => break Some(why),
        }
    };
    let root = known();
    if root != Some(new) {
        free(farm, new, 1).await?;
    }
    root.ok_or_else(|| KvError::Catalog(refused.unwrap_or_default()))
}

/// Frees objects of the catalog that it does not have.
async fn free(farm: &Handle, first: Address, count: u32) -> Result<(), KvError> {
    let freed = farm.free_objects(first, catalog::class(), count).await;
    freed.map_err(KvError::of_catalog)
}

/// Writes the list and the description of a table, and links the description. Returns false if the catalog has the table, in
/// which case nothing is left.
async fn record(
    farm: &Handle,
    root: Address,
    spec: TableSpec,
    shards: &[Address],
) -> Result<bool, KvError> {
    let count = catalog::list_objects(spec.shards);
    let list = make(farm, catalog::class(), count, Some(root)).await;
    let first = list.map_err(|error| match error {
        TxError::Alloc(error) => KvError::Memory {
            machine: farm.me().machine,
            why: error.to_string(),
        },
        error => KvError::of_catalog(error),
    })?;
    let recorded = write_list(farm, root, spec, (first, shards)).await;
    if !matches!(recorded, Ok(true)) {
        free(farm, first, count).await?;
    }
    recorded.map_err(KvError::of_catalog)
}

/// Writes the shards into the list of a table, and then links the description of the table. Returns false if the catalog has the
/// table.
async fn write_list(
    farm: &Handle,
    root: Address,
    spec: TableSpec,
    (list, shards): (Address, &[Address]),
) -> Result<bool, TxError> {
    for (at, part) in (0..).zip(shards.chunks(WORDS)) {
        let at: u32 = at;
        let at = list.checked_add(at * catalog::class().object_bytes() as u32);
        let at = at.ok_or_else(|| TxError::Refused("a list ends beyond its region".into()))?;
        let part: Vec<u8> = part
            .iter()
            .flat_map(|shard| shard.to_bits().to_le_bytes())
            .collect();
        let write = farm.transact(async |tx| {
            let object = tx.read(at, NODE_BYTES).await?;
            tx.write(object, &part).await
        });
        write.await?;
    }
    farm.transact(async |tx| link(farm, tx, root, spec, list).await)
        .await
}

/// Links a new description into its chain, unless the chain has the table.
async fn link(
    farm: &Handle,
    tx: farm_txn::Transaction<'_>,
    root: Address,
    spec: TableSpec,
    list: Address,
) -> Result<bool, TxError> {
    let chain = catalog::chain_of(spec.id);
    let object = tx.read(root, NODE_BYTES).await?;
    let next = tx
        .look(object, move |node| catalog::address(node, chain))
        .await?;
    let next = next.ok_or_else(|| TxError::Refused("its root is not valid".into()))?;
    // Descriptions never change, so it suffices that the transaction validates the root.
    if catalog::find_from(farm, next, spec.id).await?.is_some() {
        return Ok(false);
    }
    let new = tx.alloc(NODE_BYTES, Some(root)).await?;
    let description = Description { next, spec, list };
    tx.write(new, &description.encode()).await?;
    let new = tx.address(new).await?;
    tx.change(object, move |node| catalog::put_address(node, chain, new))
        .await?;
    Ok(true)
}

/// Has all shards of a table made, by all workers at the same time, each of which makes one shard after another.
fn make_all(worker: &mut Worker, spec: TableSpec, cont: Cont<Result<Made, TxError>>) {
    let mut machines = worker.machines().to_vec();
    machines.retain(|one| worker.membership().stores(one.0));
    let owners = propose(worker.store().placement(), &machines, spec.shards);
    let all: BTreeSet<WorkerRef> = owners.iter().copied().collect();
    let key = kv(worker).making.insert(Making {
        spec,
        shards: vec![Address::NULL; owners.len()],
        owners,
        unfinished: all.len(),
        failed: None,
        cont,
    });
    for owner in all {
        spawn(worker, move |farm| make_on(farm, key, owner));
    }
}

/// Has all shards made that a worker will own.
async fn make_on(farm: Handle, key: usize, owner: WorkerRef) {
    let mut from = 0;
    let mut next = || {
        at_once(&farm, |worker| {
            let making = &kv(worker).making[key];
            let mut rest = (from..making.owners.len()).filter(|at| making.owners[*at] == owner);
            let shard = rest.next().filter(|_| making.failed.is_none())?;
            from = shard + 1;
            Some((shard, making.spec))
        })
    };
    while let Some((shard, spec)) = next() {
        let made = request_shard(&farm, spec, owner).await;
        at_once(&farm, |worker| {
            let making = &mut kv(worker).making[key];
            match made {
                Ok(first) => making.shards[shard] = first,
                Err(error) => _ = making.failed.get_or_insert(error),
            }
        });
    }
    at_once(&farm, |worker| {
        let making = &mut kv(worker).making;
        making[key].unfinished -= 1;
        if making[key].unfinished == 0 {
            let Making {
                shards,
                failed,
                cont,
                ..
            } = making.remove(key);
            cont.resume(worker, Ok(Made { shards, failed }));
        }
    });
}

async fn request_shard(
    farm: &Handle,
    spec: TableSpec,
    owner: WorkerRef,
) -> Result<Address, KvError> {
    let reply = call(farm, owner, MAKE, &spec.to_bytes(), MADE_BYTES).await?;
    let first = catalog::address(&reply, 0).filter(|first| !first.is_null());
    first.ok_or_else(|| KvError::Memory {
        machine: owner.machine,
        why: "see its log for the reason".into(),
    })
}

/// Frees the shards that were made for a table that is not created.
async fn free_shards(farm: &Handle, spec: TableSpec, shards: &[Address]) -> Result<(), KvError> {
    let layout = Layout::new(spec.neighbourhood, spec.key_bytes, spec.value_bytes)?;
    for first in shards.iter().filter(|first| !first.is_null()) {
        let freed = farm.free_objects(*first, layout.bucket_class, spec.buckets + 1);
        freed.await.map_err(KvError::of_catalog)?;
    }
    Ok(())
}

/// Makes a shard on this machine.
pub(crate) fn handle_make(worker: &mut Worker, request: Request, body: &[u8]) {
    let spec = <&[u8; SPEC_BYTES]>::try_from(body).map(TableSpec::from_bytes);
    let spec = spec
        .map_err(|_| KvError::Spec("the specification has the wrong length".into()))
        .and_then(|spec| Ok((spec, possible(worker, &spec)?)));
    let (spec, layout) = match spec {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(from = %request.from, %error, "refusing to make a shard");
            return worker.reply(request, &[]);
        }
    };
    spawn(worker, move |farm| async move {
        let made = make(&farm, layout.bucket_class, spec.buckets + 1, None).await;
        at_once(&farm, |worker| match made {
            Ok(first) => worker.reply(request, &[&first.to_bits().to_le_bytes()]),
            Err(error) => {
                tracing::error!(table = spec.id, %error, "cannot make a shard of a table");
                worker.reply(request, &[]);
            }
        });
    });
}

/// Creates objects on this machine. Begins again if the configuration changes meanwhile.
async fn make(
    farm: &Handle,
    class: SizeClass,
    count: u32,
    near: Option<Address>,
) -> Result<Address, TxError> {
    // The sender may know before this machine that it has joined.
    while !at_once(farm, |worker| worker.store().map().is_complete()) {
        farm.sleep(LOOK_AGAIN).await;
    }
    loop {
        let array = at_once(farm, |worker| worker.reserve_array(class, count, near))?;
        let first = array.first();
        match farm.create_array(array).await {
            Err(TxError::Abort(Abort::Reconfigured)) => {
                farm_core::marks::mark("kv: a shard made again after a loss");
                farm.sleep(LOOK_AGAIN).await;
            }
            created => return created.map(|()| first),
        }
    }
}
