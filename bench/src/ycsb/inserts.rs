//! Inserts of the run phase: which worker inserts which record, and which records are readable.
//!
//! The records of the run follow the loaded ones. The `i`-th insert of worker `w` of `n` is record `base + i * n + w`,
//! so no two workers insert the same record, and no coordination is needed. A worker may have many inserts in flight,
//! which are acknowledged in any order. Each worker counts the longest prefix of its inserts that is fully
//! acknowledged.
//! [`InsertTracker`] combines these counts, without locks, to the longest complete prefix of the process's inserts: its
//! *frontier*.
//!
//! # Several processes
//!
//! A process knows only the inserts of its own workers. It numbers the records that it can read without gaps, as a
//! *view*: the loaded records with their own numbers, then the records that its own workers insert, in the order of `i`
//! and `w`. Generators draw from the view, and [`InsertTracker::key_at`] converts a place of the view to a record
//! number. So a process never requests a record of another process that may not exist yet. With one process, the view
//! is equal to the record numbers.
//!
//! # Invariants
//!
//! * Every record below the frontier is acknowledged, and its worker's acknowledgement happens before a reader's load
//!   of the frontier.
//! * The frontier includes every complete prefix: of two workers that complete it together, at least one sees the
//!   other's count (`SeqCst` store, then load). Guarded by `the_frontier_reaches_everything_acknowledged`.
//!
//! The frontier waits for the slowest worker. Workers that insert faster read their newest records only when the
//! slowest has caught up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The workers of this process among all workers of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSpan {
    /// Number of this process's first worker.
    pub first: u64,
    /// Number of workers of this process.
    pub local: u64,
    /// Number of workers of all processes.
    pub total: u64,
}

impl WorkerSpan {
    /// Returns the span of a run with a single process.
    pub fn single_process(workers: u64) -> Self {
        Self {
            first: 0,
            local: workers,
            total: workers,
        }
    }
}

/// A count on its own cache lines, to avoid false sharing between workers.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The inserted records of this process that can be read; shared by its workers.
#[derive(Debug)]
pub struct InsertTracker {
    base: u64,
    span: WorkerSpan,
    /// Length of the complete prefix of this process's inserts.
    frontier: Count,
    /// For each worker of this process: the length of its acknowledged prefix of inserts.
    acknowledged: Box<[Count]>,
}

impl InsertTracker {
    /// Creates a tracker. Inserts start at record `base`, the number of loaded records.
    ///
    /// # Panics
    /// If `base` is 0, or if the span has no workers or more than `total`.
    pub fn new(base: u64, span: WorkerSpan) -> Self {
        assert!(
            base > 0,
            "at least one record must be loaded before the run inserts more"
        );
        assert!(
            span.local > 0 && span.first + span.local <= span.total,
            "{span:?} has no local workers, or a worker number that is not below `total`"
        );
        Self {
            base,
            span,
            frontier: Count::default(),
            acknowledged: (0..span.local).map(|_| Count::default()).collect(),
        }
    }

    /// Returns the last place of the view. All places up to it can be read.
    #[inline]
    pub fn last(&self) -> u64 {
        self.base + self.frontier.0.load(Ordering::Acquire) - 1
    }

    /// Returns the record at a place of the view.
    #[inline]
    pub fn key_at(&self, place: u64) -> u64 {
        if place < self.base || self.span.local == self.span.total {
            return place;
        }
        let insert = place - self.base;
        let (turn, worker) = (insert / self.span.local, insert % self.span.local);
        self.base + turn * self.span.total + self.span.first + worker
    }

    /// Returns the workers of this process.
    pub fn span(&self) -> WorkerSpan {
        self.span
    }

    /// Records that the first `count` inserts of `worker` are acknowledged, and advances the frontier.
    fn publish(&self, worker: u64, count: u64) {
        self.acknowledged[worker as usize]
            .0
            .store(count, Ordering::SeqCst);
        let before = self.frontier.0.load(Ordering::Acquire);
        let mut frontier = before;
        loop {
            let (turn, owner) = (frontier / self.span.local, frontier % self.span.local);
            let complete = self.acknowledged[owner as usize].0.load(Ordering::SeqCst);
            if complete <= turn {
                break;
            }
            frontier += 1;
        }
        if frontier > before {
            self.frontier.0.fetch_max(frontier, Ordering::AcqRel);
        }
    }
}

/// The inserts of one worker: assigns its records, and collects the acknowledgements.
#[derive(Debug)]
pub struct InsertLane {
    tracker: Arc<InsertTracker>,
    /// Number of the worker within this process.
    worker: u64,
    /// Number of records that were assigned.
    handed_out: u64,
    /// Length of the acknowledged prefix.
    complete: u64,
    /// Acknowledgements, one bit per insert; bit 0 of the front is insert `complete`, rounded down to a multiple of 64.
    window: VecDeque<u64>,
}

impl InsertLane {
    /// Creates the lane of `worker`, a number within this process. It continues after the inserts that an earlier lane
    /// of the same worker completed.
    ///
    /// # Panics
    /// If this process has no such worker.
    pub fn new(tracker: Arc<InsertTracker>, worker: u64) -> Self {
        assert!(
            worker < tracker.span.local,
            "worker {worker} does not belong to this process, which has the workers {:?}",
            tracker.span
        );
        let complete = tracker.acknowledged[worker as usize]
            .0
            .load(Ordering::SeqCst);
        Self {
            tracker,
            worker,
            handed_out: complete,
            complete,
            window: VecDeque::with_capacity(64),
        }
    }

