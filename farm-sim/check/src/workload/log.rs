//! The records of a worker, for its clients and for the transactions that it ran.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::persist::{self, Asked, Entry, LogFile, Tried};
use crate::history::graph::GraphOperation;
use crate::history::{History, KeyOperation, Outcome, Transaction};

/// The records of one worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Log {
    pub(super) asked: Vec<Asked>,
    pub(super) tried: Vec<Tried>,
    pub(super) reads: Vec<Transaction>,
    pub(super) operations: Vec<KeyOperation>,
    pub(super) graph: Vec<GraphOperation>,
    pub(super) violations: Vec<String>,
    /// Cents that transactions over rows have added to the total.
    pub(super) paid_in: i64,
    /// Cents that each of the transactions over rows adds if it has taken effect, which is not known.
    pub(super) unsure: Vec<i64>,
    /// Has all of this, too.
    #[serde(skip)]
    pub(super) file: LogFile,
}

impl Log {
    /// Writes what is recorded from now on to a new file, too.
    pub(super) fn keep_in(&mut self, path: &Path) -> io::Result<()> {
        self.file = LogFile::create(path)?;
        // Transactions that others shipped before the workload was started here, and that could not be run yet.
        for tried in &self.tried {
            self.file.write(|| Entry::Tried(Cow::Borrowed(tried)));
        }
        Ok(())
    }

    /// Records that a client begins a transaction.
    pub(super) fn ask(&mut self, number: u64, client: u32, begun: u64) {
        let asked = Asked {
            number,
            client,
            begun,
            ended: None,
        };
        self.file.write(|| Entry::Asked(Cow::Borrowed(&asked)));
        self.asked.push(asked);
    }

    /// Records the outcome of a transaction. If the cluster was lost, the log may have been taken already.
    pub(super) fn end(&mut self, number: u64, at: u64, outcome: Outcome) {
        let mut asked = self.asked.iter_mut().rev();
        if let Some(asked) = asked.find(|asked| asked.number == number) {
            asked.ended = Some((at, outcome));
            self.file.write(|| Entry::Ended {
                number,
                at,
                outcome,
            });
        }
    }

    /// Records a try, before it commits. Returns its place.
    pub(super) fn attempt(&mut self, tried: Tried) -> usize {
        self.file.write(|| Entry::Tried(Cow::Borrowed(&tried)));
        self.tried.push(tried);
        self.tried.len() - 1
    }

    /// Records the outcome of a try. If the cluster was lost, the log may have been taken already.
    pub(super) fn settle(&mut self, tried: usize, committed: Option<bool>) {
        if let Some(one) = self.tried.get_mut(tried) {
            one.committed = committed;
            self.file.write(|| Entry::Settled { tried, committed });
        }
    }

    /// Records a lock-free read.
    pub(super) fn read(&mut self, read: Transaction) {
        self.file.write(|| Entry::Read(Cow::Borrowed(&read)));
        self.reads.push(read);
    }

    /// Records that an operation on a key begins, without its result. Another one of the same client replaces it.
    pub(super) fn begin(&mut self, operation: KeyOperation) {
        self.file.write(|| Entry::Begun(operation));
    }

    /// Records an operation on a key that has ended.
    pub(super) fn operate(&mut self, operation: KeyOperation) {
        self.file.write(|| Entry::Operation(operation));
        self.operations.push(operation);
    }

    /// Records what takes effect if the pending transaction over rows of a client commits; nothing once its outcome is known.
    pub(super) fn doubt(&mut self, client: u32, operations: &[KeyOperation], cents: i64) {
        self.file.write(|| Entry::Unsure {
            client,
            operations: Cow::Borrowed(operations),
            cents,
        });
    }

    /// Records that operations of a client on a graph may take effect from now on, without their end.
    pub(super) fn begin_graph(&mut self, operation: impl FnOnce() -> GraphOperation) {
        self.file
            .write(|| Entry::GraphBegun(Cow::Owned(operation())));
    }

    /// Records that those of this client have had no effect.
    pub(super) fn refuse_graph(&mut self, client: u32) {
        self.file.write(|| Entry::GraphRefused(client));
    }

