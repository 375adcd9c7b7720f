//! A closed loop of clients on one worker. The loop keeps a number of operations in flight and records them. It begins
//! an operation when an earlier one ends, or at a steady rate ([`Pace`]).
//!
//! The loop uses the worker as any application does: its state is a layer of the worker, and its operations call
//! continuations. Every operation in flight has a seat, whose number is the context of the operation's continuations.
//! The clients draw and perform the operations. The loop counts and times the operations that end after a warm-up,
//! divides this part of the run into time slices, and reports the result.

use std::ops::Range;
use std::time::Duration;

use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_txn::Handle;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slab::Slab;

use crate::counters::{Costs, Counters};
use crate::recorder::{Outcome, Recorder};
use crate::slices::{Slicer, Slices};

/// Time for which a seat stays unused after its operation failed.
const REST: Duration = Duration::from_millis(1);

/// Part of one worker in a run: how long, how much and how fast. A run also ends when its clients draw no more
/// operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Maximum number of operations in flight; 0 if this worker has no part in the run.
    pub in_flight: usize,
    /// Duration of the warm-up, whose operations do not count.
    pub warmup: Duration,
    /// Maximum duration of the counted part; `None` if it is not bounded.
    pub duration: Option<Duration>,
    /// Number of operations to count, including failed ones; `None` if it is not bounded.
    pub operations: Option<u64>,
    /// The rate at which operations begin; `None`: as fast as possible.
    pub pace: Option<Pace>,
}

/// A steady rate of all workers together, divided equally among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Operations per second of all workers together.
    pub target_per_s: u64,
    /// Number of workers that share the rate.
    pub workers: u64,
}

impl Pace {
    /// Returns the nanoseconds from the start of the run to the start of this worker's operation number `index`.
    fn due_ns(&self, index: u64) -> u64 {
        let nanos = u128::from(index) * 1_000_000_000 * u128::from(self.workers)
            / u128::from(self.target_per_s.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// Divides `0..whole` into `workers` consecutive ranges whose lengths differ by at most one, and returns range number
/// `worker`.
///
/// # Panics
/// If `worker` is not below `workers`.
pub fn part_of(whole: u64, worker: u64, workers: u64) -> Range<u64> {
    assert!(
        worker < workers,
        "worker {worker} is not below the number of workers, {workers}"
    );
    let cut = |part: u64| (u128::from(whole) * u128::from(part) / u128::from(workers)) as u64;
    cut(worker)..cut(worker + 1)
}

/// Bounds of a run of all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Duration of the warm-up, whose operations do not count.
    pub warmup: Duration,
    /// Maximum duration of the counted part; `None` if it is not bounded.
    pub duration: Option<Duration>,
    /// Number of operations to count; `None` if it is not bounded.
    pub operations: Option<u64>,
    /// Operations per second; `None` for as many as possible.
    pub target_per_s: Option<u64>,
    /// Number of operations in flight; `None` if each worker has its own number.
    pub threads: Option<u64>,
}

impl Bounds {
    /// Returns the part of worker `worker` of `workers`; workers are numbered over all machines. The parts of all
    /// workers add up to the bounds. `in_flight` is the number of operations that each worker keeps in flight if
    /// `threads` is `None`.
    ///
    /// # Panics
    /// If `worker` is not below `workers`.
    pub fn share(&self, worker: u64, workers: u64, in_flight: usize) -> Extent {
        // The operations are divided among the threads, so that a worker without a thread has no operations.
        let threads = self.threads.map_or(workers, |threads| threads.max(1));
        let own = part_of(threads, worker, workers);
        let operations = |whole| {
            let cut = |end| u128::from(whole) * u128::from(end) / u128::from(threads);
            (cut(own.end) - cut(own.start)) as u64
        };
        Extent {
            in_flight: self
                .threads
                .map_or(in_flight, |_| (own.end - own.start) as usize),
            warmup: self.warmup,
            duration: self.duration,
            operations: self.operations.map(operations),
            pace: self.target_per_s.map(|target_per_s| Pace {
                target_per_s,
                workers: workers.min(threads),
            }),
        }
    }
}

/// Result of a loop on one worker. It is serializable for the exchange between processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "C: Serialize + DeserializeOwned")]
pub struct Ran<C = ()> {
    /// Records of the counted part.
    pub recorder: Recorder<C>,
    /// Number of operations in each time slice.
    pub slices: Slices,
    /// Duration of the counted part, in seconds.
    pub duration_s: f64,
    /// The first failure, if there was one.
    pub failure: Option<String>,
}

impl<C> Ran<C> {
    /// Returns the result of a run that must not fail.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn unless_failed(self) -> anyhow::Result<Self> {
        match self.failure {
            Some(why) => anyhow::bail!(why),
            None => Ok(self),
        }
    }
}

/// The function that receives the result, on the worker's thread.
pub type Done<C = ()> = Box<dyn FnOnce(Ran<C>) + Send>;

/// The clients of a loop, which draw and perform its operations.
pub(crate) trait Clients: Sized + Send + 'static {
    /// State of an operation in flight.
    type Operation: Send;
    /// Counters of the costs of a run.
    type Costs: Costs;

