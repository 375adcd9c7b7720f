//! The catalog: the objects from which every worker finds the tables of the cluster.
//!
//! The configuration names one object, the *root*. Each table has a *description*, which is linked into the chain of the root
//! to which its number belongs, and a list of the addresses of its shards, an array of objects. All of these objects have the
//! same size; docs/layouts.md shows their bytes. They are written by transactions, so copies have them like any data.
//!
//! A description and its list exist before the transaction that links the description, and never change. So lock-free reads
//! suffice to find a table; only the root changes, and two transactions that create tables conflict there.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::worker::Worker;
use farm_txn::{Abort, Handle, TxError};

use crate::KvError;
use crate::table::{SPEC_BYTES, TableSpec};

/// Bytes of the payload of an object of the catalog.
pub(crate) const NODE_BYTES: usize = 256;
/// Number of chains of the root, and of addresses in an object of a list.
pub(crate) const WORDS: usize = NODE_BYTES / 8;

/// Version of the layout of a description.
const VERSION: u8 = 1;
/// Offset of the version in a description, after the address of the next one and the specification.
const VERSION_AT: usize = 8 + SPEC_BYTES;
/// Offset of the address of the list.
const LIST_AT: usize = 40;
const _: () = assert!(VERSION_AT < LIST_AT && LIST_AT + 8 <= NODE_BYTES);

/// Maximum number of tries of a read that meets the lock of a transaction.
const READ_TRIES: usize = 100;

/// An object of the catalog.
pub(crate) type Node = [u8; NODE_BYTES];

/// What the catalog has of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Description {
    /// The next description of the same chain, or null.
    pub(crate) next: Address,
    pub(crate) spec: TableSpec,
    /// The first object of the list of shards.
    pub(crate) list: Address,
}

impl Description {
    pub(crate) fn encode(&self) -> Node {
        let mut node = [0; NODE_BYTES];
        put_address(&mut node, 0, self.next);
        node[8..VERSION_AT].copy_from_slice(&self.spec.to_bytes());
        node[VERSION_AT] = VERSION;
        put_address(&mut node, LIST_AT, self.list);
        node
    }

    /// Decodes a description. Returns `None` if it has another version, or no list.
    pub(crate) fn decode(node: &Node) -> Option<Self> {
        let spec = node[8..].first_chunk()?;
        let list = address(node, LIST_AT)?;
        let is_known = node[VERSION_AT] == VERSION && !list.is_null();
        is_known.then_some(Self {
            next: address(node, 0)?,
            spec: TableSpec::from_bytes(spec),
            list,
        })
    }
}

/// Returns the offset in the root of the chain of a table.
pub(crate) fn chain_of(table: u16) -> usize {
    usize::from(table) % WORDS * 8
}

/// Returns the address at an offset of an object; `None` if there is none.
pub(crate) fn address(node: &[u8], at: usize) -> Option<Address> {
    let bits = node.get(at..)?.first_chunk()?;
    Address::from_bits(u64::from_le_bytes(*bits)).filter(|address| address.is_line_aligned())
}

/// Stores an address at an offset of an object.
pub(crate) fn put_address(node: &mut [u8], at: usize, address: Address) {
    node[at..at + 8].copy_from_slice(&address.to_bits().to_le_bytes());
}

/// Returns the size class of all objects of the catalog.
pub(crate) fn class() -> SizeClass {
    class_for_payload(NODE_BYTES).expect("objects of the catalog are smaller than the largest ones")
}

/// Returns the number of objects in the list of this many shards.
pub(crate) fn list_objects(shards: u32) -> u32 {
    shards.div_ceil(WORDS as u32)
}

fn damaged(what: &str, at: Address) -> KvError {
    KvError::Damaged(format!("the object of the catalog at {at} {what}"))
}

/// Reads `count` adjacent objects of the catalog.
async fn read(farm: &Handle, first: Address, count: u32) -> Result<Vec<Node>, KvError> {
    for _ in 0..READ_TRIES {
        let objects = match farm.read_array_lock_free(first, NODE_BYTES, count).await {
            Err(TxError::Abort(Abort::TimedOut(_))) => continue,
            objects => objects.map_err(KvError::of_catalog)?,
        };
        let node = |object: Option<Vec<u8>>| object.and_then(|bytes| bytes.try_into().ok());
        let nodes: Option<Vec<Node>> = objects.into_iter().map(node).collect();
        return nodes.ok_or_else(|| damaged("does not exist", first));
    }
    Err(KvError::Conflict)
}

async fn read_one(farm: &Handle, at: Address) -> Result<Node, KvError> {
    let node = read(farm, at, 1).await?.pop();
    node.ok_or_else(|| damaged("does not exist", at))
}

/// Finds the description of a table from the root.
pub(crate) async fn find(
    farm: &Handle,
    root: Address,
    table: u16,
) -> Result<Option<Description>, KvError> {
    let node = read_one(farm, root).await?;
    let first = address(&node, chain_of(table));
    find_from(
        farm,
        first.ok_or_else(|| damaged("is not valid", root))?,
        table,
    )
    .await
}

/// Finds the description of a table in a chain.
pub(crate) async fn find_from(
    farm: &Handle,
    first: Address,
    table: u16,
) -> Result<Option<Description>, KvError> {
    first_of(farm, first, |found| found.spec.id == table).await
}

