//! Decides whether the operations on a graph are strictly serializable: whether all of them, alone and in transactions,
//! could have taken effect one after the other, each between its begin and its end.
//!
//! The checker is exact. It walks over the operations in order of time, and keeps every state that the graph can have,
//! together with the set of operations under way that have already taken effect. When an operation ends, the checker
//! tries the orders of the operations under way in which it takes effect. If there is none, the history is not strictly
//! serializable. These rules keep the number of states small:
//!
//! * If an operation changes nothing and fits its results, it takes effect at once: a later effect is never better.
//! * Before an operation, only those operations are tried whose order matters for it, directly or by way of others: any
//!   other one can as well take effect later.
//! * An operation without a known outcome stays under way for ever, but need not take effect.

mod footprint;
mod model;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;

use footprint::Footprint;
use model::Model;

use super::finding::{Anomaly, Finding};
use crate::history::graph::GraphOperation;

/// Maximum number of states that are visited to explain the results of one operation.
const MOST_STATES: usize = 1 << 17;
/// Maximum number of operations that a finding lists.
const MOST_SHOWN: usize = 24;

/// Checks that operations on an initially empty graph are strictly serializable. Returns their number.
///
/// # Errors
/// The first operation whose results no order explains.
pub fn check(operations: &[GraphOperation]) -> Result<usize, Finding> {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(operations.len() * 2);
    for (index, operation) in operations.iter().enumerate() {
        events.push((operation.begun, false, index));
        events.extend(operation.ended.map(|ended| (ended, true, index)));
    }
    events.sort_unstable();
    let mut walk = Walk {
        operations,
        footprints: operations.iter().map(Footprint::of).collect(),
        under_way: Vec::new(),
        states: vec![State::default()],
    };
    for (_, ends, index) in events {
        if ends {
            walk.end(index)?;
        } else {
            walk.begin(index);
        }
    }
    Ok(operations.len())
}

/// A state that the graph can have, and the operations under way that have taken effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// By ascending index.
    done: Vec<usize>,
    model: Model,
}

struct Walk<'h> {
    operations: &'h [GraphOperation],
    footprints: Vec<Footprint>,
    /// The operations that have begun and not ended.
    under_way: Vec<usize>,
    /// The possible states; never empty.
    states: Vec<State>,
}

impl State {
    fn has(&self, index: usize) -> bool {
        self.done.binary_search(&index).is_ok()
    }

    /// Returns the state after an operation, if its results are possible.
    fn after(&self, index: usize, operation: &GraphOperation) -> Option<State> {
        let mut next = self.clone();
        for (request, result) in &operation.steps {
            let made = next.model.make(request);
            if result.as_ref().is_some_and(|result| *result != made) {
                return None;
            }
        }
        if let Err(place) = next.done.binary_search(&index) {
            next.done.insert(place, index);
        }
        Some(next)
    }
}

impl Walk<'_> {
    fn begin(&mut self, index: usize) {
        self.under_way.push(index);
        let states = std::mem::take(&mut self.states);
        self.states = states.into_iter().map(|state| self.settle(state)).collect();
    }

    /// Lets every operation take effect that has ended in the history, fits its results, and changes nothing.
    fn settle(&self, mut state: State) -> State {
        for &index in &self.under_way {
            if self.operations[index].ended.is_none() || state.has(index) {
                continue;
            }
            let next = state.after(index, &self.operations[index]);
            if let Some(next) = next.filter(|next| next.model == state.model) {
                state = next;
            }
        }
        state
    }

    /// Ends an operation: keeps only the states in which it has taken effect.
    fn end(&mut self, index: usize) -> Result<(), Finding> {
        let relevant = self.relevant(index);
        let (mut ended, mut is_ended) = (Vec::new(), BTreeSet::new());
        let mut left: VecDeque<State> = std::mem::take(&mut self.states).into();
        let before: Vec<State> = left.iter().cloned().collect();
        let mut seen: BTreeSet<State> = before.iter().cloned().collect();
        while let Some(mut state) = left.pop_front() {
            if let Ok(place) = state.done.binary_search(&index) {
                state.done.remove(place);
                if is_ended.insert(state.clone()) {
                    ended.push(state);
                }
                continue;
            }
            for &other in relevant.iter().filter(|other| !state.has(**other)) {
                if let Some(next) = state.after(other, &self.operations[other]) {
                    let next = self.settle(next);
                    if seen.insert(next.clone()) {
                        left.push_back(next);
                    }
                }
            }
            if seen.len() > MOST_STATES {
                let why = "too many orders of the operations to try all of them for these results";
                return Err(self.finding(Anomaly::Undecided, index, why, &before));
            }
        }
        if ended.is_empty() {
            let why = "no order of the operations explains these results";
            return Err(self.finding(Anomaly::Linearizability, index, why, &before));
        }
        self.under_way.retain(|other| *other != index);
        self.states = ended;
        Ok(())
    }

    /// Returns the operations under way that an operation may have to follow, and the operation itself.
    fn relevant(&self, index: usize) -> Vec<usize> {
        let mut found = vec![index];
        let mut at = 0;
        while let Some(&one) = found.get(at) {
            for &other in &self.under_way {
                let conflicts = self.footprints[one].conflicts(&self.footprints[other]);
                if conflicts && !found.contains(&other) {
                    found.push(other);
                }
            }
            at += 1;
        }
        found
    }

    fn finding(&self, kind: Anomaly, index: usize, why: &str, before: &[State]) -> Finding {
        let operation = &self.operations[index];
        let mut text = format!("{why}\n  {}", line(operation));
        if let [state, ..] = before {
            let states = before.len();
            let mut model = state.model.clone();
            let made: Vec<_> = operation
                .steps
                .iter()
                .map(|step| model.make(&step.0))
                .collect();
            let _ = write!(
                text,
                "\nin the first of {states} possible state(s) before its end its results would be {made:?}"
            );
        }
        let mut shown: Vec<usize> = (0..self.operations.len())
            .filter(|other| {
                let one = &self.operations[*other];
                Some(one.begun) <= operation.ended
                    && *other != index
                    && self.footprints[index].conflicts(&self.footprints[*other])
            })
            .collect();
        shown.sort_by_key(|other| {
            let ended = self.operations[*other].ended;
            (ended.unwrap_or(u64::MAX), *other)
        });
        let from = shown.len().saturating_sub(MOST_SHOWN);
        let _ = write!(
            text,
            "\nearlier and concurrent operations on the same parts of the graph:"
        );
        for other in &shown[from..] {
            let _ = write!(text, "\n  {}", line(&self.operations[*other]));
        }
        Finding::new(kind, text)
    }
}

fn line(operation: &GraphOperation) -> String {
    let GraphOperation {
        client,
        begun,
        ended,
        steps,
    } = operation;
    let mut line = match ended {
        Some(ended) => format!("client {client}, {begun} to {ended}:"),
        None => format!("client {client}, from {begun} on, outcome unknown:"),
    };
    for (request, result) in steps {
        let _ = match result {
            Some(result) => write!(line, " {request:?}: {result:?};"),
            None => write!(line, " {request:?};"),
        };
    }
    line
}

#[cfg(test)]
mod tests;
