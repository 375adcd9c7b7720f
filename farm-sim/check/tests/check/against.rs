//! Random transactions. Executed one after the other, they are correct. After small changes they are correct or wrong,
//! and this project's checker must agree with the independent ones.

use std::cell::Cell;
use std::collections::BTreeMap;

use farm_check::checkers::{Anomaly, Finding, append, serial};
use farm_check::history::{Access, History, ObjectId, Outcome, Transaction, WriteId};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::exact::stateright;

/// A planned transaction: its objects and whether each is written, the client's waits before and after the transaction
/// took effect, its outcome, and its client.
#[derive(Clone, Debug)]
struct Plan {
    accesses: BTreeMap<u32, bool>,
    before: u64,
    after: u64,
    ending: u8,
    client: u32,
}

fn plans(most: usize) -> impl Strategy<Value = Vec<Plan>> {
    let accesses = prop::collection::btree_map(0u32..3, any::<bool>(), 1..4);
    let plan = (accesses, 0u64..25, 0u64..25, 0u8..12, 0u32..4);
    let plan = plan.prop_map(|(accesses, before, after, ending, client)| Plan {
        accesses,
        before,
        after,
        ending,
        client,
    });
    prop::collection::vec(plan, 1..=most)
}

/// A change to a history: its kind (`what`), the transaction (`whom`) and a parameter (`by`).
#[derive(Clone, Copy, Debug)]
struct Change {
    what: u8,
    whom: usize,
    by: u64,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = (0u8..6, any::<u16>(), 0u64..90);
    let change = change.prop_map(|(what, whom, by)| Change {
        what,
        whom: whom.into(),
        by,
    });
    prop::collection::vec(change, 1..6)
}

/// Executes plans one after the other, ten moments apart.
fn execute(plans: &[Plan]) -> Vec<Transaction> {
    let mut state = [WriteId::INITIAL; 3];
    let mut transactions = Vec::new();
    for (moment, plan) in (1..).zip(plans) {
        let (outcome, effective) = match plan.ending {
            0 => (Outcome::Aborted, false),
            1 => (Outcome::Unknown, false),
            2 => (Outcome::Unknown, true),
            _ => (Outcome::Committed, true),
        };
        let mut accesses = Vec::new();
        for (&object, &writes) in &plan.accesses {
            let (parent, id) = (
                state[object as usize],
                WriteId(moment * 10 + u64::from(object)),
            );
            let object = ObjectId(object);
            accesses.push(Access::Read {
                object,
                version: 0,
                id: parent,
                parent: WriteId::INITIAL,
            });
            if writes {
                accesses.push(Access::Write { object, id, parent });
                if effective {
                    state[object.0 as usize] = id;
                }
            }
        }
        transactions.push(Transaction {
            client: plan.client,
            begun: (moment * 10 + 20).saturating_sub(plan.before),
            ended: moment * 10 + 20 + plan.after,
            outcome,
            accesses,
        });
    }
    transactions
}

/// Applies a change. If `linked`, a transaction's write always replaces the version that the transaction read.
fn apply(change: Change, transactions: &mut [Transaction], linked: bool) {
    let Change { what, whom, by } = change;
    let count = transactions.len();
    let transaction = &mut transactions[whom % count];
    match what {
        0 => {
            transaction.begun = by;
            transaction.ended = transaction.ended.max(by);
        }
        1 => {
            transaction.ended = by;
            transaction.begun = transaction.begun.min(by);
        }
        2 => {
            transaction.outcome = match by % 3 {
                0 => Outcome::Committed,
                1 => Outcome::Aborted,
                _ => Outcome::Unknown,
            };
        }
        _ => reread(transactions, whom, by, linked || what == 3),
    }
}

/// Changes the write of an object that a transaction read.
fn reread(transactions: &mut [Transaction], whom: usize, by: u64, linked: bool) {
    let writes: Vec<(ObjectId, WriteId)> = transactions
        .iter()
        .flat_map(|transaction| &transaction.accesses)
        .filter_map(|access| match *access {
            Access::Write { object, id, .. } => Some((object, id)),
            Access::Read { .. } => None,
        })
        .collect();
    let count = transactions.len();
    let accesses = &mut transactions[whom % count].accesses;
    let which = whom / count % accesses.len();
    let Access::Read { object, .. } = accesses[which] else {
        return;
    };
    let mut choice = vec![WriteId::INITIAL];
    choice.extend(
        writes
            .iter()
            .filter(|write| write.0 == object)
            .map(|write| write.1),
    );
    let other = choice[by as usize % choice.len()];
    for access in accesses.iter_mut() {
        match access {
            Access::Read { object: of, id, .. } if *of == object => *id = other,
            Access::Write {
                object: of, parent, ..
            } if *of == object && linked => *parent = other,
            _ => {}
        }
    }
}

