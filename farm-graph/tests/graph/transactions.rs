//! Operations inside of transactions.

use std::collections::BTreeMap;

use farm_core::object::FatPointer;
use farm_graph::ids::Place;
use farm_graph::tasks::{self, OwnedAssoc, OwnedNode};
use farm_graph::tx::{Deletion, Range};
use farm_graph::{Count, Found, GraphError, NodeData, Put, Read, Results, TimeBounds};
use farm_txn::{Handle, Transaction, TxError, block_on};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::common::{
    CHILD, FRIEND, LINK, PARENT, PERSON, PLAIN, SPOUSE, assoc, cluster, people, person,
};

const TYPES: [u32; 5] = [PLAIN, PARENT, CHILD, FRIEND, SPOUSE];

fn inverse(assoc_type: u32) -> Option<u32> {
    match assoc_type {
        PARENT => Some(CHILD),
        CHILD => Some(PARENT),
        FRIEND => Some(FRIEND),
        _ => None,
    }
}

#[test]
fn a_transaction_sees_its_own_changes_and_others_see_all_of_them_or_none() {
    let cluster = cluster("graph-own-changes", 2, 1024);
    let (ann, bob) = block_on(&cluster.machines[0], 0, async |farm: Handle| {
        let tx = farm.begin().await.unwrap();
        let ann = tasks::obj_add(*tx, Place::default(), person(b"Ann")).await?;
        let given = Place {
            id: Some(77),
            near: None,
        };
        let bob = tasks::obj_add(*tx, given, person(b"Bob")).await?;
        assert_eq!(bob.id, 77);
        let put = assoc(77, 5, Some(bob.node), b"met at sea");
        assert_eq!(
            tasks::assoc_add(*tx, ann.node, FRIEND, put, 5).await?,
            Put::Added
        );
        let found = tasks::assoc_range(*tx, bob.node, FRIEND, Range::newest(9)).await?;
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id2, found[0].target), (ann.id, Some(ann.node)));
        assert_eq!(found[0].data, b"met at sea");
        tx.commit().await?;
        Ok::<_, TxError>((ann, bob))
    })
    .unwrap()
    .unwrap();
    block_on(&cluster.machines[1], 0, async move |farm: Handle| {
        let tx = farm.begin().await.unwrap();
        assert_eq!(tasks::obj_find(*tx, ann.id).await?, Some(ann.node));
        assert_eq!(tasks::obj_find(*tx, 78).await?, None);
        let found = tasks::obj_get(*tx, ann.node).await?.unwrap();
        assert_eq!(
            (found.id, found.node_type, &found.data[..]),
            (ann.id, PERSON, &b"Ann"[..])
        );
        // Dropped without a commit.
        assert!(tasks::obj_delete(*tx, bob.node).await?);
        assert_eq!(tasks::obj_get(*tx, bob.node).await?, None);
        drop(tx);
        let tx = farm.begin().await.unwrap();
        assert!(tasks::obj_get(*tx, bob.node).await?.is_some());
        tx.commit().await
    })
    .unwrap()
    .unwrap();
    cluster.stop();
}

