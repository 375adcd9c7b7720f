//! Arrays of adjacent objects in transactions (`FaRM'14 §3.2`): allocated together, and read as a whole by one
//! one-sided read.
//!
//! Each object of an array is an object of the transaction, with a version of its own. It is created, validated,
//! written and freed like any other. An array is freed object by object, and its memory is reused after the last object
//! is released. The machine that will store a new array reserves room for it at once, and releases the room if the
//! transaction aborts.
//!
//! An array that is too large for one transaction, such as a part of a table, is reserved on its machine
//! ([`Worker::reserve_array`]), and created by several transactions ([`Handle::create_array`](crate::Handle::create_array)).
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
//!     let tx = farm.begin().await?;
//!     let counters = tx.alloc_array(8, 10, None).await?;
//!     for (index, counter) in counters.iter().enumerate() {
//!         tx.change(*counter, move |payload| payload[0] = index as u8).await?;
//!     }
//!     let first = tx.address(counters[0]).await?;
//!     tx.commit().await?;
//!     Ok::<_, TxError>(first)
//! })??;
//! let sum = block_on(&machines[1], 0, move |farm: Handle| async move {
//!     let tx = farm.begin().await?;
//!     let counters = tx.read_array(first, 8, 10).await?;
//!     let mut sum = 0;
//!     for counter in counters.into_iter().flatten() {
//!         sum += tx.payload(counter).await?[0];
//!     }
//!     tx.commit().await?;
//!     Ok::<_, TxError>(sum)
//! })??;
//! assert_eq!(sum, 45);
//! # machines.into_iter().try_for_each(|machine| machine.stop())?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use farm_core::alloc::{AllocError, ArrayRun, BlockTable, Geometry, SizeClass};
use farm_core::ids::Address;
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::Image;
use farm_core::worker::{AddressError, Cont, ReadResult, Worker};

pub use crate::calls::Objects;
use crate::calls::{ArrayCall, ArrayCont};
use crate::commit::drive;
use crate::contexts::checkout;
use crate::error::{Abort, TxError, lost, unusable_here};
use crate::handle::TxHandle;
use crate::layer::transactions;
use crate::object_run::ObjectRun;
use crate::open;
use crate::record;
use crate::regions;
use crate::remote::{block_word, check_configuration, elsewhere, elsewhere_for_new};
use crate::slots;
use crate::tx::{ObjectId, Place, Tx, is_slot};

/// Message id of a request to reserve room for an array near an address.
pub(crate) const ALLOC_ARRAY: MessageId = MessageId(MessageId::TXN + 3);
/// Maximum number of objects that one transaction formats, so that the event loop continues between two.
const FORMATTED_AT_ONCE: u32 = 4096;
/// Bytes of the reply: the address of the first object, and what copies must know of its block, 0 if there are none. The reply is
/// empty if there is no room.
const RESERVED_BYTES: usize = 16;

/// Reads `count` adjacent objects of one class, on any machine, by one one-sided read: an array, or a part of one. Each
/// of them is then an object of the transaction, validated as if it had been read alone. An object that the transaction
/// has already is kept unchanged. For a slot without an object the continuation receives `None`, and the commit
/// validates that the slot has no object.
///
/// The continuation may receive [`TxError::Address`] if this machine has no such objects; [`TxError::EmptyArray`];
/// [`TxError::WrongSize`] as for [`crate::api::read_class`]; [`TxError::ArrayTooLong`]; [`TxError::Limit`], after which
/// the transaction may have some of the objects; and the errors of [`crate::api::read`].
pub fn read_array(
    worker: &mut Worker,
    tx: TxHandle,
    address: Address,
    class: SizeClass,
    count: u32,
    cont: Cont<Result<Objects, TxError>>,
) {
    let mut asked = ArrayCall {
        tx,
        objects: ObjectRun {
            first: address,
            class,
            count,
        },
        machine: elsewhere(worker, address),
        cont: ArrayCont::Read(cont),
        block: 0,
        since: 0,
        failed: None,
    };
    asked.failed = check(worker, &asked).err();
    begin(worker, asked, post);
}

