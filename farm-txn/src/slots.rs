//! Releases slots: their objects were freed, or the slots were reserved and never used.
//!
//! The worker that owns the block of a slot releases the slot. If that is another worker, the slot
//! is sent to it by a message.
//!
//! Where machines may be lost, a reservation on another machine ends with the configuration in which it was asked for
//! ([`lent`](crate::lent)). A message names that configuration, and nothing is released if the reservation has ended: another
//! transaction may have the slot.

use farm_core::alloc::{ReleaseError, SizeClass};
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::messaging::{CallError, MessageId, Request};
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};

use crate::layer::transactions;
use crate::object_run::{ObjectRun, Release};

/// Message id of slots to release, which are sent to the worker that owns their block.
pub(crate) const RELEASE: MessageId = MessageId(MessageId::TXN);

/// Releases the slot of a freed object of this machine.
pub(crate) fn release_local(worker: &mut Worker, address: Address, class: SizeClass) {
    if let Err(error) = release(worker, address, class) {
        tracing::error!(%address, %error, "a slot is released that is not taken; this is an error of farm");
        transactions(worker).not_released += 1;
    }
}

/// Releases a slot of this machine.
///
/// # Errors
/// The address is not a reserved slot; nothing was released.
pub(crate) fn release(
    worker: &mut Worker,
    address: Address,
    class: SizeClass,
) -> Result<(), ReleaseError> {
    if let Some(owner) = worker.release_object(address)? {
        marks::mark("alloc: freed into another worker's block");
        let slots = ObjectRun::one(address, class);
        let to = WorkerRef::new(worker.me().machine, owner);
        let since = transactions(worker).configuration;
        send(worker, Release { to, slots, since });
    }
    Ok(())
}

/// Sends slots back to another machine, which has reserved them in a configuration.
pub(crate) fn release_remote(
    worker: &mut Worker,
    machine: MachineId,
    slots: ObjectRun,
    since: u64,
) {
    marks::mark("alloc: given back to another machine");
    let to = worker.log_poller(machine);
    let to = to.expect("slots are given back only to a machine of the cluster");
    send(worker, Release { to, slots, since });
}

fn send(worker: &mut Worker, release: Release) {
    let releases = &mut transactions(worker).releases;
    releases.push(release);
    // If the list has further slots, a call of `flush` waits for room already.
    if releases.len() == 1 {
        flush(worker, (), ());
    }
}

fn flush(worker: &mut Worker, (): (), (): ()) {
    while let Some(&Release { to, slots, since }) = transactions(worker).releases.last() {
        let body: [&[u8]; 2] = [&slots.encode(), &since.to_le_bytes()];
        match worker.send(to, RELEASE, &body) {
            Err(CallError::Busy) => return worker.when_room(Cont::new(flush, ())),
            _ => transactions(worker).releases.pop(),
        };
    }
}

/// Returns whether another machine that asks for room must do so again: this machine joins, and the other one knows that before it, or
/// one of the two workers has not applied the configuration of the other, so that the transaction cannot commit.
pub(crate) fn must_ask_again(worker: &mut Worker, asked_in: u64) -> bool {
    let is_other = worker.survives() && asked_in != transactions(worker).configuration;
    is_other || !worker.store().map().is_complete()
}

/// Notes slots that are reserved for a transaction of another machine, which has asked for them in a configuration.
pub(crate) fn lend(worker: &mut Worker, slots: &ObjectRun, asked_in: u64) {
    if worker.survives() {
        transactions(worker).lent.add(slots, asked_in);
    }
}

/// Releases the slots that were reserved in configurations before this one. The logs are drained: what their LOCK records name is not
/// here any more.
pub(crate) fn release_earlier(worker: &mut Worker, configuration: u64) {
    for (address, class) in transactions(worker).lent.take_earlier(configuration) {
        marks::mark("alloc: a reservation ends with its configuration");
        if !mutants::is_on("reservations of lost machines stay") {
            release_local(worker, address, class);
        }
    }
}

/// Takes back slots that were reserved for another machine, up to the one at `last`. Returns those whose reservation has not ended.
fn take_back(
    worker: &mut Worker,
    (slots, last): (&ObjectRun, Address),
    asked_in: u64,
) -> Vec<Address> {
    if mutants::is_on("void reservation released") {
        return slots.addresses().collect();
    }
    let given = transactions(worker).lent.give_back((slots, last), asked_in);
    if given.len() < slots.count as usize {
        marks::mark("alloc: given back after its reservation has ended");
    }
    given
}

/// Handles [`RELEASE`].
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let from = request.from.machine;
    let decoded = ObjectRun::decode_with_configuration(body);
    let Some((slots, since)) = decoded.filter(|(slots, _)| !slots.first.is_null()) else {
        let why = format!("{} sent a RELEASE request that is not valid", request.from);
        return worker.distrust(from, why);
    };
    let is_lent = from != worker.me().machine && worker.survives();
    let released = match slots.address(slots.count - 1) {
        None => Err(ReleaseError::NotOurs(slots.first)),
        Some(last) if is_lent => {
            let given = take_back(worker, (&slots, last), since);
            given
                .into_iter()
                .try_for_each(|address| release(worker, address, slots.class))
        }
        Some(_) => slots
            .addresses()
            .try_for_each(|address| release(worker, address, slots.class)),
    };
    if let Err(error) = released {
        debug_assert!(from != worker.me().machine, "{error}");
        if from != worker.me().machine {
            worker.distrust(from, error.to_string());
        }
    }
}
