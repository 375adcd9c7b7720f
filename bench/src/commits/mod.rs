//! Commits of transactions over machines in one process: the latency with one transaction in flight, the throughput
//! with many in flight, and the effect of conflicts. Each result includes the log records, reads and messages per
//! commit.

mod client;
mod text;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::machine::{Attach, Machine, start_all};
use farm_core::worker::Worker;
use farm_txn::{TxCounters, TxError};
use serde::Serialize;

use crate::micro::{Conditions, Latency, Rate};
use crate::recorder::Recorder;
use client::{COMMIT, Slice, TRANSACTION};

/// Number of machines.
const MACHINES: u16 = 3;
/// Bytes of an object's payload; with its header, the object fills one cache line.
const PAYLOAD_BYTES: usize = 40;
/// Number of sets of objects in measurements without conflicts. The transactions use the sets in turn.
const DISJOINT_SETS: usize = 64;
/// Number of pairs of `pin` and `unpin` that are timed together.
const BRACKETS: u32 = 1 << 14;
/// Number of such timings; the median counts.
const STRETCHES: usize = 65;

/// What is measured.
#[derive(Clone, Debug)]
pub struct CommitOptions {
    /// Duration of one time slice.
    pub slice: Duration,
    /// Number of time slices of each measurement; the median counts.
    pub repeats: usize,
    /// Number of transactions in flight on a coordinator, in measurements of throughput.
    pub in_flight: usize,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A machine failed.
    #[error(transparent)]
    Machine(#[from] farm_core::machine::MachineError),
    /// A transaction failed, or nothing was measured.
    #[error("the measurement of commits failed: {0}")]
    Failed(String),
}

impl From<TxError> for CommitError {
    fn from(error: TxError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Commits of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct CommitRow {
    /// Number of machines over which the objects of a transaction are distributed. Machine 0, which is a coordinator,
    /// is used last.
    pub machines: usize,
    /// Number of objects that each transaction reads and writes.
    pub objects: usize,
    /// Whether all transactions of all machines write the same objects. If not, there are no conflicts.
    pub hot: bool,
    /// Number of workers that coordinate transactions.
    pub coordinators: usize,
    /// Number of transactions in flight on each coordinator.
    pub in_flight: usize,
    /// Commits per second of all coordinators together.
    pub commits: Rate,
    /// Latency from the begin of the attempt that commits until its commit is reported; aborted attempts are not
    /// included.
    pub transaction: Latency,
    /// Part of `transaction` from the call of commit on.
    pub commit: Latency,
    /// Aborts per commit because an object was locked.
    pub locked_per_commit: f64,
    /// Aborts per commit because an object had changed.
    pub changed_per_commit: f64,
    /// Aborts per commit because an object stayed locked for all tries of a read.
    pub timed_out_per_commit: f64,
    /// One-sided reads of objects and of headers per commit, including those of aborted attempts.
    pub reads_per_commit: f64,
    /// Log records per commit, including those of aborted attempts.
    pub writes_per_commit: f64,
    /// Messages per commit, including those of aborted attempts.
    pub messages_per_commit: f64,
}

impl CommitRow {
    /// Returns the name of the row in reports.
    pub fn name(&self) -> String {
        let (objects, coordinators) = match self.hot {
            true => ("shared object(s)", "coordinators"),
            false => ("object(s)", "coordinator(s)"),
        };
        format!(
            "{} {objects} over {} machine(s), {} {coordinators}, {} in flight each",
            self.objects, self.machines, self.coordinators, self.in_flight
        )
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct CommitReport {
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// One row for each kind of commits.
    pub rows: Vec<CommitRow>,
    /// Nanoseconds that `pin` and `unpin` of an operation take together: the cost of epochs for a lock-free read.
    pub bracket_ns: f64,
}

/// Measures all kinds of commits.
///
/// # Errors
/// [`CommitError`].
pub fn run(
    config: &Config,
    options: &CommitOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<CommitReport, CommitError> {
    let mut config = config.clone();
    config.resize_machines(MACHINES);
    config.set_workers(1);
    let attach: Attach = Arc::new(farm_txn::attach);
    let began = Instant::now();
    let machines = start_all(&config, &attach)?;
    let mut conditions =
        Conditions::before(&config.memory.dir, 4096, options.repeats, options.slice);
    conditions.not_pinned = Some("all machines run as threads of one process".into());
    let mut rows = Vec::new();
    for over in 1..=usize::from(MACHINES) {
        for objects in [1, 2, 4] {
            if objects == 1 && over == usize::from(MACHINES) {
                // One object over three machines is on another machine, just as over two.
                continue;
            }
            for (hot, in_flight) in [(false, 1), (false, options.in_flight), (true, 1)] {
                progress(&format!(
                    "{objects} objects over {over} machines, {in_flight} at a time{}",
                    if hot { ", hot" } else { "" }
                ));
                let kind = Kind {
                    over,
                    objects,
                    hot,
                    in_flight,
                };
                rows.push(measure(&machines, kind, options)?);
            }
        }
    }
    let bracket_ns = bracket(&machines[0])?;
    for machine in machines {
        machine.stop()?;
    }
    conditions.took_s = began.elapsed().as_secs_f64();
    Ok(CommitReport {
        conditions,
        rows,
        bracket_ns,
    })
}

#[derive(Clone, Copy)]
struct Kind {
    over: usize,
    objects: usize,
    hot: bool,
    in_flight: usize,
}

impl Kind {
    /// Returns the index of the machine of an object of a set. The objects are distributed in turn, from the last
    /// machine down to machine 0, which is the coordinator's own.
    fn machine(self, object: usize) -> usize {
        self.over - 1 - object % self.over
    }

    fn coordinators(self) -> usize {
        if self.hot { usize::from(MACHINES) } else { 1 }
    }
}

fn measure(
    machines: &[Machine],
    kind: Kind,
    options: &CommitOptions,
) -> Result<CommitRow, CommitError> {
    let sets = if kind.hot { 1 } else { DISJOINT_SETS };
    let mut all = vec![Vec::with_capacity(kind.objects); sets];
    for set in &mut all {
        for object in 0..kind.objects {
            set.push(create(&machines[kind.machine(object)])?);
        }
    }
    let slice = Slice {
        sets: Arc::new(all),
        in_flight: kind.in_flight,
        meet: kind.hot,
        duration: options.slice,
    };
    // Warm-up: finds the regions, creates the transactions' contexts, and maps the pages.
    one_slice(machines, kind, &slice)?;
    let mut rates = Vec::new();
    let mut sum: Option<Recorder<TxCounters>> = None;
    for _ in 0..options.repeats {
        let (recorder, seconds) = one_slice(machines, kind, &slice)?;
        rates.push(recorder.counters.committed as f64 / seconds);
        add(&mut sum, recorder);
    }
    let sum =
        sum.ok_or_else(|| CommitError::Failed("the run has no time slices to measure".into()))?;
    Ok(row(kind, rates, &sum))
}

fn add(sum: &mut Option<Recorder<TxCounters>>, more: Recorder<TxCounters>) {
    match sum {
        Some(sum) => sum
            .merge(&more)
            .expect("all recorders of a run have the same kinds and the same sampling rate"),
        None => *sum = Some(more),
    }
}

fn row(kind: Kind, rates: Vec<f64>, sum: &Recorder<TxCounters>) -> CommitRow {
    let TxCounters {
        committed, aborts, ..
    } = sum.counters;
    let each = |count: u64| count as f64 / committed.max(1) as f64;
    CommitRow {
        machines: kind.over,
        objects: kind.objects,
        hot: kind.hot,
        coordinators: kind.coordinators(),
        in_flight: kind.in_flight,
        commits: Rate::of(rates),
        transaction: Latency::of(sum.latency_ns(TRANSACTION)),
        commit: Latency::of(sum.latency_ns(COMMIT)),
        locked_per_commit: each(aborts.locked),
        changed_per_commit: each(aborts.changed),
        timed_out_per_commit: each(aborts.timed_out),
        reads_per_commit: each(sum.counters.reads()),
        writes_per_commit: each(sum.counters.writes()),
        messages_per_commit: each(sum.counters.messages()),
    }
}

/// Runs one slice on all coordinators at once. Returns their merged records, and the seconds of the slowest
/// coordinator.
fn one_slice(
    machines: &[Machine],
    kind: Kind,
    slice: &Slice,
) -> Result<(Recorder<TxCounters>, f64), CommitError> {
    let (send, done) = channel();
    for machine in &machines[..kind.coordinators()] {
        let (slice, send) = (slice.clone(), send.clone());
        machine.submit(0, move |worker| client::start(worker, slice, send))?;
    }
    drop(send);
    let (mut sum, mut seconds) = (None, 0.0f64);
    for _ in 0..kind.coordinators() {
        let ran = machines[0].wait_for(&done)?;
        if let Some(why) = ran.failure {
            return Err(CommitError::Failed(why));
        }
        seconds = seconds.max(ran.duration_s);
        add(&mut sum, ran.recorder);
    }
    let sum = sum.ok_or_else(|| {
        CommitError::Failed("no machine was chosen to coordinate the transactions".into())
    })?;
    Ok((sum, seconds))
}

fn create(machine: &Machine) -> Result<Address, CommitError> {
    let made = farm_txn::block_on(machine, 0, async |farm| {
        let mut tx = farm.begin();
        let object = tx.alloc(PAYLOAD_BYTES, None).await?;
        let address = tx.address(object)?;
        tx.commit().await?;
        Ok::<_, TxError>(address)
    });
    Ok(made??)
}

/// Returns the nanoseconds that `pin` and `unpin` of an operation take together, as in every lock-free read: the median
/// of short measurements, few of which other processes disturb.
fn bracket(machine: &Machine) -> Result<f64, CommitError> {
    let took = machine.ask(0, |worker: &mut Worker, answer: Sender<Duration>| {
        let mut stretches: Vec<Duration> = (0..STRETCHES)
            .map(|_| {
                let began = Instant::now();
                for _ in 0..BRACKETS {
                    let operation = std::hint::black_box(worker.pin());
                    worker.unpin(operation);
                }
                began.elapsed()
            })
            .collect();
        stretches.sort_unstable();
        _ = answer.send(stretches[STRETCHES / 2]);
    })?;
    Ok(took.as_nanos() as f64 / f64::from(BRACKETS))
}
