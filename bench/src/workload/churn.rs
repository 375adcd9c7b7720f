//! Objects that come and go: entries that name an object by fat pointer, or none.
//!
//! An entry's data is the pointer, and the id of the write by which the object got its incarnation. The
//! object carries that id, too: who reads an object that a pointer names must find the same in it.

use farm_core::alloc::SizeClass;
use farm_core::object::FatPointer;
use farm_core::object::Image;
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use farm_txn::{ObjectId as TxObject, Tx};
use rand::Rng;

use super::client::{self, Doing};
use super::script::{Got, Read, Script, Torn, Want};
use super::value::{LEAST_BYTES, Value};
use super::{Kind, work};

/// An object that an entry named when it was read without locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    entry: usize,
    born: u64,
    pointer: FatPointer,
}

fn pointer(value: &Value) -> Option<FatPointer> {
    let [address, rest, _] = value.data;
    FatPointer::from_words([address, rest]).filter(|pointer| !pointer.address.is_null())
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
    New { old: Option<TxObject> },
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
        match self.step {
            Step::Entry => {
                let Some(read) = script.read(tx, &got)? else {
                    return Ok(Want::Read(self.entry));
                };
                self.read = Some(read);
                let Some(pointer) = pointer(&read.value) else {
                    return Ok(self.allocate(script, None));
                };
                self.step = Step::Named(pointer);
                Ok(Want::Follow(pointer))
            }
            Step::Named(pointer) => Ok(self.named(script, tx, pointer, got)),
            Step::New { old } => {
                if let (Got::Object(new), Some(read)) = (got, self.read) {
                    old.into_iter().for_each(|old| tx.free(old));
                    let data = born(script, tx, new);
                    script.write(tx, read, data);
                }
                Ok(Want::Commit)
            }
        }
    }

    fn allocate(&mut self, script: &mut Script, old: Option<TxObject>) -> Want {
        self.step = Step::New { old };
        Want::Allocate {
            bytes: script
                .rng
                .random_range(LEAST_BYTES..=script.spec.named_bytes.max(LEAST_BYTES)),
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
        if !meant || !found.as_ref().is_ok_and(|found| found.data[0] == born_by) {
            let why =
                format!("entry {entry} names an object born by {born_by}, and there is {found:?}");
            script.broken.push(why);
            return Want::Commit;
        }
        match script.rng.random_range(0..4) {
            0 => {
                tx.free(named);
                script.write(tx, read, [0; 3]);
                Want::Commit
            }
            1 => self.allocate(script, Some(named)),
            choice => {
                renew(script, tx, named, read, choice == 2);
                Want::Commit
            }
        }
    }
}

/// Writes the object that an entry names, which may get a new incarnation.
fn renew(script: &mut Script, tx: &mut Tx, named: TxObject, read: Read, incarnation: bool) {
    let id = script.next_id();
    let mut born_by = read.value.data[2];
    if incarnation {
        // Pointers to the object as it was stop naming it.
        tx.increment_incarnation(named);
        born_by = id.0;
    }
    let new = Value {
        id,
        data: [born_by, 0, 0],
        ..Value::default()
    };
    new.write(tx.payload_mut(named));
    let [address, rest] = tx.pointer(named).to_words();
    script.write(tx, read, [address, rest, born_by]);
}

/// Makes a new object carry the id of the entry's write, and gives the entry's data.
fn born(script: &mut Script, tx: &mut Tx, object: TxObject) -> [u64; 3] {
    let id = script.next_id();
    let value = Value {
        id,
        data: [id.0, 0, 0],
        ..Value::default()
    };
    value.write(tx.payload_mut(object));
    let [address, rest] = tx.pointer(object).to_words();
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
        })
    }
}

/// Reads the object that an entry named, without locks.
pub(super) fn follow(worker: &mut Worker, client: usize, named: Named) {
    work(worker).clients[client].doing = Doing::Named(named);
    read(worker, client as u64, ());
}

fn read(worker: &mut Worker, client: u64, (): ()) {
    let Doing::Named(named) = work(worker).clients[client as usize].doing else {
        return;
    };
    let bytes = SizeClass::new(named.pointer.class).object_bytes();
    let request = ReadRequest::object(named.pointer.address, bytes);
    if worker
        .read_lock_free(request, Cont::new(came, client))
        .is_err()
    {
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
        Err(_) => return client::ended(worker, index),
    };
    let bytes = SizeClass::new(named.pointer.class).object_bytes();
    let words = &worker.arena().words(&slot)[..bytes / 8];
    let incarnation = Image::check(words)
        .expect("a consistent image")
        .incarnation();
    let (version, payload) = client::image_of(words, bytes);
    worker.arena().give(slot);
    if named.pointer.names(incarnation) {
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
