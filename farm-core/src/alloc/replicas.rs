//! Comparison of the replicas of a region, by digests of their blocks and objects.
//!
//! While no commit is under way, the replicas of a region have the same objects: headers, with versions and incarnations, and the
//! bytes of objects that are allocated; and the same blocks with such objects, with their bases, lengths and classes. What may
//! differ is what no commit has changed: slots that were reserved by transactions that aborted, blocks with no other slots, and the
//! bytes of freed objects. So may the kind and the owner of a block, which say who allocates in it, and change when an empty array
//! becomes a block of single objects.
//!
//! A slot was changed by a commit if its version is greater than the base of its block, because the first commit to a slot installs
//! the version after the base. So each replica decides alone what it compares, and replicas are compared by their digests, on any
//! machine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Block, BlockState, BlockTable, SizeClass, TableError};
use crate::ids::{Address, RegionId};
use crate::mem::WORD_BYTES;
use crate::object::{Base, HEADER_BYTES, Incarnation, LockMode, VersionWord};

/// What the replicas of a region have in common at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDigest {
    /// Index of the block in the region; of a run, of its first block.
    pub block: u32,
    /// The bits of its base.
    pub base: u64,
    /// The objects; `None` if the block is free, or part of the table.
    pub used: Option<UsedBlock>,
}

/// A run of blocks with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedBlock {
    /// Number of blocks.
    pub run: u32,
    /// Number of the objects' size class.
    pub class: u8,
    /// Number of allocated objects.
    pub objects: u64,
    /// Digest of all slots that commits have changed, and of the bases of the further blocks.
    pub digest: u64,
}

impl BlockDigest {
    /// Returns what a replica has at a block, for messages. `None` is a block that its digests leave out.
    pub fn text(digest: Option<&Self>) -> String {
        let Some(Self { base, used, .. }) = digest else {
            return "no object".to_owned();
        };
        match used {
            None => format!("free, with the base {base:#x}"),
            Some(used) => {
                let bytes = SizeClass::new(used.class).object_bytes();
                let (objects, run) = (used.objects, used.run);
                format!(
                    "{objects} object(s) of {bytes} B in {run} block(s), with the base {base:#x}"
                )
            }
        }
    }

    /// Returns whether both have objects of the same class, in runs of the same length and base, so that a difference is in their
    /// slots.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |digest: &Self| Some((digest.base, digest.used?.run, digest.used?.class));
        shape(self).is_some() && shape(self) == shape(other)
    }
}

/// What the replicas of a region have in common at a slot that a commit has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDigest {
    /// Offset of the slot in the region.
    pub offset: u32,
    /// First word of the header: the version and the lock mode.
    pub version: u64,
    /// Second word of the header: size class, allocated bit, and incarnation.
    pub incarnation: u64,
    /// Digest of the bytes after the header, if the object is allocated.
    pub bytes: Option<u64>,
}

impl SlotDigest {
    /// Returns what a replica has at a slot, for messages. `None` is a slot that no commit has changed.
    pub fn text(slot: Option<&Self>) -> String {
        let Some(slot) = slot else {
            return "never used".to_owned();
        };
        let word = VersionWord(slot.version);
        let incarnation = Incarnation(slot.incarnation).count();
        let locked = match word.mode() {
            LockMode::Unlocked => "",
            LockMode::Readable | LockMode::Exclusive => ", locked",
        };
        let bytes = match slot.bytes {
            None => ", freed".to_owned(),
            Some(bytes) => format!(", bytes with the digest {bytes:016x}"),
        };
        let version = word.version().get();
        format!("version {version:#x}{locked}, incarnation {incarnation:#x}{bytes}")
    }
}

/// What differs between two replicas at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Whether the object is allocated, or whether the slot was ever used.
    Allocated,
    /// The incarnation, or the size class in the header.
    Incarnation,
    /// The version, or the lock mode.
    Version,
    /// The bytes, although the headers are equal.
    Bytes,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocated => "allocated",
            Self::Incarnation => "incarnation",
            Self::Version => "version",
            Self::Bytes => "bytes",
        })
    }
}