    /// Returns whether another operation may begin while `running` operations are in flight.
    #[inline]
    fn may_begin(&self, _running: usize) -> bool {
        true
    }

    /// Draws the next operation; `None` if there are no more.
    fn draw(&mut self, worker: &mut Worker) -> Option<Self::Operation>;

    /// Begins the operation of a seat. The operation must not end before this function returns, unless it fails.
    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize);

    /// Receives the result, when no operation is in flight any more.
    fn end(self, worker: &mut Worker, ran: Ran<Self::Costs>);
}

struct Seat<O> {
    operation: O,
    /// Start of the operation, if it is timed.
    began: Option<Nanos>,
}

/// A [`Pace`], and the progress of a run at this pace.
struct Paced {
    pace: Pace,
    /// Start of the run.
    from: Nanos,
    /// Number of operations that have begun.
    begun: u64,
    /// Whether a timer is set for the next operation.
    timer: bool,
}

/// The state of a loop.
pub(crate) struct ClosedLoop<C: Clients> {
    pub(crate) clients: C,
    pub(crate) recorder: Recorder<C::Costs>,
    seats: Slab<Seat<C::Operation>>,
    in_flight: usize,
    /// Number of seats that are unused for [`REST`] because their operation failed.
    resting: usize,
    /// Number of operations to count, if it is bounded.
    operations: Option<u64>,
    /// Number of operations that may still begin.
    left: u64,
    counts_from: Nanos,
    counting: bool,
    ends: Nanos,
    paced: Option<Paced>,
    slicer: Slicer,
    /// Counters at the start of the counted part.
    before: C::Costs,
    failure: Option<String>,
}

/// Starts a loop. When the loop has ended and no operation is in flight any more, [`Clients::end`] is called on the
/// worker's thread.
pub(crate) fn start<C: Clients>(
    worker: &mut Worker,
    clients: C,
    recorder: Recorder<C::Costs>,
    extent: Extent,
) {
    let now = worker.clock().now();
    let counts_from = now.after(extent.warmup);
    // Operations that are in flight at the end of the warm-up count. So at most as many are in flight as are to count.
    let most = extent.operations.unwrap_or(u64::MAX);
    let in_flight =
        usize::try_from(most).map_or(extent.in_flight, |most| extent.in_flight.min(most));
    let ends = extent.duration.map(|duration| counts_from.after(duration));
    let mut own = Box::new(ClosedLoop {
        clients,
        recorder,
        seats: Slab::with_capacity(in_flight),
        in_flight,
        resting: 0,
        operations: extent.operations,
        left: u64::MAX,
        counts_from,
        counting: false,
        ends: ends.unwrap_or(Nanos(u64::MAX)),
        paced: extent.pace.map(|pace| Paced {
            pace,
            from: now,
            begun: 0,
            timer: false,
        }),
        slicer: Slicer::new(extent.duration),
        before: C::Costs::default(),
        failure: None,
    });
    own.count_from(worker, now);
    own.settle(worker);
}

/// Starts a loop of untimed operations of one kind, without a warm-up. The loop ends after `duration`, or when
/// [`Clients::draw`] returns `None`.
pub(crate) fn start_untimed<C: Clients>(
    worker: &mut Worker,
    clients: C,
    in_flight: usize,
    duration: Option<Duration>,
) {
    let extent = Extent {
        in_flight,
        duration,
        ..Extent::default()
    };
    start(worker, clients, Recorder::untimed(1), extent);
}

