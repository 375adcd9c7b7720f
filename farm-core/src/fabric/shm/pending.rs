//! The reads that an endpoint has been given and has not copied yet, oldest first.

use std::ops::Range;

use crate::fabric::{Read, ReadKind, Remote, RemoteMemory, Slot, Token};

/// A read, in the fields that it is queued by.
#[derive(Default)]
struct Entry {
    offset: u64,
    token: u64,
    slot: Option<Slot>,
    memory: u32,
    bytes: u32,
    /// Zero for a raw read.
    stride: u32,
}

/// A queue that never grows, written field by field: a read put together in memory and then moved
/// would stall the processor, which cannot load at once what it has just stored in smaller pieces.
pub(super) struct PendingReads {
    /// A power of two of them.
    entries: Box<[Entry]>,
    /// Reads ever pushed, and popped; the difference is how many there are.
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

    /// Appends a read without fence.
    ///
    /// # Panics
    /// If there are as many as it was made for.
    #[inline]
    pub(super) fn push(&mut self, read: Read, slot: Slot) {
        assert!(self.len() < self.entries.len(), "more reads than promised");
        let at = self.index(self.pushed);
        let entry = &mut self.entries[at];
        entry.offset = read.from.offset;
        entry.memory = read.from.memory.index();
        entry.token = read.token.0;
        entry.bytes = read.bytes;
        entry.stride = match read.kind {
            ReadKind::Raw => 0,
            ReadKind::Objects { stride } => stride,
        };
        entry.slot = Some(slot);
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Takes the oldest.
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
            kind: match entry.stride {
                0 => ReadKind::Raw,
                stride => ReadKind::Objects { stride },
            },
            fence: false,
            token: Token(entry.token),
        };
        Some((read, slot))
    }

    /// Where a read is from and how many bytes it has; 0 is the oldest.
    ///
    /// # Panics
    /// If there are no more than `index`.
    #[inline]
    pub(super) fn source(&self, index: usize) -> (u32, usize, usize) {
        assert!(index < self.len(), "there are {} reads", self.len());
        let entry = &self.entries[self.index(self.popped.wrapping_add(index))];
        (entry.memory, entry.offset as usize, entry.bytes as usize)
    }

    /// The same of several.
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
    fn reads_come_out_as_they_went_in_and_in_order() {
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