    /// Returns the record to insert next.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        let span = self.tracker.span;
        let key = self.tracker.base + self.handed_out * span.total + span.first + self.worker;
        self.handed_out += 1;
        key
    }

    /// Records that the insert of `key` is acknowledged, so that the record may be read.
    ///
    /// The window grows only while one insert is outstanding during thousands of later ones.
    ///
    /// # Panics
    /// If this lane did not assign `key`.
    pub fn acknowledge(&mut self, key: u64) {
        let span = self.tracker.span;
        let insert = key
            .checked_sub(self.tracker.base + span.first + self.worker)
            .filter(|distance| distance % span.total == 0)
            .map(|distance| distance / span.total)
            .filter(|insert| *insert < self.handed_out);
        let Some(insert) = insert else {
            panic!(
                "worker {} of {span:?} reported the insert of record {key}, which it had not begun",
                self.worker
            );
        };
        if insert < self.complete {
            return;
        }
        let slot = (insert / 64 - self.complete / 64) as usize;
        while self.window.len() <= slot {
            self.window.push_back(0);
        }
        self.window[slot] |= 1 << (insert % 64);
        self.advance();
    }

    /// Moves `complete` over all acknowledged inserts, and publishes it to the tracker.
    fn advance(&mut self) {
        let before = self.complete;
        while let Some(bits) = self.window.front() {
            let at = self.complete % 64;
            // The shift fills the upper bits with zeros, so that the count does not exceed the rest of the word.
            let done = u64::from((bits >> at).trailing_ones());
            self.complete += done;
            if at + done < 64 {
                break;
            }
            self.window.pop_front();
        }
        if self.complete > before {
            self.tracker.publish(self.worker, self.complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(tracker: &Arc<InsertTracker>, worker: u64) -> InsertLane {
        InsertLane::new(Arc::clone(tracker), worker)
    }

    #[test]
    fn a_process_sees_its_own_inserts_only() {
        let span = WorkerSpan {
            first: 3,
            local: 2,
            total: 7,
        };
        let tracker = Arc::new(InsertTracker::new(10, span));
        let (mut a, mut b) = (lane(&tracker, 0), lane(&tracker, 1));
        let keys: Vec<u64> = (0..2).flat_map(|_| [a.next_key(), b.next_key()]).collect();
        assert_eq!(keys, [13, 14, 20, 21]);
        a.acknowledge(13);
        b.acknowledge(14);
        a.acknowledge(20);
        assert_eq!(tracker.last(), 12);
        let view: Vec<u64> = (8..=12).map(|place| tracker.key_at(place)).collect();
        assert_eq!(view, [8, 9, 13, 14, 20]);
    }

    #[test]
    fn a_lane_continues_after_an_earlier_one() {
        let tracker = Arc::new(InsertTracker::new(1, WorkerSpan::single_process(1)));
        let mut first = lane(&tracker, 0);
        for _ in 0..130 {
            let key = first.next_key();
            first.acknowledge(key);
        }
        assert_eq!(tracker.last(), 130);
        let mut second = lane(&tracker, 0);
        assert_eq!((second.next_key(), second.next_key()), (131, 132));
        second.acknowledge(132);
        second.acknowledge(131);
        assert_eq!(tracker.last(), 132);
    }

    #[test]
    #[should_panic(expected = "reported the insert of record 101")]
    fn acknowledging_a_key_of_another_worker_panics() {
        let tracker = Arc::new(InsertTracker::new(100, WorkerSpan::single_process(2)));
        let mut worker = lane(&tracker, 0);
        worker.next_key();
        worker.acknowledge(101);
    }

    proptest::proptest! {
        #[test]
        fn acknowledgements_in_any_order_advance_the_frontier(
            order in proptest::collection::vec(0u64..u64::MAX, 1..400),
            workers in 1u64..5,
        ) {
            let tracker = Arc::new(InsertTracker::new(50, WorkerSpan::single_process(workers)));
            let mut lanes: Vec<_> = (0..workers).map(|w| lane(&tracker, w)).collect();
            let mut keys: Vec<(u64, u64)> = (0u64..)
                .zip(&order)
                .map(|(i, rank)| (*rank, lanes[(i % workers) as usize].next_key()))
                .collect();
            keys.sort_unstable();
            let mut done = std::collections::BTreeSet::new();
            for (_, key) in keys {
                lanes[((key - 50) % workers) as usize].acknowledge(key);
                done.insert(key);
                let complete = (50..).take_while(|key| done.contains(key)).count() as u64;
                proptest::prop_assert_eq!(tracker.last(), 49 + complete);
            }
        }
    }

    /// If two workers complete a prefix at the same moment, one of them must advance the frontier.
    #[test]
    fn the_frontier_reaches_everything_acknowledged() {
        const WORKERS: u64 = 3;
        const INSERTS: u64 = 20_000;
        let tracker = Arc::new(InsertTracker::new(1, WorkerSpan::single_process(WORKERS)));
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let tracker = &tracker;
                scope.spawn(move || {
                    let mut lane = lane(tracker, worker);
                    let mut seen = 0;
                    for _ in 0..INSERTS / 2 {
                        let (first, second) = (lane.next_key(), lane.next_key());
                        lane.acknowledge(second);
                        lane.acknowledge(first);
                        let last = tracker.last();
                        assert!(last >= seen, "the frontier decreased");
                        seen = last;
                    }
                });
            }
        });
        assert_eq!(tracker.last(), WORKERS * INSERTS);
    }
}
