//! Arrays of adjacent objects in transactions (`FaRM'14 §3.2`): allocated together, and read as a whole by
//! one one-sided read.
//!
//! Each object of an array is one of the transaction, with a version of its own. It comes to be, is
//! validated, written and freed as any other; an array that is to go is freed object by object, and its
//! memory serves again when the last has come back. Room for a new one is reserved by the machine that
//! is to hold it, at once, and given back if the transaction aborts.
//!
//! What is too large for one transaction, as a table is, [`Worker::reserve_array`] reserves on the machine
//! itself.

use farm_core::alloc::{SizeClass, class_at};
use farm_core::ids::Address;
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::Image;
use farm_core::worker::{AddressError, Cont, ReadError, ReadRequest, ReadResult, Worker};

use crate::api::{self, TxHandle};
use crate::error::{Abort, TxError};
use crate::layer::{Slots, send_release_to, transactions};
use crate::remote::{elsewhere, error_of_read};
use crate::tx::{ObjectId, Place, Tx, wrong_size};

/// The objects of an array, in order; none where there is no object.
pub type Objects = Vec<Option<ObjectId>>;

/// Asks a machine to reserve room for an array near an address.
pub(crate) const ALLOC_ARRAY: MessageId = MessageId(MessageId::TXN + 3);
/// The address of its first object; nothing if there is no room.
const RESERVED_BYTES: usize = 8;

/// An array that is being read, or allocated.
pub(crate) struct AskedArray {
    tx: TxHandle,
    /// Of one that is allocated, near what it is to be, until it is reserved.
    first: Place,
    count: u32,
    cont: Hears,
    /// Why it was not even begun.
    failed: Option<TxError>,
}

/// Who hears of an array.
#[derive(Clone, Copy)]
enum Hears {
    Read(Cont<Result<Objects, TxError>>),
    Allocated(Cont<Result<Vec<ObjectId>, TxError>>),
}

impl AskedArray {
    fn slots(&self) -> Slots {
        Slots {
            first: self.first.address,
            class: self.first.class,
            count: self.count,
        }
    }

    fn address(&self, index: u32) -> Option<Address> {
        self.slots().address(index)
    }

    fn is_new(&self) -> bool {
        matches!(self.cont, Hears::Allocated(_))
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
            machine: elsewhere(worker, address),
            class,
        },
        count,
        cont: Hears::Read(cont),
        failed: None,
    };
    asked.failed = check(worker, &asked).err();
    begin(worker, asked, post);
}

/// Allocates `count` adjacent objects of one class: see [`api::alloc_array`].
pub(crate) fn alloc(
    worker: &mut Worker,
    tx: TxHandle,
    class: SizeClass,
    count: u32,
    hint: Option<Address>,
    cont: Cont<Result<Vec<ObjectId>, TxError>>,
) {
    let near = hint.unwrap_or(Address::NULL);
    let machine = elsewhere(worker, near);
    let mut asked = AskedArray {
        tx,
        first: Place {
            address: near,
            machine,
            class,
        },
        count,
        cont: Hears::Allocated(cont),
        failed: None,
    };
    let checked = check_room(worker, &asked);
    match machine {
        None => {
            let reserved = checked.and_then(|()| Ok(worker.reserve_array(class, count, hint)?));
            match reserved {
                Ok(array) => asked.first.address = array.first(),
                Err(error) => asked.failed = Some(error),
            }
            begin(worker, asked, post);
        }
        Some(_) => {
            asked.failed = checked.err();
            begin(worker, asked, ask);
        }
    }
}

fn begin(worker: &mut Worker, asked: AskedArray, first: fn(&mut Worker, u64, ())) {
    let fails = asked.failed.is_some();
    let key = transactions(worker).arrays.insert(asked) as u64;
    if fails {
        worker.defer(Cont::new(fail, key));
    } else {
        first(worker, key, ());
    }
}

/// Whether a new array can be one of its transaction.
fn check_room(worker: &mut Worker, asked: &AskedArray) -> Result<(), TxError> {
    if asked.count == 0 {
        return Err(AddressError::Nowhere(asked.first.address).into());
    }
    let class = asked.first.class;
    check_length(worker, class, asked.count)?;
    let count = asked.count as usize;
    let bytes = count * class.payload_capacity();
    api::with(worker, asked.tx, |tx, _| tx.check_limits_of(count, bytes))?
}

/// Whether one read brings so many objects.
pub(crate) fn check_length(
    worker: &mut Worker,
    class: SizeClass,
    count: u32,
) -> Result<(), TxError> {
    let bytes = class.object_bytes() * count as usize;
    let most = worker.arena().largest();
    if bytes > most {
        return Err(TxError::ArrayTooLong { bytes, most });
    }
    Ok(())
}

