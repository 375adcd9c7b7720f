//! Records of the log that a coordinator writes into the memory of each other machine whose objects its transactions
//! write (`FaRM'15 §4`).
//!
//! ```text
//! all       word 0    checksum of everything after it, seeded with transaction, coordinator and kind
//!           word 1    configuration of the coordinator
//!           word 2    low bound: transactions of this coordinator and configuration below it are truncated
//! LOCK and COMMIT-BACKUP:
//!           word      token that LOCK-REPLY returns; 0 in COMMIT-BACKUP
//!           word      number of regions written (low half), of objects on this machine (high half)
//!           words     ids of all regions written anywhere, two in a word
//!           objects   address, version that was read, second word of the header after the commit, and
//!                     class | effect | has a block word | bytes of payload (of Format: number of objects), then the block word of a new object if it has
//!                     one (BlockTable::block_word), then the payload, padded to a word
//! ```
//!
//! COMMIT-BACKUP names the objects of which the log's machine keeps copies, LOCK those of which it is the primary.
//!
//! The kind is the record's id in the ring, and the transaction's sequence number is its token. The coordinator is the log's
//! writer. The other kinds (COMMIT-PRIMARY,
//! ABORT and TRUNCATE) contain nothing more.

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, RegionId, WorkerRef};
use farm_core::object::{Incarnation, Version};
use farm_core::ring::log_record_bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::object_run::ObjectRun;

/// Bytes of a record without the additions of LOCK.
pub(crate) const FIXED_BYTES: usize = 3 * WORD;
/// Bytes that LOCK adds, without regions and objects.
pub(crate) const LOCK_BYTES: usize = 2 * WORD;
/// Bytes that an object adds to LOCK, without its payload.
const OBJECT_BYTES: usize = 4 * WORD;
const WORD: usize = 8;
/// Position of the mark of a block word in the last fixed word of an object.
const HAS_BLOCK_SHIFT: u32 = 16;

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Locks the objects at their versions. The record also contains the new values.
    Lock,
    /// Contains the new values of copies, which take effect when the transaction is truncated.
    CommitBackup,
    /// Installs the values, and unlocks the objects.
    CommitPrimary,
    /// Unlocks the objects.
    Abort,
    /// Contains only a low bound.
    Truncate,
}

impl Kind {
    pub(crate) const fn code(self) -> u16 {
        match self {
            Kind::Lock => 1,
            Kind::CommitBackup => 2,
            Kind::CommitPrimary => 3,
            Kind::Abort => 4,
            Kind::Truncate => 5,
        }
    }

    /// Returns the kind for a record's id.
    pub fn of(code: u16) -> Option<Kind> {
        let all = [
            Kind::Lock,
            Kind::CommitBackup,
            Kind::CommitPrimary,
            Kind::Abort,
            Kind::Truncate,
        ];
        all.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns whether records of this kind contain objects.
    pub(crate) fn has_objects(self) -> bool {
        matches!(self, Kind::Lock | Kind::CommitBackup)
    }
}

/// Effect of a commit on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The object gets a new value.
    Write,
    /// The object is created; its slot was reserved.
    Allocate,
    /// The object is freed.
    Free,
    /// Adjacent objects are created, with zero payloads; their slots were reserved.
    Format,
}

/// An object of a LOCK or COMMIT-BACKUP record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// Address.
    pub address: Address,
    /// Size class.
    pub class: SizeClass,
    /// Version at which the object is to be locked.
    pub version: Version,
    /// Second word of the header after the commit.
    pub incarnation: Incarnation,
    /// Effect of the commit.
    pub effect: Effect,
    /// What copies must know of the block of a new object; 0 for other objects, and if there are no copies.
    pub block: u64,
    /// Number of adjacent objects; 1 unless the effect is [`Effect::Format`].
    pub count: u32,
    /// Payload after the commit.
    pub payload: &'a [u8],
}

