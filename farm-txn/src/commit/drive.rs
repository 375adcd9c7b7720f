//! Performs the actions of a [`Coordinator`] with the worker, and passes it the events that follow.

use std::ops::Range;

use farm_core::fabric::Status;
use farm_core::ids::MachineId;
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::object::{LockMode, VersionWord};
use farm_core::worker::{Cont, ReadResult, Worker};
use farm_core::{marks, mutants};
use smallvec::SmallVec;

use super::coordinator::{Action, Blocked, Coordinator, Sent, context, of_context};
use super::plan::Participant;
use super::primary::REPLY_BYTES;
use super::truncate::{self, Outgoing};
use super::validate::{ASKED_BYTES, VALIDATE};
use super::{here, reserve};
use crate::error::TxError;
use crate::layer::{Transactions, end_of, transactions};
use crate::record::{self, Effect, Kind, Object};
use crate::tx::{Intent, Tx};

/// Begins the commit of a transaction that has objects of other machines, or many of this one. The continuation is
/// called from the event loop.
pub(crate) fn begin(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    let most_asked = worker.max_message_body() / ASKED_BYTES;
    let state = transactions(worker);
    let mut commit = state.spare_commits.pop().unwrap_or_default();
    state.keep(commit.begin(tx, cont, most_asked));
    let key = state.commits.insert(Some(commit));
    worker.defer(Cont::new(resume, key as u64));
}

pub(super) fn resume(worker: &mut Worker, key: u64, (): ()) {
    let mut commit = transactions(worker).take(key as usize);
    commit.on_resumed();
    go_on(worker, key as usize, commit);
}

pub(super) fn lock_replied(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (key, at) = of_context(context);
    let state = transactions(worker);
    state.counters.lock_replies += u64::from(reply.is_ok());
    let mut commit = state.take(key);
    commit.on_lock_reply(at, reply);
    go_on(worker, key, commit);
}

fn answered(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (key, _) = of_context(context);
    let mut commit = transactions(worker).take(key);
    commit.on_answer(reply);
    go_on(worker, key, commit);
}

fn header_came(worker: &mut Worker, context: u64, result: ReadResult) {
    let (key, at) = of_context(context);
    let header = result.map(|slot| {
        let header = VersionWord(worker.arena().words(&slot)[0]);
        worker.arena().give(slot);
        header
    });
    let mut commit = transactions(worker).take(key);
    commit.on_header(at, header);
    go_on(worker, key, commit);
}

fn acknowledged(worker: &mut Worker, context: u64, status: Status) {
    let (key, at) = of_context(context);
    let mut commit = transactions(worker).take(key);
    let first = commit.on_acknowledged(at, status);
    if first && mutants::is_on("truncate before all primaries acknowledged") {
        if may_be_truncated(transactions(worker), &commit) {
            truncate::soon(worker);
        }
        commit.sequence = 0;
    }
    go_on(worker, key, commit);
}

/// Goes as far as can be gone, and puts the commit back, or ends it.
fn go_on(worker: &mut Worker, key: usize, mut commit: Box<Coordinator>) {
    while let Some(action) = commit.next_action() {
        if let Err(blocked) = perform(worker, key, &mut commit, action) {
            wait_for(worker, key, &mut commit, blocked);
            break;
        }
    }
    let tell = commit.outcome();
    let (distributed, given_up) = (commit.distributed, commit.tx.has_given_up());
    let told = match &tell {
        Some((_, Ok(()))) => std::mem::take(&mut commit.tx.when_committed),
        _ => SmallVec::new(),
    };
    let ended = commit.has_ended();
    if ended {
        commit.tx.clear();
        end_of(worker, &mut commit.tx);
    }
    let state = transactions(worker);
    if let Some((_, result)) = &tell {
        state.counters.count(distributed, given_up, result);
    }
    match ended {
        true => {
            state.commits.remove(key);
            let to_tell = commit.sequence != 0 && may_be_truncated(state, &commit);
            state.spare_commits.push(commit);
            if to_tell {
                truncate::soon(worker);
            }
        }
        false => state.commits[key] = Some(commit),
    }
    for cont in told {
        cont.resume(worker, ());
    }
    if let Some((cont, result)) = tell {
        cont.resume(worker, result);
    }
}

/// Has the commit gone on with when there may be what an action is blocked for.
fn wait_for(worker: &mut Worker, key: usize, commit: &mut Coordinator, blocked: Blocked) {
    if !commit.on_blocked() {
        return;
    }
    let resumed = Cont::new(resume, key as u64);
    match blocked {
        Blocked::Room => worker.when_room(resumed),
        Blocked::HeaderSlot => worker.when_header_slot(resumed),
        Blocked::Turn => worker.defer(resumed),
        Blocked::Others => {}
    }
}

