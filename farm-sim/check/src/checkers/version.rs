//! A version of an object, as a history tells it.

use std::fmt;

use crate::history::{ObjectId, WriteId};

/// A version of an object.
pub(super) struct Version {
    pub(super) object: ObjectId,
    pub(super) id: WriteId,
    /// Its number, if it was read.
    pub(super) number: Option<u64>,
    /// What it replaced.
    pub(super) parent: u32,
    /// What replaced it.
    pub(super) child: u32,
    /// The transaction that wrote it; [`NONE`](super::graph::NONE) wrote the initial value. Numbers from that of
    /// transactions on are of those that the history does not tell.
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
