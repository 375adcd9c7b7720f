//! The table of transitions, and barriers of several machines against each other, with messages in any order.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

fn machine(number: u16) -> MachineId {
    MachineId::new(number + 1).unwrap()
}

fn worker(of: u16, number: u16) -> WorkerRef {
    WorkerRef::new(machine(of), WorkerId::new(number).unwrap())
}

fn actions(barrier: &mut EpochBarrier) -> Vec<Action> {
    std::iter::from_fn(|| barrier.next_action()).collect()
}

fn send(to: WorkerRef, kind: Kind, number: u64) -> Action {
    Action::Send(Message { to, kind, number })
}

/// A barrier of the first worker of machine 0, in a cluster of two machines of two workers.
fn first() -> EpochBarrier {
    EpochBarrier::new(worker(0, 0), &[(machine(0), 2), (machine(1), 2)])
}

const LATER: Nanos = Nanos(1_000_000_000);

#[test]
fn a_change_retires_cuts_ends_the_epoch_and_frees() {
    let mut barrier = first();
    let (other, peer) = (worker(0, 1), worker(1, 0));
    barrier.on_shortage(LATER, Shortage::Refused);
    assert_eq!(
        actions(&mut barrier),
        [send(other, Kind::Retire, 1), Action::Retire]
    );
    barrier.on_done(1);
    assert_eq!(actions(&mut barrier), [Action::Cut]);
    barrier.on_cut(LATER, Some(Cut(7)));
    let ends = [
        send(other, Kind::EndEpoch, 2),
        send(peer, Kind::EndEpochs, 2),
        Action::ClearCaches,
    ];
    assert_eq!(actions(&mut barrier), ends);
    barrier.on_done(2);
    assert_eq!(actions(&mut barrier), [], "one reply is missing");
    barrier.on_done(2);
    assert_eq!(actions(&mut barrier), [Action::Free(Cut(7))]);
    assert_eq!(barrier.unanswered(), 1);
    barrier.on_freed(4096);
    barrier.on_all_freed(LATER);
    assert_eq!((barrier.unanswered(), barrier.counters().bytes), (0, 4096));
}

#[test]
fn a_change_without_vacant_blocks_ends_and_the_next_one_waits() {
    let mut barrier = first();
    let begin = |barrier: &mut EpochBarrier, now| {
        barrier.on_shortage_report(now);
        actions(barrier).len()
    };
    assert_eq!(begin(&mut barrier, LATER), 2);
    assert_eq!(begin(&mut barrier, LATER), 0, "a change runs");
    barrier.on_done(1);
    assert_eq!(actions(&mut barrier), [Action::Cut]);
    barrier.on_cut(LATER, None);
    assert_eq!((barrier.unanswered(), barrier.counters().fruitless), (0, 1));
    assert_eq!(begin(&mut barrier, LATER), 0, "within the pause");
    assert_eq!(begin(&mut barrier, LATER.after(FRUITLESS_PAUSE)), 2);
}

#[test]
fn workers_report_a_shortage_to_the_first_one_at_intervals() {
    let mut barrier = EpochBarrier::new(worker(0, 1), &[(machine(0), 2)]);
    let report = [Action::ReportShortage(worker(0, 0))];
    let mut at = |after: Duration, shortage| {
        barrier.on_shortage(LATER.after(after), shortage);
        actions(&mut barrier)
    };
    assert_eq!(at(Duration::ZERO, Shortage::Low), report);
    assert_eq!(at(Duration::ZERO, Shortage::Refused), report);
    assert_eq!(at(REFUSED_REPORT_INTERVAL, Shortage::Low), []);
    assert_eq!(at(REFUSED_REPORT_INTERVAL, Shortage::Refused), report);
    assert_eq!(at(LOW_REPORT_INTERVAL, Shortage::Low), report);
}

