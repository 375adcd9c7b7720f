//! Step 0 of a commit over several machines: room in the log at every machine whose objects are written, for all records
//! that the transaction will need, and for their replies.

use farm_core::ids::MachineId;
use farm_core::marks;
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::worker::{Cont, Worker};

use super::coordinator::{Blocked, Coordinator};
use super::id::CommitId;
use super::plan::Participant;
use super::reply::REPLY_BYTES;
use super::truncate;
use crate::error::{Abort, TxError};
use crate::layer::transactions;

/// Reserves room at all participants, or at none, so that a waiting commit holds no room that other commits of this
/// worker wait for. Waiting commits get room in the order in which they began to wait.
///
/// `on_reply` returns the continuation for the LOCK-REPLY of a participant. `resume` returns the continuation that
/// resumes a commit.
pub(super) fn reserve(
    worker: &mut Worker,
    id: CommitId,
    commit: &mut Coordinator,
    on_reply: impl Fn(u32) -> ReplyCont,
    resume: impl Fn(CommitId) -> Cont<()>,
) -> Result<(), Blocked> {
    let queues = &transactions(worker).queues;
    if !queues.may_reserve(commit.ticket, machines(commit)) {
        marks::mark("commit: waits behind another for room in a log");
        return Err(wait(worker, id, commit));
    }
    if !transactions(worker).truncations.may_begin() {
        marks::mark("commit: waits for the low bound");
        return Err(wait(worker, id, commit));
    }
    match reserve_everywhere(worker, commit, on_reply) {
        Ok(()) => {
            let state = transactions(worker);
            state.queues.reserved(commit.ticket, machines(commit));
            commit.on_reserved(state.truncations.begin());
        }
        Err((TxError::Busy, machine)) => {
            marks::mark("commit: waits for room in a log");
            truncate::explicitly(worker, machine);
            return Err(wait(worker, id, commit));
        }
        Err((error, _)) => commit.on_refused(error),
    }
    leave_queues(worker, commit, resume);
    Ok(())
}

/// Leaves the queues for room in logs, and resumes the commits that are the first in theirs now.
pub(super) fn leave_queues(
    worker: &mut Worker,
    commit: &mut Coordinator,
    resume: impl Fn(CommitId) -> Cont<()>,
) {
    if let Some(ticket) = commit.ticket.take() {
        for woken in transactions(worker).queues.leave(ticket) {
            wake(worker, woken, &resume);
        }
    }
}

/// Resumes a commit that waits for others.
pub(super) fn wake(worker: &mut Worker, id: CommitId, resume: impl Fn(CommitId) -> Cont<()>) {
    // The commit that has taken the room is not among them while it runs.
    if let Some(commit) = transactions(worker).commits[id.index()].as_mut() {
        commit.sleeps = false;
    }
    worker.defer(resume(id));
}

fn machines(commit: &Coordinator) -> impl Iterator<Item = MachineId> + '_ {
    let participants = commit.plan.participants.iter();
    participants.map(|participant| participant.machine)
}

/// Enters the queues of all machines, unless the commit is already in them. Returns the reason why the commit is
/// blocked.
fn wait(worker: &mut Worker, id: CommitId, commit: &mut Coordinator) -> Blocked {
    let queues = &mut transactions(worker).queues;
    if commit.ticket.is_none() {
        commit.ticket = Some(queues.enter(id, machines(commit)));
    }
    match queues.may_reserve(commit.ticket, machines(commit)) {
        true => Blocked::Room,
        false => Blocked::Queue,
    }
}

/// Reserves room at all participants, or at none.
///
/// # Errors
/// The first failure, and the machine of the log.
fn reserve_everywhere(
    worker: &mut Worker,
    commit: &mut Coordinator,
    on_reply: impl Fn(u32) -> ReplyCont,
) -> Result<(), (TxError, MachineId)> {
    let participants = &mut commit.plan.participants;
    for at in 0..participants.len() {
        if let Err(error) = reserve_at(worker, on_reply(at as u32), &mut participants[at]) {
            for before in &mut participants[..at] {
                release_reserved(worker, before);
            }
            return Err((error, participants[at].machine));
        }
    }
    Ok(())
}

fn reserve_at(
    worker: &mut Worker,
    on_reply: ReplyCont,
    participant: &mut Participant,
) -> Result<(), TxError> {
    let machine = participant.machine;
    let bytes = participant
        .lock
        .body_bytes()
        .max(participant.backup.body_bytes());
    if participant.is_own {
        return reserve_own(worker, participant, bytes);
    }
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
    if !participant.is_primary() {
        return Ok(());
    }
    let reply = worker
        .log_poller(machine)
        .and_then(|poller| worker.expect_reply(poller, REPLY_BYTES, on_reply));
    let reply = reply.map_err(|error| {
        worker.release_log(machine, reserved);
        failed(error)
    })?;
    participant.reply = Some(reply);
    Ok(())
}

/// Reserves room in the own log for a record with a body of `bytes` and all other records.
fn reserve_own(
    worker: &mut Worker,
    participant: &Participant,
    bytes: usize,
) -> Result<(), TxError> {
    let reserved = participant.reserved();
    let own = worker.own_log();
    let own = own.expect("a worker whose commits are logged has a log of its own");
    let too_large = |bytes, most: u32| TxError::TooLargeForLog {
        machine: participant.machine,
        bytes,
        most: most as usize,
    };
    if bytes > own.max_body_bytes() as usize {
        return Err(too_large(bytes, own.max_body_bytes()));
    }
    if reserved > own.most_reservable() {
        return Err(too_large(reserved as usize, own.most_reservable()));
    }
    match own.try_reserve(reserved) {
        true => Ok(()),
        false => Err(TxError::Busy),
    }
}

/// Releases the room that was reserved for COMMIT-BACKUP at another machine.
pub(super) fn release_backup(worker: &mut Worker, participant: &Participant) {
    worker.release_log(participant.machine, participant.backup.reserved());
}

/// Releases the room that was reserved for a LOCK that was not sent, and for the records after it.
pub(super) fn release_reserved(worker: &mut Worker, participant: &mut Participant) {
    match worker.own_log().filter(|_| participant.is_own) {
        Some(own) => own.release(participant.reserved()),
        None => worker.release_log(participant.machine, participant.reserved()),
    }
    if let Some(reply) = participant.reply.take() {
        worker.forget_reply(reply);
    }
}
