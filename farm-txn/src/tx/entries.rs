//! The entries of a transaction, one for each of its objects.
//!
//! Debug builds count the entries that are accessed, so that tests can check that the work of each step of a commit
//! grows at most linearly with the entries. An iteration counts as all entries, even if it stops early.

use std::ops::{Index, IndexMut};
use std::slice::{Iter, IterMut};

use super::Entry;

/// From this number of entries on, capacity grows by an eighth at a time instead of doubling, so that the unused
/// capacity is small compared to the entries.
const GROWS_SLOWLY: usize = 1024;

/// The entries of a transaction, in the order in which its objects were added.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: Vec<Entry>,
}

impl Entries {
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self {
            all: Vec::with_capacity(entries),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn capacity(&self) -> usize {
        self.all.capacity()
    }

    #[inline]
    pub(crate) fn iter(&self) -> Iter<'_, Entry> {
        looked_at(self.all.len());
        self.all.iter()
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> IterMut<'_, Entry> {
        looked_at(self.all.len());
        self.all.iter_mut()
    }

    /// Returns the entries of a range; none if the range is out of bounds.
    #[inline]
    pub(crate) fn range(&self, range: std::ops::Range<usize>) -> Iter<'_, Entry> {
        let range = self.all.get(range).unwrap_or(&[]);
        looked_at(range.len());
        range.iter()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Entry> {
        looked_at(1);
        self.all.get(index)
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        if self.all.len() == self.all.capacity() && self.all.len() >= GROWS_SLOWLY {
            self.all.reserve_exact(self.all.len() / 8);
        }
        self.all.push(entry);
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

impl Index<usize> for Entries {
    type Output = Entry;

    #[inline]
    fn index(&self, index: usize) -> &Entry {
        looked_at(1);
        &self.all[index]
    }
}

impl IndexMut<usize> for Entries {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Entry {
        looked_at(1);
        &mut self.all[index]
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[inline]
fn looked_at(entries: usize) {
    #[cfg(debug_assertions)]
    LOOKED_AT.set(LOOKED_AT.get() + entries as u64);
    #[cfg(not(debug_assertions))]
    let _ = entries;
}

/// Returns the number of entries that this thread has accessed so far. For tests: counted in debug builds only.
#[doc(hidden)]
#[cfg(debug_assertions)]
pub fn entries_looked_at() -> u64 {
    LOOKED_AT.get()
}
