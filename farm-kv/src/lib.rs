//! A distributed hashtable whose lookups cost about one one-sided read (`FaRM'14 §3.6`): chained
//! associative hopscotch hashing over objects of the shared address space.
//!
//! A table is cut into shards, each an equal slice of the hash space, an array of buckets on one
//! machine, and owned by one of its workers. A bucket is one object with H/2 slots. A pair lies in
//! the bucket its key hashes to or in the next one, or else in the bucket's chain of overflow
//! blocks, so one read of two adjacent buckets answers nearly every lookup, from any machine, without
//! a processor of the owner. What changes a shard is shipped to its owner and runs there as a
//! single-machine transaction.
//!
//! Read in this order: [`layout`] (the bytes) → [`table`] (shards and where they are) → [`lookup`] →
//! [`shard`] (how pairs are put, moved and removed) → [`ops`] (shipping) → `owner` (combining) → [`tx`]
//! (the same inside a caller's transaction).
#![forbid(unsafe_code)]

pub mod blocking;
mod error;
pub mod layout;
pub mod lookup;
pub mod ops;
mod owner;
pub mod shard;
mod state;
pub mod table;
pub mod tasks;
pub mod tx;

pub use error::KvError;
pub use lookup::{GetCont, GetFn, get, when_slot};
pub use ops::{Change, ChangeCont, change};
pub use owner::{ChangeCounters, change_counters};
pub use state::{LookupCounters, attach, counters};
pub use table::{TableId, TableSpec, open};
pub use tx::left_over;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// A key.
pub type Key = [u8; KEY_BYTES];
