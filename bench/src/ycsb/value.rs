//! Values of which every word depends on the write that stored it.
//!
//! A benchmark that does not check its reads would not notice a store that returns half of one value and half of
//! another. So each value is a function of its key, its writer and the writer's sequence number. From the bytes alone,
//! a reader can determine whether they are one whole write of the right record.
//!
//! ```text
//! word 0   spread(sequence ^ strong(K))                 K = key << 16 | writer
//! word 1   spread(K) ^ strong(word 0)
//! word i   digest(word 0, word 1) ^ i * odd constant    for every further word
//! ```
//!
//! Words are 8 bytes, little-endian; a last part of fewer bytes is the start of the word that would be there. `spread`
//! is reversible, so that key, writer and sequence can be computed from the first two words. Every other word depends
//! on all three, and on its index.
//!
//! # Guarantees of a check
//!
//! [`fill`]ed bytes always pass the check for their key. Other bytes pass only by accident:
//!
//! | length in bytes | probability that other bytes pass | remark |
//! |---|---|---|
//! | 24 or more | 2^-48 if the first two words are wrong, 2^-64 per other whole word | torn and wrong key are distinguished |
//! | 16 to 23 | 2^-48 | a wrong key is [`ValueError::Unrecognized`], like any other error in the first two words |
//! | 8 to 15 | 2^-16 | only the low 32 bits of the sequence are kept |
//! | 0 to 7 | 2^(-8 × length) | the bytes depend on the key only; writer and sequence are returned as 0 |
//!
//! A last part of `n` bytes contains `8n` check bits.

/// Upper bound (2^48, exclusive) of keys, which share a word with the writer.
pub const MAX_KEYS: u64 = 1 << 48;

/// Identifies the write of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Number of the worker that wrote the value.
    pub writer: u16,
    /// Number of the write among the writes of that worker.
    pub sequence: u64,
}

/// Why a value is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value is a mix of several writes, or a part of it is damaged.
    #[error("torn value: word {word} does not belong to the same write as {}", match .begins_with {
        Some(stamp) => format!("the start, write {} of worker {}", stamp.sequence, stamp.writer),
        None => "the rest".to_owned(),
    })]
    Torn {
        /// Index of the first 8-byte word that does not match.
        word: usize,
        /// The write that the start of the value came from, if the start is intact.
        begins_with: Option<Stamp>,
    },
    /// The value is intact and belongs to another record.
    #[error(
        "value of another record: record {found}, write {} of worker {}", .stamp.sequence, .stamp.writer
    )]
    WrongKey {
        /// The record of the value.
        found: u64,
        /// The write of the value.
        stamp: Stamp,
    },
    /// The bytes were never written for this record.
    #[error(
        "the bytes are not a value of this record, and cannot be recognized as a value of another record"
    )]
    Unrecognized,
}

const WORD: usize = 8;
/// 2^64 times the golden section; odd, so that its multiples differ for all indexes.
const PLACE: u64 = 0x9E37_79B9_7F4A_7C15;
const SPREAD: u64 = 0xD6E8_FEB8_6659_FD93;
const SPREAD_INVERSE: u64 = inverse(SPREAD);
/// Marks values that are too short for the full form.
const SHORT_TAG: u64 = 0x5EED;

/// Returns the inverse of an odd number modulo 2^64, by Newton's iteration.
const fn inverse(odd: u64) -> u64 {
    let mut guess = odd;
    let mut round = 0;
    while round < 6 {
        guess = guess.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(guess)));
        round += 1;
    }
    guess
}

/// Mixes the bits of a word; [`gather`] reverses it.
#[inline]
const fn spread(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(SPREAD);
    x ^ (x >> 32)
}

/// Reverses [`spread`].
#[inline]
const fn gather(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(SPREAD_INVERSE);
    x ^ (x >> 32)
}

