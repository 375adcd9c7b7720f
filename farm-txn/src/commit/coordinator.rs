//! The coordinator of a commit (`FaRM'15 §4`) as a value: events go in (`on_…`), actions come out
//! ([`Coordinator::next_action`]); [`drive`](super::drive) performs them with the worker.
//!
//! 0. Reserve room in the log at every machine whose objects are written, for all records that the
//!    transaction will need, and for their replies.
//! 1. LOCK. The objects of this machine are locked, and a record is sent to each other primary, which
//!    locks its objects and replies. All locks are exclusive from the start: once the commit may have been reported,
//!    no read may return an old value.
//! 2. VALIDATE the objects that were read and not written.
//! 3. COMMIT-BACKUP to each machine that keeps copies of written objects. All must acknowledge, because from the next step on
//!    others see the changes. After the first of these records, a coordinator never aborts by itself.
//! 4. COMMIT-PRIMARY to each primary; the objects of this machine are installed. The first acknowledgement of the
//!    fabric is the commit's success. If a step before 3 has failed, ABORT is sent to each primary that received LOCK.
//! 5. When all have acknowledged, the transaction may be truncated.
//!
//! If commits are logged, every transaction that writes has these steps, and the objects and copies of this machine have
//! records in the worker's own log: LOCK before the first lock, COMMIT-BACKUP in step 3, and COMMIT-PRIMARY before the objects are
//! installed, which counts as the first acknowledgement; ABORT before they are unlocked. They are there at once.
//!
//! Lock-free reads pass the locks until step 3 has ended if all objects are on this machine and every one is written. Nothing is
//! validated then, and nothing is reported before the locks are exclusive (docs/decisions/0037).
//!
//! A transaction that only read has step 2 alone. If commits are not logged, a transaction whose objects are all on this machine
//! needs no message and no log record, and steps 1, 2 and 4 are performed in one turn (`FaRM'14 §3.4`):
//!
//! 1. Its locks are taken in the mode that lets lock-free reads pass. When *all* are held, they are made exclusive, so
//!    that no lock-free read sees a new object and then an old one. A single lock is exclusive from the start.
//! 2. Validation follows, after a sequentially consistent fence ([`validate`](super::validate)). It must not begin
//!    before the locks are exclusive: otherwise a validated object could be overwritten, and the new value reported,
//!    while lock-free reads still return the values that this transaction is about to replace (docs/decisions/0007).
//! 3. The objects are installed.
//!
//! The table of the steps is in `next`.
//!
//! If there is no room for an action, the action is blocked, and is returned again when there may be room. After its
//! first lock a commit waits for no resource that a transaction may hold while it waits for one of these locks: neither
//! for reply credit, nor for an arena slot that a read keeps until it succeeds. Otherwise the two transactions would
//! wait for each other.

mod action;
mod next;

use farm_core::fabric::Status;
use farm_core::ids::MachineId;
use farm_core::messaging::CallError;
use farm_core::object::{LockMode, VersionWord};
use farm_core::worker::{Cont, ReadError};
use farm_core::{marks, mutants};

pub(super) use self::action::{Action, Blocked, EntryRange, Sent};
use super::plan::{Logged, Participant, Plan};
use super::queues::TicketId;
use super::reply::verdict;
use super::validation::Validation;
use super::{conflict, is_unchanged};
use crate::error::{Abort, TxError};
use crate::record::Kind;
use crate::recovery::Decision;
use crate::tx::{Intent, Tx};

/// The continuation of a commit, and its outcome.
pub(super) type Told = (Cont<Result<(), TxError>>, Result<(), TxError>);

/// The step of a commit: see the table of [`next`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Step {
    #[default]
    Reserve,
    Lock,
    Validate,
    Backup,
    Commit,
    Abort,
}

