//! Commit of a transaction whose objects lie on any machines (`FaRM'15 §4`, without backups), as a value: events go in
//! (`on_…`), actions come out ([`Coordinator::next_action`]). [`drive`](super::drive) performs them with the worker.
//!
//! 0. Reserve room in the log at every machine whose objects are written, for all records that the
//!    transaction will need, and for their answers.
//! 1. LOCK. The objects of this machine are locked, and a record goes to each other primary, which
//!    tries to lock and answers. All locks are exclusive from the start: once the commit may have been reported,
//!    no old value may be read.
//! 2. VALIDATE what was read and not written.
//! 3. COMMIT-PRIMARY to each primary, and the objects of this machine are installed. The first
//!    acknowledgement of the fabric is the commit's success. Or else ABORT to each.
//! 4. When all have acknowledged, the transaction may be truncated.
//!
//! A transaction that only read has step 2 alone.
//!
//! | step | does | goes on to | when |
//! |---|---|---|---|
//! | Reserve | [`Action::Reserve`] | Lock | there is room everywhere |
//! | | | Abort | a machine is lost, or a record would be too large |
//! | Lock | [`Action::LockHere`], [`Action::Lock`] | Validate | all have answered that they hold the locks |
//! | | | Abort | one has not, and all have answered |
//! | Validate | [`Action::ValidateHere`], [`Action::AskMany`], [`Action::ReadHeader`] | Commit | nothing has changed |
//! | | | Abort | something has, and all answers have come |
//! | Commit | [`Action::InstallHere`], [`Action::End`] | the end | all have acknowledged |
//! | Abort | [`Action::UnlockHere`], [`Action::GiveBack`], [`Action::Release`], [`Action::End`] | the end | all have acknowledged |
//!
//! An action can be blocked for want of room; it is asked for again when there may be some. From the first lock on the
//! commit needs nothing that could be held by one that waits for a lock: not a reply's credit, not a slot that a read
//! keeps until it succeeds; else the two would wait for each other.

use std::ops::Range;

use farm_core::fabric::Status;
use farm_core::ids::MachineId;
use farm_core::limits::MAX_TRANSACTION_OBJECTS;
use farm_core::messaging::CallError;
use farm_core::object::VersionWord;
use farm_core::worker::{Cont, ReadError};
use farm_core::{marks, mutants};

use super::plan::Plan;
use super::queues::TicketId;
use super::validate::{Validation, verdict};
use super::{conflict, is_unchanged};
use crate::error::{Abort, TxError};
use crate::record::Kind;
use crate::tx::{Intent, Tx};

/// Bits of a context that tell the parts of one commit apart: its participants, or its entries.
const PART_BITS: u32 = 32;
// A transaction has no more entries than that.
const _: () = assert!((MAX_TRANSACTION_OBJECTS as u64) < 1 << PART_BITS);

/// Entries whose objects lie on the coordinator's machine that are validated in one turn.
pub(crate) const HERE_AT_ONCE: usize = 4096;

/// The continuation of a commit, and its outcome.
pub(super) type Told = (Cont<Result<(), TxError>>, Result<(), TxError>);

/// What is to be done next. The method that is named takes the answer, before the next action is asked for.
///
/// It fits two registers: in memory, it would be read right after it was written, in other pieces, which stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Reserve room in the logs of all participants, or in none: [`Coordinator::on_reserved`], or
    /// [`Coordinator::on_refused`].
    Reserve,
    /// Lock the objects of this machine: [`Coordinator::on_locked_here`].
    LockHere,
    /// LOCK to a participant: [`Coordinator::on_lock_sent`].
    Lock(u32),
    /// Validate the objects of this machine among these entries: [`Coordinator::on_validated_here`].
    ValidateHere(Part),
    /// Ask a machine about these of the grouped entries by one message: [`Coordinator::on_asked`].
    AskMany(MachineId, Part),
    /// Read the header of an entry's object: [`Coordinator::on_header_asked`].
    ReadHeader(u32),
    /// Install what was written on this machine.
    InstallHere,
    /// Unlock it.
    UnlockHere,
    /// Give back what was reserved for new objects.
    GiveBack,
    /// Give back what was reserved in the log of a participant that was not asked to lock.
    Release(u32),
    /// COMMIT-PRIMARY or ABORT to a participant: [`Coordinator::on_end_sent`].
    End(u32, Kind),
}

