//! The loops that read at random places: batched, through a sliding window, and dependent.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};
use farm_core::mem::{LINE_BYTES, LINE_WORDS, LineLoads, Memory, WORD_BYTES};
use farm_core::mem::{copy_lines_by, copy_lines_raw};
use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::host::core_rate_of;

/// Number of reads between two readings of the clock.
const CHUNK: usize = 4096;
/// Number of reads between two readings of the clock, if each read depends on the previous one.
const DEPENDENT_CHUNK: usize = 256;
/// Number of entries in the table that chooses a memory by the low bits of a random number.
const CHOICES: usize = 256;

/// How a read copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    /// By `memcpy`.
    Memcpy,
    /// By these loads, without a check.
    Raw(LineLoads),
    /// By these loads, with the check of reads of objects.
    Checked(LineLoads),
}

impl Copying {
    pub(super) fn name(self) -> String {
        match self {
            Copying::Memcpy => "memcpy".into(),
            Copying::Raw(loads) => loads.name().into(),
            Copying::Checked(loads) => format!("checked {}", loads.name()),
        }
    }
}

/// How reads follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// This many reads are prefetched, and then all of them are copied.
    Batched(usize),
    /// With each copy, the lines of the read that is this many reads ahead are prefetched.
    Window(usize),
    /// The place of each read depends on the data of the previous read.
    Dependent,
}

/// Reads at places drawn uniformly from one or more memories.
pub(super) struct Reader<'a> {
    memories: &'a [Memory],
    /// Index of the memory for each value of the low bits of a random number.
    choice: Box<[u8; CHOICES]>,
    /// Number of possible places of a read in each memory.
    places: Vec<u64>,
    stride: usize,
    words: usize,
    rng: Xoshiro256PlusPlus,
    /// Prefetched reads: index of the memory, and offset.
    posted: Vec<(u8, usize)>,
    oldest: usize,
    targets: Targets,
}

/// The buffers to which reads are copied: one for each read in flight, of whole lines.
struct Targets {
    words: Vec<u64>,
    first: usize,
    each: usize,
}

impl Targets {
    fn new(count: usize, words_each: usize) -> Self {
        let each = words_each.next_multiple_of(LINE_WORDS);
        let words = vec![0; count * each + LINE_WORDS];
        let first = words.as_ptr().align_offset(LINE_BYTES).min(LINE_WORDS);
        Self { words, first, each }
    }

