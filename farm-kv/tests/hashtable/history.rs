//! Histories of one key, and a check that they are linearizable.
//!
//! The checker is exact. It goes through the history in time, and keeps every possible state of the key together with
//! the set of the concurrent operations that have already taken effect. When an operation ends, the checker tries all
//! orders of the concurrent operations until this operation has taken effect. If no order is possible, the history is
//! not linearizable. Values are unique and few operations overlap, so there are few states.

use std::collections::BTreeSet;

use farm_kv::shard::Changed;

/// A requested operation; each value is a number that is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Get,
    Insert(u64),
    Update(u64),
    Upsert(u64),
    Remove,
}

/// The reply of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Value(Option<u64>),
    Changed(Changed),
}

/// An operation, from the moment before its start to the moment after its reply; no two moments are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) request: Request,
    pub(crate) reply: Reply,
}

impl Operation {
    /// Returns the value of the key after the operation, if the reply is possible with this value before it.
    fn apply(&self, value: Option<u64>) -> Option<Option<u64>> {
        use Reply::{Changed as Did, Value};
        let (request, present) = (self.request, value.is_some());
        match (request, self.reply) {
            (Request::Get, Value(seen)) => (seen == value).then_some(value),
            (Request::Insert(new) | Request::Upsert(new), Did(Changed::Inserted)) => {
                (!present).then_some(Some(new))
            }
            (Request::Update(new) | Request::Upsert(new), Did(Changed::Updated)) => {
                present.then_some(Some(new))
            }
            (Request::Insert(_), Did(Changed::Exists)) => present.then_some(value),
            (Request::Update(_) | Request::Remove, Did(Changed::Absent)) => {
                (!present).then_some(value)
            }
            (Request::Remove, Did(Changed::Removed)) => present.then_some(None),
            _ => None,
        }
    }
}

/// A possible value of the key, and the concurrent operations that have taken effect, one bit each.
type State = (Option<u64>, u64);

/// Checks a history that starts with an absent key. The error shows the end of the history, up to the first reply that
/// is impossible.
pub(crate) fn check(history: &[Operation]) -> Result<(), String> {
    let mut events: Vec<(u64, usize)> = Vec::with_capacity(history.len() * 2);
    for (index, operation) in history.iter().enumerate() {
        assert!(operation.begun < operation.ended);
        events.extend([(operation.begun, index), (operation.ended, index)]);
    }
    events.sort_unstable();
    let mut states: BTreeSet<State> = [(None, 0)].into();
    let mut under_way: [Option<usize>; 64] = [None; 64];
    for (moment, index) in events {
        if moment == history[index].begun {
            let free = under_way.iter().position(Option::is_none);
            under_way[free.expect("64 operations on one key at a time")] = Some(index);
            continue;
        }
        let bit = under_way.iter().position(|op| *op == Some(index)).unwrap();
        states = after(&states, &under_way, bit, history);
        under_way[bit] = None;
        if states.is_empty() {
            let mut shown: Vec<_> = history.iter().filter(|op| op.begun <= moment).collect();
            shown.sort_unstable_by_key(|op| op.ended);
            let from = shown.len().saturating_sub(12);
            return Err(format!(
                "no order explains {:?}\n{:#?}",
                history[index],
                &shown[from..]
            ));
        }
    }
    Ok(())
}

/// Returns the states in which the operation `bit` has taken effect, with its bit cleared.
fn after(
    states: &BTreeSet<State>,
    under_way: &[Option<usize>; 64],
    bit: usize,
    history: &[Operation],
) -> BTreeSet<State> {
    let mut ended = BTreeSet::new();
    let mut seen = states.clone();
    let mut left: Vec<State> = states.iter().copied().collect();
    while let Some((value, done)) = left.pop() {
        if done & 1 << bit != 0 {
            ended.insert((value, done & !(1 << bit)));
            continue;
        }
        for (other, index) in under_way.iter().enumerate() {
            let Some(index) = index else { continue };
            if done & 1 << other == 0
                && let Some(value) = history[*index].apply(value)
                && seen.insert((value, done | 1 << other))
            {
                left.push((value, done | 1 << other));
            }
        }
    }
    ended
}

mod tests {
    use super::*;
    use proptest::prelude::*;

    fn op(begun: u64, ended: u64, request: Request, reply: Reply) -> Operation {
        Operation {
            begun,
            ended,
            request,
            reply,
        }
    }