const _: () = assert!(size_of::<Option<Action>>() <= 16);

/// Entries from one on, up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: u32,
    pub(super) until: u32,
}

impl Part {
    pub(super) fn range(self) -> Range<usize> {
        self.from as usize..self.until as usize
    }
}

impl From<Range<usize>> for Part {
    fn from(range: Range<usize>) -> Self {
        // A transaction has fewer entries than 2^32, as contexts need it, too.
        Self {
            from: range.start as u32,
            until: range.end as u32,
        }
    }
}

/// What an action waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// Room in a log, or of the endpoint.
    Room,
    /// A slot for a header that is read.
    HeaderSlot,
    /// The next turn: this one has done enough.
    Turn,
    /// Room in a log that other commits get first: they wake this one.
    Others,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is on its way.
    Yes,
    /// There was no room for it.
    Full,
    /// The machine is lost.
    Lost,
}

/// What a commit is at: see the table of the [module](self).
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
pub(crate) struct Coordinator {
    pub(super) tx: Box<Tx>,
    cont: Option<Cont<Result<(), TxError>>>,
    /// It has objects of other machines.
    pub(super) distributed: bool,
    /// Its number, from the reservation on; 0 before it, and of one that only reads.
    pub(super) sequence: u64,
    step: Step,
    /// It waits for room in logs, in the order of those who do.
    pub(super) ticket: Option<TicketId>,
    pub(super) plan: Plan,
    pub(super) validation: Validation,
    /// Participants with which the step is done.
    next: usize,
    /// Answers that have not come.
    waiting: u32,
    /// An action is blocked, and [`Coordinator::on_resumed`] is to come.
    blocked: bool,
    /// Why it aborts.
    why: Option<TxError>,
    /// A participant acknowledged COMMIT-PRIMARY.
    acknowledged: bool,
    /// The machine that was lost before it did.
    lost: Option<MachineId>,
    /// The objects of this machine are locked.
    locked_here: bool,
}

