//! The coordinator's own log: records of what a commit does with objects and copies of its own machine
//! ([`farm_core::ring::OwnLog`]).

use farm_core::worker::{Cont, Worker};

use super::backup::apply_record;
use super::coordinator::Coordinator;
use super::lock::{decode_objects, encode_objects};
use super::primary::RecordAt;
use crate::layer::transactions;
use crate::record::{self, Kind, TxId};

/// Appends a record to the own log. Its room is reserved.
pub(super) fn log(worker: &mut Worker, commit: &Coordinator, at: usize, kind: Kind) {
    let participant = &commit.plan.participants[at];
    let coordinator = worker.me();
    let layer = transactions(worker);
    let id = TxId {
        configuration: layer.configuration,
        coordinator,
        sequence: commit.sequence,
    };
    let low = layer.truncations.low();
    let mut head = std::mem::take(&mut layer.record_head);
    let mut rest = std::mem::take(&mut layer.record_rest);
    rest.clear();
    if kind.has_objects() {
        encode(&mut rest, commit, at, kind, 0);
    }
    record::encode_head(&mut head, kind, id, low, &rest);
    let end = worker.append_own(kind.code(), commit.sequence, &[&head, &rest]);
    let place = RecordAt {
        end,
        bytes: head.len() + rest.len(),
    };
    if kind == Kind::Abort
        && let Some(own) = worker.own_log()
    {
        own.release(participant.backup.reserved());
    }
    let layer = transactions(worker);
    (layer.record_head, layer.record_rest) = (head, rest);
    layer.own.on_own(kind, commit.sequence, place);
}

/// Appends the part of a LOCK or COMMIT-BACKUP record after its head.
pub(super) fn encode(out: &mut Vec<u8>, commit: &Coordinator, at: usize, kind: Kind, reply: u64) {
    let (plan, tx) = (&commit.plan, &commit.tx);
    match kind {
        Kind::Lock => encode_objects(out, tx, &plan.regions, plan.objects(at, tx), reply),
        _ => encode_objects(out, tx, &plan.regions, plan.copies(at, tx), reply),
    }
}

/// Applies the copies of transactions that are finished, and frees their records.
pub(super) fn truncate(worker: &mut Worker) {
    let layer = transactions(worker);
    let low = layer.truncations.low();
    if layer.own.is_unused() {
        return;
    }
    layer.own.truncate_own(low);
    apply(worker, (), ());
}

/// Applies copies that wait for it, and frees records.
fn apply(worker: &mut Worker, (): (), (): ()) {
    while let Some(at) = transactions(worker).own.next_to_apply() {
        let mut words = std::mem::take(&mut transactions(worker).primary.words);
        let own = worker.own_log();
        own.expect("a worker whose commits are logged has a log of its own")
            .read(at.end, at.bytes, &mut words);
        let applied = decode_objects(Kind::CommitBackup, &words, at.bytes)
            .and_then(|objects| apply_record(worker, &objects));
        transactions(worker).primary.words = words;
        match applied {
            Ok(true) => transactions(worker).own.on_applied(),
            // Another worker of this machine changes one of the copies now.
            Ok(false) => return worker.defer(Cont::new(apply, ())),
            Err(why) => {
                let why = format!("a record of the own log cannot be applied: {why}");
                return worker.control().fail(why);
            }
        }
    }
    if let Some((end, low)) = transactions(worker).own.take_free()
        && let Some(own) = worker.own_log()
    {
        own.free(end, low);
    }
}
