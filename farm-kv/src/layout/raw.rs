//! Buckets and overflow blocks as read by one-sided reads: the bytes of adjacent objects with their versions. They may
//! come from another machine, so every field is validated or masked.

use farm_core::mem::LINE_BYTES;
use farm_core::object::{HEADER_BYTES, LINE_VERSION_BYTES, position};

use super::next::unpack;
use super::{BLOCK_SLOTS, Layout, MAX_SLOTS, META_BYTES, Meta, NEXT_BYTES, Next};
use crate::{KEY_BYTES, MAX_KEY_BYTES};

/// Length of the longest value that is passed in registers or on the stack, if its pair is stored in one line.
pub(crate) const SHORT_VALUE: usize = LINE_BYTES - HEADER_BYTES - KEY_BYTES;
/// Bits per object in a mask of slots of several objects.
const SLOT_BITS: u32 = 8;
const _: () = assert!(MAX_SLOTS <= SLOT_BITS as usize);

/// The position of a pair that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Offset of the first byte of its object.
    object: usize,
    slot: usize,
}

/// Returns the mask of the slots that can hold a lookup's key: the native pairs of its home bucket, and the foreign
/// pairs of the bucket after it.
#[inline]
pub(crate) fn candidates(home: Meta, next: Meta) -> u32 {
    let (native, foreign) = (home.occupied & home.native, next.occupied & !next.native);
    u32::from(native) | u32::from(foreign) << SLOT_BITS
}

impl Layout {
    /// Finds a key in adjacent objects of `stride` bytes, among the slots in the mask `wanted`, which has eight bits
    /// for each object.
    ///
    /// Compares every slot and branches once, because the slot of a key cannot be predicted.
    #[inline]
    pub(crate) fn find(
        &self,
        objects: &[u8],
        stride: usize,
        wanted: u32,
        key: &[u8],
    ) -> Option<Found> {
        let found = match (key.as_array::<16>(), key.as_array::<8>()) {
            _ if !self.aligned => matches_of(objects.chunks_exact(stride), |object| {
                self.matches_across_lines(object, key)
            }),
            (Some(key), _) => matches_of_word(objects, stride, u128::from_ne_bytes(*key)),
            (_, Some(key)) => matches_of_word(objects, stride, u64::from_ne_bytes(*key)),
            _ => matches_of(objects.chunks_exact(stride), |object| {
                matches_by_line(object, |there| there[..key.len()] == *key)
            }),
        };
        let found = found & wanted;
        (found != 0).then(|| {
            let bit = found.trailing_zeros();
            Found {
                object: (bit / SLOT_BITS) as usize * stride,
                slot: (bit % SLOT_BITS) as usize,
            }
        })
    }

    #[inline(never)]
    fn matches_across_lines(&self, object: &[u8], key: &[u8]) -> u32 {
        let slots = 0..self.slots.max(BLOCK_SLOTS);
        let fitting = slots.take_while(|slot| {
            let end = self.positions.at(*slot) + self.pair_bytes();
            position(end - 1) < object.len()
        });
        fitting.fold(0, |found, slot| {
            let mut there = [0; MAX_KEY_BYTES];
            let there = &mut there[..key.len()];
            copy_out(object, self.positions.at(slot), there);
            found | u32::from(*there == *key) << slot
        })
    }

    /// Returns a value and the bytes after it, if pairs are stored in one line and the value is short. The table's spec
    /// has the length of the value.
    #[inline]
    pub(crate) fn short_value(&self, objects: &[u8], pair: Found) -> Option<[u8; SHORT_VALUE]> {
        if !self.aligned || self.value_bytes > SHORT_VALUE {
            return None;
        }
        let in_object = if pair.slot == 0 {
            HEADER_BYTES
        } else {
            pair.slot * LINE_BYTES + LINE_VERSION_BYTES
        };
        objects[pair.object + in_object + self.key_bytes..]
            .first_chunk()
            .copied()
    }

    /// Copies a value to `out`.
    pub(crate) fn copy_value(&self, objects: &[u8], pair: Found, out: &mut [u8]) {
        let at = self.positions.at(pair.slot) + self.key_bytes;
        copy_out(&objects[pair.object..], at, out);
    }

    /// Returns the joint versions and slot bits of a bucket.
    #[inline]
    pub(crate) fn meta_of_bucket(&self, object: &[u8]) -> Meta {
        let mut meta = if self.aligned {
            // The joint versions and slot bits are at the end of a line, so that one load reads them.
            let word: &[u8; 8] = object[self.meta_word..]
                .first_chunk()
                .expect("the word with the joint versions and slot bits is inside the bucket");
            Meta::from_bytes(
                *word
                    .last_chunk()
                    .expect("a word has room for the joint versions and slot bits"),
            )
        } else {
            let mut bytes = [0; META_BYTES];
            copy_out(object, self.meta_at, &mut bytes);
            Meta::from_bytes(bytes)
        };
        // Bits of slots that do not exist are cleared, whatever the object holds.
        meta.occupied &= self.slot_bits;
        meta
    }

