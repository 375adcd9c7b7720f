//! The operations of the stores: the cases of the reference's tests, and random operations against a model.

use std::collections::BTreeMap;

use farm_bench::linkbench::loaded::{NODE_TYPE, link_type};
use farm_bench::linkbench::store::{self, Link, Node};
use farm_graph::TimeBounds;
use farm_graph::tx::Range;
use farm_testing::TestCluster;
use farm_txn::Transaction;
use rand::{Rng, RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cluster::{OTHER_TYPE, cluster, transact};

type Tx<'f> = Transaction<'f>;

/// A store, whose operations are transactions of one machine or another in turn.
struct Store {
    cluster: TestCluster,
    turn: usize,
}

impl Store {
    fn start(name: &str) -> Self {
        let store = Self {
            cluster: cluster(name, 2),
            turn: 0,
        };
        transact!(store.cluster, 0, async |tx: Tx<'_>| {
            store::start_ids(tx, NODE_TYPE, 1).await
        });
        store
    }

    fn next(&mut self) -> usize {
        self.turn += 1;
        self.turn % 2
    }

    fn add_link(&mut self, link: &Link) -> bool {
        let (machine, link) = (self.next(), link.clone());
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::add_link(tx, &link, NODE_TYPE, 7).await
        })
    }

    fn delete_link(&mut self, link: (u64, u32, u64), expunge: bool) -> bool {
        let machine = self.next();
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::delete_link(tx, link, expunge, 8).await
        })
    }

    fn multiget(&mut self, list: (u64, u32), ids: &[u64]) -> Vec<Link> {
        let (machine, ids) = (self.next(), ids.to_vec());
        let mut found = transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::multiget_links(tx, list, &ids).await
        });
        found.sort_by_key(|link| link.id2);
        found
    }

    fn link(&mut self, (id1, link_type, id2): (u64, u32, u64)) -> Option<Link> {
        self.multiget((id1, link_type), &[id2]).pop()
    }

    fn list(&mut self, list: (u64, u32), range: Range) -> Vec<Link> {
        let machine = self.next();
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::get_link_list(tx, list, range).await
        })
    }

    fn all(&mut self, list: (u64, u32)) -> Vec<Link> {
        self.list(list, Range::newest(10_000))
    }

    fn count(&mut self, id1: u64, link_type: u32) -> u64 {
        let machine = self.next();
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::count_links(tx, id1, link_type).await
        })
    }

    fn add_node(&mut self, node: &Node) -> u64 {
        let (machine, node) = (self.next(), node.clone());
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::add_node(tx, &node).await
        })
    }

    fn node(&mut self, node_type: u32, id: u64) -> Option<Node> {
        let machine = self.next();
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::get_node(tx, node_type, id).await
        })
    }

    fn update_node(&mut self, id: u64, node: &Node) -> bool {
        let (machine, node) = (self.next(), node.clone());
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::update_node(tx, id, &node).await
        })
    }

    fn delete_node(&mut self, node_type: u32, id: u64) -> bool {
        let machine = self.next();
        transact!(self.cluster, machine, async |tx: Tx<'_>| {
            store::delete_node(tx, node_type, id).await
        })
    }
}

fn link(id1: u64, number: u8, id2: u64, time: u64, data: &[u8]) -> Link {
    Link {
        id1,
        link_type: link_type(number),
        id2,
        visible: true,
        version: 0,
        time,
        data: data.to_vec(),
    }
}

fn node(data: &[u8]) -> Node {
    Node {
        node_type: NODE_TYPE,
        version: 1,
        time: 5,
        data: data.to_vec(),
    }
}

fn name(link: &Link) -> (u64, u32, u64) {
    (link.id1, link.link_type, link.id2)
}

#[test]
fn one_link_is_added_read_hidden_and_removed() {
    let mut store = Store::start("lb-one");
    let one = link(1, 0, 2, 100, b"data");
    let list = (1, one.link_type);
    assert_eq!(
        (store.count(1, one.link_type), store.link(name(&one))),
        (0, None)
    );
    assert!(store.all(list).is_empty());
    assert!(!store.delete_link(name(&one), false));
    assert!(store.add_link(&one));
    assert_eq!(store.link(name(&one)), Some(one.clone()));
    assert_eq!(store.all(list), std::slice::from_ref(&one));
    assert_eq!(
        (store.count(1, one.link_type), store.count(1, link_type(1))),
        (1, 0)
    );
    assert_eq!(store.count(2, one.link_type), 0);
    // Hidden: absent from lists and counts, but still read by its id.
    assert!(store.delete_link(name(&one), false));
    assert!(!store.delete_link(name(&one), false));
    let hidden = Link {
        visible: false,
        ..one.clone()
    };
    assert_eq!(store.link(name(&one)), Some(hidden));
    assert!(store.all(list).is_empty());
    assert_eq!(store.count(1, one.link_type), 0);
    // Shown again, which is not an addition.
    assert!(!store.add_link(&one));
    assert_eq!(store.count(1, one.link_type), 1);
    assert!(store.delete_link(name(&one), true));
    assert_eq!(store.link(name(&one)), None);
    assert_eq!(store.count(1, one.link_type), 0);
    store.cluster.stop();
}

