//! Objects that come and go: entries that name an object by fat pointer, or none.
//!
//! An entry's data is the pointer, and the id of the write by which the object got its incarnation. The
//! object carries that id, too: who reads an object that a pointer names must find the same in it. An object
//! may be the first of an array, which comes and goes as a whole: each member carries the array's id.
//!
//! Clients also keep pointers and follow them later, when the memory may serve objects of other sizes. And they
//! read objects with a wrong size, which the platform must refuse.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Image};
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use farm_txn::{ObjectId as TxObject, Tx};
use rand::Rng;

use super::client::{self, Doing};
use super::script::{Got, Read, Script, Torn, Want};
use super::value::{LEAST_BYTES, Value};
use super::{Kind, work};

/// Objects of the longest array.
const MOST_MEMBERS: u32 = 3;
/// Most pointers that a worker keeps.
const MOST_KEPT: usize = 32;

/// An object that an entry named when it was read without locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    entry: usize,
    born: u64,
    pointer: FatPointer,
    /// Size class of the read; another one than the pointer's in a read that must be refused.
    class: SizeClass,
    /// Whether the operation that read the entry is still open.
    is_fresh: bool,
}

fn pointer(value: &Value) -> Option<FatPointer> {
    let [address, rest, _] = value.data;
    FatPointer::from_words([address, rest]).filter(|pointer| !pointer.address.is_null())
}

/// Where a member of the array is whose first a pointer names.
pub(super) fn member(pointer: FatPointer, index: u32) -> Option<Address> {
    let bytes = pointer.class().object_bytes() as u32;
    pointer.address.checked_add(index.checked_mul(bytes)?)
}

/// One transaction on one entry.
pub(super) struct Churn {
    entry: usize,
    read: Option<Read>,
    step: Step,
}

enum Step {
    Entry,
    Named(FatPointer),
    /// What is to go is an array, which another may follow.
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

    pub(super) fn next(
        &mut self,
        script: &mut Script,
        tx: &mut Tx,
        got: Got,
    ) -> Result<Want, Torn> {
        match &mut self.step {
            Step::Entry => {
                let Some(read) = script.read(tx, &got)? else {
                    return Ok(Want::Read(self.entry));
                };
                self.read = Some(read);
                let Some(pointer) = pointer(&read.value) else {
                    return Ok(self.replace(script, tx, vec![], true));
                };
                self.step = Step::Named(pointer);
                Ok(Want::Follow(pointer))
            }
            Step::Named(pointer) => {
                let pointer = *pointer;
                Ok(self.named(script, tx, pointer, got))
            }
            Step::Members { array, another } => {
                let (array, another) = (*array, *another);
                Ok(self.members(script, tx, got, (array, another)))
            }
            Step::New { old } => {
                let old = std::mem::take(old);
                if let Some(read) = self.read {
                    let mut new = match got {
                        Got::Object(new) => vec![new],
                        Got::Objects(new) => new.into_iter().flatten().collect(),
                        Got::Nothing | Got::NotThere => return Ok(Want::Commit),
                    };
                    if new.len() > 1 && script.rng.random_bool(0.5) {
                        // One of an array may go before the others.
                        new.pop().into_iter().for_each(|last| tx.free(last));
                    }
                    old.into_iter().for_each(|old| tx.free(old));
                    let data = born(script, tx, &new);
                    script.write(tx, read, data);
                }
                Ok(Want::Commit)
            }
        }
    }

    /// Objects go, and others may come.
    fn replace(
        &mut self,
        script: &mut Script,
        tx: &mut Tx,
        old: Vec<TxObject>,
        another: bool,
    ) -> Want {
        if !another {
            let read = self.read.expect("the entry was read");
            old.into_iter().for_each(|old| tx.free(old));
            script.write(tx, read, [0; 3]);
            return Want::Commit;
        }
        self.step = Step::New { old };
        let count = match script.rng.random_range(0..4) {
            0 => script.rng.random_range(2..=MOST_MEMBERS),
            _ => 1,
        };
        // All of them are in one record of a log.
        let most = script.spec.named_bytes / count as usize;
        Want::Allocate {
            bytes: script.rng.random_range(LEAST_BYTES..=most.max(LEAST_BYTES)),
            count,
            near: self.entry,
        }
    }

    /// The object that the entry names, or should.
    fn named(&mut self, script: &mut Script, tx: &mut Tx, pointer: FatPointer, got: Got) -> Want {
        let (entry, read) = (self.entry, self.read.expect("the entry was read"));
        let Got::Object(named) = got else {
            // The entry was read before another transaction changed it, which validation finds out.
            let address = pointer.address;
            let why = format!("entry {entry} names {address:?}, which is not there");
            script.broken.push(why);
            return Want::Commit;
        };
        let found = Value::read(tx.payload(named));
        let meant = pointer.names(tx.incarnation(named));
        let born_by = read.value.data[2];
        let found = match found {
            Ok(found) if meant && found.data[0] == born_by => found,
            found => {
                let why = format!(
                    "entry {entry} names an object born by {born_by}, and there is {found:?}"
                );
                script.broken.push(why);
                return Want::Commit;
            }
        };
        let [_, members, array] = found.data;
        match script.rng.random_range(0..4) {
            choice @ (0 | 1) if members > 1 => {
                let another = choice == 1;
                self.step = Step::Members { array, another };
                Want::FollowAll(pointer, members as u32)
            }
            choice @ (0 | 1) => self.replace(script, tx, vec![named], choice == 1),
            choice => {
                renew(script, tx, (named, found), read, choice == 2);
                Want::Commit
            }
        }
    }

