//! Performs the actions of a [`Coordinator`] with the worker, and passes it the events that follow.

use farm_core::fabric::Status;
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::object::VersionWord;
use farm_core::worker::{Cont, ReadResult, Worker};

use super::coordinator::{Action, Blocked, Coordinator, Sent, Settings};
use super::id::{CommitId, CommitPart};
use super::install::install_local;
use super::lock::{lock_local, make_exclusive, unlock_local};
use super::own;
use super::plan::Logged;
use super::reserve::{release_backup, release_reserved, reserve};
use super::steps::{CommitSteps, Steps};
use super::truncate::{self, Outgoing};
use super::validate::{VALIDATE_BYTES, fence, send_validate, validate_local};
use crate::calls::{DeferredResult, WaitingCommit};
use crate::contexts::{checkin, end_of};
use crate::error::{Abort, TxError, lost};
use crate::layer::{Transactions, transactions};
use crate::record::{Kind, fixed_reserved};
use crate::regions;
use crate::results;
use crate::tx::Tx;

/// Begins the commit of a transaction. The continuation is called from the event loop.
pub(crate) fn begin(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    let since = worker.now();
    begin_since(worker, WaitingCommit { tx, cont, since });
}

fn begin_since(worker: &mut Worker, commit: WaitingCommit) {
    let cont = commit.cont;
    let tx = match regions::before_commit(worker, commit, |key| Cont::new(begin_again, key)) {
        Ok(tx) => tx,
        Err(None) => return,
        Err(Some((tx, why))) => return refuse(worker, tx, cont, why),
    };
    let most_in_message = worker.max_message_body() / VALIDATE_BYTES;
    let state = transactions(worker);
    if state.leaving {
        return refuse(worker, tx, cont, TxError::Stopped(None));
    }
    let locks_exclusively = state.locks_exclusively;
    let configuration = state.configuration;
    if tx.configuration != configuration && !tx.entries.is_empty() {
        return refuse(worker, tx, cont, Abort::Reconfigured.into());
    }
    let mut commit = state.spare_commits.pop().unwrap_or_default();
    let mut tx = tx;
    let is_logged = worker.store().replication().logged;
    if is_logged {
        note_blocks(worker, &mut tx);
    }
    let logged = Logged {
        me: worker.me().machine,
        replicas: &|region| worker.store().map().lookup(region),
    };
    let settings = Settings {
        most_in_message,
        locks_exclusively,
        logged: is_logged.then_some(logged),
        configuration,
        survives: worker.survives(),
    };
    let spare = commit.begin(tx, cont, settings);
    let state = transactions(worker);
    state.keep(spare);
    if commit.is_planned {
        if worker.store().is_past(configuration) {
            // Another worker of this machine has begun to change the map: the plan may be that of the next configuration.
            commit.on_reconfigured();
        }
        let state = transactions(worker);
        commit.on_scheduled();
        let id = CommitId(state.commits.insert(Some(commit)) as u32);
        return worker.defer(Cont::new(resume, id));
    }
    let id = CommitId(state.commits.vacant_key() as u32);
    run_local(worker, id, commit);
}

fn begin_again(worker: &mut Worker, key: u64, (): ()) {
    let waiting = &mut transactions(worker).waiting_for_regions;
    let commit = waiting.remove(key as usize);
    begin_since(worker, commit);
}

/// Notes what copies must know of the blocks of new objects of this machine.
fn note_blocks(worker: &Worker, tx: &mut Tx) {
    let store = worker.store();
    let (entries, blocks) = (&tx.entries, &mut tx.blocks);
    let new = entries.iter();
    for entry in new.filter(|entry| entry.machine.is_none() && entry.is_reserved()) {
        blocks.note(store.geometry(), entry.address, || {
            let word = store.block_word(entry.address);
            word.expect("a transaction reserves objects in blocks that exist")
        });
    }
}

/// Aborts a transaction whose commit cannot begin.
#[cold]
fn refuse(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>, why: TxError) {
    checkin(worker, tx);
    let deferred = store_abort(transactions(worker), cont, why);
    worker.defer(deferred);
}

