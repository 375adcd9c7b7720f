//! Histories of a hashtable: known ones, and agreement with an independent exact checker.

use std::collections::BTreeMap;

use farm_check::checkers::{Anomaly, check, linear};
use farm_check::history::{History, KeyOperation, KeyRequest, KeyResult};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::histories::{lost, operation};

fn get(begun: u64, ended: u64, value: Option<u64>) -> KeyOperation {
    operation(begun, ended, KeyRequest::Get, KeyResult::Value(value))
}

fn insert(begun: u64, ended: u64, value: u64, did: KeyResult) -> KeyOperation {
    operation(begun, ended, KeyRequest::Insert(value), did)
}

fn upsert(begun: u64, ended: u64, value: u64, did: KeyResult) -> KeyOperation {
    operation(begun, ended, KeyRequest::Upsert(value), did)
}

fn remove(begun: u64, ended: u64) -> KeyOperation {
    operation(begun, ended, KeyRequest::Remove, KeyResult::Removed)
}

#[track_caller]
fn rejected<const N: usize>(operations: [KeyOperation; N]) {
    let history = History {
        operations: operations.to_vec(),
        ..History::default()
    };
    let finding = check(&history).expect_err("the history is wrong");
    assert_eq!(finding.kind, Anomaly::Linearizability, "{finding}");
    assert_eq!(check(&history), Err(finding));
}

#[track_caller]
fn accepted<const N: usize>(operations: [KeyOperation; N]) {
    assert_eq!(linear::check(&operations), Ok(N));
}

use KeyResult::{Absent, Exists, Inserted, Refused, Updated};

#[test]
fn a_lost_key() {
    rejected([insert(0, 1, 7, Inserted), get(2, 3, None)]);
    let absent = operation(2, 3, KeyRequest::Update(8), Absent);
    rejected([insert(0, 1, 7, Inserted), absent]);
    rejected([insert(0, 1, 7, Inserted), remove(2, 3), remove(4, 5)]);
    // A lost result does not permit a lost key.
    rejected([
        lost(0, KeyRequest::Insert(7)),
        get(2, 3, Some(7)),
        get(4, 5, None),
    ]);
}

#[test]
fn a_stale_get() {
    let changed = upsert(2, 3, 8, Updated);
    rejected([insert(0, 1, 7, Inserted), changed, get(4, 5, Some(7))]);
    rejected([
        upsert(0, 7, 7, Inserted),
        get(1, 2, Some(7)),
        get(3, 4, None),
    ]);
    accepted([
        upsert(0, 7, 7, Inserted),
        get(1, 2, None),
        get(3, 4, Some(7)),
    ]);
    rejected([get(0, 1, Some(7))]);
}

#[test]
fn a_double_insert() {
    rejected([insert(0, 3, 1, Inserted), insert(1, 2, 2, Inserted)]);
    accepted([
        insert(0, 5, 1, Inserted),
        insert(1, 6, 2, Inserted),
        remove(2, 4),
    ]);
    accepted([insert(0, 3, 1, Inserted), insert(1, 2, 2, Exists)]);
    rejected([insert(0, 1, 1, Exists)]);
}

#[test]
fn an_operation_without_a_result_may_take_effect_at_any_time_or_never() {
    accepted([
        lost(0, KeyRequest::Upsert(7)),
        get(2, 3, None),
        get(4, 5, None),
    ]);
    accepted([
        lost(0, KeyRequest::Upsert(7)),
        get(2, 3, None),
        get(4, 5, Some(7)),
    ]);
    // It takes effect once only.
    let did = upsert(4, 5, 8, Updated);
    rejected([
        lost(0, KeyRequest::Upsert(7)),
        get(2, 3, Some(7)),
        did,
        get(6, 7, Some(7)),
    ]);
    // It does not take effect before it began.
    rejected([get(0, 1, Some(7)), lost(2, KeyRequest::Upsert(7))]);
    // A refused operation has no effect.
    rejected([upsert(0, 1, 7, Refused), get(2, 3, Some(7))]);
    accepted([upsert(0, 1, 7, Refused), get(2, 3, None)]);
}

#[test]
fn equal_moments_order_nothing() {
    accepted([insert(0, 5, 7, Inserted), get(5, 6, None)]);
    accepted([
        get(5, 5, Some(7)),
        insert(5, 5, 7, Inserted),
        get(5, 5, None),
    ]);
    rejected([insert(0, 5, 7, Inserted), get(6, 6, None)]);
}