    /// Returns the pointer to the first block of a bucket's chain.
    #[inline]
    pub(crate) fn next_of_bucket(&self, object: &[u8]) -> Option<Next> {
        if self.aligned {
            let bytes = object[self.next_byte..].first_chunk::<NEXT_BYTES>();
            return unpack(
                bytes.expect("every bucket has room for the link to its overflow chain"),
            )
            .0;
        }
        let mut bytes = [0; NEXT_BYTES];
        copy_out(object, self.next_at, &mut bytes);
        unpack(&bytes).0
    }

    /// Returns the pointer to the next block, and the mask of the occupied slots, of an overflow block.
    pub(crate) fn next_of_block(&self, object: &[u8]) -> (Option<Next>, u8) {
        let mut bytes = [0; NEXT_BYTES];
        copy_out(object, self.block_next_at, &mut bytes);
        let (next, occupied) = unpack(&bytes);
        (next, occupied & ((1 << BLOCK_SLOTS) - 1))
    }
}

/// Combines the masks of several objects, eight bits each. Ignores objects for which the result has no bits.
#[inline(always)]
fn matches_of<T>(objects: impl IntoIterator<Item = T>, matches: impl Fn(T) -> u32) -> u32 {
    let shifts = (0..u32::BITS).step_by(SLOT_BITS as usize);
    let parts = objects.into_iter().zip(shifts);
    parts.fold(0, |found, (object, shift)| found | matches(object) << shift)
}

/// Returns the result of [`matches_of`] for objects of `BYTES` bytes with one slot per line.
#[inline(always)]
fn matches_in<const BYTES: usize, W: Word>(objects: &[u8], key: W) -> u32 {
    let (objects, _) = objects.as_chunks::<BYTES>();
    matches_of(objects, |object| {
        matches_by_line(object, |there| W::first_of(there) == key)
    })
}

/// Returns the result of [`matches_of`] for objects of `stride` bytes with one slot per line.
#[inline(always)]
fn matches_of_word<W: Word>(objects: &[u8], stride: usize, key: W) -> u32 {
    // The most common lengths, each with a loop that the compiler unrolls.
    match stride / LINE_BYTES {
        2 => matches_in::<{ 2 * LINE_BYTES }, W>(objects, key),
        3 => matches_in::<{ 3 * LINE_BYTES }, W>(objects, key),
        4 => matches_in::<{ 4 * LINE_BYTES }, W>(objects, key),
        _ => matches_of(objects.chunks_exact(stride), |object| {
            matches_by_line(object, |there| W::first_of(there) == key)
        }),
    }
}

/// A key that is compared as one number.
trait Word: Copy + PartialEq {
    /// Returns the number that these bytes begin with.
    fn first_of(bytes: &[u8]) -> Self;
}

impl Word for u64 {
    #[inline(always)]
    fn first_of(bytes: &[u8]) -> Self {
        let first = bytes.first_chunk().expect("a key ends within its line");
        Self::from_ne_bytes(*first)
    }
}

impl Word for u128 {
    #[inline(always)]
    fn first_of(bytes: &[u8]) -> Self {
        let first = bytes.first_chunk().expect("a key ends within its line");
        Self::from_ne_bytes(*first)
    }
}

/// Returns a mask of the slots that hold the key, occupied or not, for an object with one slot per line. `is_key` gets
/// the bytes of a line from the key on.
#[inline(always)]
fn matches_by_line(object: &[u8], is_key: impl Fn(&[u8]) -> bool) -> u32 {
    let (lines, _) = object.as_chunks::<LINE_BYTES>();
    let Some((first, further)) = lines.split_first() else {
        return 0;
    };
    let mut found = u32::from(is_key(&first[HEADER_BYTES..]));
    let mut slot = 0;
    for line in further {
        slot += 1;
        // A shift instead of a condition, which the compiler would turn into a branch.
        found |= u32::from(is_key(&line[LINE_VERSION_BYTES..])) << (slot % SLOT_BITS);
    }
    found
}

/// Copies payload bytes out of the bytes of an object with its versions.
#[inline(never)]
fn copy_out(object: &[u8], from: usize, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let at = position(from + done);
        let n = (LINE_BYTES - at % LINE_BYTES).min(out.len() - done);
        out[done..done + n].copy_from_slice(&object[at..at + n]);
        done += n;
    }
}
