//! Decides linearizability of a hashtable, key by key.
//!
//! The checker is exact. It walks over the operations on a key in order of time, and keeps every state that the key can
//! have, together with the set of operations under way that have already taken effect. When an operation ends, the
//! checker tries all orders of the operations under way until that operation has taken effect. If no order exists, the
//! history is not linearizable. These rules keep the number of states small:
//!
//! * If an operation changes nothing and fits its result, it takes effect at once: a later effect is never better.
//! * All values that no operation read are equivalent.
//! * Operations without a result stay under way forever, but need not take effect. A state is superfluous if another
//!   state is equal, except that some of these operations have not taken effect.
//! * Operations without a result that make the same change are equivalent.
//! * Operations without a result that took effect in every remaining state are settled, and no longer under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use crate::history::{KeyOperation, KeyRequest, KeyResult};

use super::finding::{Anomaly, Finding};

/// Maximum number of states that are visited to explain one result.
const MOST_STATES: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };

/// Maximum number of operations that a finding lists.
const MOST_SHOWN: usize = 16;

/// Checks that operations on an initially empty table are linearizable. Returns the number of operations.
///
/// # Errors
///
/// The first result, of the smallest key, that no order explains.
pub fn check(operations: &[KeyOperation]) -> Result<usize, Finding> {
    check_keys(operations, None)
}

/// As [`check`], and checks that the table could hold exactly these pairs after the last result.
///
/// # Errors
///
/// The first result, of the smallest key, that no order explains, or a pair that cannot exist.
pub fn check_with_final(
    operations: &[KeyOperation],
    pairs: &BTreeMap<u64, u64>,
) -> Result<usize, Finding> {
    check_keys(operations, Some(pairs))
}

fn check_keys(
    operations: &[KeyOperation],
    pairs: Option<&BTreeMap<u64, u64>>,
) -> Result<usize, Finding> {
    let mut sorted: Vec<KeyOperation> = operations.to_vec();
    sorted.sort_by_key(|operation| operation.key);
    let touched: BTreeSet<u64> = sorted.iter().map(|operation| operation.key).collect();
    for group in sorted.chunk_by(|a, b| a.key == b.key) {
        let last = pairs.map(|pairs| pairs.get(&group[0].key).copied());
        check_key(group, last)?;
    }
    for (key, value) in pairs.into_iter().flatten() {
        if !touched.contains(key) {
            let text = format!("key {key} holds {value} at the end, but no operation used the key");
            return Err(Finding::new(Anomaly::Linearizability, text));
        }
    }
    Ok(operations.len())
}

/// Operations without a result that have taken effect, by ascending index.
type Lost = Vec<usize>;

/// A state that the key can have: its value, and the operations under way that have taken effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    value: Option<u64>,
    /// Effective operations whose result is still to come, by ascending index.
    done: Vec<usize>,
    /// Effective operations that never get a result.
    lost: Lost,
}

impl State {
    fn has(&self, index: usize) -> bool {
        self.done.binary_search(&index).is_ok() || self.lost.binary_search(&index).is_ok()
    }

    /// Returns this state after operation `index` has taken effect. `has_result`: whether the operation has a result.
    fn after(&self, index: usize, has_result: bool, value: Option<u64>) -> State {
        let mut next = self.clone();
        next.value = value;
        let list = if has_result {
            &mut next.done
        } else {
            &mut next.lost
        };
        if let Err(place) = list.binary_search(&index) {
            list.insert(place, index);
        }
        next
    }
}

/// A set of states, without superfluous ones.
#[derive(Default)]
struct States {
    /// For each value and `done`, the minimal sets of `lost`.
    lost_by: BTreeMap<(Option<u64>, Vec<usize>), Vec<Lost>>,
    count: usize,
}

impl States {
    /// Adds a state. Returns false if the state is superfluous.
    fn insert(&mut self, state: &State) -> bool {
        let known = self.lost_by.entry((state.value, state.done.clone()));
        let known = known.or_default();
        let covers = |some: &[usize], all: &[usize]| {
            some.iter().all(|index| all.binary_search(index).is_ok())
        };
        if known.iter().any(|lost| covers(lost, &state.lost)) {
            return false;
        }
        known.retain(|lost| !covers(&state.lost, lost));
        known.push(state.lost.clone());
        self.count += 1;
        true
    }

    fn into_states(self) -> Vec<State> {
        let mut states = Vec::new();
        for ((value, done), lost_by) in self.lost_by {
            states.extend(lost_by.into_iter().map(|lost| State {
                value,
                done: done.clone(),
                lost,
            }));
        }
        states.sort_unstable();
        states
    }
}

/// The part of an operation that affects other operations.
#[derive(Clone, Copy)]
struct Effect {
    request: KeyRequest,
    result: Option<KeyResult>,
}