/// Allocates an array: `count` adjacent objects of one class. If there is a `hint`, they are on its machine, and near
/// it if possible. They are objects of the transaction like any others, and can be read as a whole by [`read_array`];
/// the commit creates them. [`crate::api::free_array`] frees them.
///
/// The continuation may receive the errors of [`crate::api::alloc`]; [`TxError::ArrayTooLong`];
/// [`TxError::EmptyArray`]. For an array that exceeds the limits of a transaction, use
/// [`Handle::create_array`](crate::Handle::create_array).
pub fn alloc_array(
    worker: &mut Worker,
    tx: TxHandle,
    class: SizeClass,
    count: u32,
    hint: Option<Address>,
    cont: Cont<Result<Vec<ObjectId>, TxError>>,
) {
    let near = hint.unwrap_or(Address::NULL);
    let machine = elsewhere_for_new(worker, hint);
    let mut asked = ArrayCall {
        tx,
        objects: ObjectRun {
            first: near,
            class,
            count,
        },
        machine,
        cont: ArrayCont::Allocated(cont),
        block: 0,
        since: 0,
        failed: None,
    };
    let checked = match machine {
        Some(_) if transactions(worker).leaving => Err(TxError::Stopped(None)),
        _ => check_room(worker, &asked),
    };
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

fn begin(worker: &mut Worker, asked: ArrayCall, first: fn(&mut Worker, u64, ())) {
    let fails = asked.failed.is_some();
    let key = transactions(worker).arrays.insert(asked) as u64;
    if fails {
        worker.defer(Cont::new(fail, key));
    } else {
        first(worker, key, ());
    }
}

/// Checks that the transaction has room for a new array.
fn check_room(worker: &mut Worker, asked: &ArrayCall) -> Result<(), TxError> {
    let ObjectRun { class, count, .. } = asked.objects;
    if count == 0 {
        return Err(TxError::EmptyArray);
    }
    asked.objects.check_length(worker)?;
    let count = count as usize;
    let bytes = count * class.payload_capacity();
    open::with(worker, asked.tx, |tx, _| tx.check_limits_of(count, bytes))?
}

/// Checks the run of objects and, if this machine stores it, that an object can start at each of its addresses.
fn check(worker: &mut Worker, asked: &ArrayCall) -> Result<(), TxError> {
    asked.objects.check(worker)?;
    if asked.machine.is_some() {
        return Ok(());
    }
    let geometry = worker.store().geometry();
    let (memory, first) = worker
        .local_memory(asked.objects.first)
        .map_err(unusable_here)?;
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
    let error = asked
        .failed
        .take()
        .expect("the error is stored before `fail` is called");
    end(worker, key, Err(error));
}

fn end(worker: &mut Worker, key: u64, result: Result<Objects, TxError>) {
    let asked = transactions(worker).arrays.remove(key as usize);
    end_with(worker, asked.cont, result);
}

fn end_with(worker: &mut Worker, cont: ArrayCont, result: Result<Objects, TxError>) {
    match cont {
        ArrayCont::Read(cont) => cont.resume(worker, result),
        ArrayCont::Allocated(cont) => {
            let all = result.map(|objects| objects.into_iter().flatten().collect());
            cont.resume(worker, all);
        }
    }
}

/// Creates objects of an array that this worker has reserved, from the one at `from` on, in one transaction, with zero payloads.
/// Returns the index after the last one. If the transaction does not commit, their room is released.
///
/// Slots that were never used have the same versions, and are one entry of the transaction.
pub(crate) fn format(
    worker: &mut Worker,
    array: &ArrayRun,
    from: u32,
    cont: Cont<Result<(), TxError>>,
) -> u32 {
    let in_record = worker.own_log().map_or(usize::MAX, |own| {
        let bytes = own.max_body_bytes() as usize - record::FIXED_BYTES - record::LOCK_BYTES;
        (bytes - record::region_bytes(1)) / record::object_bytes(0, true)
    });
    let most = in_record.min(transactions(worker).limits.objects);
    let end = array.count.min(from.saturating_add(FORMATTED_AT_ONCE));
    let (mut tx, mut next) = (checkout(worker), from);
    while next < end && tx.len() < most {
        let room = array.begin(next);
        let (version, incarnation) = (room.version, room.incarnation);
        let like = |index: &u32| {
            let other = array.room(*index);
            (other.version, other.incarnation) == (version, incarnation)
        };
        let count = 1 + (next + 1..end).take_while(like).count() as u32;
        let address = array.address(next);
        let place = Place {
            address: address.expect("the index is below the number of objects"),
            machine: None,
            class: array.class(),
        };
        tx.format(place, room, count);
        next += count;
    }
    drive::begin(worker, tx, cont);
    next
}

/// Releases the room of objects of an array that this worker has reserved and not created.
pub(crate) fn release_reserved(
    worker: &mut Worker,
    array: &ArrayRun,
    objects: std::ops::Range<u32>,
) {
    for address in objects.filter_map(|index| array.address(index)) {
        slots::release_local(worker, address, array.class());
    }
}

/// Sends another machine the request to reserve room.
fn ask(worker: &mut Worker, key: u64, (): ()) {
    let asked = &transactions(worker).arrays[key as usize];
    let machine = asked
        .machine
        .expect("this request has a destination, because its objects are on another machine");
    let body = asked.objects.encode();
    let asked_in = transactions(worker).configuration.to_le_bytes();
    let body: [&[u8]; 2] = [&body, &asked_in];
    let cont = ReplyCont::new(reserved, key);
    let to = worker.log_poller(machine);
    match to.and_then(|to| worker.call(to, ALLOC_ARRAY, &body, RESERVED_BYTES, cont)) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, key)),
        // The error is reported from the event loop, because the current call may be the call that sent the request.
        Err(_) => {
            let why = lost(worker, machine);
            transactions(worker).arrays[key as usize].failed = Some(why.into());
            worker.defer(Cont::new(fail, key));
        }
    }
}

