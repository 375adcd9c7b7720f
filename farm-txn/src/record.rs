//! Records of the log that a coordinator keeps in the memory of each other machine whose objects its
//! transactions write (`FaRM'15 §4`).
//!
//! ```text
//! all       word 0    checksum of everything after it, seeded with transaction and kind
//!           word 1    configuration of the coordinator
//!           word 2    low bound: transactions of this coordinator below it are truncated
//!           word 3    how many transactions are truncated besides, and then each
//! LOCK      word      token that LOCK-REPLY answers to
//!           word      regions written (low half), objects of this machine (high half)
//!           words     ids of all regions written anywhere, two in a word
//!           objects   address, version that was read, second word of the header after, and
//!                     class | what | bytes of payload, then the payload, padded to a word
//! ```
//!
//! The kind is the record's id in the ring, the transaction's sequence number its token; configuration,
//! machine and worker, which with it are the transaction's id, are those of the log's writer. The other
//! kinds, COMMIT-PRIMARY, ABORT and TRUNCATE, have nothing more.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::{Incarnation, Version};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a record without truncated transactions and without what LOCK adds.
pub(crate) const FIXED_BYTES: usize = 4 * WORD;
/// What LOCK adds to have no region and no object.
pub(crate) const LOCK_BYTES: usize = 2 * WORD;
/// What an object adds to LOCK besides its payload.
const OBJECT_BYTES: usize = 4 * WORD;
/// Most transactions that one record truncates by name.
pub(crate) const MOST_TRUNCATED: usize = 8;
const WORD: usize = 8;

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lock these objects at these versions, and keep the values.
    Lock,
    /// Install the values, and unlock.
    CommitPrimary,
    /// Unlock.
    Abort,
    /// Nothing but truncated transactions.
    Truncate,
}

impl Kind {
    pub(crate) const fn code(self) -> u16 {
        match self {
            Kind::Lock => 1,
            Kind::CommitPrimary => 3,
            Kind::Abort => 4,
            Kind::Truncate => 5,
        }
    }

    /// The kind with a record's id.
    pub fn of(code: u16) -> Option<Kind> {
        [Kind::Lock, Kind::CommitPrimary, Kind::Abort, Kind::Truncate]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// What happens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It gets a new value.
    Write,
    /// It comes to be; its slot was reserved.
    Allocate,
    /// It ceases to be.
    Free,
}

/// An object of a LOCK record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// Where it is.
    pub address: Address,
    /// Its size.
    pub class: SizeClass,
    /// At which version it is to be locked.
    pub version: Version,
    /// The second word of its header after the commit.
    pub incarnation: Incarnation,
    /// What happens to it.
    pub effect: Effect,
    /// Its value after the commit.
    pub payload: &'a [u8],
}

/// Why a record is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No kind has this id.
    #[error("records of kind {0} are not known")]
    Kind(u16),
    /// It ends too soon, or too late.
    #[error("it is not of the length that it says")]
    Length,
    /// Its bytes are not those that were written.
    #[error("its checksum is not that of its bytes")]
    Checksum,
    /// A word that means nothing in its place.
    #[error("it has {what} {found:#x}")]
    Word {
        /// What should stand there.
        what: &'static str,
        /// What does.
        found: u64,
    },
}

/// What all records begin with.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it is.
    pub kind: Kind,
    /// The coordinator's configuration.
    pub configuration: u64,
    /// Transactions of the coordinator below this are truncated.
    pub low: u64,
    truncated: &'a [u8],
    rest: &'a [u8],
}

/// What a LOCK record adds.
#[derive(Clone, Copy, Debug)]
pub struct Lock<'a> {
    /// To what LOCK-REPLY answers.
    pub reply: u64,
    regions: &'a [u8],
    objects: &'a [u8],
    /// Objects there are.
    pub count: usize,
}

/// Takes words from the front.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(RecordError::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u64, RecordError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(RecordError::Length)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }
}

fn each_word(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes
        .chunks_exact(WORD)
        .map(|word| u64::from_le_bytes(word.try_into().expect("a word")))
}

