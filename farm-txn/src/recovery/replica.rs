//! The objects of a machine's replicas while it recovers: what [`Step`](super::message::Step)s and drains do to them.
//!
//! The transaction that locked an object has ended or waits for recovery, so its lock is taken over. Values are installed where they
//! are newer, so that all of this can be repeated.

use std::collections::BTreeSet;

use farm_core::alloc::BlockTable;
use farm_core::ids::Address;
use farm_core::object::{LockMode, VersionWord, write};
use farm_core::{marks, mutants};

use super::undecided::{Body, EndedHere};
use crate::record::Object;
pub use crate::replica::ReplicaError;
use crate::replica::{install, place};

/// Does what is left of a transaction that has ended, in one region. `kept` are the objects of undecided transactions of which this
/// machine has values: if it is the primary, their locks stay. On a backup nothing frees a lock if the undecided transaction aborts, so
/// none stays: with it, the backup would apply no later change.
///
/// # Errors
/// [`ReplicaError`] if a record names an object that the replica cannot have.
pub fn end(
    table: &BlockTable,
    ended: &EndedHere,
    (kept, is_primary): (&BTreeSet<Address>, bool),
) -> Result<(), ReplicaError> {
    let bodies = ended.of.iter().filter(|one| one.0 == table.region());
    for object in bodies.flat_map(|one| one.1.objects_in(one.0)) {
        for one in object.each() {
            let keeps_lock = is_primary && kept.contains(&one.address);
            if ended.committed {
                apply(table, &one, keeps_lock)?;
            } else {
                place(table, &Object { block: 0, ..one })?;
                if !keeps_lock {
                    free_lock(table, one.address);
                }
            }
        }
    }
    Ok(())
}

/// Locks the objects of an undecided transaction in one region.
///
/// # Errors
/// [`ReplicaError`] if the record names an object that the replica cannot have.
pub fn lock(table: &BlockTable, body: &Body) -> Result<(), ReplicaError> {
    let objects = body.objects_in(table.region()).flat_map(Object::each);
    for object in objects {
        // The head of its block is written when the transaction commits.
        let object = Object { block: 0, ..object };
        let (memory, at) = place(table, &object)?;
        write::take_over(memory, at);
    }
    Ok(())
}

/// Installs the values of a committed transaction in a backup.
///
/// # Errors
/// [`ReplicaError`] if the record names an object that the replica cannot have.
pub fn apply_all(table: &BlockTable, body: &Body) -> Result<(), ReplicaError> {
    let mut objects = body.objects_in(table.region()).flat_map(Object::each);
    objects.try_for_each(|object| apply(table, &object, false))
}

/// Installs the newest value of an object that recovery has locked, if there is one, and unlocks it. `bodies` are those of all
/// transactions that commit, oldest first.
///
/// # Errors
/// [`ReplicaError`] if a record names an object that the replica cannot have.
pub fn release(table: &BlockTable, address: Address, bodies: &[Body]) -> Result<(), ReplicaError> {
    let objects = bodies.iter().filter_map(|body| body.object(address));
    let mut newest = None;
    for object in objects {
        // Any of them may be the only one that has the head of the block.
        place(table, &object)?;
        newest = Some(object);
    }
    match newest {
        Some(object) => apply(table, &object, false)?,
        None => free_lock(table, address),
    }
    Ok(())
}

/// Installs a value where it is newer. Then unlocks the object, unless it keeps its lock.
fn apply(table: &BlockTable, object: &Object<'_>, keeps_lock: bool) -> Result<(), ReplicaError> {
    let (memory, at) = place(table, object)?;
    let next = object.version.next();
    let now = write::load_version(memory, at);
    // A new object gets its version before its value. If its writer was killed between them, it is still locked.
    let may_be_half_written = now == VersionWord::of(next, LockMode::Exclusive);
    let is_installed = now.version() >= next && !may_be_half_written;
    if is_installed && !mutants::is_on("recovery installs older values") {
        if !keeps_lock {
            free_lock(table, object.address);
        }
        return Ok(());
    }
    write::take_over(memory, at);
    install(memory, at, object);
    if keeps_lock {
        write::take_over(memory, at);
    }
    Ok(())
}

