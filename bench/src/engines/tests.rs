//! Each engine compared with a plain model: random operations, then everything that can be read.

use std::collections::BTreeMap;
use std::ops::Range as Ids;
use std::sync::Arc;

use farm_graph::{MAX_TIME, TimeBounds};
use rand::Rng;

use super::*;
use crate::linkbench::LinkSpec;
use crate::linkbench::degree::{Degrees, Links};
use crate::linkbench::loaded::{self as link_graph, NODE_TYPE, link_type};
use crate::taobench::report::Setup;
use crate::taobench::workload::{Published, Workload};
use crate::ycsb::stream::worker_rng;

const NODES: u64 = 40;

/// A link in the model: whether it is visible, its time, its version, and its data.
type Stored = (bool, u64, u32, Vec<u8>);

#[derive(Default)]
struct Model {
    nodes: BTreeMap<u64, Vec<u8>>,
    links: BTreeMap<(u64, u32, u64), Stored>,
}

impl Model {
    fn hide(&mut self, key: (u64, u32, u64)) -> bool {
        let link = self.links.get_mut(&key).filter(|link| link.0);
        link.map(|link| link.0 = false).is_some()
    }

    fn change_type(&mut self, (id1, from, id2): (u64, u32, u64), to: u32) -> bool {
        if !self.links.get(&(id1, from, id2)).is_some_and(|link| link.0) {
            return false;
        }
        let link = self.links.remove(&(id1, from, id2)).unwrap();
        self.links.insert((id1, to, id2), link);
        true
    }

    /// Returns the links of a list, the newest first: `id2`, time and data.
    fn list(&self, list: List, range: &Range) -> Vec<(u64, u64, Vec<u8>)> {
        let all = self
            .links
            .range((list.0, list.1, 0)..=(list.0, list.1, u64::MAX));
        let mut all: Vec<_> = all
            .filter(|(_, link)| link.0)
            .filter(|(_, link)| (range.bounds.min..=range.bounds.max).contains(&link.1))
            .map(|(key, link)| (key.2, link.1, link.3.clone()))
            .collect();
        all.sort_by_key(|link| (std::cmp::Reverse(link.1), link.0));
        let all = all.into_iter().skip(range.offset as usize);
        all.take(range.limit as usize).collect()
    }
}

fn graph() -> (link_graph::Loaded, Arc<Links>, Ids<u64>) {
    let properties = crate::linkbench::spec::defaults();
    let spec = LinkSpec::from_properties(&properties, false).unwrap().spec;
    let spec = Arc::new(LinkSpec {
        first_id: 1,
        end_id: 1 + NODES,
        ..spec
    });
    let text = "nlinks\n0 20\n1 40\n3 70\n40 100\n";
    let others = ["link_nreads", "link_nwrites", "node_nreads", "node_nwrites"];
    let others = others.map(|name| format!("{name}\n0 100\n")).concat();
    let degrees = Degrees::parse("x", (text.to_owned() + &others).as_bytes()).unwrap();
    let links = Arc::new(Links::new(&spec, degrees));
    let loaded = link_graph::Loaded {
        spec,
        seed: 5,
        now_ms: 1 << 42,
    };
    (loaded, links, 1..1 + NODES)
}

/// Loads the graph into a store and the model.
fn load(store: &dyn LinkStore) -> Model {
    let (loaded, links, ids) = graph();
    let mut model = Model::default();
    let mut nodes = Nodes::new(loaded.clone());
    for id in ids.clone() {
        model.nodes.insert(id, nodes.get(id).data.to_vec());
    }
    let mut all = LinksOf::new(loaded.clone(), Arc::clone(&links), ids.clone());
    while let Some(next) = all.next_link() {
        let link = all.get(&next);
        let key = (next.id1, link_type(next.link_type), link.id2);
        let stored = (true, link.time, link.version, link.data.to_vec());
        assert_eq!(model.links.insert(key, stored), None);
    }
    assert!(model.links.len() > 100);
    let mut nodes = Nodes::new(loaded.clone());
    let mut all = LinksOf::new(loaded, links, ids.clone());
    store.load(&mut nodes, &mut all, ids).unwrap();
    model
}

fn check(ops: &mut dyn LinkOps, model: &Model, rng: &mut impl Rng) {
    for id1 in 1..=NODES + 5 {
        let mut found = None;
        let exists = ops
            .get_node(id1, &mut |node| found = Some(node.data.to_vec()))
            .unwrap();
        assert_eq!(
            (exists, found.as_ref()),
            (found.is_some(), model.nodes.get(&id1))
        );
        for list in [(id1, link_type(0)), (id1, link_type(1))] {
            let all = Range {
                bounds: TimeBounds {
                    min: 0,
                    max: MAX_TIME,
                },
                offset: 0,
                limit: 10_000,
            };
            let times = model.list(list, &all);
            assert_eq!(
                ops.count_links(list).unwrap(),
                times.len() as u64,
                "{list:?}"
            );
            let mut part = all;
            if !times.is_empty() {
                let pick = [0, 1].map(|_| times[rng.random_range(0..times.len())].1);
                part.bounds.min = pick[0].min(pick[1]);
                part.bounds.max = pick[0].max(pick[1]);
            }
            (part.offset, part.limit) = (rng.random_range(0..3), rng.random_range(1..9));
            for range in [all, part] {
                let mut found = Vec::new();
                let mut each =
                    |link: Assoc<'_>| found.push((link.id2, link.time, link.data.to_vec()));
                ops.list(list, &range, &mut each).unwrap();
                assert_eq!(found, model.list(list, &range), "{list:?} {range:?}");
            }
            let ids: Vec<u64> = (0..3).map(|_| id1 + rng.random_range(0..30)).collect();
            let ids: Vec<u64> = std::collections::BTreeSet::from_iter(ids)
                .into_iter()
                .collect();
            let mut found = BTreeMap::new();
            let mut each = |link: Assoc<'_>| {
                found.insert(
                    link.id2,
                    (link.visible, link.time, link.version, link.data.to_vec()),
                );
            };
            ops.multiget(list, &ids, &mut each).unwrap();
            let wanted = ids.iter().filter_map(|id2| {
                let link = model.links.get(&(list.0, list.1, *id2))?;
                Some((*id2, link.clone()))
            });
            assert_eq!(found, wanted.collect(), "{list:?} {ids:?}");
        }
    }
}

