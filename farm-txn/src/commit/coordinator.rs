//! Commit of a transaction whose objects lie on any machines (`FaRM'15 §4`, without backups).
//!
//! 0. Reserve room in the log at every machine whose objects are written, for all records that the
//!    transaction will need, and for their answers.
//! 1. LOCK. The objects of this machine are locked, and a record goes to each other primary, which
//!    tries to lock and answers. All locks are exclusive from the start: once it was heard of the
//!    commit, nobody may read an old value.
//! 2. VALIDATE what was read and not written.
//! 3. COMMIT-PRIMARY to each primary, and the objects of this machine are installed. The first
//!    acknowledgement of the fabric is the commit's success. Or else ABORT to each.
//! 4. When all have acknowledged, the transaction may be truncated.
//!
//! A transaction that only read has step 2 alone.
//!
//! Every step can be blocked for want of room, and goes on where it stopped when there may be room. What
//! a step waits for is counted in [`Commit::waiting`]. From the first lock on it needs nothing that
//! somebody could hold who waits for a lock: not a reply's credit, not a slot that a read keeps until it
//! succeeds; else the two would wait for each other.

use farm_core::fabric::Status;
use farm_core::ids::MachineId;
use farm_core::limits::MAX_TRANSACTION_OBJECTS;
use farm_core::messaging::CallError;
use farm_core::object::LockMode;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};
use smallvec::SmallVec;

use super::plan::{Participant, Plan};
use super::queues::TicketId;
use super::truncate::{self, Outgoing};
use super::validate::{self, Validation};
use super::{here, reserve};
use crate::error::{Abort, TxError};
use crate::layer::{end_of, transactions};
use crate::record::{self, Effect, Kind, Object};
use crate::tx::{Intent, Tx};

/// Bits of a context that tell the parts of one commit apart: its participants, or its entries.
const PART_BITS: u32 = 32;
// A transaction has no more entries than that.
const _: () = assert!((MAX_TRANSACTION_OBJECTS as u64) < 1 << PART_BITS);

/// Entries whose objects lie on the coordinator's machine that are validated in one turn.
pub(crate) const HERE_AT_ONCE: usize = 4096;

/// What a step waits for.
pub(super) enum Blocked {
    /// Room in a log, or of the endpoint.
    Room,
    /// A slot for a header that is read.
    HeaderSlot,
    /// The next turn: this one has done enough.
    Turn,
    /// Room in a log that others get first: they wake it.
    Others,
}

/// What a commit is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Step {
    #[default]
    Reserve,
    Lock,
    Validate,
    Commit,
    Abort,
}

/// A commit that is under way, or a spare one.
#[derive(Default)]
pub(crate) struct Commit {
    pub(super) tx: Box<Tx>,
    cont: Option<Cont<Result<(), TxError>>>,
    /// It has objects of other machines.
    distributed: bool,
    pub(super) sequence: u64,
    step: Step,
    /// It waits for room in logs, in the order of those who do.
    pub(super) ticket: Option<TicketId>,
    pub(super) plan: Plan,
    pub(super) validation: Validation,
    /// Participants with which the step is done.
    next: usize,
    /// Answers that have not come.
    pub(super) waiting: u32,
    /// It will be gone on with when there may be room.
    blocked: bool,
    /// Why it aborts.
    why: Option<TxError>,
    /// Somebody acknowledged COMMIT-PRIMARY.
    acknowledged: bool,
    /// The machine that was lost before it did.
    lost: Option<MachineId>,
    /// The objects of this machine are locked.
    locked_here: bool,
}

