//! Tables: the mapping of keys to shards and buckets, and the locations of shards.

use bytemuck::{Pod, Zeroable};
use farm_core::ids::{Address, WorkerRef};
use farm_core::worker::{Cont, ReadRequest, Worker};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::layout::Layout;
use crate::shard::ShardPlace;
use crate::{KEY_BYTES, KvError};

/// Maximum number of shards of a table.
pub(crate) const MAX_SHARDS: u32 = 1 << 20;
/// Bytes of an encoded specification.
pub const SPEC_BYTES: usize = 30;

/// Specification of a table. All workers open it with the same specification.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Number of the table, unique in the cluster.
    pub id: u16,
    /// H, one of [`crate::layout::NEIGHBOURHOODS`].
    pub neighbourhood: u32,
    /// Length of every key, in bytes: 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    pub key_bytes: usize,
    /// Length of every value, in bytes.
    pub value_bytes: usize,
    /// Number of shards.
    pub shards: u32,
    /// Number of buckets per shard, without the spare one.
    pub buckets: u32,
}

impl TableSpec {
    /// Returns the specification of a table of `shards` shards in which `pairs` pairs fill `occupancy` of the slots, with
    /// keys of [`KEY_BYTES`].
    ///
    /// # Errors
    /// [`KvError::Spec`] if no such table is possible.
    pub fn sized(
        id: u16,
        neighbourhood: u32,
        value_bytes: usize,
        shards: u32,
        pairs: u64,
        occupancy: f64,
    ) -> Result<Self, KvError> {
        Layout::new(neighbourhood, KEY_BYTES, value_bytes)?;
        if shards == 0 || pairs == 0 || !(occupancy > 0.0 && occupancy <= 1.0) {
            let why = format!(
                "{shards} shards for {pairs} pairs at occupancy {occupancy}: at least one of each and an occupancy in \
                 (0, 1] are required"
            );
            return Err(KvError::Spec(why));
        }
        let slots = pairs as f64 / occupancy / f64::from(shards);
        let buckets = (slots / f64::from(neighbourhood / 2)).round().max(1.0);
        if buckets >= f64::from(u32::MAX - 1) {
            return Err(KvError::Spec(format!(
                "{pairs} pairs in {shards} shards: a shard would be too large; use more shards"
            )));
        }
        Ok(Self {
            id,
            neighbourhood,
            key_bytes: KEY_BYTES,
            value_bytes,
            shards,
            buckets: buckets as u32,
        })
    }

    /// Returns the specification with keys of `key_bytes`.
    #[must_use]
    pub fn with_key_bytes(self, key_bytes: usize) -> Self {
        Self { key_bytes, ..self }
    }

    /// Encodes the specification, for messages and for catalogs.
    pub fn to_bytes(self) -> [u8; SPEC_BYTES] {
        let mut bytes = [0; SPEC_BYTES];
        bytes[..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..6].copy_from_slice(&self.neighbourhood.to_le_bytes());
        bytes[6..10].copy_from_slice(&self.shards.to_le_bytes());
        bytes[10..14].copy_from_slice(&self.buckets.to_le_bytes());
        bytes[14..22].copy_from_slice(&(self.key_bytes as u64).to_le_bytes());
        bytes[22..].copy_from_slice(&(self.value_bytes as u64).to_le_bytes());
        bytes
    }

    /// Decodes a specification. Whether such a table is possible is checked when it is opened.
    pub fn from_bytes(bytes: &[u8; SPEC_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self {
            id: u16::from_le_bytes([bytes[0], bytes[1]]),
            neighbourhood: word(2),
            key_bytes: long(14) as usize,
            value_bytes: long(22) as usize,
            shards: word(6),
            buckets: word(10),
        }
    }

    /// Returns the table of this specification. Until it is open on a worker, operations on it there return
    /// [`KvError::NotOpen`].
    pub fn table(&self) -> TableId {
        TableId(self.id)
    }

    /// Returns the number of slots in the buckets of all shards.
    pub fn slots(&self) -> u64 {
        u64::from(self.shards) * u64::from(self.buckets) * u64::from(self.neighbourhood / 2)
    }
}

/// Identifies an open table on the workers that opened it. It is plain bytes, so that the state of a continuation can
/// contain it; operations refuse the id of a table that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct TableId(pub(crate) u16);

/// A shard, as a worker knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard {
    /// The owner when this worker looked it up last. A worker that is asked as the owner looks up itself whether it is.
    pub(crate) owner: WorkerRef,
    /// Address of the first bucket.
    pub(crate) first: Address,
}

