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
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::object::LockMode;
use farm_core::ring::log_record_bytes;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};
use smallvec::SmallVec;

use super::primary::REPLY_BYTES;
use super::truncate::{self, Outgoing};
use super::{here, validate};
use crate::error::{Abort, TxError};
use crate::layer::{give, transactions};
use crate::record::{self, Effect, FIXED_BYTES, Kind, LOCK_BYTES, MOST_TRUNCATED, Object};
use crate::tx::{Entry, Intent, Tx};

/// Bits of a context that tell the parts of one commit apart.
const PART_BITS: u32 = 16;

/// What a step waits for.
pub(super) enum Blocked {
    /// Room in a log, or of the endpoint.
    Room,
    /// A slot for a header that is read.
    HeaderSlot,
}

/// What a commit is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Reserve,
    Lock,
    Validate,
    Commit,
    Abort,
}

/// Another machine whose objects are written.
struct Participant {
    machine: MachineId,
    /// Bytes of the LOCK record after its head.
    rest_bytes: usize,
    /// What LOCK-REPLY will name: from the reservation on, until it has come or cannot come any more.
    reply: Option<u64>,
    /// LOCK is in its log.
    asked: bool,
}

impl Participant {
    fn lock_reserved(&self) -> u32 {
        log_record_bytes(FIXED_BYTES + self.rest_bytes)
    }

    /// For COMMIT-PRIMARY, or ABORT.
    fn end_reserved() -> u32 {
        log_record_bytes(FIXED_BYTES)
    }

    fn reserved(&self) -> u32 {
        self.lock_reserved() + Self::end_reserved() + truncate::reserved_bytes()
    }
}

/// A commit that is under way.
pub(crate) struct Commit {
    pub(super) tx: Box<Tx>,
    cont: Option<Cont<Result<(), TxError>>>,
    sequence: u64,
    step: Step,
    participants: Vec<Participant>,
    /// Ids of all regions that are written.
    regions: Vec<u32>,
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
    /// It is to abort; the first reason is what is told.
    pub(super) fn stop(&mut self, why: TxError) {
        self.why.get_or_insert(why);
    }

    fn go_to(&mut self, step: Step) {
        (self.step, self.next) = (step, 0);
    }
}

/// The context of a continuation for a part of a commit.
pub(super) fn context(key: usize, part: usize) -> u64 {
    debug_assert!(part < 1 << PART_BITS);
    (key as u64) << PART_BITS | part as u64
}

/// The commit and the part that a context is of.
pub(super) fn of_context(context: u64) -> (usize, usize) {
    let part = context & ((1 << PART_BITS) - 1);
    ((context >> PART_BITS) as usize, part as usize)
}

/// Takes a commit out while it is worked on; [`go_on`] puts it back.
pub(super) fn take(worker: &mut Worker, key: usize) -> Box<Commit> {
    let commit = transactions(worker).commits[key].take();
    commit.expect("a commit is worked on once at a time")
}

/// Begins the commit of a transaction that has objects of other machines. The continuation is called from
/// the event loop.
pub(crate) fn begin(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    let mut participants = Vec::new();
    let mut regions = Vec::new();
    for entry in tx.entries.iter().filter(|entry| entry.is_written()) {
        let region = entry.address.region().to_bits();
        if !regions.contains(&region) {
            regions.push(region);
        }
        let Some(machine) = entry.machine else {
            continue;
        };
        let bytes = record::object_bytes(tx.payload_of(entry).len());
        let mut known = participants.iter_mut();
        match known.find(|known: &&mut Participant| known.machine == machine) {
            Some(known) => known.rest_bytes += bytes,
            None => participants.push(Participant {
                machine,
                rest_bytes: bytes,
                reply: None,
                asked: false,
            }),
        }
    }
    for participant in &mut participants {
        participant.rest_bytes += LOCK_BYTES + record::region_bytes(regions.len());
    }
    // One object that was only read is as it was at that moment; more have to be of one moment. What a
    // transaction that has given up found out may be about more than its one object.
    let step = match (regions.is_empty(), tx.entries.len()) {
        (true, 0..=1) if !tx.has_given_up() => Step::Commit,
        (true, _) => Step::Validate,
        (false, _) => Step::Reserve,
    };
    let commit = Box::new(Commit {
        tx,
        cont: Some(cont),
        sequence: 0,
        step,
        participants,
        regions,
        next: 0,
        waiting: 0,
        blocked: false,
        why: None,
        acknowledged: false,
        lost: None,
        locked_here: false,
    });
    let key = transactions(worker).commits.insert(Some(commit));
    worker.defer(Cont::new(resume, key as u64));
}