    #[inline]
    fn get(&mut self, index: usize, words: usize) -> &mut [u64] {
        &mut self.words[self.first + index * self.each..][..words]
    }
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes` bytes at multiples of `stride`, with at most `most_ahead` reads in flight.
    pub(super) fn new(
        memories: &'a [Memory],
        stride: usize,
        bytes: usize,
        most_ahead: usize,
        seed: u64,
    ) -> Result<Self> {
        ensure!(
            bytes > 0 && bytes.is_multiple_of(WORD_BYTES),
            "bytes per read: {bytes} is not a positive multiple of {WORD_BYTES} bytes"
        );
        ensure!(
            stride > 0 && stride.is_multiple_of(LINE_BYTES),
            "stride: {stride} is not a positive multiple of {LINE_BYTES} bytes"
        );
        let large = |memory: &Memory| memory.len() >= bytes;
        ensure!(
            (1..=CHOICES).contains(&memories.len()) && memories.iter().all(large),
            "memory: expected 1 to {CHOICES} memories of at least {bytes} bytes each"
        );
        let places = memories
            .iter()
            .map(|memory| ((memory.len() - bytes) / stride + 1) as u64);
        Ok(Self {
            memories,
            choice: choices(memories),
            places: places.collect(),
            stride,
            words: bytes / WORD_BYTES,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            posted: vec![(0, 0); most_ahead],
            oldest: 0,
            targets: Targets::new(most_ahead.max(1), bytes / WORD_BYTES),
        })
    }

    /// Loads a word of every page, so that no page is mapped while the clock runs.
    pub(super) fn touch(&self, page_bytes: usize) {
        for memory in self.memories {
            let mut sum = 0u64;
            for at in (0..memory.len()).step_by(page_bytes) {
                sum ^= memory.load(at, std::sync::atomic::Ordering::Relaxed);
            }
            black_box(sum);
        }
    }

    /// Measures the reads per second of the core for one time slice.
    ///
    /// # Panics
    /// If `access` has more reads in flight than the reader was created for, or if a checked copy is torn.
    pub(super) fn rate(&mut self, access: Access, copying: Copying, slice: Duration) -> f64 {
        let stride = self.stride;
        match copying {
            Copying::Memcpy => self.rate_with(access, slice, copy_lines_raw),
            Copying::Raw(LineLoads::WORDS) => self.rate_with(access, slice, Memory::read_words),
            Copying::Raw(loads) => self.rate_with(access, slice, |from, at, out| {
                copy_lines_by(loads, from, at, out)
            }),
            Copying::Checked(loads) => self.rate_with(access, slice, |from, at, out| {
                let copied = from.copy_objects_by(loads, at, stride, out);
                assert!(
                    copied.is_ok(),
                    "no thread writes to the memory while it is measured, so that no checked copy is torn"
                );
            }),
        }
    }

    fn rate_with(
        &mut self,
        access: Access,
        slice: Duration,
        copy: impl Fn(&Memory, usize, &mut [u64]),
    ) -> f64 {
        if let Access::Window(ahead) = access {
            (0..ahead).for_each(|index| self.post(index));
            self.oldest = 0;
        }
        let mut fold = 0;
        let rate: Result<f64> = core_rate_of(slice, || {
            Ok(match access {
                Access::Batched(batch) => self.batches(batch, &copy),
                Access::Window(ahead) => self.window(ahead, &copy),
                Access::Dependent => self.chase(&mut fold, &copy),
            })
        });
        rate.unwrap_or_default()
    }

    #[inline]
    fn place(&self, draw: u64) -> (u8, usize) {
        let memory = self.choice[draw as usize % CHOICES];
        let place = (u128::from(draw >> 8) * u128::from(self.places[memory as usize])) >> 56;
        (memory, place as usize * self.stride)
    }

    #[inline]
    fn post(&mut self, index: usize) {
        let draw = self.rng.next_u64();
        let (memory, at) = self.place(draw);
        self.memories[memory as usize].prefetch(at, self.words * WORD_BYTES);
        self.posted[index] = (memory, at);
    }

    #[inline]
    fn take(&mut self, index: usize, copy: &impl Fn(&Memory, usize, &mut [u64])) {
        let (memory, at) = self.posted[index];
        let out = self.targets.get(index, self.words);
        copy(&self.memories[memory as usize], at, out);
        black_box(&*out);
    }

    #[inline(never)]
    fn batches(&mut self, batch: usize, copy: &impl Fn(&Memory, usize, &mut [u64])) -> u64 {
        let batches = CHUNK / batch;
        for _ in 0..batches {
            (0..batch).for_each(|index| self.post(index));
            (0..batch).for_each(|index| self.take(index, copy));
        }
        (batches * batch) as u64
    }

    #[inline(never)]
    fn window(&mut self, ahead: usize, copy: &impl Fn(&Memory, usize, &mut [u64])) -> u64 {
        for _ in 0..CHUNK {
            let index = self.oldest;
            self.take(index, copy);
            self.post(index);
            self.oldest = if index + 1 == ahead { 0 } else { index + 1 };
        }
        CHUNK as u64
    }

    #[inline(never)]
    fn chase(&mut self, fold: &mut u64, copy: &impl Fn(&Memory, usize, &mut [u64])) -> u64 {
        for _ in 0..DEPENDENT_CHUNK {
            // The place of the next read depends on a word of each line of this read.
            let draw = self.rng.next_u64() ^ *fold;
            self.posted[0] = self.place(draw);
            self.take(0, copy);
            let out = self.targets.get(0, self.words);
            *fold = out.chunks(LINE_WORDS).fold(0, |all, line| all ^ line[0]);
        }
        DEPENDENT_CHUNK as u64
    }
}

/// Returns the table that chooses a memory. Each memory has a share of the entries equal to its share of the bytes.
fn choices(memories: &[Memory]) -> Box<[u8; CHOICES]> {
    let total: usize = memories.iter().map(Memory::len).sum();
    let mut choice = Box::new([0; CHOICES]);
    let (mut index, mut end) = (0, memories[0].len());
    for (draw, chosen) in choice.iter_mut().enumerate() {
        while ((draw as f64 + 0.5) / CHOICES as f64) > end as f64 / total as f64 {
            index += 1;
            end += memories[index].len();
        }
        *chosen = index as u8;
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn memories_are_chosen_by_their_share() {
        let memories = [MIB, 3 * MIB, 4096].map(Memory::anonymous);
        let choice = choices(&memories);
        let count = |index| choice.iter().filter(|chosen| **chosen == index).count();
        assert_eq!((count(0), count(1), count(2)), (64, 192, 0));
    }

    #[test]
    fn places_reach_from_the_first_to_the_last_and_not_beyond() {
        let memories = [Memory::anonymous(4096)];
        let reader = Reader::new(&memories, 192, 384, 1, 1).unwrap();
        assert_eq!(reader.place(0), (0, 0));
        let (_, last) = reader.place(u64::MAX);
        assert_eq!(last, 19 * 192);
        assert!(last + 384 <= 4096 && last + 192 + 384 > 4096);
    }

    #[test]
    fn all_ways_to_read_read() {
        let memories = [Memory::anonymous(MIB)];
        let mut reader = Reader::new(&memories, 64, 384, 16, 1).unwrap();
        let slice = Duration::from_micros(10);
        for access in [Access::Batched(16), Access::Window(8), Access::Dependent] {
            for loads in LineLoads::available() {
                for copying in [
                    Copying::Memcpy,
                    Copying::Raw(loads),
                    Copying::Checked(loads),
                ] {
                    assert!(
                        reader.rate(access, copying, slice) > 0.0,
                        "{access:?} {copying:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let memories = [Memory::anonymous(4096)];
        for (stride, bytes) in [(64, 0), (64, 12), (0, 64), (100, 64), (64, 1 << 20)] {
            assert!(
                Reader::new(&memories, stride, bytes, 1, 1).is_err(),
                "{stride} {bytes}"
            );
        }
        assert!(Reader::new(&[], 64, 64, 1, 1).is_err());
    }
}