/// Continues the loop of a worker: calls `act`, then begins the operations that may begin, or ends the loop.
#[inline]
pub(crate) fn resume<C: Clients>(
    worker: &mut Worker,
    act: impl FnOnce(&mut ClosedLoop<C>, &mut Worker),
) {
    let mut own = worker.take_layer::<ClosedLoop<C>>();
    act(&mut own, worker);
    own.settle(worker);
}

/// Runs a task of an operation. `end` receives its result, as [`resume`] calls it.
pub(crate) fn spawn<C: Clients, T: Send + 'static, F: Future<Output = T> + 'static>(
    worker: &mut Worker,
    task: impl FnOnce(Handle) -> F + Send + 'static,
    end: impl FnOnce(&mut ClosedLoop<C>, &mut Worker, T) + Send + 'static,
) {
    farm_txn::spawn(worker, async move |farm: Handle| {
        let result = task(farm.clone()).await;
        let end = move |worker: &mut Worker| {
            resume(worker, |own: &mut ClosedLoop<C>, worker| {
                end(own, worker, result);
            });
        };
        // Fails only if the worker has stopped, which has ended the loop.
        let _ = farm.with_worker(end).await;
    });
}

/// A continuation that begins the operation of a seat again.
pub(crate) fn again<C: Clients>(worker: &mut Worker, seat: usize, (): ()) {
    resume::<C>(worker, |own, worker| C::begin(own, worker, seat));
}

fn rested<C: Clients>(worker: &mut Worker, seat: usize, (): ()) {
    resume::<C>(worker, |own, _| {
        own.resting -= 1;
        own.seats.remove(seat);
    });
}

fn on_pace<C: Clients>(worker: &mut Worker, (): (), (): ()) {
    resume::<C>(worker, |own, _| {
        if let Some(paced) = &mut own.paced {
            paced.timer = false;
        }
    });
}

impl<C: Clients> ClosedLoop<C> {
    /// Returns the operation of a seat.
    #[inline]
    pub(crate) fn operation(&mut self, seat: usize) -> &mut C::Operation {
        &mut self.seats[seat].operation
    }

    /// Returns whether the operation of a seat is timed.
    pub(crate) fn is_timed(&self, seat: usize) -> bool {
        self.seats[seat].began.is_some()
    }