fn reserved(worker: &mut Worker, key: u64, reply: Result<&[u8], CallError>) {
    let asked = &mut transactions(worker).arrays[key as usize];
    let machine = asked
        .machine
        .expect("this request has a destination, because its objects are on another machine");
    let Ok(reply) = reply else {
        let why = lost(worker, machine);
        return end(worker, key, Err(why.into()));
    };
    if reply == regions::ASK_AGAIN {
        return worker.set_timer(regions::AGAIN_AFTER, Cont::new(ask, key));
    }
    let words = reply.split_first_chunk().and_then(|(first, block)| {
        let block = u64::from_le_bytes(block.try_into().ok()?);
        Some((Address::from_bits(u64::from_le_bytes(*first))?, block))
    });
    match words {
        Some((first, block)) if !first.is_null() => {
            asked.objects.first = first;
            asked.block = block;
            on_reserved(worker, key);
        }
        _ => end(worker, key, Err(TxError::NoMemory(machine))),
    }
}

/// Goes on when another machine has reserved room.
fn on_reserved(worker: &mut Worker, key: u64) {
    let layer = transactions(worker);
    let now = layer.configuration;
    let asked = &mut layer.arrays[key as usize];
    asked.since = now;
    let tx = asked.tx;
    let checked = open::with(worker, tx, |tx, _| check_configuration(tx, now));
    if let Err(error) = checked.and_then(|checked| checked) {
        let asked = transactions(worker).arrays.remove(key as usize);
        give_back(worker, &asked);
        return end_with(worker, asked.cont, Err(error));
    }
    post(worker, key, ());
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
    let Some((asked, asked_in)) = ObjectRun::decode_with_configuration(body) else {
        let why = format!(
            "{} sent an ALLOC_ARRAY request that is not valid",
            request.from
        );
        return worker.distrust(request.from.machine, why);
    };
    if slots::must_ask_again(worker, asked_in) {
        return worker.reply(request, &[regions::ASK_AGAIN]);
    }
    let Ok(first) = reserve(worker, asked.class, asked.count, Some(asked.first)) else {
        marks::mark("alloc: refused to another machine");
        return worker.reply(request, &[]);
    };
    let objects = ObjectRun { first, ..asked };
    if let Some(refusal) = regions::refusal(worker, first.region()) {
        release_here(worker, &objects);
        return worker.reply(request, &[refusal]);
    }
    slots::lend(worker, &objects, asked_in);
    let block = block_word(worker, first);
    let words = [first.to_bits(), block].map(u64::to_le_bytes);
    worker.reply(request, &[&words[0], &words[1]]);
}