/// Sets the versions and parents of reads as they follow from the writes.
fn restore_versions(transactions: &mut [Transaction]) {
    let mut parents: BTreeMap<(ObjectId, WriteId), WriteId> = BTreeMap::new();
    for access in transactions
        .iter()
        .flat_map(|transaction| &transaction.accesses)
    {
        if let Access::Write { object, id, parent } = *access {
            parents.insert((object, id), parent);
        }
    }
    for access in transactions
        .iter_mut()
        .flat_map(|transaction| &mut transaction.accesses)
    {
        let Access::Read {
            object,
            version,
            id,
            parent,
        } = access
        else {
            continue;
        };
        let before = |id: WriteId| parents.get(&(*object, id)).copied();
        *parent = before(*id).unwrap_or(WriteId::INITIAL);
        let line = std::iter::successors(Some(*id), |id| before(*id));
        *version = line.take(50).count() as u64;
    }
}

fn changed(plans: &[Plan], changes: &[Change], linked: bool) -> Vec<Transaction> {
    let mut transactions = execute(plans);
    for change in changes {
        apply(*change, &mut transactions, linked);
    }
    restore_versions(&mut transactions);
    transactions
}

/// Runs a comparison on many random histories. At least one in eight must be correct, and one in eight wrong.
fn compare(
    cases: u32,
    most: usize,
    linked: bool,
    same: impl Fn(&[Transaction], Result<(), Finding>) -> Result<(), TestCaseError>,
) {
    // A failure prints the whole history, so no seed file is needed.
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    };
    let mut runner = TestRunner::new(config);
    let (right, wrong) = (Cell::new(0), Cell::new(0));
    let verdict = runner.run(&(plans(most), changes()), |(plans, changes)| {
        let transactions = changed(&plans, &changes, linked);
        let verdict = serial::check(&transactions).map(|_| ());
        let count = if verdict.is_ok() { &right } else { &wrong };
        count.set(count.get() + 1);
        same(&transactions, verdict)
    });
    if let Err(error) = verdict {
        panic!("{error}");
    }
    let least = right.get().min(wrong.get());
    assert!(
        least > cases / 8,
        "the histories are too uniform: {right:?} were correct, {wrong:?} wrong"
    );
}

#[test]
fn serial_check_agrees_with_stateright() {
    compare(2000, 6, false, |transactions, verdict| {
        let exact = stateright(transactions);
        prop_assert_eq!(exact, verdict.is_ok(), "{:?}\n{:#?}", verdict, transactions);
        Ok(())
    });
}

#[test]
fn serial_check_agrees_with_adya() {
    compare(600, 12, true, |transactions, verdict| {
        if let Err(Finding {
            kind: Anomaly::UnknownValue,
            ..
        }) = verdict
        {
            return Ok(()); // adya does not detect this anomaly.
        }
        let history = History {
            transactions: transactions.to_vec(),
            ..History::default()
        };
        let theirs = append::judge(&history);
        prop_assert_eq!(
            theirs.is_ok(),
            verdict.is_ok(),
            "{:?}\n{:?}\n{:#?}",
            theirs,
            verdict,
            transactions
        );
        Ok(())
    });
}

proptest! {
    /// Serial executions are correct, although transactions overlap in real time and the history lists them in any
    /// order.
    #[test]
    fn serial_executions_are_accepted(plans in plans(20), shift in any::<prop::sample::Index>()) {
        let mut transactions = changed(&plans, &[], true);
        let middle = shift.index(transactions.len());
        transactions.rotate_left(middle);
        let verdict = serial::check(&transactions);
        prop_assert!(verdict.is_ok(), "{verdict:?}");
        let history = History { transactions, ..History::default() };
        prop_assert_eq!(append::judge(&history), Ok(()));
    }

    /// The order of transactions in the history's list does not matter.
    #[test]
    fn order_in_the_list_does_not_matter(plans in plans(8), changes in changes()) {
        let mut transactions = changed(&plans, &changes, false);
        let verdict = serial::check(&transactions);
        transactions.reverse();
        prop_assert_eq!(serial::check(&transactions).is_ok(), verdict.is_ok());
    }
}