impl<'a> Object<'a> {
    /// Returns the addresses of all objects: one, unless the effect is [`Effect::Format`].
    pub fn addresses(&self) -> impl Iterator<Item = Address> + use<> {
        let objects = ObjectRun {
            first: self.address,
            class: self.class,
            count: self.count,
        };
        objects.addresses()
    }

    /// Returns each of the adjacent objects as one of its own. The word of a block is about the block of the first one; all are in one run
    /// of blocks.
    pub fn each(self) -> impl Iterator<Item = Object<'a>> {
        let addresses = self.addresses().enumerate();
        addresses.map(move |(index, address)| Object {
            address,
            block: if index == 0 { self.block } else { 0 },
            count: 1,
            ..self
        })
    }
}

/// Why decoding a record failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No kind has this id.
    #[error("unknown record kind {0}")]
    Kind(u16),
    /// The record is too short or too long.
    #[error("the length of the record does not match the counts in the record")]
    Length,
    /// The checksum does not match the bytes.
    #[error("the checksum of the record does not match its bytes")]
    Checksum,
    /// The record is of another configuration.
    #[error("the record is of configuration {found}, and this is configuration {expected}")]
    Configuration {
        /// Configuration in the record.
        found: u64,
        /// Configuration of this machine.
        expected: u64,
    },
    /// A word has an invalid value.
    #[error("invalid {what} in the record: {found:#x}")]
    Word {
        /// Meaning of the word.
        what: &'static str,
        /// Value of the word.
        found: u64,
    },
}

/// Identifies a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TxId {
    /// The configuration under which it commits.
    pub configuration: u64,
    /// The worker that coordinates it.
    pub coordinator: WorkerRef,
    /// Its number among the coordinator's transactions of the configuration, from 1; 0 in records of no transaction.
    pub sequence: u64,
}

/// The part that all records have.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Kind of the record.
    pub kind: Kind,
    /// Configuration of the coordinator.
    pub configuration: u64,
    /// Low bound: all transactions of the coordinator and the configuration below it are truncated.
    pub low: u64,
    rest: &'a [u8],
}

/// The additions of a LOCK or COMMIT-BACKUP record.
#[derive(Clone, Copy, Debug)]
pub struct Lock<'a> {
    /// Token that LOCK-REPLY returns.
    pub reply: u64,
    regions: &'a [u8],
    objects: &'a [u8],
    /// Number of objects.
    pub count: usize,
}

/// Reads words from the front of a slice.
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
    bytes.chunks_exact(WORD).map(|word| {
        u64::from_le_bytes(
            word.try_into()
                .expect("each chunk has the length of a word"),
        )
    })
}

fn checksum(kind: Kind, id: TxId, parts: [&[u8]; 2]) -> u64 {
    let coordinator = u64::from(id.coordinator.to_bits());
    let seed = (id.sequence << 8 | u64::from(kind.code())) ^ coordinator.rotate_right(32);
    let first = xxh3_64_with_seed(parts[0], seed);
    xxh3_64_with_seed(parts[1], first)
}

