//! The transactions that participants may truncate (`FaRM'15 §4`), as a value of each coordinating worker.
//!
//! Each record that the worker appends to a log carries its low bound: all of its transactions below are finished, and are
//! truncated. A transaction that takes long holds the bound back for all later ones, which keep their records until it has
//! ended. So no transaction begins that is [`MOST_AHEAD`] or more above the bound. Transactions that are truncated by name, as in
//! the paper, would not need this; but recovery must be able to tell transactions that were truncated from those that never
//! had a record, and one number for each coordinator is all that it has to know (docs/decisions/0031).

use std::collections::VecDeque;

use farm_core::ids::MachineId;
use farm_core::mutants;

/// Maximum number of transactions of a worker from the low bound on.
const MOST_AHEAD: u64 = 4096;

/// The transactions that participants may truncate; see the [module](self).
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Truncations {
    /// The number of the transaction that began last.
    last: u64,
    /// Whether each of the last transactions is finished, up to `last`. The first is not.
    open: VecDeque<bool>,
    /// For each machine, by its index, the finished transactions with records there that no bound that was sent there has
    /// passed, ascending. Room for a record that truncates each of them is reserved in its log.
    unsent: Vec<Vec<u64>>,
    /// Machines whose list was ever used.
    machines: Vec<MachineId>,
    /// Length of all lists of `unsent`.
    waiting: usize,
    /// Whether a timer is set that sends the bound by records of their own.
    timer: bool,
    most_ahead: u64,
}

impl Default for Truncations {
    fn default() -> Self {
        Self {
            last: 0,
            open: VecDeque::new(),
            unsent: Vec::new(),
            machines: Vec::new(),
            waiting: 0,
            timer: false,
            most_ahead: MOST_AHEAD,
        }
    }
}

/// What one record truncates at its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Batch {
    /// Transactions below this number are truncated.
    pub(super) low: u64,
    /// Number of unsent truncations of the machine below the bound.
    pub(super) count: usize,
}

impl Truncations {
    /// Returns whether a transaction may begin now, without being too far above the low bound. When it may not, it may when
    /// an earlier one has ended.
    #[inline]
    pub(crate) fn may_begin(&self) -> bool {
        self.last + 1 - self.low() < self.most_ahead
    }

    /// Sets the maximum number of transactions from the low bound on.
    pub(crate) fn set_most_ahead(&mut self, most: u64) {
        self.most_ahead = most;
    }

