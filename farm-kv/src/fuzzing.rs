//! The decoders of bytes from other machines, for fuzzing: the objects of the catalog, and messages.

use farm_core::ids::Address;

use crate::catalog::{Description, NODE_BYTES, Node, WORDS, chain_of, list_objects, shards_in};
use crate::change::{parse, table_of};
use crate::table::{TableSpec, layout_of, locate};

/// Bytes that a lookup can read at once.
const READ_BYTES: usize = 64 << 10;

/// Decodes an object that should be a description of the catalog, and checks whether its table is possible. What is decoded is the
/// same after it is encoded and decoded again. Returns the number of shards of a possible table.
pub fn description(bytes: &[u8]) -> Option<u32> {
    let found = Description::decode(&node(bytes))?;
    assert_eq!(Description::decode(&found.encode()), Some(found));
    assert!(!found.list.is_null() && found.list.is_line_aligned());
    assert!(chain_of(found.spec.id) < NODE_BYTES);
    possible(&found.spec, bytes)
}

/// Decodes the objects of a list that should have this number of shards.
pub fn list(bytes: &[u8], shards: u32) -> Option<Vec<Address>> {
    let nodes: Vec<Node> = bytes.chunks(NODE_BYTES).map(node).collect();
    let found = shards_in(&nodes, shards)?;
    assert_eq!(found.len(), shards as usize);
    assert!(nodes.len() >= list_objects(shards) as usize);
    let is_address = |at: &Address| !at.is_null() && at.is_line_aligned();
    assert!(found.iter().all(is_address));
    Some(found)
}

/// Decodes a message that creates a table or a shard. Returns the number of shards of a possible table.
pub fn specification(bytes: &[u8]) -> Option<u32> {
    let spec = TableSpec::from_bytes(bytes.try_into().ok()?);
    assert_eq!(spec.to_bytes(), *bytes);
    possible(&spec, bytes)
}

/// Decodes a request for the number of pairs of a shard. Returns the numbers of the table and of the shard.
pub fn pairs_of(bytes: &[u8]) -> Option<(u16, u32)> {
    let (table, shard) = crate::count::decode(bytes)?;
    assert_eq!(crate::count::encode(table, shard), *bytes);
    Some((table, shard))
}

/// Decodes a message with the change of a pair. Returns its key.
pub fn change(bytes: &[u8]) -> Option<&[u8]> {
    let order = parse(bytes)?;
    assert_eq!(table_of(bytes), Some(order.table));
    assert!(order.key_bytes <= order.pair.len());
    Some(&order.pair[..order.key_bytes])
}

/// Returns the number of shards, if a table is possible. Every key is then in one of its buckets.
fn possible(spec: &TableSpec, key: &[u8]) -> Option<u32> {
    let layout = layout_of(spec, READ_BYTES).ok()?;
    let (shard, bucket) = locate(key, spec);
    assert!(shard < spec.shards && bucket < spec.buckets);
    let end = (u64::from(bucket) + 2) * layout.bucket_bytes() as u64;
    assert!(u32::try_from(end).is_ok(), "a bucket beyond any region");
    assert!(layout.lookup_bytes() <= READ_BYTES);
    assert!(list_objects(spec.shards) as usize * WORDS >= spec.shards as usize);
    Some(spec.shards)
}

/// Returns the object that begins with these bytes. The others are zero.
fn node(bytes: &[u8]) -> Node {
    let mut node = [0; NODE_BYTES];
    let used = bytes.len().min(NODE_BYTES);
    node[..used].copy_from_slice(&bytes[..used]);
    node
}
