//! Drives a workload on one worker: keeps a fixed number of operations in flight, each begun by the
//! end of the one before (a closed loop) or at a steady rate ([`Pace`]), and records what they did.
//!
//! The driver is an application like any other: a layer of state with the worker, and continuations.
//! Every operation in flight has a seat; a continuation's context is its seat's number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farm_core::time::Nanos;
use farm_core::worker::{Cont, ReadCounters, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, LookupCounters, TableId};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::slices::{Slicer, Slices};
use crate::ycsb::inserts::InsertTracker;
use crate::ycsb::key::key_bytes;
use crate::ycsb::operation::OpKind;
use crate::ycsb::recorder::Recorder;
use crate::ycsb::spec::WorkloadSpec;
use crate::ycsb::stream::{Op, OpStream, worker_rng};
use crate::ycsb::value;

/// What all drivers of a table have in common.
#[derive(Clone)]
pub struct Common {
    /// The table.
    pub table: TableId,
    /// Bytes of its values.
    pub value_bytes: usize,
    /// Operations in flight.
    pub in_flight: usize,
    /// The worker, counted over the whole cluster: who wrote a value.
    pub writer: u16,
}

/// Loads some records.
pub struct Load {
    /// Their numbers.
    pub records: std::ops::Range<u64>,
    /// Counts the loaded ones, for progress.
    pub progress: Arc<AtomicU64>,
}

/// Runs a workload for some time.
pub struct Run {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Inserts of this process.
    pub tracker: Arc<InsertTracker>,
    /// The worker, counted within this process.
    pub local_worker: u64,
    /// Seed of all choices.
    pub seed: u64,
    /// Time before it counts.
    pub warmup: Duration,
    /// Most time that counts; `None`: until all operations are done.
    pub duration: Option<Duration>,
    /// Operations of this worker that count, failed ones included; `None`: as many as there is time for.
    pub operations: Option<u64>,
    /// The rate at which this worker begins operations; `None`: as fast as it can.
    pub pace: Option<Pace>,
    /// Every value that is read is checked.
    pub verify: bool,
    /// One operation in so many is timed.
    pub sampled_1_in: u32,
}

/// A steady rate: so many operations per second, divided equally among so many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Operations per second of all workers together.
    pub target_per_s: u64,
    /// Workers.
    pub workers: u64,
}

