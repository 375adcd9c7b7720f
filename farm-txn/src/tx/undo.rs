//! The journal of [`Tx::all_or_nothing`]: it records what `body` changes, and nothing else.

use farm_core::alloc::SizeClass;
use farm_core::object::{Incarnation, Version};

use super::{Entry, Intent, Tx};

/// State of the transaction at the start of [`Tx::all_or_nothing`], and the entries that were changed since.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// Whether [`Tx::all_or_nothing`] runs.
    active: bool,
    /// Number of entries at the start, and how many of them had forgotten their payloads.
    entries: usize,
    forgotten: usize,
    /// End of the payload buffer at the start, and the number of its bytes that were held.
    end: usize,
    held: usize,
    /// Number of continuations at the start that wait for the commit.
    waiting: usize,
    /// Entries of the start that were changed since, each once, and their payloads.
    changed: Vec<Changed>,
    payloads: Vec<u8>,
}

/// The earlier state of an entry.
#[derive(Clone, Copy, Debug)]
struct Changed {
    index: u32,
    at: u32,
    /// Offset of its payload in [`Undo::payloads`].
    saved_at: u32,
    class: SizeClass,
    version: Version,
    incarnation: Incarnation,
    intent: Intent,
    bump: bool,
}

impl Undo {
    /// Returns whether [`Tx::all_or_nothing`] runs.
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Drops the journal: the transaction has removed all of its objects.
    pub(super) fn clear(&mut self) {
        *self = Self {
            active: self.active,
            changed: std::mem::take(&mut self.changed),
            payloads: std::mem::take(&mut self.payloads),
            ..Self::default()
        };
        self.changed.clear();
        self.payloads.clear();
    }

    pub(super) fn capacity(&self) -> usize {
        self.payloads.capacity()
    }
}

impl Tx {
    /// Starts the journal.
    ///
    /// # Panics
    /// If it is started already.
    pub(super) fn start_journal(&mut self) {
        let undo = &mut self.undo;
        assert!(
            !undo.active,
            "all_or_nothing was called inside of all_or_nothing"
        );
        undo.active = true;
        (undo.entries, undo.forgotten) = (self.entries.len(), self.forgotten);
        (undo.end, undo.held) = (self.payloads.begin_appending(), self.payloads.held());
        undo.waiting = self.when_committed.len();
    }

    /// Ends the journal.
    pub(super) fn end_journal(&mut self) {
        self.payloads.end_appending();
        for changed in self.undo.changed.drain(..) {
            self.entries[changed.index as usize].saved = false;
        }
        self.undo.payloads.clear();
        self.undo.active = false;
    }

    /// Returns the entries of objects for which room was reserved since the start of the journal.
    pub(super) fn reserved_since(&self) -> impl Iterator<Item = &Entry> {
        let (kept, undo) = (self.undo.entries, &self.undo);
        let before = undo.changed.iter().filter(|was| !was.intent.is_written());
        let before = before.map(|was| &self.entries[was.index as usize]);
        let new = self.entries.range(kept..self.entries.len());
        before.chain(new).filter(|entry| entry.is_reserved())
    }

    /// Records an entry before a change, if the change may be taken back.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) {
        if self.undo.active && index < self.undo.entries {
            self.save(index);
        }
    }

    #[cold]
    fn save(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        if std::mem::replace(&mut entry.saved, true) {
            return;
        }
        let undo = &mut self.undo;
        undo.changed.push(Changed {
            index: index as u32,
            at: entry.at,
            saved_at: undo.payloads.len() as u32,
            class: entry.class,
            version: entry.version,
            incarnation: entry.incarnation,
            intent: entry.intent,
            bump: entry.bump,
        });
        if entry.is_held() {
            let payload = self.payloads.get(entry.payload());
            undo.payloads.extend_from_slice(payload);
        }
    }

    /// Takes everything back that was changed since the start of the journal.
    pub(super) fn take_back(&mut self) {
        let (kept, undo) = (self.undo.entries, &self.undo);
        for was in &undo.changed {
            let entry = &mut self.entries[was.index as usize];
            (entry.at, entry.class) = (was.at, was.class);
            (entry.version, entry.incarnation) = (was.version, was.incarnation);
            (entry.intent, entry.bump) = (was.intent, was.bump);
            if entry.is_held() {
                let payload = self.payloads.get_mut(entry.payload());
                let saved = &undo.payloads[was.saved_at as usize..];
                payload.copy_from_slice(&saved[..payload.len()]);
            }
        }
        self.payloads.truncate(undo.end, undo.held);
        self.forgotten = undo.forgotten;
        self.when_committed.truncate(undo.waiting);
        self.index.truncate(&self.entries, kept);
        self.entries.truncate(kept);
    }
}