/// Runs a commit whose objects are all on this machine. The commit ends within this call, unless it is so large that it
/// takes several turns.
fn run_local(worker: &mut Worker, id: CommitId, mut commit: Box<Coordinator>) {
    Steps::before_local_commit(worker, &mut commit.tx);
    let blocked = run(worker, id, &mut commit);
    if blocked {
        let stored = transactions(worker).commits.insert(Some(commit));
        debug_assert_eq!(
            stored,
            id.index(),
            "no other commit begins while a local commit runs"
        );
        return;
    }
    let (cont, committed) = commit.local_outcome();
    let reports = !committed || worker.may_report_after_writes();
    let given_up = commit.tx.has_given_up();
    commit.tx.clear();
    end_of(worker, &mut commit.tx);
    let state = transactions(worker);
    let deferred = match committed {
        true => {
            state.counters.count(false, given_up, &Ok(()));
            results::store(state, DeferredResult::Committed(cont))
        }
        false => store_abort(state, cont, commit.take_reason()),
    };
    state.spare_commits.push(commit);
    match reports {
        true => worker.defer(deferred),
        // The machine stops, or waits. Whether the others have the transaction is not known here.
        false => worker.hold(deferred),
    }
}

#[cold]
fn store_abort(
    state: &mut Transactions,
    cont: Cont<Result<(), TxError>>,
    why: TxError,
) -> Cont<()> {
    state.counters.count_failed(&why);
    results::store(state, DeferredResult::NotCommitted(cont, why))
}

pub(super) fn resume(worker: &mut Worker, id: CommitId, (): ()) {
    let mut commit = transactions(worker).take(id);
    commit.on_resumed();
    go_on(worker, id, commit);
}

fn on_lock_reply(worker: &mut Worker, at: CommitPart, reply: Result<&[u8], CallError>) {
    let state = transactions(worker);
    state.counters.lock_replies += u64::from(reply.is_ok());
    let mut commit = state.take(at.commit);
    commit.on_lock_reply(at.part, reply);
    go_on(worker, at.commit, commit);
}

fn on_validate_reply(worker: &mut Worker, id: CommitId, reply: Result<&[u8], CallError>) {
    let mut commit = transactions(worker).take(id);
    commit.on_validate_reply(reply);
    go_on(worker, id, commit);
}

fn on_header(worker: &mut Worker, at: CommitPart, result: ReadResult) {
    let header = result.map(|slot| {
        let header = VersionWord(worker.arena().words(&slot)[0]);
        worker.arena().give(slot);
        header
    });
    let mut commit = transactions(worker).take(at.commit);
    commit.on_header(at.part, header);
    go_on(worker, at.commit, commit);
}

fn on_acknowledged(worker: &mut Worker, at: CommitPart, status: Status) {
    let mut commit = transactions(worker).take(at.commit);
    let first = commit.on_acknowledged(at.part, status);
    Steps::acknowledged(worker, &mut commit, first);
    go_on(worker, at.commit, commit);
}

/// Performs actions until no action is left or an action is blocked. Returns whether an action is blocked; if so,
/// [`resume`] will be called.
fn run(worker: &mut Worker, id: CommitId, commit: &mut Coordinator) -> bool {
    while let Some(action) = commit.next_action() {
        if let Err(blocked) = perform(worker, id, commit, action) {
            wait_for(worker, id, commit, blocked);
            return true;
        }
    }
    false
}

/// Runs a commit, then stores it again, or ends it.
pub(super) fn go_on(worker: &mut Worker, id: CommitId, mut commit: Box<Coordinator>) {
    run(worker, id, &mut commit);
    let outcome = commit.outcome().map(|(cont, result)| match result {
        // The others go on without it.
        Err(TxError::Abort(Abort::Lost(machine))) => (cont, Err(lost(worker, machine).into())),
        result => (cont, result),
    });
    let (distributed, given_up) = (commit.distributed, commit.tx.has_given_up());
    let ended = commit.has_ended();
    if ended {
        commit.tx.clear();
        end_of(worker, &mut commit.tx);
    }
    let state = transactions(worker);
    if let Some((_, result)) = &outcome {
        state.counters.count(distributed, given_up, result);
    }
    match ended {
        true => {
            state.commits.remove(id.index());
            let is_of_this = commit.configuration == state.configuration;
            let finished = is_of_this && commit.is_finished();
            if finished {
                truncate::end(&mut state.truncations, &commit);
            }
            state.spare_commits.push(commit);
            if finished {
                own::truncate(worker);
                truncate::soon(worker);
            }
        }
        false => state.commits[id.index()] = Some(commit),
    }
    if let Some((cont, result)) = outcome {
        if result.is_ok() && !worker.may_report_after_writes() {
            // The machine stops, or waits. Whether the others have the transaction is not known here.
            let held = results::store(transactions(worker), DeferredResult::Committed(cont));
            return worker.hold(held);
        }
        cont.resume(worker, result);
    }
}