impl Pace {
    /// Nanoseconds from the start of the run to the begin of this worker's operation number `index`.
    fn due_ns(&self, index: u64) -> u64 {
        let nanos = u128::from(index) * 1_000_000_000 * u128::from(self.workers)
            / u128::from(self.target_per_s.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// Bounds of a run of all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Operations that count.
    pub operations: Option<u64>,
    /// Operations per second.
    pub target_per_s: Option<u64>,
    /// Operations in flight at a time; else as many as each worker keeps.
    pub threads: Option<u64>,
}

/// The part of one worker in [`Bounds`]. The parts of all workers add up to the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Operations that count.
    pub operations: Option<u64>,
    /// The rate at which it begins operations.
    pub pace: Option<Pace>,
    /// Operations in flight at a time; 0 if there are fewer threads than workers and none is this worker's.
    pub threads: Option<usize>,
}

impl Bounds {
    /// The part of worker `worker` of `workers`, counted over all machines.
    ///
    /// # Panics
    /// If `worker` is not below `workers`.
    pub fn share(&self, worker: u64, workers: u64) -> Share {
        assert!(worker < workers, "worker {worker} of {workers}");
        let cut = |whole: u64, part: u64, parts: u64| {
            (u128::from(whole) * u128::from(part) / u128::from(parts)) as u64
        };
        // Each thread has its part of the operations, so that a worker without one has none.
        let threads = self.threads.map_or(workers, |threads| threads.max(1));
        let (first, end) = (
            cut(threads, worker, workers),
            cut(threads, worker + 1, workers),
        );
        let of_threads = |whole| cut(whole, end, threads) - cut(whole, first, threads);
        Share {
            operations: self.operations.map(of_threads),
            pace: self.target_per_s.map(|target_per_s| Pace {
                target_per_s,
                workers: workers.min(threads),
            }),
            threads: self.threads.map(|_| (end - first) as usize),
        }
    }
}

/// What a driver tells at its end.
pub struct Outcome {
    /// What was recorded.
    pub recorder: Recorder,
    /// Operations by time slice.
    pub slices: Slices,
    /// How long the counted part took.
    pub duration: Duration,
    /// The first failure of an operation or of a check, if there was one.
    pub failure: Option<String>,
}

/// One operation of a load in so many is timed.
const LOADS_SAMPLED_1_IN: u32 = 64;

type Done = Box<dyn FnOnce(Outcome) + Send>;

enum Task {
    Load {
        next: u64,
        end: u64,
        progress: Arc<AtomicU64>,
    },
    Run {
        stream: OpStream,
        rng: Xoshiro256PlusPlus,
        verify: bool,
    },
}

/// An operation in flight.
#[derive(Clone, Copy)]
struct Seat {
    op: Op,
    /// When it began, if it is timed.
    began: Option<Nanos>,
}

/// Counters at the beginning of the counted part.
#[derive(Clone, Copy, Default)]
struct Baseline {
    lookups: LookupCounters,
    reads: ReadCounters,
}

/// A [`Pace`] that is kept.
struct Paced {
    pace: Pace,
    /// When the run began.
    from: Nanos,
    /// Operations begun.
    begun: u64,
    /// Seats that wait for the time of the next operation.
    seats: Vec<usize>,
    /// Whether a timer is set for it.
    timer: bool,
}

impl Paced {
    fn due(&self) -> Nanos {
        self.from + self.pace.due_ns(self.begun)
    }
}

struct Driver {
    common: Common,
    task: Task,
    seats: Vec<Seat>,
    /// Seats with an operation in flight.
    busy: usize,
    /// Seats that wait for a timer: after a failure, or for the time of the next operation.
    resting: usize,
    /// Seats whose lookup waits until another operation makes room for it.
    waiting: VecDeque<usize>,
    counts_from: Nanos,
    counting: bool,
    ends: Nanos,
    /// Operations that are to count, where that is bounded.
    operations: Option<u64>,
    /// Operations that may still begin.
    left: u64,
    paced: Option<Paced>,
    sequence: u64,
    recorder: Recorder,
    slicer: Slicer,
    baseline: Baseline,
    value: Vec<u8>,
    failure: Option<String>,
    done: Option<Done>,
}

/// Loads records into a table; `done` is called on the worker's thread when all are in.
pub fn load(worker: &mut Worker, common: Common, load: Load, done: Done) {
    let Load { records, progress } = load;
    let task = Task::Load {
        next: records.start,
        end: records.end,
        progress,
    };
    let extent = Extent {
        warmup: Duration::ZERO,
        duration: None,
        operations: None,
        pace: None,
    };
    start(worker, common, task, extent, LOADS_SAMPLED_1_IN, done);
}

/// Runs a workload; `done` is called on the worker's thread when it has ended and nothing is in
/// flight any more.
pub fn run(worker: &mut Worker, common: Common, run: Run, done: Done) {
    let rng = worker_rng(run.seed, u64::from(common.writer));
    let stream = OpStream::new(&run.spec, run.tracker, run.local_worker);
    let task = Task::Run {
        stream,
        rng,
        verify: run.verify,
    };
    let extent = Extent {
        warmup: run.warmup,
        duration: run.duration,
        operations: run.operations,
        pace: run.pace,
    };
    start(worker, common, task, extent, run.sampled_1_in, done);
}

/// How long, how much and how fast.
struct Extent {
    warmup: Duration,
    duration: Option<Duration>,
    operations: Option<u64>,
    pace: Option<Pace>,
}

fn start(
    worker: &mut Worker,
    common: Common,
    task: Task,
    extent: Extent,
    sampled_1_in: u32,
    done: Done,
) {
    let now = worker.clock().now();
    let counts_from = now.after(extent.warmup);
    let idle = Seat {
        op: Op {
            kind: OpKind::Read,
            keynum: 0,
        },
        began: None,
    };
    // No more are in flight than are to count, so that those of the warm-up are never too many.
    let most = extent.operations.unwrap_or(u64::MAX);
    let seats = common
        .in_flight
        .min(usize::try_from(most).unwrap_or(usize::MAX));
    let paced = extent.pace.map(|pace| Paced {
        pace,
        from: now,
        begun: 0,
        seats: Vec::with_capacity(seats),
        timer: false,
    });
    let mut driver = Box::new(Driver {
        seats: vec![idle; seats],
        busy: 0,
        resting: 0,
        waiting: VecDeque::with_capacity(seats),
        task,
        counts_from,
        counting: false,
        ends: extent
            .duration
            .map_or(Nanos(u64::MAX), |duration| counts_from.after(duration)),
        operations: extent.operations,
        left: u64::MAX,
        paced,
        // A record is loaded at sequence 0; a run's writes differ from those of earlier runs.
        sequence: now.0,
        recorder: Recorder::new(sampled_1_in),
        slicer: Slicer::new(extent.duration),
        baseline: Baseline::default(),
        value: vec![0; common.value_bytes],
        failure: None,
        done: Some(done),
        common,
    });
    driver.start_counting(worker, now);
    for seat in 0..driver.seats.len() {
        driver.begin(worker, seat);
    }
    driver.put_back(worker);
}

impl Driver {
    /// Keeps the driver with the worker, unless it has ended.
    #[inline]
    fn put_back(self: Box<Self>, worker: &mut Worker) {
        if self.busy == 0 && self.resting == 0 {
            self.end(worker);
        } else {
            worker.put_layer(self);
        }
    }