/// Unlocks an object, whoever holds the lock.
fn free_lock(table: &BlockTable, address: Address) {
    let (memory, at) = (table.memory(), address.offset() as usize);
    let now = write::load_version(memory, at);
    if now.mode() != LockMode::Unlocked {
        marks::mark("recovery: a lock of a transaction that has ended is freed");
        write::unlock(memory, at, now.version());
    }
}

#[cfg(test)]
mod tests {
    use farm_core::alloc::SizeClass;
    use farm_core::ids::RegionId;
    use farm_core::mem::Memory;
    use farm_core::object::{Incarnation, Version};
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;
    use crate::record::{self, Effect, TxId};

    const BLOCK_BYTES: usize = 4096;

    fn table() -> BlockTable {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let region = RegionId::new(1, 1).unwrap();
        let memory = Memory::anonymous(16 * BLOCK_BYTES);
        BlockTable::format(memory, region, BLOCK_BYTES, &mut rng).unwrap()
    }

    /// Returns the body of a transaction that has read a version of one object.
    fn body(address: Address, read: u64, effect: Effect, block: u64) -> Body {
        let class = SizeClass::new(0);
        let payload = [read as u8; 8];
        let payload = match effect {
            Effect::Format => &[],
            _ => &payload[..],
        };
        let object = Object {
            address,
            class,
            version: Version::new(read),
            incarnation: Incarnation::new(class, 1).allocated(),
            effect,
            block,
            count: 1,
            payload,
        };
        let mut bytes = vec![0; record::FIXED_BYTES];
        record::encode_lock(&mut bytes, 0, &[address.region().to_bits()], 1);
        record::encode_object(&mut bytes, &object);
        Body::new(&bytes).unwrap()
    }

    fn header(table: &BlockTable, address: Address) -> VersionWord {
        write::load_version(table.memory(), address.offset() as usize)
    }

    fn of(version: u64, mode: LockMode) -> VersionWord {
        VersionWord::of(Version::new(version), mode)
    }

    #[test]
    fn locks_are_taken_over_and_freed_with_the_newest_value() {
        let table = table();
        let address = Address::new(table.region(), 4 * BLOCK_BYTES as u32);
        // A block of one slab, which worker 0 owns.
        let word = 1 << 56 | 1;
        let new = body(address, 6, Effect::Allocate, word);
        let (older, newer) = (
            body(address, 7, Effect::Write, 0),
            body(address, 8, Effect::Write, 0),
        );
        // Both transactions name it, and only one of their locks was granted.
        lock(&table, &older).unwrap();
        lock(&table, &newer).unwrap();
        assert_eq!(header(&table, address), of(0, LockMode::Exclusive));
        assert!(table.object_at(address.offset()).is_err(), "no block yet");
        let bodies = [new.clone(), older.clone(), newer.clone()];
        for _ in 0..2 {
            release(&table, address, &bodies).unwrap();
            assert_eq!(header(&table, address), of(9, LockMode::Unlocked));
            assert!(table.object_at(address.offset()).is_ok());
        }
        apply_all(&table, &older).unwrap();
        assert_eq!(header(&table, address), of(9, LockMode::Unlocked));
        lock(&table, &newer).unwrap();
        release(&table, address, &[]).unwrap();
        assert_eq!(header(&table, address), of(9, LockMode::Unlocked));

        let other = body(Address::new(table.region(), 64), 1, Effect::Write, 0);
        assert!(lock(&table, &other).is_err(), "the block table");
        assert!(apply_all(&table, &other).is_err(), "the block table");
    }

