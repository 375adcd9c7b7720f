//! The participant of a commit (`FaRM'15 §4`) as a value: the primary of written objects, or a backup, which finds records in
//! the logs that coordinators of other machines write into its memory. Records go in ([`LogState::on_record`]), one action
//! comes out for each; [`serve`](super::serve) performs it with the worker.
//!
//! A record stays in its log until its transaction is truncated: until a later record has a low bound above the
//! transaction's number.
//!
//! | state of the transaction | record | action | next state |
//! |---|---|---|---|
//! | none | LOCK | [`Action::Lock`] | `Locked` or `Refused`, as [`LogState::on_locked`] reports |
//! | `Locked` | COMMIT-PRIMARY | [`Action::Install`] | `Ended` |
//! | `Locked` | ABORT | [`Action::Abort`], unlocks | `Ended` |
//! | `Refused` | ABORT | [`Action::Abort`] | `Ended` |
//! | none, `Locked` | COMMIT-BACKUP | none: the copies change when the transaction is truncated | `Ended`, `Locked` |
//! | `Ended` | truncated by any record | the copies are changed ([`LogState::next_to_apply`]), and the log is freed up to the first record that stays | none |
//!
//! Every other combination is a [`Violation`]: the coordinator does not follow the protocol, and its connection is
//! closed.

use std::collections::VecDeque;

use farm_core::mutants;
use farm_core::worker::LogId;

use crate::record::{Kind, Record};

/// The position and the length of a record in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordAt {
    /// The position just after the record.
    pub(super) end: u64,
    /// Length of its body, in bytes.
    pub(super) bytes: usize,
}

/// The state of a transaction at this primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Locked,
    Refused,
    Ended,
}

/// A transaction that is not truncated.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct LoggedTx {
    sequence: u64,
    lock: Option<RecordAt>,
    backup: Option<RecordAt>,
    state: State,
}

/// The work that a record requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// No work: the record only truncates.
    Nothing,
    /// Lock the objects of this record, all or none, and reply: [`LogState::on_locked`].
    Lock,
    /// Install the values of the LOCK record at this position, and unlock its objects.
    Install(RecordAt),
    /// Release the slots that the LOCK record at this position allocated; if its objects are locked, unlock them.
    Abort {
        /// The LOCK record.
        lock: RecordAt,
        /// Whether the objects of the LOCK record are locked.
        locked: bool,
    },
}

/// The way in which a record violates the protocol. No correct coordinator writes such a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    /// The record truncates a transaction that has neither committed nor aborted at this primary.
    #[error("the record truncates a transaction that has not ended at this primary")]
    TruncatesOpen,
    /// The record is the second LOCK of its transaction.
    #[error("the log has a LOCK record of this transaction already")]
    SecondLock,
    /// The record is the second COMMIT-BACKUP of its transaction, or comes after its end.
    #[error("the log has a COMMIT-BACKUP record of this transaction already, or its end")]
    SecondBackup,
    /// The record ends a transaction without LOCK.
    #[error("the log has no LOCK record of this transaction")]
    NoLock,
    /// The record ends a transaction for the second time.
    #[error("the record ends a transaction that has already ended at this primary")]
    EndedTwice,
    /// The record commits a transaction whose LOCK was refused.
    #[error("the record commits a transaction whose LOCK was refused")]
    CommitsRefused,
}

/// The records of one log, and the transactions that they belong to.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct LogState {
    /// Records in the order of the log: the transaction, 0 for none, and the position just after the record.
    records: VecDeque<(u64, u64)>,
    /// Ascending by sequence number.
    txs: VecDeque<LoggedTx>,
    /// The low bound of the coordinator, from the record that was taken last.
    low: u64,
    /// COMMIT-BACKUP records of truncated transactions whose copies have not changed yet.
    to_apply: VecDeque<RecordAt>,
}

