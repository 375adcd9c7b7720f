//! Step 0 of a commit over several machines: room in the log of every machine that is written, for all records that
//! the transaction will need, and for their answers.

use farm_core::ids::MachineId;
use farm_core::marks;
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::worker::{Cont, Worker};

use super::coordinator::{Blocked, Coordinator, context};
use super::drive::{lock_replied, resume};
use super::plan::Participant;
use super::primary::REPLY_BYTES;
use super::truncate;
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::record::{FIXED_BYTES, MOST_TRUNCATED};

/// Reserves at all participants, or at none: what others of this worker wait for is not held. Those who
/// wait have their turns in the order in which they came.
pub(super) fn reserve(
    worker: &mut Worker,
    key: usize,
    commit: &mut Coordinator,
) -> Result<(), Blocked> {
    let queues = &transactions(worker).queues;
    if !queues.may_reserve(commit.ticket, machines(commit)) {
        marks::mark("commit: waits behind another for room in a log");
        return Err(wait(worker, key, commit));
    }
    match reserve_everywhere(worker, key, commit) {
        Ok(()) => {
            let state = transactions(worker);
            state.queues.reserved(commit.ticket, machines(commit));
            commit.on_reserved(state.truncations.begin());
        }
        Err((TxError::Busy, machine)) => {
            marks::mark("commit: waits for room in a log");
            truncate::explicitly(worker, machine);
            return Err(wait(worker, key, commit));
        }
        Err((error, _)) => commit.on_refused(error),
    }
    if let Some(ticket) = commit.ticket.take() {
        for woken in transactions(worker).queues.leave(ticket) {
            worker.defer(Cont::new(resume, woken as u64));
        }
    }
    Ok(())
}

fn machines(commit: &Coordinator) -> impl Iterator<Item = MachineId> + '_ {
    let participants = commit.plan.participants.iter();
    participants.map(|participant| participant.machine)
}

/// Enters the queues of all machines, if it has not. Returns what it waits for.
fn wait(worker: &mut Worker, key: usize, commit: &mut Coordinator) -> Blocked {
    let queues = &mut transactions(worker).queues;
    if commit.ticket.is_none() {
        commit.ticket = Some(queues.enter(key, machines(commit)));
    }
    match queues.may_reserve(commit.ticket, machines(commit)) {
        true => Blocked::Room,
        false => Blocked::Others,
    }
}

/// Reserves at all participants, or at none.
///
/// # Errors
/// The first failure, and whose log it was about.
fn reserve_everywhere(
    worker: &mut Worker,
    key: usize,
    commit: &mut Coordinator,
) -> Result<(), (TxError, MachineId)> {
    let participants = &mut commit.plan.participants;
    for at in 0..participants.len() {
        if let Err(error) = reserve_at(worker, context(key, at), &mut participants[at]) {
            for before in &mut participants[..at] {
                release_at(worker, before);
            }
            return Err((error, participants[at].machine));
        }
    }
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