fn resume(worker: &mut Worker, key: u64, (): ()) {
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
        }
    }
    let tell = outcome(&mut commit);
    let given_up = commit.tx.has_given_up();
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
        counters.count(true, given_up, &result);
        cont.resume(worker, result);
    }
}

type Told = (Cont<Result<(), TxError>>, Result<(), TxError>);

/// What is to be told now, once.
fn outcome(commit: &mut Commit) -> Option<Told> {
    commit.cont?;
    let done = commit.next >= commit.participants.len();
    let result = match commit.step {
        Step::Commit if commit.acknowledged || done && commit.participants.is_empty() => Ok(()),
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
    give(worker, commit.tx);
}

fn may_be_truncated(worker: &mut Worker, commit: &Commit) {
    let state = &mut transactions(worker).truncations;
    state.end(commit.sequence);
    for participant in commit.participants.iter().filter(|one| one.asked) {
        state.note(participant.machine, commit.sequence);
    }
}

/// Does the steps, one after the other, until one has to wait.
fn run(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    loop {
        let before = commit.step;
        match before {
            Step::Reserve => reserve(worker, key, commit)?,
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

/// Reserves at all participants, or at none: what others of this worker wait for is not held.
fn reserve(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    for at in 0..commit.participants.len() {
        let error = match reserve_at(worker, context(key, at), &mut commit.participants[at]) {
            Ok(()) => continue,
            Err(error) => error,
        };
        for before in &mut commit.participants[..at] {
            release_at(worker, before);
        }
        let machine = commit.participants[at].machine;
        if let TxError::Busy = error {
            marks::mark("commit: waits for room in a log");
            truncate::explicitly(worker, machine);
            return Err(Blocked::Room);
        }
        commit.participants.clear();
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
fn release_at(worker: &mut Worker, participant: &mut Participant) {
    worker.release_log(participant.machine, participant.reserved());
    if let Some(reply) = participant.reply.take() {
        worker.forget_reply(reply);
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
    while commit.next < commit.participants.len() && commit.why.is_none() {
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
    let Participant { machine, reply, .. } = commit.participants[at];
    let Some(reply) = reply else {
        commit.stop(Abort::Lost(machine).into());
        return Ok(());
    };
    let mut rest = std::mem::take(&mut transactions(worker).lock);
    encode_lock(&mut rest, commit, machine, reply);
    let sent = truncate::append(
        worker,
        Outgoing {
            to: machine,
            kind: Kind::Lock,
            sequence: commit.sequence,
            rest: &rest,
            reserved: commit.participants[at].lock_reserved(),
            acknowledged: None,
        },
    );
    transactions(worker).lock = rest;
    match sent {
        Ok(()) => {
            commit.participants[at].asked = true;
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

fn encode_lock(out: &mut Vec<u8>, commit: &Commit, machine: MachineId, reply: u64) {
    let there = |entry: &&Entry| entry.machine == Some(machine) && entry.is_written();
    let objects = commit.tx.entries.iter().filter(there);
    out.clear();
    record::encode_lock(out, reply, &commit.regions, objects.clone().count());
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

fn lock_replied(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (key, at) = of_context(context);
    let mut commit = take(worker, key);
    transactions(worker).counters.lock_replies += u64::from(reply.is_ok());
    let participant = &mut commit.participants[at];
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
    if commit.next == 0 && commit.why.is_none() {
        commit.next = 1;
        if let Err(abort) = here::validate(worker, &commit.tx) {
            marks::mark("validate: a local object failed");
            commit.stop(abort.into());
        }
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
    while commit.next < commit.participants.len() {
        let (at, reserved) = (commit.next, Participant::end_reserved());
        let Participant { machine, asked, .. } = commit.participants[at];
        if !asked {
            release_at(worker, &mut commit.participants[at]);
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
            commit.lost = Some(commit.participants[at].machine);
        }
    }
    go_on(worker, key, commit);
}

/// Gives back what was reserved for new objects, but for those that a primary knows of, who does it
/// itself when it aborts.
fn give_back(worker: &mut Worker, commit: &mut Commit) {
    for participant in commit.participants.iter().filter(|one| one.asked) {
        let known = |entry: &&mut Entry| entry.machine == Some(participant.machine);
        let known = commit.tx.entries.iter_mut().filter(known);
        known.for_each(|entry| entry.intent = Intent::Read);
    }
    commit.tx.abort(worker);
}