impl Effect {
    /// Returns the value after this effect, if the effect is possible on `value` and gives the recorded result; else
    /// `None`. An operation without a result takes effect only where it changes the key: otherwise it makes no
    /// difference.
    fn apply(self, value: Option<u64>) -> Option<Option<u64>> {
        use KeyResult::{Absent, Exists, Inserted, Refused, Removed, Updated, Value};
        let present = value.is_some();
        match (self.request, self.result) {
            (KeyRequest::Get, Some(Refused)) => None,
            (_, Some(Refused)) => Some(value),
            (KeyRequest::Get, Some(Value(seen))) => (seen == value).then_some(value),
            (KeyRequest::Insert(new), Some(Inserted) | None) => (!present).then_some(Some(new)),
            (KeyRequest::Upsert(new), Some(Inserted)) => (!present).then_some(Some(new)),
            (KeyRequest::Update(new), Some(Updated) | None) => present.then_some(Some(new)),
            (KeyRequest::Upsert(new), Some(Updated)) => present.then_some(Some(new)),
            (KeyRequest::Upsert(new), None) => Some(Some(new)),
            (KeyRequest::Remove, Some(Removed) | None) => present.then_some(None),
            (KeyRequest::Insert(_), Some(Exists)) => present.then_some(value),
            (KeyRequest::Update(_) | KeyRequest::Remove, Some(Absent)) => {
                (!present).then_some(value)
            }
            _ => None,
        }
    }
}

/// Returns the effects of operations on one key. All values that no operation read are replaced by one such value,
/// which is the second result.
fn effects(operations: &[KeyOperation]) -> (Vec<Effect>, u64) {
    let results = operations.iter().filter_map(|operation| operation.result);
    let seen: BTreeSet<u64> = results
        .filter_map(|result| match result {
            KeyResult::Value(value) => value,
            _ => None,
        })
        .collect();
    let unseen = (0..).find(|value| !seen.contains(value));
    let unseen = unseen.expect("there are fewer operations than values of a u64");
    let merged = |value| if seen.contains(&value) { value } else { unseen };
    let effect = |operation: &KeyOperation| Effect {
        request: match operation.request {
            KeyRequest::Insert(value) => KeyRequest::Insert(merged(value)),
            KeyRequest::Update(value) => KeyRequest::Update(merged(value)),
            // To replace a present value by one that no operation reads makes no difference: only an insert does.
            KeyRequest::Upsert(value) if operation.result.is_none() && merged(value) == unseen => {
                KeyRequest::Insert(unseen)
            }
            KeyRequest::Upsert(value) => KeyRequest::Upsert(merged(value)),
            request => request,
        },
        result: operation.result,
    };
    (operations.iter().map(effect).collect(), unseen)
}

/// The walk over the operations on one key, in order of time.
struct Walk<'h> {
    operations: &'h [KeyOperation],
    effects: Vec<Effect>,
    /// The value that replaces all values that no operation read.
    unseen: u64,
    /// The operations under way, by ascending index.
    under_way: Vec<usize>,
    /// The possible states; never empty.
    states: Vec<State>,
}

/// Checks that operations on one key, initially absent, are linearizable. `last` is the value of the key at the end, if
/// known.
fn check_key(operations: &[KeyOperation], last: Option<Option<u64>>) -> Result<(), Finding> {
    let mut operations = operations.to_vec();
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(operations.len() * 2);
    for (index, operation) in operations.iter().enumerate() {
        events.push((operation.begun, false, index));
        if operation.result.is_some() {
            if operation.ended < operation.begun {
                let text = format!("an operation ended before it began\n{}", line(operation));
                return Err(Finding::new(Anomaly::Violation, text));
            }
            events.push((operation.ended, true, index));
        }
    }
    events.sort_unstable();
    if let Some(value) = last {
        let at = events.last().map_or(0, |event| event.0);
        let index = operations.len();
        events.extend([(at, false, index), (at, true, index)]);
        operations.push(KeyOperation {
            client: u32::MAX,
            key: operations[0].key,
            begun: at,
            ended: at,
            request: KeyRequest::Get,
            result: Some(KeyResult::Value(value)),
        });
    }
    let (effects, unseen) = effects(&operations);
    let mut walk = Walk {
        operations: &operations,
        effects,
        unseen,
        under_way: Vec::new(),
        states: vec![State {
            value: None,
            done: Vec::new(),
            lost: Vec::new(),
        }],
    };
    for (_, ends, index) in events {
        if ends {
            walk.end(index)?;
        } else {
            walk.begin(index);
        }
    }
    Ok(())
}

