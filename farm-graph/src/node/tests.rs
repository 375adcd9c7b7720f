//! Random operations on a node and its lists, compared with a plain model.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use farm_core::ids::Address;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::assoc::{Assoc, MAX_TIME};
use crate::edit::Work;
use crate::list::{Put, TimeBounds};
use crate::testing::{cluster, complete, in_transaction, large_machine};

/// Small pages, so that few associations make a tree.
const SMALL: Limits = Limits { page_bytes: 400 };
const ROOM: u8 = 2;

#[derive(Clone, Debug)]
enum Op {
    Put(u32, u64, u64, bool, Vec<u8>),
    Hide(u32, u64),
    Remove(u32, u64),
    Set(Vec<u8>),
    Delete,
}

/// An association of the model: time, visibility and data.
type Stored = (u64, bool, Vec<u8>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    data: Option<Vec<u8>>,
    lists: BTreeMap<u32, BTreeMap<u64, Stored>>,
    /// Number of changes of each count.
    versions: BTreeMap<u32, u64>,
}

impl Model {
    fn apply(&mut self, op: &Op) {
        let (assoc_type, before) = match op {
            Op::Put(assoc_type, ..) | Op::Hide(assoc_type, _) | Op::Remove(assoc_type, _) => {
                (*assoc_type, self.visible(*assoc_type).len())
            }
            Op::Set(data) => return self.data = Some(data.clone()),
            Op::Delete => return self.data = None,
        };
        let list = self.lists.entry(assoc_type).or_default();
        match op {
            Op::Put(_, id2, time, visible, data) => {
                list.insert(*id2, (*time, *visible, data.clone()));
            }
            Op::Hide(_, id2) => {
                if let Some(stored) = list.get_mut(id2) {
                    stored.1 = false;
                }
            }
            Op::Remove(_, id2) => _ = list.remove(id2),
            Op::Set(_) | Op::Delete => {}
        }
        if self.visible(assoc_type).len() != before {
            *self.versions.entry(assoc_type).or_default() += 1;
        }
    }

    /// Returns the visible associations, in the order of lists.
    fn visible(&self, assoc_type: u32) -> Vec<(u64, u64, Vec<u8>)> {
        let list = self.lists.get(&assoc_type).into_iter().flatten();
        let visible = list.filter(|(_, stored)| stored.1);
        let mut all: Vec<_> = visible
            .map(|(id2, (time, _, data))| (*time, *id2, data.clone()))
            .collect();
        all.sort_by_key(|(time, id2, _)| (MAX_TIME - time, *id2));
        all
    }
}

fn apply(edit: &mut Edit<'_>, node: FatPointer, op: &Op, model: &Model) -> Result<(), EditError> {
    match op {
        Op::Put(assoc_type, id2, time, visible, data) => {
            let mut list = list(edit, node, *assoc_type)?;
            let assoc = Assoc {
                id2: *id2,
                time: *time,
                version: 3,
                visible: *visible,
                target: id2.is_multiple_of(3).then_some(node),
                data,
            };
            let put = list.put(edit, SMALL, &assoc, *time)?;
            let old = model.lists.get(assoc_type).and_then(|list| list.get(id2));
            let expected = match old {
                None => Put::Added,
                Some((_, true, _)) => Put::Updated,
                Some(_) => Put::Shown,
            };
            assert_eq!(put, expected);
            set_list(edit, SMALL, node, *assoc_type, &list)
        }
        Op::Hide(assoc_type, id2) | Op::Remove(assoc_type, id2) => {
            let mut list = list(edit, node, *assoc_type)?;
            let old = model.lists.get(assoc_type).and_then(|list| list.get(id2));
            if let Op::Hide(..) = op {
                let hidden = list.hide(edit, SMALL, *id2, 1)?;
                assert_eq!(hidden, old.is_some_and(|stored| stored.1));
            } else {
                assert_eq!(list.remove(edit, SMALL, *id2, 1)?, old.is_some());
            }
            set_list(edit, SMALL, node, *assoc_type, &list)
        }
        Op::Set(data) => {
            let new = NodeData {
                node_type: 2,
                version: data.len() as u64,
                time: 5,
                data,
            };
            set(edit, node, &new)
        }
        Op::Delete => {
            assert_eq!(delete(edit, node)?, model.data.is_some());
            Ok(())
        }
    }
}

/// Compares a node with the model.
fn check(
    edit: &Edit<'_>,
    node: FatPointer,
    model: &Model,
    bounds: TimeBounds,
) -> Result<(), EditError> {
    let header = header(edit, node)?;
    assert_eq!((header.exists(), header.id), (model.data.is_some(), 77));
    if let Some(expected) = &model.data {
        assert_eq!(data(edit, node)?, expected);
    }
    for (assoc_type, stored) in &model.lists {
        let list = list(edit, node, *assoc_type)?;
        let visible = model.visible(*assoc_type);
        let counts = (list.count as usize, list.total as usize, list.version);
        let version = model.versions.get(assoc_type).copied().unwrap_or_default();
        assert_eq!(counts, (visible.len(), stored.len(), version));
        let mut found = Vec::new();
        list.scan(edit, bounds, Wanted::AtMost(1), |assoc| {
            found.push((assoc.time, assoc.id2, assoc.data.to_vec()));
            ControlFlow::Continue(())
        })?;
        let within: Vec<_> = visible
            .into_iter()
            .filter(|it| bounds.contains(it.0))
            .collect();
        assert_eq!(found, within);
        for id2 in 0..60 {
            let found = list.get(edit, id2)?;
            let found = found.map(|it| (it.time, it.visible, it.data.to_vec()));
            assert_eq!(found.as_ref(), stored.get(&id2));
        }
    }
    Ok(())
}

