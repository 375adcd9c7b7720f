//! The records of a worker, for its clients and for the transactions that it ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::graph::GraphOperation;
use crate::history::{Access, History, KeyOperation, Outcome, Transaction};

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

/// The records of one worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Log {
    pub(super) asked: Vec<Asked>,
    pub(super) tried: Vec<Tried>,
    pub(super) reads: Vec<Transaction>,
    pub(super) operations: Vec<KeyOperation>,
    pub(super) graph: Vec<GraphOperation>,
    pub(super) violations: Vec<String>,
}

impl Log {
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
    use crate::history::{ObjectId, WriteId};

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
}
