//! What a worker recorded, as client and as executor of others' transactions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::{Access, History, KeyOperation, Outcome, Transaction};

/// A transaction as its client saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) client: u32,
    pub(super) begun: u64,
    /// When and how it ended; `None` while that is not known.
    pub(super) ended: Option<(u64, Outcome)>,
}

/// One try of a transaction as its executor made it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tried {
    pub(super) number: u64,
    /// `None` while that is not known.
    pub(super) committed: Option<bool>,
    pub(super) accesses: Vec<Access>,
}

/// What one worker recorded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Log {
    pub(super) asked: Vec<Asked>,
    pub(super) tried: Vec<Tried>,
    pub(super) reads: Vec<Transaction>,
    pub(super) operations: Vec<KeyOperation>,
    pub(super) violations: Vec<String>,
}

impl Log {
    /// The history that all workers' logs together are; that of no worker may be missing.
    ///
    /// A try that did not commit is an aborted transaction of its own: nobody may see what it wrote.
    pub fn merge(logs: Vec<Log>) -> History {
        let mut history = History::default();
        let (mut asked, mut tried) = (Vec::new(), BTreeMap::<u64, Vec<Tried>>::new());
        for log in logs {
            history.transactions.extend(log.reads);
            history.operations.extend(log.operations);
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
            // A try is noted before it commits: where there is none, nothing took effect.
            let unknown = match committed.is_empty() {
                true => Outcome::Aborted,
                false => Outcome::Unknown,
            };
            let (ended, outcome) = ended.unwrap_or((begun, unknown));
            if committed.len() > 1 || (outcome == Outcome::Aborted) != committed.is_empty() {
                let heard = outcome != Outcome::Unknown;
                if heard && known || committed.len() > 1 {
                    history.violations.push(format!(
                        "transaction {number:#x} committed {} times, its client heard {outcome:?}",
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
    fn tries_are_joined_with_what_their_client_heard() {
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