/// A commit that is under way, or a spare one.
#[derive(Default)]
pub(crate) struct Coordinator {
    pub(super) tx: Box<Tx>,
    cont: Option<Cont<Result<(), TxError>>>,
    /// Whether the transaction has objects of other machines.
    pub(super) distributed: bool,
    /// Whether the commit writes records, or sends messages: it takes several turns.
    pub(super) is_planned: bool,
    /// Whether COMMIT-PRIMARY or ABORT was appended to the own log.
    own_ended: bool,
    /// The transaction's number, from the reservation on; 0 before the reservation, and for a transaction that sends no
    /// record.
    pub(super) sequence: u64,
    step: Step,
    /// The commit's ticket in the queues for room in logs, while it waits there.
    pub(super) ticket: Option<TicketId>,
    pub(super) plan: Plan,
    pub(super) validation: Validation,
    /// Entries before this index whose objects are on this machine are unchanged.
    validated: usize,
    /// Number of participants that this step has handled.
    next: usize,
    /// Number of replies, header reads and acknowledgements that are outstanding.
    waiting: u32,
    /// Whether an action is blocked; if so, [`Coordinator::on_resumed`] will be called.
    blocked: bool,
    /// Whether the blocked action waits for other commits, which resume this one.
    pub(super) sleeps: bool,
    /// The configuration in which the commit began.
    pub(super) configuration: u64,
    /// Whether the configuration has changed since the commit wrote its first record: recovery decides it.
    suspended: bool,
    /// How recovery has decided it.
    decided: Option<Decision>,
    /// Whether a commit that lost a participant waits for the next configuration.
    survives: bool,
    /// The reason why the commit aborts, if it does.
    why: Option<TxError>,
    /// Whether a participant has acknowledged COMMIT-PRIMARY or ABORT.
    acknowledged: bool,
    /// A machine that was lost before it acknowledged, if any.
    lost: Option<MachineId>,
    /// The mode in which the objects of this machine are to be locked.
    mode: LockMode,
    /// The mode in which the objects of this machine are locked at present.
    locked: LockMode,
}

/// Settings of a worker that a commit depends on.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    /// Maximum number of objects in a VALIDATE message.
    pub(super) most_in_message: usize,
    /// Whether transactions whose objects are all on this machine lock exclusively from the start.
    pub(super) locks_exclusively: bool,
    /// How commits are logged, if they are.
    pub(super) logged: Option<Logged<'a>>,
    /// The configuration.
    pub(super) configuration: u64,
    /// Whether the machines go on in another configuration when one of them is lost.
    pub(super) survives: bool,
}

impl Coordinator {
    /// Starts the commit of a transaction, and reuses the allocated memory. Returns the empty context of the previous
    /// commit.
    pub(super) fn begin(
        &mut self,
        new: Box<Tx>,
        new_cont: Cont<Result<(), TxError>>,
        settings: Settings<'_>,
    ) -> Box<Tx> {
        // Every field is named, so that none keeps its old value.
        let Self {
            tx,
            cont,
            distributed,
            is_planned,
            own_ended,
            sequence,
            step,
            ticket,
            plan,
            validation,
            validated,
            next,
            waiting,
            blocked,
            sleeps,
            configuration,
            suspended,
            decided,
            survives,
            why,
            acknowledged,
            lost,
            mode,
            locked,
        } = self;
        let spare = std::mem::replace(tx, new);
        let (mut writes, mut remote) = (0, false);
        for entry in tx.entries.iter() {
            writes += usize::from(entry.is_written());
            remote |= entry.machine.is_some();
        }
        *distributed = remote;
        let logged = settings.logged.filter(|_| writes > 0);
        *is_planned = remote || logged.is_some();
        *own_ended = false;
        if !plan.is_clear() {
            plan.clear();
        }
        if *is_planned {
            plan.fill(tx, logged);
            validation.reset(settings.most_in_message);
        }
        // A single object that was only read needs no validation. Several objects must have had the values that were
        // read at a common moment. A transaction that has given up its writes may report more than the state of its one
        // object, and so validates it.
        let one = (tx.entries.len() <= 1 || !tx.validates_reads()) && !tx.has_given_up();
        *validated = match one || writes == tx.entries.len() {
            true => tx.entries.len(),
            false => 0,
        };
        *step = match (writes, *is_planned) {
            (0, _) if one => Step::Commit,
            (0, _) => Step::Validate,
            (_, true) => Step::Reserve,
            (_, false) => Step::Lock,
        };
        *cont = Some(new_cont);
        (*sequence, *next, *waiting) = (0, 0, 0);
        (*ticket, *why, *lost) = (None, None, None);
        (*blocked, *sleeps, *acknowledged) = (false, false, false);
        (*suspended, *decided) = (false, None);
        (*configuration, *survives) = (settings.configuration, settings.survives);
        (*mode, *locked) = (LockMode::Exclusive, LockMode::Unlocked);
        // The readable mode needs a second step, which pays off only if more than one lock is gathered, or copies are written.
        let one_lock = writes <= 1 && !validates_before_exclusive() && !self.reads_pass();
        if !(remote || one_lock || settings.locks_exclusively) {
            self.mode = LockMode::Readable;
        }
        spare
    }

