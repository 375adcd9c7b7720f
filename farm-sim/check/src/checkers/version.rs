//! A version of an object, as derived from a history.

use std::fmt;

use crate::history::{ObjectId, WriteId};

/// A version of an object.
pub(super) struct Version {
    pub(super) object: ObjectId,
    pub(super) id: WriteId,
    /// The version number, if a transaction read it.
    pub(super) number: Option<u64>,
    /// Index of the version that it replaced, or [`NONE`](super::graph::NONE).
    pub(super) parent: u32,
    /// Index of the version that replaced it, or [`NONE`](super::graph::NONE).
    pub(super) child: u32,
    /// Index of the transaction that wrote it; [`NONE`](super::graph::NONE) for the initial value. Indices beyond the
    /// listed transactions stand for writers that the history does not list.
    pub(super) writer: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (object, id) = (self.object.0, self.id.0);
        if self.id == WriteId::INITIAL {
            write!(f, "the initial value of object {object}")?;
        } else {
            write!(f, "write {id} of object {object}")?;
        }
        match self.number {
            Some(number) => write!(f, " (version {number})"),
            None => Ok(()),
        }
    }
}
