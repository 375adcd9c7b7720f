//! Random operations on a tree, compared with a sorted map.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::worker::Worker;
use farm_testing::TestCluster;
use farm_txn::Tx;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::edit::Work;
use crate::testing::{cluster, complete, in_transaction};

const LIMITS: Limits = Limits { page_bytes: 300 };

type Model = BTreeMap<Key, Vec<u8>>;

/// Checks the structure of a subtree: returns its keys and pages.
fn check_page(
    edit: &Edit<'_>,
    page: FatPointer,
    height: u8,
    (low, high): (Key, Key),
    leaves: &mut Vec<FatPointer>,
) -> Result<(), EditError> {
    let read = Page::new(edit.read(page)?)?;
    let largest = class_for_payload(LIMITS.page_bytes).unwrap();
    assert!(HEADER_BYTES + read.used() <= largest.payload_capacity());
    let records: Vec<_> = read.records().map(|record| record.unwrap()).collect();
    if height == 0 {
        assert!(records.is_sorted_by_key(|record| record.key));
        for record in &records {
            assert!(low <= record.key && record.key < high);
        }
        leaves.push(page);
        return Ok(());
    }
    assert!(!records.is_empty());
    for (index, record) in records.iter().enumerate() {
        let from = if index == 0 { low } else { record.key };
        let to = records.get(index + 1).map_or(high, |next| next.key);
        assert!(low <= from && from < to && to <= high);
        check_page(edit, pointer(record.body)?, height - 1, (from, to), leaves)?;
    }
    Ok(())
}

fn check(edit: &Edit<'_>, tree: &Tree, model: &Model) -> Result<usize, EditError> {
    let mut leaves = Vec::new();
    let all = ((0, 0), (u64::MAX, u64::MAX));
    check_page(edit, tree.root, tree.height, all, &mut leaves)?;
    assert_eq!(Some(leaves[0]), tree.first);
    for leaf in &leaves {
        let count = Page::new(edit.read(*leaf)?)?.count();
        assert!(count > 0 || leaves.len() == 1, "an empty leaf is freed");
        let has_more = Page::new(edit.read(*leaf)?)?.has_more();
        // The last leaf may have been freed without a change of the one before it.
        assert!(has_more || leaf == leaves.last().unwrap());
        assert!(leaves.len() > 1 || !has_more);
    }
    let mut records = Vec::new();
    tree.scan(edit, (0, 0), Wanted::Exactly(u64::MAX), |record| {
        records.push((record.key, record.body.to_vec()));
        Ok(ControlFlow::Continue(()))
    })?;
    assert!(records.iter().map(|(key, body)| (key, body)).eq(model));
    Ok(leaves.len())
}

#[derive(Clone, Debug)]
enum Op {
    Put(Key, Vec<u8>),
    Remove(Key),
    Find(Key),
    Scan(Key),
}

