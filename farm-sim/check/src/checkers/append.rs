//! Converts transactions to a history of appends to lists, which the checker `adya` (Elle's method) and other tools
//! read.
//!
//! A write becomes an append of its id to the object's list. A read becomes a read of the list of all writes that led
//! to the value; each value records the write that it replaced. A transaction of unknown outcome completes at the end
//! of the history if it took effect; otherwise it never completes. If a client begins a transaction before its earlier
//! transactions have completed, the new transaction gets a new process, as in Jepsen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::history::{Access, History, ObjectId, Outcome, Transaction, WriteId};
use adya::history::{Id, Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{Opts, Report, Valid, Workload};
use serde_json::{Value, json};

use super::versions::effective;

/// Maximum number of examples of one anomaly that a verdict lists.
const MOST_EXAMPLES: usize = 2;

/// Time limit for `adya` to name a cycle. After the limit, `adya` still reports that a cycle exists.
const PATIENCE: Duration = Duration::from_secs(10);

/// An access in the list-append format. The list of a read is `None` if its result is not known.
enum Micro {
    Append(ObjectId, WriteId),
    Read(ObjectId, Option<Vec<WriteId>>),
}

/// An operation in the list-append format: an invocation, or its completion.
struct Entry {
    kind: OpType,
    process: u32,
    time: Option<u64>,
    micros: Vec<Micro>,
}

/// The write that each write replaced, as far as an access records it.
struct Parents(BTreeMap<(ObjectId, WriteId), WriteId>);

impl Parents {
    fn of(transactions: &[Transaction], effective: &[bool]) -> Self {
        let mut parents = BTreeMap::new();
        let all = transactions.iter().flat_map(|t| &t.accesses);
        for access in all {
            if let Access::Write { object, id, parent } = *access {
                parents.entry((object, id)).or_insert(parent);
            }
        }
        for (transaction, _) in transactions.iter().zip(effective).filter(|(_, e)| **e) {
            for access in &transaction.accesses {
                if let Access::Read {
                    object, id, parent, ..
                } = *access
                {
                    parents.entry((object, id)).or_insert(parent);
                }
            }
        }
        Self(parents)
    }

    /// Returns the list that ends with `id`, which replaced `parent`.
    fn list(&self, object: ObjectId, id: WriteId, parent: WriteId) -> Result<Vec<WriteId>, String> {
        let mut list = Vec::new();
        let (mut at, mut before) = (id, Some(parent));
        while at != WriteId::INITIAL {
            list.push(at);
            let Some(next) = before else {
                return Err(format!(
                    "no access records what write {} of object {} replaced, so the list that ends with write {} is \
                     unknown",
                    at.0, object.0, id.0
                ));
            };
            if list.len() > self.0.len() + 1 {
                let (object, id) = (object.0, id.0);
                return Err(format!(
                    "write {id} of object {object} led to itself: the writes form a circle"
                ));
            }
            at = next;
            before = self.0.get(&(object, at)).copied();
        }
        list.reverse();
        Ok(list)
    }
}

/// Checks that `adya` finds the transactions of a history strictly serializable.
///
/// # Errors
///
/// The anomalies that `adya` found. It is also an error if `adya` reaches no verdict, or if the history cannot be
/// converted: the chain of some version is broken, or a write is not unique.
pub fn judge(history: &History) -> Result<(), String> {
    let entries = entries(&history.transactions)?;
    check_unique(&entries)?;
    let mut interner = Interner::default();
    let ops = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| op(index, entry, &mut interner))
        .collect();
    let history = adya::History::from_ops(ops, interner);
    let options = Opts {
        timeout: PATIENCE,
        ..Opts::default()
    };
    let report = adya::check(&history, Workload::ListAppend, &options);
    // If no transaction depends on any other, every order is correct.
    let independent = report.anomaly_types == ["empty-transaction-graph"];
    match report.valid {
        Valid::True => Ok(()),
        Valid::Unknown if independent => Ok(()),
        Valid::False => Err(describe(&report)),
        Valid::Unknown => Err(format!("adya reached no verdict\n{}", describe(&report))),
    }
}

/// Returns the transactions as the lines of JSON that `adya` and `elle-cli` read, for the model list-append.
///
/// # Errors
///
/// If the chain of some version is broken, or a transaction ended before it began.
pub fn to_json_lines(history: &History) -> Result<String, String> {
    let mut lines = String::new();
    for (index, entry) in entries(&history.transactions)?.iter().enumerate() {
        let micros: Vec<Value> = entry.micros.iter().map(as_json).collect();
        let mut line = json!({
            "index": index,
            "type": match entry.kind {
                OpType::Invoke => "invoke",
                OpType::Ok => "ok",
                OpType::Fail => "fail",
                OpType::Info => "info",
            },
            "f": "txn",
            "process": entry.process,
            "value": micros,
        });
        if let Some(time) = entry.time {
            line["time"] = json!(time);
        }
        let _ = writeln!(lines, "{line}");
    }
    Ok(lines)
}

