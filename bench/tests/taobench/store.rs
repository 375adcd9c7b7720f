//! Writes in transactions, compared with a model of the rules.

use farm_bench::taobench::edges::{Edge, EdgeType};
use farm_bench::taobench::rules::is_refused;
use farm_bench::taobench::store::{self, Effect};
use farm_bench::taobench::stream::{FIRST_TIME, Write};
use farm_bench::taobench::workload::Kind;
use farm_graph::{TimeBounds, tasks};
use farm_txn::{Handle, Transaction, TxError, block_on};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cluster::cluster;

type Tx<'f> = Transaction<'f>;

#[test]
fn edges_are_refused_as_in_the_model_of_the_rules() {
    let cluster = cluster("tao-rules", 2);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut edges: Vec<Edge> = Vec::new();
    let (mut added, mut refused) = ([0; 4], [0; 4]);
    for time in 1..1500 {
        let edge = Edge {
            id1: rng.random_range(1..60),
            id2: rng.random_range(1..60),
            edge_type: *EdgeType::ALL.choose(&mut rng).unwrap(),
        };
        let machine = &cluster.machines[time as usize % 2];
        let effect = block_on(machine, 0, async move |farm: Handle| {
            let add = async |tx: Tx<'_>| store::add_edge(tx, edge, time).await;
            farm.transact(add).await
        });
        let done = matches!(effect.unwrap().unwrap(), Effect::Done { .. });
        assert_eq!(done, !is_refused(edge, &edges), "{edge:?} after {edges:?}");
        let counts = if done { &mut added } else { &mut refused };
        counts[edge.edge_type.index()] += 1;
        if done {
            edges.push(edge);
            if edge.edge_type.has_inverse() && edge.id1 != edge.id2 {
                edges.push(edge.inverse());
            }
        }
    }
    assert!(added.iter().chain(&refused).all(|count| *count > 0));
    // The lists have these edges and no others.
    let all = block_on(&cluster.machines[1], 0, async |farm: Handle| {
        use farm_graph::tasks::alone;
        let mut found = Vec::new();
        for id1 in 1..60 {
            let Some(node) = alone::obj_find(&farm, id1).await? else {
                continue;
            };
            for edge_type in EdgeType::ALL {
                let range = farm_graph::tx::Range::newest(1000);
                let list = alone::assoc_range(&farm, node, edge_type.number(), range).await?;
                found.extend(list.iter().map(|assoc| Edge {
                    id1,
                    id2: assoc.id2,
                    edge_type,
                }));
            }
        }
        Ok::<_, TxError>(found)
    });
    let mut all = all.unwrap().unwrap();
    all.sort();
    edges.sort();
    assert_eq!(all, edges);
    cluster.stop();
}

/// The largest write transaction of the published files, with the writes that concern most objects: new edges with
/// inverses. All of its objects are on another machine, so that one record has the whole transaction.
#[test]
fn the_largest_write_transaction_fits_one_record() {
    const WRITES: u64 = 103;
    let cluster = cluster("tao-largest", 2);
    let made = block_on(&cluster.machines[0], 0, async |farm: Handle| {
        let all = async |tx: Tx<'_>| {
            for number in 0..WRITES {
                let edge = Edge {
                    id1: 1000 + number,
                    id2: 5000 + number,
                    edge_type: EdgeType::Bidirectional,
                };
                let write = Write {
                    kind: Kind::EdgeAdd,
                    edge,
                    of: None,
                    time: FIRST_TIME + number,
                };
                let effect = store::write(tx, &write).await?;
                assert!(matches!(effect, Effect::Done { .. }), "{effect:?}");
            }
            Ok(())
        };
        farm.transact(all).await?;
        let check = async |tx: Tx<'_>| {
            let mut found = 0;
            for (first, other) in [(1000, 5000), (5000, 1000)] {
                for number in 0..WRITES {
                    let node = tasks::obj_find(tx, first + number).await?;
                    let node = node.expect("the edge has reserved its nodes");
                    let ids = [other + number];
                    let edge_type = EdgeType::Bidirectional.number();
                    let all = TimeBounds::default();
                    found += tasks::assoc_get(tx, node, edge_type, &ids, all)
                        .await?
                        .len();
                }
            }
            Ok(found)
        };
        farm.transact(check).await
    });
    assert_eq!(made.unwrap().unwrap() as u64, 2 * WRITES);
    // The other machine frees the records when it learns that the transactions have ended.
    while cluster
        .on_all(farm_txn::left_over)
        .iter()
        .any(Option::is_some)
    {
        std::thread::yield_now();
    }
    cluster.stop();
}