/// Returns the configuration of a record; `None` if it is too short for one.
pub fn configuration(body: &[u8]) -> Option<u64> {
    let word = body.get(WORD..2 * WORD)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

impl<'a> Record<'a> {
    /// Decodes a record of transaction `id`, and checks its checksum and the part that all records have. [`Record::lock`]
    /// and [`Lock::objects`] check the additions of LOCK.
    ///
    /// # Errors
    /// [`RecordError`]: the writer of the record does not follow the protocol.
    pub fn decode(kind: u16, id: TxId, body: &'a [u8]) -> Result<Self, RecordError> {
        let kind = Kind::of(kind).ok_or(RecordError::Kind(kind))?;
        if (id.sequence == 0) != (kind == Kind::Truncate) {
            return Err(RecordError::Word {
                what: "transaction number",
                found: id.sequence,
            });
        }
        let record = Self::decode_unchecked(kind, body)?;
        let (head, rest) = body.split_at(FIXED_BYTES);
        let (found, head) = head.split_first_chunk().ok_or(RecordError::Length)?;
        if checksum(kind, id, [head, rest]) != u64::from_le_bytes(*found) {
            return Err(RecordError::Checksum);
        }
        let (found, expected) = (record.configuration, id.configuration);
        if found != expected {
            return Err(RecordError::Configuration { found, expected });
        }
        Ok(record)
    }

    /// Decodes a record as [`Record::decode`] does, but without checking the checksum, which was checked before.
    ///
    /// # Errors
    /// As [`Record::decode`].
    pub fn decode_unchecked(kind: Kind, body: &'a [u8]) -> Result<Self, RecordError> {
        let mut words = Words(body);
        words.word()?;
        let (configuration, low) = (words.word()?, words.word()?);
        let rest = words.0;
        if !kind.has_objects() && !rest.is_empty() {
            return Err(RecordError::Length);
        }
        Ok(Self {
            kind,
            configuration,
            low,
            rest,
        })
    }

    /// Returns the additions of a LOCK or COMMIT-BACKUP record.
    ///
    /// # Errors
    /// [`RecordError`]; always if the record is another one.
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
    /// Returns the ids of all regions that the transaction writes, two in a word.
    pub fn region_words(&self) -> impl Iterator<Item = u64> + use<'a> {
        each_word(self.regions)
    }

    /// Returns all regions that the transaction writes.
    pub fn regions(&self) -> impl Iterator<Item = Result<RegionId, RecordError>> + use<'a> {
        let halves = self
            .region_words()
            .flat_map(|word| [word as u32, (word >> 32) as u32]);
        // The half after an odd number of regions is 0.
        halves.filter(|bits| *bits != 0).map(|bits| {
            let wrong = RecordError::Word {
                what: "region",
                found: bits.into(),
            };
            RegionId::from_bits(bits).ok_or(wrong)
        })
    }

    /// Returns the objects of this machine; ends after the first error.
    pub fn objects(&self) -> impl Iterator<Item = Result<Object<'a>, RecordError>> + use<'a> {
        let mut words = Words(self.objects);
        let mut left = self.count;
        std::iter::from_fn(move || {
            if left == 0 {
                // No bytes may follow the last object.
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
        return Err(wrong(
            "incarnation (with another size class than the object)",
            incarnation.0,
        ));
    }
    let effect = match (rest >> 8) as u8 {
        1 => Effect::Write,
        2 => Effect::Allocate,
        3 => Effect::Free,
        4 => Effect::Format,
        _ => return Err(wrong("effect", rest)),
    };
    let (bytes, count) = match effect {
        Effect::Format => (0, (rest >> 32) as u32),
        _ => ((rest >> 32) as usize, 1),
    };
    if bytes > class.payload_capacity() {
        return Err(wrong("payload length", rest));
    }
    let block = match (rest >> HAS_BLOCK_SHIFT) as u8 {
        0 => 0,
        1 if matches!(effect, Effect::Allocate | Effect::Format) => match words.word()? {
            0 => return Err(wrong("block word", 0)),
            block => block,
        },
        _ => return Err(wrong("mark of a block word", rest)),
    };
    let payload = words.take(bytes.next_multiple_of(WORD))?;
    let at = Address::from_bits(address).filter(|at| !at.is_null() && at.is_line_aligned());
    let objects = u64::from(count) * class.object_bytes() as u64;
    let ends = |at: Address| u64::from(at.offset()) + objects;
    if count == 0 || at.is_some_and(|at| ends(at) > 1 << 32) {
        return Err(wrong("number of objects", rest));
    }
    Ok(Object {
        address: at.ok_or(wrong("address", address))?,
        class,
        version: Version::checked(version).ok_or(wrong("version", version))?,
        incarnation,
        effect,
        block,
        count,
        payload: &payload[..bytes],
    })
}

/// Returns the bytes that an object adds to LOCK.
pub(crate) fn object_bytes(payload_bytes: usize, has_block: bool) -> usize {
    OBJECT_BYTES + usize::from(has_block) * WORD + payload_bytes.next_multiple_of(WORD)
}

/// Returns the bytes that `regions` regions add to LOCK.
pub(crate) fn region_bytes(regions: usize) -> usize {
    regions.div_ceil(2) * WORD
}

/// Appends the additions of LOCK, without the objects.
pub(crate) fn encode_lock(out: &mut Vec<u8>, reply: u64, regions: &[u32], objects: usize) {
    out.extend_from_slice(&reply.to_le_bytes());
    let counts = regions.len() as u64 | (objects as u64) << 32;
    out.extend_from_slice(&counts.to_le_bytes());
    for region in regions {
        out.extend_from_slice(&region.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(WORD), 0);
}

/// Appends an object of LOCK.
pub(crate) fn encode_object(out: &mut Vec<u8>, object: &Object<'_>) {
    let effect = match object.effect {
        Effect::Write => 1,
        Effect::Allocate => 2,
        Effect::Free => 3u64,
        Effect::Format => 4,
    };
    let length = match object.effect {
        Effect::Format => u64::from(object.count),
        _ => object.payload.len() as u64,
    };
    let has_block = u64::from(object.block != 0);
    let rest =
        u64::from(object.class.get()) | effect << 8 | has_block << HAS_BLOCK_SHIFT | length << 32;
    let words = [
        object.address.to_bits(),
        object.version.get(),
        object.incarnation.0,
        rest,
    ];
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    if object.block != 0 {
        out.extend_from_slice(&object.block.to_le_bytes());
    }
    out.extend_from_slice(object.payload);
    out.resize(out.len().next_multiple_of(WORD), 0);
}

/// Replaces `out` by the part that all records have. It precedes `rest`, the additions of LOCK.
pub(crate) fn encode_head(out: &mut Vec<u8>, kind: Kind, id: TxId, low: u64, rest: &[u8]) {
    out.clear();
    for word in [0, id.configuration, low] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(kind, id, [&out[WORD..], rest]);
    out[..WORD].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the bytes that a record without additions takes in a log: COMMIT-PRIMARY, ABORT, or TRUNCATE.
pub(crate) fn fixed_reserved() -> u32 {
    log_record_bytes(FIXED_BYTES)
}

/// Number of the first configuration of a cluster.
pub const FIRST_CONFIGURATION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use farm_core::ids::RegionId;
    use proptest::prelude::*;

    fn address(offset: u32) -> Address {
        Address::new(RegionId::new(3, 77).unwrap(), offset * 64)
    }

    type Written = (u32, u64, u8, Vec<u8>);

    fn id(sequence: u64) -> TxId {
        TxId {
            configuration: 7,
            coordinator: WorkerRef::from_bits(3 << 16 | 1).unwrap(),
            sequence,
        }
    }

    fn encode(regions: &[u32], objects: &[Written]) -> Vec<u8> {
        let (mut rest, mut out) = (Vec::new(), Vec::new());
        encode_lock(&mut rest, 99, regions, objects.len());
        let fixed = rest.len();
        assert_eq!(fixed, LOCK_BYTES + region_bytes(regions.len()));
        for (offset, version, effect, payload) in objects {
            let before = rest.len();
            encode_object(&mut rest, &object(*offset, *version, *effect, payload));
            let has_block = effect % 3 == 1;
            assert_eq!(rest.len() - before, object_bytes(payload.len(), has_block));
        }
        encode_head(&mut out, Kind::Lock, id(12), 4, &rest);
        assert_eq!(out.len(), FIXED_BYTES);
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
            block: u64::from(effect % 3 == 1) * (version + 1),
            count: 1,
            payload,
        }
    }

    fn read_all(kind: u16, sequence: u64, bytes: &[u8]) -> Result<usize, RecordError> {
        let record = Record::decode(kind, id(sequence), bytes)?;
        if !record.kind.has_objects() {
            return Ok(0);
        }
        let lock = record.lock()?;
        let objects: Result<Vec<_>, _> = lock.objects().collect();
        Ok(objects?.len())
    }

    /// A LOCK record with transaction number 0 would count as truncated as soon as it arrives.
    #[test]
    fn only_truncate_records_have_transaction_number_0() {
        for kind in [1, 2, 3, 4, 5].map(|code| Kind::of(code).unwrap()) {
            for sequence in [0, 1] {
                let mut body = Vec::new();
                encode_head(&mut body, kind, id(sequence), 1, &[]);
                let fits = (sequence == 0) == (kind == Kind::Truncate);
                let read = Record::decode(kind.code(), id(sequence), &body);
                assert_eq!(read.is_ok(), fits, "{kind:?}, {sequence}: {read:?}");
            }
        }
    }

    #[test]
    fn a_run_of_new_objects_is_one_object_of_a_record() {
        let run = |count| Object {
            effect: Effect::Format,
            block: 7,
            count,
            ..object(5, 2, 1, &[])
        };
        let decoded = |count| {
            let mut bytes = Vec::new();
            encode_object(&mut bytes, &run(count));
            assert_eq!(bytes.len(), object_bytes(0, true));
            decode_object(&mut Words(&bytes)).map(|object| object.count)
        };
        assert_eq!(decoded(1), Ok(1));
        assert_eq!(decoded(4096), Ok(4096));
        for wrong in [0, u32::MAX] {
            assert!(decoded(wrong).is_err(), "no region has {wrong} objects");
        }
    }

    proptest! {
        #[test]
        fn a_decoded_lock_equals_the_encoded_one(
            regions in prop::collection::vec(any::<u32>(), 0..5),
            objects in prop::collection::vec(
                (1u32..9999, 0u64..60_000, 0u8..3, prop::collection::vec(any::<u8>(), 0..400)), 0..5),
        ) {
            let bytes = encode(&regions, &objects);
            let record = Record::decode(1, id(12), &bytes).unwrap();
            prop_assert_eq!((record.low, record.configuration), (4, 7));
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

        /// A record with one flipped bit, of another transaction, coordinator, configuration or kind, or with missing bytes is
        /// rejected.
        #[test]
        fn corrupted_records_are_rejected(
            objects in prop::collection::vec(
                (1u32..9999, 0u64..60_000, 0u8..3, prop::collection::vec(any::<u8>(), 0..60)), 0..3),
            bit in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode(&[1], &objects);
            prop_assert_eq!(read_all(1, 12, &bytes), Ok(objects.len()));
            prop_assert!(read_all(1, 13, &bytes).is_err());
            prop_assert!(read_all(3, 12, &bytes).is_err());
            let coordinator = WorkerRef::from_bits(3 << 16).unwrap();
            let other = TxId { coordinator, ..id(12) };
            prop_assert_eq!(Record::decode(1, other, &bytes).err(), Some(RecordError::Checksum));
            let later = TxId { configuration: 8, ..id(12) };
            let refused = RecordError::Configuration { found: 7, expected: 8 };
            prop_assert_eq!(Record::decode(1, later, &bytes).err(), Some(refused));
            prop_assert!(read_all(1, 12, &bytes[..cut.index(bytes.len())]).is_err());
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read_all(1, 12, &bytes).is_err());
        }

        /// Otherwise the installed header would have another size class than its block.
        #[test]
        fn a_header_of_another_class_is_rejected(class: u8) {
            let mut other = object(1, 2, 0, b"payload");
            other.incarnation = Incarnation::new(SizeClass::new(class), 5).allocated();
            let mut bytes = Vec::new();
            encode_object(&mut bytes, &other);
            let read = decode_object(&mut Words(&bytes));
            prop_assert_eq!(read.is_ok(), class == 7, "{:?}", read);
        }

        /// Decoding arbitrary bytes fails without a panic, with or without the right checksum.
        #[test]
        fn decoding_garbage_does_not_panic(kind in 0u16..8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
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