    fn end(mut self: Box<Self>, worker: &mut Worker) {
        let now = worker.clock().now();
        let mut duration = Duration::ZERO;
        if self.counting {
            self.count_lookups(worker);
            duration = now.since(self.counts_from);
        } else {
            // A worker without a share of the operations, or a run that was all warm-up.
            self.recorder.clear();
        }
        let total = self.recorder.total_operations();
        let outcome = Outcome {
            slices: self.slicer.finish(now, total),
            recorder: self.recorder,
            duration,
            failure: self.failure,
        };
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }

    /// Begins the next operation in a seat, if there is to be one.
    #[inline]
    fn begin(&mut self, worker: &mut Worker, seat: usize) {
        let op = match &mut self.task {
            Task::Load { next, end, .. } if *next < *end => {
                *next += 1;
                Op {
                    kind: OpKind::Insert,
                    keynum: *next - 1,
                }
            }
            Task::Load { .. } => return,
            Task::Run { .. } if worker.now() >= self.ends || self.left == 0 => return,
            Task::Run { .. } if !may_begin(&mut self.paced, worker, self.ends, seat) => {
                self.resting += 1;
                return;
            }
            Task::Run { stream, rng, .. } => {
                self.left -= 1;
                stream.next_op(rng)
            }
        };
        let began = self.recorder.sample().then(|| worker.clock().now());
        self.seats[seat] = Seat { op, began };
        self.busy += 1;
        match op.kind {
            OpKind::Read | OpKind::ReadModifyWrite => self.look_up(worker, seat),
            OpKind::Update | OpKind::Insert => self.write(worker, seat),
        }
    }

    #[inline]
    fn look_up(&mut self, worker: &mut Worker, seat: usize) {
        let key = key_bytes(self.seats[seat].op.keynum);
        let started = farm_kv::get(
            worker,
            self.common.table,
            &key,
            GetCont::new(got, seat as u64),
        );
        match started {
            Ok(()) => {}
            Err(KvError::Busy) => self.waiting.push_back(seat),
            Err(error) => self.fail(worker, seat, error.to_string()),
        }
    }