/// What can be told before it is read.
fn check(worker: &mut Worker, asked: &AskedArray) -> Result<(), TxError> {
    let (address, class) = (asked.first.address, asked.first.class);
    let nowhere = AddressError::Nowhere(address);
    let is_whole = asked.count > 0 && !address.is_null() && address.is_line_aligned();
    if !is_whole || asked.address(asked.count - 1).is_none() {
        return Err(nowhere.into());
    }
    check_length(worker, class, asked.count)?;
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
    let asked = &mut transactions(worker).arrays[key as usize];
    let error = asked.failed.take().expect("it failed");
    end(worker, key, Err(error));
}

fn end(worker: &mut Worker, key: u64, result: Result<Objects, TxError>) {
    let asked = transactions(worker).arrays.remove(key as usize);
    tell(worker, asked.cont, result);
}

fn tell(worker: &mut Worker, hears: Hears, result: Result<Objects, TxError>) {
    match hears {
        Hears::Read(cont) => cont.resume(worker, result),
        Hears::Allocated(cont) => {
            let all = result.map(|objects| objects.into_iter().flatten().collect());
            cont.resume(worker, all);
        }
    }
}

/// Asks another machine to reserve room.
fn ask(worker: &mut Worker, key: u64, (): ()) {
    let asked = &transactions(worker).arrays[key as usize];
    let machine = asked.first.machine.expect("another machine is asked");
    let body = asked.slots().encode();
    let cont = ReplyCont::new(reserved, key);
    let to = worker.log_poller(machine);
    match to.and_then(|to| worker.call(to, ALLOC_ARRAY, &[&body], RESERVED_BYTES, cont)) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, key)),
        // From the event loop: this may be the call that asks.
        Err(_) => {
            transactions(worker).arrays[key as usize].failed = Some(Abort::Lost(machine).into());
            worker.defer(Cont::new(fail, key));
        }
    }
}

fn reserved(worker: &mut Worker, key: u64, reply: Result<&[u8], CallError>) {
    let asked = &mut transactions(worker).arrays[key as usize];
    let machine = asked.first.machine.expect("another machine was asked");
    let Ok(reply) = reply else {
        return end(worker, key, Err(Abort::Lost(machine).into()));
    };
    let first = reply.try_into().ok().map(u64::from_le_bytes);
    match first.and_then(Address::from_bits) {
        Some(first) if !first.is_null() => {
            asked.first.address = first;
            post(worker, key, ());
        }
        _ => end(worker, key, Err(TxError::NoMemory(machine))),
    }
}

/// Reserves room for an array of another machine's transaction.
pub(crate) fn handle_alloc(worker: &mut Worker, request: Request, body: &[u8]) {
    let Some(asked) = Slots::decode(body) else {
        let why = "it asks for room for no array".into();
        return worker.distrust(request.from.machine, why);
    };
    match worker.reserve_array(asked.class, asked.count, Some(asked.first)) {
        Ok(array) => {
            let first = array.first().to_bits();
            worker.reply(request, &[&first.to_le_bytes()]);
        }
        Err(_) => {
            marks::mark("alloc: refused to another machine");
            worker.reply(request, &[]);
        }
    }
}

/// What was reserved for a new array is given back: it does not come to be.
fn give_back(worker: &mut Worker, asked: &AskedArray) {
    let slots = asked.slots();
    if let Some(machine) = asked.first.machine {
        return send_release_to(worker, machine, slots);
    }
    for address in (0..slots.count).filter_map(|index| slots.address(index)) {
        crate::commit::release(worker, address, slots.class);
    }
}

fn post(worker: &mut Worker, key: u64, (): ()) {
    let asked = &transactions(worker).arrays[key as usize];
    let first = asked.first;
    let bytes = first.class.object_bytes();
    let request = ReadRequest::objects(first.address, bytes, asked.count);
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
                let words = worker.arena().words(&slot);
                match asked.is_new() {
                    true => take_in_new(tx, words, &asked),
                    false => take_in(tx, words, &asked),
                }
            });
            worker.arena().give(slot);
            objects.and_then(|objects| objects)
        }
        Err(error) => Err(error_of_read(error, asked.first.address)),
    };
    if objects.is_err() && asked.is_new() {
        give_back(worker, &asked);
    }
    tell(worker, asked.cont, objects);
}

/// Adds new objects, at the versions and incarnations that their memory has: all of them, or none.
fn take_in_new(tx: &mut Tx, words: &[u64], asked: &AskedArray) -> Result<Objects, TxError> {
    let (place, count) = (asked.first, asked.count as usize);
    tx.check_limits_of(count, count * place.class.payload_capacity())?;
    let images = words.chunks_exact(place.class.object_bytes() / 8);
    let images: Vec<_> = images
        .take(count)
        .map(|words| Image::check(words).expect("a lock-free read gives whole objects"))
        .collect();
    if images
        .iter()
        .any(|image| image.incarnation().is_allocated())
    {
        return Err(AddressError::Nowhere(place.address).into());
    }
    let new = |(index, image): (u32, Image<'_>)| {
        let address = asked.address(index).expect("all of it was read");
        let place = Place { address, ..place };
        Some(tx.reserved(place, image.version(), image.incarnation()))
    };
    Ok((0..).zip(images).map(new).collect())
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
