//! Step 0 of a commit over several machines: room in the log of every machine that is written, for all records that
//! the transaction will need, and for their answers.

use farm_core::messaging::{CallError, ReplyCont};
use farm_core::worker::Worker;
use farm_core::{marks, mutants};

use super::coordinator::{Blocked, Commit, Step, context, lock_replied};
use super::plan::Participant;
use super::primary::REPLY_BYTES;
use super::truncate;
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::record::{FIXED_BYTES, MOST_TRUNCATED};

/// Reserves at all participants, or at none: what others of this worker wait for is not held.
pub(super) fn reserve(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    let participants = &mut commit.plan.participants;
    for at in 0..participants.len() {
        let error = match reserve_at(worker, context(key, at), &mut participants[at]) {
            Ok(()) => continue,
            Err(error) => error,
        };
        for before in &mut participants[..at] {
            release_at(worker, before);
        }
        let machine = participants[at].machine;
        if let TxError::Busy = error {
            marks::mark("commit: waits for room in a log");
            truncate::explicitly(worker, machine);
            return Err(Blocked::Room);
        }
        participants.clear();
        commit.stop(error);
        commit.go_to(Step::Abort);
        return Ok(());
    }
    commit.sequence = transactions(worker).truncations.begin();
    let early = mutants::is_on("validate before all locks");
    commit.go_to(if early { Step::Validate } else { Step::Lock });
    Ok(())
}

fn reserve_at(
    worker: &mut Worker,
    context: u64,
    participant: &mut Participant,
) -> Result<(), TxError> {
    let machine = participant.machine;
    let bytes = FIXED_BYTES + participant.rest_bytes + MOST_TRUNCATED * 8;
    let failed = |error| match error {
        CallError::Busy => TxError::Busy,
        CallError::TooLarge { bytes, most } => TxError::TooLargeForLog {
            machine,
            bytes,
            most,
        },
        _ => Abort::Lost(machine).into(),
    };
    let most = worker.max_log_body(machine).map_err(failed)?;
    if bytes > most {
        return Err(failed(CallError::TooLarge { bytes, most }));
    }
    let reserved = participant.reserved();
    worker.reserve_log(machine, reserved).map_err(failed)?;
    let replied = ReplyCont::new(lock_replied, context);
    let reply = worker
        .log_poller(machine)
        .and_then(|poller| worker.expect_reply(poller, REPLY_BYTES, replied));
    let reply = reply.map_err(|error| {
        worker.release_log(machine, reserved);
        failed(error)
    })?;
    participant.reply = Some(reply);
    Ok(())
}

/// Gives back what was reserved for a LOCK that was not sent, and what would have followed.
pub(super) fn release_at(worker: &mut Worker, participant: &mut Participant) {
    worker.release_log(participant.machine, participant.reserved());
    if let Some(reply) = participant.reply.take() {
        worker.forget_reply(reply);
    }
}