fn checksum(kind: Kind, sequence: u64, parts: [&[u8]; 2]) -> u64 {
    let seed = sequence << 8 | u64::from(kind.code());
    let first = xxh3_64_with_seed(parts[0], seed);
    xxh3_64_with_seed(parts[1], first)
}

impl<'a> Record<'a> {
    /// Takes a record apart. Everything but the objects of a LOCK is checked, and that those are whole.
    ///
    /// # Errors
    /// [`RecordError`]: its writer does not keep to the protocol.
    pub fn decode(kind: u16, sequence: u64, body: &'a [u8]) -> Result<Self, RecordError> {
        let kind = Kind::of(kind).ok_or(RecordError::Kind(kind))?;
        if (sequence == 0) != (kind == Kind::Truncate) {
            return Err(RecordError::Word {
                what: "a transaction's number",
                found: sequence,
            });
        }
        let record = Self::decode_unchecked(kind, body)?;
        let head = FIXED_BYTES + record.truncated.len();
        let found = u64::from_le_bytes(*body.first_chunk().ok_or(RecordError::Length)?);
        if checksum(kind, sequence, [&body[WORD..head], &body[head..]]) != found {
            return Err(RecordError::Checksum);
        }
        Ok(record)
    }

    /// As [`Record::decode`], of a record whose checksum was right before.
    ///
    /// # Errors
    /// As [`Record::decode`].
    pub fn decode_unchecked(kind: Kind, body: &'a [u8]) -> Result<Self, RecordError> {
        let mut words = Words(body);
        words.word()?;
        let (configuration, low, truncated) = (words.word()?, words.word()?, words.word()?);
        if truncated > MOST_TRUNCATED as u64 {
            return Err(RecordError::Word {
                what: "so many truncated transactions:",
                found: truncated,
            });
        }
        let truncated = words.take(truncated as usize * WORD)?;
        let rest = words.0;
        if kind != Kind::Lock && !rest.is_empty() {
            return Err(RecordError::Length);
        }
        Ok(Self {
            kind,
            configuration,
            low,
            truncated,
            rest,
        })
    }

    /// Transactions that are truncated, besides those below the low bound.
    pub fn truncated(&self) -> impl Iterator<Item = u64> + 'a {
        each_word(self.truncated)
    }

    /// What a LOCK record adds.
    ///
    /// # Errors
    /// [`RecordError`]; of a record that is no LOCK always.
    pub fn lock(&self) -> Result<Lock<'a>, RecordError> {
        let mut words = Words(self.rest);
        let (reply, counts) = (words.word()?, words.word()?);
        let (regions, count) = (counts as u32 as usize, (counts >> 32) as usize);
        let regions = words.take(regions.div_ceil(2) * WORD)?;
        Ok(Lock {
            reply,
            regions,
            objects: words.0,
            count,
        })
    }
}

impl<'a> Lock<'a> {
    /// Ids of all regions that the transaction writes, as words of two.
    pub fn region_words(&self) -> impl Iterator<Item = u64> + 'a {
        each_word(self.regions)
    }

    /// The objects of this machine; ends after the first error.
    pub fn objects(&self) -> impl Iterator<Item = Result<Object<'a>, RecordError>> + 'a {
        let mut words = Words(self.objects);
        let mut left = self.count;
        std::iter::from_fn(move || {
            if left == 0 {
                // Nothing may follow.
                let rest = std::mem::take(&mut words.0);
                return (!rest.is_empty()).then_some(Err(RecordError::Length));
            }
            left -= 1;
            let object = decode_object(&mut words);
            if object.is_err() {
                (left, words.0) = (0, &[]);
            }
            Some(object)
        })
    }
}

