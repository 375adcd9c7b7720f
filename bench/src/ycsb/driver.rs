//! The clients of a YCSB workload on one worker, which run its operations, and the records that it loads before.

use std::ops::Range;
use std::sync::Arc;

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableId};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::inserts::InsertTracker;
use super::key::key_bytes;
use super::operation::OpKind;
use super::report::{Counters, recorder};
use super::spec::WorkloadSpec;
use super::stream::{Op, OpStream, worker_rng};
use super::value;
use crate::closed_loop::{self, Clients, ClosedLoop, Done, Extent, Ran, again};
use crate::load::Pairs;
use crate::recorder::Outcome;

/// The table of a workload, and the worker that accesses it.
#[derive(Clone)]
pub struct Common {
    /// The table.
    pub table: TableId,
    /// Bytes of a value of the table.
    pub value_bytes: usize,
    /// Number of the worker in the whole cluster, which is encoded in the values that the worker writes.
    pub writer: u16,
}

/// Returns the records that a worker loads, by their numbers.
pub fn records(common: Common, mut numbers: Range<u64>) -> Pairs<u64> {
    Pairs {
        what: "record",
        may_exist: true,
        next: Box::new(move |_, value| {
            let keynum = numbers.next()?;
            value.resize(common.value_bytes, 0);
            // Loaded values have the sequence number 0.
            value::fill(value, keynum, common.writer, 0);
            Some((keynum, common.table, key_bytes(keynum)))
        }),
    }
}

/// A run of a workload.
pub struct Run {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Tracker of the inserts of this process.
    pub tracker: Arc<InsertTracker>,
    /// Number of the worker in this process.
    pub local_worker: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// How long, how much and how fast.
    pub extent: Extent,
    /// Whether every value that is read is checked.
    pub verify: bool,
    /// One operation in this many is timed.
    pub sampled_1_in: u32,
}

struct Ycsb {
    common: Common,
    stream: OpStream,
    rng: Xoshiro256PlusPlus,
    verify: bool,
    /// Sequence number of the last write.
    sequence: u64,
    value: Vec<u8>,
    done: Done<Counters>,
}

type Driver = ClosedLoop<Ycsb>;

/// Runs a workload. Calls `done` on the worker's thread when the run has ended and no operation is in flight any more.
pub fn run(worker: &mut Worker, common: Common, run: Run, done: Done<Counters>) {
    let clients = Ycsb {
        rng: worker_rng(run.seed, u64::from(common.writer)),
        stream: OpStream::new(&run.spec, run.tracker, run.local_worker),
        verify: run.verify,
        // The sequence numbers differ from those of the load and of earlier runs.
        sequence: worker.clock().now().0,
        value: vec![0; common.value_bytes],
        common,
        done,
    };
    closed_loop::start(worker, clients, recorder(run.sampled_1_in), run.extent);
}

impl Clients for Ycsb {
    type Operation = Op;
    type Costs = Counters;

    #[inline]
    fn draw(&mut self, _: &mut Worker) -> Option<Op> {
        Some(self.stream.next_op(&mut self.rng))
    }

    #[inline]
    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        match own.operation(seat).kind {
            OpKind::Read | OpKind::ReadModifyWrite => own.look_up(worker, seat),
            OpKind::Update | OpKind::Insert => own.write(worker, seat),
        }
    }

    fn end(self, _: &mut Worker, ran: Ran<Counters>) {
        (self.done)(ran);
    }
}

impl Driver {
    #[inline]
    fn look_up(&mut self, worker: &mut Worker, seat: usize) {
        let key = key_bytes(self.operation(seat).keynum);
        let table = self.clients.common.table;
        match farm_kv::get(worker, table, &key, GetCont::new(got, seat)) {
            Ok(()) => {}
            Err(KvError::Busy) => {
                farm_kv::when_slot(worker, table, Cont::new(again::<Ycsb>, seat));
            }
            Err(error) => self.fail(worker, seat, &error.to_string()),
        }
    }

    #[inline]
    fn write(&mut self, worker: &mut Worker, seat: usize) {
        let op = *self.operation(seat);
        let clients = &mut self.clients;
        clients.sequence += 1;
        let Common { table, writer, .. } = clients.common;
        value::fill(&mut clients.value, op.keynum, writer, clients.sequence);
        let change = match op.kind {
            OpKind::Insert => Change::Upsert(&clients.value),
            _ => Change::Update(&clients.value),
        };
        let (key, cont) = (key_bytes(op.keynum), Cont::new(changed, seat));
        if let Err(error) = farm_kv::change(worker, table, &key, change, cont) {
            self.fail(worker, seat, &error.to_string());
        }
    }

    #[cold]
    fn fail(&mut self, worker: &mut Worker, seat: usize, why: &str) {
        self.recorder.counters.errors += 1;
        let op = *self.operation(seat);
        let why = format!("{} of record {} failed: {why}", op.kind.name(), op.keynum);
        if op.kind == OpKind::Insert {
            self.clients.stream.acknowledge(op.keynum);
        }
        self.rest(worker, seat, why);
    }

    /// Repeats a change whose outcome is unknown. To make it twice does no harm, because it writes the whole value.
    #[cold]
    fn repeat_change(&mut self, worker: &mut Worker, seat: usize) {
        self.recorder.counters.repeated += 1;
        self.repeat(worker, seat);
    }

    fn verify(&mut self, keynum: u64, found: &[u8]) {
        self.recorder.counters.verified += 1;
        if let Err(error) = value::check(found, keynum) {
            self.recorder.counters.verify_failures += 1;
            self.report(format!(
                "the value read for record {keynum} is wrong: {error}"
            ));
        }
    }

    #[inline]
    fn succeed(&mut self, worker: &mut Worker, seat: usize, kind: OpKind) {
        self.finish(worker, seat, kind.index(), Outcome::Committed);
    }
}

#[inline]
fn got(worker: &mut Worker, seat: usize, found: Result<Option<&[u8]>, &KvError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        let op = *own.operation(seat);
        match found {
            Ok(found) => {
                if let (Some(value), true) = (found, own.clients.verify) {
                    own.verify(op.keynum, value);
                }
                if op.kind == OpKind::ReadModifyWrite && found.is_some() {
                    own.write(worker, seat);
                } else {
                    own.succeed(worker, seat, op.kind);
                }
            }
            Err(KvError::Busy) => worker.when_room(Cont::new(again::<Ycsb>, seat)),
            Err(error) => own.fail(worker, seat, &error.to_string()),
        }
    });
}

fn changed(worker: &mut Worker, seat: usize, outcome: Result<Changed, KvError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        let op = *own.operation(seat);
        match &outcome {
            Ok(Changed::Absent) if op.kind != OpKind::Insert => {
                own.fail(worker, seat, "the record is not in the table");
            }
            Ok(_) => {
                if op.kind == OpKind::Insert {
                    own.clients.stream.acknowledge(op.keynum);
                }
                own.succeed(worker, seat, op.kind);
            }
            Err(KvError::InDoubt(_)) => own.repeat_change(worker, seat),
            Err(error) => own.fail(worker, seat, &error.to_string()),
        }
    });
}