impl Coordinator {
    /// Becomes the commit of a transaction, in the memory that it has. A message asks for at most `most_asked`
    /// objects. Returns the empty context that it had before, whose memory can be used again.
    pub(super) fn begin(
        &mut self,
        new: Box<Tx>,
        told: Cont<Result<(), TxError>>,
        most_asked: usize,
    ) -> Box<Tx> {
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
        validation.reset(most_asked);
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

    /// What to do next, or nothing until something happens.
    #[inline]
    pub(super) fn next_action(&mut self) -> Option<Action> {
        loop {
            let before = self.step;
            let action = match before {
                Step::Reserve => Some(Action::Reserve),
                Step::Lock => self.next_of_lock(),
                Step::Validate => self.next_of_validate(),
                Step::Commit => self.next_of_end(Kind::CommitPrimary),
                Step::Abort => self.next_of_end(Kind::Abort),
            };
            if action.is_some() || self.step == before {
                return action;
            }
        }
    }

    fn next_of_lock(&mut self) -> Option<Action> {
        if !self.stops() {
            if !self.locked_here {
                return Some(Action::LockHere);
            }
            if self.next < self.plan.participants.len() {
                return Some(Action::Lock(self.next as u32));
            }
        }
        if self.stops() && self.waiting == 0 {
            self.go_to(Step::Abort);
        } else if !self.stops() && self.waiting <= missing() {
            self.go_to(match validates_early() {
                true => Step::Commit,
                false => Step::Validate,
            });
        }
        None
    }

    fn next_of_validate(&mut self) -> Option<Action> {
        if !self.stops() {
            let (from, all) = (self.validation.here, self.tx.entries.len());
            if from < all {
                let part = from..all.min(from + HERE_AT_ONCE);
                return Some(Action::ValidateHere(part.into()));
            }
            let asked = self.validation.next_group(&self.plan, &self.tx);
            if let Some((machine, range)) = asked {
                return Some(Action::AskMany(machine, range.into()));
            }
            if let Some(at) = self.validation.next_header(&self.plan, &self.tx) {
                return Some(Action::ReadHeader(at as u32));
            }
        }
        if self.waiting <= missing() {
            let unlocked = validates_early() && !self.locked_here;
            self.go_to(match self.why {
                Some(_) => Step::Abort,
                None if unlocked && self.sequence != 0 => Step::Lock,
                None => Step::Commit,
            });
        }
        None
    }

    fn next_of_end(&mut self, kind: Kind) -> Option<Action> {
        let commits = kind == Kind::CommitPrimary;
        if std::mem::take(&mut self.locked_here) {
            return Some(match commits {
                true => Action::InstallHere,
                false => Action::UnlockHere,
            });
        }
        if !commits && self.next == 0 && !self.tx.is_empty() {
            return Some(Action::GiveBack);
        }
        let at = self.next;
        let participant = self.plan.participants.get(at)?;
        match participant.asked {
            true => Some(Action::End(at as u32, kind)),
            false => {
                self.next += 1;
                Some(Action::Release(at as u32))
            }
        }
    }

    /// There is room in all logs, for the transaction of this number.
    #[inline]
    pub(super) fn on_reserved(&mut self, sequence: u64) {
        self.sequence = sequence;
        self.go_to(match validates_early() {
            true => Step::Validate,
            false => Step::Lock,
        });
    }

    /// There will be no room in a log. Nothing was reserved anywhere.
    #[inline]
    pub(super) fn on_refused(&mut self, why: TxError) {
        self.plan.participants.clear();
        self.stop(why);
        self.go_to(Step::Abort);
    }

    #[inline]
    pub(super) fn on_locked_here(&mut self, result: Result<(), Abort>) {
        match result {
            Ok(()) => self.locked_here = true,
            Err(abort) => {
                marks::mark("commit: a local lock failed");
                self.stop(abort.into());
            }
        }
    }

    #[inline]
    pub(super) fn on_lock_sent(&mut self, sent: Sent) -> Result<(), Blocked> {
        let participant = &mut self.plan.participants[self.next];
        match sent {
            Sent::Full => return Err(Blocked::Room),
            Sent::Lost => {
                let machine = participant.machine;
                self.stop(Abort::Lost(machine).into());
            }
            Sent::Yes => {
                participant.asked = true;
                self.waiting += 1;
                self.next += 1;
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn on_validated_here(
        &mut self,
        part: Part,
        result: Result<(), Abort>,
    ) -> Result<(), Blocked> {
        let until = part.until as usize;
        self.validation.here = until;
        match result {
            Err(abort) => {
                marks::mark("validate: a local object failed");
                self.stop(abort.into());
            }
            Ok(()) if until < self.tx.entries.len() => return Err(Blocked::Turn),
            Ok(()) => {}
        }
        Ok(())
    }

    /// If there is no room for the message now, its objects are validated one by one: the transactions that the room is
    /// waiting for could wait for the locks of this one.
    #[inline]
    pub(super) fn on_asked(&mut self, part: Part, result: Result<(), CallError>) {
        let range = part.range();
        match result {
            Ok(()) => {
                self.waiting += 1;
                self.validation.were_asked(range);
            }
            Err(CallError::PeerLost(machine)) => self.stop(Abort::Lost(machine).into()),
            Err(_) => self.validation.not_asked(range),
        }
    }

    #[inline]
    pub(super) fn on_header_asked(&mut self, at: u32, has_slot: bool) -> Result<(), Blocked> {
        if !has_slot {
            self.validation.ask_again(at);
            return Err(Blocked::HeaderSlot);
        }
        self.validation.header_asked();
        self.waiting += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn on_end_sent(&mut self, sent: Sent) -> Result<(), Blocked> {
        match sent {
            Sent::Full => return Err(Blocked::Room),
            Sent::Yes => self.waiting += 1,
            Sent::Lost => self.lost = Some(self.plan.participants[self.next].machine),
        }
        self.next += 1;
        Ok(())
    }

    /// LOCK-REPLY came, or its machine is lost.
    #[inline]
    pub(super) fn on_lock_reply(&mut self, at: usize, reply: Result<&[u8], CallError>) {
        let participant = &mut self.plan.participants[at];
        participant.reply = None;
        // If LOCK was not sent, the machine is lost: that is found when it is to be.
        self.waiting -= u32::from(participant.asked);
        if let Err(error) = verdict(&self.tx, reply)
            && self.step == Step::Lock
        {
            self.stop(error);
        }
    }

    /// A machine has answered which of its objects are as they were read.
    #[inline]
    pub(super) fn on_answer(&mut self, reply: Result<&[u8], CallError>) {
        self.waiting -= 1;
        if let Err(error) = verdict(&self.tx, reply) {
            self.stop(error);
        }
    }

    /// The header of an entry's object came.
    #[inline]
    pub(super) fn on_header(&mut self, at: usize, header: Result<VersionWord, ReadError>) {
        self.waiting -= 1;
        self.validation.header_came();
        let (address, read) = {
            let entry = &self.tx.entries[at];
            (entry.address, entry.version)
        };
        match header {
            Ok(now) if is_unchanged(now, read) => {}
            Ok(now) => {
                marks::mark("validate: a header failed");
                self.stop(conflict(now, read, address).into());
            }
            // It was refused for want of room.
            Err(ReadError::Busy) => self.validation.ask_again(at as u32),
            Err(ReadError::PeerLost(machine)) => self.stop(Abort::Lost(machine).into()),
            Err(_) => self.stop(Abort::Changed(address).into()),
        }
    }

    /// COMMIT-PRIMARY or ABORT is in the memory of a primary, or its machine is lost. Returns whether it is the first.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, at: usize, status: Status) -> bool {
        self.waiting -= 1;
        match status {
            Status::Ok => !std::mem::replace(&mut self.acknowledged, true),
            Status::Torn | Status::Broken => {
                marks::mark("commit: a primary was lost");
                self.lost = Some(self.plan.participants[at].machine);
                false
            }
        }
    }

    /// An action is blocked. Returns whether that is new: then [`Coordinator::on_resumed`] is to be called.
    #[inline]
    pub(super) fn on_blocked(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.blocked, true);
        if is_new {
            marks::mark("commit: blocked");
        }
        is_new
    }

    /// What an action was blocked for may be there.
    #[inline]
    pub(super) fn on_resumed(&mut self) {
        self.blocked = false;
    }

    /// The outcome, once it is known and before it has been reported: `Some` once.
    pub(super) fn outcome(&mut self) -> Option<Told> {
        self.cont?;
        let done = self.next >= self.plan.participants.len();
        let result = match self.step {
            Step::Commit if self.acknowledged || done && self.plan.participants.is_empty() => {
                Ok(())
            }
            Step::Commit if done && self.waiting == 0 => {
                let machine = self
                    .lost
                    .expect("a commit that was not acknowledged lost a machine");
                Err(TxError::InDoubt(machine))
            }
            Step::Abort if done => Err(self.why.take().expect("it aborts for a reason")),
            _ => return None,
        };
        Some((self.cont.take()?, result))
    }

    /// Whether the outcome was reported, and every answer has come.
    pub(super) fn has_ended(&self) -> bool {
        self.cont.is_none() && self.waiting == 0 && !self.blocked
    }

    /// New objects that a primary was asked to lock are not given back by this machine: the primary does that when it
    /// aborts.
    pub(super) fn keep_what_primaries_know(&mut self) {
        let Self { plan, tx, .. } = self;
        let all = plan.participants.iter().enumerate();
        for (at, _) in all.filter(|(_, participant)| participant.asked) {
            for index in plan.of_participant(at) {
                tx.entries[*index as usize].intent = Intent::Read;
            }
        }
    }

    /// It is to abort; the first reason is the one that is reported.
    fn stop(&mut self, why: TxError) {
        self.why.get_or_insert(why);
    }

    /// Whether it is to abort.
    fn stops(&self) -> bool {
        self.why.is_some()
    }

    fn go_to(&mut self, step: Step) {
        (self.step, self.next) = (step, 0);
    }
}

/// Answers that a commit goes on without: none, but for the bug.
fn missing() -> u32 {
    u32::from(mutants::is_on("commit with one reply missing"))
}

fn validates_early() -> bool {
    mutants::is_on("validate before all locks")
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

#[cfg(test)]
mod tests;