/// Random operations have the effects that the model says.
fn behaves_as_linkbench_says(engine: Engine) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = link_store(engine, dir.path()).unwrap();
    let mut model = load(&*store);
    let mut ops = store.client().unwrap();
    let mut rng = worker_rng(7, 0);
    check(&mut *ops, &model, &mut rng);
    let mut next_id = 1 + NODES;
    for step in 0..600_u64 {
        let now = (1 << 42) + step;
        let id1 = rng.random_range(1..next_id + 2);
        let (number, id2) = (rng.random_range(0..2), id1 + rng.random_range(0..20));
        let list = (id1, link_type(number));
        let key = (id1, list.1, id2);
        let data = vec![step as u8; rng.random_range(0..30)];
        let node = NodeData {
            node_type: NODE_TYPE,
            version: step,
            time: step,
            data: &data,
        };
        match rng.random_range(0..6) {
            0 => {
                let link = Assoc {
                    id2,
                    time: now - rng.random_range(0..50),
                    version: step as u32,
                    visible: true,
                    target: None,
                    data: &data,
                };
                ops.add_link(list, &link, now).unwrap();
                model
                    .links
                    .insert(key, (true, link.time, link.version, data));
            }
            1 => assert_eq!(ops.delete_link(list, id2, now).unwrap(), model.hide(key)),
            2 => {
                // Sometimes to the same type, which changes nothing.
                let to = link_type(rng.random_range(0..2));
                let moved = ops.change_type(list, to, id2, now).unwrap();
                assert_eq!(moved, model.change_type(key, to));
            }
            3 => {
                ops.add_node(next_id, &node).unwrap();
                model.nodes.insert(next_id, data);
                next_id += 1;
            }
            4 => {
                let changed = ops.update_node(id1, &node).unwrap();
                let stored = model.nodes.get_mut(&id1);
                assert_eq!(changed, stored.map(|stored| *stored = data).is_some());
            }
            _ => assert_eq!(
                ops.delete_node(id1).unwrap(),
                model.nodes.remove(&id1).is_some()
            ),
        }
        if step % 100 == 99 {
            check(&mut *ops, &model, &mut rng);
        }
    }
}

/// Clients that run at the same time lose no write, and every rule holds: the check of the whole graph is right.
fn loses_no_write_of_taobench(engine: Engine) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = Published::Applications.text();
    let workload = Arc::new(Workload::parse("a.json", text.as_bytes()).unwrap());
    let setup = Setup {
        mix: "a".to_owned(),
        compat: false,
        in_flight: 0,
        seed: 3,
        warmup_s: 0.0,
    };
    let job = tao::Job {
        loaded: Loaded::new(Arc::clone(&workload), 3, 500),
        workload,
        setup: &setup,
        extent: Extent {
            threads: 3,
            warmup: std::time::Duration::ZERO,
            duration: None,
            operations: Some(6000),
            sampled_1_in: 1,
        },
    };
    let result = tao::run(engine, dir.path(), &job).unwrap();
    let audit = &result.run.audit;
    assert_eq!(audit.wrong, None);
    assert!(
        audit.objects > 1000 && audit.edges > 480 && audit.inverses > 0,
        "{audit:?}"
    );
    assert_eq!(
        result.run.ops.values().map(|op| op.count).sum::<u64>(),
        6000
    );
    let declined: u64 = result.run.ops.values().map(|op| op.declined).sum();
    assert!(
        result.run.ops["edge_add"].count > 0 && declined > 0,
        "{:?}",
        result.run.ops
    );
    assert!(!result.settings.is_empty() && !result.version.is_empty());
}

#[test]
fn sqlite_behaves_as_linkbench_says() {
    behaves_as_linkbench_says(Engine::Sqlite);
}

#[test]
fn rocksdb_behaves_as_linkbench_says() {
    behaves_as_linkbench_says(Engine::Rocksdb);
}

#[test]
fn postgres_behaves_as_linkbench_says() {
    behaves_as_linkbench_says(Engine::Postgres);
}

#[test]
fn sqlite_loses_no_write_of_taobench() {
    loses_no_write_of_taobench(Engine::Sqlite);
}

#[test]
fn rocksdb_loses_no_write_of_taobench() {
    loses_no_write_of_taobench(Engine::Rocksdb);
}

#[test]
fn postgres_loses_no_write_of_taobench() {
    loses_no_write_of_taobench(Engine::Postgres);
}
