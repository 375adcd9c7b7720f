//! Releases slots: their objects were freed, or the slots were reserved and never used.
//!
//! The worker that owns the block of a slot releases the slot. If that is another worker, the slot
//! is sent to it by a message.

use farm_core::alloc::{ReleaseError, SizeClass};
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, Request};
use farm_core::worker::{Cont, Worker};

use crate::layer::transactions;
use crate::object_run::ObjectRun;

/// Message id of slots to release, which are sent to the worker that owns their block.
pub(crate) const RELEASE: MessageId = MessageId(MessageId::TXN);

/// Releases the slot of a freed object of this machine.
pub(crate) fn release_local(worker: &mut Worker, address: Address, class: SizeClass) {
    if let Err(error) = release(worker, address, class) {
        debug_assert!(
            false,
            "releasing the slot of a freed object at {address} failed: {error}"
        );
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
    let released = match worker.release_object(address) {
        // It was reserved on an earlier process of this machine, which was lost.
        Err(_) if worker.survives() && worker.store().region(address.region()).is_none() => {
            marks::mark("alloc: given back to a later process");
            return Ok(());
        }
        // Nothing is allocated in the regions of lost machines.
        Err(_) if worker.store().is_promoted(address.region()) => {
            marks::mark("alloc: freed in a region of a lost machine");
            return Ok(());
        }
        released => released?,
    };
    if let Some(owner) = released {
        marks::mark("alloc: freed into another worker's block");
        let to = WorkerRef::new(worker.me().machine, owner);
        send(worker, to, ObjectRun::one(address, class));
    }
    Ok(())
}

/// Sends slots back to another machine.
pub(crate) fn release_remote(worker: &mut Worker, machine: MachineId, slots: ObjectRun) {
    marks::mark("alloc: given back to another machine");
    let to = worker.log_poller(machine);
    send(
        worker,
        to.expect("slots are given back only to a machine of the cluster"),
        slots,
    );
}

fn send(worker: &mut Worker, to: WorkerRef, slots: ObjectRun) {
    let releases = &mut transactions(worker).releases;
    releases.push((to, slots));
    // If the list has further slots, a call of `flush` waits for room already.
    if releases.len() == 1 {
        flush(worker, (), ());
    }
}

fn flush(worker: &mut Worker, (): (), (): ()) {
    while let Some(&(to, slots)) = transactions(worker).releases.last() {
        match worker.send(to, RELEASE, &[&slots.encode()]) {
            Err(CallError::Busy) => return worker.when_room(Cont::new(flush, ())),
            _ => transactions(worker).releases.pop(),
        };
    }
}

/// Handles [`RELEASE`].
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let from = request.from.machine;
    let slots = ObjectRun::decode(body).filter(|slots| !slots.first.is_null());
    let Some(slots) = slots else {
        let why = format!("{} sent a RELEASE request that is not valid", request.from);
        return worker.distrust(from, why);
    };
    for index in 0..slots.count {
        let released = match slots.address(index) {
            Some(address) => release(worker, address, slots.class),
            None => Err(ReleaseError::NotOurs(slots.first)),
        };
        if let Err(error) = released {
            debug_assert!(from != worker.me().machine, "{error}");
            if from != worker.me().machine {
                worker.distrust(from, error.to_string());
            }
            return;
        }
    }
}
