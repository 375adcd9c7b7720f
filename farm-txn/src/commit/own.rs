//! The coordinator's own log: records of what a commit does with objects and copies of its own machine
//! ([`farm_core::ring::OwnLog`]).

use farm_core::worker::{Cont, Worker};

use super::backup::apply_record;
use super::coordinator::Coordinator;
use super::lock::{decode_objects, encode_objects};
use super::primary::RecordAt;
use super::truncate::with_record;
use crate::layer::transactions;
use crate::note;
use crate::record::Kind;

/// Appends a record to the own log. Its room is reserved.
pub(super) fn log(worker: &mut Worker, commit: &Coordinator, at: usize, kind: Kind) {
    let low = transactions(worker).truncations.low();
    let sequence = commit.sequence;
    let fill = |rest: &mut Vec<u8>| {
        if kind.has_objects() {
            encode(rest, commit, at, kind, 0);
        }
    };
    let place = with_record(worker, (kind, sequence, low), fill, |worker, body| {
        RecordAt {
            end: worker.append_own(kind.code(), sequence, body),
            bytes: body.iter().map(|part| part.len()).sum(),
        }
    });
    if kind == Kind::Abort
        && let Some(own) = worker.own_log()
    {
        own.release(commit.plan.participants[at].backup.reserved());
    }
    transactions(worker).own.on_own(kind, sequence, place);
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
    loop {
        let layer = transactions(worker);
        let since = layer.logs_since;
        if let Some((end, low)) = layer.own.take_free()
            && let Some(own) = worker.own_log()
        {
            own.free(end, note::encode(since, low));
        }
        let Some(at) = transactions(worker).own.next_to_apply() else {
            return;
        };
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
}
