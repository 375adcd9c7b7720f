//! A sorted linked list whose nodes are stored on three machines. All three insert, remove and find keys at the same
//! time, and compare the results with those of a set.

use std::collections::BTreeSet;
use std::sync::mpsc;

use farm::prelude::*;

/// Number of operations of each machine.
const OPERATIONS: u64 = 300;
/// Number of keys of each machine.
const KEYS: u64 = 20;

/// A list. It begins with a head node without a key.
#[derive(Clone, Copy)]
struct List {
    head: Address,
    /// An object on each machine: an object that is allocated near it is stored on the same machine.
    anchors: [Address; 3],
}

/// A node: a key, and the address of the next node.
#[derive(Clone, Copy)]
struct Node {
    key: u64,
    next: Address,
}

impl Node {
    const BYTES: usize = 16;

    async fn of(tx: Transaction<'_>, node: ObjectId) -> Result<Node, TxError> {
        let payload = tx.payload(node).await?;
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("a word"));
        let next = Address::from_bits(word(8)).unwrap_or(Address::NULL);
        Ok(Node { key: word(0), next })
    }

    async fn write(self, tx: Transaction<'_>, node: ObjectId) -> Result<(), TxError> {
        let words = [self.key, self.next.to_bits()];
        tx.write(node, words.map(u64::to_le_bytes).as_flattened())
            .await
    }
}

impl List {
    /// Returns the last node whose key is less than `key`, and the node after it.
    async fn seek(
        &self,
        tx: Transaction<'_>,
        key: u64,
    ) -> Result<(ObjectId, Option<ObjectId>), TxError> {
        let mut before = tx.read(self.head, Node::BYTES).await?;
        loop {
            let next = Node::of(tx, before).await?.next;
            if next.is_null() {
                return Ok((before, None));
            }
            let node = tx.read(next, Node::BYTES).await?;
            ascends(tx, before, node).await?;
            if Node::of(tx, node).await?.key >= key {
                return Ok((before, Some(node)));
            }
            before = node;
        }
    }

    /// Returns the last node whose key is less than `key`, and the node of `key`, if there is one.
    async fn find(
        &self,
        tx: Transaction<'_>,
        key: u64,
    ) -> Result<(ObjectId, Option<ObjectId>), TxError> {
        let (before, node) = self.seek(tx, key).await?;
        let Some(node) = node else {
            return Ok((before, None));
        };
        let is_it = Node::of(tx, node).await?.key == key;
        Ok((before, is_it.then_some(node)))
    }

    /// Returns whether the list contains a key.
    async fn contains(&self, farm: &Handle, key: u64) -> Result<bool, TxError> {
        farm.transact(async |tx| Ok(self.find(tx, key).await?.1.is_some()))
            .await
    }

    /// Inserts a key. Returns `false` if the list contained it.
    async fn insert(&self, farm: &Handle, key: u64) -> Result<bool, TxError> {
        farm.transact(async |tx| {
            let (before, None) = self.find(tx, key).await? else {
                return Ok(false);
            };
            // The key determines the machine that stores the new node.
            let anchor = self.anchors[key as usize / 3 % 3];
            let node = tx.alloc(Node::BYTES, Some(anchor)).await?;
            let Node { key: last, next } = Node::of(tx, before).await?;
            Node { key, next }.write(tx, node).await?;
            let next = tx.address(node).await?;
            Node { key: last, next }.write(tx, before).await?;
            Ok(true)
        })
        .await
    }

    /// Removes a key and frees its node. Returns `false` if the list did not contain the key.
    async fn remove(&self, farm: &Handle, key: u64) -> Result<bool, TxError> {
        farm.transact(async |tx| {
            let (before, Some(node)) = self.find(tx, key).await? else {
                return Ok(false);
            };
            let Node { key: last, .. } = Node::of(tx, before).await?;
            let Node { next, .. } = Node::of(tx, node).await?;
            Node { key: last, next }.write(tx, before).await?;
            tx.free(node).await?;
            Ok(true)
        })
        .await
    }

