//! Formats findings as text: the transactions involved, and why a transaction must precede another.

use std::fmt::Write as _;

use crate::history::{Access, Outcome, Transaction};

use super::finding::Anomaly;
use super::graph::{Edge, Kinds, NONE};
use super::version::Version;

/// Maximum number of accesses of a transaction that are listed.
const MOST_ACCESSES: usize = 24;

/// The transactions of a history. A transaction is named by its index there.
pub(super) struct Names<'h>(pub(super) &'h [Transaction]);

impl Names<'_> {
    /// Returns the name of a transaction. `T` names the listed ones. `U` names those that the history does not list;
    /// their indices follow the listed ones.
    fn name(&self, transaction: u32) -> String {
        let listed = self.0.len() as u32;
        match transaction.checked_sub(listed) {
            None => format!("T{transaction}"),
            Some(unlisted) => format!("U{unlisted}"),
        }
    }

    /// Describes these transactions, one per line. Ignores [`NONE`] and duplicates.
    pub(super) fn describe(&self, transactions: &[u32]) -> String {
        let mut listed: Vec<u32> = Vec::new();
        for &transaction in transactions {
            if transaction != NONE && !listed.contains(&transaction) {
                listed.push(transaction);
            }
        }
        let lines: Vec<String> = listed.iter().map(|t| self.line(*t)).collect();
        lines.join("\n")
    }

    fn line(&self, index: u32) -> String {
        let name = self.name(index);
        let Some(transaction) = self.0.get(index as usize) else {
            return format!("  {name} = a transaction of unknown outcome that is not listed");
        };
        let Transaction {
            client,
            begun,
            ended,
            ..
        } = transaction;
        let mut line = match transaction.outcome {
            Outcome::Committed => format!("  {name} = client {client}, {begun} to {ended}:"),
            Outcome::Aborted => format!("  {name} = client {client}, {begun} to {ended}, aborted:"),
            Outcome::Unknown => format!("  {name} = client {client}, from {begun} on, unknown:"),
        };
        for access in transaction.accesses.iter().take(MOST_ACCESSES) {
            line.push_str(&in_words(access));
        }
        if transaction.accesses.len() > MOST_ACCESSES {
            let _ = write!(line, " … {} accesses", transaction.accesses.len());
        }
        line
    }

    /// Describes a cycle: its transactions, whose indices are below `transactions`, and why each of them precedes the
    /// next.
    pub(super) fn cycle(&self, cycle: &[Edge], transactions: u32, versions: &[Version]) -> String {
        // Moments have indices from `transactions` on. They are omitted: the reason of an edge names the two
        // transactions that the moments connect.
        let edges = cycle.iter().filter(|edge| edge.from < transactions);
        let who: Vec<u32> = edges.clone().map(|edge| edge.from).collect();
        let mut text = format!("a cycle of {}\n{}", who.len(), self.describe(&who));
        for (edge, to) in edges.zip(who.iter().cycle().skip(1)) {
            let _ = write!(text, "\n  {}", self.reason(edge, *to, versions));
        }
        text
    }

    fn reason(&self, edge: &Edge, to: u32, versions: &[Version]) -> String {
        let (a, b) = (self.name(edge.from), self.name(to));
        let version = |at: u32| &versions[at as usize];
        if edge.kind == Kinds::REAL_TIME {
            let ended = self.0[edge.from as usize].ended;
            let begun = match self.0.get(to as usize) {
                Some(transaction) => format!(" at {}", transaction.begun),
                None => String::new(),
            };
            return format!("{a} -rt-> {b}: {a} ended at {ended}, before {b} began{begun}");
        }
        let what = version(edge.version);
        if edge.kind == Kinds::WW {
            let old = version(what.parent);
            format!("{a} -ww-> {b}: {b} replaced {a}'s {old} by {what}")
        } else if edge.kind == Kinds::WR {
            format!("{a} -wr-> {b}: {b} read {a}'s {what}")
        } else {
            let new = version(what.child);
            format!("{a} -rw-> {b}: {a} read {what}, which {b} replaced by {new}")
        }
    }
}

fn in_words(access: &Access) -> String {
    match access {
        Access::Read {
            object,
            version,
            id,
            parent,
        } => format!(
            " read {}: {} (version {version}, after {});",
            object.0, id.0, parent.0
        ),
        Access::Write { object, id, parent } => {
            format!(" write {}: {} after {};", object.0, id.0, parent.0)
        }
    }
}

/// Returns the anomaly of a version that was read although no effective transaction wrote it. Returns `None` if a
/// transaction of unknown outcome that lists no accesses may have written it.
pub(super) fn missing_writer(names: &Names, version: &Version) -> Option<(Anomaly, String)> {
    let mut elsewhere = None;
    for (index, transaction) in names.0.iter().enumerate() {
        for access in &transaction.accesses {
            let Access::Write { object, id, .. } = access else {
                continue;
            };
            if *id != version.id {
                continue;
            }
            let line = names.line(index as u32);
            if *object == version.object {
                let text =
                    format!("{version} was read or replaced, but its writer had no effect\n{line}");
                return Some((Anomaly::AbortedRead, text));
            }
            elsewhere = Some(format!(
                "{version} was read or replaced, but that write is of object {}\n{line}",
                object.0
            ));
        }
    }
    // Such a transaction may have made any access.
    let unknown = |transaction: &Transaction| {
        transaction.outcome == Outcome::Unknown && transaction.accesses.is_empty()
    };
    if elsewhere.is_none() && names.0.iter().any(unknown) {
        return None;
    }
    let text = elsewhere
        .unwrap_or_else(|| format!("{version} was read or replaced, but no transaction wrote it"));
    Some((Anomaly::UnknownValue, text))
}
