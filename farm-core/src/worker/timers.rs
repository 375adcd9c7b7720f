//! Timers of one worker: a heap of due times, each with a continuation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Cont;
use crate::time::Nanos;

/// Timers. A timer cannot be cancelled: its continuation must ignore a call that is no longer needed.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry {
    due: Nanos,
    /// Number of the timer. Timers with the same due time run in the order in which they were set.
    sequence: u64,
    cont: Cont<()>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.sequence).cmp(&(other.due, other.sequence))
    }
}

impl Timers {
    pub(crate) fn with_capacity(timers: usize) -> Self {
        Self {
            heap: BinaryHeap::with_capacity(timers),
            sequence: 0,
        }
    }

    pub(crate) fn set(&mut self, due: Nanos, cont: Cont<()>) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry {
            due,
            sequence: self.sequence,
            cont,
        }));
    }

    /// Returns the number of the timer that was set last; numbers ascend.
    pub(crate) fn last_set(&self) -> u64 {
        self.sequence
    }

    /// Takes the next timer that is due at `now`, unless its number is greater than `until`. No timer is set for a time
    /// before `now`, so a timer with a greater number sorts after all those that are due.
    pub(crate) fn take_due(&mut self, now: Nanos, until: u64) -> Option<Cont<()>> {
        let Reverse(next) = self.heap.peek()?;
        if next.due > now || next.sequence > until {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.cont)
    }

    /// Returns when the next timer is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| entry.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_run_in_order_of_due_time_then_of_setting() {
        let mut timers = Timers::default();
        for (due, context) in [(30, 1), (10, 2), (10, 3), (20, 4)] {
            timers.set(Nanos(due), Cont::new(|_, _: u64, ()| {}, context));
        }
        assert_eq!(timers.next(), Some(Nanos(10)));
        let mut order = Vec::new();
        let until = timers.last_set();
        while let Some(cont) = timers.take_due(Nanos(25), until) {
            order.push(format!("{cont:?}"));
        }
        assert_eq!(order, ["Cont(0x2)", "Cont(0x3)", "Cont(0x4)"]);
        assert!(timers.take_due(Nanos(29), until).is_none());
        timers.set(Nanos(30), Cont::new(|_, _: u64, ()| {}, 5));
        assert!(timers.take_due(Nanos(30), until).is_some());
        assert!(
            timers.take_due(Nanos(30), until).is_none(),
            "set after `until`"
        );
        assert!(timers.take_due(Nanos(30), until + 1).is_some());
    }
}