    /// All objects of an array whose first the entry names: each is there, and of this array.
    fn members(
        &mut self,
        script: &mut Script,
        tx: &mut Tx,
        got: Got,
        (array, another): (u64, bool),
    ) -> Want {
        let Got::Objects(all) = got else {
            let why = format!("array {array} of entry {} is not there", self.entry);
            script.broken.push(why);
            return Want::Commit;
        };
        for member in &all {
            let found = member.map(|member| Value::read(tx.payload(member)));
            if !matches!(&found, Some(Ok(found)) if found.data[2] == array) {
                let why = format!(
                    "entry {} names array {array}, and in it is {found:?}",
                    self.entry
                );
                script.broken.push(why);
                return Want::Commit;
            }
        }
        self.replace(script, tx, all.into_iter().flatten().collect(), another)
    }
}

/// Writes the object that an entry names, which may get a new incarnation.
fn renew(
    script: &mut Script,
    tx: &mut Tx,
    (named, found): (TxObject, Value),
    read: Read,
    incarnation: bool,
) {
    let id = script.next_id();
    let [mut born_by, members, array] = found.data;
    if incarnation {
        // Pointers to the object as it was stop naming it.
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
    script.write(tx, read, [address, rest, born_by]);
}

/// Makes new objects carry the id of the entry's write, and gives the entry's data, which names the first.
fn born(script: &mut Script, tx: &mut Tx, objects: &[TxObject]) -> [u64; 3] {
    let id = script.next_id();
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

impl Named {
    /// What an entry names.
    pub(super) fn by(kind: Kind, entry: usize, value: &Value) -> Option<Self> {
        let pointer = pointer(value).filter(|_| kind == Kind::Churn)?;
        Some(Self {
            entry,
            born: value.data[2],
            pointer,
            class: pointer.class(),
            is_fresh: true,
        })
    }
}

/// Reads the object that an entry named, without locks; one time in eight with a wrong size.
pub(super) fn follow(worker: &mut Worker, client: usize, mut named: Named) {
    let rng = &mut work(worker).clients[client].rng;
    if rng.random_bool(0.125) {
        let other = named.class.get() ^ rng.random_range(1..4);
        named.class = SizeClass::new(other);
    } else if rng.random_bool(0.5) {
        let (number, kept) = (rng.random_range(0..MOST_KEPT), &mut work(worker).kept);
        let named = Named {
            is_fresh: false,
            ..named
        };
        match kept.get_mut(number) {
            Some(older) => *older = named,
            None => kept.push(named),
        }
    }
    begin(worker, client, named);
}

/// Reads the object that a kept pointer names, outside of any operation. Returns false if the drawn place is empty.
pub(super) fn follow_kept(worker: &mut Worker, client: usize) -> bool {
    let work = work(worker);
    let number = work.clients[client].rng.random_range(0..MOST_KEPT);
    let Some(named) = work.kept.get(number).copied() else {
        return false;
    };
    begin(worker, client, named);
    true
}

fn begin(worker: &mut Worker, client: usize, named: Named) {
    work(worker).clients[client].doing = Doing::Named(named);
    read(worker, client as u64, ());
}

fn read(worker: &mut Worker, client: u64, (): ()) {
    let Doing::Named(named) = work(worker).clients[client as usize].doing else {
        return;
    };
    let cont = Cont::new(came, client);
    let posted = match named.is_fresh {
        true => worker.read_lock_free(
            ReadRequest::object(named.pointer.address, named.class),
            cont,
        ),
        false => worker.read_pointer_lock_free(named.pointer, cont),
    };
    if posted.is_err() {
        client::again_soon(worker, client, read);
    }
}

fn came(worker: &mut Worker, client: u64, result: ReadResult) {
    let index = client as usize;
    let Doing::Named(named) = work(worker).clients[index].doing else {
        return;
    };
    let slot = match result {
        Ok(slot) => slot,
        Err(ReadError::Busy) => return client::again_soon(worker, client, read),
        Err(ReadError::PeerLost(_)) => return client::end_all(worker),
        Err(error) => {
            let held = named.is_fresh && named.class == named.pointer.class();
            if held && !matches!(error, ReadError::StaysLocked(_)) {
                let why = format!(
                    "client {index} has an operation open on {}, named by entry {}, and its read failed: {error}",
                    named.pointer.address, named.entry
                );
                work(worker).log.violations.push(why);
            }
            return client::ended(worker, index);
        }
    };
    let bytes = named.class.object_bytes();
    let words = &worker.arena().words(&slot)[..bytes / 8];
    let incarnation = Image::check(words)
        .expect("a consistent image")
        .incarnation();
    let (version, payload) = client::image_of(words, bytes);
    worker.arena().give(slot);
    if named.class != named.pointer.class() {
        let why = format!(
            "client {index} read {} of version {version} with {bytes} bytes, and the object has {}",
            named.pointer.address,
            named.pointer.class().object_bytes()
        );
        work(worker).log.violations.push(why);
    } else if named.pointer.names(incarnation) {
        judge(worker, index, named, version, &payload);
    }
    client::ended(worker, index);
}

/// An object that a pointer still names is the one that was meant: of the same write, or updated since.
fn judge(worker: &mut Worker, client: usize, named: Named, version: u64, payload: &[u8]) {
    let found = Value::read(payload);
    if found
        .as_ref()
        .is_ok_and(|found| found.data[0] == named.born)
    {
        return;
    }
    let why = format!(
        "client {client} read {} of version {version}, which entry {} names as born by {}, and found \
         {found:?}",
        named.pointer.address, named.entry, named.born
    );
    work(worker).log.violations.push(why);
}