#[test]
fn overwriting_a_link_does_not_count_it_twice() {
    let mut store = Store::start("lb-overwrite");
    let first = link(9, 1, 8, 100, b"first");
    assert!(store.add_link(&first));
    for (time, data) in [(200, &b"second, which is longer"[..]), (50, b"")] {
        let next = Link {
            version: 3,
            ..link(9, 1, 8, time, data)
        };
        assert!(!store.add_link(&next));
        assert_eq!(store.link(name(&next)), Some(next.clone()));
        assert_eq!(store.all((9, next.link_type)), std::slice::from_ref(&next));
        assert_eq!(store.count(9, next.link_type), 1);
    }
    store.cluster.stop();
}

#[test]
fn lists_have_the_newest_links_first_within_bounds() {
    let mut store = Store::start("lb-lists");
    // Two links of each time; hidden links in between.
    for id2 in 0..40 {
        let one = link(5, 0, id2, 1000 + id2 / 2, &[id2 as u8; 9]);
        store.add_link(&one);
        store.add_link(&link(5, 1, id2, id2, b"other type"));
        if id2 % 5 == 0 {
            store.delete_link(name(&one), false);
        }
    }
    let mut wanted: Vec<(u64, u64)> = (0..40)
        .filter(|id2| id2 % 5 != 0)
        .map(|id2| (1000 + id2 / 2, id2))
        .collect();
    wanted.sort_by_key(|(time, id2)| (std::cmp::Reverse(*time), *id2));
    let list = (5, link_type(0));
    let of = |links: Vec<Link>| -> Vec<(u64, u64)> {
        links.iter().map(|link| (link.time, link.id2)).collect()
    };
    assert_eq!(of(store.all(list)), wanted);
    assert_eq!(store.count(5, link_type(0)), wanted.len() as u64);
    for (min, max, offset, limit) in [
        (0, 2000, 0, 10),
        (1003, 1011, 0, 100),
        (1003, 1011, 4, 3),
        (1011, 1003, 0, 100),
        (0, 999, 0, 100),
        (1019, 1019, 0, 1),
        (0, 2000, 31, 100),
        (0, 2000, 32, 100),
        (0, 2000, 0, 0),
    ] {
        let bounds = TimeBounds { min, max };
        let range = Range {
            bounds,
            offset,
            limit,
        };
        let inside = wanted.iter().filter(|(time, _)| bounds.contains(*time));
        let part: Vec<(u64, u64)> = inside
            .skip(offset as usize)
            .take(limit as usize)
            .copied()
            .collect();
        assert_eq!(of(store.list(list, range)), part, "{range:?}");
    }
    store.cluster.stop();
}

#[test]
fn a_multiget_returns_the_links_that_exist() {
    let mut store = Store::start("lb-multiget");
    for id2 in [3, 5, 7] {
        store.add_link(&link(1, 0, id2, id2, b"x"));
    }
    store.delete_link((1, link_type(0), 5), false);
    let found = store.multiget((1, link_type(0)), &[7, 4, 5, 3, 9]);
    let found: Vec<(u64, bool)> = found.iter().map(|it| (it.id2, it.visible)).collect();
    assert_eq!(found, [(3, true), (5, false), (7, true)]);
    assert!(store.multiget((1, link_type(1)), &[3]).is_empty());
    assert!(store.multiget((2, link_type(0)), &[3]).is_empty());
    assert!(store.multiget((1, link_type(0)), &[]).is_empty());
    store.cluster.stop();
}

#[test]
fn data_of_any_bytes_is_read_back() {
    let mut store = Store::start("lb-binary");
    let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let texts: [&[u8]; 6] = [
        b"",
        b"'; DROP TABLE linktable; --",
        b"\\'\"`\n\r\t\0%_",
        &all[..255],
        &[0; 200],
        &[255; 255],
    ];
    for (id2, data) in (0..).zip(texts) {
        let one = link(4, 0, id2, 1, data);
        store.add_link(&one);
        assert_eq!(store.link(name(&one)), Some(one));
        let id = store.add_node(&node(data));
        assert_eq!(store.node(NODE_TYPE, id).unwrap().data, data);
    }
    let long: Vec<u8> = all.iter().copied().cycle().take(20_000).collect();
    let id = store.add_node(&node(&long));
    assert_eq!(store.node(NODE_TYPE, id), Some(node(&long)));
    assert!(store.update_node(id, &node(&all)));
    assert_eq!(store.node(NODE_TYPE, id), Some(node(&all)));
    store.cluster.stop();
}