/// Mixes the bits of a word so that every bit depends on all bits (the steps of splitmix64).
#[inline]
const fn strong(x: u64) -> u64 {
    let mut x = x.wrapping_add(PLACE);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the common part of the words after the first two; word `i` is this value, exclusive-or `i * PLACE`.
#[inline]
const fn digest(word0: u64, word1: u64) -> u64 {
    strong(word0.wrapping_mul(SPREAD) ^ word1.rotate_left(32))
}

/// Returns the eight bytes of a word, or the fewer bytes of a last part, as a number.
#[inline]
fn load(part: &[u8]) -> u64 {
    match part.first_chunk::<WORD>() {
        Some(word) => u64::from_le_bytes(*word),
        None => part
            .iter()
            .rev()
            .fold(0, |word, byte| (word << 8) | u64::from(*byte)),
    }
}

/// Returns the first `bytes` bytes of a word, in the form that [`load`] returns.
#[inline]
const fn beginning(word: u64, bytes: usize) -> u64 {
    word & ((1 << (8 * bytes)) - 1)
}

/// Fills `value` with the value of this key, writer and sequence number.
///
/// # Panics
/// If `key` is not below [`MAX_KEYS`].
#[inline]
pub fn fill(value: &mut [u8], key: u64, writer: u16, sequence: u64) {
    assert!(
        key < MAX_KEYS,
        "key {key} does not fit the 48 bits of a value's key"
    );
    let Some((head, rest)) = value.split_first_chunk_mut::<{ 2 * WORD }>() else {
        return fill_short(value, key, writer, sequence);
    };
    let name = (key << 16) | u64::from(writer);
    let word0 = spread(sequence ^ strong(name));
    let word1 = spread(name) ^ strong(word0);
    head[..WORD].copy_from_slice(&word0.to_le_bytes());
    head[WORD..].copy_from_slice(&word1.to_le_bytes());
    fill_words(rest, digest(word0, word1), 2);
}

/// Fills words from index `first` on, including a partial last word.
#[inline]
fn fill_words(bytes: &mut [u8], common: u64, first: u64) {
    let mut place = PLACE.wrapping_mul(first);
    let mut words = bytes.chunks_exact_mut(WORD);
    for word in &mut words {
        word.copy_from_slice(&(common ^ place).to_le_bytes());
        place = place.wrapping_add(PLACE);
    }
    let tail = words.into_remainder();
    let last = (common ^ place).to_le_bytes();
    tail.copy_from_slice(&last[..tail.len()]);
}

/// Returns whether the words from index `first` on are those that [`fill_words`] writes.
#[inline]
fn words_fit(bytes: &[u8], common: u64, first: u64) -> bool {
    let mut place = PLACE.wrapping_mul(first);
    let mut difference = 0;
    let (words, tail) = bytes.as_chunks::<WORD>();
    for word in words {
        difference |= u64::from_le_bytes(*word) ^ common ^ place;
        place = place.wrapping_add(PLACE);
    }
    if !tail.is_empty() {
        difference |= load(tail) ^ beginning(common ^ place, tail.len());
    }
    difference == 0
}

/// Returns the key and the stamp that the first two words contain.
#[inline]
fn decode(word0: u64, word1: u64) -> (u64, Stamp) {
    let name = gather(word1 ^ strong(word0));
    let stamp = Stamp {
        writer: name as u16,
        sequence: gather(word0) ^ strong(name),
    };
    (name >> 16, stamp)
}

/// Checks that `value` is one whole write of `key`, and returns its stamp.
///
/// # Errors
/// [`ValueError`]; see the module documentation for what is distinguished at which length.
#[inline]
pub fn check(value: &[u8], key: u64) -> Result<Stamp, ValueError> {
    let Some((head, rest)) = value.split_first_chunk::<{ 2 * WORD }>() else {
        return check_short(value, key);
    };
    let (word0, word1) = (load(&head[..WORD]), load(&head[WORD..]));
    let (found, stamp) = decode(word0, word1);
    if words_fit(rest, digest(word0, word1), 2) && found == key {
        Ok(stamp)
    } else {
        Err(explain(word0, word1, rest, key))
    }
}

/// Returns the reason why a value did not pass the check.
#[cold]
fn explain(word0: u64, word1: u64, rest: &[u8], key: u64) -> ValueError {
    let (found, stamp) = decode(word0, word1);
    let common = digest(word0, word1);
    if found == key {
        let word = (2..)
            .zip(rest.chunks(WORD))
            .find(|(place, part)| !words_fit(part, common, *place))
            .map_or(2, |(place, _)| place as usize);
        return ValueError::Torn {
            word,
            begins_with: Some(stamp),
        };
    }
    let (words, _) = rest.as_chunks::<WORD>();
    if !words.is_empty() && words_fit(rest, common, 2) {
        return ValueError::WrongKey { found, stamp };
    }
    // The first two words do not belong to the same write. If all other words do, the first two words are torn.
    let place = |word: u64| PLACE.wrapping_mul(word);
    match words {
        [first, _, ..] if words_fit(rest, u64::from_le_bytes(*first) ^ place(2), 2) => {
            ValueError::Torn {
                word: 0,
                begins_with: None,
            }
        }
        _ => ValueError::Unrecognized,
    }
}

/// Fills values of less than 16 bytes: one word with a tag and the start of another, or only the start of a word.
#[cold]
fn fill_short(value: &mut [u8], key: u64, writer: u16, sequence: u64) {
    let mask = strong(key);
    match value.split_first_chunk_mut::<WORD>() {
        Some((head, rest)) => {
            let plain = (sequence << 32) | (u64::from(writer) << 16) | SHORT_TAG;
            let word0 = spread(plain) ^ mask;
            *head = word0.to_le_bytes();
            fill_words(rest, digest(word0, mask), 1);
        }
        None => fill_words(value, mask, 0),
    }
}

#[cold]
fn check_short(value: &[u8], key: u64) -> Result<Stamp, ValueError> {
    let mask = strong(key);
    let (stamp, fits) = match value.split_first_chunk::<WORD>() {
        Some((head, rest)) => {
            let word0 = u64::from_le_bytes(*head);
            let plain = gather(word0 ^ mask);
            let stamp = Stamp {
                writer: (plain >> 16) as u16,
                sequence: plain >> 32,
            };
            let tagged = plain as u16 == SHORT_TAG as u16;
            (stamp, tagged && words_fit(rest, digest(word0, mask), 1))
        }
        None => {
            let nothing = Stamp {
                writer: 0,
                sequence: 0,
            };
            (nothing, words_fit(value, mask, 0))
        }
    };
    if fits {
        Ok(stamp)
    } else {
        Err(ValueError::Unrecognized)
    }
}
