//! Identifiers of commits, and of their parts, as contexts of continuations.

use farm_core::limits::MAX_TRANSACTION_OBJECTS;
use farm_core::worker::Context;

// The index of an entry fits into half of a context.
const _: () = assert!((MAX_TRANSACTION_OBJECTS as u64) < 1 << 32);

/// Identifies a commit under way among those of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitId(pub(crate) u32);

impl CommitId {
    /// Returns the slot of the commit.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the context for a participant or an entry of the commit.
    pub(in crate::commit) fn part(self, part: u32) -> CommitPart {
        CommitPart { commit: self, part }
    }
}

impl Context for CommitId {
    #[inline]
    fn to_word(self) -> u64 {
        self.0.into()
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        Self(word as u32)
    }
}

/// A participant of a commit, or one of its entries.
#[derive(Clone, Copy, Debug)]
pub(in crate::commit) struct CommitPart {
    pub(in crate::commit) commit: CommitId,
    /// Index of the participant or the entry.
    pub(in crate::commit) part: u32,
}

impl Context for CommitPart {
    #[inline]
    fn to_word(self) -> u64 {
        (self.part, self.commit.0).to_word()
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        let (part, commit) = Context::from_word(word);
        let commit = CommitId(commit);
        Self { commit, part }
    }
}