fn decode_object<'a>(words: &mut Words<'a>) -> Result<Object<'a>, RecordError> {
    let wrong = |what, found| RecordError::Word { what, found };
    let (address, version) = (words.word()?, words.word()?);
    let (incarnation, rest) = (Incarnation(words.word()?), words.word()?);
    let class = SizeClass::new(rest as u8);
    if incarnation.class() != class {
        return Err(wrong("header of another size class:", incarnation.0));
    }
    let effect = match (rest >> 8) as u8 {
        1 => Effect::Write,
        2 => Effect::Allocate,
        3 => Effect::Free,
        _ => return Err(wrong("effect", rest)),
    };
    let bytes = (rest >> 32) as usize;
    if bytes > class.payload_capacity() {
        return Err(wrong("payload of so many bytes:", rest));
    }
    let payload = words.take(bytes.next_multiple_of(WORD))?;
    let at = Address::from_bits(address).filter(|at| !at.is_null() && at.is_line_aligned());
    Ok(Object {
        address: at.ok_or(wrong("address", address))?,
        class,
        version: Version::checked(version).ok_or(wrong("version", version))?,
        incarnation,
        effect,
        payload: &payload[..bytes],
    })
}

/// Bytes that an object adds to LOCK.
pub(crate) fn object_bytes(payload_bytes: usize) -> usize {
    OBJECT_BYTES + payload_bytes.next_multiple_of(WORD)
}

/// Bytes that so many regions add to LOCK.
pub(crate) fn region_bytes(regions: usize) -> usize {
    regions.div_ceil(2) * WORD
}