    fn get(begun: u64, ended: u64, value: Option<u64>) -> Operation {
        op(begun, ended, Request::Get, Reply::Value(value))
    }

    fn upsert(begun: u64, ended: u64, value: u64, did: Changed) -> Operation {
        op(begun, ended, Request::Upsert(value), Reply::Changed(did))
    }

    #[test]
    fn possible_and_impossible_histories_are_distinguished() {
        use Changed::{Inserted, Removed, Updated};
        let remove = |begun, ended| op(begun, ended, Request::Remove, Reply::Changed(Removed));
        for (can_be, history) in [
            (
                true,
                vec![
                    get(0, 1, None),
                    upsert(2, 3, 7, Inserted),
                    get(4, 5, Some(7)),
                ],
            ),
            // A stale read, and a read of a value that was never written.
            (false, vec![upsert(0, 1, 7, Inserted), get(2, 3, None)]),
            (false, vec![get(0, 1, Some(7))]),
            // Concurrent operations: either order is possible.
            (true, vec![upsert(0, 3, 7, Inserted), get(1, 2, None)]),
            (true, vec![upsert(0, 3, 7, Inserted), get(1, 2, Some(7))]),
            // After a read of the new value, no later read returns the old value.
            (
                false,
                vec![
                    upsert(0, 7, 7, Inserted),
                    get(1, 2, Some(7)),
                    get(3, 4, None),
                ],
            ),
            (
                true,
                vec![
                    upsert(0, 7, 7, Inserted),
                    get(1, 2, None),
                    get(3, 4, Some(7)),
                ],
            ),
            // Two upserts cannot both find the key absent, unless it was removed in between.
            (
                false,
                vec![upsert(0, 3, 1, Inserted), upsert(1, 2, 2, Inserted)],
            ),
            (
                true,
                vec![
                    upsert(0, 5, 1, Inserted),
                    upsert(1, 6, 2, Inserted),
                    remove(2, 4),
                ],
            ),
            (
                false,
                vec![
                    upsert(0, 1, 1, Inserted),
                    remove(2, 3),
                    upsert(4, 5, 2, Updated),
                ],
            ),
        ] {
            assert_eq!(check(&history).is_ok(), can_be, "{history:#?}");
        }
    }

    /// Tries every possible order.
    fn by_force(left: &mut Vec<Operation>, value: Option<u64>) -> bool {
        if left.is_empty() {
            return true;
        }
        let first_end = left.iter().map(|op| op.ended).min().unwrap();
        (0..left.len()).any(|index| {
            if left[index].begun > first_end {
                return false;
            }
            let Some(value) = left[index].apply(value) else {
                return false;
            };
            let op = left.remove(index);
            let ok = by_force(left, value);
            left.insert(index, op);
            ok
        })
    }

    proptest! {
        /// The checker agrees with brute force on small histories, possible and impossible ones.
        #[test]
        fn the_checker_agrees_with_brute_force(
            ops in prop::collection::vec((0u8..5, 0u8..3, 0u64..3), 1..6),
            order in Just((0..12u64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let history: Vec<Operation> = ops
                .into_iter()
                .enumerate()
                .map(|(index, (request, reply, seen))| {
                    let (a, b) = (order[2 * index], order[2 * index + 1]);
                    let new = index as u64;
                    let request = [
                        Request::Get,
                        Request::Insert(new),
                        Request::Update(new),
                        Request::Upsert(new),
                        Request::Remove,
                    ][usize::from(request)];
                    let changed = |of: [Changed; 3]| Reply::Changed(of[usize::from(reply)]);
                    let reply = match request {
                        Request::Get => Reply::Value(seen.checked_sub(1)),
                        Request::Insert(_) => changed([Changed::Inserted, Changed::Exists, Changed::Exists]),
                        Request::Update(_) => changed([Changed::Updated, Changed::Absent, Changed::Updated]),
                        Request::Upsert(_) => changed([Changed::Updated, Changed::Inserted, Changed::Inserted]),
                        Request::Remove => changed([Changed::Removed, Changed::Absent, Changed::Removed]),
                    };
                    op(a.min(b), a.max(b), request, reply)
                })
                .collect();
            prop_assert_eq!(check(&history).is_ok(), by_force(&mut history.clone(), None));
        }
    }
}