#[test]
fn requests_are_answered_when_the_operations_of_the_old_epoch_have_ended() {
    let mut barrier = EpochBarrier::new(worker(0, 1), &[(machine(0), 2)]);
    let first = worker(0, 0);
    let old = barrier.pin();
    barrier.on_end_epoch(first, 1);
    assert_eq!(actions(&mut barrier), [Action::ClearCaches]);
    let new = barrier.pin();
    barrier.on_end_epoch(first, 2);
    barrier.on_end_epoch(first, 3);
    assert_eq!(
        actions(&mut barrier),
        [],
        "they wait for the request before"
    );
    assert!(barrier.unpin(old));
    barrier.on_drained();
    assert_eq!(
        actions(&mut barrier),
        [send(first, Kind::Done, 1), Action::ClearCaches]
    );
    assert!(barrier.unpin(new));
    barrier.on_drained();
    assert_eq!(
        actions(&mut barrier),
        [send(first, Kind::Done, 2), send(first, Kind::Done, 3)]
    );
    let last = barrier.pin();
    assert!(!barrier.unpin(last), "no request waits for this epoch");
}

#[test]
fn a_request_of_another_machine_is_passed_on() {
    let mut barrier = first();
    let (other, peer) = (worker(0, 1), worker(1, 0));
    barrier.on_end_epochs(peer, 77);
    assert_eq!(
        actions(&mut barrier),
        [send(other, Kind::EndEpoch, 1), Action::ClearCaches]
    );
    barrier.on_done(1);
    assert_eq!(actions(&mut barrier), [send(peer, Kind::Done, 77)]);
}

#[test]
fn messages_without_room_are_sent_later_and_those_of_an_abandoned_change_are_not() {
    let mut barrier = first();
    barrier.on_shortage_report(LATER);
    barrier.on_done(1);
    actions(&mut barrier);
    barrier.on_cut(LATER, Some(Cut(1)));
    let sent = actions(&mut barrier);
    let [Action::Send(within), Action::Send(between), _] = sent[..] else {
        panic!("{sent:?}");
    };
    assert!(barrier.on_blocked(within), "the first one");
    assert!(!barrier.on_blocked(between));
    barrier.on_room();
    assert_eq!(
        actions(&mut barrier),
        [Action::Send(within), Action::Send(between)]
    );
    barrier.on_retire(worker(0, 1), 9);
    barrier.on_blocked(within);
    barrier.on_unsendable(LATER, between);
    barrier.on_room();
    assert_eq!(
        actions(&mut barrier),
        [Action::Retire, send(worker(0, 1), Kind::Done, 9)],
        "only the reply is left"
    );
    assert_eq!((barrier.unanswered(), barrier.counters().abandoned), (0, 1));
    barrier.on_done(2);
    assert_eq!(actions(&mut barrier), [], "a late reply has no effect");
}

/// All workers of a cluster, their messages in flight, and the operations that are open.
struct Cluster {
    barriers: Vec<EpochBarrier>,
    in_flight: Vec<(WorkerRef, Message)>,
    /// Worker, guard, and the moment at which the operation began.
    operations: Vec<(usize, EpochGuard, u64)>,
    /// Moments of the cuts, by machine.
    cuts: Vec<(WorkerRef, u64)>,
    moment: u64,
    freed: u64,
}

impl Cluster {
    fn new(machines: u16, workers: u16) -> Self {
        let list: Vec<_> = (0..machines)
            .map(|at| (machine(at), workers as usize))
            .collect();
        let all = (0..machines).flat_map(|at| (0..workers).map(move |of| worker(at, of)));
        Self {
            barriers: all.map(|me| EpochBarrier::new(me, &list)).collect(),
            in_flight: Vec::new(),
            operations: Vec::new(),
            cuts: Vec::new(),
            moment: 0,
            freed: 0,
        }
    }

    fn index(&self, of: WorkerRef) -> usize {
        let found = self.barriers.iter().position(|barrier| barrier.me == of);
        found.unwrap()
    }

