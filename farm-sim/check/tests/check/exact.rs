//! An exact checker of small histories, based on stateright. The simulator's tests use it, too.

use std::collections::BTreeMap;

use farm_check::history::{Access, ObjectId, Outcome, Transaction, WriteId};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// The model of the objects for stateright. An operation of the model is a whole transaction.
#[derive(Clone, Debug, Default)]
struct Objects(BTreeMap<ObjectId, WriteId>);

impl SequentialSpec for Objects {
    type Op = Vec<Access>;
    type Ret = bool;

    /// Applies a transaction and returns true, if its reads and its writes' parents match the state. Otherwise changes
    /// nothing.
    fn invoke(&mut self, accesses: &Vec<Access>) -> bool {
        let mut after = self.0.clone();
        for access in accesses {
            match *access {
                Access::Read { object, id, .. } if *after.entry(object).or_default() == id => {}
                Access::Write { object, id, parent }
                    if *after.entry(object).or_default() == parent =>
                {
                    after.insert(object, id);
                }
                _ => return false,
            }
        }
        self.0 = after;
        true
    }
}

/// Returns whether stateright accepts the transactions. Each transaction is a thread of the model.
pub(crate) fn stateright(transactions: &[Transaction]) -> bool {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, transaction) in transactions.iter().enumerate() {
        if transaction.outcome != Outcome::Aborted {
            events.push((transaction.begun, false, index));
        }
        if transaction.outcome == Outcome::Committed {
            events.push((transaction.ended, true, index));
        }
    }
    events.sort_unstable();
    let mut tester = LinearizabilityTester::new(Objects::default());
    for (_, ends, index) in events {
        let done = if ends {
            tester.on_return(index, true).is_ok()
        } else {
            let accesses = transactions[index].accesses.clone();
            tester.on_invoke(index, accesses).is_ok()
        };
        assert!(done, "stateright rejected an event");
    }
    tester.is_consistent()
}