    /// Returns whether no object is left to validate.
    fn is_validated(&self) -> bool {
        self.validated == self.tx.len() && self.plan.reads.is_empty()
    }

    /// Returns whether lock-free reads of the objects return the old values until all backups have acknowledged. Meaningful
    /// before the step Validate.
    fn reads_pass(&self) -> bool {
        !self.distributed && self.is_validated() && self.plan.has_copies()
    }

    /// Handles the reservation of room in all logs; `sequence` is the number of the transaction.
    #[inline]
    pub(super) fn on_reserved(&mut self, sequence: u64) {
        self.sequence = sequence;
        self.go_to(match self.validates_early() {
            true => Step::Validate,
            false => Step::Lock,
        });
    }

    /// Handles a reservation that can never succeed. Nothing was reserved anywhere.
    #[inline]
    pub(super) fn on_refused(&mut self, why: TxError) {
        self.plan.clear();
        self.stop(why);
        self.go_to(Step::Abort);
    }

    /// Handles that a record is in the own log.
    #[inline]
    pub(super) fn on_own_logged(&mut self, at: u32, kind: Kind) {
        let participant = &mut self.plan.participants[at as usize];
        match kind {
            Kind::Lock => participant.asked = true,
            Kind::CommitBackup => {
                participant.backed = true;
                self.next += 1;
            }
            _ => self.acknowledged |= self.step == Step::Commit,
        }
    }

    #[inline]
    pub(super) fn on_locked_local(&mut self, result: Result<(), Abort>) {
        match result {
            Ok(()) => self.locked = self.mode,
            Err(abort) => {
                if self.distributed {
                    marks::mark("commit: a local lock failed");
                }
                self.stop(abort.into());
            }
        }
    }