/// The continuation that receives the table when it is usable, or the error.
pub(crate) type OpenCont = Cont<Result<TableId, KvError>>;

/// A table that is open on a worker.
pub(crate) struct Table {
    pub(crate) spec: TableSpec,
    pub(crate) layout: Layout,
    pub(crate) shards: Vec<Shard>,
}

impl Table {
    /// Checks the length of a key.
    #[inline]
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), KvError> {
        let expected = self.spec.key_bytes;
        if key.len() == expected {
            return Ok(());
        }
        Err(KvError::KeyLength {
            expected,
            found: key.len(),
        })
    }

    /// Returns the shard and the bucket of a key: equal slices of the hash space, and of each shard's slice.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8]) -> (u32, u32) {
        locate(key, &self.spec)
    }

    /// Returns the place and the layout of a shard.
    #[inline]
    pub(crate) fn place(&self, shard: u32) -> ShardPlace {
        ShardPlace {
            layout: self.layout,
            first: self.shards[shard as usize].first,
            buckets: self.spec.buckets,
        }
    }

    /// Returns the request that reads a bucket and the next one.
    #[inline]
    pub(crate) fn buckets_request(&self, shard: u32, bucket: u32) -> ReadRequest {
        ReadRequest::objects(self.bucket(shard, bucket), self.layout.bucket_class, 2)
    }

    /// Returns the address of a bucket.
    #[inline]
    pub(crate) fn bucket(&self, shard: u32, bucket: u32) -> Address {
        let first = self.shards[shard as usize].first;
        Address::new(
            first.region(),
            first.offset() + bucket * self.layout.bucket_bytes() as u32,
        )
    }
}

/// Returns the shard and the bucket of a key in a table.
#[inline]
pub(crate) fn locate(key: &[u8], spec: &TableSpec) -> (u32, u32) {
    let wide = u128::from(xxh3_64(key)) * u128::from(spec.shards);
    let bucket = u128::from(wide as u64) * u128::from(spec.buckets);
    ((wide >> 64) as u32, (bucket >> 64) as u32)
}

/// Checks that this worker can open a table, and returns its layout.
pub(crate) fn possible(worker: &mut Worker, spec: &TableSpec) -> Result<Layout, KvError> {
    layout_of(spec, worker.arena().largest())
}

/// Checks that a table is possible whose lookups read at most `read_bytes` at a time, and returns its layout.
pub(crate) fn layout_of(spec: &TableSpec, read_bytes: usize) -> Result<Layout, KvError> {
    let layout = Layout::new(spec.neighbourhood, spec.key_bytes, spec.value_bytes)?;
    let (shards, buckets) = (spec.shards, spec.buckets);
    let bucket_bytes = layout.bucket_bytes();
    let shard_bytes = (u64::from(buckets) + 1) * bucket_bytes as u64;
    let why = if shards == 0 || buckets == 0 {
        format!("{shards} shards of {buckets} buckets: at least one of each is required")
    } else if shards > MAX_SHARDS {
        format!("{shards} shards are more than {MAX_SHARDS}")
    } else if shard_bytes > u64::from(u32::MAX) {
        format!("a shard of {shard_bytes} bytes is larger than any region; use more shards")
    } else if layout.lookup_bytes() > read_bytes {
        format!(
            "buckets of {bucket_bytes} bytes make a lookup read {} bytes, more than the {read_bytes} \
             that one read can fetch; use smaller values or a smaller neighbourhood",
            layout.lookup_bytes()
        )
    } else {
        return Ok(layout);
    };
    Err(KvError::Spec(why))
}
