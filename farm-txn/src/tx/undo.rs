//! What a transaction tries and may take back: a journal of what is changed meanwhile, and of nothing else.

use farm_core::alloc::SizeClass;
use farm_core::mutants;
use farm_core::object::{Incarnation, Version};
use farm_core::worker::Worker;

use super::room::give_back;
use super::{Intent, Tx};

/// What the transaction was when it began to try.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// Something is tried now.
    active: bool,
    /// Entries that it had, and how many of them had forgotten their payloads.
    entries: usize,
    forgotten: usize,
    /// The end of its payloads, and bytes of them that it held.
    end: usize,
    held: usize,
    /// Continuations that wait for the commit.
    waiting: usize,
    /// Entries of then that were changed since, each once, and their payloads.
    changed: Vec<Changed>,
    payloads: Vec<u8>,
}

/// An entry as it was.
#[derive(Clone, Copy, Debug)]
struct Changed {
    index: u32,
    at: u32,
    /// Where its payload is in [`Undo::payloads`].
    saved_at: u32,
    class: SizeClass,
    version: Version,
    incarnation: Incarnation,
    intent: Intent,
    bump: bool,
}

impl Undo {
    /// Whether something is tried now.
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// The transaction forgets everything: nothing is left to be restored.
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
    /// Does something of several steps, and takes all of it back if one of them fails: what was read,
    /// written, allocated and freed since. The transaction goes on as if it had not been tried; objects
    /// that it met first in what failed are not its own any more. What `body` changes is recorded, and nothing
    /// else.
    ///
    /// # Errors
    /// Those of `body`.
    ///
    /// # Panics
    /// If `body` calls it in turn.
    pub fn all_or_nothing<T, E>(
        &mut self,
        worker: &mut Worker,
        body: impl FnOnce(&mut Tx, &mut Worker) -> Result<T, E>,
    ) -> Result<T, E> {
        assert!(!self.undo.active, "all_or_nothing inside of all_or_nothing");
        let undo = &mut self.undo;
        undo.active = true;
        (undo.entries, undo.forgotten) = (self.entries.len(), self.forgotten);
        (undo.end, undo.held) = (self.payloads.begin_appending(), self.payloads.held());
        undo.waiting = self.when_committed.len();
        let outcome = body(self, worker);
        if outcome.is_err() && !mutants::is_on("an edit that failed is not taken back") {
            self.take_back(worker);
        }
        self.payloads.end_appending();
        for changed in self.undo.changed.drain(..) {
            self.entries[changed.index as usize].saved = false;
        }
        self.undo.payloads.clear();
        self.undo.active = false;
        outcome
    }

    /// An entry is about to be changed: records how it is, if that may be wanted.
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

    fn take_back(&mut self, worker: &mut Worker) {
        let (kept, undo) = (self.undo.entries, &self.undo);
        let before = undo.changed.iter().filter(|was| !was.intent.is_written());
        let before = before.map(|was| &self.entries[was.index as usize]);
        let new = self.entries.range(kept..self.entries.len());
        give_back(
            worker,
            before.chain(new).filter(|entry| entry.is_reserved()),
        );
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
