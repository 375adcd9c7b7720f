//! Linearizability of a hashtable, key by key.
//!
//! The checker is exact: it walks the operations on a key in time and keeps every state that the key
//! can be in, together with which of the operations under way have taken effect already. Where an
//! operation ends, all orders of those under way are tried until it has taken effect; if there is
//! none, the history is not linearizable. Some things keep states few:
//!
//! * What changes nothing and fits takes effect at once: it can never be better to wait.
//! * Values that nobody ever saw are all the same.
//! * Operations without an answer stay under way for ever, but need not take effect. A state that
//!   needed fewer of them makes those that needed more superfluous.
//! * Of those that do the same one is as good as another.
//! * Those that took effect in every state that is left are settled, and no longer under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use crate::history::{Answered, Asked, KeyOperation};

use super::finding::{Anomaly, Finding};

/// Most states that are visited to explain one answer.
const MOST_STATES: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };

/// Most operations that a finding shows.
const MOST_SHOWN: usize = 16;

/// Whether operations on a table that was empty are linearizable; their number.
///
/// # Errors
///
/// The first answer, of the least key, that no order explains.
pub fn check(operations: &[KeyOperation]) -> Result<usize, Finding> {
    check_keys(operations, None)
}

/// As [`check`], and the table held these pairs when all that was answered had ended.
///
/// # Errors
///
/// The first answer, of the least key, that no order explains, or a pair that cannot be.
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
            let text = format!("key {key} holds {value} at the end, but nobody touched it");
            return Err(Finding::new(Anomaly::Linearizability, text));
        }
    }
    Ok(operations.len())
}

/// Operations under way without an answer that have taken effect, in order of their numbers.
type Lost = Vec<usize>;

/// A value that the key can have, and the operations under way that have taken effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    value: Option<u64>,
    /// Those that are going to be answered, in order of their numbers.
    done: Vec<usize>,
    /// Those that never are.
    lost: Lost,
}

impl State {
    fn has(&self, index: usize) -> bool {
        self.done.binary_search(&index).is_ok() || self.lost.binary_search(&index).is_ok()
    }

