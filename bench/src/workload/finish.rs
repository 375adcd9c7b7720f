//! What a worker must hold when nothing is under way any more.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::{FatPointer, LockMode, write};
use farm_core::worker::Worker;
use farm_txn::TxError;
use serde::{Deserialize, Serialize};

use super::objects::BALANCE;
use super::value::Value;
use super::{Kind, place, work};

/// What a worker holds. Over the workers of a machine the two are equal in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Slots that its allocator says are taken.
    pub taken: u64,
    /// Objects of its machine that there are; told by the machine's first worker.
    pub live: u64,
}

pub(super) fn finish(worker: &mut Worker) -> Result<Finished, String> {
    let me = worker.me();
    worker
        .check_slab()
        .map_err(|mismatch| format!("worker {me}: {mismatch}"))?;
    let classes = SizeClass::all();
    let taken = classes.map(|class| worker.slab_usage(class).live).sum();
    let mut finished = Finished { taken, live: 0 };
    if let Some(table) = work(worker).table {
        let facts =
            farm_kv::ops::check(worker, table).map_err(|why| format!("worker {me}: {why}"))?;
        finished.live = facts.iter().map(|shard| shard.blocks).sum();
    } else if me.worker.index() == 0 {
        finished.live = objects(worker).map_err(|why| format!("machine {}: {why}", me.machine))?;
    }
    Ok(finished)
}

/// Looks at the objects of this machine, and counts them and those that they name.
fn objects(worker: &mut Worker) -> Result<u64, String> {
    let (_, machine) = place(worker);
    let spec = work(worker).spec.clone();
    let first = machine * spec.objects_per_machine;
    let mut values = Vec::with_capacity(spec.objects_per_machine);
    let mut live = 0;
    for object in first..first + spec.objects_per_machine {
        let address = work(worker).addresses[object];
        let class =
            farm_core::alloc::class_for_payload(spec.payload()).map_err(|e| e.to_string())?;
        let value =
            look(worker, address, class).map_err(|why| format!("object {object}: {why}"))?;
        live += 1;
        let [one, two, born] = value.data;
        let named = FatPointer::from_words([one, two]).filter(|pointer| !pointer.address.is_null());
        if let Some(pointer) = named.filter(|_| spec.kind == Kind::Churn) {
            let class = SizeClass::new(pointer.class);
            let named = look(worker, pointer.address, class)
                .map_err(|why| format!("what entry {object} names: {why}"))?;
            if named.data[0] != born {
                return Err(format!(
                    "entry {object} names {named:?}, not what was born by {born}"
                ));
            }
            live += 1;
        }
        values.push(value);
    }
    invariant(spec.kind, &values)?;
    Ok(live)
}

fn look(worker: &mut Worker, address: Address, class: SizeClass) -> Result<Value, String> {
    let (memory, at) = worker
        .local_memory(address)
        .map_err(|error| error.to_string())?;
    if write::load_version(memory, at).mode() != LockMode::Unlocked {
        return Err("a lock is left on it".into());
    }
    let mut tx = farm_txn::take(worker);
    let value = tx
        .read_class(worker, address, class)
        .map_err(|error: TxError| error.to_string())
        .and_then(|read| Value::read(tx.payload(read)).map_err(|torn| torn.to_string()));
    farm_txn::give(worker, tx);
    value
}

fn invariant(kind: Kind, values: &[Value]) -> Result<(), String> {
    match kind {
        Kind::Bank => {
            let sum = values
                .iter()
                .fold(0u64, |sum, value| sum.wrapping_add(value.data[0]));
            match sum == BALANCE * values.len() as u64 {
                true => Ok(()),
                false => Err(format!("its accounts sum up to {sum}")),
            }
        }
        Kind::Cycle => {
            let mut at = 0;
            for step in 1..=values.len() {
                at = values[at].data[0] as usize;
                if at >= values.len() || (at == 0) != (step == values.len()) {
                    return Err(format!("its cycle is broken after {step} steps, at {at}"));
                }
            }
            Ok(())
        }
        Kind::Append | Kind::Table | Kind::Churn => Ok(()),
    }
}
