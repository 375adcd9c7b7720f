//! The machines, regions and objects that a commit concerns, found in two passes over its entries.

use farm_core::ids::{MachineId, RegionId};
use farm_core::region::map::Replicas;
use farm_core::ring::log_record_bytes;
use smallvec::SmallVec;

use crate::record::{self, FIXED_BYTES, LOCK_BYTES, fixed_reserved};
use crate::tx::{Entry, KEPT_ENTRIES, Tx};

/// A machine whose objects are written, a primary, or that keeps copies of written objects, a backup. It may be both, and the
/// coordinator's own machine.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Participant {
    pub(super) machine: MachineId,
    /// Whether it is the coordinator's machine, which has a log only if commits are logged.
    pub(super) is_own: bool,
    /// The written objects of which it is the primary: LOCK.
    pub(super) lock: Part,
    /// The written objects of which it keeps copies: COMMIT-BACKUP.
    pub(super) backup: Part,
    /// The token of the expected LOCK-REPLY; `Some` from the reservation until the reply arrives or the machine is
    /// lost.
    pub(super) reply: Option<u64>,
    /// Whether LOCK was appended to the participant's log.
    pub(super) asked: bool,
    /// Whether COMMIT-BACKUP was appended to the participant's log.
    pub(super) backed: bool,
}

/// The objects of one record of a participant.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Part {
    /// Bytes of the record after the head; 0 if the participant gets no such record.
    rest_bytes: usize,
    /// The end of the part's entries in the list of its kind of record. They begin at the `end` of the participant before.
    end: u32,
}

impl Part {
    /// Returns whether there are no objects, and no record.
    pub(super) fn is_empty(&self) -> bool {
        self.rest_bytes == 0
    }

    fn add(&mut self, bytes: usize) {
        if self.rest_bytes == 0 {
            self.rest_bytes = LOCK_BYTES;
        }
        self.rest_bytes += bytes;
        self.end += 1;
    }

    /// Returns the bytes of the body of the record; 0 if there is none.
    pub(super) fn body_bytes(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => FIXED_BYTES + self.rest_bytes,
        }
    }

    /// Returns the bytes to reserve for the record.
    pub(super) fn reserved(&self) -> u32 {
        match self.is_empty() {
            true => 0,
            false => log_record_bytes(self.body_bytes()),
        }
    }
}

impl Participant {
    fn new(machine: MachineId, me: Option<MachineId>) -> Self {
        Self {
            machine,
            is_own: me == Some(machine),
            lock: Part::default(),
            backup: Part::default(),
            reply: None,
            asked: false,
            backed: false,
        }
    }

    /// Returns whether the participant has the record LOCK: it is a primary.
    pub(super) fn is_primary(&self) -> bool {
        !self.lock.is_empty()
    }

    /// Returns whether its log has a record of the transaction.
    pub(super) fn has_record(&self) -> bool {
        self.asked || self.backed
    }

    /// Returns the bytes to reserve for all records of a transaction: LOCK and COMMIT-PRIMARY or ABORT, COMMIT-BACKUP, and
    /// TRUNCATE in the logs of other machines.
    pub(super) fn reserved(&self) -> u32 {
        let end = u32::from(self.is_primary()) + u32::from(!self.is_own);
        self.lock.reserved() + self.backup.reserved() + end * fixed_reserved()
    }
}

/// The objects of one kind of record, grouped by participant.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Grouped(SmallVec<[u32; 16]>);

/// The machines, regions and objects that a commit concerns; see the [module](self).
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Plan {
    /// Ascending by machine.
    pub(super) participants: SmallVec<[Participant; 4]>,
    /// Ids of all regions that are written, ascending; none if nothing is written.
    pub(super) regions: SmallVec<[u32; 8]>,
    /// Written entries, grouped by their primary.
    written: Grouped,
    /// Written entries, grouped by backup.
    copies: Grouped,
    /// Other machines with objects that were only read, ascending, each with the number of these objects.
    pub(super) reads: SmallVec<[(MachineId, u32); 4]>,
    /// Whether the plan contains a transaction.
    is_set: bool,
}

/// How commits are logged, from the view of one of them.
#[derive(Clone, Copy)]
pub(super) struct Logged<'a> {
    /// The machine of the coordinator.
    pub(super) me: MachineId,
    /// Returns the replicas of a region.
    pub(super) replicas: &'a dyn Fn(RegionId) -> Option<Replicas>,
}

/// Finds the backups of regions. Objects of one region often follow each other, so the last one is kept.
struct Copies<'a> {
    logged: Option<Logged<'a>>,
    last: Option<(RegionId, Option<Replicas>)>,
}

impl<'a> Copies<'a> {
    fn of(logged: Option<Logged<'a>>) -> Self {
        Self { logged, last: None }
    }

    /// Returns the backups of a region; none if commits are not logged.
    fn backups(&mut self, region: RegionId) -> &[MachineId] {
        let Some(logged) = self.logged else {
            return &[];
        };
        if self.last.is_none_or(|last| last.0 != region) {
            self.last = Some((region, (logged.replicas)(region)));
        }
        let replicas = self.last.as_ref().and_then(|last| last.1.as_ref());
        replicas.map_or(&[], Replicas::backups)
    }
}