impl Commit {
    /// Becomes the commit of a transaction, in the memory that it has. Returns the context that it had before, of
    /// which nothing is left but memory.
    fn begin(&mut self, new: Box<Tx>, told: Cont<Result<(), TxError>>) -> Box<Tx> {
        // Every field is named, so that none keeps what it was.
        let Self {
            tx,
            cont,
            distributed,
            sequence,
            step,
            ticket,
            plan,
            validation,
            next,
            waiting,
            blocked,
            why,
            acknowledged,
            lost,
            locked_here,
        } = self;
        let spare = std::mem::replace(tx, new);
        plan.fill(tx);
        validation.reset();
        // One object that was only read is as it was at that moment; more have to be of one moment. What a
        // transaction that has given up found out may be about more than its one object.
        *step = match (plan.only_reads(), tx.entries.len()) {
            (true, 0..=1) if !tx.has_given_up() => Step::Commit,
            (true, _) => Step::Validate,
            (false, _) => Step::Reserve,
        };
        *distributed = tx.is_distributed();
        *cont = Some(told);
        (*sequence, *next, *waiting) = (0, 0, 0);
        (*ticket, *why, *lost) = (None, None, None);
        (*blocked, *acknowledged, *locked_here) = (false, false, false);
        spare
    }

    /// It is to abort; the first reason is what is told.
    pub(super) fn stop(&mut self, why: TxError) {
        self.why.get_or_insert(why);
    }

    /// Whether it is to abort.
    pub(super) fn stops(&self) -> bool {
        self.why.is_some()
    }

    pub(super) fn go_to(&mut self, step: Step) {
        (self.step, self.next) = (step, 0);
    }
}

/// The context of a continuation for a part of a commit.
pub(super) fn context(key: usize, part: usize) -> u64 {
    debug_assert!(part < 1 << PART_BITS && key < 1 << (u64::BITS - PART_BITS));
    (key as u64) << PART_BITS | part as u64
}

/// The commit and the part that a context is of.
pub(super) fn of_context(context: u64) -> (usize, usize) {
    let part = context & ((1 << PART_BITS) - 1);
    ((context >> PART_BITS) as usize, part as usize)
}

/// Takes a commit out while it is worked on; [`go_on`] puts it back.
pub(super) fn take(worker: &mut Worker, key: usize) -> Box<Commit> {
    transactions(worker).take(key)
}

/// Begins the commit of a transaction that has objects of other machines, or many of this one. The continuation is
/// called from the event loop.
pub(crate) fn begin(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    let state = transactions(worker);
    let mut commit = state.spare_commits.pop().unwrap_or_default();
    state.keep(commit.begin(tx, cont));
    let key = state.commits.insert(Some(commit));
    worker.defer(Cont::new(resume, key as u64));
}

pub(super) fn resume(worker: &mut Worker, key: u64, (): ()) {
    let mut commit = take(worker, key as usize);
    commit.blocked = false;
    go_on(worker, key as usize, commit);
}

/// Goes as far as can be gone, and puts the commit back, or ends it.
pub(super) fn go_on(worker: &mut Worker, key: usize, mut commit: Box<Commit>) {
    if let Err(blocked) = run(worker, key, &mut commit)
        && !commit.blocked
    {
        marks::mark("commit: blocked");
        commit.blocked = true;
        let resumed = Cont::new(resume, key as u64);
        match blocked {
            Blocked::Room => worker.when_room(resumed),
            Blocked::HeaderSlot => worker.when_header_slot(resumed),
            Blocked::Turn => worker.defer(resumed),
            Blocked::Others => {}
        }
    }
    let tell = outcome(&mut commit);
    let (distributed, given_up) = (commit.distributed, commit.tx.has_given_up());
    let told = match &tell {
        Some((_, Ok(()))) => std::mem::take(&mut commit.tx.when_committed),
        _ => SmallVec::new(),
    };
    if commit.cont.is_none() && commit.waiting == 0 && !commit.blocked {
        finish(worker, key, commit);
    } else {
        transactions(worker).commits[key] = Some(commit);
    }
    for cont in told {
        cont.resume(worker, ());
    }
    if let Some((cont, result)) = tell {
        let counters = &mut transactions(worker).counters;
        counters.count(distributed, given_up, &result);
        cont.resume(worker, result);
    }
}

type Told = (Cont<Result<(), TxError>>, Result<(), TxError>);

/// What is to be told now, once.
fn outcome(commit: &mut Commit) -> Option<Told> {
    commit.cont?;
    let done = commit.next >= commit.plan.participants.len();
    let result = match commit.step {
        Step::Commit if commit.acknowledged || done && commit.plan.participants.is_empty() => {
            Ok(())
        }
        Step::Commit if done && commit.waiting == 0 => {
            let machine = commit.lost.expect("nobody acknowledged it");
            Err(TxError::InDoubt(machine))
        }
        Step::Abort if done => Err(commit.why.take().expect("it aborts for a reason")),
        _ => return None,
    };
    Some((commit.cont.take()?, result))
}

