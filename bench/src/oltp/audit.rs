//! Checks the rows of a benchmark when no transaction runs any more. Each worker checks the rows of its share of the
//! items, by lock-free lookups.

use std::ops::{AddAssign, Range};

use farm_core::worker::{Cont, Worker};
use farm_kv::{GetCont, KvError, TableId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::attempt::table_of;
use super::benchmark::ItemNames;
use super::{Benchmark, RowBytes};
use crate::audit::Done;
use crate::closed_loop::{self, Clients, ClosedLoop, Ran, again};
use crate::recorder::Outcome;
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
pub struct AuditResult {
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

impl AddAssign<AuditResult> for AuditResult {
    fn add_assign(&mut self, other: AuditResult) {
        self.items += other.items;
        self.rows += other.rows;
        self.cents += other.cents;
        self.pairs += other.pairs;
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

/// Walks this worker's shards of tables, and returns the number of their pairs.
///
/// # Errors
/// A description of the first error. A walk shortly after the last transaction may fail, because the last changes reach
/// the owners of shards with a delay; the caller must retry it for a while.
pub fn walk(worker: &mut Worker, tables: &[TableId]) -> Result<u64, String> {
    let pairs = tables.iter().map(|table| {
        let shards = farm_kv::ops::check(worker, *table)?;
        Ok(shards.iter().map(|shard| shard.pairs).sum::<u64>())
    });
    pairs.sum()
}

/// An item that is being checked, one row after the other.
struct Item {
    item: u64,
    names: ItemNames,
    rows: SmallVec<[Option<RowBytes>; 8]>,
}

struct Auditor {
    audit: Audit,
    found: AuditResult,
    done: Done<AuditResult>,
}

/// Checks rows. Calls `done` on the worker's thread when all are checked. [`super::attempt::attach`] must have been
/// called on the worker before.
pub fn audit(worker: &mut Worker, audit: Audit, done: Done<AuditResult>) {
    let in_flight = audit.in_flight.max(1);
    let found = AuditResult::default();
    let auditor = Auditor { audit, found, done };
    closed_loop::start_untimed(worker, auditor, in_flight, None);
}

impl Clients for Auditor {
    type Operation = Item;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<Item> {
        let item = self.audit.items.next()?;
        Some(Item {
            item,
            names: self.audit.benchmark.audited(item),
            rows: SmallVec::new(),
        })
    }

    /// Looks up the next row of an item.
    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let item = own.operation(seat);
        let name = item.names[item.rows.len()];
        let table = table_of(worker, &name);
        let got = GetCont::new(got, seat);
        match farm_kv::get(worker, table, &name.table_key(), got) {
            Ok(()) => {}
            Err(KvError::Busy) => {
                farm_kv::when_slot(worker, table, Cont::new(again::<Self>, seat));
            }
            Err(error) => own.wrong(seat, &format!("{name} cannot be read: {error}")),
        }
    }

    fn end(mut self, _: &mut Worker, ran: Ran) {
        self.found.items = ran.recorder.executed();
        self.found.wrong = ran.failure;
        (self.done)(self.found);
    }
}

impl ClosedLoop<Auditor> {
    /// Records the first error, which ends the check.
    #[cold]
    fn wrong(&mut self, seat: usize, why: &str) {
        let item = self.operation(seat).item;
        let of = self.clients.audit.benchmark.item_name();
        self.stop(seat, format!("item {item} of the {of}: {why}"));
    }

    fn seen(&mut self, worker: &mut Worker, seat: usize, row: Option<RowBytes>) {
        let item = self.operation(seat);
        item.rows.push(row);
        if item.rows.len() < item.names.len() {
            return Auditor::begin(self, worker, seat);
        }
        let (number, rows) = (item.item, std::mem::take(&mut item.rows));
        let Audit {
            benchmark, seed, ..
        } = &self.clients.audit;
        match benchmark.audit(*seed, number, &rows) {
            Ok(cents) => {
                self.clients.found.rows += rows.len() as u64;
                self.clients.found.cents += i128::from(cents);
                self.finish(worker, seat, 0, Outcome::Committed);
            }
            Err(why) => self.wrong(seat, &why),
        }
    }
}

fn got(worker: &mut Worker, seat: usize, found: Result<Option<&[u8]>, &KvError>) {
    closed_loop::resume(worker, |own: &mut ClosedLoop<Auditor>, worker| {
        let value = match found {
            Ok(value) => value,
            Err(KvError::Busy) => return worker.when_room(Cont::new(again::<Auditor>, seat)),
            Err(error) => return own.wrong(seat, &error.to_string()),
        };
        let row = value.and_then(RowBytes::copied);
        match value.filter(|_| row.is_none()).map(<[u8]>::len) {
            None => own.seen(worker, seat, row),
            Some(bytes) => {
                let why = format!("a row has {bytes} bytes, more than any row of the benchmark");
                own.wrong(seat, &why);
            }
        }
    });
}