#[test]
fn nodes_get_consecutive_ids() {
    let mut store = Store::start("lb-nodes");
    let ids: Vec<u64> = (0..20).map(|_| store.add_node(&node(b"n"))).collect();
    assert_eq!(ids, (1..=20).collect::<Vec<u64>>());
    // Links do not take ids away from nodes, and remain when their node is deleted.
    assert!(store.add_link(&link(21, 0, 1, 1, b"")));
    assert_eq!(store.node(NODE_TYPE, 21), None);
    assert!(!store.update_node(21, &node(b"no")));
    assert_eq!(store.add_node(&node(b"late")), 21);
    assert_eq!(store.node(NODE_TYPE, 21).unwrap().data, b"late");
    assert_eq!(store.node(OTHER_TYPE, 21), None);
    assert!(!store.delete_node(OTHER_TYPE, 21));
    assert!(store.delete_node(NODE_TYPE, 21));
    assert!(!store.delete_node(NODE_TYPE, 21));
    assert_eq!(store.node(NODE_TYPE, 21), None);
    assert_eq!(store.count(21, link_type(0)), 1);
    assert!(!store.delete_node(NODE_TYPE, 99));
    assert!(!store.update_node(99, &node(b"")));
    assert_eq!(store.node(NODE_TYPE, 99), None);
    store.cluster.stop();
}

/// A store as plain maps.
#[derive(Default)]
struct Model {
    links: BTreeMap<(u64, u32, u64), Link>,
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

impl Model {
    /// Returns the visible links of a list, the newest first.
    fn list(&self, (id1, link_type): (u64, u32)) -> Vec<Link> {
        let of_list = self
            .links
            .range((id1, link_type, 0)..=(id1, link_type, u64::MAX));
        let visible = of_list.map(|(_, link)| link).filter(|link| link.visible);
        let mut list: Vec<Link> = visible.cloned().collect();
        list.sort_by_key(|link| (std::cmp::Reverse(link.time), link.id2));
        list
    }
}

/// One operation on the store and on the model, with the same results.
fn operate(store: &mut Store, model: &mut Model, rng: &mut Xoshiro256PlusPlus) {
    let (id1, number) = (rng.random_range(1..12), rng.random_range(0..2u8));
    let (id2, list) = (rng.random_range(0..60), (id1, link_type(number)));
    let mut data = vec![0; rng.random_range(0..100)];
    rng.fill_bytes(&mut data);
    let named = (id1, list.1, id2);
    match rng.random_range(0..10) {
        0..4 => {
            let new = Link {
                visible: rng.random_range(0..8) > 0,
                ..link(id1, number, id2, rng.random_range(0..50), &data)
            };
            let added = model.links.insert(named, new.clone()).is_none();
            assert_eq!(store.add_link(&new), added);
        }
        4 => {
            let visible = model.links.get_mut(&named).filter(|link| link.visible);
            let hidden = visible.map(|link| link.visible = false).is_some();
            assert_eq!(store.delete_link(named, false), hidden);
        }
        5 => {
            let removed = model.links.remove(&named).is_some();
            assert_eq!(store.delete_link(named, true), removed);
        }
        6 => {
            let known = model.list(list);
            assert_eq!(store.count(id1, list.1), known.len() as u64);
            assert_eq!(store.all(list), known);
            assert_eq!(store.link(named), model.links.get(&named).cloned());
        }
        7 => {
            model.next += 1;
            assert_eq!(store.add_node(&node(&data)), model.next);
            model.nodes.insert(model.next, node(&data));
        }
        8 => {
            let known = model.nodes.get_mut(&id1);
            let exists = known.map(|known| *known = node(&data)).is_some();
            assert_eq!(store.update_node(id1, &node(&data)), exists);
            assert_eq!(store.node(NODE_TYPE, id1), model.nodes.get(&id1).cloned());
        }
        _ => {
            let deleted = model.nodes.remove(&id1).is_some();
            assert_eq!(store.delete_node(NODE_TYPE, id1), deleted);
        }
    }
}

#[test]
fn random_operations_are_as_in_the_model() {
    for seed in 0..3 {
        let mut store = Store::start(&format!("lb-model-{seed}"));
        let (mut model, mut rng) = (Model::default(), Xoshiro256PlusPlus::seed_from_u64(seed));
        for _ in 0..700 {
            operate(&mut store, &mut model, &mut rng);
        }
        for id1 in 1..12 {
            for number in 0..2 {
                let list = (id1, link_type(number));
                assert_eq!(store.all(list), model.list(list));
            }
        }
        store.cluster.stop();
    }
}