#[test]
fn the_final_pairs_count_as_results() {
    let operations = [insert(0, 1, 7, Inserted), lost(2, KeyRequest::Upsert(8))];
    for (pairs, can_be) in [
        (vec![(1, 7)], true),
        (vec![(1, 8)], true),
        (vec![], false),
        (vec![(1, 9)], false),
        (vec![(1, 7), (2, 7)], false),
    ] {
        let pairs: BTreeMap<u64, u64> = pairs.into_iter().collect();
        let verdict = linear::check_with_final(&operations, &pairs);
        assert_eq!(verdict.is_ok(), can_be, "{verdict:?}");
    }
    let gone = [insert(0, 1, 7, Inserted), remove(2, 3)];
    assert!(linear::check_with_final(&gone, &BTreeMap::new()).is_ok());
    assert!(linear::check_with_final(&[], &BTreeMap::from([(1, 1)])).is_err());
    let finding = linear::check_with_final(&operations, &BTreeMap::new());
    let expected = "no order of the operations explains this result
  at the end, 2 to 2: Get of key 1: Value(None)
values that the key could hold before it: a value that no operation read;
earlier and concurrent operations:
  client 0, 0 to 1: Insert(7) of key 1: Inserted
  client 2, from 2 on: Upsert(8) of key 1: no result";
    assert_eq!(finding.expect_err("the key was not removed").text, expected);
}

#[test]
fn each_key_is_checked_on_its_own() {
    let mut operations = vec![insert(0, 1, 7, Inserted), get(2, 3, Some(7))];
    let other = |operation: KeyOperation| KeyOperation {
        key: 2,
        ..operation
    };
    operations.push(other(get(2, 3, None)));
    assert_eq!(linear::check(&operations), Ok(3));
    operations.push(other(get(4, 5, Some(7))));
    let finding = linear::check(&operations).expect_err("key 2 was never inserted");
    assert!(
        finding.text.contains("of key 2: Value(Some(7))"),
        "{finding}"
    );
}

#[test]
fn hundreds_of_operations_without_a_result_are_checked() {
    let mut operations = vec![insert(0, 1, 7, Inserted)];
    let request = |n: u64| match n % 4 {
        0 => KeyRequest::Upsert(1000 + n),
        1 => KeyRequest::Remove,
        2 => KeyRequest::Update(1000 + n),
        _ => KeyRequest::Insert(1000 + n),
    };
    for n in 0..300 {
        operations.push(lost(2 + n, request(n)));
        let seen = 1000 + n / 40 * 40;
        operations.push(get(1000 + n * 10, 1001 + n * 10, Some(seen)));
        operations.push(get(1003 + n * 10, 1004 + n * 10, Some(seen)));
    }
    assert_eq!(linear::check(&operations), Ok(operations.len()));
    operations.push(get(9000, 9001, Some(1000)));
    let finding = linear::check(&operations).expect_err("1000 was replaced long ago");
    assert_eq!(finding.kind, Anomaly::Linearizability, "{finding}");
}

#[test]
fn removes_without_a_result_are_equivalent() {
    let mut operations: Vec<KeyOperation> = (0..100).map(|n| lost(n, KeyRequest::Remove)).collect();
    for n in 0..101 {
        operations.push(insert(1000 + 2 * n, 1001 + 2 * n, n, Inserted));
    }
    assert_eq!(linear::check(&operations), Ok(201));
    operations.push(insert(2000, 2001, 200, Inserted));
    let finding = linear::check(&operations).expect_err("this insert needs one more remove");
    assert_eq!(finding.kind, Anomaly::Linearizability, "{finding}");
}

#[test]
fn many_clients_at_one_key() {
    // Sixty-four clients read all the time, while eight write.
    let mut operations = Vec::new();
    for client in 0..64 {
        operations.push(get(0, 100, (client > 0).then_some(100 + client % 8)));
    }
    for client in 0..8 {
        let did = if client == 0 { Inserted } else { Updated };
        operations.push(upsert(client, 100, 100 + client, did));
    }
    assert_eq!(linear::check(&operations), Ok(72));
}

