//! Room for the objects that a transaction allocates: reserved at once, and released unless the transaction commits.

use farm_core::alloc::{AllocError, SizeClass, class_for_payload};
use farm_core::ids::{Address, MachineId};
use farm_core::object::write::Room;
use farm_core::object::{Incarnation, Version};
use farm_core::worker::Worker;
use farm_core::{marks, mutants};

use super::{Entries, Entry, Intent, ObjectId, Place, Tx};
use crate::error::TxError;
use crate::object_run::ObjectRun;
use crate::slots;

/// Hooks of an abort. Builds with the feature `mutants` use an implementation with deliberate bugs.
pub(super) trait AbortSteps {
    /// Runs before the room of new objects is released.
    #[inline]
    fn before_abort(_worker: &mut Worker, _entries: &Entries) {}
}

#[cfg(not(feature = "mutants"))]
enum Chosen {}
#[cfg(not(feature = "mutants"))]
impl AbortSteps for Chosen {}
#[cfg(feature = "mutants")]
use super::faults::Faulty as Chosen;

impl Tx {
    /// Ends the transaction without effect, and releases the room that was reserved for new objects.
    pub fn abort(&mut self, worker: &mut Worker) {
        Chosen::before_abort(worker, &self.entries);
        if self.entries.iter().any(Entry::is_reserved) {
            marks::mark("tx: aborted with allocation");
            if !mutants::is_on("allocation leaked on abort") {
                self.give_back(worker);
            }
        }
        self.clear();
    }

    /// Releases the room that is reserved for new objects. Adjacent slots of another machine, such as those of an array, are released by
    /// one message.
    fn give_back(&self, worker: &mut Worker) {
        let since = self.configuration;
        let mut run: Option<(MachineId, ObjectRun)> = None;
        for entry in self.entries.iter().filter(|one| one.is_reserved()) {
            let Some(machine) = entry.machine else {
                release_here(worker, entry);
                continue;
            };
            let (address, class) = (entry.address, entry.class);
            if let Some((_, slots)) = run.as_mut().filter(|(to, _)| *to == machine)
                && slots.extend(address, class)
            {
                continue;
            }
            if let Some((to, slots)) = run.replace((machine, ObjectRun::one(address, class))) {
                slots::release_remote(worker, to, slots, since);
            }
        }
        if let Some((to, slots)) = run {
            slots::release_remote(worker, to, slots, since);
        }
    }

    /// Reserves room for an object of this machine, near `hint` if possible. The object exists when the transaction has
    /// committed. Its payload starts as zeroes.
    ///
    /// # Errors
    /// [`TxError::Alloc`] if there is no memory; then nothing was reserved.
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

    /// Adds a new object whose slot is reserved.
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

    /// Adds `count` adjacent new objects of this machine with zero payloads, whose slots are reserved and have the same version and
    /// incarnation. The transaction must have none of them.
    pub(crate) fn format(&mut self, place: Place, room: Room, count: u32) {
        self.push(place, room.version, room.incarnation, Intent::Format, count);
    }

    /// Allocates a slot that this transaction has read as absent, at the version of that read. If the slot had never
    /// been used when it was read, the entry takes the version and incarnation of the first header, which the
    /// reservation wrote.
    #[cold]
    fn allocate_absent(
        &mut self,
        absent: usize,
        class: SizeClass,
        (version, incarnation): (Version, Incarnation),
    ) -> ObjectId {
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

    /// Drops all writes and releases the reserved room. The reads remain, to be validated.
    pub(crate) fn give_up_writes(&mut self, worker: &mut Worker) {
        self.given_up = true;
        self.give_back(worker);
        for entry in self.entries.iter_mut().filter(|one| one.is_written()) {
            entry.bump = false;
            entry.intent = match entry.incarnation.is_allocated() {
                true => Intent::Read,
                // The slot has no object, as before the reservation.
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

/// Releases the slots of this machine that this worker has reserved for an entry.
fn release_here(worker: &mut Worker, entry: &Entry) {
    let objects = ObjectRun {
        first: entry.address,
        class: entry.class,
        count: entry.count(),
    };
    for address in objects.addresses() {
        let released = worker.release_object(address);
        assert!(
            matches!(released, Ok(None)),
            "releasing an object that this worker reserved failed: {released:?}"
        );
    }
}
