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
//!
//! ```
//! # use std::sync::Arc;
//! # use farm_core::{config::Config, machine::start_all};
//! # use farm_txn::{Handle, TxError, block_on};
//! # let mut config = Config::tiny_for(2, 1);
//! # config.cluster.name = "doc-arrays".into();
//! # let machines = start_all(&config, &(Arc::new(farm_txn::attach) as _))?;
//! // Ten counters on this machine, read by one one-sided read from another.
//! let first = block_on(&machines[0], 0, |farm: Handle| async move {
//!     let mut tx = farm.begin();
//!     let counters = tx.alloc_array(8, 10, None).await?;
//!     for (index, counter) in counters.iter().enumerate() {
//!         tx.payload_mut(*counter)?[0] = index as u8;
//!     }
//!     let first = tx.address(counters[0])?;
//!     tx.commit().await?;
//!     Ok::<_, TxError>(first)
//! })??;
//! let sum = block_on(&machines[1], 0, move |farm: Handle| async move {
//!     let mut tx = farm.begin();
//!     let counters = tx.read_array(first, 8, 10).await?;
//!     let mut sum = 0;
//!     for counter in counters.into_iter().flatten() {
//!         sum += tx.payload(counter)?[0];
//!     }
//!     tx.commit().await?;
//!     Ok::<_, TxError>(sum)
//! })??;
//! assert_eq!(sum, 45);
//! # machines.into_iter().try_for_each(|machine| machine.stop())?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use farm_core::alloc::{AllocError, SizeClass};
use farm_core::ids::{Address, MachineId};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::Image;
use farm_core::worker::{AddressError, Cont, ReadResult, Worker};

use crate::api;
use crate::error::{Abort, TxError};
use crate::handle::TxHandle;
use crate::layer::transactions;
use crate::object_run::ObjectRun;
use crate::remote::elsewhere;
use crate::slots;
use crate::tx::{ObjectId, Place, Tx, is_slot};

/// The objects of an array, in order; none where there is no object.
pub type Objects = Vec<Option<ObjectId>>;

/// Asks a machine to reserve room for an array near an address.
pub(crate) const ALLOC_ARRAY: MessageId = MessageId(MessageId::TXN + 3);
/// The address of its first object; nothing if there is no room.
const RESERVED_BYTES: usize = 8;
/// An array that is being read, or allocated.
pub(crate) struct AskedArray {
    tx: TxHandle,
    /// Of one that is allocated, near what its first is to be, until it is reserved.
    objects: ObjectRun,
    /// The other machine that they lie on; none for this one.
    machine: Option<MachineId>,
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
    /// Where the object at an index is.
    fn place(&self, index: u32) -> Place {
        Place {
            address: self.objects.address(index).expect("all of it was read"),
            machine: self.machine,
            class: self.objects.class,
        }
    }

    fn is_new(&self) -> bool {
        matches!(self.cont, Hears::Allocated(_))
    }
}

/// Reads `count` adjacent objects of one class, wherever they are, by one one-sided read: an array, or a
/// part of one. Each is then an object of the transaction as if it had been read alone, and validated
/// as such; one that the transaction has already it keeps as it has it. Where there is no object the
/// continuation gets none, and commit validates that, too.
///
/// The continuation may get [`TxError::Address`] where this machine has no such objects;
/// [`TxError::EmptyArray`]; [`TxError::WrongSize`] as [`api::read_class`]; [`TxError::ArrayTooLong`]; [`TxError::Limit`], and
/// then the transaction may have some of them; and what [`api::read`] gets.
pub fn read_array(
    worker: &mut Worker,
    tx: TxHandle,
    address: Address,
    class: SizeClass,
    count: u32,
    cont: Cont<Result<Objects, TxError>>,
) {
    let mut asked = AskedArray {
        tx,
        objects: ObjectRun {
            first: address,
            class,
            count,
        },
        machine: elsewhere(worker, address),
        cont: Hears::Read(cont),
        failed: None,
    };
    asked.failed = check(worker, &asked).err();
    begin(worker, asked, post);
}