    /// Counts the operation of a seat as executed, with its latency if it was timed, and frees the seat.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        worker: &mut Worker,
        seat: usize,
        kind: usize,
        outcome: Outcome,
    ) {
        let began = self.seats[seat].began;
        let latency = began.map(|began| worker.clock().now() - began);
        self.finish_after(worker, seat, kind, outcome, latency);
    }

    /// As [`ClosedLoop::finish`], with a latency that the caller measured, in nanoseconds.
    #[inline]
    pub(crate) fn finish_after(
        &mut self,
        worker: &mut Worker,
        seat: usize,
        kind: usize,
        outcome: Outcome,
        latency_ns: Option<u64>,
    ) {
        let now = worker.now();
        self.count_from(worker, now);
        if self.slicer.is_due(now) {
            self.slicer.advance(now, self.recorder.executed());
        }
        self.seats.remove(seat);
        self.recorder.finish(kind, outcome, latency_ns);
    }

    /// Records a failure of the operation of a seat; a run reports its first failure. The seat stays unused for
    /// [`REST`], because another operation would probably fail, too. If the machine is stopping, the run ends.
    #[cold]
    pub(crate) fn rest(&mut self, worker: &mut Worker, seat: usize, why: String) {
        if worker.control().is_stopping() {
            return self.stop(seat, why);
        }
        self.failure.get_or_insert(why);
        self.resting += 1;
        worker.set_timer(REST, Cont::new(rested::<C>, seat));
    }

    /// Begins the operation of a seat again after [`REST`]. To be called when a machine was lost, and it is unknown whether the operation has
    /// taken effect.
    #[cold]
    pub(crate) fn repeat(&mut self, worker: &mut Worker, seat: usize) {
        worker.set_timer(REST, Cont::new(again::<C>, seat));
    }

    /// Records a failure of the operation of a seat, and ends the run: no further operation begins.
    #[cold]
    pub(crate) fn stop(&mut self, seat: usize, why: String) {
        self.failure.get_or_insert(why);
        self.seats.remove(seat);
        self.left = 0;
    }

    /// Records a failure without ending an operation.
    #[cold]
    pub(crate) fn report(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// Begins the operations that may begin. Then stores the loop with the worker, or ends it if no operation is in
    /// flight and no timer is set.
    #[inline]
    fn settle(mut self: Box<Self>, worker: &mut Worker) {
        self.fill(worker);
        let waits = self.paced.as_ref().is_some_and(|paced| paced.timer);
        if self.seats.is_empty() && !waits {
            self.end(worker);
        } else {
            worker.put_layer(self);
        }
    }

    /// Begins as many operations as may begin.
    #[inline]
    fn fill(&mut self, worker: &mut Worker) {
        while self.seats.len() < self.in_flight && self.left > 0 && worker.now() < self.ends {
            if !self.clients.may_begin(self.seats.len()) || !self.is_due(worker) {
                return;
            }
            let Some(operation) = self.clients.draw(worker) else {
                self.left = 0;
                return;
            };
            self.left -= 1;
            let began = self.recorder.sample().then(|| worker.clock().now());
            let seat = self.seats.insert(Seat { operation, began });
            C::begin(self, worker, seat);
        }
    }

    /// Returns whether the pace allows another operation now, and counts this operation as begun. If it is too early,
    /// sets a timer that continues the loop.
    #[inline]
    fn is_due(&mut self, worker: &mut Worker) -> bool {
        let Some(paced) = &mut self.paced else {
            return true;
        };
        let due = paced.from + paced.pace.due_ns(paced.begun);
        if worker.now() >= due {
            paced.begun += 1;
            return true;
        }
        if !paced.timer {
            paced.timer = true;
            let wait = due.min(self.ends).since(worker.now());
            worker.set_timer(wait, Cont::new(on_pace::<C>, ()));
        }
        false
    }

    /// Begins the counted part, if the warm-up is over.
    #[inline]
    fn count_from(&mut self, worker: &mut Worker, now: Nanos) {
        if self.counting || now < self.counts_from {
            return;
        }
        self.counting = true;
        self.counts_from = now;
        self.slicer.start(now);
        if let Some(operations) = self.operations {
            // Operations that are in flight now count when they end.
            let in_flight = self.seats.len() - self.resting;
            self.left = operations.saturating_sub(in_flight as u64);
        }
        self.recorder.clear();
        self.before = C::Costs::of(worker);
    }

    fn end(mut self, worker: &mut Worker) {
        let now = worker.clock().now();
        if self.counting {
            let costs = C::Costs::of(worker).since(&self.before);
            self.recorder.counters.add(&costs);
        } else {
            // A run without operations, or one that ended in the warm-up.
            self.recorder.clear();
        }
        let ran = Ran {
            slices: self.slicer.finish(now, self.recorder.executed()),
            recorder: self.recorder,
            duration_s: now.since(self.counts_from).as_secs_f64(),
            failure: self.failure,
        };
        self.clients.end(worker, ran);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_workers_add_up() {
        for (threads, workers) in [
            (None, 3),
            (Some(1), 3),
            (Some(2), 3),
            (Some(7), 3),
            (Some(640), 2),
        ] {
            let bounds = Bounds {
                operations: Some(1001),
                target_per_s: Some(600),
                threads,
                ..Bounds::default()
            };
            let shares: Vec<Extent> = (0..workers)
                .map(|it| bounds.share(it, workers, 9))
                .collect();
            let operations: u64 = shares.iter().filter_map(|share| share.operations).sum();
            assert_eq!(operations, 1001);
            let in_flight: usize = shares.iter().map(|share| share.in_flight).sum();
            assert_eq!(in_flight as u64, threads.unwrap_or(9 * workers));
            let active = shares.iter().filter(|share| share.in_flight > 0).count() as u64;
            for share in &shares {
                assert_eq!(
                    share.in_flight == 0,
                    share.operations == Some(0),
                    "{share:?}"
                );
                assert_eq!(share.pace.unwrap().workers, active);
            }
        }
        let unbounded = Extent {
            in_flight: 9,
            ..Extent::default()
        };
        assert_eq!(Bounds::default().share(0, 4, 9), unbounded);
    }

    #[test]
    fn a_pace_is_steady_however_many_operations_have_begun() {
        let pace = Pace {
            target_per_s: 3,
            workers: 2,
        };
        assert_eq!(
            [0, 1, 3].map(|index| pace.due_ns(index)),
            [0, 666_666_666, 2_000_000_000]
        );
        assert_eq!(pace.due_ns(3_000_000_000), 2_000_000_000_000_000_000);
    }
}