impl LogState {
    /// Takes the next record of the log, of the transaction `sequence`. Returns the work that it requests.
    ///
    /// # Errors
    /// [`Violation`]: the record must not be acted on.
    pub(super) fn on_record(
        &mut self,
        record: &Record<'_>,
        sequence: u64,
        at: RecordAt,
    ) -> Result<Action, Violation> {
        let truncated = self.truncate(record.low);
        let sequence = match record.kind {
            Kind::Truncate => 0,
            _ => sequence,
        };
        self.records.push_back((sequence, at.end));
        truncated?;
        match record.kind {
            Kind::Truncate => Ok(Action::Nothing),
            Kind::CommitBackup => self.on_backup(sequence, at).map(|()| Action::Nothing),
            Kind::Lock => self.on_lock(sequence, at),
            Kind::CommitPrimary => match self.end(sequence)? {
                (lock, State::Locked) => Ok(Action::Install(lock)),
                _ => Err(Violation::CommitsRefused),
            },
            Kind::Abort => {
                let (lock, state) = self.end(sequence)?;
                let locked = state == State::Locked;
                Ok(Action::Abort { lock, locked })
            }
        }
    }

    fn on_lock(&mut self, sequence: u64, lock: RecordAt) -> Result<Action, Violation> {
        let Err(at) = self.position(sequence) else {
            return Err(Violation::SecondLock);
        };
        let state = State::Refused;
        let tx = LoggedTx {
            sequence,
            lock: Some(lock),
            backup: None,
            state,
        };
        self.txs.insert(at, tx);
        Ok(Action::Lock)
    }

    fn on_backup(&mut self, sequence: u64, backup: RecordAt) -> Result<(), Violation> {
        let backup = Some(backup);
        match self.position(sequence) {
            Err(at) => {
                let (lock, state) = (None, State::Ended);
                let tx = LoggedTx {
                    sequence,
                    lock,
                    backup,
                    state,
                };
                self.txs.insert(at, tx);
                Ok(())
            }
            Ok(at) => match &mut self.txs[at] {
                tx if tx.state == State::Refused => Err(Violation::CommitsRefused),
                tx if tx.backup.is_some() || tx.state == State::Ended => {
                    Err(Violation::SecondBackup)
                }
                tx => {
                    tx.backup = backup;
                    Ok(())
                }
            },
        }
    }

    /// Records a record of an earlier configuration, which has no effect.
    pub(super) fn on_old(&mut self, at: RecordAt) {
        self.records.push_back((0, at.end));
    }

