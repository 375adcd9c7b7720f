//! The steps of a commit: which action is next.
//!
//! | step | actions | next step | condition |
//! |---|---|---|---|
//! | Reserve | [`Action::Reserve`] | Lock | there is room everywhere |
//! | | | Abort | a machine is lost, or a record would be too large |
//! | Lock | [`Action::LogOwn`], [`Action::LockLocal`], [`Action::MakeExclusive`], [`Action::SendLock`] | Validate | all replies: locked |
//! | | | Abort | an object was not locked, and all have replied |
//! | Validate | [`Action::ValidateLocal`], [`Action::SendValidate`], [`Action::ReadHeader`] | Backup | all unchanged |
//! | | | Abort | an object has changed, and all have replied |
//! | Backup | [`Action::LogOwn`], [`Action::SendBackup`] | Commit | all have acknowledged |
//! | | | ended | a machine is lost: the outcome is not known |
//! | Commit | [`Action::LogOwn`], [`Action::InstallLocal`], [`Action::SendEnd`] | ended | all have acknowledged |
//! | any | none: the configuration has changed, and recovery decides | ended | the decision, and all replies |
//! | Abort | [`Action::LogOwn`], [`Action::UnlockLocal`], [`Action::ReleaseNew`], [`Action::ReleaseReserved`], [`Action::SendEnd`] | ended | all have acknowledged |

use farm_core::mutants;
use farm_core::object::LockMode;

use super::action::Action;
use super::{Coordinator, Step, validates_before_exclusive};
use crate::error::Abort;
use crate::record::Kind;

/// Maximum number of entries of this machine that are validated in one turn.
pub(super) const LOCAL_PER_TURN: usize = 4096;

impl Coordinator {
    /// Returns the next action, or `None` if the commit waits for an event.
    #[inline]
    pub(in crate::commit) fn next_action(&mut self) -> Option<Action> {
        if self.suspended {
            return None;
        }
        loop {
            let before = self.step;
            let action = match before {
                Step::Reserve => Some(Action::Reserve),
                Step::Lock => self.next_lock(),
                Step::Validate => self.next_validate(),
                Step::Backup => self.next_backup(),
                Step::Commit => self.next_end(Kind::CommitPrimary),
                Step::Abort => self.next_end(Kind::Abort),
            };
            if action.is_some() || self.step == before {
                return action;
            }
        }
    }

    fn next_lock(&mut self) -> Option<Action> {
        if !self.stops() {
            let late = mutants::is_on("own LOCK record after the locks");
            let is_due = (self.locked == LockMode::Unlocked) != late;
            if let Some(own) = self.plan.own().filter(|_| is_due) {
                let own_lock = &self.plan.participants[own];
                if own_lock.is_primary() && !own_lock.asked {
                    return Some(Action::LogOwn(own as u32, Kind::Lock));
                }
            }
            match self.locked {
                LockMode::Unlocked => return Some(Action::LockLocal(self.mode)),
                LockMode::Readable if !self.stays_readable() => {
                    self.locked = LockMode::Exclusive;
                    return Some(Action::MakeExclusive);
                }
                _ => {}
            }
            while let Some(participant) = self.plan.participants.get(self.next) {
                if participant.is_primary() && !participant.is_own {
                    return Some(Action::SendLock(self.next as u32));
                }
                self.next += 1;
            }
        }
        if self.stops() && self.waiting == 0 {
            self.go_to(Step::Abort);
        } else if !self.stops() && self.waiting <= missing() {
            self.go_to(match self.is_validated() || self.validates_early() {
                true => Step::Backup,
                false => Step::Validate,
            });
        }
        None
    }

    /// Returns whether locks that let lock-free reads pass become exclusive only when the objects are installed.
    fn stays_readable(&self) -> bool {
        self.reads_pass() || validates_before_exclusive() || installs_readable()
    }

    fn next_backup(&mut self) -> Option<Action> {
        while let Some(participant) = self.plan.participants.get(self.next) {
            let at = self.next as u32;
            match (participant.backup.is_empty(), participant.is_own) {
                (true, _) => self.next += 1,
                (false, true) => return Some(Action::LogOwn(at, Kind::CommitBackup)),
                (false, false) => return Some(Action::SendBackup(at)),
            }
        }
        let installs_early = mutants::is_on("install before all backups acknowledged");
        let missing = u32::from(mutants::is_on("a backup's acknowledgement missing"));
        let all = self.waiting <= missing && self.lost.is_none();
        if let Some(machine) = self.lost.filter(|_| self.waiting == 0)
            && mutants::is_on("abort after COMMIT-BACKUP")
        {
            self.stop(Abort::Lost(machine).into());
            self.go_to(Step::Abort);
        } else if all || installs_early {
            self.go_to(Step::Commit);
        }
        None
    }

    fn next_validate(&mut self) -> Option<Action> {
        if !self.stops() {
            let (start, all) = (self.validated, self.tx.entries.len());
            if start < all {
                let range = start..all.min(start + LOCAL_PER_TURN);
                return Some(Action::ValidateLocal(range.into()));
            }
            if let Some(action) = self.next_remote() {
                return Some(action);
            }
        }
        if self.waiting <= missing() {
            let unlocked = self.validates_early() && self.locked == LockMode::Unlocked;
            self.go_to(match self.why {
                Some(_) => Step::Abort,
                None if unlocked && self.sequence != 0 => Step::Lock,
                None => Step::Backup,
            });
        }
        None
    }

    /// Returns the next validation of objects on other machines.
    #[inline]
    fn next_remote(&mut self) -> Option<Action> {
        if self.plan.reads.is_empty() {
            return None;
        }
        if let Some((machine, range)) = self.validation.next_group(&self.plan, &self.tx) {
            return Some(Action::SendValidate(machine, range.into()));
        }
        let header = self.validation.next_header(&self.tx);
        header.map(|at| Action::ReadHeader(at as u32))
    }

    fn next_end(&mut self, kind: Kind) -> Option<Action> {
        let commits = kind == Kind::CommitPrimary;
        if commits && self.locked == LockMode::Readable && !installs_readable() {
            self.locked = LockMode::Exclusive;
            return Some(Action::MakeExclusive);
        }
        if let Some(own) = self.plan.own().filter(|_| !self.own_ended) {
            self.own_ended = true;
            if self.plan.participants[own].asked {
                return Some(Action::LogOwn(own as u32, kind));
            }
        }
        if std::mem::take(&mut self.locked) != LockMode::Unlocked {
            return Some(match commits {
                true => Action::InstallLocal,
                false => Action::UnlockLocal,
            });
        }
        if !commits && self.next == 0 && !self.tx.is_empty() {
            return Some(Action::ReleaseNew);
        }
        while let Some(participant) = self.plan.participants.get(self.next) {
            let at = self.next as u32;
            if participant.asked && !participant.is_own {
                return Some(Action::SendEnd(at, kind));
            }
            self.next += 1;
            if !participant.has_record() {
                return Some(Action::ReleaseReserved(at));
            }
        }
        None
    }
}

/// Returns the number of replies that a commit does not wait for: 0, unless the mutant is on.
fn missing() -> u32 {
    u32::from(mutants::is_on("commit with one reply missing"))
}

/// Returns whether the mutant is on that makes each lock exclusive only when its object is installed.
fn installs_readable() -> bool {
    mutants::is_on("install before all are exclusive")
}
