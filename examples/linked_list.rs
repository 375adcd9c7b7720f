//! A sorted linked list whose nodes lie on three machines: all three insert, remove and find at the same
//! time, and what they see is held against a set that does the same.

use std::collections::BTreeSet;
use std::sync::mpsc;

use farm::prelude::*;

/// Operations of each machine.
const OPERATIONS: u64 = 300;
/// Keys of each machine.
const KEYS: u64 = 20;

/// A list, which begins with a node before all others.
#[derive(Clone, Copy)]
struct List {
    head: Address,
    /// An object of each machine: what is allocated near it lies there.
    anchors: [Address; 3],
}

/// A node: a key, and where the next node is.
#[derive(Clone, Copy)]
struct Node {
    key: u64,
    next: Address,
}

impl Node {
    const BYTES: usize = 16;

    fn of(tx: &Transaction, node: ObjectId) -> Result<Node, TxError> {
        let payload = tx.payload(node)?;
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("a word"));
        let next = Address::from_bits(word(8)).unwrap_or(Address::NULL);
        Ok(Node { key: word(0), next })
    }

    fn write(self, tx: &mut Transaction, node: ObjectId) -> Result<(), TxError> {
        let payload = tx.payload_mut(node)?;
        payload[..8].copy_from_slice(&self.key.to_le_bytes());
        payload[8..16].copy_from_slice(&self.next.to_bits().to_le_bytes());
        Ok(())
    }
}

impl List {
    /// The last node before a key, and the node of the key or of the first beyond it.
    async fn seek(
        &self,
        tx: &mut Transaction,
        key: u64,
    ) -> Result<(ObjectId, Option<ObjectId>), TxError> {
        let mut before = tx.read(self.head, Node::BYTES).await?;
        loop {
            let next = Node::of(tx, before)?.next;
            if next.is_null() {
                return Ok((before, None));
            }
            let node = tx.read(next, Node::BYTES).await?;
            ascends(tx, before, node)?;
            if Node::of(tx, node)?.key >= key {
                return Ok((before, Some(node)));
            }
            before = node;
        }
    }

    /// The node of a key, with the one before it.
    async fn find(
        &self,
        tx: &mut Transaction,
        key: u64,
    ) -> Result<(ObjectId, Option<ObjectId>), TxError> {
        let (before, node) = self.seek(tx, key).await?;
        let is_it = |node: &ObjectId| Node::of(tx, *node).is_ok_and(|node| node.key == key);
        Ok((before, node.filter(is_it)))
    }

    /// Whether the key was there.
    async fn contains(&self, farm: &Handle, key: u64) -> Result<bool, TxError> {
        farm.transact(async |tx| Ok(self.find(tx, key).await?.1.is_some()))
            .await
    }

    /// Puts a key in; false if it was there.
    async fn insert(&self, farm: &Handle, key: u64) -> Result<bool, TxError> {
        farm.transact(async |tx| {
            let (before, None) = self.find(tx, key).await? else {
                return Ok(false);
            };
            // The new node lies on a machine that its key picks, whoever inserts it.
            let anchor = self.anchors[key as usize / 3 % 3];
            let node = tx.alloc(Node::BYTES, Some(anchor)).await?;
            let Node { key: last, next } = Node::of(tx, before)?;
            Node { key, next }.write(tx, node)?;
            let next = tx.address(node)?;
            Node { key: last, next }.write(tx, before)?;
            Ok(true)
        })
        .await
    }

    /// Takes a key out, and frees its node; false if it was not there.
    async fn remove(&self, farm: &Handle, key: u64) -> Result<bool, TxError> {
        farm.transact(async |tx| {
            let (before, Some(node)) = self.find(tx, key).await? else {
                return Ok(false);
            };
            let Node { key: last, .. } = Node::of(tx, before)?;
            let Node { next, .. } = Node::of(tx, node)?;
            Node { key: last, next }.write(tx, before)?;
            tx.free(node)?;
            Ok(true)
        })
        .await
    }

    /// All keys, as they were at one moment.
    async fn keys(&self, farm: &Handle) -> Result<Vec<u64>, TxError> {
        farm.transact(async |tx| {
            let mut keys = Vec::new();
            let mut node = tx.read(self.head, Node::BYTES).await?;
            loop {
                let next = Node::of(tx, node)?.next;
                if next.is_null() {
                    return Ok(keys);
                }
                let before = node;
                node = tx.read(next, Node::BYTES).await?;
                ascends(tx, before, node)?;
                keys.push(Node::of(tx, node)?.key);
            }
        })
        .await
    }
}

/// What a transaction has read may be of different moments: the next node may have been freed since, and serve
/// another key. Who follows pointers must not go round in a circle then. To fail is enough: that the
/// reads do not fit together is found out, and the transaction is tried again.
fn ascends(tx: &Transaction, before: ObjectId, node: ObjectId) -> Result<(), TxError> {
    if Node::of(tx, before)?.key < Node::of(tx, node)?.key {
        Ok(())
    } else {
        Err(TxError::GivenUp)
    }
}

/// An object of zeroes on this machine: as a node, one without a next.
async fn new_object(farm: Handle) -> Result<Address, TxError> {
    farm.transact(async |tx| {
        let object = tx.alloc(Node::BYTES, None).await?;
        tx.address(object)
    })
    .await
}

/// Does what dice say with keys that nobody else touches, so that a set knows what each operation has to
/// say. The nodes around them others change all the time. Gives the set as it is at the end.
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
    // Three machines of one worker each; nothing else may run under this name.
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

    // All three at the same time.
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
    assert!(keys.iter().eq(&model), "the list is what the sets are");
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