/// An association of a node with itself, of a type that is its own inverse, was written twice by one operation. The result
/// was that of the second write: an update of a visible association, or a deletion of one that did not exist.
#[test]
fn an_association_of_a_node_with_itself_is_written_once() {
    let cluster = cluster("graph-self", 1, 1024);
    block_on(&cluster.machines[0], 0, async |farm: Handle| {
        let tx = farm.begin().await.unwrap();
        let ann = tasks::obj_add(*tx, Place::default(), person(b"Ann")).await?;
        let own = assoc(ann.id, 1, Some(ann.node), b"");
        for expected in [Put::Added, Put::Updated] {
            let put = tasks::assoc_add(*tx, ann.node, FRIEND, own, 1).await?;
            assert_eq!(put, expected);
        }
        assert_eq!(tasks::assoc_count(*tx, ann.node, FRIEND).await?.count, 1);
        let which = (FRIEND, ann.id);
        for deletion in [Deletion::Hide, Deletion::Remove] {
            let deleted = tasks::assoc_delete(*tx, ann.node, which, deletion, 2).await?;
            assert!(deleted, "{deletion:?}");
            let again = tasks::assoc_delete(*tx, ann.node, which, deletion, 2).await?;
            assert!(!again, "{deletion:?}");
        }
        // Two lists of one node.
        tasks::assoc_add(*tx, ann.node, PARENT, own, 3).await?;
        for assoc_type in [PARENT, CHILD] {
            let found = tasks::assoc_range(*tx, ann.node, assoc_type, Range::newest(9)).await?;
            assert_eq!(found.len(), 1);
        }
        tx.commit().await
    })
    .unwrap()
    .unwrap();
    cluster.stop();
}

/// Returns the error of an operation that is refused, and checks that it changed nothing in its transaction.
macro_rules! refused {
    ($tx:ident, $operation:expr) => {{
        let error = $operation.await.unwrap_err();
        GraphError::from(error)
    }};
}

#[test]
fn wrong_operations_are_refused_and_change_nothing() {
    let cluster = cluster("graph-refusals", 2, 1024);
    block_on(&cluster.machines[0], 0, async |farm: Handle| {
        let tx = farm.begin().await.unwrap();
        let ann = tasks::obj_add(*tx, Place::default(), person(b"Ann"))
            .await?
            .node;
        let given = Place {
            id: Some(8),
            near: None,
        };
        let bob = tasks::obj_add(*tx, given, person(b"Bob")).await?.node;
        tx.commit().await?;

        let tx = farm.begin().await.unwrap();
        let taken = refused!(tx, tasks::obj_add(*tx, given, person(b"Carl")));
        assert!(matches!(taken, GraphError::IdTaken(8)), "{taken}");
        let other = NodeData {
            node_type: 6,
            ..person(b"")
        };
        let unknown = refused!(tx, tasks::obj_add(*tx, Place::default(), other));
        assert!(matches!(unknown, GraphError::NodeType(6)), "{unknown}");
        let unknown = refused!(tx, tasks::obj_update(*tx, ann, other));
        assert!(matches!(unknown, GraphError::NodeType(6)), "{unknown}");
        let unknown = refused!(tx, tasks::assoc_count(*tx, ann, 99));
        assert!(matches!(unknown, GraphError::AssocType(99)), "{unknown}");
        let late = assoc(8, u64::MAX, None, b"");
        let late = refused!(tx, tasks::assoc_add(*tx, ann, PLAIN, late, 1));
        assert!(matches!(late, GraphError::Time(u64::MAX)), "{late}");
        let long = vec![1; 1024];
        let long = assoc(8, 1, None, &long);
        let long = refused!(tx, tasks::assoc_add(*tx, ann, PLAIN, long, 1));
        assert!(
            matches!(long, GraphError::TooLong { bytes: 1024, .. }),
            "{long}"
        );
        let long = vec![1; farm_graph::MAX_NODE_BYTES + 1];
        let long = refused!(tx, tasks::obj_update(*tx, ann, person(&long)));
        assert!(matches!(long, GraphError::TooLong { .. }), "{long}");
        let blind = assoc(8, 1, None, b"");
        let blind = refused!(tx, tasks::assoc_add(*tx, ann, FRIEND, blind, 1));
        assert!(matches!(blind, GraphError::NoTarget(FRIEND)), "{blind}");
        let mixed = refused!(
            tx,
            tasks::assoc_change_type(*tx, ann, (FRIEND, PLAIN), 8, 1)
        );
        assert!(
            matches!(mixed, GraphError::Inverse(FRIEND, PLAIN)),
            "{mixed}"
        );
        tasks::assoc_add(*tx, ann, SPOUSE, assoc(8, 1, None, b""), 1).await?;
        let second = assoc(9, 1, None, b"");
        let second = refused!(tx, tasks::assoc_add(*tx, ann, SPOUSE, second, 1));
        assert!(matches!(second, GraphError::NotUnique(SPOUSE)), "{second}");
        assert!(tasks::obj_delete(*tx, bob).await?);
        let gone = assoc(8, 1, Some(bob), b"");
        let gone = refused!(tx, tasks::assoc_add(*tx, ann, FRIEND, gone, 1));
        assert!(matches!(gone, GraphError::NoNode), "{gone}");
        assert!(!tasks::obj_restore(*tx, ann, person(b"no")).await?);
        assert!(tasks::obj_restore(*tx, bob, person(b"again")).await?);
        assert_eq!(tasks::obj_get(*tx, bob).await?.unwrap().data, b"again");
        let reserved = tasks::obj_reserve(*tx, Place::default(), PERSON).await?;
        assert_eq!(tasks::obj_get(*tx, reserved.node).await?, None);
        let link = assoc(8, 1, None, b"");
        tasks::assoc_add(*tx, reserved.node, LINK, link, 1).await?;
        assert_eq!(tasks::assoc_count(*tx, reserved.node, LINK).await?.count, 1);
        let counts = [PLAIN, FRIEND, SPOUSE];
        for (assoc_type, count) in counts.into_iter().zip([0, 0, 1]) {
            assert_eq!(tasks::assoc_count(*tx, ann, assoc_type).await?.count, count);
        }
        assert_eq!(tasks::obj_get(*tx, ann).await?.unwrap().data, b"Ann");
        tx.commit().await
    })
    .unwrap()
    .unwrap();
    cluster.stop();
}