    /// Returns the low bound of the coordinator: all of its transactions below have ended here.
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    /// Returns the transactions from the low bound on that have ended at this primary.
    pub(super) fn ended(&self) -> impl Iterator<Item = u64> + '_ {
        let ended = self.txs.iter().filter(|tx| tx.lock.is_some());
        let ended = ended.filter(|tx| tx.state == State::Ended);
        ended.map(|tx| tx.sequence)
    }

    /// Returns the transactions that hold locks at this primary.
    pub(super) fn holding(&self) -> impl Iterator<Item = u64> + '_ {
        let holding = self.txs.iter().filter(|tx| tx.state == State::Locked);
        holding.map(|tx| tx.sequence)
    }

    /// Records a record that this worker has appended to its own log.
    pub(super) fn on_own(&mut self, kind: Kind, sequence: u64, at: RecordAt) {
        self.records.push_back((sequence, at.end));
        let passed = match kind {
            Kind::Lock => {
                let locked = self.on_lock(sequence, at).map(drop);
                self.on_locked(sequence);
                locked
            }
            Kind::CommitBackup => self.on_backup(sequence, at),
            _ => self.end(sequence).map(drop),
        };
        passed.expect("a coordinator follows the protocol in its own log");
    }

    /// Removes the transactions of the own log that are finished.
    pub(super) fn truncate_own(&mut self, low: u64) {
        let truncated = self.truncate(low);
        truncated
            .expect("a coordinator ends its transactions in its own log before they are finished");
    }

    /// Returns the number of records that are kept.
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    /// Returns whether the log has no records.
    pub(super) fn is_unused(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the next COMMIT-BACKUP record whose copies must change: [`LogState::on_applied`].
    pub(super) fn next_to_apply(&self) -> Option<RecordAt> {
        self.to_apply.front().copied()
    }

    /// Records that the copies of the record of [`LogState::next_to_apply`] have changed.
    pub(super) fn on_applied(&mut self) {
        self.to_apply.pop_front();
    }

    /// Records that the objects of a LOCK record were locked.
    pub(super) fn on_locked(&mut self, sequence: u64) {
        if let Ok(at) = self.position(sequence) {
            self.txs[at].state = State::Locked;
        }
    }

    /// Ends a transaction. Returns its LOCK record, and its state before.
    fn end(&mut self, sequence: u64) -> Result<(RecordAt, State), Violation> {
        let at = self.position(sequence).map_err(|_| Violation::NoLock)?;
        let tx = &mut self.txs[at];
        let lock = tx.lock.ok_or(Violation::NoLock)?;
        match std::mem::replace(&mut tx.state, State::Ended) {
            State::Ended => Err(Violation::EndedTwice),
            state => Ok((lock, state)),
        }
    }

    /// Removes the transactions below a low bound.
    fn truncate(&mut self, low: u64) -> Result<(), Violation> {
        self.low = self.low.max(low);
        let below = self.txs.partition_point(|tx| tx.sequence < low);
        let mut ended = true;
        for tx in self.txs.drain(..below) {
            ended &= tx.state == State::Ended;
            self.to_apply.extend(tx.backup);
        }
        match ended {
            true => Ok(()),
            false => Err(Violation::TruncatesOpen),
        }
    }

    /// Drops the first records of the log, as far as their transactions are truncated. Returns the position up to which
    /// the log is free, if that has advanced, and the low bound, which tells that these transactions are finished.
    pub(super) fn take_free(&mut self) -> Option<(u64, u64)> {
        // Their records are still needed.
        if !self.to_apply.is_empty()
            && !mutants::is_on("backup's record freed before it is applied")
        {
            return None;
        }
        let mut end = None;
        while let Some(&(sequence, at)) = self.records.front() {
            if sequence != 0 && self.position(sequence).is_ok() {
                break;
            }
            end = Some(at);
            self.records.pop_front();
        }
        Some((end?, self.low))
    }

    /// Returns the LOCK record of a transaction that is not truncated, if it holds its locks.
    #[cfg(any(test, feature = "mutants"))]
    pub(super) fn locked(&self, sequence: u64) -> Option<RecordAt> {
        let tx = &self.txs[self.position(sequence).ok()?];
        tx.lock.filter(|_| tx.state == State::Locked)
    }

    /// Returns whether the log has no record and no transaction.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.txs.is_empty() && self.to_apply.is_empty()
    }

    /// Returns the position of a transaction, or where it would be inserted. Most are the last one, or older than all.
    #[inline]
    fn position(&self, sequence: u64) -> Result<usize, usize> {
        match (self.txs.front(), self.txs.back()) {
            (Some(first), _) if sequence < first.sequence => Err(0),
            (_, Some(last)) if sequence > last.sequence => Err(self.txs.len()),
            (_, Some(last)) if sequence == last.sequence => Ok(self.txs.len() - 1),
            _ => self.txs.binary_search_by_key(&sequence, |tx| tx.sequence),
        }
    }
}

/// The logs that one worker polls.
#[derive(Default)]
pub(crate) struct Primary {
    logs: Vec<LogState>,
    /// Buffer for a LOCK record that is read again.
    pub(super) words: Vec<u64>,
}

impl Primary {
    /// Returns the state of a log.
    pub(super) fn log(&mut self, id: LogId) -> &mut LogState {
        if self.logs.len() <= id.index() {
            self.logs.resize_with(id.index() + 1, LogState::default);
        }
        &mut self.logs[id.index()]
    }

    /// Returns all logs, with their indices.
    pub(super) fn logs(&self) -> impl Iterator<Item = (usize, &LogState)> {
        self.logs.iter().enumerate()
    }

    /// Forgets all logs, whose records have been drained.
    pub(super) fn clear(&mut self) {
        self.logs.clear();
    }

    /// Returns the number of records that are kept.
    pub(crate) fn records(&self) -> usize {
        self.logs.iter().map(LogState::records).sum()
    }
}

#[cfg(test)]
mod tests;