/// Returns the invocations and completions in order of time. At equal moments, invocations are first.
fn entries(transactions: &[Transaction]) -> Result<Vec<Entry>, String> {
    let effective = effective(transactions);
    let parents = Parents::of(transactions, &effective);
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(transactions.len() * 2);
    for (index, transaction) in transactions.iter().enumerate() {
        events.push((transaction.begun, false, index));
        if transaction.outcome != Outcome::Unknown {
            if transaction.ended < transaction.begun {
                return Err(format!("transaction T{index} ended before it began"));
            }
            events.push((transaction.ended, true, index));
        }
    }
    events.sort_unstable();
    let unknown = transactions.iter().enumerate();
    let unknown = unknown.filter(|(_, t)| t.outcome == Outcome::Unknown);
    let ends = unknown.map(|(index, _)| (u64::MAX, true, index));
    let mut processes = Processes::of(transactions);
    let mut entries = Vec::with_capacity(transactions.len() * 2);
    for (time, ends, index) in events.into_iter().chain(ends) {
        let transaction = &transactions[index];
        let (kind, process) = if !ends {
            (OpType::Invoke, processes.begin(index, transaction.client))
        } else {
            let kind = match transaction.outcome {
                Outcome::Aborted => OpType::Fail,
                _ if effective[index] => OpType::Ok,
                _ => OpType::Info,
            };
            (kind, processes.end(index, transaction.client))
        };
        let micros = match kind {
            OpType::Ok => completed(transaction, &parents)?,
            _ => requested(transaction),
        };
        entries.push(Entry {
            kind,
            process,
            time: (!ends || transaction.outcome != Outcome::Unknown).then_some(time),
            micros,
        });
    }
    Ok(entries)
}

/// Returns the accesses of an invocation, or of a completion without results.
fn requested(transaction: &Transaction) -> Vec<Micro> {
    let accesses = transaction.accesses.iter();
    accesses
        .map(|access| match *access {
            Access::Read { object, .. } => Micro::Read(object, None),
            Access::Write { object, id, .. } => Micro::Append(object, id),
        })
        .collect()
}

/// Returns the accesses of a successful completion, with the lists that were read.
fn completed(transaction: &Transaction, parents: &Parents) -> Result<Vec<Micro>, String> {
    let accesses = transaction.accesses.iter();
    accesses
        .map(|access| match *access {
            Access::Read {
                object, id, parent, ..
            } => Ok(Micro::Read(object, Some(parents.list(object, id, parent)?))),
            Access::Write { object, id, .. } => Ok(Micro::Append(object, id)),
        })
        .collect()
}

/// Assigns a process to each transaction: the number of its client, or a new number while that process is busy.
struct Processes {
    next: u32,
    /// Processes of each client that have no transaction under way.
    free: BTreeMap<u32, Vec<u32>>,
    /// The process of each transaction under way, by the transaction's index in the history.
    busy: BTreeMap<usize, u32>,
}

impl Processes {
    fn of(transactions: &[Transaction]) -> Self {
        let clients = transactions.iter().map(|transaction| transaction.client);
        let free: BTreeMap<u32, Vec<u32>> = clients.map(|client| (client, vec![client])).collect();
        Self {
            next: free.last_key_value().map_or(0, |(last, _)| *last) + 1,
            free,
            busy: BTreeMap::new(),
        }
    }

    fn begin(&mut self, index: usize, client: u32) -> u32 {
        let free = self.free.get_mut(&client).and_then(Vec::pop);
        let process = free.unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.busy.insert(index, process);
        process
    }

    fn end(&mut self, index: usize, client: u32) -> u32 {
        let process = self.busy.remove(&index);
        let process = process.expect("a transaction begins before it ends");
        self.free.entry(client).or_default().push(process);
        process
    }
}

/// Checks that every write is unique. `adya` cannot analyse a history that appends a number twice, and calls it valid.
fn check_unique(entries: &[Entry]) -> Result<(), String> {
    let mut appended = BTreeSet::new();
    let invoked = entries.iter().filter(|entry| entry.kind == OpType::Invoke);
    for micro in invoked.flat_map(|entry| &entry.micros) {
        if let Micro::Append(object, id) = *micro
            && !appended.insert((object, id))
        {
            return Err(format!(
                "write {} of object {} was made twice",
                id.0, object.0
            ));
        }
    }
    Ok(())
}

fn op(index: usize, entry: &Entry, interner: &mut Interner) -> Op {
    let value = entry.micros.iter().map(|m| mop(m, interner)).collect();
    Op {
        index: index as u64,
        kind: entry.kind,
        process: Some(i64::from(entry.process)),
        value,
        time: entry.time.and_then(|time| i64::try_from(time).ok()),
    }
}

fn mop(micro: &Micro, interner: &mut Interner) -> Mop {
    // Numbers outside the range of the format become texts: otherwise they would collide.
    let mut id = |number: u64| -> Id {
        interner.intern(match i64::try_from(number) {
            Ok(number) => Scalar::Int(number),
            Err(_) => Scalar::Str(number.to_string()),
        })
    };
    match micro {
        Micro::Append(object, write) => Mop::Append {
            key: id(u64::from(object.0)),
            value: id(write.0),
        },
        Micro::Read(object, None) => Mop::Read {
            key: id(u64::from(object.0)),
            value: ReadValue::Nil,
        },
        Micro::Read(object, Some(list)) => Mop::Read {
            key: id(u64::from(object.0)),
            value: ReadValue::List(list.iter().map(|write| id(write.0)).collect()),
        },
    }
}

fn as_json(micro: &Micro) -> Value {
    let number = |number: u64| match i64::try_from(number) {
        Ok(number) => json!(number),
        Err(_) => json!(number.to_string()),
    };
    match micro {
        Micro::Append(object, id) => json!(["append", object.0, number(id.0)]),
        Micro::Read(object, None) => json!(["r", object.0, null]),
        Micro::Read(object, Some(list)) => {
            let list: Vec<Value> = list.iter().map(|id| number(id.0)).collect();
            json!(["r", object.0, list])
        }
    }
}

fn describe(report: &Report) -> String {
    let mut text = report.anomaly_types.join(", ");
    for (kind, anomalies) in &report.anomalies {
        for anomaly in anomalies.iter().take(MOST_EXAMPLES) {
            let _ = write!(text, "\n{kind}: {}", anomaly.explanation.trim_end());
        }
    }
    text
}
