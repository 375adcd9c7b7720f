//! How records leave the logs again (`FaRM'15 §4`): a coordinator tells each primary which of its
//! transactions all primaries have acknowledged, along with whatever it writes there anyway, or by a
//! record of its own when it has nothing else to write for a while.

use std::collections::VecDeque;
use std::time::Duration;

use farm_core::fabric::Status;
use farm_core::ids::MachineId;
use farm_core::marks;
use farm_core::messaging::CallError;
use farm_core::ring::log_record_bytes;
use farm_core::worker::{Append, Cont, Worker};

use crate::layer::transactions;
use crate::record::{self, FIXED_BYTES, Kind, MOST_TRUNCATED};

/// What no other record has told a machine after so long is told by a record of its own.
const TRUNCATE_AFTER: Duration = Duration::from_micros(500);

/// What is reserved for the truncation of one transaction: a record that has nothing else.
pub(crate) fn reserved_bytes() -> u32 {
    log_record_bytes(FIXED_BYTES + 8)
}

/// What a coordinator has to tell.
#[derive(Default)]
pub(crate) struct Truncations {
    /// The transaction numbered last.
    last: u64,
    /// Transactions in the order of their numbers, and whether each may be truncated; the first may not.
    open: VecDeque<(u64, bool)>,
    /// Transactions that each machine may truncate and has not been sent, in no order, by the machine's index.
    /// Room for them is reserved in its log.
    unsent: Vec<Vec<u64>>,
    /// Machines that ever had some.
    machines: Vec<MachineId>,
    /// All of them, summed over the machines.
    waiting: usize,
    timer: bool,
    /// The head of the record that is being appended, and what follows it.
    head: Vec<u8>,
    rest: Vec<u8>,
}

impl Truncations {
    /// Numbers a transaction.
    pub(crate) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.open.push_back((self.last, false));
        self.last
    }

    /// A transaction may be truncated: everywhere below the low bound sooner or later.
    pub(crate) fn end(&mut self, sequence: u64) {
        if let Ok(at) = self.open.binary_search_by_key(&sequence, |open| open.0) {
            self.open[at].1 = true;
        }
        while self.open.front().is_some_and(|open| open.1) {
            self.open.pop_front();
        }
    }

    /// Transactions below this may all be truncated.
    fn low(&self) -> u64 {
        self.open.front().map_or(self.last + 1, |open| open.0)
    }

    /// Notes that a machine may truncate a transaction.
    pub(crate) fn note(&mut self, machine: MachineId, sequence: u64) {
        let index = machine.index();
        if self.unsent.len() <= index {
            self.unsent.resize_with(index + 1, Vec::new);
        }
        // A list that was ever used keeps its capacity.
        if self.unsent[index].capacity() == 0 {
            self.machines.push(machine);
        }
        self.unsent[index].push(sequence);
        self.waiting += 1;
    }

    /// The transactions that a machine has not been sent, if there are some.
    fn unsent(&mut self, machine: MachineId) -> Option<&mut Vec<u64>> {
        let unsent = self.unsent.get_mut(machine.index());
        unsent.filter(|unsent| !unsent.is_empty())
    }

    /// Whether some have not been sent, and no timer is set for them.
    pub(crate) fn wants_timer(&self) -> bool {
        !self.timer && self.waiting > 0
    }

    /// Truncations that have not been sent, summed over the machines.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }
}

/// A record for a machine's log.
pub(crate) struct Outgoing {
    pub(crate) to: MachineId,
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
    /// Bytes that were reserved for it.
    pub(crate) reserved: u32,
    pub(crate) acknowledged: Option<Cont<Status>>,
}

/// Appends a record, and what is to be truncated with it. `fill` writes what the record has besides what all have.
///
/// # Errors
/// As [`Worker::append_log`]: nothing was appended, and nothing told.
pub(crate) fn append(
    worker: &mut Worker,
    out: Outgoing,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Result<(), CallError> {
    let state = &mut transactions(worker).truncations;
    let low = state.low();
    let mut head = std::mem::take(&mut state.head);
    let mut rest = std::mem::take(&mut state.rest);
    rest.clear();
    fill(&mut rest);
    let (mut named, mut names) = (0, [0; MOST_TRUNCATED]);
    let mut told = 0;
    if let Some(unsent) = state.unsent(out.to) {
        // Those below the low bound need no name.
        unsent.sort_unstable();
        let below = unsent.partition_point(|sequence| *sequence < low);
        named = (unsent.len() - below).min(MOST_TRUNCATED);
        names[..named].copy_from_slice(&unsent[below..][..named]);
        told = below + named;
    }
    let names = &names[..named];
    record::encode_head(&mut head, out.kind, out.sequence, low, names, &rest);
    let appended = worker.append_log(Append {
        to: out.to,
        kind: out.kind.code(),
        token: out.sequence,
        body: &[&head, &rest],
        reserved: out.reserved + told as u32 * reserved_bytes(),
        acknowledged: out.acknowledged,
    });
    let layer = transactions(worker);
    if appended.is_ok() {
        layer.counters.count_record(out.kind);
    }
    let state = &mut layer.truncations;
    (state.head, state.rest) = (head, rest);
    if appended.is_ok()
        && let Some(unsent) = state.unsent(out.to)
    {
        unsent.drain(..told);
        state.waiting -= told;
    }
    appended
}

/// What a machine has not been told it will be, soon.
pub(crate) fn soon(worker: &mut Worker) {
    let state = &mut transactions(worker).truncations;
    if state.wants_timer() {
        state.timer = true;
        worker.set_timer(TRUNCATE_AFTER, Cont::new(now, 0));
    }
}

fn now(worker: &mut Worker, _: u64, (): ()) {
    transactions(worker).truncations.timer = false;
    for place in 0..transactions(worker).truncations.machines.len() {
        let machine = transactions(worker).truncations.machines[place];
        explicitly(worker, machine);
    }
    soon(worker);
}

/// Tells a machine by records that have nothing else; stops when there is no room, or the machine is
/// lost.
pub(crate) fn explicitly(worker: &mut Worker, machine: MachineId) {
    while transactions(worker).truncations.unsent(machine).is_some() {
        marks::mark("truncate: by a record of its own");
        let out = Outgoing {
            to: machine,
            kind: Kind::Truncate,
            sequence: 0,
            reserved: 0,
            acknowledged: None,
        };
        match append(worker, out, |_| ()) {
            Ok(()) => {}
            Err(CallError::Busy) => return,
            // Its logs are lost with it.
            Err(_) => {
                let state = &mut transactions(worker).truncations;
                if let Some(unsent) = state.unsent(machine) {
                    let count = unsent.len();
                    unsent.clear();
                    state.waiting -= count;
                    worker.release_log(machine, count as u32 * reserved_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_bound_stays_at_the_first_that_is_open() {
        let mut state = Truncations::default();
        assert_eq!(state.low(), 1);
        let [one, two, three] = [(); 3].map(|()| state.begin());
        assert_eq!((one, two, three, state.low()), (1, 2, 3, 1));
        state.end(two);
        assert_eq!(state.low(), 1);
        state.end(one);
        assert_eq!(state.low(), 3);
        state.end(three);
        assert_eq!(state.low(), 4);
        assert_eq!(state.begin(), 4);
        assert_eq!(state.low(), 4);
    }
}
