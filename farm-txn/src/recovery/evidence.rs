//! What is known of a transaction in a region.

use serde::{Deserialize, Serialize};

use super::{Decision, Vote};
use crate::record::Kind;

/// The kinds of records of a transaction that were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Evidence(u8);

impl Evidence {
    /// No record.
    pub const NONE: Self = Self(0);
    /// The kinds of records that a transaction writes to the primary of a region.
    pub const AT_PRIMARY: Self = Self::of(Kind::Lock)
        .and(Self::of(Kind::CommitPrimary))
        .and(Self::of(Kind::Abort));
    /// The kind of record that a transaction writes to a backup of a region.
    pub const AT_BACKUP: Self = Self::of(Kind::CommitBackup);
    /// The kinds of records that have the values to be written.
    const BODIES: Self = Self::of(Kind::Lock).and(Self::of(Kind::CommitBackup));

    /// Returns the evidence of one record. TRUNCATE is a record of no transaction, and tells nothing.
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Truncate => Self::NONE,
            other => Self(1 << other.code()),
        }
    }

    /// Returns the evidence that makes a region vote like this, for a machine that has only been told the vote.
    pub const fn of_vote(vote: Vote) -> Self {
        match vote {
            Vote::CommitPrimary => Self::of(Kind::CommitPrimary),
            Vote::Abort => Self::of(Kind::Abort),
            Vote::CommitBackup => Self::of(Kind::CommitBackup),
            Vote::Lock => Self::of(Kind::Lock),
            Vote::Truncated | Vote::Unknown => Self::NONE,
        }
    }

    /// Returns the evidence of a decision: the record by which a coordinator would have told it.
    pub const fn of_decision(decision: Decision) -> Self {
        match decision {
            Decision::Commit => Self::of(Kind::CommitPrimary),
            Decision::Abort => Self::of(Kind::Abort),
        }
    }

    /// Returns this evidence and the other one.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the part of this evidence that is of some kinds of records.
    #[must_use]
    pub const fn only(self, kinds: Self) -> Self {
        Self(self.0 & kinds.0)
    }

    /// Returns whether a record of this kind was found.
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & Self::of(kind).0 != 0
    }

    /// Returns whether a record was found that has the values to be written.
    pub const fn has_body(self) -> bool {
        self.0 & Self::BODIES.0 != 0
    }
}

impl From<Evidence> for u8 {
    fn from(evidence: Evidence) -> Self {
        evidence.0
    }
}

impl TryFrom<u8> for Evidence {
    type Error = &'static str;

    fn try_from(bits: u8) -> Result<Self, Self::Error> {
        let all = Self::AT_PRIMARY.and(Self::AT_BACKUP);
        match bits & !all.0 {
            0 => Ok(Self(bits)),
            _ => Err("there are no such kinds of records"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        let all = [
            Kind::Lock,
            Kind::CommitBackup,
            Kind::CommitPrimary,
            Kind::Abort,
        ];
        for kind in all {
            for other in all {
                assert_eq!(Evidence::of(kind).has(other), kind == other);
            }
            let has_body = matches!(kind, Kind::Lock | Kind::CommitBackup);
            assert_eq!(Evidence::of(kind).has_body(), has_body);
        }
        assert_eq!(Evidence::of(Kind::Truncate), Evidence::NONE);
        let at_both = Evidence::AT_PRIMARY.and(Evidence::AT_BACKUP);
        assert!(all.iter().all(|kind| at_both.has(*kind)));
        assert_eq!(
            Evidence::AT_PRIMARY.only(Evidence::AT_BACKUP),
            Evidence::NONE
        );
    }
}
