//! A distributed hashtable whose lookups cost about one one-sided read (`FaRM'14 §3.6`): chained
//! associative hopscotch hashing over objects of the shared address space.
//!
//! A table is divided into shards. Each shard is an equal slice of the hash space, an array of buckets on one machine,
//! and is owned by one of the workers of its primary. A bucket is one object with H/2 slots. A pair is stored in the bucket
//! to which its key hashes, in the next bucket, or in the bucket's chain of overflow blocks. So one read of two
//! adjacent buckets completes nearly every lookup, from any machine, without the owner's processor. A change of a shard
//! is shipped to the owner and runs there as a single-machine transaction.
//!
//! Read in this order: [`layout`] (the bytes) → [`table`] (shards and their locations) → `open`, `catalog`, `create` (how workers
//! find tables) → [`lookup`] → [`shard`] (how
//! pairs are inserted, moved and removed) → [`ops`] → `owner` (shipping and combining) → [`tx`] (operations inside a
//! caller's transaction).
#![forbid(unsafe_code)]

mod attach;
pub mod blocking;
mod calls;
mod catalog;
mod change;
pub mod config;
mod count;
mod create;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod layout;
pub mod lookup;
mod open;
pub mod ops;
mod owner;
mod owners;
mod pending;
mod refusals;
pub mod shard;
mod sizing;
mod state;
pub mod table;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod tx;

pub use attach::attach;
pub use change::Change;
pub use count::count;
pub use error::KvError;
pub use lookup::{get, get_many, when_slot};
pub use open::open;
pub use ops::change;
pub use owner::{ChangeCounters, change_counters};
pub use pending::{ChangeCont, GetCont, Value};
pub use sizing::{check_memory, spec_for};
pub use state::{LookupCounters, counters};
pub use table::{SPEC_BYTES, TableId, TableSpec};
pub use tx::left_over;

/// Bytes of the keys of most tables. Other lengths are possible: [`TableSpec::key_bytes`].
pub const KEY_BYTES: usize = 16;
/// Maximum number of bytes in a key.
pub const MAX_KEY_BYTES: usize = 256;
/// A key of [`KEY_BYTES`].
pub type Key = [u8; KEY_BYTES];
