//! Room for objects that a transaction allocates: reserved at once, given back unless it commits.

use farm_core::alloc::{AllocError, SizeClass, class_for_payload};
use farm_core::ids::{Address, MachineId};
use farm_core::marks;
use farm_core::object::write::Room;
use farm_core::object::{Incarnation, Version};
use farm_core::worker::Worker;

use super::{Entry, Intent, ObjectId, Place, Tx};
use crate::error::TxError;
use crate::object_run::ObjectRun;
use crate::slots;

impl Tx {
    /// Reserves room for an object of this machine, near `hint` if it can be. It exists once the
    /// transaction has committed; its payload starts as zeroes.
    ///
    /// # Errors
    /// [`TxError::Alloc`] when memory is not to be had: nothing was taken.
    pub fn alloc(
        &mut self,
        worker: &mut Worker,
        payload_bytes: usize,
        hint: Option<Address>,
    ) -> Result<ObjectId, TxError> {
        let class = class_for_payload(payload_bytes)?;
        self.check_limits(class.payload_capacity())?;
        let (address, room) = reserve(worker, class, hint)?;
        if !room.is_new {
            marks::mark("alloc: slot used again");
        }
        let place = Place {
            address,
            machine: None,
            class,
        };
        Ok(self.reserved(place, room.version, room.incarnation))
    }

    /// Adds an object that will come to be, whose slot is reserved.
    pub(crate) fn reserved(
        &mut self,
        place: Place,
        version: Version,
        incarnation: Incarnation,
    ) -> ObjectId {
        let met = self.position(place.address);
        if let Some(absent) = met.filter(|met| self.entries[*met].intent == Intent::Absent) {
            return self.allocate_absent(absent, place.class, (version, incarnation));
        }
        let at = self.payloads.add(place.class.payload_capacity());
        self.push(place, version, incarnation, Intent::Allocate, at)
    }

    /// Allocates a slot that this transaction has read as absent, at the version of that read. A slot that was never
    /// used then got its first header by the reservation.
    #[cold]
    fn allocate_absent(
        &mut self,
        absent: usize,
        class: SizeClass,
        (version, incarnation): (Version, Incarnation),
    ) -> ObjectId {
        self.touch(absent);
        let at = self.payloads.add(class.payload_capacity());
        let entry = &mut self.entries[absent];
        entry.intent = Intent::Allocate;
        entry.class = class;
        if entry.incarnation.0 == 0 {
            (entry.version, entry.incarnation) = (version, incarnation);
        }
        entry.at = at;
        self.id(absent)
    }

    /// Ends without effect, and validates what was read: `Ok` if all of that is of one moment. See
    /// [`crate::api::validate`].
    ///
    /// # Errors
    /// As [`Tx::commit`].
    pub fn validate(&mut self, worker: &mut Worker) -> Result<(), TxError> {
        self.give_up_writes(worker);
        self.commit(worker)
    }

    /// Forgets what it was to write, and gives back what was reserved; what it read is left, to be validated.
    pub(crate) fn give_up_writes(&mut self, worker: &mut Worker) {
        self.given_up = true;
        self.when_committed.clear();
        give_back(worker, self.entries.iter().filter(|one| one.is_reserved()));
        for entry in self.entries.iter_mut().filter(|one| one.is_written()) {
            entry.bump = false;
            entry.intent = match entry.incarnation.is_allocated() {
                true => Intent::Read,
                // Nothing is there, as when it was reserved.
                false => Intent::Absent,
            };
        }
    }
}

/// Reserves room for an object of this machine.
pub(crate) fn reserve(
    worker: &mut Worker,
    class: SizeClass,
    hint: Option<Address>,
) -> Result<(Address, Room), AllocError> {
    let (reserved, room) = worker.reserve_object(class, hint)?;
    Ok((reserved.address, room))
}

/// Gives room back that was reserved for objects that never came to be; that of adjacent ones of another
/// machine, as arrays are, by one message.
pub(super) fn give_back<'a>(worker: &mut Worker, entries: impl Iterator<Item = &'a Entry>) {
    let mut run: Option<(MachineId, ObjectRun)> = None;
    for &Entry {
        address,
        class,
        machine,
        ..
    } in entries
    {
        let Some(machine) = machine else {
            let released = worker.release_object(address);
            assert!(
                matches!(released, Ok(None)),
                "an object that this worker reserved cannot be given back: {released:?}"
            );
            continue;
        };
        if let Some((_, slots)) = run.as_mut().filter(|(to, _)| *to == machine)
            && slots.extend(address, class)
        {
            continue;
        }
        if let Some((to, slots)) = run.replace((machine, ObjectRun::one(address, class))) {
            slots::release_remote(worker, to, slots);
        }
    }
    if let Some((to, slots)) = run {
        slots::release_remote(worker, to, slots);
    }
}