fn perform(
    worker: &mut Worker,
    key: usize,
    commit: &mut Coordinator,
    action: Action,
) -> Result<(), Blocked> {
    match action {
        Action::Reserve => return reserve::reserve(worker, key, commit),
        Action::LockHere => {
            commit.on_locked_here(here::lock(worker, &commit.tx, LockMode::Exclusive));
        }
        Action::Lock(at) => {
            let sent = send_lock(worker, commit, at as usize);
            return commit.on_lock_sent(sent);
        }
        Action::ValidateHere(part) => {
            if part.from == 0 {
                here::fence(worker, &commit.tx);
            }
            let validated = here::validate(worker, &commit.tx, part.range());
            return commit.on_validated_here(part, validated);
        }
        Action::AskMany(machine, part) => {
            let asked = ask_many(worker, key, commit, machine, part.range());
            commit.on_asked(part, asked);
        }
        Action::ReadHeader(at) => {
            let address = commit.tx.entries[at as usize].address;
            let cont = Cont::new(header_came, context(key, at as usize));
            let posted = worker.read_header(address, cont).is_ok();
            transactions(worker).counters.header_reads += u64::from(posted);
            return commit.on_header_asked(at, posted);
        }
        Action::InstallHere => here::install(worker, &commit.tx),
        Action::UnlockHere => here::unlock(worker, &commit.tx),
        Action::GiveBack => {
            commit.keep_what_primaries_know();
            commit.tx.abort(worker);
        }
        Action::Release(at) => {
            reserve::release_at(worker, &mut commit.plan.participants[at as usize]);
        }
        Action::End(at, kind) => {
            let at = at as usize;
            let acknowledged = Cont::new(acknowledged, context(key, at));
            let out = Outgoing {
                to: commit.plan.participants[at].machine,
                kind,
                sequence: commit.sequence,
                reserved: Participant::end_reserved(),
                acknowledged: Some(acknowledged),
            };
            return commit.on_end_sent(sent(truncate::append(worker, out, |_| ())));
        }
    }
    Ok(())
}

fn send_lock(worker: &mut Worker, commit: &Coordinator, at: usize) -> Sent {
    let participant = &commit.plan.participants[at];
    let Some(reply) = participant.reply else {
        return Sent::Lost;
    };
    let out = Outgoing {
        to: participant.machine,
        kind: Kind::Lock,
        sequence: commit.sequence,
        reserved: participant.lock_reserved(),
        acknowledged: None,
    };
    sent(truncate::append(worker, out, |rest| {
        encode_lock(rest, commit, at, reply);
    }))
}

fn sent(appended: Result<(), CallError>) -> Sent {
    match appended {
        Ok(()) => Sent::Yes,
        Err(CallError::Busy) => Sent::Full,
        Err(_) => Sent::Lost,
    }
}

fn encode_lock(out: &mut Vec<u8>, commit: &Coordinator, participant: usize, reply: u64) {
    let objects = commit.plan.objects(participant, &commit.tx);
    record::encode_lock(out, reply, &commit.plan.regions, objects.len());
    for entry in objects {
        let effect = match entry.intent {
            Intent::Allocate => Effect::Allocate,
            // It was reserved, and never is: whoever aborts gives it back as it does what is allocated.
            Intent::Free if !entry.incarnation.is_allocated() && !still_born_leaks() => {
                Effect::Allocate
            }
            Intent::Free => Effect::Free,
            _ => Effect::Write,
        };
        let object = Object {
            address: entry.address,
            class: entry.class,
            version: entry.version,
            incarnation: entry.installed_incarnation(),
            effect,
            payload: commit.tx.payload_of(entry),
        };
        record::encode_object(out, &object);
    }
}

/// The bug that only objects that were to be are given back.
fn still_born_leaks() -> bool {
    mutants::is_on("still-born object not given back on abort")
}

/// Asks a machine whether objects are as they were read.
fn ask_many(
    worker: &mut Worker,
    key: usize,
    commit: &Coordinator,
    machine: MachineId,
    range: Range<usize>,
) -> Result<(), CallError> {
    let mut body = std::mem::take(&mut transactions(worker).asks);
    body.clear();
    for entry in commit.validation.entries(range, &commit.tx) {
        body.extend_from_slice(&entry.address.to_bits().to_le_bytes());
        body.extend_from_slice(&entry.version.get().to_le_bytes());
    }
    let cont = ReplyCont::new(answered, context(key, 0));
    let to = worker.log_poller(machine);
    let asked = to.and_then(|to| worker.call(to, VALIDATE, &[&body], REPLY_BYTES, cont));
    let state = transactions(worker);
    state.asks = body;
    if asked.is_ok() {
        marks::mark("validate: by message");
        state.counters.validates += 1;
    }
    asked
}

/// Notes that all participants may truncate a transaction. Returns whether a timer is to be set for telling them.
fn may_be_truncated(state: &mut Transactions, commit: &Coordinator) -> bool {
    let truncations = &mut state.truncations;
    truncations.end(commit.sequence);
    let participants = commit.plan.participants.iter();
    for participant in participants.filter(|one| one.asked) {
        truncations.note(participant.machine, commit.sequence);
    }
    truncations.wants_timer()
}