/// An association of the model: time, visibility, data.
type Stored = (u64, bool, Vec<u8>);

/// The graph as the test expects it.
#[derive(Clone, Debug, Default)]
struct Model {
    assocs: BTreeMap<(usize, u32), BTreeMap<u64, Stored>>,
}

impl Model {
    fn list(&mut self, node: usize, assoc_type: u32) -> &mut BTreeMap<u64, Stored> {
        self.assocs.entry((node, assoc_type)).or_default()
    }

    fn apply(&mut self, nodes: &[(u64, FatPointer)], change: &Change) {
        let id = |node: usize| nodes[node].0;
        match change {
            Change::Put(from, to, assoc_type, time, data) => {
                let stored = (*time, true, data.clone());
                self.list(*from, *assoc_type)
                    .insert(id(*to), stored.clone());
                if let Some(inverse) = inverse(*assoc_type) {
                    self.list(*to, inverse).insert(id(*from), stored);
                }
            }
            Change::Delete(from, to, assoc_type, deletion) => {
                let one = |list: &mut BTreeMap<u64, Stored>, id2| match deletion {
                    Deletion::Remove => _ = list.remove(&id2),
                    Deletion::Hide => {
                        if let Some(stored) = list.get_mut(&id2) {
                            stored.1 = false;
                        }
                    }
                };
                one(self.list(*from, *assoc_type), id(*to));
                if let Some(inverse) = inverse(*assoc_type) {
                    one(self.list(*to, inverse), id(*from));
                }
            }
            Change::Retype(from, to, old, new) => {
                let list = self.list(*from, *old);
                let Some(stored) = list.get(&id(*to)).filter(|stored| stored.1).cloned() else {
                    return;
                };
                let remove = Change::Delete(*from, *to, *old, Deletion::Remove);
                self.apply(nodes, &remove);
                self.apply(nodes, &Change::Put(*from, *to, *new, stored.0, stored.2));
            }
        }
    }