/// Allocates an array: `count` adjacent objects of one class, on the machine of `hint` if there is one, near
/// it if it can be. They are objects of the transaction like any others, to be read as a whole by
/// [`read_array`]; they come to be when it commits. [`api::free_array`] frees them.
///
/// The continuation may get what [`api::alloc`]'s gets; [`TxError::ArrayTooLong`];
/// [`TxError::EmptyArray`]. What is larger than a transaction may be is reserved on the machine itself, by
/// [`Worker::reserve_array`].
pub fn alloc_array(
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
        objects: ObjectRun {
            first: near,
            class,
            count,
        },
        machine,
        cont: Hears::Allocated(cont),
        failed: None,
    };
    let checked = check_room(worker, &asked);
    match machine {
        None => {
            match checked.and_then(|()| Ok(reserve(worker, class, count, hint)?)) {
                Ok(first) => asked.objects.first = first,
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
    let ObjectRun { class, count, .. } = asked.objects;
    if count == 0 {
        return Err(TxError::EmptyArray);
    }
    asked.objects.check_length(worker)?;
    let count = count as usize;
    let bytes = count * class.payload_capacity();
    api::with(worker, asked.tx, |tx, _| tx.check_limits_of(count, bytes))?
}

/// What can be told before it is read.
fn check(worker: &mut Worker, asked: &AskedArray) -> Result<(), TxError> {
    asked.objects.check(worker)?;
    if asked.machine.is_some() {
        return Ok(());
    }
    let geometry = worker.store().geometry();
    let (memory, first) = worker.local_memory(asked.objects.first)?;
    for index in 0..asked.objects.count {
        let Place { address, class, .. } = asked.place(index);
        let at = first + index as usize * class.object_bytes();
        if !is_slot((memory, geometry, at), address, class)? {
            return Err(AddressError::Nowhere(address).into());
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
    let machine = asked.machine.expect("another machine is asked");
    let body = asked.objects.encode();
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
    let machine = asked.machine.expect("another machine was asked");
    let Ok(reply) = reply else {
        return end(worker, key, Err(Abort::Lost(machine).into()));
    };
    let first = reply.try_into().ok().map(u64::from_le_bytes);
    match first.and_then(Address::from_bits) {
        Some(first) if !first.is_null() => {
            asked.objects.first = first;
            post(worker, key, ());
        }
        _ => end(worker, key, Err(TxError::NoMemory(machine))),
    }
}

/// Reserves room for an array on this machine and writes its first headers. Returns the address of its first object.
fn reserve(
    worker: &mut Worker,
    class: SizeClass,
    count: u32,
    near: Option<Address>,
) -> Result<Address, AllocError> {
    let array = worker.reserve_array(class, count, near)?;
    for index in 0..count {
        array.begin(index);
    }
    Ok(array.first())
}

/// Reserves room for an array of another machine's transaction.
pub(crate) fn handle_alloc(worker: &mut Worker, request: Request, body: &[u8]) {
    let Some(asked) = ObjectRun::decode(body) else {
        let why = "it asks for room for no array".into();
        return worker.distrust(request.from.machine, why);
    };
    match reserve(worker, asked.class, asked.count, Some(asked.first)) {
        Ok(first) => worker.reply(request, &[&first.to_bits().to_le_bytes()]),
        Err(_) => {
            marks::mark("alloc: refused to another machine");
            worker.reply(request, &[]);
        }
    }
}

/// What was reserved for a new array is given back: it does not come to be.
fn give_back(worker: &mut Worker, asked: &AskedArray) {
    let slots = asked.objects;
    if let Some(machine) = asked.machine {
        return slots::release_remote(worker, machine, slots);
    }
    for address in (0..slots.count).filter_map(|index| slots.address(index)) {
        slots::release_local(worker, address, slots.class);
    }
}

fn post(worker: &mut Worker, key: u64, (): ()) {
    let request = transactions(worker).arrays[key as usize].objects.request();
    if worker
        .read_lock_free(request, Cont::new(came, key))
        .is_err()
    {
        worker.when_slot(request.bytes(), Cont::new(post, key));
    }
}

fn came(worker: &mut Worker, key: u64, result: ReadResult) {
    let layer = transactions(worker);
    let asked = layer.arrays.remove(key as usize);
    let objects = match layer.counters.count_read(&asked.place(0), result) {
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
        Err(error) => Err(error),
    };
    if objects.is_err() && asked.is_new() {
        give_back(worker, &asked);
    }
    tell(worker, asked.cont, objects);
}

/// Adds new objects, at the versions and incarnations that their memory has: all of them, or none.
fn take_in_new(tx: &mut Tx, words: &[u64], asked: &AskedArray) -> Result<Objects, TxError> {
    let (objects, count) = (asked.objects, asked.objects.count as usize);
    tx.check_limits_of(count, count * objects.class.payload_capacity())?;
    let images: Vec<_> = objects
        .images(words)
        .map(|words| Image::check(words).expect("a lock-free read gives whole objects"))
        .collect();
    if images
        .iter()
        .any(|image| image.incarnation().is_allocated())
    {
        return Err(AddressError::Nowhere(objects.first).into());
    }
    let new = |(index, image): (u32, Image<'_>)| {
        Some(tx.reserved(asked.place(index), image.version(), image.incarnation()))
    };
    Ok((0..).zip(images).map(new).collect())
}

/// Adds what was read, but for what the transaction has already.
fn take_in(tx: &mut Tx, words: &[u64], asked: &AskedArray) -> Result<Objects, TxError> {
    let mut objects = Vec::with_capacity(asked.objects.count as usize);
    for (index, words) in (0..).zip(asked.objects.images(words)) {
        let Place {
            address,
            machine,
            class,
        } = asked.place(index);
        let object = match tx.known(address, class) {
            Some(known) => known,
            None => {
                tx.check_limits_of_read(address, class)?;
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
