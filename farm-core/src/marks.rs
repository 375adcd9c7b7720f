//! Marks on rare branches, counted for each thread, so that a test can require that its runs reach them.
//!
//! Many bugs are in branches that are taken once in a million operations, and a test that never takes such a branch
//! proves nothing about it. Marks are on cold branches only; a mark costs a short search and an addition.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Number of times that each mark was reached, by name.
pub type Reached = BTreeMap<&'static str, u64>;

/// Capacity, in names, which is greater than the number of marks that a thread reaches: reaching a mark for the first
/// time must not allocate, because tests count allocations.
const NAMES: usize = 256;

thread_local! {
    static REACHED: RefCell<Vec<(&'static str, u64)>> = RefCell::new(Vec::with_capacity(NAMES));
}

/// Counts that the calling branch was taken. The name consists of layer and event, as in `"ring: wrapped"`.
#[cold]
pub fn mark(name: &'static str) {
    REACHED.with_borrow_mut(|reached| {
        // Most calls pass the literal that an earlier call of the same place passed: no text is compared then.
        let by_place = |(known, _): &(&'static str, u64)| std::ptr::eq(*known, name);
        let by_text = |(known, _): &(&'static str, u64)| *known == name;
        let place = reached.iter().position(by_place);
        match place.or_else(|| reached.iter().position(by_text)) {
            Some(place) => reached[place].1 += 1,
            None => reached.push((name, 1)),
        }
    });
}

/// Returns the marks that this thread has reached since the last call.
pub fn take() -> Reached {
    REACHED.with_borrow_mut(|reached| reached.drain(..).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_until_take() {
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
