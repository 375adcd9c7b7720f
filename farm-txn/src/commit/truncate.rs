//! The last step of a commit: its records are removed from the logs (`FaRM'15 §4`). Every record that is appended has the
//! low bound, below which all transactions are truncated. If no other record is appended for a while, the worker appends a
//! record of kind TRUNCATE.

use std::time::Duration;

use farm_core::fabric::Status;
use farm_core::ids::MachineId;
use farm_core::marks;
use farm_core::messaging::CallError;
use farm_core::worker::{Append, Cont, Worker};

use super::coordinator::Coordinator;
use super::truncations::{Batch, Truncations};
use crate::layer::transactions;
use crate::record::{self, Kind, TxId, fixed_reserved};

/// The time after which truncations are sent by a record of their own.
const TRUNCATE_AFTER: Duration = Duration::from_micros(500);

/// A record for the log at a machine.
pub(crate) struct Outgoing {
    pub(crate) to: MachineId,
    pub(crate) kind: Kind,
    /// Number of the transaction; 0 for TRUNCATE.
    pub(crate) sequence: u64,
    /// Bytes that were reserved for the record.
    pub(crate) reserved: u32,
    pub(crate) acknowledged: Option<Cont<Status>>,
}

/// Lets all participants truncate a transaction that they have acknowledged.
pub(super) fn end(truncations: &mut Truncations, commit: &Coordinator) {
    let all = commit.plan.participants.iter();
    let others = all.filter(|one| one.has_record() && !one.is_own);
    let machines = others.map(|one| one.machine);
    truncations.end(commit.sequence, machines);
}

/// Appends a record with the low bound. `fill` appends the part of the record after its head.
///
/// # Errors
/// As [`Worker::append_log`]: nothing was appended.
pub(crate) fn append(
    worker: &mut Worker,
    out: Outgoing,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Result<(), CallError> {
    let Batch { low, count } = transactions(worker).truncations.batch(out.to);
    let (kind, token) = (out.kind, out.sequence);
    let appended = with_record(worker, (kind, token, low), fill, |worker, body| {
        worker.append_log(Append {
            to: out.to,
            kind: kind.code(),
            token,
            body,
            reserved: out.reserved + count as u32 * fixed_reserved(),
            acknowledged: out.acknowledged,
        })
    });
    let layer = transactions(worker);
    if appended.is_ok() {
        layer.counters.count_record(out.kind);
        layer.truncations.on_sent(out.to, count);
    }
    appended
}

/// Encodes a record of this kind, transaction number and low bound in the buffers of the layer, and calls `append` with its body.
/// `fill` appends the part of the record after its head.
pub(super) fn with_record<T>(
    worker: &mut Worker,
    (kind, sequence, low): (Kind, u64, u64),
    fill: impl FnOnce(&mut Vec<u8>),
    append: impl FnOnce(&mut Worker, &[&[u8]]) -> T,
) -> T {
    let coordinator = worker.me();
    let layer = transactions(worker);
    let id = TxId {
        configuration: layer.configuration,
        coordinator,
        sequence,
    };
    let mut head = std::mem::take(&mut layer.record_head);
    let mut rest = std::mem::take(&mut layer.record_rest);
    rest.clear();
    fill(&mut rest);
    record::encode_head(&mut head, kind, id, low, &rest);
    let appended = append(worker, &[&head, &rest]);
    let layer = transactions(worker);
    (layer.record_head, layer.record_rest) = (head, rest);
    appended
}

/// If there are truncations to send, sets the timer after which they are sent by records of their own.
pub(crate) fn soon(worker: &mut Worker) {
    if transactions(worker).truncations.start_timer() {
        worker.set_timer(TRUNCATE_AFTER, Cont::new(now, 0));
    }
}

fn now(worker: &mut Worker, _: u64, (): ()) {
    transactions(worker).truncations.on_timer();
    for place in 0..transactions(worker).truncations.machines().len() {
        let machine = transactions(worker).truncations.machines()[place];
        explicitly(worker, machine);
    }
    soon(worker);
}

/// Sends the low bound to a machine by a record of its own, if the machine can truncate something by it.
pub(crate) fn explicitly(worker: &mut Worker, machine: MachineId) {
    if transactions(worker).truncations.has_due(machine) {
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
            // The timer tries again.
            Err(CallError::Busy) => {}
            // The logs of a lost machine are lost, too.
            Err(_) => {
                let count = transactions(worker).truncations.on_lost(machine);
                worker.release_log(machine, count as u32 * fixed_reserved());
            }
        }
    }
}
