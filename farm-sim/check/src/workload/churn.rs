//! Objects that are allocated and freed: entries that name an object by fat pointer, or none.
//!
//! An entry's data is the pointer, and the id of the write by which the object got its incarnation. The object carries
//! that id too: a reader of an object that a pointer names must find the same id in it. An object may be the first of
//! an array, which is allocated and freed as a whole; each member carries the array's id.
//!
//! Clients also keep pointers and follow them later, when the memory may store objects of other sizes. They also read
//! objects with a wrong size, which the platform must refuse.

use farm_core::object::FatPointer;
use farm_txn::{ObjectId as TxObject, Tx};
use rand::Rng;

use super::named::pointer;
use super::notes::{Got, Notes, Read, Torn, Want};
use super::value::{LEAST_BYTES, Value};

/// Maximum number of members of an array.
const MOST_MEMBERS: u32 = 3;

/// One transaction on one entry.
pub(super) struct Churn {
    entry: usize,
    read: Option<Read>,
    step: Step,
}

enum Step {
    Entry,
    Named(FatPointer),
    /// The members of an array that is to be freed. `another`: whether new objects replace it.
    Members {
        array: u64,
        another: bool,
    },
    New {
        old: Vec<TxObject>,
    },
}

impl Churn {
    pub(super) fn new(entry: usize) -> Self {
        Self {
            entry,
            read: None,
            step: Step::Entry,
        }
    }

    pub(super) fn next(&mut self, notes: &mut Notes, tx: &mut Tx, got: Got) -> Result<Want, Torn> {
        match &mut self.step {
            Step::Entry => {
                let Some(read) = notes.read(tx, &got)? else {
                    return Ok(Want::Read(self.entry));
                };
                self.read = Some(read);
                let Some(pointer) = pointer(&read.value) else {
                    return Ok(self.replace(notes, tx, vec![], true));
                };
                self.step = Step::Named(pointer);
                Ok(Want::Follow(pointer))
            }
            Step::Named(pointer) => {
                let pointer = *pointer;
                Ok(self.named(notes, tx, pointer, got))
            }
            Step::Members { array, another } => {
                let (array, another) = (*array, *another);
                Ok(self.members(notes, tx, got, (array, another)))
            }
            Step::New { old } => {
                let old = std::mem::take(old);
                if let Some(read) = self.read {
                    let mut new = match got {
                        Got::Object(new) => vec![new],
                        Got::Objects(new) => new.into_iter().flatten().collect(),
                        Got::Nothing | Got::NotThere => return Ok(Want::Commit),
                    };
                    if new.len() > 1 && notes.rng.random_bool(0.5) {
                        // Sometimes one member is freed before the others.
                        new.pop().into_iter().for_each(|last| tx.free(last));
                    }
                    old.into_iter().for_each(|old| tx.free(old));
                    let data = born(notes, tx, &new);
                    notes.write(tx, read, data);
                }
                Ok(Want::Commit)
            }
        }
    }

    /// Frees the old objects. If `another`, allocates new ones first.
    fn replace(
        &mut self,
        notes: &mut Notes,
        tx: &mut Tx,
        old: Vec<TxObject>,
        another: bool,
    ) -> Want {
        if !another {
            let read = self
                .read
                .expect("the script reads the entry in a step before this one");
            old.into_iter().for_each(|old| tx.free(old));
            notes.write(tx, read, [0; 3]);
            return Want::Commit;
        }
        self.step = Step::New { old };
        let count = match notes.rng.random_range(0..4) {
            0 => notes.rng.random_range(2..=MOST_MEMBERS),
            _ => 1,
        };
        // All members must fit one record of a log.
        let most = notes.spec.named_bytes / count as usize;
        Want::Allocate {
            bytes: notes.rng.random_range(LEAST_BYTES..=most.max(LEAST_BYTES)),
            count,
            near: self.entry,
        }
    }

    /// Handles the object that the entry names.
    fn named(&mut self, notes: &mut Notes, tx: &mut Tx, pointer: FatPointer, got: Got) -> Want {
        let (entry, read) = (
            self.entry,
            self.read
                .expect("the script reads the entry in a step before this one"),
        );
        let Got::Object(named) = got else {
            // Not a violation if another transaction changed the entry meanwhile: then validation fails, and `broken`
            // is ignored.
            let address = pointer.address;
            let why = format!(
                "churn entry {entry} names an object at {address:?}, which is not allocated"
            );
            notes.broken.push(why);
            return Want::Commit;
        };
        let found = Value::read(tx.payload(named));
        let meant = pointer.names(tx.incarnation(named));
        let born_by = read.value.data[2];
        let found = match found {
            Ok(found) if meant && found.data[0] == born_by => found,
            found => {
                let why = format!(
                    "churn entry {entry} names an object that write {born_by} created, but the object contains {found:?}"
                );
                notes.broken.push(why);
                return Want::Commit;
            }
        };
        let [_, members, array] = found.data;
        match notes.rng.random_range(0..4) {
            choice @ (0 | 1) if members > 1 => {
                let another = choice == 1;
                self.step = Step::Members { array, another };
                Want::FollowAll(pointer, members as u32)
            }
            choice @ (0 | 1) => self.replace(notes, tx, vec![named], choice == 1),
            choice => {
                renew(notes, tx, (named, found), read, choice == 2);
                Want::Commit
            }
        }
    }

    /// Checks all members of the array that the entry names: each must exist and carry the array's id.
    fn members(
        &mut self,
        notes: &mut Notes,
        tx: &mut Tx,
        got: Got,
        (array, another): (u64, bool),
    ) -> Want {
        let Got::Objects(all) = got else {
            let why = format!(
                "churn entry {} names array {array}, which is not allocated",
                self.entry
            );
            notes.broken.push(why);
            return Want::Commit;
        };
        for member in &all {
            let found = member.map(|member| Value::read(tx.payload(member)));
            if !matches!(&found, Some(Ok(found)) if found.data[2] == array) {
                let why = format!(
                    "churn entry {} names array {array}, but a member of that array contains {found:?}",
                    self.entry
                );
                notes.broken.push(why);
                return Want::Commit;
            }
        }
        self.replace(notes, tx, all.into_iter().flatten().collect(), another)
    }
}

/// Writes the object that an entry names. If `incarnation`, the object gets a new incarnation.
fn renew(
    notes: &mut Notes,
    tx: &mut Tx,
    (named, found): (TxObject, Value),
    read: Read,
    incarnation: bool,
) {
    let id = notes.next_id();
    let [mut born_by, members, array] = found.data;
    if incarnation {
        // Older pointers no longer name the object.
        tx.increment_incarnation(named);
        born_by = id.0;
    }
    let new = Value {
        id,
        data: [born_by, members, array],
        ..Value::default()
    };
    new.write(tx.payload_mut(named));
    let [address, rest] = tx.pointer(named).to_words();
    notes.write(tx, read, [address, rest, born_by]);
}

/// Writes the id of the entry's write to new objects. Returns the entry's data, which names the first of them.
fn born(notes: &mut Notes, tx: &mut Tx, objects: &[TxObject]) -> [u64; 3] {
    let id = notes.next_id();
    let value = Value {
        id,
        data: [id.0, objects.len() as u64, id.0],
        ..Value::default()
    };
    for object in objects {
        value.write(tx.payload_mut(*object));
    }
    let [address, rest] = tx.pointer(objects[0]).to_words();
    [address, rest, id.0]
}
