//! The endpoint's registered memory, divided into slots: the targets of reads and the sources of
//! writes that are not inline.
//!
//! A [`Slot`] is not `Copy`: posting moves it to the fabric, the completion moves it back, and only
//! its owner can access its contents. Therefore no code accesses memory that a NIC may be reading or
//! writing.

use std::fmt;
use std::num::NonZeroU64;

use crate::mem::WORD_BYTES;

/// The number of slots of each size in an endpoint's arena.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// `(bytes, count)` in ascending order of size, each size a multiple of 64. The arena adds one
    /// more slot of each size, reserved for sending.
    pub classes: Vec<(usize, usize)>,
}

/// Number of slots of each size reserved for writes and reads of headers. Other reads may hold
/// their slots until a lock is released, and the write that releases the lock must not wait for
/// these slots.
const KEPT_TO_SEND: usize = 1;

impl ArenaConfig {
    /// Returns a configuration with slots for `reads` small reads in flight, and a few slots of
    /// every larger size up to `largest`.
    pub fn for_reads(reads: usize, largest: usize) -> Self {
        let mut classes = vec![(512, reads), (1024, reads.min(256)), (4096, reads.min(128))];
        let mut bytes = 16384;
        while bytes < largest.max(16384) {
            classes.push((bytes, 8));
            bytes *= 4;
        }
        classes.push((bytes.max(largest).next_multiple_of(64), 4));
        Self { classes }
    }

    /// Returns the bytes of all slots.
    pub fn bytes(&self) -> usize {
        let classes = self.classes.iter();
        classes
            .map(|(bytes, count)| bytes * (count + KEPT_TO_SEND))
            .sum()
    }

    /// Returns the configuration with at least `count` slots of exactly `bytes` (rounded up to
    /// lines).
    #[must_use]
    pub fn with(mut self, bytes: usize, count: usize) -> Self {
        let bytes = bytes.next_multiple_of(64);
        match self.classes.binary_search_by_key(&bytes, |class| class.0) {
            Ok(found) => self.classes[found].1 = self.classes[found].1.max(count),
            Err(place) => self.classes.insert(place, (bytes, count)),
        }
        self
    }
}

/// A part of the arena, owned by the holder of this value.
///
/// It consists of two words, so that calls pass it in registers. If a slot were written to memory
/// as several small fields and read back as larger words, the processor would stall at every such
/// read.
#[derive(PartialEq, Eq)]
pub struct Slot {
    /// The slot's number in the upper half, and the index of its first word in the arena in the
    /// lower half.
    place: u64,
    /// The slot's class in the upper half, and its number of words in the lower half.
    size: NonZeroU64,
}

impl Slot {
    /// Returns the slot's number within its arena. It is unique among taken slots, so the slot's
    /// owner can use it as the index of a table.
    #[inline]
    pub fn index(&self) -> usize {
        (self.place >> 32) as usize
    }

    #[inline]
    fn word(&self) -> usize {
        self.place as u32 as usize
    }

    #[inline]
    fn words(&self) -> usize {
        self.size.get() as u32 as usize
    }

    #[inline]
    fn class(&self) -> usize {
        (self.size.get() >> 32) as usize
    }

    /// Returns the bytes of the slot.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.words() * WORD_BYTES
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot {} of {} bytes", self.index(), self.bytes())
    }
}

struct Class {
    bytes: usize,
    /// The `size` of every slot of the class.
    size: NonZeroU64,
    /// The `place` of each free slot. The slot returned last is on top, because it is cached.
    free: Vec<u64>,
    /// Number of free slots that [`Arena::take`] leaves: [`KEPT_TO_SEND`], or all while the class
    /// is closed.
    kept: usize,
}

/// The slots of one endpoint. Taking and returning slots does not allocate.
pub struct Arena {
    words: Box<[u64]>,
    classes: Vec<Class>,
    slots: usize,
    taken: usize,
}

impl Arena {
    /// Creates the arena.
    ///
    /// # Panics
    /// If the classes are not ascending multiples of 64 bytes, if there are more than 255 classes,
    /// or if the slots have more words than 32 bits can count.
    pub fn new(config: &ArenaConfig) -> Self {
        assert!(
            config.classes.len() < 256,
            "an arena has at most 255 classes of slots, but {} are configured",
            config.classes.len()
        );
        let (mut next, mut slots) = (0, 0);
        let mut last = 0;
        let mut classes = Vec::with_capacity(config.classes.len());
        for &(bytes, count) in &config.classes {
            assert!(
                bytes > last && bytes % 64 == 0,
                "arena classes must ascend and be multiples of 64 bytes: a class of {bytes} bytes follows one of {last}"
            );
            last = bytes;
            let words = bytes / WORD_BYTES;
            let count = count + KEPT_TO_SEND;
            let free = (0..count).rev();
            let free = free.map(|i| ((slots + i) as u64) << 32 | (next + i * words) as u64);
            let free = free.collect();
            let size = (classes.len() as u64) << 32 | words as u64;
            next += count * words;
            slots += count;
            assert!(
                next <= u32::MAX as usize,
                "the arena needs {next} words, more than 32-bit indices can address"
            );
            classes.push(Class {
                bytes,
                size: NonZeroU64::new(size)
                    .expect("a size class of the arena has more than 0 words"),
                free,
                kept: KEPT_TO_SEND,
            });
        }
        Self {
            words: vec![0; next].into_boxed_slice(),
            classes,
            slots,
            taken: 0,
        }
    }

