//! Slots that this worker has reserved for transactions of other machines, where machines may be lost.
//!
//! Such a reservation ends with the configuration in which it was asked for: no transaction of an earlier configuration commits unless
//! its LOCK record is here. So nothing stays reserved for a machine that was killed, and a message that gives a slot back when
//! the reservation has ended releases nothing, because another transaction may have the slot by then.
//!
//! A slot is here until its transaction writes a LOCK record, which says what becomes of it, or gives it back.

use std::collections::BTreeMap;

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;

use crate::object_run::ObjectRun;
use crate::record::{Effect, Lock};

/// The slots of one worker.
#[derive(Default)]
pub(crate) struct Lent {
    slots: BTreeMap<Address, LentSlot>,
}

#[derive(Clone, Copy)]
struct LentSlot {
    class: SizeClass,
    /// The configuration of the worker that has asked.
    asked_in: u64,
}

impl Lent {
    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds slots that a worker has asked for in a configuration.
    pub(crate) fn add(&mut self, slots: &ObjectRun, asked_in: u64) {
        let class = slots.class;
        let added = slots.addresses();
        self.slots
            .extend(added.map(|address| (address, LentSlot { class, asked_in })));
    }

    /// Takes the slots of new objects out, because a LOCK record names them.
    pub(crate) fn on_lock(&mut self, lock: &Lock<'_>) {
        if self.slots.is_empty() {
            return;
        }
        let objects = lock.objects().map_while(Result::ok);
        for object in objects.filter(|object| object.effect == Effect::Allocate) {
            self.slots.remove(&object.address);
        }
    }

    /// Takes out those of some slots that are given back whose reservation has not ended. `last` is the address of the last one.
    pub(crate) fn give_back(
        &mut self,
        (slots, last): (&ObjectRun, Address),
        asked_in: u64,
    ) -> Vec<Address> {
        // There are as many steps as slots here, however many the message names.
        let is_given = |address: &Address, slot: &mut LentSlot| {
            slot.asked_in == asked_in && slot.class == slots.class && slots.has(*address)
        };
        let given = self.slots.extract_if(slots.first..=last, is_given);
        given.map(|(address, _)| address).collect()
    }

    /// Takes out the slots that were asked for in configurations before this one.
    pub(crate) fn take_earlier(&mut self, configuration: u64) -> Vec<(Address, SizeClass)> {
        let ended = self
            .slots
            .extract_if(.., |_, slot| slot.asked_in < configuration);
        ended.map(|(address, slot)| (address, slot.class)).collect()
    }
}

#[cfg(test)]
mod tests {
    use farm_core::alloc::class_for_payload;
    use farm_core::ids::RegionId;

    use super::*;

    fn slots(first: u32, count: u32) -> ObjectRun {
        let class = class_for_payload(40).unwrap();
        ObjectRun {
            first: Address::new(
                RegionId::new(1, 1).unwrap(),
                first * class.object_bytes() as u32,
            ),
            class,
            count,
        }
    }

    #[test]
    fn a_reservation_ends_with_its_configuration() {
        let mut lent = Lent::default();
        lent.add(&slots(1, 2), 7);
        lent.add(&slots(9, 1), 8);
        let [one, other] = [1, 2].map(|at| slots(at, 1).first);
        let give_back = |lent: &mut Lent, at, asked_in| {
            let slots = slots(at, 1);
            lent.give_back((&slots, slots.first), asked_in)
        };
        assert_eq!(give_back(&mut lent, 1, 6), []);
        assert_eq!(give_back(&mut lent, 1, 7), [one]);
        assert_eq!(give_back(&mut lent, 1, 7), []);
        assert_eq!(lent.take_earlier(7), []);
        assert_eq!(lent.take_earlier(8), [(other, slots(1, 1).class)]);
        // The slot was reserved again: a message about the earlier reservation releases nothing.
        lent.add(&slots(2, 1), 8);
        assert_eq!(give_back(&mut lent, 2, 7), []);
        assert_eq!(lent.len(), 2);
        // Only slots of the run and its class are given back.
        let all = slots(1, 9);
        let other_class = ObjectRun {
            class: class_for_payload(400).unwrap(),
            ..all
        };
        let last = slots(9, 1).first;
        assert_eq!(lent.give_back((&other_class, last), 8), []);
        assert_eq!(lent.give_back((&all, last), 8), [other, last]);
    }
}
