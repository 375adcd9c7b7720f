//! Arrays of adjacent objects in transactions (`FaRM'14 §3.2`): read as a whole, by one one-sided read.
//!
//! An array is allocated outside of transactions, for good, on the machine that is to hold it
//! ([`Worker::allocate_array`]), and its objects are installed there before anybody knows its address. Not
//! inside: a block of its own changes hands under the machine's lock and not under that of an object, so
//! no commit could validate or log it; of a machine that is lost between reservation and commit it would
//! be lost for good, as would that of an abort whose message does not arrive. What such an array is
//! for, a table that is made once, needs neither.
//!
//! Each object of an array is one of the transaction that reads it, with a version of its own: other
//! transactions may have changed one between reads of others, which commit finds out.

use farm_core::alloc::{SizeClass, class_at};
use farm_core::ids::{Address, MachineId};
use farm_core::worker::{AddressError, Cont, ReadError, ReadRequest, ReadResult, Worker};

use crate::api::{self, TxHandle};
use crate::error::TxError;
use crate::layer::transactions;
use crate::remote::error_of_read;
use crate::tx::{ObjectId, Place, Tx, wrong_size};

/// The objects of an array, in order; none where there is no object.
pub type Objects = Vec<Option<ObjectId>>;

/// An array that is being read.
pub(crate) struct AskedArray {
    tx: TxHandle,
    first: Place,
    count: u32,
    cont: Cont<Result<Objects, TxError>>,
    /// Why it was not even begun.
    failed: Option<TxError>,
}

impl AskedArray {
    fn bytes(&self) -> usize {
        self.first.class.object_bytes() * self.count as usize
    }

    fn address(&self, index: u32) -> Option<Address> {
        let offset = self.first.class.object_bytes() as u64 * u64::from(index);
        self.first.address.checked_add(u32::try_from(offset).ok()?)
    }
}

/// Reads `count` adjacent objects of one class: see [`api::read_array`].
pub(crate) fn read(
    worker: &mut Worker,
    tx: TxHandle,
    address: Address,
    class: SizeClass,
    count: u32,
    cont: Cont<Result<Objects, TxError>>,
) {
    let mut asked = AskedArray {
        tx,
        first: Place {
            address,
            machine: machine(worker, address),
            class,
        },
        count,
        cont,
        failed: None,
    };
    asked.failed = check(worker, &asked).err();
    let fails = asked.failed.is_some();
    let key = transactions(worker).arrays.insert(asked) as u64;
    if fails {
        worker.defer(Cont::new(fail, key));
    } else {
        post(worker, key, ());
    }
}

/// The other machine that an address is of; none for this one.
fn machine(worker: &Worker, address: Address) -> Option<MachineId> {
    if address.is_null() {
        return None;
    }
    let machine = worker.machine_of(address.region());
    (machine != worker.me().machine).then_some(machine)
}

/// What can be told before it is read.
fn check(worker: &mut Worker, asked: &AskedArray) -> Result<(), TxError> {
    let (address, class) = (asked.first.address, asked.first.class);
    let nowhere = AddressError::Nowhere(address);
    let is_whole = asked.count > 0 && !address.is_null() && address.is_line_aligned();
    if !is_whole || asked.address(asked.count - 1).is_none() {
        return Err(nowhere.into());
    }
    let most = worker.arena().largest();
    if asked.bytes() > most {
        return Err(TxError::ArrayTooLong {
            bytes: asked.bytes(),
            most,
        });
    }
    if asked.first.machine.is_some() {
        return Ok(());
    }
    let geometry = worker.store().geometry();
    let (memory, at) = worker.local_memory(address)?;
    for index in 0..asked.count as usize {
        match class_at(memory, geometry, at + index * class.object_bytes()) {
            Some((is, _)) if is != class => return Err(wrong_size(address, class, is)),
            Some((_, true)) => {}
            Some((_, false)) | None => return Err(nowhere.into()),
        }
    }
    Ok(())
}

fn fail(worker: &mut Worker, key: u64, (): ()) {
    let mut asked = transactions(worker).arrays.remove(key as usize);
    let error = asked.failed.take().expect("it failed");
    asked.cont.resume(worker, Err(error));
}

fn post(worker: &mut Worker, key: u64, (): ()) {
    let asked = &transactions(worker).arrays[key as usize];
    let request = ReadRequest {
        address: asked.first.address,
        stride: asked.first.class.object_bytes() as u32,
        bytes: asked.bytes() as u32,
    };
    if worker
        .read_lock_free(request, Cont::new(came, key))
        .is_err()
    {
        worker.when_room(Cont::new(post, key));
    }
}

fn came(worker: &mut Worker, key: u64, result: ReadResult) {
    if let Err(ReadError::Busy) = result {
        return worker.when_room(Cont::new(post, key));
    }
    let asked = transactions(worker).arrays.remove(key as usize);
    let objects = match result {
        Ok(slot) => {
            let objects = api::with(worker, asked.tx, |tx, worker| {
                take_in(tx, worker.arena().words(&slot), &asked)
            });
            worker.arena().give(slot);
            objects.and_then(|objects| objects)
        }
        Err(error) => Err(error_of_read(error, asked.first.address)),
    };
    asked.cont.resume(worker, objects);
}

/// Adds what was read, but for what the transaction has already.
fn take_in(tx: &mut Tx, words: &[u64], asked: &AskedArray) -> Result<Objects, TxError> {
    let Place { class, machine, .. } = asked.first;
    let words = words.chunks_exact(class.object_bytes() / 8);
    let mut objects = Vec::with_capacity(asked.count as usize);
    for (index, words) in (0..asked.count).zip(words) {
        let address = asked.address(index).expect("the last has an address");
        let object = match tx.known(address, class) {
            Some(known) => known,
            None => {
                tx.check_limits(class.payload_capacity())?;
                tx.take_in(words, address, machine, class)
            }
        };
        match object {
            Ok(object) => objects.push(Some(object)),
            Err(TxError::NotAllocated(_)) => objects.push(None),
            Err(error) => return Err(error),
        }
    }
    Ok(objects)
}