    /// Takes a slot of at least `bytes` for a read, or for an operation that may hold it for long.
    /// Returns `None` if all slots of sufficient size are taken, or reserved for operations that
    /// wait for a slot.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Option<Slot> {
        self.take_leaving(bytes, |class| class.kept)
    }

    /// Takes a slot of at least `bytes` for an operation that the fabric completes without waiting
    /// for a peer's software, such as a write. Returns `None` if all slots of sufficient size are
    /// taken.
    #[inline]
    pub fn take_to_send(&mut self, bytes: usize) -> Option<Slot> {
        self.take_leaving(bytes, |_| 0)
    }

    #[inline]
    fn take_leaving(&mut self, bytes: usize, kept: impl Fn(&Class) -> usize) -> Option<Slot> {
        for class in &mut self.classes {
            if class.bytes >= bytes
                && class.free.len() > kept(class)
                && let Some(place) = class.free.pop()
            {
                self.taken += 1;
                let size = class.size;
                return Some(Slot { place, size });
            }
        }
        None
    }

    /// Returns the number of slot sizes.
    pub(crate) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Returns the first class whose slots have at least `bytes`, or the last class.
    pub(crate) fn class_of(&self, bytes: usize) -> usize {
        let smaller = self.classes.partition_point(|class| class.bytes < bytes);
        smaller.min(self.classes.len() - 1)
    }

    /// Closes the classes from `first` on: [`Arena::take`] returns none of their slots until
    /// another call opens them. `None` opens all classes.
    pub(crate) fn close_from(&mut self, first: Option<usize>) {
        let first = first.unwrap_or(usize::MAX);
        for (index, class) in self.classes.iter_mut().enumerate() {
            class.kept = match index < first {
                true => KEPT_TO_SEND,
                false => usize::MAX,
            };
        }
    }

    /// Returns whether a slot of a class, or of a larger one, is free for a read. Ignores whether
    /// classes are closed.
    pub(crate) fn has_free(&self, class: usize) -> bool {
        let from = self.classes[class..].iter();
        from.into_iter()
            .any(|class| class.free.len() > KEPT_TO_SEND)
    }

    /// Returns whether any slot is free for sending.
    pub(crate) fn has_free_to_send(&self) -> bool {
        self.classes.iter().any(|class| !class.free.is_empty())
    }

    /// Returns a slot to the arena.
    #[inline]
    pub fn give(&mut self, slot: Slot) {
        self.taken -= 1;
        self.classes[slot.class()].free.push(slot.place);
    }

    /// Returns the contents of a slot.
    #[inline]
    pub fn words(&self, slot: &Slot) -> &[u64] {
        &self.words[slot.word()..][..slot.words()]
    }

    /// Returns the contents of a slot for writing.
    #[inline]
    pub fn words_mut(&mut self, slot: &mut Slot) -> &mut [u64] {
        &mut self.words[slot.word()..][..slot.words()]
    }

    /// Returns the start and the length in bytes of the memory of all slots, for registration with
    /// a device. The memory stays at this address as long as the arena lives.
    pub(super) fn memory(&mut self) -> (*mut u8, usize) {
        let bytes = size_of_val(&*self.words);
        (self.words.as_mut_ptr().cast(), bytes)
    }

    /// Returns the offset of a slot in the arena's memory, in bytes.
    #[inline]
    pub(super) fn offset(&self, slot: &Slot) -> usize {
        slot.word() * WORD_BYTES
    }

    /// Returns the number of slots of all sizes.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the number of taken slots. If it is not zero when no operation is in flight, a slot
    /// leaked.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the bytes of the largest slot.
    pub fn largest(&self) -> usize {
        self.classes.last().map_or(0, |class| class.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_adds_slots_of_an_exact_size() {
        let config = ArenaConfig::for_reads(100, 1 << 20)
            .with(6200, 90)
            .with(1024, 90)
            .with(2 << 20, 4);
        let count = |bytes| {
            config
                .classes
                .iter()
                .find(|class| class.0 == bytes)
                .map(|class| class.1)
        };
        assert_eq!(
            (count(6208), count(1024), count(2 << 20)),
            (Some(90), Some(100), Some(4))
        );
        assert!(config.classes.is_sorted_by(|a, b| a.0 < b.0), "{config:?}");
    }

    #[test]
    fn slots_do_not_overlap_and_come_back() {
        let mut arena = Arena::new(&ArenaConfig {
            classes: vec![(64, 2), (128, 1)],
        });
        let mut a = arena.take(10).unwrap();
        let mut b = arena.take(64).unwrap();
        let mut c = arena
            .take(64)
            .expect("a larger slot is used when the small slots are taken");
        assert_eq!((a.bytes(), c.bytes()), (64, 128));
        assert_eq!([a.index(), b.index(), c.index()], [0, 1, 3]);
        assert_eq!(arena.slots(), 5);
        assert!(arena.take(1).is_none());
        let kept = arena
            .take_to_send(1)
            .expect("one slot of each size is reserved for sending");
        assert_eq!((kept.index(), kept.bytes()), (2, 64));
        arena.give(kept);
        arena.words_mut(&mut a).fill(1);
        arena.words_mut(&mut b).fill(2);
        arena.words_mut(&mut c).fill(3);
        assert!(arena.words(&a).iter().all(|w| *w == 1));
        assert!(arena.words(&b).iter().all(|w| *w == 2));
        for slot in [a, b, c] {
            arena.give(slot);
        }
        assert_eq!(arena.taken(), 0);
        assert!(arena.take(128).is_some() && arena.take(129).is_none());
    }
}