    /// Performs the actions of a worker. Sending may find no room.
    fn perform(&mut self, at: usize, rng: &mut impl Rng) -> Result<(), TestCaseError> {
        let me = self.barriers[at].me;
        while let Some(action) = self.barriers[at].next_action() {
            match action {
                Action::Send(message) if rng.random_range(0..4) == 0 => {
                    self.barriers[at].on_blocked(message);
                }
                Action::Send(message) => {
                    self.barriers[at].on_sent(message);
                    self.in_flight.push((me, message));
                }
                Action::Cut => {
                    self.cuts.push((me, self.moment));
                    let cut = Cut(self.cuts.len() as u64);
                    self.barriers[at].on_cut(Nanos(self.moment), Some(cut));
                }
                Action::Free(cut) => {
                    let (of, made) = self.cuts[cut.0 as usize - 1];
                    prop_assert_eq!(of, me);
                    let older = self.operations.iter().find(|open| open.2 < made);
                    prop_assert!(
                        older.is_none(),
                        "an operation of before the cut is open: {:?}",
                        older
                    );
                    self.freed += 1;
                    self.barriers[at].on_freed(1);
                    self.barriers[at].on_all_freed(Nanos(self.moment));
                }
                Action::Retire | Action::ClearCaches | Action::ReportShortage(_) => {}
            }
        }
        Ok(())
    }

    /// Delivers a message of those in flight.
    fn deliver(&mut self, at: usize, rng: &mut impl Rng) -> Result<(), TestCaseError> {
        let (from, message) = self.in_flight.swap_remove(at);
        let to = self.index(message.to);
        let barrier = &mut self.barriers[to];
        match message.kind {
            Kind::Retire => barrier.on_retire(from, message.number),
            Kind::EndEpochs => barrier.on_end_epochs(from, message.number),
            Kind::EndEpoch => barrier.on_end_epoch(from, message.number),
            Kind::Done => barrier.on_done(message.number),
        }
        self.perform(to, rng)
    }

    fn end_operation(&mut self, at: usize, rng: &mut impl Rng) -> Result<(), TestCaseError> {
        let (worker, guard, _) = self.operations.swap_remove(at);
        if self.barriers[worker].unpin(guard) {
            self.barriers[worker].on_drained();
        }
        self.perform(worker, rng)
    }

    fn step(&mut self, rng: &mut impl Rng) -> Result<(), TestCaseError> {
        self.moment += 1;
        let at = rng.random_range(0..self.barriers.len());
        match rng.random_range(0..10) {
            0..4 if !self.in_flight.is_empty() => {
                self.deliver(rng.random_range(0..self.in_flight.len()), rng)
            }
            4..6 if self.operations.len() < 12 => {
                let guard = self.barriers[at].pin();
                self.operations.push((at, guard, self.moment));
                Ok(())
            }
            6..8 if !self.operations.is_empty() => {
                self.end_operation(rng.random_range(0..self.operations.len()), rng)
            }
            8 => {
                self.barriers[at].on_room();
                self.perform(at, rng)
            }
            _ if self.barriers[at].me.worker == WorkerId::FIRST => {
                self.barriers[at].on_shortage_report(Nanos(self.moment));
                self.perform(at, rng)
            }
            _ => Ok(()),
        }
    }

    /// Ends all operations and delivers all messages.
    fn settle(&mut self, rng: &mut impl Rng) -> Result<(), TestCaseError> {
        while !self.operations.is_empty() {
            self.end_operation(0, rng)?;
        }
        for _ in 0..10_000 {
            while !self.in_flight.is_empty() {
                self.deliver(0, rng)?;
            }
            for at in 0..self.barriers.len() {
                self.barriers[at].on_room();
                self.perform(at, rng)?;
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A machine frees blocks only when no operation of before its cut is open on any machine, and every request is
    /// answered.
    #[test]
    fn blocks_are_freed_after_all_operations_of_before_the_cut(seed: u64, machines in 1..4_u16, workers in 1..4_u16) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut cluster = Cluster::new(machines, workers);
        for _ in 0..2000 {
            cluster.step(&mut rng)?;
        }
        cluster.settle(&mut rng)?;
        for barrier in &cluster.barriers {
            prop_assert_eq!(barrier.unanswered(), 0);
            prop_assert_eq!(barrier.open(), 0);
        }
        prop_assert!(cluster.freed > 0, "the test proves nothing");
    }
}
