//! Handles of open transactions.

use farm_core::worker::Context;

use crate::tx::Tx;

/// Identifies an open transaction of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxHandle {
    pub(crate) key: u32,
    pub(crate) generation: u32,
}

impl TxHandle {
    /// Returns the handle as the context of a continuation.
    pub fn to_context(self) -> u64 {
        self.to_word()
    }

    /// Returns the handle from which [`TxHandle::to_context`] made the context.
    pub fn from_context(context: u64) -> Self {
        Self::from_word(context)
    }
}

impl Context for TxHandle {
    #[inline(always)]
    fn to_word(self) -> u64 {
        (self.key, self.generation).to_word()
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        let (key, generation) = Context::from_word(word);
        Self { key, generation }
    }
}

/// An open transaction.
pub(crate) struct OpenTx {
    pub(crate) generation: u32,
    /// Context of the transaction; `None` while a call uses it.
    pub(crate) tx: Option<Box<Tx>>,
    /// Key of the run to which the transaction belongs as an attempt, if any.
    pub(crate) run: Option<usize>,
}
