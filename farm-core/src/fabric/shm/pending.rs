//! The reads that were posted to an endpoint and are not copied yet, oldest first.

use std::ops::Range;

use crate::fabric::{Read, ReadKind, Remote, RemoteMemory, Slot, Token};

/// A queued read: all fields except the fence.
#[derive(Default)]
struct Entry {
    offset: u64,
    token: u64,
    slot: Option<Slot>,
    memory: u32,
    bytes: u32,
    kind: ReadKind,
}

/// A queue of fixed capacity, written field by field. If a read were assembled in memory and then
/// moved, the processor would stall, because it cannot load immediately what it has just stored in
/// smaller pieces.
pub(super) struct PendingReads {
    /// The entries; their number is a power of two.
    entries: Box<[Entry]>,
    /// Numbers of reads pushed and popped so far. The difference is the length.
    pushed: usize,
    popped: usize,
}

impl PendingReads {
    pub(super) fn with_capacity(reads: usize) -> Self {
        let entries = (0..reads.next_power_of_two()).map(|_| Entry::default());
        Self {
            entries: entries.collect(),
            pushed: 0,
            popped: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.pushed.wrapping_sub(self.popped)
    }

    #[inline]
    fn index(&self, count: usize) -> usize {
        count & (self.entries.len() - 1)
    }

    /// Appends a read, without its fence: the caller has already performed the fence.
    ///
    /// # Panics
    /// If the queue is full.
    #[inline]
    pub(super) fn push(&mut self, read: Read, slot: Slot) {
        assert!(
            self.len() < self.entries.len(),
            "more reads were posted than the queue of pending reads has room for"
        );
        let at = self.index(self.pushed);
        let entry = &mut self.entries[at];
        entry.offset = read.from.offset;
        entry.memory = read.from.memory.index();
        entry.token = read.token.0;
        entry.bytes = read.bytes;
        entry.kind = read.kind;
        entry.slot = Some(slot);
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Removes and returns the oldest read.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Read, Slot)> {
        if self.len() == 0 {
            return None;
        }
        let at = self.index(self.popped);
        self.popped = self.popped.wrapping_add(1);
        let entry = &mut self.entries[at];
        let slot = entry.slot.take()?;
        let read = Read {
            from: Remote {
                memory: RemoteMemory::from_index(entry.memory),
                offset: entry.offset,
            },
            bytes: entry.bytes,
            kind: entry.kind,
            fence: false,
            token: Token(entry.token),
        };
        Some((read, slot))
    }

    /// Returns memory, offset and bytes of the read at `index`; 0 is the oldest.
    ///
    /// # Panics
    /// If the queue has at most `index` reads.
    #[inline]
    pub(super) fn source(&self, index: usize) -> (u32, usize, usize) {
        assert!(
            index < self.len(),
            "index of a pending read is out of range: there are {} reads",
            self.len()
        );
        let entry = &self.entries[self.index(self.popped.wrapping_add(index))];
        (entry.memory, entry.offset as usize, entry.bytes as usize)
    }

    /// Returns memory, offset and bytes of several reads.
    #[inline]
    pub(super) fn sources(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (u32, usize, usize)> + '_ {
        range.map(|index| self.source(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Arena, ArenaConfig};

    #[test]
    fn reads_are_popped_unchanged_and_in_order() {
        let mut arena = Arena::new(&ArenaConfig {
            classes: vec![(64, 5)],
        });
        let mut reads = PendingReads::with_capacity(5);
        let read = |number: u64| Read {
            from: Remote {
                memory: RemoteMemory::from_index(number as u32 % 3),
                offset: number * 64,
            },
            bytes: 64 + number as u32,
            kind: match number % 2 {
                0 => ReadKind::Raw,
                _ => ReadKind::Objects { stride: 64 },
            },
            fence: false,
            token: Token(number),
        };
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..40 {
            while reads.len() < 1 + round % 5 {
                reads.push(read(pushed), arena.take(64).unwrap());
                pushed += 1;
            }
            let sources: Vec<_> = reads.sources(0..reads.len()).collect();
            let expected =
                (popped..pushed).map(|n| (n as u32 % 3, n as usize * 64, 64 + n as usize));
            assert!(sources.into_iter().eq(expected));
            for _ in 0..=round % 3 {
                let Some((out, slot)) = reads.pop() else {
                    assert_eq!(popped, pushed);
                    break;
                };
                assert_eq!(format!("{out:?}"), format!("{:?}", read(popped)));
                arena.give(slot);
                popped += 1;
            }
        }
    }
}