    /// Records operations on a graph that have ended.
    pub(super) fn end_graph(&mut self, operation: GraphOperation) {
        self.file.write(|| Entry::Graph(Cow::Borrowed(&operation)));
        self.graph.push(operation);
    }

    /// Records the cents that a transaction over rows has added.
    pub(super) fn pay(&mut self, cents: i64) {
        self.paid_in += cents;
        self.file.write(|| Entry::Paid(cents));
    }

    /// Records a violation.
    pub(super) fn violate(&mut self, why: String) {
        self.file.write(|| Entry::Violation(Cow::Borrowed(&why)));
        self.violations.push(why);
    }

    /// Reads the log of a worker from its file. Of operations that had not ended when its process did, the results are unknown.
    ///
    /// # Errors
    /// If the file cannot be read, or an entry is malformed that is not the last one.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let mut log = Self::default();
        let mut asked = BTreeMap::new();
        let mut begun: BTreeMap<u32, KeyOperation> = BTreeMap::new();
        let mut graph: BTreeMap<u32, GraphOperation> = BTreeMap::new();
        let mut unsure: BTreeMap<u32, (Vec<KeyOperation>, i64)> = BTreeMap::new();
        for entry in persist::read(path)? {
            match entry {
                Entry::Asked(one) => {
                    asked.insert(one.number, log.asked.len());
                    log.asked.push(one.into_owned());
                }
                Entry::Ended {
                    number,
                    at,
                    outcome,
                } => {
                    let place = asked.get(&number).copied();
                    if let Some(one) = place.and_then(|place| log.asked.get_mut(place)) {
                        one.ended = Some((at, outcome));
                    }
                }
                Entry::Tried(one) => log.tried.push(one.into_owned()),
                Entry::Settled { tried, committed } => {
                    if let Some(tried) = log.tried.get_mut(tried) {
                        tried.committed = committed;
                    }
                }
                Entry::Read(one) => log.reads.push(one.into_owned()),
                Entry::Begun(one) => _ = begun.insert(one.client, one),
                Entry::Operation(one) => {
                    begun.remove(&one.client);
                    log.operations.push(one);
                }
                Entry::Unsure {
                    client,
                    operations,
                    cents,
                } => _ = unsure.insert(client, (operations.into_owned(), cents)),
                Entry::Paid(cents) => log.paid_in += cents,
                Entry::GraphBegun(one) => _ = graph.insert(one.client, one.into_owned()),
                Entry::GraphRefused(client) => _ = graph.remove(&client),
                Entry::Graph(one) => {
                    graph.remove(&one.client);
                    log.graph.push(one.into_owned());
                }
                Entry::Violation(why) => log.violations.push(why.into_owned()),
            }
        }
        log.operations.extend(begun.into_values());
        log.graph.extend(graph.into_values());
        for (operations, cents) in unsure.into_values() {
            log.operations.extend(operations);
            log.unsure.push(cents);
        }
        Ok(log)
    }

    /// Merges the logs of all workers into a history. No log may be missing.
    ///
    /// A try that did not commit becomes an aborted transaction of its own: no transaction may read its writes.
    pub fn merge(logs: Vec<Log>) -> History {
        let mut history = History::default();
        let (mut asked, mut tried) = (Vec::new(), BTreeMap::<u64, Vec<Tried>>::new());
        for log in logs {
            history.transactions.extend(log.reads);
            history.operations.extend(log.operations);
            history.graph.extend(log.graph);
            history.violations.extend(log.violations);
            asked.extend(log.asked);
            for one in log.tried {
                tried.entry(one.number).or_default().push(one);
            }
        }
        for Asked {
            number,
            client,
            begun,
            ended,
        } in asked
        {
            let tries = tried.remove(&number).unwrap_or_default();
            let (mut committed, failed): (Vec<_>, Vec<_>) = tries
                .into_iter()
                .partition(|one| one.committed != Some(false));
            let known = committed.iter().all(|one| one.committed.is_some());
            let aborted = |one: Tried| Transaction {
                client,
                begun,
                ended: begun,
                outcome: Outcome::Aborted,
                accesses: one.accesses,
            };
            history.transactions.extend(failed.into_iter().map(aborted));
            // A try is recorded before it commits. If no such try is recorded, the transaction had no effect.
            let unknown = match committed.is_empty() {
                true => Outcome::Aborted,
                false => Outcome::Unknown,
            };
            let (ended, outcome) = ended.unwrap_or((begun, unknown));
            if committed.len() > 1 || (outcome == Outcome::Aborted) != committed.is_empty() {
                let received = outcome != Outcome::Unknown;
                if received && known || committed.len() > 1 {
                    history.violations.push(format!(
                        "transaction {number:#x} committed {} times; its client received the outcome {outcome:?}",
                        committed.len()
                    ));
                }
            }
            let accesses = committed.pop().map_or(Vec::new(), |one| one.accesses);
            history.transactions.push(Transaction {
                client,
                begun,
                ended,
                outcome,
                accesses,
            });
        }
        history
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Access, KeyRequest, KeyResult, ObjectId, WriteId};

    fn tried(number: u64, committed: impl Into<Option<bool>>, id: u64) -> Tried {
        let access = Access::Write {
            object: ObjectId(1),
            id: WriteId(id),
            parent: WriteId(0),
        };
        Tried {
            number,
            committed: committed.into(),
            accesses: vec![access],
        }
    }

    fn asked(number: u64, ended: Option<(u64, Outcome)>) -> Asked {
        Asked {
            number,
            client: 3,
            begun: 10,
            ended,
        }
    }

    #[test]
    fn tries_are_joined_with_the_outcome_that_their_client_received() {
        let client = Log {
            asked: vec![
                asked(1, Some((20, Outcome::Committed))),
                asked(2, None),
                asked(3, Some((30, Outcome::Committed))),
            ],
            ..Log::default()
        };
        let executor = Log {
            tried: vec![tried(1, false, 7), tried(1, true, 8), tried(2, true, 9)],
            ..Log::default()
        };
        let history = Log::merge(vec![client, executor]);
        let outcomes: Vec<_> = history
            .transactions
            .iter()
            .map(|one| (one.outcome, one.accesses.len()))
            .collect();
        use Outcome::{Aborted, Committed, Unknown};
        assert_eq!(
            outcomes,
            [(Aborted, 1), (Committed, 1), (Unknown, 1), (Committed, 0)]
        );
        assert_eq!(history.violations.len(), 1, "the third was never executed");
    }

    fn operation(client: u32, begun: u64, result: Option<KeyResult>) -> KeyOperation {
        KeyOperation {
            client,
            key: 9,
            begun,
            ended: begun + 1,
            request: KeyRequest::Insert(7),
            result,
        }
    }

    #[test]
    fn a_log_is_read_from_its_file_wherever_its_process_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::default();
        log.attempt(Tried {
            number: 9,
            committed: Some(false),
            accesses: Vec::new(),
        });
        log.keep_in(&path).unwrap();
        log.ask(1, 2, 3);
        let tried = log.attempt(Tried {
            number: 1,
            committed: None,
            accesses: Vec::new(),
        });
        log.begin(operation(5, 10, None));
        log.begin(operation(6, 11, None));
        log.operate(operation(5, 10, Some(KeyResult::Inserted)));
        log.violate("torn".to_owned());
        let middle = std::fs::read(&path).unwrap();
        log.settle(tried, Some(true));
        log.end(1, 20, Outcome::Committed);
        let read = Log::from_file(&path).unwrap();
        assert_eq!(read.asked[0].ended, Some((20, Outcome::Committed)));
        assert_eq!(read.tried[0].committed, Some(false));
        assert_eq!(read.tried[1].committed, Some(true));
        let unknown = operation(6, 11, None);
        assert_eq!(read.operations, [log.operations[0], unknown]);
        assert_eq!(read.violations, ["torn"]);
        // Killed before the outcome was known, and in the middle of an entry.
        std::fs::write(&path, [&middle[..], b"{\"Sett"].concat()).unwrap();
        let read = Log::from_file(&path).unwrap();
        assert_eq!(read.tried[1].committed, None);
        assert_eq!(read.asked[0].ended, None);
        std::fs::write(&path, [b"{\"Sett\n", &middle[..]].concat()).unwrap();
        assert!(Log::from_file(&path).is_err());
    }
}