/// Returns what differs between two replicas at a slot: all parts of the headers that differ, or only the bytes.
pub fn different_parts(one: Option<&SlotDigest>, other: Option<&SlotDigest>) -> Vec<Part> {
    let (Some(one), Some(other)) = (one, other) else {
        return match one.is_some() || other.is_some() {
            true => vec![Part::Allocated],
            false => vec![],
        };
    };
    let words = [one, other].map(|slot| Incarnation(slot.incarnation));
    let number = |word: Incarnation| (word.class(), word.count());
    let parts = [
        (
            Part::Allocated,
            words[0].is_allocated() != words[1].is_allocated(),
        ),
        (Part::Incarnation, number(words[0]) != number(words[1])),
        (Part::Version, one.version != other.version),
    ];
    let differ = parts.into_iter().filter(|part| part.1);
    let differ: Vec<Part> = differ.map(|part| part.0).collect();
    match differ.is_empty() && one.bytes != other.bytes {
        true => vec![Part::Bytes],
        false => differ,
    }
}

/// Returns the digests of a region's blocks, in ascending order, while nothing changes them. Blocks that are only reserved are left
/// out. After an error there are no further items.
///
/// Each item reads the objects of one run: call it piece by piece where that takes too long.
pub fn block_digests(
    table: &BlockTable,
) -> impl Iterator<Item = Result<BlockDigest, TableError>> + '_ {
    let (blocks, mut next) = (table.geometry().blocks(), 0);
    std::iter::from_fn(move || {
        while next < blocks {
            let found = digest_at(table, next);
            next = match &found {
                Ok((run, _)) => next.saturating_add(*run),
                Err(_) => blocks,
            };
            match found {
                Ok((_, None)) => {}
                Ok((_, Some(digest))) => return Some(Ok(digest)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    })
}

/// Returns the length of the run that begins with a block, and its digest unless it is only reserved.
fn digest_at(table: &BlockTable, index: u32) -> Result<(u32, Option<BlockDigest>), TableError> {
    let base = table.base(index)?;
    let digest = |used| BlockDigest {
        block: index,
        base: base.to_bits(),
        used,
    };
    let Some(block) = table.run_at(index)? else {
        return Ok((1, Some(digest(None))));
    };
    let run = block.head().run;
    let mut hash = Xxh3::new();
    let (mut objects, mut is_used) = (0, false);
    let mut add = |word: u64| hash.update(&word.to_le_bytes());
    for slot in slot_digests(&block, 0..block.slots()) {
        is_used = true;
        objects += u64::from(slot.bytes.is_some());
        add(slot.offset.into());
        add(slot.version);
        add(slot.incarnation);
        add(slot.bytes.unwrap_or_default());
    }
    for further in index + 1..index + run {
        add(table.base(further)?.to_bits());
    }
    let used = UsedBlock {
        run,
        class: block.head().class.get(),
        objects,
        digest: hash.digest(),
    };
    Ok((run, is_used.then(|| digest(Some(used)))))
}

/// Returns the digests of the slots of a block that commits have changed, in ascending order, while nothing changes them. `slots` is
/// cut at the end of the block.
pub fn slot_digests(
    block: &Block,
    slots: std::ops::Range<u32>,
) -> impl Iterator<Item = SlotDigest> + '_ {
    let mut words = vec![0; block.head().class.object_bytes() / WORD_BYTES];
    let slots = slots.start..slots.end.min(block.slots());
    slots.filter_map(move |slot| slot_digest(block, slot, &mut words))
}

/// Returns the digest of a slot; `None` if no commit has changed it. `words` has the length of an object.
fn slot_digest(block: &Block, slot: u32, words: &mut [u64]) -> Option<SlotDigest> {
    let (memory, at) = (block.table().memory(), block.offset_of(slot));
    let version = memory.load(at, Ordering::Acquire);
    let incarnation = memory.load(at + WORD_BYTES, Ordering::Acquire);
    let is_allocated = Incarnation(incarnation).is_allocated();
    if !is_allocated && !is_beyond(block.base(), version) {
        return None;
    }
    let bytes = is_allocated.then(|| {
        memory.read_words(at, words);
        xxh3_64(bytemuck::cast_slice(&words[HEADER_BYTES / WORD_BYTES..]))
    });
    Some(SlotDigest {
        offset: at as u32,
        version,
        incarnation,
        bytes,
    })
}

fn is_beyond(base: Base, version: u64) -> bool {
    VersionWord(version).version() > base.version()
}

/// Returns the blocks at which two replicas differ, ascending. A block that one of them leaves out is only reserved there, or
/// inside of a run, and equal to a free block.
pub fn different_blocks(one: &[BlockDigest], other: &[BlockDigest]) -> Vec<u32> {
    let pairs = pairs(one, other, |digest| digest.block);
    let differ = pairs.into_iter().filter(|(_, pair)| match pair {
        [Some(one), Some(other)] => one != other,
        [one, other] => one.or(*other).is_some_and(|digest| digest.used.is_some()),
    });
    differ.map(|(block, _)| block).collect()
}

/// Returns the slots at which two replicas differ, with what they have there, ascending by their offsets.
pub fn different_slots<'a>(
    one: &'a [SlotDigest],
    other: &'a [SlotDigest],
) -> Vec<(u32, [Option<&'a SlotDigest>; 2])> {
    let pairs = pairs(one, other, |digest| digest.offset);
    let differ = pairs.into_iter().filter(|(_, pair)| pair[0] != pair[1]);
    differ.collect()
}

/// Returns the items of two lists by their keys.
fn pairs<'a, T>(
    one: &'a [T],
    other: &'a [T],
    key: impl Fn(&T) -> u32,
) -> BTreeMap<u32, [Option<&'a T>; 2]> {
    let mut pairs: BTreeMap<u32, [Option<&T>; 2]> = BTreeMap::new();
    for (side, items) in [one, other].into_iter().enumerate() {
        for item in items {
            pairs.entry(key(item)).or_default()[side] = Some(item);
        }
    }
    pairs
}

