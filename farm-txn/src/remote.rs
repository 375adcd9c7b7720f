//! Objects of other machines: one-sided reads, and reservations of room for new objects.

use farm_core::alloc::{AllocError, SizeClass};
use farm_core::fabric::Slot;
use farm_core::ids::{Address, MachineId};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{Incarnation, Version};
use farm_core::worker::{AddressError, Cont, ReadError, ReadRequest, ReadResult, Worker};

use crate::calls::RemoteCall;
use crate::counters::TxCounters;
use crate::error::{Abort, TxError, lost};
use crate::layer::transactions;
use crate::object_run::ObjectRun;
use crate::open;
use crate::regions;
use crate::slots;
use crate::tx::{ObjectId, Place, Tx, wrong_size};

/// Message id of the request to reserve room for an object near an address.
pub(crate) const ALLOC: MessageId = MessageId(MessageId::TXN + 2);
/// Bytes of the request: size class, address, and configuration of the worker that asks.
const ALLOC_BYTES: usize = 17;
/// Bytes of the reply: address, version and incarnation of the reserved slot, and what copies must know of its block, 0 if there
/// are none. The reply is empty if there is no room.
const RESERVED_BYTES: usize = 32;

/// Returns the machine of an address, if it is another one; `None` for this machine or a null address.
pub(crate) fn elsewhere(worker: &Worker, address: Address) -> Option<MachineId> {
    if address.is_null() {
        return None;
    }
    let machine = worker.machine_of(address.region());
    (machine != worker.me().machine).then_some(machine)
}

/// Returns the machine on which a new object is created, if it is another one: the machine of the hint; without a hint, any
/// machine if this one stores nothing.
pub(crate) fn elsewhere_for_new(worker: &mut Worker, hint: Option<Address>) -> Option<MachineId> {
    match hint.filter(|hint| !hint.is_null()) {
        Some(near) => elsewhere(worker, near),
        None => worker.elsewhere_for_new_object(),
    }
}

/// Reads an object. While the object is locked, the worker continues with other work.
pub(crate) fn read(worker: &mut Worker, asked: RemoteCall) {
    let key = transactions(worker).calls.insert(asked);
    post_asked(worker, key as u64, &asked);
}

fn post(worker: &mut Worker, key: u64, (): ()) {
    let asked = transactions(worker).calls[key as usize];
    post_asked(worker, key, &asked);
}

fn post_asked(worker: &mut Worker, key: u64, RemoteCall { place, pointer, .. }: &RemoteCall) {
    let cont = Cont::new(on_read, key);
    let posted = match pointer {
        Some(pointer) => worker.read_pointer_lock_free(*pointer, cont),
        None => worker.read_lock_free(ReadRequest::object(place.address, place.class), cont),
    };
    if posted.is_err() {
        let bytes = place.class.object_bytes();
        marks::mark("tx: a remote read waits for room");
        worker.when_slot(bytes, Cont::new(post, key));
    }
}

fn on_read(worker: &mut Worker, key: u64, result: ReadResult) {
    let layer = transactions(worker);
    let RemoteCall {
        tx,
        place,
        pointer,
        cont,
        ..
    } = layer.calls.remove(key as usize);
    let slot = match layer.counters.count_read(&place, result) {
        Ok(slot) => slot,
        Err(error) => return cont.resume(worker, Err(error)),
    };
    let words = place.class.object_bytes() / 8;
    let read = open::with(worker, tx, |tx, worker| {
        let object = match tx.known(place.address, place.class) {
            Some(known) => known?,
            None => {
                tx.check_limits_of_read(place.address, place.class)?;
                let words = &worker.arena().words(&slot)[..words];
                tx.take_in(words, place.address, place.machine, place.class)?
            }
        };
        match pointer {
            Some(pointer) => tx.named(object, pointer),
            None => Ok(object),
        }
    });
    worker.arena().give(slot);
    cont.resume(worker, read.and_then(|read| read));
}

impl TxCounters {
    /// Counts a read of a transaction that has ended: the read, if it accessed another machine's memory, and its
    /// failure, if it failed.
    pub(crate) fn count_read(
        &mut self,
        place: &Place,
        result: ReadResult,
    ) -> Result<Slot, TxError> {
        self.object_reads += u64::from(place.machine.is_some());
        result.map_err(|error| {
            let error = error_of_read(error, place.address);
            self.count_failed(&error);
            error
        })
    }
}

/// Converts the error of a failed read to the error for the caller of the read.
pub(crate) fn error_of_read(error: ReadError, address: Address) -> TxError {
    match error {
        ReadError::PeerLost(machine) => Abort::Lost(machine).into(),
        ReadError::StaysLocked(address) => Abort::TimedOut(address).into(),
        ReadError::WrongSize { address, asked, is } => wrong_size(address, asked, is),
        ReadError::Gone(address) => TxError::NotAllocated(address),
        _ => AddressError::Nowhere(address).into(),
    }
}

fn end(worker: &mut Worker, key: u64, result: Result<ObjectId, TxError>) {
    let asked = transactions(worker).calls.remove(key as usize);
    asked.cont.resume(worker, result);
}

/// Requests another machine to reserve room for an object.
pub(crate) fn alloc(worker: &mut Worker, asked: RemoteCall) {
    let key = transactions(worker).calls.insert(asked);
    ask(worker, key as u64, ());
}