    /// An operation has ended: there is room for a lookup that waits.
    #[inline]
    fn look_up_waiting(&mut self, worker: &mut Worker) {
        if let Some(seat) = self.waiting.pop_front() {
            self.look_up(worker, seat);
        }
    }

    #[inline]
    fn write(&mut self, worker: &mut Worker, seat: usize) {
        let op = self.seats[seat].op;
        let sequence = match self.task {
            Task::Load { .. } => 0,
            Task::Run { .. } => {
                self.sequence += 1;
                self.sequence
            }
        };
        value::fill(&mut self.value, op.keynum, self.common.writer, sequence);
        let change = match op.kind {
            OpKind::Insert => Change::Upsert(&self.value),
            _ => Change::Update(&self.value),
        };
        let cont = Cont::new(changed, seat as u64);
        if let Err(error) = farm_kv::change(
            worker,
            self.common.table,
            &key_bytes(op.keynum),
            change,
            cont,
        ) {
            self.fail(worker, seat, error.to_string());
        }
    }

    #[cold]
    fn fail(&mut self, worker: &mut Worker, seat: usize, why: String) {
        self.recorder.counters.errors += 1;
        let op = self.seats[seat].op;
        self.failure
            .get_or_insert_with(|| format!("{} of record {}: {why}", op.kind.name(), op.keynum));
        if op.kind == OpKind::Insert
            && let Task::Run { stream, .. } = &mut self.task
        {
            stream.acknowledge(op.keynum);
        }
        self.busy -= 1;
        if let Task::Load { next, end, .. } = &mut self.task {
            // A load that lost a record is over.
            *next = *end;
        } else if !worker.control().is_stopping() {
            // Not at once: what failed now fails again.
            worker.set_timer(Duration::from_millis(1), Cont::new(again, seat as u64));
            self.resting += 1;
        }
        self.look_up_waiting(worker);
    }

    #[inline]
    fn finish(&mut self, worker: &mut Worker, seat: usize) {
        let Seat { op, began } = self.seats[seat];
        let latency = began.map(|began| worker.clock().now() - began);
        let now = worker.now();
        if self.slicer.is_due(now) {
            self.slicer.advance(now, self.recorder.total_operations());
        }
        self.recorder.finish(op.kind, latency);
        self.busy -= 1;
        if !self.counting {
            self.start_counting(worker, now);
        }
        self.look_up_waiting(worker);
        self.begin(worker, seat);
    }

    fn start_counting(&mut self, worker: &mut Worker, now: Nanos) {
        if now < self.counts_from {
            return;
        }
        self.counting = true;
        // The moment from which operations are paced, too: a rate that was asked for is never exceeded.
        self.counts_from = now;
        self.slicer.start(now);
        if let Some(operations) = self.operations {
            // Those in flight count when they end.
            self.left = operations.saturating_sub(self.busy as u64);
        }
        self.recorder.clear();
        self.baseline = Baseline {
            lookups: farm_kv::counters(worker),
            reads: worker.read_counters(),
        };
    }

    fn count_lookups(&mut self, worker: &mut Worker) {
        let (lookups, reads) = (farm_kv::counters(worker), worker.read_counters());
        let before = &self.baseline;
        let counters = &mut self.recorder.counters;
        counters.hits += lookups.hits - before.lookups.hits;
        counters.misses += lookups.misses - before.lookups.misses;
        counters.reads_of_hits += lookups.reads_of_hits - before.lookups.reads_of_hits;
        counters.reads_of_misses += lookups.reads_of_misses - before.lookups.reads_of_misses;
        counters.read_restarts +=
            lookups.restarts - before.lookups.restarts + reads.restarts - before.reads.restarts;
        counters.lookups_local += lookups.local - before.lookups.local;
        counters.lookups_remote += lookups.remote - before.lookups.remote;
    }

