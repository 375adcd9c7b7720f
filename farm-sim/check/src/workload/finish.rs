//! Checks of the final state, when no operation is under way.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::{FatPointer, LockMode, write};
use farm_core::worker::Worker;
use farm_txn::TxError;

use super::final_state::{FinalState, Last};
use super::named::member;
use super::spec::{BALANCE, Kind, Spec};
use super::state::{owner_place, work};
use super::value::Value;
use super::{graph, rows};
use crate::history::{Access, ObjectId};

impl FinalState {
    /// Checks that every allocated slot has an object, and that every invariant of the workload holds.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, spec: &Spec) -> Result<(), String> {
        let FinalState {
            taken,
            live,
            objects,
            nodes,
            paid_in,
            unsure,
            elsewhere,
        } = self;
        if taken != live && *elsewhere == 0 {
            return Err(format!(
                "the allocators count {taken} slots as allocated, but {live} objects exist"
            ));
        }
        if spec.kind == Kind::Graph {
            return graph::check(nodes);
        }
        if spec.kind.has_rows() {
            return rows::check(spec, objects, (*paid_in, unsure));
        }
        let count = match spec.spread {
            true => objects.len(),
            false => spec.objects_per_machine,
        };
        for (place, objects) in objects.chunks(count.max(1)).enumerate() {
            let values: Vec<u64> = objects.iter().map(|object| object.value).collect();
            invariant(spec.kind, place * count, &values)?;
        }
        Ok(())
    }
}

pub(super) fn finish(worker: &mut Worker) -> Result<FinalState, String> {
    let me = worker.me();
    worker
        .check_slab()
        .map_err(|mismatch| format!("worker {me}: {mismatch}"))?;
    let classes = SizeClass::all();
    let taken = classes.map(|class| worker.slab_usage(class).live).sum();
    let mut finished = FinalState {
        taken,
        ..FinalState::default()
    };
    if work(worker).rows.is_some() {
        rows::finish(worker, &mut finished).map_err(|why| format!("worker {me}: {why}"))?;
    } else if work(worker).spec.kind == Kind::Graph {
        graph::finish(worker, &mut finished).map_err(|why| format!("worker {me}: {why}"))?;
    } else if let Some(table) = work(worker).table {
        let facts =
            farm_kv::ops::check(worker, table).map_err(|why| format!("worker {me}: {why}"))?;
        finished.live = facts.iter().map(|shard| shard.blocks).sum();
    } else if owner_place(worker).is_some() && me.worker.index() == 0 {
        let usage = worker.store().usage().map_err(|error| error.to_string())?;
        finished.taken += usage.array_objects;
        objects(worker, &mut finished).map_err(|why| format!("machine {}: {why}", me.machine))?;
    }
    // Only workloads with tables have a catalog.
    finished.live +=
        farm_kv::ops::check_catalog(worker).map_err(|why| format!("worker {me}: {why}"))?;
    Ok(finished)
}

/// Checks the objects whose primary is this machine; after a loss that may be another one than the machine that has created them. Adds the
/// number of objects, including those whose addresses churn entries hold, and the final value of each object.
fn objects(worker: &mut Worker, finished: &mut FinalState) -> Result<(), String> {
    let (spec, me) = (work(worker).spec.clone(), worker.me().machine);
    for (object, address) in work(worker).addresses.clone().into_iter().enumerate() {
        if worker.machine_of(address.region()) != me {
            continue;
        }
        let class =
            farm_core::alloc::class_for_payload(spec.payload()).map_err(|e| e.to_string())?;
        let (version, value) =
            look(worker, address, class).map_err(|why| format!("object {object}: {why}"))?;
        finished.live += 1;
        let [one, two, born] = value.data;
        let named = FatPointer::from_words([one, two]).filter(|pointer| !pointer.address.is_null());
        if let Some(pointer) = named.filter(|_| spec.kind == Kind::Churn) {
            // It was allocated near its entry.
            match worker.machine_of(pointer.address.region()) == me {
                true => finished.live += check_named(worker, object, pointer, born)?,
                false => finished.elsewhere += 1,
            }
        }
        let read = Access::Read {
            object: ObjectId(object as u32),
            version,
            id: value.id,
            parent: value.parent,
        };
        finished.objects.push(Last { read, value: one });
    }
    Ok(())
}

/// Checks the object that an entry names, and the other members of its array. Returns the number of members.
fn check_named(
    worker: &mut Worker,
    entry: usize,
    pointer: FatPointer,
    born: u64,
) -> Result<u64, String> {
    let class = pointer.class();
    let what = |why| format!("the object that churn entry {entry} names: {why}");
    let (_, named) = look(worker, pointer.address, class).map_err(what)?;
    let [found, members, array] = named.data;
    if found != born {
        return Err(format!(
            "churn entry {entry} names an object that write {born} created, but the object contains {named:?}"
        ));
    }
    for index in 1..members {
        let address = member(pointer, index as u32);
        let address = address.ok_or_else(|| {
            format!("churn entry {entry} names an array with too many members: {named:?}")
        })?;
        let (_, found) = look(worker, address, class).map_err(what)?;
        if found.data[2] != array {
            return Err(format!(
                "churn entry {entry} names array {array}, but member {index} contains {found:?}"
            ));
        }
    }
    Ok(members)
}

/// Returns the version and the value of an object of this machine. It must not be locked.
fn look(worker: &mut Worker, address: Address, class: SizeClass) -> Result<(u64, Value), String> {
    let (memory, at) = worker
        .local_memory(address)
        .map_err(|error| error.to_string())?;
    if write::load_version(memory, at).mode() != LockMode::Unlocked {
        return Err("the object is still locked".into());
    }
    let mut tx = farm_txn::checkout(worker);
    let value = tx
        .read_class(worker, address, class)
        .map_err(|error: TxError| error.to_string())
        .and_then(|read| {
            let value = Value::read(tx.payload(read)).map_err(|torn| torn.to_string())?;
            Ok((tx.version(read).get(), value))
        });
    farm_txn::checkin(worker, tx);
    value
}

/// Checks the workload's invariant over the first data words of objects. `first` is the index of the first object.
fn invariant(kind: Kind, first: usize, values: &[u64]) -> Result<(), String> {
    match kind {
        Kind::Bank => {
            let sum = values
                .iter()
                .fold(0u64, |sum, value| sum.wrapping_add(*value));
            match sum == BALANCE * values.len() as u64 {
                true => Ok(()),
                false => Err(format!(
                    "the sum of the balances of the accounts from object {first} on is wrong: {sum}"
                )),
            }
        }
        Kind::Cycle => {
            let mut at = first;
            for step in 1..=values.len() {
                let next = values.get(at.wrapping_sub(first));
                at = next.map_or(usize::MAX, |next| *next as usize);
                if (at == first) != (step == values.len()) {
                    return Err(format!(
                        "the cycle from object {first} on is broken after {step} steps, at object {at}"
                    ));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