    #[inline]
    pub(super) fn on_lock_sent(&mut self, sent: Sent) -> Result<(), Blocked> {
        let participant = &mut self.plan.participants[self.next];
        match sent {
            Sent::Full => return Err(Blocked::Write),
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
    pub(super) fn on_validated_local(
        &mut self,
        range: EntryRange,
        result: Result<(), Abort>,
    ) -> Result<(), Blocked> {
        let end = range.end as usize;
        self.validated = end;
        match result {
            Err(abort) => {
                if self.distributed {
                    marks::mark("validate: a local object failed");
                }
                self.stop(abort.into());
            }
            Ok(()) if end < self.tx.entries.len() => return Err(Blocked::Turn),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Handles the result of sending VALIDATE. If there is no room for the message now, the commit does not wait but
    /// reads headers: the transactions that hold the room could wait for the locks of this commit.
    #[inline]
    pub(super) fn on_validate_sent(&mut self, range: EntryRange, result: Result<(), CallError>) {
        let range = range.range();
        match result {
            Ok(()) => {
                self.waiting += 1;
                self.validation.on_sent(range);
            }
            Err(CallError::PeerLost(machine)) => self.stop(Abort::Lost(machine).into()),
            Err(_) => self.validation.on_not_sent(range),
        }
    }

    #[inline]
    pub(super) fn on_header_posted(&mut self, at: u32, has_slot: bool) -> Result<(), Blocked> {
        if !has_slot {
            self.validation.retry_header(at);
            return Err(Blocked::HeaderSlot);
        }
        self.validation.on_header_posted();
        self.waiting += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn on_backup_sent(&mut self, sent: Sent) -> Result<(), Blocked> {
        let participant = &mut self.plan.participants[self.next];
        match sent {
            Sent::Full => return Err(Blocked::Write),
            Sent::Yes => {
                participant.backed = true;
                self.waiting += 1;
            }
            Sent::Lost => self.lost = Some(participant.machine),
        }
        self.next += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn on_end_sent(&mut self, sent: Sent) -> Result<(), Blocked> {
        match sent {
            Sent::Full => return Err(Blocked::Write),
            Sent::Yes => self.waiting += 1,
            Sent::Lost => self.lost = Some(self.plan.participants[self.next].machine),
        }
        self.next += 1;
        Ok(())
    }

    /// Handles the arrival of LOCK-REPLY, or the loss of its machine.
    #[inline]
    pub(super) fn on_lock_reply(&mut self, at: u32, reply: Result<&[u8], CallError>) {
        let participant = &mut self.plan.participants[at as usize];
        participant.reply = None;
        // If LOCK was not sent yet, the machine is lost, and sending LOCK will fail.
        self.waiting -= u32::from(participant.asked);
        if let Err(error) = verdict(&self.tx, reply)
            && self.step == Step::Lock
        {
            self.stop(error);
        }
    }

    /// Handles the arrival of the reply to VALIDATE, or the loss of its machine.
    #[inline]
    pub(super) fn on_validate_reply(&mut self, reply: Result<&[u8], CallError>) {
        self.waiting -= 1;
        if let Err(error) = verdict(&self.tx, reply) {
            self.stop(error);
        }
    }

    /// Handles the end of the read of the header of an entry's object.
    #[inline]
    pub(super) fn on_header(&mut self, at: u32, header: Result<VersionWord, ReadError>) {
        self.waiting -= 1;
        self.validation.on_header();
        if self.suspended {
            // Its entries may be gone.
            return;
        }
        let (address, read) = {
            let entry = &self.tx.entries[at as usize];
            (entry.address, entry.version)
        };
        match header {
            Ok(now) if is_unchanged(now, read) => {}
            Ok(now) => {
                marks::mark("validate: a header failed");
                self.stop(conflict(now, read, address).into());
            }
            // The fabric had no room for the read.
            Err(ReadError::Busy) => self.validation.retry_header(at),
            Err(ReadError::PeerLost(machine)) => self.stop(Abort::Lost(machine).into()),
            Err(_) => self.stop(Abort::Changed(address).into()),
        }
    }

    /// Handles the acknowledgement that COMMIT-BACKUP, COMMIT-PRIMARY or ABORT is in the memory of a participant, or the loss of
    /// that machine. Returns whether this is the first acknowledgement of the end of the transaction.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, at: u32, status: Status) -> bool {
        self.waiting -= 1;
        match status {
            Status::Ok if self.step == Step::Backup => false,
            Status::Ok => !std::mem::replace(&mut self.acknowledged, true),
            Status::Torn | Status::Broken => {
                marks::mark("commit: a primary was lost");
                self.lost = Some(self.plan.participants[at as usize].machine);
                false
            }
        }
    }

    /// Records that an action is blocked. Returns whether no action was blocked before; if so, the caller must schedule
    /// [`Coordinator::on_resumed`].
    #[inline]
    pub(super) fn on_blocked(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.blocked, true);
        if is_new {
            marks::mark("commit: blocked");
        }
        is_new
    }

    /// Records that [`Coordinator::on_resumed`] is scheduled for the first action.
    #[inline]
    pub(super) fn on_scheduled(&mut self) {
        self.blocked = true;
    }

    /// Unblocks the commit, because the blocked action may be possible now.
    #[inline]
    pub(super) fn on_resumed(&mut self) {
        (self.blocked, self.sleeps) = (false, false);
    }

    /// Returns whether the commit has written a record, and may not be aborted by its coordinator alone when the configuration
    /// changes.
    pub(super) fn has_record(&self) -> bool {
        self.plan.participants.iter().any(Participant::has_record)
    }

    /// Returns whether a commit without a record holds room in logs. One that aborts has released it, even if it waits for the next
    /// configuration because a participant is lost.
    pub(super) fn holds_room(&self) -> bool {
        self.sequence != 0 && self.step != Step::Abort
    }

    /// Suspends a commit that has written a record, because the configuration changes: recovery decides it.
    pub(super) fn suspend(&mut self) {
        marks::mark("commit: suspended");
        self.suspended = true;
    }

    /// Returns whether recovery decides the commit, and has not.
    pub(super) fn is_suspended(&self) -> bool {
        self.suspended && self.decided.is_none()
    }

    /// Handles that the configuration changes before the commit has written a record.
    pub(super) fn on_reconfigured(&mut self) {
        match self.step {
            Step::Reserve | Step::Lock => self.on_refused(Abort::Reconfigured.into()),
            _ => self.stop(Abort::Reconfigured.into()),
        }
    }

    /// Handles the decision about a suspended commit.
    pub(super) fn on_decided(&mut self, decision: Decision) {
        self.decided = Some(decision);
    }

    /// Returns the continuation and the outcome, once, when the outcome is known.
    pub(super) fn outcome(&mut self) -> Option<Told> {
        self.cont?;
        if self.suspended {
            let result = match self.decided? {
                Decision::Commit => Ok(()),
                Decision::Abort => Err(Abort::Reconfigured.into()),
            };
            return Some((self.cont.take()?, result));
        }
        let done = self.next >= self.plan.participants.len();
        let result = match self.step {
            Step::Commit if self.acknowledged || done && self.plan.participants.is_empty() => {
                Ok(())
            }
            Step::Commit | Step::Backup if done && self.waiting == 0 && !self.survives => {
                let machine = self.lost.expect(
                    "a commit that no participant acknowledged has recorded a lost machine",
                );
                Err(TxError::InDoubt(machine))
            }
            Step::Abort if done => Err(self.take_reason()),
            _ => return None,
        };
        Some((self.cont.take()?, result))
    }

    /// Returns the continuation of a commit without participants whose actions are all performed, and whether it has
    /// committed. If it has not, [`Coordinator::take_reason`] returns the reason. The returned values are small;
    /// [`Coordinator::outcome`] would move a large value through memory right after it was stored.
    #[inline]
    pub(super) fn local_outcome(&mut self) -> (Cont<Result<(), TxError>>, bool) {
        debug_assert!(self.plan.participants.is_empty() && self.waiting == 0);
        let cont = self
            .cont
            .take()
            .expect("the continuation of a commit is taken only once");
        (cont, self.step == Step::Commit)
    }

    /// Returns the reason why the commit has aborted.
    #[cold]
    pub(super) fn take_reason(&mut self) -> TxError {
        self.why
            .take()
            .expect("an aborted commit has stored the reason of its abort")
    }

    /// Returns whether the outcome was reported and no reply is outstanding.
    pub(super) fn has_ended(&self) -> bool {
        self.cont.is_none() && self.waiting == 0 && !self.blocked && !self.is_suspended()
    }

    /// Returns whether the transaction is finished: it was decided, and every participant has the record that says so. With a participant
    /// that was lost before it acknowledged, it is not: another machine whose low bound had passed it would vote that it has
    /// ended, and the lost one, if its memory is found again, only that it had locks.
    pub(super) fn is_finished(&self) -> bool {
        let all_know = self.lost.is_none() || mutants::is_on("low bound passes a lost participant");
        self.sequence != 0 && self.step != Step::Backup && all_know && !self.suspended
    }

    /// Excludes the new objects that a LOCK record names from what an abort releases: their primary releases them when it
    /// aborts. Recovery, which decides suspended commits, also does so on the own machine.
    pub(super) fn keep_logged(&mut self) {
        let Self {
            plan,
            tx,
            suspended,
            ..
        } = self;
        if tx.is_empty() {
            // It was aborting when it was suspended, and has released what it may.
            return;
        }
        let all = plan.participants.iter().enumerate();
        let is_kept =
            |participant: &Participant| participant.asked && (*suspended || !participant.is_own);
        for (at, _) in all.filter(|(_, participant)| is_kept(participant)) {
            for index in plan.of_participant(at) {
                tx.entries[*index as usize].intent = Intent::Read;
            }
        }
    }

    /// Records that the transaction must abort. Only the first reason is reported.
    fn stop(&mut self, why: TxError) {
        self.why.get_or_insert(why);
    }

    /// Returns whether the transaction is to abort.
    fn stops(&self) -> bool {
        self.why.is_some()
    }

    fn go_to(&mut self, step: Step) {
        (self.step, self.next) = (step, 0);
    }

    /// Returns whether the mutant is on that validates before it locks.
    fn validates_early(&self) -> bool {
        self.distributed && mutants::is_on("validate before all locks")
    }
}

/// Returns whether a mutant is on that validates while locks are held in the readable mode.
pub(super) fn validates_before_exclusive() -> bool {
    mutants::is_on("validate before all are exclusive")
        || mutants::is_on("validation accepts a readable lock")
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