    fn verify(&mut self, keynum: u64, found: &[u8]) {
        if !matches!(self.task, Task::Run { verify: true, .. }) {
            return;
        }
        self.recorder.counters.verified += 1;
        if let Err(error) = value::check(found, keynum) {
            self.recorder.counters.verify_failures += 1;
            self.failure
                .get_or_insert_with(|| format!("record {keynum} was read wrong: {error}"));
        }
    }
}

fn again(worker: &mut Worker, seat: u64, (): ()) {
    let mut driver = worker.take_layer::<Driver>();
    driver.resting -= 1;
    driver.begin(worker, seat as usize);
    driver.put_back(worker);
}

/// Whether an operation may begin now in a seat. If it is too early for it, the seat waits until a timer
/// calls [`on_pace`].
fn may_begin(paced: &mut Option<Paced>, worker: &mut Worker, ends: Nanos, seat: usize) -> bool {
    let Some(paced) = paced else {
        return true;
    };
    let due = paced.due();
    if worker.now() >= due {
        paced.begun += 1;
        return true;
    }
    paced.seats.push(seat);
    if !paced.timer {
        paced.timer = true;
        let wait = due.min(ends).since(worker.now());
        worker.set_timer(wait, Cont::new(on_pace, 0));
    }
    false
}

/// It is time for the next operation, or the run is over.
fn on_pace(worker: &mut Worker, _: u64, (): ()) {
    let mut driver = worker.take_layer::<Driver>();
    if let Some(paced) = &mut driver.paced {
        paced.timer = false;
    }
    // A seat for which it is too early comes back, and sets the timer.
    while let Some(paced) = &mut driver.paced
        && !paced.timer
        && let Some(seat) = paced.seats.pop()
    {
        driver.resting -= 1;
        driver.begin(worker, seat);
    }
    driver.put_back(worker);
}

#[inline]
fn got(worker: &mut Worker, seat: u64, found: Result<Option<&[u8]>, KvError>) {
    let mut driver = worker.take_layer::<Driver>();
    let seat = seat as usize;
    let op = driver.seats[seat].op;
    match found {
        Ok(found) => {
            if let Some(value) = found {
                driver.verify(op.keynum, value);
            }
            if op.kind == OpKind::ReadModifyWrite && found.is_some() {
                driver.write(worker, seat);
            } else {
                driver.finish(worker, seat);
            }
        }
        Err(KvError::Busy) => driver.waiting.push_back(seat),
        Err(error) => driver.fail(worker, seat, error.to_string()),
    }
    driver.put_back(worker);
}

fn changed(worker: &mut Worker, seat: u64, outcome: Result<Changed, KvError>) {
    let mut driver = worker.take_layer::<Driver>();
    let seat = seat as usize;
    let op = driver.seats[seat].op;
    match outcome {
        Ok(Changed::Absent) if op.kind != OpKind::Insert => {
            driver.fail(worker, seat, "the record is not in the table".into());
        }
        Ok(_) => {
            match &mut driver.task {
                Task::Load { progress, .. } => {
                    progress.fetch_add(1, Ordering::Relaxed);
                }
                Task::Run { stream, .. } if op.kind == OpKind::Insert => {
                    stream.acknowledge(op.keynum)
                }
                Task::Run { .. } => {}
            }
            driver.finish(worker, seat);
        }
        Err(error) => driver.fail(worker, seat, error.to_string()),
    }
    driver.put_back(worker);
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
            };
            let shares: Vec<Share> = (0..workers).map(|it| bounds.share(it, workers)).collect();
            let operations: u64 = shares.iter().filter_map(|share| share.operations).sum();
            assert_eq!(operations, 1001);
            let in_flight: Option<usize> = shares.iter().map(|share| share.threads).sum();
            assert_eq!(in_flight, threads.map(|threads| threads as usize));
            let idle = |share: &Share| share.threads == Some(0);
            for share in &shares {
                assert_eq!(idle(share), share.operations == Some(0), "{share:?}");
                let active = shares.iter().filter(|share| !idle(share)).count() as u64;
                assert_eq!(share.pace.unwrap().workers, active);
            }
        }
        let unbounded = Bounds::default().share(0, 4);
        assert_eq!(
            (unbounded.operations, unbounded.pace, unbounded.threads),
            (None, None, None)
        );
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