impl Walk<'_> {
    fn begin(&mut self, index: usize) {
        // Indices are not in order of time: the records of several clients were merged.
        if let Err(place) = self.under_way.binary_search(&index) {
            self.under_way.insert(place, index);
        }
        let states = std::mem::take(&mut self.states);
        self.states = states.into_iter().map(|state| self.settle(state)).collect();
    }

    /// Applies every operation under way that changes nothing and fits its result.
    fn settle(&self, mut state: State) -> State {
        for &index in &self.under_way {
            let effect = self.effects[index];
            let fits = effect.result.is_some() && !state.has(index);
            if fits && effect.apply(state.value) == Some(state.value) {
                state = state.after(index, true, state.value);
            }
        }
        state
    }

    /// Ends an operation: keeps only the states in which the operation has taken effect.
    fn end(&mut self, index: usize) -> Result<(), Finding> {
        let mut ended = States::default();
        let mut seen = States::default();
        let mut left: VecDeque<State> = self.states.iter().cloned().collect();
        for state in &left {
            seen.insert(state);
        }
        while let Some(mut state) = left.pop_front() {
            if let Ok(place) = state.done.binary_search(&index) {
                state.done.remove(place);
                ended.insert(&state);
                continue;
            }
            for next in self.successors(&state) {
                if seen.insert(&next) {
                    left.push_back(next);
                }
            }
            if seen.count > MOST_STATES {
                let finding = self.finding(
                    index,
                    "too many orders of the operations to try all of them for this result",
                );
                return Err(Finding {
                    kind: Anomaly::Undecided,
                    ..finding
                });
            }
        }
        if ended.lost_by.is_empty() {
            return Err(self.finding(index, "no order of the operations explains this result"));
        }
        self.under_way.retain(|other| *other != index);
        self.states = ended.into_states();
        self.forget();
        Ok(())
    }

    /// Returns the states after one more of the operations under way has taken effect.
    fn successors(&self, state: &State) -> Vec<State> {
        let mut successors = Vec::new();
        let mut tried: Vec<KeyRequest> = Vec::new();
        for &index in &self.under_way {
            let Effect { request, result } = self.effects[index];
            if state.has(index) || result.is_none() && tried.contains(&request) {
                continue;
            }
            if result.is_none() {
                tried.push(request);
            }
            let value = self.effects[index].apply(state.value);
            if let Some(value) = value.filter(|value| *value != state.value) {
                successors.push(self.settle(state.after(index, result.is_some(), value)));
            }
        }
        successors
    }

    /// Removes the operations without a result that have taken effect in every state.
    fn forget(&mut self) {
        let mut settled = self.states[0].lost.clone();
        settled.retain(|index| self.states.iter().all(|state| state.has(*index)));
        if settled.is_empty() {
            return;
        }
        self.under_way.retain(|index| !settled.contains(index));
        for state in &mut self.states {
            state.lost.retain(|index| !settled.contains(index));
        }
    }

    fn finding(&self, index: usize, why: &str) -> Finding {
        let operation = &self.operations[index];
        let mut text = format!(
            "{why}\n  {}\nvalues that the key could hold before it:",
            line(operation)
        );
        let values: BTreeSet<Option<u64>> = self.states.iter().map(|state| state.value).collect();
        for value in values {
            let _ = match value {
                Some(value) if value == self.unseen => {
                    write!(text, " a value that no operation read;")
                }
                Some(value) => write!(text, " {value};"),
                None => write!(text, " nothing;"),
            };
        }
        let mut shown: Vec<usize> = (0..self.operations.len())
            .filter(|other| self.operations[*other].begun <= operation.ended && *other != index)
            .collect();
        shown.sort_by_key(|other| match self.operations[*other] {
            KeyOperation { result: None, .. } => (u64::MAX, *other),
            KeyOperation { ended, .. } => (ended, *other),
        });
        let from = shown.len().saturating_sub(MOST_SHOWN);
        let _ = write!(text, "\nearlier and concurrent operations:");
        for other in &shown[from..] {
            let _ = write!(text, "\n  {}", line(&self.operations[*other]));
        }
        Finding::new(Anomaly::Linearizability, text)
    }
}

fn line(operation: &KeyOperation) -> String {
    let KeyOperation {
        client,
        key,
        begun,
        ended,
        request,
        result,
    } = operation;
    let who = match *client {
        u32::MAX => "at the end".to_owned(),
        client => format!("client {client}"),
    };
    match result {
        Some(result) => {
            format!("{who}, {begun} to {ended}: {request:?} of key {key}: {result:?}")
        }
        None => format!("{who}, from {begun} on: {request:?} of key {key}: no result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_orders_give_no_verdict() {
        let mut operations = Vec::new();
        for value in 0..12 {
            for (begun, request, result) in [
                (0, KeyRequest::Upsert(value), KeyResult::Updated),
                (value, KeyRequest::Get, KeyResult::Value(Some(value))),
            ] {
                operations.push(KeyOperation {
                    client: value as u32,
                    key: 1,
                    begun,
                    ended: 100,
                    request,
                    result: Some(result),
                });
            }
        }
        operations[0].result = Some(KeyResult::Inserted);
        let finding =
            check(&operations).expect_err("twelve concurrent upserts take thousands of states");
        assert_eq!(finding.kind, Anomaly::Undecided, "{finding}");
        assert_eq!(check(&operations[..12]), Ok(12));
    }
}