impl Plan {
    /// Fills the plan for a transaction. The plan must be clear; its allocated memory is reused. If commits are not logged, the
    /// transaction has objects of other machines, and the own machine is no participant.
    pub(super) fn fill(&mut self, tx: &Tx, logged: Option<Logged<'_>>) {
        let plan = self;
        plan.is_set = true;
        // Objects of one machine, or region, often follow each other.
        let (mut to, mut from, mut region) = (0, 0, 0);
        let mut copies = Copies::of(logged);
        for entry in tx.entries.iter() {
            if !entry.is_written() {
                if let Some(machine) = entry.machine.filter(|_| tx.validates_reads()) {
                    from = place_of(&mut plan.reads, from, machine, |one| one.0, (machine, 0));
                    plan.reads[from].1 += 1;
                }
                continue;
            }
            let id = entry.address.region().to_bits();
            region = place_of(&mut plan.regions, region, id, |one| *one, id);
            let has_block = logged.is_some() && entry.is_reserved();
            let bytes = record::object_bytes(tx.payload_of(entry).len(), has_block);
            let me = logged.map(|logged| logged.me);
            if let Some(machine) = entry.machine.or(me) {
                to = plan.participant(to, machine, me);
                plan.participants[to].lock.add(bytes);
            }
            for backup in copies.backups(entry.address.region()) {
                let at = plan.participant(to, *backup, me);
                plan.participants[at].backup.add(bytes);
            }
        }
        for participant in &mut plan.participants {
            for part in [&mut participant.lock, &mut participant.backup] {
                if !part.is_empty() {
                    part.rest_bytes += record::region_bytes(plan.regions.len());
                }
            }
        }
        plan.group(tx, logged);
    }

    /// Returns whether other machines keep copies of written objects.
    pub(super) fn has_copies(&self) -> bool {
        let mut others = self.participants.iter().filter(|one| !one.is_own);
        others.any(|one| !one.backup.is_empty())
    }

    fn participant(&mut self, before: usize, machine: MachineId, me: Option<MachineId>) -> usize {
        let new = Participant::new(machine, me);
        place_of(
            &mut self.participants,
            before,
            machine,
            |one| one.machine,
            new,
        )
    }

    /// Returns whether the plan contains no transaction.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        !self.is_set
    }

    /// Removes the transaction from the plan.
    pub(super) fn clear(&mut self) {
        if self.written.0.capacity().max(self.copies.0.capacity()) > KEPT_ENTRIES {
            *self = Self::default();
        }
        self.is_set = false;
        self.participants.clear();
        self.regions.clear();
        self.written.0.clear();
        self.copies.0.clear();
        self.reads.clear();
    }

    /// Groups the written entries by participant. Before the call, the `end` of each part is its number of entries.
    fn group(&mut self, tx: &Tx, logged: Option<Logged<'_>>) {
        if self.participants.is_empty() {
            return;
        }
        let (mut written, mut copies) = (0, 0);
        for participant in &mut self.participants {
            written += std::mem::replace(&mut participant.lock.end, written);
            copies += std::mem::replace(&mut participant.backup.end, copies);
        }
        self.written.0.resize(written as usize, 0);
        self.copies.0.resize(copies as usize, 0);
        // Each `end` is now the index at which the part's entries begin. It advances with every entry that is added.
        let me = logged.map(|logged| logged.me);
        let mut at = 0;
        let mut copies_of = Copies::of(logged.filter(|_| copies > 0));
        for (index, entry) in (0..).zip(tx.entries.iter()) {
            if !entry.is_written() {
                continue;
            }
            if let Some(machine) = entry.machine.or(me) {
                if self.participants[at].machine != machine {
                    at = self.place(machine);
                }
                self.written.add(&mut self.participants[at].lock, index);
            }
            for backup in copies_of.backups(entry.address.region()) {
                let at = self.place(*backup);
                self.copies.add(&mut self.participants[at].backup, index);
            }
        }
    }

    fn place(&self, machine: MachineId) -> usize {
        let found = self
            .participants
            .binary_search_by_key(&machine, |one| one.machine);
        found.expect("every machine with written objects or copies is a participant")
    }

    /// Returns the entries of a participant of which it is the primary.
    pub(super) fn of_participant(&self, at: usize) -> &[u32] {
        let before = at.checked_sub(1);
        let begin = before.map_or(0, |before| self.participants[before].lock.end);
        &self.written.0[begin as usize..self.participants[at].lock.end as usize]
    }

    /// Returns the objects of a participant of which it is the primary.
    pub(super) fn objects<'a>(
        &'a self,
        at: usize,
        tx: &'a Tx,
    ) -> impl ExactSizeIterator<Item = &'a Entry> {
        let entries = self.of_participant(at).iter();
        entries.map(|index| &tx.entries[*index as usize])
    }

    /// Returns the objects of which a participant keeps copies.
    pub(super) fn copies<'a>(
        &'a self,
        at: usize,
        tx: &'a Tx,
    ) -> impl ExactSizeIterator<Item = &'a Entry> {
        let before = at.checked_sub(1);
        let begin = before.map_or(0, |before| self.participants[before].backup.end);
        let entries = &self.copies.0[begin as usize..self.participants[at].backup.end as usize];
        entries.iter().map(|index| &tx.entries[*index as usize])
    }

    /// Returns the index of the own machine, if it is a participant.
    pub(super) fn own(&self) -> Option<usize> {
        self.participants.iter().position(|one| one.is_own)
    }
}

impl Grouped {
    fn add(&mut self, part: &mut Part, index: u32) {
        self.0[part.end as usize] = index;
        part.end += 1;
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
