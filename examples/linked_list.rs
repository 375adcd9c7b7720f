//! A sorted linked list whose nodes are stored on three machines. All three insert, remove and find keys at the same
//! time, and compare the results with those of a set.

use std::collections::BTreeSet;

use farm::prelude::*;
use futures_util::future::try_join_all;

/// Number of operations of each machine.
const OPERATIONS: u64 = 300;
/// Number of keys of each machine.
const KEYS: u64 = 20;

/// A node: a key, and the next node.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Node {
    key: u64,
    next: Ptr<Node>,
}

/// A list. It begins with a head node without a key.
#[derive(Clone, Copy)]
struct List {
    head: Ptr<Node>,
    /// An object on each machine: an object that is allocated near it is stored on the same machine.
    anchors: [Ptr<Node>; 3],
}

impl List {
    /// Returns the last node whose key is less than `key`, and the node after it, if there is one.
    async fn seek(&self, tx: Tx<'_>, key: u64) -> farm::Result<(Ptr<Node>, Option<Node>)> {
        let mut before = self.head;
        let mut last = tx.get(before).await?;
        while !last.next.is_null() {
            let node = tx.get(last.next).await?;
            ascends(&last, &node)?;
            if node.key >= key {
                return Ok((before, Some(node)));
            }
            (before, last) = (last.next, node);
        }
        Ok((before, None))
    }

    /// Returns the last node whose key is less than `key`, and the node of `key`, if there is one.
    async fn find(&self, tx: Tx<'_>, key: u64) -> farm::Result<(Ptr<Node>, Option<Node>)> {
        let (before, node) = self.seek(tx, key).await?;
        Ok((before, node.filter(|node| node.key == key)))
    }

    /// Returns whether the list contains a key.
    async fn contains(&self, farm: &Farm, key: u64) -> farm::Result<bool> {
        farm.transact(async |tx| Ok(self.find(tx, key).await?.1.is_some()))
            .await
    }

    /// Inserts a key. Returns `false` if the list contained it.
    async fn insert(&self, farm: &Farm, key: u64) -> farm::Result<bool> {
        farm.transact(async |tx| {
            let (before, None) = self.find(tx, key).await? else {
                return Ok(false);
            };
            // The key determines the machine that stores the new node.
            let anchor = self.anchors[key as usize / 3 % 3];
            let next = tx.get(before).await?.next;
            let node = tx.alloc_near(anchor, Node { key, next }).await?;
            tx.update(before, |before| before.next = node).await?;
            Ok(true)
        })
        .await
    }

    /// Removes a key and frees its node. Returns `false` if the list did not contain the key.
    async fn remove(&self, farm: &Farm, key: u64) -> farm::Result<bool> {
        farm.transact(async |tx| {
            let (before, Some(node)) = self.find(tx, key).await? else {
                return Ok(false);
            };
            let removed = tx.update(before, |before| {
                std::mem::replace(&mut before.next, node.next)
            });
            tx.free(removed.await?).await?;
            Ok(true)
        })
        .await
    }

    /// Returns all keys, as of one point in time.
    async fn keys(&self, farm: &Farm) -> farm::Result<Vec<u64>> {
        farm.transact(async |tx| {
            let mut keys = Vec::new();
            let mut node = tx.get(self.head).await?;
            while !node.next.is_null() {
                let next = tx.get(node.next).await?;
                ascends(&node, &next)?;
                keys.push(next.key);
                node = next;
            }
            Ok(keys)
        })
        .await
    }
}

/// Returns an error unless the key of `node` is greater than that of `before`. Before a transaction validates its
/// reads, they may be of different points in time: a node may have been freed meanwhile, and reused for another key. A
/// transaction that follows pointers must not loop for ever then. An error suffices: the platform detects that the
/// reads are inconsistent, and retries the transaction.
fn ascends(before: &Node, node: &Node) -> farm::Result<()> {
    match before.key < node.key {
        true => Ok(()),
        false => Err(Error::refused("the list is not sorted")),
    }
}

/// Allocates a node without a next node in the memory of a machine.
async fn new_node(farm: &Farm) -> farm::Result<Ptr<Node>> {
    farm.transact(async |tx| tx.alloc(Node::zeroed()).await)
        .await
}

/// Runs random operations on keys that only this machine uses, and compares each result with that of a set. Other
/// machines change the neighbouring nodes at the same time. Returns the set at the end.
async fn play(farm: &Farm, list: List, machine: u64) -> farm::Result<BTreeSet<u64>> {
    let (mut model, mut dice) = (BTreeSet::new(), machine);
    for _ in 0..OPERATIONS {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let key = 1 + (dice >> 33) % KEYS * 3 + machine;
        match dice >> 60 {
            0..6 => assert_eq!(list.insert(farm, key).await?, model.insert(key)),
            6..11 => assert_eq!(list.remove(farm, key).await?, model.remove(&key)),
            _ => assert_eq!(list.contains(farm, key).await?, model.contains(&key)),
        }
    }
    Ok(model)
}

fn main() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    cluster.block_on(async |farm| {
        let mut anchors = [Ptr::null(); 3];
        for (anchor, machine) in anchors.iter_mut().zip(cluster.farms()) {
            *anchor = new_node(machine).await?;
        }
        let head = new_node(&farm).await?;
        let list = List { head, anchors };

        // Run the operations of all three machines at the same time.
        let playing = cluster.farms().iter().zip(0..);
        let playing = playing.map(|(farm, machine)| play(farm, list, machine));
        let models: BTreeSet<u64> = try_join_all(playing).await?.into_iter().flatten().collect();

        let keys = list.keys(&cluster.farms()[2]).await?;
        assert!(
            keys.iter().eq(&models),
            "the list must contain exactly the keys that the machines inserted and did not remove"
        );
        println!(
            "{} operations; {} keys, in order: {keys:?}",
            3 * OPERATIONS,
            keys.len()
        );
        Ok(())
    })
}
