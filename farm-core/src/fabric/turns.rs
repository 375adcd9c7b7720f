//! Whether the workers of a machine go on. A worker that hangs, for example because a continuation does not return, holds up all machines:
//! its machine gives no more signs of life, and the others go on without it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::{MachineId, WorkerId, WorkerRef};

/// Number of leases in which a worker neither turns nor sleeps, after which it hangs. A continuation that computes for longer than a
/// lease is a mistake, but no reason to go on without its machine.
const LEASES: u32 = 10;

/// Number of turns of a worker, in a cache line of its own; 0 if it does not run.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// Numbers of turns of all workers of this machine.
#[derive(Debug)]
pub(super) struct Turns(Vec<Line>);

impl Turns {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Line::default()).collect())
    }

    /// Counts a turn. To be called by the thread of the worker.
    #[inline]
    pub(super) fn count(&self, worker: WorkerId) {
        let turns = &self.0[worker.index()].0;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Handles that the worker has ended.
    pub(super) fn end(&self, worker: WorkerId) {
        self.0[worker.index()].0.store(0, Ordering::Relaxed);
    }
}

/// What the thread of the leases has seen of the workers.
#[derive(Debug)]
pub(super) struct Watch {
    /// Turns of each worker, and the number of looks at which it had neither turned nor slept.
    seen: Vec<(u64, u32)>,
    /// Number of such looks after which it hangs.
    most: u32,
    /// The worker that hung at the last look.
    hangs: Option<WorkerId>,
}

impl Watch {
    /// Creates a watch that looks this often in the time of a lease.
    pub(super) fn new(looks: u32) -> Self {
        Self {
            seen: Vec::new(),
            most: LEASES * looks,
            hangs: None,
        }
    }

    /// Looks at all workers of this machine, of which `is_parked` says whether they sleep. Returns the first one that hangs, and logs when
    /// that changes.
    pub(super) fn look(
        &mut self,
        machine: MachineId,
        turns: &Turns,
        is_parked: impl Fn(WorkerId) -> bool,
    ) -> Option<WorkerId> {
        let hangs = self.find(turns, is_parked);
        if hangs != std::mem::replace(&mut self.hangs, hangs) {
            say_whether_it_hangs(machine, hangs);
        }
        hangs
    }

    fn find(&mut self, turns: &Turns, is_parked: impl Fn(WorkerId) -> bool) -> Option<WorkerId> {
        self.seen.resize(turns.0.len(), (0, 0));
        let mut hangs = None;
        for (index, (seen, line)) in self.seen.iter_mut().zip(&turns.0).enumerate() {
            let count = line.0.load(Ordering::Relaxed);
            let worker = WorkerId::new(index as u16)?;
            let goes_on = count == 0 || count != seen.0 || is_parked(worker);
            *seen = (count, if goes_on { 0 } else { seen.1 + 1 });
            if seen.1 >= self.most {
                hangs = hangs.or(Some(worker));
            }
        }
        hangs
    }
}

fn say_whether_it_hangs(machine: MachineId, hung: Option<WorkerId>) {
    match hung.map(|worker| WorkerRef::new(machine, worker)) {
        Some(worker) => tracing::error!(
            %worker,
            "a worker hangs: a continuation or a handler does not return. This machine gives no more signs of life, so that the other \
             machines go on without it"
        ),
        None => tracing::warn!("all workers of this machine go on"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LOOKS: u32 = 3;

    fn worker(number: u16) -> WorkerId {
        WorkerId::new(number).unwrap()
    }

    #[test]
    fn a_worker_hangs_that_neither_turns_nor_sleeps() {
        let (turns, parked) = (Turns::new(2), Cell::new(None));
        let is_parked = |worker| parked.get() == Some(worker);
        let (mut watch, machine) = (Watch::new(LOOKS), MachineId::new(1).unwrap());
        let mut look = |times| (0..times).find_map(|_| watch.look(machine, &turns, is_parked));
        // None has begun.
        assert_eq!(look(100), None);
        // The second one turns once, and not again. The first one has ended.
        turns.count(worker(0));
        turns.count(worker(1));
        turns.end(worker(0));
        assert_eq!(look(LEASES * LOOKS), None);
        assert_eq!(look(1), Some(worker(1)));
        // It goes on, and sleeps.
        turns.count(worker(1));
        assert_eq!(look(LEASES * LOOKS), None);
        parked.set(Some(worker(1)));
        assert_eq!(look(100), None);
        parked.set(None);
        assert_eq!(look(LEASES * LOOKS - 1), None);
        assert_eq!(look(1), Some(worker(1)));
    }
}