fn ask(worker: &mut Worker, key: u64, (): ()) {
    let asked = transactions(worker).calls[key as usize];
    let (place, machine) = (asked.place, asked.machine());
    let asked_in = transactions(worker).configuration;
    let mut body = [0; ALLOC_BYTES];
    body[0] = place.class.get();
    body[1..9].copy_from_slice(&place.address.to_bits().to_le_bytes());
    body[9..].copy_from_slice(&asked_in.to_le_bytes());
    let cont = ReplyCont::new(reserved, key);
    let to = worker.log_poller(machine);
    match to.and_then(|to| worker.call(to, ALLOC, &[&body], RESERVED_BYTES, cont)) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, key)),
        // The error is reported from the event loop, because the current call may be the call that sent the request.
        Err(_) => worker.defer(Cont::new(nobody_answers, key)),
    }
}

fn nobody_answers(worker: &mut Worker, key: u64, (): ()) {
    let machine = transactions(worker).calls[key as usize].machine();
    let why = lost(worker, machine);
    end(worker, key, Err(why.into()));
}

fn reserved(worker: &mut Worker, key: u64, reply: Result<&[u8], CallError>) {
    let asked = transactions(worker).calls[key as usize];
    let (RemoteCall { tx, place, .. }, machine) = (asked, asked.machine());
    let Ok(reply) = reply else {
        return nobody_answers(worker, key, ());
    };
    if reply == regions::ASK_AGAIN {
        ask_elsewhere(worker, key);
        return worker.set_timer(regions::AGAIN_AFTER, Cont::new(ask, key));
    }
    let room = decode(reply).filter(|room| room.2.class() == place.class);
    let Some((address, version, incarnation, block)) = room else {
        return end(worker, key, Err(TxError::NoMemory(machine)));
    };
    let place = Place { address, ..place };
    let now = transactions(worker).configuration;
    let added = open::with(worker, tx, |tx, worker| {
        check_configuration(tx, now)?;
        tx.check_limits(place.class.payload_capacity())?;
        if block != 0 {
            let geometry = worker.store().geometry();
            tx.blocks.note(geometry, address, || block);
        }
        Ok(tx.reserved(place, version, incarnation))
    });
    let added = added.and_then(|added| added);
    if added.is_err() {
        slots::release_remote(worker, machine, ObjectRun::one(address, place.class), now);
    }
    end(worker, key, added);
}

/// Chooses a machine once more for an object that may be on any: the one that was asked may have to make a region first.
fn ask_elsewhere(worker: &mut Worker, key: u64) {
    let hint = transactions(worker).calls[key as usize].place.address;
    if hint.is_null()
        && let Some(machine) = worker.elsewhere_for_new_object()
    {
        marks::mark("alloc: another machine asked instead");
        transactions(worker).calls[key as usize].place.machine = Some(machine);
    }
}

/// Checks that a transaction began in the configuration in which another machine has reserved room for it, so that the configuration
/// of the transaction says with which primary the reservation ends. `now` is the configuration of this worker: the machine still is the
/// primary.
///
/// # Errors
/// [`Abort::Reconfigured`]: the transaction could not commit.
pub(crate) fn check_configuration(tx: &Tx, now: u64) -> Result<(), TxError> {
    match tx.configuration == now {
        true => Ok(()),
        false => {
            marks::mark("alloc: reserved for a transaction of an earlier configuration");
            Err(Abort::Reconfigured.into())
        }
    }
}

fn decode(reply: &[u8]) -> Option<(Address, Version, Incarnation, u64)> {
    let reply: &[u8; RESERVED_BYTES] = reply.try_into().ok()?;
    let word = |at: usize| {
        u64::from_le_bytes(
            reply[at..at + 8]
                .try_into()
                .expect("a slice of eight bytes is one word"),
        )
    };
    let address = Address::from_bits(word(0)).filter(|address| !address.is_null())?;
    let version = Version::checked(word(8))?;
    Some((address, version, Incarnation(word(16)), word(24)))
}

/// Returns what copies must know of the block of a reserved slot; 0 if commits are not logged.
pub(crate) fn block_word(worker: &Worker, address: Address) -> u64 {
    match worker.store().replication().logged {
        true => worker.store().block_word(address).unwrap_or(0),
        false => 0,
    }
}

/// Reserves room for an object of another machine's transaction.
pub(crate) fn handle_alloc(worker: &mut Worker, request: Request, body: &[u8]) {
    let asked = body.split_last_chunk().and_then(|(body, asked_in)| {
        let (class, hint) = body.split_first()?;
        let hint = Address::from_bits(u64::from_le_bytes(hint.try_into().ok()?))?;
        Some((SizeClass::new(*class), hint, u64::from_le_bytes(*asked_in)))
    });
    let Some((class, hint, asked_in)) = asked else {
        let why = format!("{} sent an ALLOC request that is not valid", request.from);
        return worker.distrust(request.from.machine, why);
    };
    if slots::must_ask_again(worker, asked_in) {
        return worker.reply(request, &[regions::ASK_AGAIN]);
    }
    let (reserved, room) = match worker.reserve_object_soon(class, Some(hint)) {
        Ok(reserved) => reserved,
        Err(AllocError::NoRegionYet) => return worker.reply(request, &[regions::ASK_AGAIN]),
        Err(_) => {
            marks::mark("alloc: refused to another machine");
            return worker.reply(request, &[]);
        }
    };
    let address = reserved.address;
    if let Some(refusal) = regions::refusal(worker, address.region()) {
        slots::release_local(worker, address, class);
        return worker.reply(request, &[refusal]);
    }
    slots::lend(worker, &ObjectRun::one(address, class), asked_in);
    let mut reply = [0; RESERVED_BYTES];
    let block = block_word(worker, address);
    let words = [
        address.to_bits(),
        room.version.get(),
        room.incarnation.0,
        block,
    ];
    for (place, word) in words.iter().enumerate() {
        reply[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    worker.reply(request, &[&reply]);
}