/// Executes random operations one after the other. Each operation overlaps in real time with up to ten others, and the
/// result of one operation in `lost` is lost.
fn execute(count: u64, keys: u64, lost: u32) -> Vec<KeyOperation> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut table: BTreeMap<u64, u64> = BTreeMap::new();
    let mut operations = Vec::new();
    for value in 1..=count {
        let key = rng.random_range(0..keys);
        let request = [
            KeyRequest::Get,
            KeyRequest::Get,
            KeyRequest::Insert(value),
            KeyRequest::Update(value),
            KeyRequest::Upsert(value),
            KeyRequest::Remove,
        ][rng.random_range(0..6usize)];
        let mut before = Key(table.get(&key).copied());
        let result = before.invoke(&request);
        match before.0 {
            Some(value) => table.insert(key, value),
            None => table.remove(&key),
        };
        let moment = value * 10 + 100;
        operations.push(KeyOperation {
            client: value as u32 % 16,
            key,
            begun: moment - rng.random_range(0..50u64),
            ended: moment + rng.random_range(0..50u64),
            request,
            result: (!rng.random_ratio(1, lost)).then_some(result),
        });
    }
    operations
}

#[test]
fn hot_keys_and_many_lost_results() {
    let mut operations = execute(4000, 2, 20);
    assert_eq!(linear::check(&operations), Ok(4000));
    let last = operations
        .iter_mut()
        .rfind(|operation| operation.request == KeyRequest::Get);
    let last = last.expect("a third of them are gets");
    last.result = Some(KeyResult::Value(Some(1)));
    let finding = linear::check(&operations).expect_err("the first value was replaced long ago");
    assert_eq!(finding.kind, Anomaly::Linearizability, "{finding}");
}

/// The model of a key of a table for stateright.
#[derive(Clone, Debug, Default)]
struct Key(Option<u64>);

impl SequentialSpec for Key {
    type Op = KeyRequest;
    type Ret = KeyResult;

    fn invoke(&mut self, request: &KeyRequest) -> KeyResult {
        match (*request, self.0) {
            (KeyRequest::Get, value) => KeyResult::Value(value),
            (KeyRequest::Insert(_), Some(_)) => KeyResult::Exists,
            (KeyRequest::Update(_) | KeyRequest::Remove, None) => KeyResult::Absent,
            (KeyRequest::Insert(new) | KeyRequest::Upsert(new), None) => {
                self.0 = Some(new);
                KeyResult::Inserted
            }
            (KeyRequest::Update(new) | KeyRequest::Upsert(new), Some(_)) => {
                self.0 = Some(new);
                KeyResult::Updated
            }
            (KeyRequest::Remove, Some(_)) => {
                self.0 = None;
                KeyResult::Removed
            }
        }
    }
}

/// Returns whether stateright accepts the operations. Each operation is a thread of the model.
fn stateright(operations: &[KeyOperation]) -> bool {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        events.push((operation.begun, false, index));
        if operation.result.is_some() {
            events.push((operation.ended, true, index));
        }
    }
    events.sort_unstable();
    let mut tester = LinearizabilityTester::new(Key::default());
    for (_, ends, index) in events {
        let done = match operations[index] {
            KeyOperation {
                result: Some(result),
                ..
            } if ends => tester.on_return(index, result).is_ok(),
            KeyOperation { request, .. } => tester.on_invoke(index, request).is_ok(),
        };
        assert!(done, "stateright rejected an event");
    }
    tester.is_consistent()
}

/// Random operations on one key, with or without results; the results may be wrong.
fn operations() -> impl Strategy<Value = Vec<KeyOperation>> {
    let one = (0u8..5, 0u8..8, 0u64..4, 0u64..12, 0u64..5);
    prop::collection::vec(one, 1..7).prop_map(|all| {
        let mut operations = Vec::new();
        for (new, (request, result, seen, begun, length)) in (1..).zip(all) {
            let request = [
                KeyRequest::Get,
                KeyRequest::Insert(new),
                KeyRequest::Update(new),
                KeyRequest::Upsert(new),
                KeyRequest::Remove,
            ][usize::from(request)];
            let [a, b] = match request {
                KeyRequest::Get => [KeyResult::Value(seen.checked_sub(1)); 2],
                KeyRequest::Insert(_) => [Inserted, Exists],
                KeyRequest::Update(_) => [Updated, Absent],
                KeyRequest::Upsert(_) => [Inserted, Updated],
                KeyRequest::Remove => [KeyResult::Removed, Absent],
            };
            operations.push(KeyOperation {
                result: match result {
                    0..3 => Some(a),
                    3..6 => Some(b),
                    _ => None,
                },
                ..operation(begun, begun + length, request, a)
            });
        }
        operations
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn linear_check_agrees_with_stateright(operations in operations()) {
        prop_assert_eq!(linear::check(&operations).is_ok(), stateright(&operations));
    }
}