/// Schedules [`resume`] for the time when the reason of a blocked action may be gone.
fn wait_for(worker: &mut Worker, id: CommitId, commit: &mut Coordinator, blocked: Blocked) {
    if !commit.on_blocked() {
        return;
    }
    let resumed = Cont::new(resume, id);
    commit.sleeps = blocked == Blocked::Queue;
    match blocked {
        Blocked::Room => worker.when_room(resumed),
        Blocked::Write => worker.when_write_room(resumed),
        Blocked::HeaderSlot => worker.when_header_slot(resumed),
        Blocked::Turn => worker.defer(resumed),
        Blocked::Queue => {}
    }
}

fn perform(
    worker: &mut Worker,
    id: CommitId,
    commit: &mut Coordinator,
    action: Action,
) -> Result<(), Blocked> {
    match action {
        Action::Reserve => {
            let on_reply = |part| ReplyCont::new(on_lock_reply, id.part(part));
            return reserve(worker, id, commit, on_reply, |id| Cont::new(resume, id));
        }
        Action::LockLocal(mode) => {
            commit.on_locked_local(lock_local(worker, &commit.tx, mode));
        }
        Action::MakeExclusive => {
            Steps::before_exclusive(worker, &commit.tx);
            make_exclusive(worker, &commit.tx);
        }
        Action::LogOwn(at, kind) => {
            own::log(worker, commit, at as usize, kind);
            commit.on_own_logged(at, kind);
        }
        Action::SendLock(at) => {
            let sent = send_objects(worker, commit, at as usize, Kind::Lock, None);
            return commit.on_lock_sent(sent);
        }
        Action::SendBackup(at) => {
            let cont = Cont::new(on_acknowledged, id.part(at));
            let sent = send_objects(worker, commit, at as usize, Kind::CommitBackup, Some(cont));
            return commit.on_backup_sent(sent);
        }
        Action::ValidateLocal(range) => {
            if range.start == 0 {
                fence(worker, &commit.tx);
            }
            let validated = validate_local(worker, &commit.tx, range.range());
            return commit.on_validated_local(range, validated);
        }
        Action::SendValidate(machine, range) => {
            let cont = ReplyCont::new(on_validate_reply, id);
            let sent = send_validate(worker, commit, machine, range.range(), cont);
            commit.on_validate_sent(range, sent);
        }
        Action::ReadHeader(at) => {
            let address = commit.tx.entries[at as usize].address;
            let cont = Cont::new(on_header, id.part(at));
            let posted = worker.read_header(address, cont).is_ok();
            transactions(worker).counters.header_reads += u64::from(posted);
            return commit.on_header_posted(at, posted);
        }
        Action::InstallLocal => install_local(worker, &commit.tx),
        Action::UnlockLocal => unlock_local(worker, &commit.tx),
        Action::ReleaseNew => {
            commit.keep_logged();
            commit.tx.abort(worker);
        }
        Action::ReleaseReserved(at) => {
            release_reserved(worker, &mut commit.plan.participants[at as usize]);
        }
        Action::SendEnd(at, kind) => {
            let out = Outgoing {
                to: commit.plan.participants[at as usize].machine,
                kind,
                sequence: commit.sequence,
                reserved: fixed_reserved(),
                acknowledged: Some(Cont::new(on_acknowledged, id.part(at))),
            };
            let sent = append(worker, out, |_| ());
            if kind == Kind::Abort && sent == Sent::Yes {
                release_backup(worker, &commit.plan.participants[at as usize]);
            }
            return commit.on_end_sent(sent);
        }
    }
    Ok(())
}

/// Sends LOCK or COMMIT-BACKUP.
fn send_objects(
    worker: &mut Worker,
    commit: &Coordinator,
    at: usize,
    kind: Kind,
    acknowledged: Option<Cont<Status>>,
) -> Sent {
    let participant = &commit.plan.participants[at];
    let (part, reply) = match kind {
        Kind::Lock => match participant.reply {
            Some(reply) => (&participant.lock, reply),
            None => return Sent::Lost,
        },
        _ => (&participant.backup, 0),
    };
    let out = Outgoing {
        to: participant.machine,
        kind,
        sequence: commit.sequence,
        reserved: part.reserved(),
        acknowledged,
    };
    append(worker, out, |rest| {
        own::encode(rest, commit, at, kind, reply)
    })
}

/// Appends a record, unless others wait for room of the endpoint.
fn append(worker: &mut Worker, out: Outgoing, fill: impl FnOnce(&mut Vec<u8>)) -> Sent {
    if worker.writers_wait() {
        return Sent::Full;
    }
    match truncate::append(worker, out, fill) {
        Ok(()) => Sent::Yes,
        Err(CallError::Busy) => Sent::Full,
        Err(_) => Sent::Lost,
    }
}
