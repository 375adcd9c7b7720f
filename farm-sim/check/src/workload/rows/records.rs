//! Converts rows, and transactions over rows, to accesses and key operations of a history.

use crate::history::{Access, KeyOperation, KeyRequest, KeyResult, ObjectId, WriteId};
use farm_bench::oltp::attempt::{self, Seen, Stamp, Trail};
use farm_bench::oltp::{RowName, Write};
use farm_bench::{smallbank, tatp};

/// Object numbers reserved for one subscriber of TATP.
const OF_SUBSCRIBER: u32 = 32;
/// The bit that marks the value that the load of a key recorded; values that transactions write do not have it.
pub(super) const LOADED_VALUE: u64 = 1 << 62;

/// Returns the object number, unique for each row, of a row in a table whose rows are neither inserted nor removed
/// after loading; `None` for other tables.
pub(super) fn object_of(name: &RowName) -> Option<ObjectId> {
    use tatp::names::{ACCESS_INFO, SPECIAL_FACILITY, SUB_NBR_INDEX, SUBSCRIBER};
    let (low, kind) = (name.key as u32, (name.key >> 32) as u32 & 0xFF);
    let object = match name.table {
        table if table == smallbank::account::SAVINGS => 2 * low,
        table if table == smallbank::account::CHECKING => 2 * low + 1,
        table if table == SUBSCRIBER => low * OF_SUBSCRIBER,
        table if table == ACCESS_INFO => low * OF_SUBSCRIBER + kind,
        table if table == SPECIAL_FACILITY => low * OF_SUBSCRIBER + 4 + kind,
        table if table == SUB_NBR_INDEX => tatp_index(name) * OF_SUBSCRIBER + 9,
        _ => return None,
    };
    Some(ObjectId(object))
}

/// Returns the subscriber of an index entry. The key holds the decimal digits of the subscriber's number, four bits
/// each.
fn tatp_index(name: &RowName) -> u32 {
    format!("{:x}", name.key).parse().unwrap_or(0)
}

/// Returns the key of a row in the table whose rows are inserted and removed; `None` for other tables.
pub(super) fn key_of(name: &RowName) -> Option<u64> {
    (name.table == tatp::names::CALL_FORWARDING).then_some(name.key)
}

pub(super) fn accesses(trail: &Trail) -> Vec<Access> {
    let mut accesses = Vec::new();
    for (name, Seen { row, stamp }) in trail.names.iter().zip(&trail.seen) {
        if let Some(object) = object_of(name).filter(|_| row.is_some()) {
            accesses.push(read_of(object, *stamp));
        }
    }
    let writes = trail.decision.iter().flat_map(|decision| &decision.writes);
    for (index, write) in writes.enumerate() {
        let Stamp { id, parent, .. } = trail.stamp_of(index);
        if let Some(object) = object_of(&attempt::name_of(write)) {
            let (id, parent) = (WriteId(id), WriteId(parent));
            accesses.push(Access::Write { object, id, parent });
        }
    }
    accesses
}

pub(super) fn read_of(object: ObjectId, stamp: Stamp) -> Access {
    Access::Read {
        object,
        version: stamp.version,
        id: WriteId(stamp.id),
        parent: WriteId(stamp.parent),
    }
}

/// Returns the key operations of a transaction that commits. If `with_results`, they include its reads and have results;
/// otherwise they are only its changes, without results.
pub(super) fn operations(
    trail: &Trail,
    client: u32,
    begun: u64,
    ended: u64,
    with_results: bool,
) -> Vec<KeyOperation> {
    let writes = trail.decision.iter().flat_map(|decision| &decision.writes);
    let writes: Vec<_> = writes.enumerate().collect();
    let mut operations = Vec::new();
    for (name, seen) in trail.names.iter().zip(&trail.seen) {
        let Some(key) = key_of(name) else { continue };
        let written = writes
            .iter()
            .find(|(_, write)| attempt::name_of(write) == *name);
        let (request, result) = match written {
            Some((index, Write::Insert(..) | Write::Update(..))) => {
                let id = trail.stamp_of(*index).id;
                (KeyRequest::Insert(id), KeyResult::Inserted)
            }
            Some((_, Write::Remove(_))) => (KeyRequest::Remove, KeyResult::Removed),
            None if with_results => {
                let value = seen.row.map(|_| match seen.stamp.id {
                    0 => LOADED_VALUE | key,
                    id => id,
                });
                (KeyRequest::Get, KeyResult::Value(value))
            }
            None => continue,
        };
        operations.push(KeyOperation {
            client,
            key,
            begun,
            ended,
            request,
            result: with_results.then_some(result),
        });
    }
    operations
}
