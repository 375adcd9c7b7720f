//! How the regions of a transaction vote, and what their votes decide.

use farm_core::mutants;
use serde::{Deserialize, Serialize};

use super::Evidence;
use crate::record::Kind;

/// The vote of a region on a transaction that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Vote {
    /// COMMIT-PRIMARY was found: the transaction has committed.
    CommitPrimary,
    /// ABORT was found: the transaction has aborted.
    Abort,
    /// COMMIT-BACKUP was found: the coordinator had all locks and had validated what it read. It may have reported that the
    /// transaction has committed.
    CommitBackup,
    /// Only LOCK was found.
    Lock,
    /// Nothing was found, and a low bound of the coordinator has passed the transaction: it has ended.
    Truncated,
    /// Nothing was found.
    Unknown,
}

impl Vote {
    /// Returns the vote of a region, by the evidence of all machines that have the whole region. `truncated` says whether a low bound
    /// that one of them knows has passed the transaction.
    pub fn of(evidence: Evidence, truncated: bool) -> Self {
        let has = |kind| evidence.has(kind);
        match () {
            () if has(Kind::CommitPrimary) => Vote::CommitPrimary,
            () if has(Kind::Abort) => Vote::Abort,
            () if has(Kind::CommitBackup) => Vote::CommitBackup,
            () if has(Kind::Lock) => Vote::Lock,
            () if truncated && !mutants::is_on("truncated transaction is unknown") => {
                Vote::Truncated
            }
            () => Vote::Unknown,
        }
    }
}

/// What becomes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Decision {
    /// All replicas get its values.
    Commit,
    /// It has no effect.
    Abort,
}

impl Decision {
    /// Returns the decision, by the votes of all regions that the transaction wrote.
    pub fn of(votes: impl IntoIterator<Item = Vote>) -> Self {
        let (mut may_commit, mut must_abort) = (false, false);
        for vote in votes {
            match vote {
                Vote::CommitPrimary => return Decision::Commit,
                Vote::CommitBackup => may_commit = true,
                Vote::Lock => may_commit |= mutants::is_on("commit by locks alone"),
                Vote::Truncated => {}
                Vote::Abort | Vote::Unknown => must_abort = true,
            }
        }
        match may_commit && !must_abort {
            true => Decision::Commit,
            false => Decision::Abort,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_record_is_the_vote() {
        let of = |kinds: &[Kind]| {
            let evidence = kinds.iter().map(|kind| Evidence::of(*kind));
            evidence.fold(Evidence::NONE, Evidence::and)
        };
        for (kinds, vote) in [
            (
                &[Kind::Lock, Kind::CommitBackup, Kind::CommitPrimary][..],
                Vote::CommitPrimary,
            ),
            (&[Kind::Lock, Kind::Abort], Vote::Abort),
            (&[Kind::Lock, Kind::CommitBackup], Vote::CommitBackup),
            (&[Kind::CommitBackup], Vote::CommitBackup),
            (&[Kind::Lock], Vote::Lock),
        ] {
            // Evidence counts also if the low bound of another machine has passed the transaction.
            assert_eq!(Vote::of(of(kinds), false), vote);
            assert_eq!(Vote::of(of(kinds), true), vote);
        }
        assert_eq!(Vote::of(Evidence::NONE, true), Vote::Truncated);
        assert_eq!(Vote::of(Evidence::NONE, false), Vote::Unknown);
    }

    #[test]
    fn votes_decide_as_the_paper_says() {
        use Vote::{Abort, CommitBackup, CommitPrimary, Lock, Truncated, Unknown};
        for votes in [
            &[CommitPrimary][..],
            &[CommitPrimary, Lock],
            &[Truncated, CommitPrimary],
            &[CommitPrimary, CommitBackup, Truncated],
            &[CommitBackup],
            &[CommitBackup, Lock],
            &[Truncated, CommitBackup, Lock],
        ] {
            let mut votes = votes.to_vec();
            for _ in 0..votes.len() {
                votes.rotate_left(1);
                assert_eq!(Decision::of(votes.clone()), Decision::Commit, "{votes:?}");
            }
        }
        for votes in [
            &[][..],
            &[Lock],
            &[Lock, Lock],
            &[Lock, Truncated],
            &[Abort, Lock],
            &[Unknown, CommitBackup],
            &[Unknown, Lock],
            &[Truncated, Abort],
        ] {
            let mut votes = votes.to_vec();
            for _ in 0..votes.len().max(1) {
                if !votes.is_empty() {
                    votes.rotate_left(1);
                }
                assert_eq!(Decision::of(votes.clone()), Decision::Abort, "{votes:?}");
            }
        }
    }
}