    /// This state once an operation has taken effect in it.
    fn after(&self, index: usize, answered: bool, value: Option<u64>) -> State {
        let mut next = self.clone();
        next.value = value;
        let list = if answered {
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

/// States without those that others make superfluous.
#[derive(Default)]
struct States {
    /// Of each value and `done`, the least of `lost`.
    lost_by: BTreeMap<(Option<u64>, Vec<usize>), Vec<Lost>>,
    count: usize,
}

impl States {
    /// Adds a state; false if it is superfluous.
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

/// An operation as far as it matters to the others.
#[derive(Clone, Copy)]
struct Effect {
    asked: Asked,
    answered: Option<Answered>,
}

impl Effect {
    /// The value after this effect, if it can have come when it was `value`, and been answered so.
    /// One without an answer changed something, or it does not matter whether it came.
    fn apply(self, value: Option<u64>) -> Option<Option<u64>> {
        use Answered::{Absent, Exists, Inserted, Refused, Removed, Updated, Value};
        let present = value.is_some();
        match (self.asked, self.answered) {
            (Asked::Get, Some(Refused)) => None,
            (_, Some(Refused)) => Some(value),
            (Asked::Get, Some(Value(seen))) => (seen == value).then_some(value),
            (Asked::Insert(new), Some(Inserted) | None) => (!present).then_some(Some(new)),
            (Asked::Upsert(new), Some(Inserted)) => (!present).then_some(Some(new)),
            (Asked::Update(new), Some(Updated) | None) => present.then_some(Some(new)),
            (Asked::Upsert(new), Some(Updated)) => present.then_some(Some(new)),
            (Asked::Upsert(new), None) => Some(Some(new)),
            (Asked::Remove, Some(Removed) | None) => present.then_some(None),
            (Asked::Insert(_), Some(Exists)) => present.then_some(value),
            (Asked::Update(_) | Asked::Remove, Some(Absent)) => (!present).then_some(value),
            _ => None,
        }
    }
}

/// What operations on one key do. Values that nobody saw become one that nobody saw either, which is
/// told as well.
fn effects(operations: &[KeyOperation]) -> (Vec<Effect>, u64) {
    let answers = operations.iter().filter_map(|operation| operation.answered);
    let seen: BTreeSet<u64> = answers
        .filter_map(|answered| match answered {
            Answered::Value(value) => value,
            _ => None,
        })
        .collect();
    let unseen = (0..).find(|value| !seen.contains(value));
    let unseen = unseen.expect("there are fewer operations than numbers");
    let merged = |value| if seen.contains(&value) { value } else { unseen };
    let effect = |operation: &KeyOperation| Effect {
        asked: match operation.asked {
            Asked::Insert(value) => Asked::Insert(merged(value)),
            Asked::Update(value) => Asked::Update(merged(value)),
            // Another value that nobody saw in place of one that is there makes no difference.
            Asked::Upsert(value) if operation.answered.is_none() && merged(value) == unseen => {
                Asked::Insert(unseen)
            }
            Asked::Upsert(value) => Asked::Upsert(merged(value)),
            asked => asked,
        },
        answered: operation.answered,
    };
    (operations.iter().map(effect).collect(), unseen)
}

/// The walk over the operations on one key.
struct Walk<'h> {
    operations: &'h [KeyOperation],
    effects: Vec<Effect>,
    /// What stands for the values that nobody saw.
    unseen: u64,
    /// Those under way, in order of their numbers.
    under_way: Vec<usize>,
    /// What can be; never empty.
    states: Vec<State>,
}

/// Whether operations on one key, which was absent, are linearizable; and what it held at the end, if
/// that is known.
fn check_key(operations: &[KeyOperation], last: Option<Option<u64>>) -> Result<(), Finding> {
    let mut operations = operations.to_vec();
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(operations.len() * 2);
    for (index, operation) in operations.iter().enumerate() {
        events.push((operation.begun, false, index));
        if operation.answered.is_some() {
            if operation.ended < operation.begun {
                let text = format!("it ended before it began\n{}", line(operation));
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
            asked: Asked::Get,
            answered: Some(Answered::Value(value)),
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
        // Numbers are not in order of time: several clients were merged.
        if let Err(place) = self.under_way.binary_search(&index) {
            self.under_way.insert(place, index);
        }
        let states = std::mem::take(&mut self.states);
        self.states = states.into_iter().map(|state| self.settle(state)).collect();
    }

    /// Lets take effect what changes nothing and fits.
    fn settle(&self, mut state: State) -> State {
        for &index in &self.under_way {
            let effect = self.effects[index];
            let fits = effect.answered.is_some() && !state.has(index);
            if fits && effect.apply(state.value) == Some(state.value) {
                state = state.after(index, true, state.value);
            }
        }
        state
    }

    /// Keeps the states in which an operation has taken effect.
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
                let finding = self.finding(index, "too many orders to try");
                return Err(Finding {
                    kind: Anomaly::Undecided,
                    ..finding
                });
            }
        }
        if ended.lost_by.is_empty() {
            return Err(self.finding(index, "no order explains"));
        }
        self.under_way.retain(|other| *other != index);
        self.states = ended.into_states();
        self.forget();
        Ok(())
    }

    /// The states after one more of the operations under way has taken effect.
    fn successors(&self, state: &State) -> Vec<State> {
        let mut successors = Vec::new();
        let mut tried: Vec<Asked> = Vec::new();
        for &index in &self.under_way {
            let Effect { asked, answered } = self.effects[index];
            if state.has(index) || answered.is_none() && tried.contains(&asked) {
                continue;
            }
            if answered.is_none() {
                tried.push(asked);
            }
            let value = self.effects[index].apply(state.value);
            if let Some(value) = value.filter(|value| *value != state.value) {
                successors.push(self.settle(state.after(index, answered.is_some(), value)));
            }
        }
        successors
    }

    /// Drops what has taken effect in every state.
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
        let answer = &self.operations[index];
        let mut text = format!("{why}\n  {}\nbefore it the key can have held", line(answer));
        let values: BTreeSet<Option<u64>> = self.states.iter().map(|state| state.value).collect();
        for value in values {
            let _ = match value {
                Some(value) if value == self.unseen => write!(text, " a value that nobody saw,"),
                Some(value) => write!(text, " {value},"),
                None => write!(text, " nothing,"),
            };
        }
        let mut shown: Vec<usize> = (0..self.operations.len())
            .filter(|other| self.operations[*other].begun <= answer.ended && *other != index)
            .collect();
        shown.sort_by_key(|other| match self.operations[*other] {
            KeyOperation { answered: None, .. } => (u64::MAX, *other),
            KeyOperation { ended, .. } => (ended, *other),
        });
        let from = shown.len().saturating_sub(MOST_SHOWN);
        let _ = write!(text, " and these came before it or were under way:");
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
        asked,
        answered,
    } = operation;
    let who = match *client {
        u32::MAX => "at the end".to_owned(),
        client => format!("client {client}"),
    };
    match answered {
        Some(answered) => {
            format!("{who}, {begun} to {ended}: {asked:?} of key {key}: {answered:?}")
        }
        None => format!("{who}, from {begun} on: {asked:?} of key {key}: no answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_orders_are_no_verdict() {
        let mut operations = Vec::new();
        for value in 0..12 {
            for (begun, asked, answered) in [
                (0, Asked::Upsert(value), Answered::Updated),
                (value, Asked::Get, Answered::Value(Some(value))),
            ] {
                operations.push(KeyOperation {
                    client: value as u32,
                    key: 1,
                    begun,
                    ended: 100,
                    asked,
                    answered: Some(answered),
                });
            }
        }
        operations[0].answered = Some(Answered::Inserted);
        let finding = check(&operations).expect_err("twelve take thousands of states");
        assert_eq!(finding.kind, Anomaly::Undecided, "{finding}");
        assert_eq!(check(&operations[..12]), Ok(12));
    }
}