/// Releases the room that was reserved for a new array that is not created.
fn give_back(worker: &mut Worker, asked: &ArrayCall) {
    let slots = asked.objects;
    if let Some(machine) = asked.machine {
        return slots::release_remote(worker, machine, slots, asked.since);
    }
    release_here(worker, &slots);
}

/// Releases the room of an array on this machine.
fn release_here(worker: &mut Worker, objects: &ObjectRun) {
    for address in (0..objects.count).filter_map(|index| objects.address(index)) {
        slots::release_local(worker, address, objects.class);
    }
}

fn post(worker: &mut Worker, key: u64, (): ()) {
    let request = transactions(worker).arrays[key as usize].objects.request();
    if worker
        .read_lock_free(request, Cont::new(on_read, key))
        .is_err()
    {
        worker.when_slot(request.bytes(), Cont::new(post, key));
    }
}

fn on_read(worker: &mut Worker, key: u64, result: ReadResult) {
    let layer = transactions(worker);
    let asked = layer.arrays.remove(key as usize);
    // The next primary may have given the room to others.
    let is_void = asked.is_new() && asked.machine.is_some() && asked.since != layer.configuration;
    let objects = match layer.counters.count_read(&asked.place(0), result) {
        Ok(slot) => {
            let objects = open::with(worker, asked.tx, |tx, worker| {
                if is_void {
                    return Err(Abort::Reconfigured.into());
                }
                if asked.block != 0 {
                    note_blocks(tx, worker.store().geometry(), &asked);
                }
                let words = worker.arena().words(&slot);
                match asked.is_new() {
                    true => take_in_new(tx, words, &asked),
                    false => take_in(tx, words, &asked),
                }
            });
            worker.arena().give(slot);
            objects.and_then(|objects| objects)
        }
        Err(_) if is_void => Err(Abort::Reconfigured.into()),
        Err(error) => Err(error),
    };
    if objects.is_err() && asked.is_new() {
        give_back(worker, &asked);
    }
    end_with(worker, asked.cont, objects);
}

/// Notes what copies must know of the blocks of a new array on another machine.
fn note_blocks(tx: &mut Tx, geometry: Geometry, asked: &ArrayCall) {
    let block_of = |address: Address| geometry.block_of(address.offset() as usize);
    let first = block_of(asked.objects.first);
    for address in (0..asked.objects.count).filter_map(|index| asked.objects.address(index)) {
        if let Some((block, first)) = block_of(address).zip(first) {
            let word = || BlockTable::word_of_next(asked.block, block - first);
            tx.blocks.note(geometry, address, word);
        }
    }
}

/// Adds new objects with the versions and incarnations in their memory: all of them, or none.
fn take_in_new(tx: &mut Tx, words: &[u64], asked: &ArrayCall) -> Result<Objects, TxError> {
    let (objects, count) = (asked.objects, asked.objects.count as usize);
    tx.check_limits_of(count, count * objects.class.payload_capacity())?;
    let images: Vec<_> = objects
        .images(words)
        .map(|words| Image::check(words).expect("a lock-free read returns consistent objects"))
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

/// Adds the objects that were read, except those that the transaction has already.
fn take_in(tx: &mut Tx, words: &[u64], asked: &ArrayCall) -> Result<Objects, TxError> {
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