    /// A primary or backup was killed while it wrote a new object: the version is there, and the value is not.
    #[test]
    fn a_half_written_object_is_written_again() {
        let table = table();
        let address = Address::new(table.region(), 4 * BLOCK_BYTES as u32);
        let at = address.offset() as usize;
        let new = body(address, 6, Effect::Format, 1 << 56 | 1);
        let half_written = |table: &BlockTable| {
            let word = of(7, LockMode::Exclusive).0;
            table
                .memory()
                .store(at, word, std::sync::atomic::Ordering::Relaxed);
        };
        for released in [false, true] {
            half_written(&table);
            match released {
                true => {
                    lock(&table, &new).unwrap();
                    release(&table, address, std::slice::from_ref(&new)).unwrap();
                }
                false => apply_all(&table, &new).unwrap(),
            }
            assert_eq!(header(&table, address), of(7, LockMode::Unlocked));
            let incarnation = write::load_incarnation(table.memory(), at);
            assert!(incarnation.is_allocated());
        }
    }

    /// The same, when a transaction that is undecided has read the object elsewhere and names it: it is written, and stays locked. It once
    /// stayed half-written for ever if that transaction aborted.
    #[test]
    fn a_half_written_object_is_written_again_under_the_lock_of_another_transaction() {
        let table = table();
        let address = Address::new(table.region(), 4 * BLOCK_BYTES as u32);
        let at = address.offset() as usize;
        let word = of(7, LockMode::Exclusive).0;
        table
            .memory()
            .store(at, word, std::sync::atomic::Ordering::Relaxed);
        let ended = ended(&table, true, body(address, 6, Effect::Format, 1 << 56 | 1));
        for _ in 0..2 {
            end(&table, &ended, (&BTreeSet::from([address]), true)).unwrap();
            assert_eq!(header(&table, address), of(7, LockMode::Exclusive));
            assert!(write::load_incarnation(table.memory(), at).is_allocated());
        }
        release(&table, address, &[]).unwrap();
        assert_eq!(header(&table, address), of(7, LockMode::Unlocked));
    }

    fn ended(table: &BlockTable, committed: bool, body: Body) -> EndedHere {
        let coordinator = farm_core::ids::WorkerRef::new(
            farm_core::ids::MachineId::new(1).unwrap(),
            farm_core::ids::WorkerId::FIRST,
        );
        EndedHere {
            id: TxId {
                configuration: 1,
                coordinator,
                sequence: 5,
            },
            committed,
            of: vec![(table.region(), body)],
        }
    }

    /// It once kept a lock for a transaction that was undecided and aborted. All later changes waited for it, so that logs became full and
    /// the cluster stood still.
    #[test]
    fn a_backup_keeps_no_lock() {
        let table = table();
        let address = Address::new(table.region(), 4 * BLOCK_BYTES as u32);
        let ended = ended(
            &table,
            true,
            body(address, 6, Effect::Allocate, 1 << 56 | 1),
        );
        let kept = BTreeSet::from([address]);
        for is_half_written in [false, true] {
            if is_half_written {
                write::take_over(table.memory(), address.offset() as usize);
            }
            end(&table, &ended, (&kept, false)).unwrap();
            assert_eq!(header(&table, address), of(7, LockMode::Unlocked));
        }
    }

    #[test]
    fn ended_transactions_leave_no_lock_but_those_of_others() {
        let table = table();
        let address = Address::new(table.region(), 4 * BLOCK_BYTES as u32);
        let kept = BTreeSet::from([address]);
        for (committed, version) in [(true, 4), (false, 4), (true, 6)] {
            let change = body(address, version - 1, Effect::Write, 0);
            let ended = ended(&table, committed, change);
            write::take_over(table.memory(), address.offset() as usize);
            end(&table, &ended, (&kept, true)).unwrap();
            let mode = header(&table, address).mode();
            assert_eq!(mode, LockMode::Exclusive, "{version}");
            end(&table, &ended, (&BTreeSet::new(), true)).unwrap();
            assert_eq!(header(&table, address), of(version, LockMode::Unlocked));
        }
    }
}
