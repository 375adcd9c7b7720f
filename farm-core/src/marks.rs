//! Marks on rare branches, counted for each thread, so that a test can demand that its runs reach them.
//!
//! A branch that is taken once in a million operations is where bugs live, and a test that never takes
//! it proves nothing. Marks stand on cold branches only; one costs a short search and an addition.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// How often each mark was reached.
pub type Reached = BTreeMap<&'static str, u64>;

/// More names than a thread reaches: a mark that is reached for the first time is to allocate nothing, for tests count
/// allocations.
const NAMES: usize = 256;

thread_local! {
    static REACHED: RefCell<Vec<(&'static str, u64)>> = RefCell::new(Vec::with_capacity(NAMES));
}

/// The branch in which this stands was taken. The name says layer and event, as in `"ring: wrapped"`.
#[cold]
pub fn mark(name: &'static str) {
    REACHED.with_borrow_mut(
        |reached| match reached.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => reached.push((name, 1)),
        },
    );
}

/// What this thread has reached since the last call.
pub fn take() -> Reached {
    REACHED.with_borrow_mut(|reached| reached.drain(..).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_until_they_are_taken() {
        take();
        mark("test: one");
        mark("test: two");
        mark("test: one");
        let reached = take();
        assert_eq!(
            reached.into_iter().collect::<Vec<_>>(),
            [("test: one", 2), ("test: two", 1)]
        );
        assert!(take().is_empty());
    }
}