/// Reads the descriptions of a chain until `is_it` is true of one, and returns that.
async fn first_of(
    farm: &Handle,
    first: Address,
    mut is_it: impl FnMut(&Description) -> bool,
) -> Result<Option<Description>, KvError> {
    let mut at = first;
    // No chain has more descriptions than there are numbers.
    for _ in 0..=u16::MAX {
        if at.is_null() {
            return Ok(None);
        }
        let found = Description::decode(&read_one(farm, at).await?);
        let found = found.ok_or_else(|| damaged("is not a description of this version", at))?;
        if is_it(&found) {
            return Ok(Some(found));
        }
        at = found.next;
    }
    Err(damaged("begins a chain that does not end", first))
}

/// Finds all tables from the root.
pub(crate) async fn tables(farm: &Handle, root: Address) -> Result<Vec<TableSpec>, KvError> {
    let node = read_one(farm, root).await?;
    let mut all = Vec::new();
    for chain in 0..WORDS {
        let first = address(&node, chain * 8).ok_or_else(|| damaged("is not valid", root))?;
        let note = |found: &Description| {
            all.push(found.spec);
            false
        };
        first_of(farm, first, note).await?;
    }
    Ok(all)
}

/// Returns the addresses of `count` shards from the objects of a list; `None` if one is missing.
pub(crate) fn shards_in(nodes: &[Node], count: u32) -> Option<Vec<Address>> {
    let words = nodes.iter().flat_map(|node| {
        let words = 0..WORDS;
        words.map_while(move |word| address(node, word * 8))
    });
    let shards: Vec<Address> = words.take(count as usize).collect();
    let is_complete = shards.len() == count as usize && !shards.iter().any(|at| at.is_null());
    is_complete.then_some(shards)
}

/// Reads the addresses of the shards of a table.
pub(crate) async fn shards(farm: &Handle, found: &Description) -> Result<Vec<Address>, KvError> {
    let object_bytes = class().object_bytes();
    let largest = farm.with_worker(|worker| worker.arena().largest()).await;
    let in_one_read = (largest.map_err(KvError::of_catalog)? / object_bytes).max(1) as u32;
    let (count, mut nodes) = (found.spec.shards, Vec::new());
    let objects = list_objects(count);
    for from in (0..objects).step_by(in_one_read as usize) {
        let at = u32::try_from(object_bytes as u64 * u64::from(from)).ok();
        let at = at.and_then(|offset| found.list.checked_add(offset));
        let at = at.ok_or_else(|| damaged("begins a list beyond its region", found.list))?;
        nodes.extend(read(farm, at, in_one_read.min(objects - from)).await?);
    }
    let shards = shards_in(&nodes, count);
    shards.ok_or_else(|| damaged("begins a list that is not complete", found.list))
}

/// Checks the root, the descriptions and the lists of the catalog, whose root is on this machine. Returns the number of its
/// objects, without the lists.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_here(worker: &mut Worker, root: Address) -> Result<u64, KvError> {
    let mut tx = farm_txn::checkout(worker);
    let mut node = |at: Address| -> Result<Node, KvError> {
        let object = tx.read_class(worker, at, class());
        let object = object.map_err(KvError::of_catalog)?;
        let payload = tx.payload(object).first_chunk();
        payload.copied().ok_or_else(|| damaged("is too small", at))
    };
    let mut count_all = || {
        let heads = node(root)?;
        let mut count = 1;
        for chain in 0..WORDS {
            let head = address(&heads, chain * 8);
            let mut at = head.ok_or_else(|| damaged("is not valid", root))?;
            while !at.is_null() {
                let found = Description::decode(&node(at)?);
                let found = found.ok_or_else(|| damaged("is not a description", at))?;
                if chain_of(found.spec.id) != chain * 8 {
                    return Err(damaged("is in the chain of other tables", at));
                }
                let first = address(&node(found.list)?, 0);
                if first.is_none_or(Address::is_null) {
                    return Err(damaged("is a list without shards", found.list));
                }
                (at, count) = (found.next, count + 1);
            }
        }
        Ok(count)
    };
    let counted = count_all();
    farm_txn::checkin(worker, tx);
    counted
}

#[cfg(test)]
mod tests {
    use farm_core::ids::RegionId;
    use proptest::prelude::*;

    use super::*;

    fn at(offset: u32) -> Address {
        Address::new(RegionId::new(3, 77).unwrap(), offset)
    }

    #[test]
    fn a_description_reads_back() {
        let spec = TableSpec::sized(77, 6, 300, 9, 1_000_000, 0.8).unwrap();
        let description = Description {
            next: Address::NULL,
            spec: spec.with_key_bytes(31),
            list: at(4096),
        };
        let node = description.encode();
        assert_eq!(Description::decode(&node), Some(description));
        assert_eq!(chain_of(77), 8 * 13);
        let mut newer = node;
        newer[VERSION_AT] += 1;
        assert_eq!(Description::decode(&newer), None);
        let without = Description {
            list: Address::NULL,
            ..description
        };
        assert_eq!(Description::decode(&without.encode()), None);
        let mut between = node;
        between[LIST_AT] = 8;
        assert_eq!(Description::decode(&between), None, "not at a line");
        assert_eq!(Description::decode(&[0; NODE_BYTES]), None);
    }

    #[test]
    fn a_list_has_all_shards() {
        for (shards, objects) in [(1, 1), (32, 1), (33, 2), (1 << 20, 1 << 15)] {
            assert_eq!(list_objects(shards), objects);
        }
    }

    proptest! {
        #[test]
        fn decoding_garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), NODE_BYTES)) {
            let node: Node = bytes.try_into().unwrap();
            if let Some(description) = Description::decode(&node) {
                let again = Description::decode(&description.encode());
                prop_assert_eq!(again, Some(description));
            }
        }
    }
}
