//! Checks the table after a run: every record is there that was loaded, or whose insert was acknowledged, and its value is one that was
//! written for it.

use std::iter::Flatten;
use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::vec::IntoIter;

use farm_core::worker::{Cont, Worker};
use farm_kv::{GetCont, KvError};
use serde::{Deserialize, Serialize};

use super::driver::Common;
use super::inserts::InsertTracker;
use super::key::key_bytes;
use super::value;
use crate::audit::Done;
use crate::closed_loop::{self, Clients, ClosedLoop, Ran, again};
use crate::recorder::Outcome;

/// What a worker checks.
pub struct Audit {
    /// The table.
    pub common: Common,
    /// Which records this process has inserted.
    pub tracker: Arc<InsertTracker>,
    /// The worker's share of the places of the tracker's view.
    pub places: Vec<Range<u64>>,
    /// Number of lookups in flight.
    pub in_flight: usize,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditResult {
    /// Number of records.
    pub records: u64,
    /// The first error, if any.
    pub wrong: Option<String>,
}

impl AddAssign for AuditResult {
    fn add_assign(&mut self, other: AuditResult) {
        self.records += other.records;
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

struct Auditor {
    common: Common,
    tracker: Arc<InsertTracker>,
    places: Flatten<IntoIter<Range<u64>>>,
    done: Done<AuditResult>,
}

type Driver = ClosedLoop<Auditor>;

/// Checks the share of a worker. No operation may be in flight on any worker.
pub fn run(worker: &mut Worker, audit: Audit, done: Done<AuditResult>) {
    let Audit {
        common,
        tracker,
        places,
        in_flight,
    } = audit;
    let auditor = Auditor {
        common,
        tracker,
        places: places.into_iter().flatten(),
        done,
    };
    closed_loop::start_untimed(worker, auditor, in_flight, None);
}

impl Clients for Auditor {
    type Operation = u64;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<u64> {
        let place = self.places.next()?;
        Some(self.tracker.key_at(place))
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let key = key_bytes(*own.operation(seat));
        let table = own.clients.common.table;
        match farm_kv::get(worker, table, &key, GetCont::new(got, seat)) {
            Ok(()) => {}
            Err(KvError::Busy) => {
                farm_kv::when_slot(worker, table, Cont::new(again::<Auditor>, seat));
            }
            Err(error) => own.wrong(seat, &format!("cannot be read: {error}")),
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        (self.done)(AuditResult {
            records: ran.recorder.executed(),
            wrong: ran.failure,
        });
    }
}

impl Driver {
    /// Records the first error, which ends the check.
    #[cold]
    fn wrong(&mut self, seat: usize, why: &str) {
        let record = *self.operation(seat);
        self.stop(seat, format!("record {record} {why}"));
    }
}

fn got(worker: &mut Worker, seat: usize, found: Result<Option<&[u8]>, &KvError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        let record = *own.operation(seat);
        match found {
            Ok(Some(found)) => match value::check(found, record) {
                Ok(_) => own.finish(worker, seat, 0, Outcome::Committed),
                Err(error) => own.wrong(seat, &format!("has a wrong value: {error}")),
            },
            Ok(None) => own.wrong(seat, "is missing"),
            Err(KvError::Busy) => worker.when_room(Cont::new(again::<Auditor>, seat)),
            Err(error) => own.wrong(seat, &format!("cannot be read: {error}")),
        }
    });
}
