//! Checks the rows of a benchmark when no transaction runs any more. Each worker checks the rows of its share of the
//! items, by lock-free lookups.

use std::ops::{AddAssign, Range};

use farm_core::worker::{Cont, Worker};
use farm_kv::{GetCont, KvError};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::attempt::table_of;
use super::benchmark::ItemNames;
use super::{Benchmark, RowBytes};
use crate::smallbank::ledger::as_text;

/// The task of one worker.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Seed of the population.
    pub seed: u64,
    /// Range of the items.
    pub items: Range<u64>,
    /// Number of lookups in flight.
    pub in_flight: usize,
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    /// Number of checked items.
    pub items: u64,
    /// Number of rows that were looked up.
    pub rows: u64,
    /// Sum of the money in these rows, in cents.
    #[serde(with = "as_text")]
    pub cents: i128,
    /// Number of pairs in the tables, counted by a walk; 0 if there was no walk.
    pub pairs: u64,
    /// The first error, if any.
    pub wrong: Option<String>,
}

impl AddAssign<Audited> for Audited {
    fn add_assign(&mut self, other: Audited) {
        self.items += other.items;
        self.rows += other.rows;
        self.cents += other.cents;
        self.pairs += other.pairs;
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

/// The function that receives the result.
pub type Done = Box<dyn FnOnce(Audited) + Send>;

/// An item that is being checked, one row after the other.
#[derive(Default)]
struct Seat {
    item: u64,
    names: ItemNames,
    rows: SmallVec<[Option<RowBytes>; 8]>,
}

struct Auditor {
    audit: Audit,
    seats: Vec<Seat>,
    busy: usize,
    found: Audited,
    done: Option<Done>,
}

/// Checks rows. Calls `done` on the worker's thread when all are checked. [`super::attempt::attach`] must have been
/// called on the worker before.
pub fn audit(worker: &mut Worker, audit: Audit, done: Done) {
    let seats = audit.in_flight.max(1);
    let mut auditor = Box::new(Auditor {
        audit,
        seats: (0..seats).map(|_| Seat::default()).collect(),
        busy: 0,
        found: Audited::default(),
        done: Some(done),
    });
    for seat in 0..seats {
        auditor.begin(worker, seat);
    }
    auditor.put_back(worker);
}

impl Auditor {
    fn put_back(mut self: Box<Self>, worker: &mut Worker) {
        if self.busy > 0 {
            return worker.put_layer(self);
        }
        if let Some(done) = self.done.take() {
            done(self.found);
        }
    }

    /// Starts the next item of a seat, if there is one.
    fn begin(&mut self, worker: &mut Worker, seat: usize) {
        if self.found.wrong.is_some() {
            return;
        }
        let Some(item) = self.audit.items.next() else {
            return;
        };
        self.seats[seat] = Seat {
            item,
            names: self.audit.benchmark.audited(item),
            rows: SmallVec::new(),
        };
        self.busy += 1;
        self.look(worker, seat);
    }

    fn look(&mut self, worker: &mut Worker, seat: usize) {
        let state = &self.seats[seat];
        let name = state.names[state.rows.len()];
        let table = table_of(worker, &name);
        let got = GetCont::new(got, seat as u64);
        match farm_kv::get(worker, table, &name.table_key(), got) {
            Ok(()) => {}
            Err(KvError::Busy) => {
                farm_kv::when_slot(worker, table, Cont::new(again, seat as u64));
            }
            Err(error) => self.wrong(seat, format!("{name} cannot be read: {error}")),
        }
    }

    /// Records the first error, which ends the check.
    #[cold]
    fn wrong(&mut self, seat: usize, why: String) {
        let item = self.seats[seat].item;
        let of = self.audit.benchmark.item_name();
        self.found
            .wrong
            .get_or_insert_with(|| format!("number {item} of the {of}: {why}"));
        self.busy -= 1;
    }

    fn seen(&mut self, worker: &mut Worker, seat: usize, row: Option<RowBytes>) {
        let state = &mut self.seats[seat];
        state.rows.push(row);
        if state.rows.len() < state.names.len() {
            return self.look(worker, seat);
        }
        let judged = self
            .audit
            .benchmark
            .audit(self.audit.seed, state.item, &state.rows);
        match judged {
            Ok(cents) => {
                self.found.items += 1;
                self.found.rows += state.rows.len() as u64;
                self.found.cents += i128::from(cents);
                self.busy -= 1;
            }
            Err(why) => self.wrong(seat, why),
        }
        self.begin(worker, seat);
    }
}

fn again(worker: &mut Worker, seat: u64, (): ()) {
    let mut auditor = worker.take_layer::<Auditor>();
    auditor.look(worker, seat as usize);
    auditor.put_back(worker);
}

fn got(worker: &mut Worker, seat: u64, found: Result<Option<&[u8]>, KvError>) {
    let mut auditor = worker.take_layer::<Auditor>();
    let seat = seat as usize;
    match found {
        Ok(value) => match value.map(|value| RowBytes::copied(value).ok_or(value.len())) {
            Some(Err(bytes)) => auditor.wrong(seat, format!("a row of {bytes} bytes")),
            Some(Ok(row)) => auditor.seen(worker, seat, Some(row)),
            None => auditor.seen(worker, seat, None),
        },
        Err(KvError::Busy) => worker.when_room(Cont::new(again, seat as u64)),
        Err(error) => auditor.wrong(seat, error.to_string()),
    }
    auditor.put_back(worker);
}