    /// Returns the number of a new transaction.
    pub(crate) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.open.push_back(false);
        self.last
    }

    /// Records that all participants have acknowledged the end of a transaction: it is finished.
    pub(crate) fn end(&mut self, sequence: u64, participants: impl Iterator<Item = MachineId>) {
        let at = sequence.checked_sub(self.low());
        if let Some(open) = at.and_then(|at| self.open.get_mut(at as usize)) {
            *open = true;
        }
        let early = mutants::is_on("low bound early");
        while let Some(finished) = self.open.front()
            && (*finished || early && self.low() < sequence)
        {
            self.open.pop_front();
        }
        for machine in participants {
            self.note(machine, sequence);
        }
    }

    fn note(&mut self, machine: MachineId, sequence: u64) {
        let index = machine.index();
        if self.unsent.len() <= index {
            self.unsent.resize_with(index + 1, Vec::new);
        }
        let unsent = &mut self.unsent[index];
        // A list that was ever used keeps its capacity.
        if unsent.capacity() == 0 {
            self.machines.push(machine);
        }
        // Transactions end nearly in the order of their numbers.
        let later = unsent.iter().rev();
        let later = later.take_while(|other| **other > sequence).count();
        unsent.insert(unsent.len() - later, sequence);
        self.waiting += 1;
    }

    /// Returns the number below which all transactions are finished.
    #[inline]
    pub(super) fn low(&self) -> u64 {
        self.last + 1 - self.open.len() as u64
    }

    /// Returns what the next record for a machine truncates.
    pub(super) fn batch(&self, machine: MachineId) -> Batch {
        let low = self.low();
        let unsent = self.unsent.get(machine.index());
        let count = unsent.map_or(0, |unsent| unsent.partition_point(|one| *one < low));
        Batch { low, count }
    }

    /// Records that a record with the last [`Batch`] of the machine, which had this count, was appended.
    pub(super) fn on_sent(&mut self, machine: MachineId, count: usize) {
        if count > 0 {
            self.unsent[machine.index()].drain(..count);
            self.waiting -= count;
        }
    }

    /// Drops the truncations that were not sent to a lost machine, and returns their number.
    pub(super) fn on_lost(&mut self, machine: MachineId) -> usize {
        let unsent = self.unsent.get_mut(machine.index());
        let count = unsent.map_or(0, |unsent| unsent.drain(..).len());
        self.waiting -= count;
        count
    }

    /// Forgets all transactions, because the configuration has changed. Their numbers are not used again.
    pub(crate) fn reset(&mut self) {
        self.open.clear();
        self.unsent.iter_mut().for_each(Vec::clear);
        self.waiting = 0;
    }

    /// Returns whether a record with the low bound truncates something at a machine.
    pub(super) fn has_due(&self, machine: MachineId) -> bool {
        let first = self.unsent.get(machine.index());
        first
            .and_then(|unsent| unsent.first())
            .is_some_and(|first| *first < self.low())
    }

    /// Returns the machines that may have truncations that were not sent.
    pub(super) fn machines(&self) -> &[MachineId] {
        &self.machines
    }

    /// Returns whether the caller must set the timer after which the low bound is sent by records of their own. From then on
    /// the timer counts as set.
    pub(super) fn start_timer(&mut self) -> bool {
        let starts = !self.timer && self.machines.iter().any(|machine| self.has_due(*machine));
        self.timer |= starts;
        starts
    }

    /// Records that the timer has expired.
    pub(super) fn on_timer(&mut self) {
        self.timer = false;
    }

    /// Returns the number of transactions that have begun, and are not finished.
    pub(crate) fn unfinished(&self) -> usize {
        self.open.iter().filter(|finished| !**finished).count()
    }

    /// Returns the number of truncations that were not sent, summed over the machines.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> MachineId {
        MachineId::new(2).unwrap()
    }

    #[test]
    fn the_low_bound_stays_at_the_first_open_transaction() {
        let mut state = Truncations::default();
        let low = |state: &mut Truncations| state.batch(machine()).low;
        let none = || std::iter::empty();
        assert_eq!(low(&mut state), 1);
        let [one, two, three] = [(); 3].map(|()| state.begin());
        assert_eq!((one, two, three, low(&mut state)), (1, 2, 3, 1));
        state.end(two, none());
        assert_eq!(low(&mut state), 1);
        state.end(one, none());
        assert_eq!(low(&mut state), 3);
        state.end(three, none());
        assert_eq!(low(&mut state), 4);
        assert_eq!(state.begin(), 4);
        assert_eq!(low(&mut state), 4);
    }

    #[test]
    fn a_record_truncates_what_is_below_the_low_bound() {
        let mut state = Truncations::default();
        let numbers: Vec<u64> = (0..12).map(|_| state.begin()).collect();
        // The third stays open.
        for number in numbers.iter().filter(|number| **number != 3).rev() {
            state.end(*number, [machine()].into_iter());
        }
        let batch = state.batch(machine());
        assert_eq!(batch, Batch { low: 3, count: 2 });
        assert_eq!(state.batch(machine()), batch, "nothing was sent");
        assert!(state.has_due(machine()));
        state.on_sent(machine(), batch.count);
        assert_eq!(state.batch(machine()), Batch { low: 3, count: 0 });
        assert!(!state.has_due(machine()) && !state.start_timer());
        assert_eq!(state.waiting(), 9);
        state.end(3, [machine()].into_iter());
        assert_eq!(state.batch(machine()), Batch { low: 13, count: 10 });
        assert!(state.start_timer() && !state.start_timer());
        assert_eq!((state.on_lost(machine()), state.waiting()), (10, 0));
        assert!(!state.has_due(machine()));
    }

    #[test]
    fn no_transaction_begins_too_far_above_the_low_bound() {
        let mut state = Truncations::default();
        state.set_most_ahead(4);
        for number in 1..=4 {
            assert!(state.may_begin(), "{number}");
            assert_eq!(state.begin(), number);
        }
        assert!(!state.may_begin());
        for finished in [2, 4] {
            state.end(finished, std::iter::empty());
            assert!(!state.may_begin());
        }
        state.end(1, std::iter::empty());
        assert!(state.may_begin());
        assert_eq!((state.begin(), state.begin()), (5, 6));
        assert!(!state.may_begin());
    }
}