fn draw(rng: &mut Xoshiro256PlusPlus, grows: bool) -> Op {
    let assoc_type = rng.random_range(0..10_u32).pow(2) / 12;
    let id2 = rng.random_range(0..60);
    let bytes = |rng: &mut Xoshiro256PlusPlus, most| vec![9; rng.random_range(0..most)];
    match rng.random_range(0..100) {
        0..3 => Op::Delete,
        3..8 => Op::Set(bytes(rng, 3000)),
        drawn if (drawn < 70) == grows => {
            let time = rng.random_range(0..30);
            let visible = rng.random_range(0..10) > 0;
            Op::Put(assoc_type, id2, time, visible, bytes(rng, 40))
        }
        drawn if drawn % 2 == 0 => Op::Hide(assoc_type, id2),
        _ => Op::Remove(assoc_type, id2),
    }
}

#[test]
fn a_node_and_its_lists_are_as_in_the_model() {
    let cluster = cluster("graph-node", 1);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(19);
    let node = in_transaction(&cluster, |worker, tx| {
        complete(worker, tx, &mut Work::default(), Address::NULL, |edit| {
            create(edit, 77, ROOM, None)
        })
    });
    let mut model = Model::default();
    for round in 0..150 {
        let ops: Vec<_> = (0..20).map(|_| draw(&mut rng, round % 60 < 40)).collect();
        let min = rng.random_range(0..30);
        let bounds = match round % 2 {
            0 => TimeBounds::default(),
            _ => TimeBounds {
                min,
                max: min + rng.random_range(0..10),
            },
        };
        let before = model.clone();
        model = in_transaction(&cluster, move |worker, tx| {
            let (mut work, mut model) = (Work::default(), before);
            for op in &ops {
                complete(worker, tx, &mut work, node.address, |edit| {
                    apply(edit, node, op, &model)
                });
                model.apply(op);
            }
            complete(worker, tx, &mut work, node.address, |edit| {
                check(edit, node, &model, bounds)
            });
            model
        });
    }
    assert!(
        model.lists.len() > usize::from(ROOM),
        "the lists are in a tree"
    );
    cluster.stop();
}

/// Returns the number of objects of the transactions that add, read, and hide an association of a node that has
/// `degree` associations.
fn objects_touched(degree: u64) -> [usize; 3] {
    const LIMITS: Limits = Limits { page_bytes: 8192 };
    let cluster = large_machine(&format!("graph-degree-{degree}"));
    let node = in_transaction(&cluster, |worker, tx| {
        complete(worker, tx, &mut Work::default(), Address::NULL, |edit| {
            create(edit, 77, ROOM, None)
        })
    });
    let add = move |edit: &mut Edit<'_>, id2: u64| {
        let mut list = list(edit, node, 1)?;
        let assoc = Assoc {
            // Neither ascending nor descending.
            id2: id2.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            time: id2,
            version: 0,
            visible: true,
            target: None,
            data: &[1; 13],
        };
        list.put(edit, LIMITS, &assoc, 1)?;
        set_list(edit, LIMITS, node, 1, &list)
    };
    for from in (0..degree).step_by(100) {
        in_transaction(&cluster, move |worker, tx| {
            let mut work = Work::default();
            for id2 in from..degree.min(from + 100) {
                complete(worker, tx, &mut work, node.address, |edit| add(edit, id2));
            }
        });
    }
    let middle = (degree / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let of_middle = move |edit: &mut Edit<'_>, hides: bool| {
        let mut list = list(edit, node, 1)?;
        assert!(list.get(edit, middle)?.is_some());
        if hides {
            assert!(list.hide(edit, LIMITS, middle, 1)?);
        }
        set_list(edit, LIMITS, node, 1, &list)
    };
    [0, 1, 2].map(|op| {
        in_transaction(&cluster, move |worker, tx| {
            complete(
                worker,
                tx,
                &mut Work::default(),
                node.address,
                |edit| match op {
                    0 => add(edit, degree),
                    1 => of_middle(edit, false),
                    _ => of_middle(edit, true),
                },
            );
            tx.len()
        })
    })
}

#[test]
fn the_objects_of_an_operation_grow_with_the_logarithm_of_the_degree() {
    // The node and the page.
    assert_eq!(objects_touched(10), [2, 2, 2]);
    // The node, the first page, and three levels of the index. An association that is not in the first page needs the
    // root of the tree and its leaf, too, and hiding it another leaf for its new place.
    assert_eq!(objects_touched(10_000), [5, 7, 8]);
    // One level more of the index and of the tree.
    assert_eq!(objects_touched(1_000_000), [6, 9, 11]);
}
