//! Objects that come and go: entries that name an object by fat pointer, or none.
//!
//! An entry's data is the pointer, and the id of the write by which the object got its incarnation. The
//! object carries that id, too: who reads an object that a pointer names must find the same in it.

use farm_core::alloc::SizeClass;
use farm_core::object::FatPointer;
use farm_core::object::Image;
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use rand::Rng;

use super::client::{self, Doing};
use super::execute::{Stop, Try};
use super::value::{LEAST_BYTES, Value};
use super::{Kind, work};

/// Bytes of the largest object, above the least: more size classes than the simulator's machines have
/// blocks to spare, so that blocks have to change theirs.
const SPREAD_BYTES: usize = 600;

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
pub(super) fn transact(one: &mut Try<'_>) -> Result<(), Stop> {
    let entry = one.rng.random_range(0..one.spec.objects_per_machine);
    let (object, value) = one.read(entry)?;
    let Some(pointer) = pointer(&value) else {
        let data = allocate(one)?;
        one.write(entry, object, &value, data);
        return Ok(());
    };
    let class = SizeClass::new(pointer.class);
    let named = match one.tx.read_class(one.worker, pointer.address, class) {
        Ok(named) => named,
        // The entry was read before another transaction changed it, which validation finds out.
        Err(farm_txn::TxError::NotAllocated(_)) => {
            one.broken.push(format!(
                "entry {entry} names {:?}, which is not there",
                pointer.address
            ));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let found = Value::read(one.tx.payload(named));
    let meant = pointer.names(one.tx.incarnation(named));
    let born = value.data[2];
    if !meant || !found.is_ok_and(|found| found.data[0] == born) {
        let why = format!("entry {entry} names an object born by {born}, and there is {found:?}");
        one.broken.push(why);
        return Ok(());
    }
    match one.rng.random_range(0..4) {
        0 => {
            one.tx.free(named);
            one.write(entry, object, &value, [0; 3]);
        }
        1 => {
            one.tx.free(named);
            let data = allocate(one)?;
            one.write(entry, object, &value, data);
        }
        choice => {
            let id = one.next_id();
            let mut born = born;
            if choice == 2 {
                // Pointers to the object as it was stop naming it.
                one.tx.increment_incarnation(named);
                born = id.0;
            }
            let new = Value {
                id,
                data: [born, 0, 0],
                ..Value::default()
            };
            new.write(one.tx.payload_mut(named));
            let [address, rest] = one.tx.pointer(named).to_words();
            one.write(entry, object, &value, [address, rest, born]);
        }
    }
    Ok(())
}

/// Makes an object that carries the id of the entry's write, and gives the entry's data.
fn allocate(one: &mut Try<'_>) -> Result<[u64; 3], Stop> {
    let bytes = LEAST_BYTES + one.rng.random_range(0..=SPREAD_BYTES);
    let object = one.tx.alloc(one.worker, bytes, None)?;
    let id = one.next_id();
    let value = Value {
        id,
        data: [id.0, 0, 0],
        ..Value::default()
    };
    value.write(one.tx.payload_mut(object));
    let [address, rest] = one.tx.pointer(object).to_words();
    Ok([address, rest, id.0])
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
    let bytes = SizeClass::new(named.pointer.class).object_bytes() as u32;
    let request = ReadRequest {
        address: named.pointer.address,
        stride: bytes,
        bytes,
    };
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
