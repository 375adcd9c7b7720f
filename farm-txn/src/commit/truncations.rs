//! The transactions that primaries may truncate (`FaRM'15 §4`), as a value of each coordinating worker.
//!
//! Each record that the worker appends to a log carries its low bound, below which all of its transactions are
//! truncated, and the numbers of a few transactions above it.

use std::collections::VecDeque;

use farm_core::ids::MachineId;

use crate::record::MOST_TRUNCATED;

/// The transactions that primaries may truncate; see the [module](self).
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Truncations {
    /// The number of the transaction that began last.
    last: u64,
    /// Transactions by ascending number, and whether each may be truncated. The first transaction may not be truncated.
    open: VecDeque<(u64, bool)>,
    /// For each machine, by its index, the transactions that it may truncate and that no record has named, in any
    /// order. Space for naming them is reserved in its log.
    unsent: Vec<Vec<u64>>,
    /// Machines whose list was ever used.
    machines: Vec<MachineId>,
    /// Length of all lists of `unsent`.
    waiting: usize,
    /// Whether a timer is set that sends the truncations of `unsent`.
    timer: bool,
}

/// The truncations that one record carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Batch {
    /// Transactions below this number are truncated.
    pub(super) low: u64,
    names: [u64; MOST_TRUNCATED],
    named: usize,
    /// Number of unsent truncations of the machine that the record covers, because they are below the bound or named.
    pub(super) count: usize,
}

impl Batch {
    /// Returns the transactions that are named.
    pub(super) fn names(&self) -> &[u64] {
        &self.names[..self.named]
    }
}

impl Truncations {
    /// Returns the number of a new transaction.
    pub(crate) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.open.push_back((self.last, false));
        self.last
    }

    /// Records that all participants have acknowledged the end of a transaction. Each of them may truncate it.
    pub(crate) fn end(&mut self, sequence: u64, participants: impl Iterator<Item = MachineId>) {
        if let Ok(at) = self.open.binary_search_by_key(&sequence, |open| open.0) {
            self.open[at].1 = true;
        }
        while self.open.front().is_some_and(|open| open.1) {
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
        // A list that was ever used keeps its capacity.
        if self.unsent[index].capacity() == 0 {
            self.machines.push(machine);
        }
        self.unsent[index].push(sequence);
        self.waiting += 1;
    }

    /// Returns the truncations that the next record for a machine carries.
    pub(super) fn batch(&mut self, machine: MachineId) -> Batch {
        let mut batch = Batch {
            low: self.open.front().map_or(self.last + 1, |open| open.0),
            ..Batch::default()
        };
        if let Some(unsent) = self.unsent.get_mut(machine.index())
            && !unsent.is_empty()
        {
            // Transactions below the low bound need not be named.
            unsent.sort_unstable();
            let below = unsent.partition_point(|sequence| *sequence < batch.low);
            batch.named = (unsent.len() - below).min(MOST_TRUNCATED);
            batch.names[..batch.named].copy_from_slice(&unsent[below..][..batch.named]);
            batch.count = below + batch.named;
        }
        batch
    }

    /// Records that the record with this batch was appended. The batch must be the last batch that
    /// [`Truncations::batch`] returned.
    pub(super) fn on_sent(&mut self, machine: MachineId, batch: &Batch) {
        if batch.count > 0 {
            self.unsent[machine.index()].drain(..batch.count);
            self.waiting -= batch.count;
        }
    }

    /// Drops the truncations that were not sent to a lost machine, and returns their number.
    pub(super) fn on_lost(&mut self, machine: MachineId) -> usize {
        let unsent = self.unsent.get_mut(machine.index());
        let count = unsent.map_or(0, |unsent| unsent.drain(..).len());
        self.waiting -= count;
        count
    }

    /// Returns whether a machine has truncations that were not sent.
    pub(super) fn has_unsent(&self, machine: MachineId) -> bool {
        let unsent = self.unsent.get(machine.index());
        unsent.is_some_and(|unsent| !unsent.is_empty())
    }

    /// Returns the machines that may have truncations that were not sent.
    pub(super) fn machines(&self) -> &[MachineId] {
        &self.machines
    }

    /// Returns whether the caller must set the timer after which unsent truncations are sent by records of their own.
    /// From then on the timer counts as set.
    pub(super) fn start_timer(&mut self) -> bool {
        let starts = !self.timer && self.waiting > 0;
        self.timer |= starts;
        starts
    }

    /// Records that the timer has expired.
    pub(super) fn on_timer(&mut self) {
        self.timer = false;
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
    fn a_batch_names_the_first_transactions_above_the_low_bound() {
        let mut state = Truncations::default();
        let numbers: Vec<u64> = (0..12).map(|_| state.begin()).collect();
        // The third stays open.
        for number in numbers.iter().filter(|number| **number != 3).rev() {
            state.end(*number, [machine()].into_iter());
        }
        let batch = state.batch(machine());
        assert_eq!((batch.low, batch.count), (3, 10));
        assert_eq!(batch.names(), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(state.batch(machine()), batch, "nothing was sent");
        state.on_sent(machine(), &batch);
        assert_eq!(state.batch(machine()).names(), [12]);
        assert!(state.start_timer() && !state.start_timer());
        assert_eq!((state.on_lost(machine()), state.waiting()), (1, 0));
        assert!(!state.has_unsent(machine()));
    }
}