    /// Returns the visible associations of a list, the newest first.
    fn visible(&self, node: usize, assoc_type: u32) -> Vec<(u64, u64, Vec<u8>)> {
        let list = self.assocs.get(&(node, assoc_type)).into_iter().flatten();
        let visible = list.filter(|(_, stored)| stored.1);
        let mut all: Vec<_> = visible
            .map(|(id2, (time, _, data))| (*time, *id2, data.clone()))
            .collect();
        all.sort_by_key(|(time, id2, _)| (std::cmp::Reverse(*time), *id2));
        all
    }
}

#[derive(Clone, Debug)]
enum Change {
    Put(usize, usize, u32, u64, Vec<u8>),
    Delete(usize, usize, u32, Deletion),
    Retype(usize, usize, u32, u32),
}

fn draw(rng: &mut Xoshiro256PlusPlus, nodes: usize) -> Change {
    let [from, to] = [(); 2].map(|()| rng.random_range(0..nodes));
    let assoc_type = TYPES[rng.random_range(0..4)];
    match rng.random_range(0..10) {
        0..6 => {
            let data = vec![from as u8; rng.random_range(0..60)];
            Change::Put(from, to, assoc_type, rng.random_range(0..50), data)
        }
        6 => Change::Delete(from, to, assoc_type, Deletion::Hide),
        7 | 8 => Change::Delete(from, to, assoc_type, Deletion::Remove),
        _ if assoc_type == PLAIN => Change::Retype(from, to, PLAIN, PLAIN),
        _ => Change::Retype(from, to, assoc_type, TYPES[rng.random_range(1..4)]),
    }
}

/// Makes changes in one transaction.
async fn make(
    farm: &Handle,
    nodes: &[(u64, FatPointer)],
    changes: &[Change],
) -> Result<(), TxError> {
    let tx = farm.begin().await.unwrap();
    for change in changes {
        match change {
            Change::Put(from, to, assoc_type, time, data) => {
                let new = assoc(nodes[*to].0, *time, Some(nodes[*to].1), data);
                tasks::assoc_add(*tx, nodes[*from].1, *assoc_type, new, 9).await?;
            }
            Change::Delete(from, to, assoc_type, deletion) => {
                let which = (*assoc_type, nodes[*to].0);
                tasks::assoc_delete(*tx, nodes[*from].1, which, *deletion, 9).await?;
            }
            Change::Retype(from, to, old, new) => {
                let types = (*old, *new);
                tasks::assoc_change_type(*tx, nodes[*from].1, types, nodes[*to].0, 9).await?;
            }
        }
    }
    tx.commit().await
}

/// Compares all lists with the model, in one transaction.
/// Checks that reads at the same time find the same as reads one after the other. Every other call is the first access
/// of the transaction to the objects.
async fn compare_all(
    tx: Transaction<'_>,
    nodes: &[(u64, FatPointer)],
    ids: &[u64],
    range: Range,
) -> Result<(), TxError> {
    let bounds = range.bounds;
    let reads: Vec<(FatPointer, Read<'_>)> = nodes
        .iter()
        .flat_map(|(_, node)| {
            let of_type = |it| {
                [
                    Read::Range(it, range),
                    Read::Assocs(it, ids, bounds),
                    Read::Count(it),
                ]
            };
            let lists = TYPES.into_iter().flat_map(of_type);
            lists.chain([Read::Node]).map(|read| (*node, read))
        })
        .collect();
    let copy = |results: Results<'_>| -> Vec<Owned> {
        let copied = results.iter().map(|found| match found {
            Found::Node(node) => Owned::Node(node.map(OwnedNode::from)),
            Found::Count(count) => Owned::Count(count),
            Found::Assocs(assocs) => Owned::Assocs(assocs.iter().map(OwnedAssoc::from).collect()),
        });
        copied.collect()
    };
    let found = tasks::read_all(tx, &reads, copy).await?;
    assert_eq!(found.len(), reads.len());
    for ((node, read), found) in reads.iter().zip(found) {
        let expected = match *read {
            Read::Node => Owned::Node(tasks::obj_get(tx, *node).await?),
            Read::Count(it) => Owned::Count(tasks::assoc_count(tx, *node, it).await?),
            Read::Assocs(it, ids, bounds) => {
                Owned::Assocs(tasks::assoc_get(tx, *node, it, ids, bounds).await?)
            }
            Read::Range(it, range) => {
                Owned::Assocs(tasks::assoc_range(tx, *node, it, range).await?)
            }
        };
        assert_eq!(found, expected, "{read:?} of {node:?}");
    }
    Ok(())
}