/// A difference between a primary and a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// One of the tables is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A block has another base, class or length, or only one of the replicas has objects there.
    #[error(
        "block {block} of region {region}: {primary} at the primary, and {backup} at the backup"
    )]
    Block {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// What the primary has.
        primary: String,
        /// What the backup has.
        backup: String,
    },
    /// An object has another header, or other bytes.
    #[error("{address}: {primary} at the primary, and {backup} at the backup")]
    Object {
        /// The object.
        address: Address,
        /// What the primary has.
        primary: String,
        /// What the backup has.
        backup: String,
    },
}

/// Compares two replicas of a region that are in this process, while nothing changes them. Returns the number of allocated objects.
///
/// # Errors
/// The first [`Difference`].
pub fn compare_replicas(primary: &BlockTable, backup: &BlockTable) -> Result<u64, Difference> {
    let digests = |table| block_digests(table).collect::<Result<Vec<_>, _>>();
    let [one, other] = [digests(primary)?, digests(backup)?];
    let Some(block) = different_blocks(&one, &other).first().copied() else {
        let used = one.iter().filter_map(|digest| digest.used);
        return Ok(used.map(|used| used.objects).sum());
    };
    let region = primary.region();
    let at_block = |digests: &[BlockDigest]| {
        let mut digests = digests.iter();
        digests.find(|digest| digest.block == block).copied()
    };
    let found = [at_block(&one), at_block(&other)];
    if let [Some(one), Some(other)] = found
        && one.has_shape_of(&other)
    {
        let slots = |table: &BlockTable| -> Result<Vec<SlotDigest>, TableError> {
            let run = table.run_at(block)?;
            let slots = run.map(|run| slot_digests(&run, 0..u32::MAX).collect());
            Ok(slots.unwrap_or_default())
        };
        let (one, other) = (slots(primary)?, slots(backup)?);
        if let Some((offset, [one, other])) = different_slots(&one, &other).first() {
            return Err(Difference::Object {
                address: Address::new(region, *offset),
                primary: SlotDigest::text(*one),
                backup: SlotDigest::text(*other),
            });
        }
    }
    let [primary, backup] = found.map(|digest| BlockDigest::text(digest.as_ref()));
    Err(Difference::Block {
        region,
        block,
        primary,
        backup,
    })
}

impl BlockTable {
    /// Returns the block whose run begins at `index`; `None` if the block is free or part of the table.
    ///
    /// # Errors
    /// [`TableError`] if the table is damaged there, or the block is inside of a run.
    ///
    /// # Panics
    /// If the region has no such block.
    pub fn run_at(&self, index: u32) -> Result<Option<Block>, TableError> {
        match self.state(index)? {
            BlockState::Free | BlockState::Table => Ok(None),
            BlockState::Head(head) => {
                self.check_run(index, head)?;
                self.block(index, head).map(Some)
            }
            BlockState::Rest { .. } => Err(self.orphan(index)),
        }
    }
}
