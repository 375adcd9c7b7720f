//! Commits of transactions over machines in one process: the latency with one transaction in flight, the throughput
//! with many in flight, and the effect of conflicts. Each result includes the log records, reads and messages per
//! commit.

mod client;
mod text;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::machine::{Attach, Machine, start_all};
use farm_core::worker::{LogCounters, Worker};
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

/// A kind of commits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CommitKind {
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
}

impl CommitKind {
    /// Returns all kinds that are measured.
    fn all(options: &CommitOptions) -> Vec<Self> {
        let mut kinds = Vec::new();
        for machines in 1..=usize::from(MACHINES) {
            for objects in [1, 2, 4] {
                if objects == 1 && machines == usize::from(MACHINES) {
                    // One object over three machines is on another machine, just as over two.
                    continue;
                }
                for (hot, in_flight) in [(false, 1), (false, options.in_flight), (true, 1)] {
                    kinds.push(Self {
                        machines,
                        objects,
                        hot,
                        coordinators: if hot { usize::from(MACHINES) } else { 1 },
                        in_flight,
                    });
                }
            }
        }
        kinds
    }

    /// Returns the index of the machine of an object of a set. The objects are distributed in turn, from the last
    /// machine down to machine 0, which is the coordinator's own.
    fn machine(&self, object: usize) -> usize {
        self.machines - 1 - object % self.machines
    }
}

impl fmt::Display for CommitKind {
    /// Formats the name of the kind in reports.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objects, coordinators) = match self.hot {
            true => ("shared object(s)", "coordinators"),
            false => ("object(s)", "coordinator(s)"),
        };
        write!(
            out,
            "{} {objects} over {} machine(s), {} {coordinators}, {} in flight each",
            self.objects, self.machines, self.coordinators, self.in_flight
        )
    }
}

/// Commits of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct CommitRow {
    /// The kind.
    #[serde(flatten)]
    pub kind: CommitKind,
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
    /// Bytes of log records per commit: in logs of other machines, and in the own log. Includes those of aborted attempts.
    pub log_bytes_per_commit: [f64; 2],
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
/// If a machine or a transaction fails.
pub fn run(
    config: &Config,
    options: &CommitOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<CommitReport> {
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
    for kind in CommitKind::all(options) {
        progress(&kind.to_string());
        rows.push(measure(&machines, kind, options).context("the measurement of commits failed")?);
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

fn measure(machines: &[Machine], kind: CommitKind, options: &CommitOptions) -> Result<CommitRow> {
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
    let coordinators = &machines[..kind.coordinators];
    // Warm-up: finds the regions, creates the transactions' contexts, and maps the pages.
    one_slice(coordinators, &slice)?;
    let before = log_bytes(coordinators)?;
    let mut rates = Vec::new();
    let mut sum = client::recorder();
    for _ in 0..options.repeats {
        let (recorder, seconds) = one_slice(coordinators, &slice)?;
        rates.push(recorder.counters.committed as f64 / seconds);
        sum.merge(&recorder)?;
    }
    let after = log_bytes(coordinators)?;
    let counters = &sum.counters;
    let each = |count: u64| count as f64 / counters.committed.max(1) as f64;
    Ok(CommitRow {
        kind,
        commits: Rate::of(rates),
        transaction: Latency::of(sum.latency_ns(TRANSACTION)),
        commit: Latency::of(sum.latency_ns(COMMIT)),
        locked_per_commit: each(counters.aborts.locked),
        changed_per_commit: each(counters.aborts.changed),
        timed_out_per_commit: each(counters.aborts.timed_out),
        reads_per_commit: each(counters.reads()),
        writes_per_commit: each(counters.writes()),
        messages_per_commit: each(counters.messages()),
        log_bytes_per_commit: [0, 1].map(|log: usize| each(after[log] - before[log])),
    })
}

/// Runs one slice on all coordinators at once. Returns their merged records, and the seconds of the slowest
/// coordinator.
fn one_slice(coordinators: &[Machine], slice: &Slice) -> Result<(Recorder<TxCounters>, f64)> {
    let (send, done) = channel();
    for machine in coordinators {
        let (slice, send) = (slice.clone(), send.clone());
        machine.submit(0, move |worker| client::start(worker, slice, send))?;
    }
    drop(send);
    let (mut sum, mut seconds) = (client::recorder(), 0.0f64);
    for machine in coordinators {
        let ran = machine.wait_for(&done)?.unless_failed()?;
        seconds = seconds.max(ran.duration_s);
        sum.merge(&ran.recorder)?;
    }
    Ok((sum, seconds))
}

/// Returns the bytes that coordinators have appended to logs of other machines, and to their own logs.
fn log_bytes(coordinators: &[Machine]) -> Result<[u64; 2]> {
    let mut sum = [0; 2];
    for machine in coordinators {
        let counters = machine.ask(0, |worker: &mut Worker, answer: Sender<LogCounters>| {
            _ = answer.send(worker.log_counters());
        })?;
        sum[0] += counters.appended_bytes;
        sum[1] += counters.own_bytes;
    }
    Ok(sum)
}

fn create(machine: &Machine) -> Result<Address> {
    let made = farm_txn::block_on(machine, 0, async |farm| {
        let tx = farm.begin().await.unwrap();
        let object = tx.alloc(PAYLOAD_BYTES, None).await?;
        let address = tx.address(object).await?;
        tx.commit().await?;
        Ok::<_, TxError>(address)
    });
    Ok(made??)
}

/// Returns the nanoseconds that `pin` and `unpin` of an operation take together, as in every lock-free read: the median
/// of short measurements, few of which other processes disturb.
fn bracket(machine: &Machine) -> Result<f64> {
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
