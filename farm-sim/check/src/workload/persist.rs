//! A log in a file, which outlives its process: it has everything that may have taken effect, whenever the process is killed.
//!
//! Each entry is a line of JSON, written before what it records can take effect.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::history::graph::GraphOperation;
use crate::history::{Access, KeyOperation, Outcome, Transaction};

/// A transaction, as recorded for its client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) client: u32,
    pub(super) begun: u64,
    /// The moment of its end and its outcome; `None` while that is not known.
    pub(super) ended: Option<(u64, Outcome)>,
}

/// One try of a transaction, as recorded by the worker that ran it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tried {
    pub(super) number: u64,
    /// Whether the try committed; `None` while that is not known.
    pub(super) committed: Option<bool>,
    pub(super) accesses: Vec<Access>,
}

/// An entry.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Entry<'a> {
    /// A client begins a transaction.
    Asked(Cow<'a, Asked>),
    /// The client of a transaction has received its outcome.
    Ended {
        number: u64,
        at: u64,
        outcome: Outcome,
    },
    /// A try is about to commit.
    Tried(Cow<'a, Tried>),
    /// The outcome of a try, by its place among those of this log.
    Settled {
        tried: usize,
        committed: Option<bool>,
    },
    /// A lock-free read.
    Read(Cow<'a, Transaction>),
    /// A client begins an operation on a key.
    Begun(KeyOperation),
    /// The operation on a key has ended.
    Operation(KeyOperation),
    /// What takes effect if the pending transaction over rows of a client commits: its operations on keys, and the cents that it adds.
    Unsure {
        client: u32,
        operations: Cow<'a, [KeyOperation]>,
        cents: i64,
    },
    /// A transaction over rows has added these cents.
    Paid(i64),
    /// Operations of a client on a graph may take effect from now on.
    GraphBegun(Cow<'a, GraphOperation>),
    /// Those of this client have had no effect.
    GraphRefused(u32),
    /// Operations on a graph have ended.
    Graph(Cow<'a, GraphOperation>),
    Violation(Cow<'a, str>),
}

/// The file of a log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogFile(Option<Arc<File>>);

impl LogFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Some(Arc::new(File::create_new(path)?))))
    }

    /// Writes an entry, if there is a file. One that cannot be written ends the process: the history would be wrong.
    pub(super) fn write<'a>(&self, entry: impl FnOnce() -> Entry<'a>) {
        let Some(file) = &self.0 else { return };
        let mut line = serde_json::to_vec(&entry()).expect("an entry can be written as JSON");
        line.push(b'\n');
        let written = (&**file).write_all(&line);
        written.expect("the file of the workload's log can be written");
    }
}

/// Reads the entries of a file.
///
/// # Errors
/// If the file cannot be read, or an entry is malformed that is not the last one.
pub(super) fn read(path: &Path) -> io::Result<Vec<Entry<'static>>> {
    let mut entries = Vec::new();
    let mut lines = io::BufReader::new(File::open(path)?).lines().peekable();
    while let Some(line) = lines.next() {
        match serde_json::from_str(&line?) {
            Ok(entry) => entries.push(entry),
            // The process was killed while it wrote.
            Err(_) if lines.peek().is_none() => break,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(entries)
}
