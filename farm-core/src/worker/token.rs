//! The tokens of fabric operations, which identify the owners of completions.

use crate::fabric::Token;

/// The owner of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completed {
    /// A read; its slot identifies it.
    Read,
    /// A write into a log, by the index of the continuation that waits for its acknowledgement.
    LogWrite(usize),
}

impl Completed {
    /// Returns the token of the operation.
    #[inline]
    pub(super) fn token(self) -> Token {
        match self {
            Completed::Read => Token(0),
            Completed::LogWrite(index) => Token(index as u64 + 1),
        }
    }

    /// Returns the owner of the operation with this token.
    #[inline]
    pub(super) fn of(token: Token) -> Self {
        match token.0.checked_sub(1) {
            None => Completed::Read,
            Some(index) => Completed::LogWrite(index as usize),
        }
    }
}