/// The result of a read.
#[derive(Debug, PartialEq)]
enum Owned {
    Node(Option<OwnedNode>),
    Count(Count),
    Assocs(Vec<OwnedAssoc>),
}

async fn compare(
    farm: &Handle,
    nodes: &[(u64, FatPointer)],
    model: &Model,
    range: Range,
) -> Result<(), TxError> {
    let tx = farm.begin().await.unwrap();
    let ids: Vec<u64> = nodes.iter().map(|node| node.0).collect();
    compare_all(*tx, nodes, &ids, range).await?;
    for (index, (_, node)) in nodes.iter().enumerate() {
        for assoc_type in TYPES {
            let expected = model.visible(index, assoc_type);
            let count = tasks::assoc_count(*tx, *node, assoc_type).await?.count;
            assert_eq!(count as usize, expected.len());
            let found = tasks::assoc_range(*tx, *node, assoc_type, range).await?;
            let key = |it: &OwnedAssoc| (it.time, it.id2, it.data.clone());
            let within = expected.iter().filter(|it| range.bounds.contains(it.0));
            let page = within
                .skip(range.offset as usize)
                .take(range.limit as usize);
            assert!(found.iter().map(key).eq(page.cloned()));
            let bounds = TimeBounds::default();
            let got = tasks::assoc_get(*tx, *node, assoc_type, &ids, bounds).await?;
            let list = model.assocs.get(&(index, assoc_type)).cloned();
            let found: BTreeMap<_, _> = got
                .into_iter()
                .map(|it| (it.id2, (it.time, it.visible, it.data)))
                .collect();
            assert_eq!(found, list.unwrap_or_default());
        }
    }
    tx.commit().await
}

#[test]
fn lists_and_their_inverses_are_as_in_the_model() {
    let cluster = cluster("graph-model", 2, 1024);
    let nodes = people(&cluster, 40);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(20);
    let mut model = Model::default();
    for round in 0..80 {
        let hubs = if round % 2 == 0 { 4 } else { nodes.len() };
        let changes: Vec<_> = (0..20).map(|_| draw(&mut rng, hubs)).collect();
        let changes: Vec<_> = changes
            .into_iter()
            .map(|change| match change {
                // Two of the nodes have many associations.
                Change::Put(from, to, assoc_type, time, data) => {
                    let to = (to * 7 + round) % nodes.len();
                    Change::Put(from, to, assoc_type, time, data)
                }
                other => other,
            })
            .collect();
        for change in &changes {
            model.apply(&nodes, change);
        }
        let min = rng.random_range(0..50);
        let range = match round % 3 {
            0 => Range::newest(1000),
            1 => Range::newest(rng.random_range(0..9)),
            _ => Range {
                bounds: TimeBounds {
                    min,
                    max: min + rng.random_range(0..20),
                },
                offset: rng.random_range(0..3),
                limit: 1 << 32,
            },
        };
        let (nodes, expected) = (nodes.clone(), model.clone());
        block_on(
            &cluster.machines[round % 2],
            0,
            async move |farm: Handle| {
                make(&farm, &nodes, &changes).await?;
                compare(&farm, &nodes, &expected, range).await
            },
        )
        .unwrap()
        .unwrap();
    }
    let left = cluster.on_all(farm_txn::left_over);
    assert!(left.iter().all(Option::is_none), "{left:?}");
    cluster.stop();
}