/// Every answer has come.
fn finish(worker: &mut Worker, key: usize, mut commit: Box<Commit>) {
    transactions(worker).commits.remove(key);
    if commit.sequence != 0 {
        may_be_truncated(worker, &commit);
        truncate::soon(worker);
    }
    commit.tx.clear();
    end_of(worker, &mut commit.tx);
    transactions(worker).spare_commits.push(commit);
}

fn may_be_truncated(worker: &mut Worker, commit: &Commit) {
    let state = &mut transactions(worker).truncations;
    state.end(commit.sequence);
    for participant in commit.plan.participants.iter().filter(|one| one.asked) {
        state.note(participant.machine, commit.sequence);
    }
}

/// Does the steps, one after the other, until one has to wait.
fn run(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    loop {
        let before = commit.step;
        match before {
            Step::Reserve => reserve::reserve(worker, key, commit)?,
            Step::Lock => lock(worker, commit)?,
            Step::Validate => validate(worker, key, commit)?,
            Step::Commit => return end(worker, key, commit, Kind::CommitPrimary),
            Step::Abort => return end(worker, key, commit, Kind::Abort),
        }
        if commit.step == before {
            return Ok(());
        }
    }
}

fn lock(worker: &mut Worker, commit: &mut Commit) -> Result<(), Blocked> {
    if !commit.locked_here && commit.why.is_none() {
        match here::lock(worker, &commit.tx, LockMode::Exclusive) {
            Ok(()) => commit.locked_here = true,
            Err(abort) => {
                marks::mark("commit: a local lock failed");
                commit.stop(abort.into());
            }
        }
    }
    while commit.next < commit.plan.participants.len() && commit.why.is_none() {
        send_lock(worker, commit)?;
    }
    let missing = u32::from(mutants::is_on("commit with one reply missing"));
    if commit.why.is_some() && commit.waiting == 0 {
        commit.go_to(Step::Abort);
    } else if commit.why.is_none() && commit.waiting <= missing {
        let validated = mutants::is_on("validate before all locks");
        commit.go_to(if validated {
            Step::Commit
        } else {
            Step::Validate
        });
    }
    Ok(())
}

/// LOCK to the next participant.
fn send_lock(worker: &mut Worker, commit: &mut Commit) -> Result<(), Blocked> {
    let at = commit.next;
    let Participant { machine, reply, .. } = commit.plan.participants[at];
    let Some(reply) = reply else {
        commit.stop(Abort::Lost(machine).into());
        return Ok(());
    };
    let mut rest = std::mem::take(&mut transactions(worker).lock);
    encode_lock(&mut rest, commit, at, reply);
    let sent = truncate::append(
        worker,
        Outgoing {
            to: machine,
            kind: Kind::Lock,
            sequence: commit.sequence,
            rest: &rest,
            reserved: commit.plan.participants[at].lock_reserved(),
            acknowledged: None,
        },
    );
    transactions(worker).lock = rest;
    match sent {
        Ok(()) => {
            commit.plan.participants[at].asked = true;
            commit.waiting += 1;
            commit.next += 1;
            Ok(())
        }
        Err(CallError::Busy) => Err(Blocked::Room),
        Err(_) => {
            commit.stop(Abort::Lost(machine).into());
            Ok(())
        }
    }
}

