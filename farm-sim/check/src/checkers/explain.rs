//! Findings in words: who did what, when, and why one must have come before the other.

use std::fmt::Write as _;

use crate::history::{Access, Outcome, Transaction};

use super::finding::Anomaly;
use super::graph::{Edge, Kinds, NONE};
use super::version::Version;

/// Most accesses of a transaction that are told.
const MOST_ACCESSES: usize = 24;

/// The transactions of a history, which are named by their place in it.
pub(super) struct Names<'h>(pub(super) &'h [Transaction]);

impl Names<'_> {
    /// What a transaction is called. Those that the history does not list come after those it does.
    fn name(&self, transaction: u32) -> String {
        let listed = self.0.len() as u32;
        match transaction.checked_sub(listed) {
            None => format!("T{transaction}"),
            Some(unlisted) => format!("U{unlisted}"),
        }
    }

    /// A line for each of these transactions, of which some may be nobody.
    pub(super) fn tell(&self, transactions: &[u32]) -> String {
        let mut told: Vec<u32> = Vec::new();
        for &transaction in transactions {
            if transaction != NONE && !told.contains(&transaction) {
                told.push(transaction);
            }
        }
        let lines: Vec<String> = told.iter().map(|t| self.line(*t)).collect();
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

    /// A cycle: its transactions, which are numbered below `transactions`, then why each comes before the
    /// next.
    pub(super) fn cycle(&self, cycle: &[Edge], transactions: u32, versions: &[Version]) -> String {
        // Moments come after transactions, and are named by those that they lie between.
        let edges = cycle.iter().filter(|edge| edge.from < transactions);
        let who: Vec<u32> = edges.clone().map(|edge| edge.from).collect();
        let mut text = format!("a cycle of {}\n{}", who.len(), self.tell(&who));
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
            format!("{a} -ww-> {b}: {b} made {what} of {a}'s {old}")
        } else if edge.kind == Kinds::WR {
            format!("{a} -wr-> {b}: {b} saw {a}'s {what}")
        } else {
            let new = version(what.child);
            format!("{a} -rw-> {b}: {a} saw {what}, which {b} replaced by {new}")
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

/// Why a version is wrong that no transaction wrote that took effect; none, if one of unknown outcome
/// may have written it without telling.
pub(super) fn nobody_wrote(names: &Names, version: &Version) -> Option<(Anomaly, String)> {
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
                let text = format!("{version} was seen, but its writer had no effect\n{line}");
                return Some((Anomaly::AbortedRead, text));
            }
            elsewhere = Some(format!(
                "{version} was seen, but is of object {}\n{line}",
                object.0
            ));
        }
    }
    // What it did may not be told at all.
    let unknown = |transaction: &Transaction| {
        transaction.outcome == Outcome::Unknown && transaction.accesses.is_empty()
    };
    if elsewhere.is_none() && names.0.iter().any(unknown) {
        return None;
    }
    let text = elsewhere.unwrap_or_else(|| format!("{version} was seen, but nobody wrote it"));
    Some((Anomaly::UnknownValue, text))
}