    /// Returns all keys, as of one point in time.
    async fn keys(&self, farm: &Handle) -> Result<Vec<u64>, TxError> {
        farm.transact(async |tx| {
            let mut keys = Vec::new();
            let mut node = tx.read(self.head, Node::BYTES).await?;
            loop {
                let next = Node::of(tx, node).await?.next;
                if next.is_null() {
                    return Ok(keys);
                }
                let before = node;
                node = tx.read(next, Node::BYTES).await?;
                ascends(tx, before, node).await?;
                keys.push(Node::of(tx, node).await?.key);
            }
        })
        .await
    }
}

/// Returns an error unless the key of `node` is greater than that of `before`. Before a transaction validates its
/// reads, they may be of different points in time: a node may have been freed meanwhile, and reused for another key. A
/// transaction that follows pointers must not loop for ever then. An error suffices: the platform detects that the
/// reads are inconsistent, and retries the transaction.
async fn ascends(tx: Transaction<'_>, before: ObjectId, node: ObjectId) -> Result<(), TxError> {
    if Node::of(tx, before).await?.key < Node::of(tx, node).await?.key {
        Ok(())
    } else {
        Err(TxError::GivenUp)
    }
}

/// Allocates an object of zeroes on this machine: a node without a next node.
async fn new_object(farm: Handle) -> Result<Address, TxError> {
    farm.transact(async |tx| {
        let object = tx.alloc(Node::BYTES, None).await?;
        tx.address(object).await
    })
    .await
}

/// Runs random operations on keys that only this machine uses, and compares each result with that of a set. Other
/// machines change the neighbouring nodes at the same time. Returns the set at the end.
async fn play(farm: Handle, list: List, machine: u64) -> Result<BTreeSet<u64>, TxError> {
    let (mut model, mut dice) = (BTreeSet::new(), machine);
    for _ in 0..OPERATIONS {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let key = 1 + (dice >> 33) % KEYS * 3 + machine;
        match dice >> 60 {
            0..6 => assert_eq!(list.insert(&farm, key).await?, model.insert(key)),
            6..11 => assert_eq!(list.remove(&farm, key).await?, model.remove(&key)),
            _ => assert_eq!(list.contains(&farm, key).await?, model.contains(&key)),
        }
    }
    Ok(model)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Three machines of one worker each. The name must be unique among the clusters of this host.
    let mut config = Config::default_for(3, 1);
    config.cluster.name = format!("list-{}", std::process::id());
    config.memory.region_bytes = 64 << 20;
    config.memory.per_machine_bytes = 128 << 20;
    let machines = start_all(&config, &layers())?;

    let mut anchors = [Address::NULL; 3];
    for (anchor, machine) in anchors.iter_mut().zip(&machines) {
        *anchor = block_on(machine, 0, new_object)??;
    }
    let head = block_on(&machines[0], 0, new_object)??;
    let list = List { head, anchors };

    // Run the operations of all three machines at the same time.
    let (done, models) = mpsc::channel();
    for (machine, number) in machines.iter().zip(0..) {
        let done = done.clone();
        machine.submit(0, move |worker| {
            spawn(worker, move |farm| async move {
                let _ = done.send(play(farm, list, number).await);
            });
        })?;
    }
    drop(done);
    let mut model = BTreeSet::new();
    for of_machine in models {
        model.extend(of_machine?);
    }

    let keys = block_on(&machines[2], 0, async move |farm| list.keys(&farm).await)??;
    assert!(
        keys.iter().eq(&model),
        "the list must contain exactly the keys that the machines inserted and did not remove"
    );
    println!(
        "{} operations; {} keys, in order: {keys:?}",
        3 * OPERATIONS,
        keys.len()
    );

    for machine in machines {
        machine.stop()?;
    }
    Ok(())
}