/// Appends what LOCK adds, without the objects.
pub(crate) fn encode_lock(out: &mut Vec<u8>, reply: u64, regions: &[u32], objects: usize) {
    out.extend_from_slice(&reply.to_le_bytes());
    let counts = regions.len() as u64 | (objects as u64) << 32;
    out.extend_from_slice(&counts.to_le_bytes());
    for region in regions {
        out.extend_from_slice(&region.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(WORD), 0);
}

/// Appends an object to LOCK.
pub(crate) fn encode_object(out: &mut Vec<u8>, object: &Object<'_>) {
    let effect = match object.effect {
        Effect::Write => 1,
        Effect::Allocate => 2,
        Effect::Free => 3u64,
    };
    let rest = u64::from(object.class.get()) | effect << 8 | (object.payload.len() as u64) << 32;
    let words = [
        object.address.to_bits(),
        object.version.get(),
        object.incarnation.0,
        rest,
    ];
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(object.payload);
    out.resize(out.len().next_multiple_of(WORD), 0);
}

/// What all records begin with, before `rest`, which a LOCK has.
pub(crate) fn encode_head(
    out: &mut Vec<u8>,
    kind: Kind,
    sequence: u64,
    low: u64,
    truncated: &[u64],
    rest: &[u8],
) {
    out.clear();
    let count = truncated.len() as u64;
    for word in [0, CONFIGURATION, low, count].iter().chain(truncated) {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(kind, sequence, [&out[WORD..], rest]);
    out[..WORD].copy_from_slice(&sum.to_le_bytes());
}

/// The configuration of a cluster whose machines are fixed.
pub(crate) const CONFIGURATION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use farm_core::ids::RegionId;
    use proptest::prelude::*;

    fn address(offset: u32) -> Address {
        Address::new(RegionId::new(3, 77).unwrap(), offset * 64)
    }

    type Written = (u32, u64, u8, Vec<u8>);

    fn encode(truncated: &[u64], regions: &[u32], objects: &[Written]) -> Vec<u8> {
        let (mut rest, mut out) = (Vec::new(), Vec::new());
        encode_lock(&mut rest, 99, regions, objects.len());
        let fixed = rest.len();
        assert_eq!(fixed, LOCK_BYTES + region_bytes(regions.len()));
        for (offset, version, effect, payload) in objects {
            let before = rest.len();
            encode_object(&mut rest, &object(*offset, *version, *effect, payload));
            assert_eq!(rest.len() - before, object_bytes(payload.len()));
        }
        encode_head(&mut out, Kind::Lock, 12, 4, truncated, &rest);
        assert_eq!(out.len(), FIXED_BYTES + truncated.len() * 8);
        out.extend_from_slice(&rest);
        out
    }

    fn object(offset: u32, version: u64, effect: u8, payload: &[u8]) -> Object<'_> {
        Object {
            address: address(offset),
            class: SizeClass::new(7),
            version: Version::new(version),
            incarnation: Incarnation::new(SizeClass::new(7), version * 3),
            effect: [Effect::Write, Effect::Allocate, Effect::Free][usize::from(effect % 3)],
            payload,
        }
    }

    fn read_all(kind: u16, sequence: u64, bytes: &[u8]) -> Result<usize, RecordError> {
        let record = Record::decode(kind, sequence, bytes)?;
        let _: u64 = record.truncated().fold(0, u64::wrapping_add);
        if record.kind != Kind::Lock {
            return Ok(0);
        }
        let lock = record.lock()?;
        let objects: Result<Vec<_>, _> = lock.objects().collect();
        Ok(objects?.len())
    }

    /// A LOCK of no transaction would be truncated as soon as it has come.
    #[test]
    fn only_truncations_are_of_no_transaction() {
        for kind in [Kind::Lock, Kind::CommitPrimary, Kind::Abort, Kind::Truncate] {
            for sequence in [0, 1] {
                let mut body = Vec::new();
                encode_head(&mut body, kind, sequence, 1, &[], &[]);
                let fits = (sequence == 0) == (kind == Kind::Truncate);
                let read = Record::decode(kind.code(), sequence, &body);
                assert_eq!(read.is_ok(), fits, "{kind:?}, {sequence}: {read:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_lock_reads_as_it_was_written(
            truncated in prop::collection::vec(any::<u64>(), 0..=MOST_TRUNCATED),
            regions in prop::collection::vec(any::<u32>(), 0..5),
            objects in prop::collection::vec(
                (1u32..9999, 0u64..60_000, 0u8..3, prop::collection::vec(any::<u8>(), 0..400)), 0..5),
        ) {
            let bytes = encode(&truncated, &regions, &objects);
            let record = Record::decode(1, 12, &bytes).unwrap();
            prop_assert_eq!((record.low, record.configuration), (4, CONFIGURATION));
            prop_assert!(record.truncated().eq(truncated));
            let lock = record.lock().unwrap();
            prop_assert_eq!((lock.reply, lock.count), (99, objects.len()));
            let words: Vec<u64> = lock.region_words().collect();
            for (place, region) in regions.iter().enumerate() {
                prop_assert_eq!((words[place / 2] >> (32 * (place % 2))) as u32, *region);
            }
            let read: Vec<_> = lock.objects().map(Result::unwrap).collect();
            let written: Vec<_> = objects.iter().map(|(o, v, e, p)| object(*o, *v, *e, p)).collect();
            prop_assert_eq!(read, written);
        }

        /// A record is refused as soon as one bit differs, is of another transaction, or is cut.
        #[test]
        fn what_was_not_written_is_refused(
            objects in prop::collection::vec(
                (1u32..9999, 0u64..60_000, 0u8..3, prop::collection::vec(any::<u8>(), 0..60)), 0..3),
            bit in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode(&[5, 6], &[1], &objects);
            prop_assert_eq!(read_all(1, 12, &bytes), Ok(objects.len()));
            prop_assert!(read_all(1, 13, &bytes).is_err());
            prop_assert!(read_all(3, 12, &bytes).is_err());
            prop_assert!(read_all(1, 12, &bytes[..cut.index(bytes.len())]).is_err());
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read_all(1, 12, &bytes).is_err());
        }

        /// The installed header would have another class than the block.
        #[test]
        fn a_header_of_another_class_is_refused(class: u8) {
            let mut other = object(1, 2, 0, b"payload");
            other.incarnation = Incarnation::new(SizeClass::new(class), 5).allocated();
            let mut bytes = Vec::new();
            encode_object(&mut bytes, &other);
            let read = decode_object(&mut Words(&bytes));
            prop_assert_eq!(read.is_ok(), class == 7, "{:?}", read);
        }

        /// Nobody's bytes do harm, with the right checksum or without.
        #[test]
        fn garbage_is_read_without_harm(kind in 0u16..8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read_all(kind, 1, &bytes).is_err());
            if let Some(kind) = Kind::of(kind)
                && let Ok(record) = Record::decode_unchecked(kind, &bytes)
                && let Ok(lock) = record.lock()
            {
                prop_assert!(lock.objects().count() <= bytes.len());
            }
        }
    }
}
