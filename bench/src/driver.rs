//! Drives a workload on one worker: keeps a fixed number of operations in flight, each begun by the
//! end of the one before (a closed loop), and records what they did.
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
    /// Time that counts.
    pub duration: Duration,
    /// Every value that is read is checked.
    pub verify: bool,
    /// One operation in so many is timed.
    pub sampled_1_in: u32,
}

/// What a driver tells at its end.
pub struct Outcome {
    /// What was recorded.
    pub recorder: Recorder,
    /// How long the counted part took.
    pub duration: Duration,
    /// The first failure of an operation or of a check, if there was one.
    pub failure: Option<String>,
}

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

struct Driver {
    common: Common,
    task: Task,
    seats: Vec<Seat>,
    /// Seats in use.
    busy: usize,
    /// Seats whose lookup waits until another operation makes room for it.
    waiting: VecDeque<usize>,
    counts_from: Nanos,
    counting: bool,
    ends: Nanos,
    sequence: u64,
    recorder: Recorder,
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
    start(
        worker,
        common,
        task,
        Duration::ZERO,
        Duration::MAX,
        64,
        done,
    );
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
    start(
        worker,
        common,
        task,
        run.warmup,
        run.duration,
        run.sampled_1_in,
        done,
    );
}

fn start(
    worker: &mut Worker,
    common: Common,
    task: Task,
    warmup: Duration,
    duration: Duration,
    sampled_1_in: u32,
    done: Done,
) {
    let now = worker.clock().now();
    let counts_from = now.after(warmup);
    let idle = Seat {
        op: Op {
            kind: OpKind::Read,
            keynum: 0,
        },
        began: None,
    };
    let mut driver = Box::new(Driver {
        seats: vec![idle; common.in_flight],
        busy: 0,
        waiting: VecDeque::with_capacity(common.in_flight),
        task,
        counts_from,
        counting: false,
        ends: counts_from.after(duration),
        // A record is loaded at sequence 0; a run's writes differ from those of earlier runs.
        sequence: now.0,
        recorder: Recorder::new(sampled_1_in),
        baseline: Baseline::default(),
        value: vec![0; common.value_bytes],
        failure: None,
        done: Some(done),
        common,
    });
    for seat in 0..driver.seats.len() {
        driver.begin(worker, seat);
    }
    driver.put_back(worker);
}

impl Driver {
    /// Keeps the driver with the worker, unless it has ended.
    #[inline]
    fn put_back(self: Box<Self>, worker: &mut Worker) {
        if self.busy == 0 {
            self.end(worker);
        } else {
            worker.put_layer(self);
        }
    }

    fn end(mut self: Box<Self>, worker: &mut Worker) {
        self.count_lookups(worker);
        let duration = worker.clock().now().since(self.counts_from);
        let outcome = Outcome {
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
            Task::Run { .. } if worker.now() >= self.ends => return,
            Task::Run { stream, rng, .. } => stream.next_op(rng),
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
            self.busy += 1;
        }
        self.look_up_waiting(worker);
    }

    #[inline]
    fn finish(&mut self, worker: &mut Worker, seat: usize) {
        let Seat { op, began } = self.seats[seat];
        let latency = began.map(|began| worker.clock().now() - began);
        self.recorder.finish(op.kind, latency);
        self.busy -= 1;
        if !self.counting {
            self.start_counting(worker);
        }
        self.look_up_waiting(worker);
        self.begin(worker, seat);
    }

    fn start_counting(&mut self, worker: &mut Worker) {
        if worker.now() < self.counts_from {
            return;
        }
        self.counting = true;
        self.counts_from = worker.clock().now();
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
    driver.busy -= 1;
    driver.begin(worker, seat as usize);
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