/// The `async` operations without a transaction have the same effects as those in transactions.
#[test]
fn tasks_use_the_graph_without_transactions() {
    let cluster = cluster("graph-alone-tasks", 2, 1024);
    let done = block_on(&cluster.machines[1], 0, async |farm: Handle| {
        use farm_graph::tasks::alone;
        let near = Place::default();
        let ann = alone::obj_add(&farm, near, person(b"Ann")).await?;
        let bob = alone::obj_reserve(&farm, near, PERSON).await?;
        assert_eq!(alone::obj_find(&farm, bob.id).await?, Some(bob.node));
        assert_eq!(alone::obj_get(&farm, bob.node).await?, None);
        assert!(alone::obj_restore(&farm, bob.node, person(b"B")).await?);
        assert!(alone::obj_update(&farm, bob.node, person(b"Bob")).await?);
        assert_eq!(alone::obj_get(&farm, bob.node).await?.unwrap().data, b"Bob");
        for id2 in 0..40 {
            let to = assoc(id2, id2, Some(bob.node), b"x");
            alone::assoc_add(&farm, ann.node, PLAIN, to, 1).await?;
        }
        let to_bob = assoc(bob.id, 3, Some(bob.node), b"");
        let put = alone::assoc_add(&farm, ann.node, FRIEND, to_bob, 1).await?;
        assert_eq!(put, Put::Added);
        let back = alone::assoc_range(&farm, bob.node, FRIEND, Range::newest(9)).await?;
        assert_eq!((back.len(), back[0].id2), (1, ann.id));
        let bounds = TimeBounds { min: 5, max: 30 };
        let found = alone::assoc_get(&farm, ann.node, PLAIN, &[3, 7, 33, 30], bounds).await?;
        let ids: Vec<u64> = found.iter().map(|it| it.id2).collect();
        assert_eq!(ids, [7, 30]);
        let hide = Deletion::Hide;
        assert!(alone::assoc_delete(&farm, ann.node, (PLAIN, 7), hide, 2).await?);
        assert!(alone::assoc_change_type(&farm, ann.node, (PLAIN, LINK), 8, 2).await?);
        let count = alone::assoc_count(&farm, ann.node, PLAIN).await?;
        assert_eq!((count.count, count.version), (38, 42));
        assert!(alone::obj_delete(&farm, bob.node).await?);
        let late = assoc(1, u64::MAX, None, b"");
        let late = alone::assoc_add(&farm, ann.node, PLAIN, late, 1).await;
        let late = GraphError::from(late.unwrap_err());
        assert!(matches!(late, GraphError::Time(u64::MAX)), "{late}");
        Ok::<_, TxError>(())
    });
    done.unwrap().unwrap();
    cluster.stop();
}

/// The change of a type wrote the inverse association as a new one, which is refused for a node that was deleted.
#[test]
fn the_type_of_an_association_with_a_deleted_node_is_changed_with_its_inverse() {
    let cluster = cluster("graph-change", 2, 1024);
    let done = block_on(&cluster.machines[0], 0, async |farm: Handle| {
        use farm_graph::tasks::alone;
        let ann = alone::obj_add(&farm, Place::default(), person(b"Ann")).await?;
        let bob = alone::obj_add(&farm, Place::default(), person(b"Bob")).await?;
        let to_bob = assoc(bob.id, 3, Some(bob.node), b"");
        alone::assoc_add(&farm, ann.node, PARENT, to_bob, 1).await?;
        assert!(alone::obj_delete(&farm, bob.node).await?);
        let types = (PARENT, PARENT);
        assert!(alone::assoc_change_type(&farm, ann.node, types, bob.id, 2).await?);
        let back = alone::assoc_range(&farm, bob.node, CHILD, Range::newest(9)).await?;
        assert_eq!((back.len(), back[0].id2), (1, ann.id));
        Ok::<_, TxError>(())
    });
    done.unwrap().unwrap();
    cluster.stop();
}