fn encode_lock(out: &mut Vec<u8>, commit: &Commit, participant: usize, reply: u64) {
    let objects = commit.plan.objects(participant, &commit.tx);
    out.clear();
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

pub(super) fn lock_replied(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (key, at) = of_context(context);
    let state = transactions(worker);
    state.counters.lock_replies += u64::from(reply.is_ok());
    let mut commit = state.take(key);
    let participant = &mut commit.plan.participants[at];
    participant.reply = None;
    // If LOCK was not sent, the machine is lost: that is found when it is to be.
    commit.waiting -= u32::from(participant.asked);
    if let Err(error) = validate::verdict(&commit.tx, reply)
        && matches!(commit.step, Step::Lock)
    {
        commit.stop(error);
    }
    go_on(worker, key, commit);
}

fn validate(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    if commit.why.is_none() {
        validate_here(worker, commit)?;
    }
    if commit.why.is_none() {
        validate::ask(worker, key, commit)?;
    }
    if commit.waiting > u32::from(mutants::is_on("commit with one reply missing")) {
        return Ok(());
    }
    let unlocked = mutants::is_on("validate before all locks") && !commit.locked_here;
    commit.go_to(match commit.why {
        Some(_) => Step::Abort,
        None if unlocked && commit.sequence != 0 => Step::Lock,
        None => Step::Commit,
    });
    Ok(())
}

/// Validates the objects of this machine, those of as many entries as one turn has time for.
fn validate_here(worker: &mut Worker, commit: &mut Commit) -> Result<(), Blocked> {
    let (from, all) = (commit.validation.here, commit.tx.entries.len());
    if from == all {
        return Ok(());
    }
    if from == 0 {
        here::fence(worker, &commit.tx);
    }
    let until = all.min(from + HERE_AT_ONCE);
    commit.validation.here = until;
    if let Err(abort) = here::validate(worker, &commit.tx, from..until) {
        marks::mark("validate: a local object failed");
        commit.stop(abort.into());
        return Ok(());
    }
    match until == all {
        true => Ok(()),
        false => Err(Blocked::Turn),
    }
}

/// COMMIT-PRIMARY or ABORT to every participant that was asked to lock, and the same here.
fn end(worker: &mut Worker, key: usize, commit: &mut Commit, kind: Kind) -> Result<(), Blocked> {
    if std::mem::take(&mut commit.locked_here) {
        match kind {
            Kind::CommitPrimary => here::install(worker, &commit.tx),
            _ => here::unlock(worker, &commit.tx),
        }
    }
    if kind == Kind::Abort && commit.next == 0 {
        give_back(worker, commit);
    }
    while commit.next < commit.plan.participants.len() {
        let (at, reserved) = (commit.next, Participant::end_reserved());
        let Participant { machine, asked, .. } = commit.plan.participants[at];
        if !asked {
            reserve::release_at(worker, &mut commit.plan.participants[at]);
            commit.next += 1;
            continue;
        }
        let out = Outgoing {
            to: machine,
            kind,
            sequence: commit.sequence,
            rest: &[],
            reserved,
            acknowledged: Some(Cont::new(acknowledged, context(key, at))),
        };
        match truncate::append(worker, out) {
            Ok(()) => commit.waiting += 1,
            Err(CallError::Busy) => return Err(Blocked::Room),
            Err(_) => commit.lost = Some(machine),
        }
        commit.next += 1;
    }
    Ok(())
}

/// A record is in the memory of a primary, or its machine is lost.
fn acknowledged(worker: &mut Worker, context: u64, status: Status) {
    let (key, at) = of_context(context);
    let mut commit = take(worker, key);
    commit.waiting -= 1;
    match status {
        Status::Ok => {
            let first = !std::mem::replace(&mut commit.acknowledged, true);
            if first && mutants::is_on("truncate before all primaries acknowledged") {
                may_be_truncated(worker, &commit);
                truncate::soon(worker);
                commit.sequence = 0;
            }
        }
        Status::Torn | Status::Broken => {
            marks::mark("commit: a primary was lost");
            commit.lost = Some(commit.plan.participants[at].machine);
        }
    }
    go_on(worker, key, commit);
}

/// Gives back what was reserved for new objects, but for those that a primary knows of, who does it
/// itself when it aborts.
fn give_back(worker: &mut Worker, commit: &mut Commit) {
    let Commit { plan, tx, .. } = commit;
    if tx.is_empty() {
        // It was done before the first record found no room.
        return;
    }
    let all = plan.participants.iter().enumerate();
    for (at, _) in all.filter(|(_, participant)| participant.asked) {
        for index in plan.of_participant(at) {
            tx.entries[*index as usize].intent = Intent::Read;
        }
    }
    commit.tx.abort(worker);
}