fn apply(edit: &mut Edit<'_>, tree: &mut Tree, op: &Op, model: &Model) -> Result<(), EditError> {
    match op {
        Op::Put(key, body) => tree.put(edit, LIMITS, *key, body),
        Op::Remove(key) => {
            let removed = tree.remove(edit, LIMITS, *key)?;
            assert_eq!(removed, model.contains_key(key));
            Ok(())
        }
        Op::Find(key) => {
            let found = tree.find(edit, *key)?.map(|record| record.body.to_vec());
            assert_eq!(found.as_ref(), model.get(key));
            Ok(())
        }
        Op::Scan(from) => {
            let mut found = Vec::new();
            tree.scan(edit, *from, Wanted::AtMost(3), |record| {
                found.push(record.key);
                let enough = found.len() == 7;
                Ok(if enough {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
            assert!(
                found
                    .iter()
                    .eq(model.range(from..).map(|(key, _)| key).take(7))
            );
            Ok(())
        }
    }
}

/// Draws an operation. In the first half of the test most operations insert, and in the second half most remove.
fn draw(rng: &mut Xoshiro256PlusPlus, grows: bool) -> Op {
    let key = (rng.random_range(0..40), rng.random_range(0..20));
    let longest = LIMITS.max_body();
    match rng.random_range(0..100) {
        0..10 => Op::Find(key),
        10..15 => Op::Scan(key),
        drawn if (drawn < 70) == grows => Op::Put(key, vec![1; rng.random_range(0..=longest)]),
        _ => Op::Remove(key),
    }
}

/// Makes operations in one transaction, and commits it. Returns the tree and its number of leaves.
fn batch(cluster: &TestCluster, tree: Option<Tree>, ops: Vec<Op>, model: Model) -> (Tree, usize) {
    let (tree, leaves, _) = in_transaction(cluster, move |worker: &mut Worker, tx: &mut Tx| {
        let mut work = Work::default();
        let mut model = model.clone();
        let near = tree.map_or(Address::NULL, |tree| tree.root.address);
        let mut tree = tree.unwrap_or_else(|| {
            let created = complete(worker, tx, &mut work, near, |edit| {
                Tree::create(edit, LIMITS, (0, 0), &[])
            });
            model.insert((0, 0), Vec::new());
            created
        });
        for op in &ops {
            tree = complete(worker, tx, &mut work, near, |edit| {
                let mut changed = tree;
                apply(edit, &mut changed, op, &model)?;
                Ok(changed)
            });
            match op {
                Op::Put(key, body) => _ = model.insert(*key, body.clone()),
                Op::Remove(key) => _ = model.remove(key),
                Op::Find(_) | Op::Scan(_) => {}
            }
        }
        let leaves = complete(worker, tx, &mut work, near, |edit| {
            check(edit, &tree, &model)
        });
        (tree, leaves, ())
    });
    (tree, leaves)
}

#[test]
fn a_tree_is_a_sorted_map() {
    let cluster = cluster("graph-tree", 1);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(18);
    let (mut model, mut tree) = (Model::new(), None);
    let (mut most, mut highest) = (0, 0);
    for round in 0..120 {
        let ops: Vec<_> = (0..40).map(|_| draw(&mut rng, round % 60 < 30)).collect();
        let (after, leaves) = batch(&cluster, tree, ops.clone(), model.clone());
        if tree.is_none() {
            model.insert((0, 0), Vec::new());
        }
        for op in ops {
            match op {
                Op::Put(key, body) => _ = model.insert(key, body),
                Op::Remove(key) => _ = model.remove(&key),
                Op::Find(_) | Op::Scan(_) => {}
            }
        }
        tree = Some(after);
        (most, highest) = (most.max(leaves), highest.max(after.height));
    }
    assert!(most > 60 && highest >= 2, "{most} leaves, height {highest}");
    // All records are removed. The tree shrinks to one empty page.
    let mut ops: Vec<_> = model.keys().map(|key| Op::Remove(*key)).collect();
    while !ops.is_empty() {
        let rest = ops.split_off(ops.len().min(40));
        (tree, _) = {
            let (after, leaves) = batch(&cluster, tree, ops.clone(), model.clone());
            (Some(after), leaves)
        };
        for op in ops {
            if let Op::Remove(key) = op {
                model.remove(&key);
            }
        }
        ops = rest;
    }
    let tree = tree.unwrap();
    assert_eq!((tree.height, Some(tree.root)), (0, tree.first));
    let left = in_transaction(&cluster, move |worker, tx| {
        let mut work = Work::default();
        complete(worker, tx, &mut work, tree.root.address, |edit| {
            tree.free(edit)
        });
        farm_txn::left_over(worker)
    });
    assert_eq!(left, None);
    cluster.stop();
}

/// The first record of an inner page covers all smaller keys. When the first child of an inner page had been freed, the
/// first record that remained had a key greater than keys that its child got later. If that child was split, the
/// record of its right half came before the record of its left half, so that records were not found any more, or the
/// split failed because the page had a record with that key. A merge of two inner pages had the same error. Lists get
/// new associations at their beginning, and these are deleted first, too.
#[test]
fn records_are_found_after_the_first_leaf_was_freed_and_filled_again() {
    let cluster = cluster("graph-tree-front", 1);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(19);
    let (mut model, mut tree) = (Model::new(), None);
    let mut highest = 0;
    for round in 0..200u64 {
        let low = model.keys().next().map_or(1 << 32, |key| key.0);
        let put = |rng: &mut Xoshiro256PlusPlus| {
            let key = (low + rng.random_range(0..9) - 8, rng.random_range(0..9));
            Op::Put(key, vec![1; rng.random_range(0..=LIMITS.max_body())])
        };
        let ops: Vec<_> = match round % 7 {
            0..4 => (0..30).map(|_| put(&mut rng)).collect(),
            4 | 5 => model.keys().take(25).map(|key| Op::Remove(*key)).collect(),
            _ => (0..40)
                .map(|_| Op::Remove(drawn(&mut rng, &model)))
                .collect(),
        };
        let (after, _) = batch(&cluster, tree, ops.clone(), model.clone());
        if tree.is_none() {
            model.insert((0, 0), Vec::new());
        }
        for op in ops {
            match op {
                Op::Put(key, body) => _ = model.insert(key, body),
                Op::Remove(key) => _ = model.remove(&key),
                Op::Find(_) | Op::Scan(_) => {}
            }
        }
        if round == 0 {
            let (first, _) = batch(
                &cluster,
                Some(after),
                vec![Op::Remove((0, 0))],
                model.clone(),
            );
            model.remove(&(0, 0));
            tree = Some(first);
        } else {
            tree = Some(after);
        }
        highest = highest.max(after.height);
    }
    assert!(highest >= 2, "height {highest}");
    cluster.stop();
}

/// Returns a key of the model.
fn drawn(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Key {
    let at = rng.random_range(0..model.len());
    *model.keys().nth(at).unwrap()
}

#[test]
fn an_edit_that_lacks_an_object_has_changed_nothing() {
    let cluster = cluster("graph-edits", 1);
    in_transaction(&cluster, |worker, tx| {
        let mut work = Work::default();
        let mut tree = complete(worker, tx, &mut work, Address::NULL, |edit| {
            Tree::create(edit, LIMITS, (0, 0), &[5; 40])
        });
        for number in 1..50 {
            let mut attempts = 0;
            let before = tx.len();
            tree = complete(worker, tx, &mut work, tree.root.address, |edit| {
                attempts += 1;
                let mut changed = tree;
                changed.put(edit, LIMITS, (number, 0), &[5; 40])?;
                Ok(changed)
            });
            assert_eq!(
                tx.len() - before,
                attempts - 1,
                "each attempt lacked one object"
            );
        }
    });
    cluster.stop();
}

/// Scans a tree in a new transaction, which has to read all pages. Returns the number of attempts, the
/// number of objects read, and the number of records.
fn scan_anew(cluster: &TestCluster, tree: Tree, wanted: Wanted) -> (u32, usize, u64) {
    in_transaction(cluster, move |worker: &mut Worker, tx: &mut Tx| {
        let mut work = Work::default();
        let (mut attempts, mut found) = (0, 0);
        complete(worker, tx, &mut work, tree.root.address, |edit| {
            attempts += 1;
            found = 0;
            let (Wanted::Exactly(records) | Wanted::AtMost(records)) = wanted;
            tree.scan(edit, (0, 0), wanted, |_| {
                found += 1;
                Ok(match found < records {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                })
            })
        });
        (attempts, tx.len(), found)
    })
}

/// A scan that began again for each leaf took seconds for a list of ten thousand associations.
#[test]
fn a_long_scan_begins_again_only_a_few_times() {
    let cluster = cluster("graph-scan", 1);
    let limits = Limits { page_bytes: 1024 };
    let tree = in_transaction(&cluster, move |worker: &mut Worker, tx: &mut Tx| {
        let mut work = Work::default();
        complete(worker, tx, &mut work, Address::NULL, |edit| {
            let mut tree = Tree::create(edit, limits, (0, 0), &[])?;
            for key in 1..3000 {
                tree.put(edit, limits, (key, 0), &[1; 16])?;
            }
            Ok(tree)
        })
    });
    let (attempts, objects, found) = scan_anew(&cluster, tree, Wanted::AtMost(3000));
    assert_eq!((attempts, objects, found), (31, 213, 3000));
    let (attempts, objects, found) = scan_anew(&cluster, tree, Wanted::AtMost(200));
    assert_eq!((attempts, objects, found), (7, 16, 200));
    let (attempts, objects, found) = scan_anew(&cluster, tree, Wanted::Exactly(200));
    assert_eq!((attempts, objects, found), (5, 16, 200));
    cluster.stop();
}
