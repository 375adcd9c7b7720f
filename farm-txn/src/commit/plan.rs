//! The machines, regions and objects that a commit concerns, found in two passes over its entries.

use farm_core::ids::MachineId;
use farm_core::ring::log_record_bytes;
use smallvec::SmallVec;

use crate::record::{self, FIXED_BYTES, LOCK_BYTES, fixed_reserved};
use crate::tx::{Entry, KEPT_ENTRIES, Tx};

/// Another machine whose objects are written: a primary.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Participant {
    pub(super) machine: MachineId,
    /// Bytes of its LOCK record after the head.
    pub(super) rest_bytes: usize,
    /// The token of the expected LOCK-REPLY; `Some` from the reservation until the reply arrives or the machine is
    /// lost.
    pub(super) reply: Option<u64>,
    /// Whether LOCK was appended to the participant's log.
    pub(super) asked: bool,
    /// The end of the participant's entries in [`Plan::written`]. The entries begin at the `end` of the previous
    /// participant.
    end: u32,
}

impl Participant {
    /// Returns the bytes to reserve for LOCK.
    pub(super) fn lock_reserved(&self) -> u32 {
        log_record_bytes(FIXED_BYTES + self.rest_bytes)
    }

    /// Returns the bytes to reserve for all records of a transaction: LOCK, COMMIT-PRIMARY or ABORT, and TRUNCATE.
    pub(super) fn reserved(&self) -> u32 {
        self.lock_reserved() + 2 * fixed_reserved()
    }
}

/// The machines, regions and objects that a commit concerns; see the [module](self).
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Plan {
    /// Ascending by machine.
    pub(super) participants: SmallVec<[Participant; 4]>,
    /// Ids of all regions that are written, ascending; none if nothing is written.
    pub(super) regions: SmallVec<[u32; 8]>,
    /// Written entries of other machines, grouped by participant.
    written: SmallVec<[u32; 16]>,
    /// Other machines with objects that were only read, ascending, each with the number of these objects.
    pub(super) reads: SmallVec<[(MachineId, u32); 4]>,
}

impl Plan {
    /// Fills the plan for a transaction with objects of other machines. The plan must be clear; its allocated memory is
    /// reused.
    pub(super) fn fill(&mut self, tx: &Tx) {
        let plan = self;
        // Objects of one machine, or region, often follow each other.
        let (mut to, mut from, mut region) = (0, 0, 0);
        for entry in tx.entries.iter() {
            if !entry.is_written() {
                if let Some(machine) = entry.machine {
                    from = place_of(&mut plan.reads, from, machine, |one| one.0, (machine, 0));
                    plan.reads[from].1 += 1;
                }
                continue;
            }
            let id = entry.address.region().to_bits();
            region = place_of(&mut plan.regions, region, id, |one| *one, id);
            if let Some(machine) = entry.machine {
                let new = Participant {
                    machine,
                    rest_bytes: LOCK_BYTES,
                    reply: None,
                    asked: false,
                    end: 0,
                };
                to = place_of(&mut plan.participants, to, machine, |one| one.machine, new);
                let participant = &mut plan.participants[to];
                participant.rest_bytes += record::object_bytes(tx.payload_of(entry).len());
                participant.end += 1;
            }
        }
        for participant in &mut plan.participants {
            participant.rest_bytes += record::region_bytes(plan.regions.len());
        }
        plan.group(tx);
    }

    /// Returns whether the plan contains no transaction. Every transaction that has a plan writes or reads objects of
    /// other machines.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.participants.is_empty() && self.reads.is_empty()
    }

    /// Removes the transaction from the plan.
    pub(super) fn clear(&mut self) {
        if self.written.capacity() > KEPT_ENTRIES {
            *self = Self::default();
        }
        self.participants.clear();
        self.regions.clear();
        self.written.clear();
        self.reads.clear();
    }

    /// Groups the written entries by participant. Before the call, the `end` of each participant is its number of
    /// entries.
    fn group(&mut self, tx: &Tx) {
        if self.participants.is_empty() {
            return;
        }
        let mut end = 0;
        for participant in &mut self.participants {
            end += std::mem::replace(&mut participant.end, end);
        }
        self.written.resize(end as usize, 0);
        // Each `end` is now the index at which the participant's entries begin. It advances with every entry that is
        // added.
        let mut at = 0;
        for (index, entry) in (0..).zip(tx.entries.iter()) {
            let Some(machine) = entry.machine.filter(|_| entry.is_written()) else {
                continue;
            };
            if self.participants[at].machine != machine {
                at = self.place(machine);
            }
            let end = &mut self.participants[at].end;
            self.written[*end as usize] = index;
            *end += 1;
        }
    }

    fn place(&self, machine: MachineId) -> usize {
        let found = self
            .participants
            .binary_search_by_key(&machine, |one| one.machine);
        found.expect("every other machine with written objects is a participant")
    }

    /// Returns the entries of a participant.
    pub(super) fn of_participant(&self, at: usize) -> &[u32] {
        let begin = at
            .checked_sub(1)
            .map_or(0, |before| self.participants[before].end);
        &self.written[begin as usize..self.participants[at].end as usize]
    }

    /// Returns the objects of a participant.
    pub(super) fn objects<'a>(
        &'a self,
        at: usize,
        tx: &'a Tx,
    ) -> impl ExactSizeIterator<Item = &'a Entry> {
        let entries = self.of_participant(at).iter();
        entries.map(|index| &tx.entries[*index as usize])
    }
}

/// Returns the index of a key in an ascending list; tries the index `before` first. If the list does not contain the
/// key, inserts `new`.
fn place_of<T, K: Ord, const N: usize>(
    list: &mut SmallVec<[T; N]>,
    before: usize,
    key: K,
    key_of: impl Fn(&T) -> K,
    new: T,
) -> usize
where
    [T; N]: smallvec::Array<Item = T>,
{
    if list.get(before).is_some_and(|one| key_of(one) == key) {
        return before;
    }
    match list.binary_search_by_key(&key, key_of) {
        Ok(at) => at,
        Err(at) => {
            list.insert(at, new);
            at
        }
    }
}
