//! Sequences, the graph and the number of pairs, and what happens if a name names something else.

use std::collections::BTreeSet;

use farm::farm_graph::ids::Place;
use farm::farm_graph::tx::Range;
use farm::farm_graph::{Assoc, AssocType, NodeData, NodeType, Schema};
use farm::prelude::*;

const USER: u32 = 1;
const FOLLOWS: u32 = 7;

fn schema(name: &str) -> Schema {
    let user = NodeType {
        id: USER,
        name: name.into(),
        lists: 2,
    };
    let follows = AssocType {
        id: FOLLOWS,
        name: "follows".into(),
        ..AssocType::default()
    };
    Schema::new(vec![user], vec![follows]).unwrap()
}

#[test]
fn the_number_of_pairs_is_the_same_on_all_machines() -> farm::Result<()> {
    let cluster = Cluster::local(3).workers(2).start()?;
    let pairs: Table<u64, u64> = cluster.create_table("pairs", 1000)?;
    for farm in cluster.farms() {
        pollster::block_on(async {
            assert!(pairs.is_empty(farm).await?);
            for n in 0..300 {
                pairs.insert(farm, n, n).await?;
            }
            assert_eq!(pairs.len(farm).await?, 300);
            for n in 0..300 {
                pairs.remove(farm, n).await?;
            }
            // Owners learn of the pairs of a transaction after its commit.
            farm.transact(async |tx| {
                for n in 0..20 {
                    pairs.insert(tx, n, n).await?;
                }
                Ok(())
            })
            .await?;
            while pairs.len(farm).await? != 20 {
                farm.sleep(std::time::Duration::from_micros(100)).await;
            }
            let here = farm.run(async move |here| pairs.len(&here).await);
            assert_eq!(here.await??, 20);
            for n in 0..20 {
                pairs.remove(farm, n).await?;
            }
            assert_eq!(pairs.len(farm).await?, 0);
            Ok::<_, Error>(())
        })?;
    }
    cluster.stop()
}

#[test]
fn no_number_of_a_sequence_is_given_twice() -> farm::Result<()> {
    const EACH: u64 = 200;
    let cluster = Cluster::local(3).start()?;
    let ids = cluster.create_sequence("ids", 5)?;
    assert_eq!(ids, cluster.create_sequence("ids", 100)?);
    let given: Vec<BTreeSet<u64>> = std::thread::scope(|scope| {
        let take = |farm: Farm| async move {
            let mut given = BTreeSet::new();
            for n in 0..EACH {
                match n % 3 {
                    0 => assert!(given.insert(ids.next(&farm).await?)),
                    1 => given.extend(ids.take(&farm, 4).await?),
                    _ => {
                        // A transaction that does not commit takes nothing.
                        let refused: farm::Result<()> = farm
                            .transact(async |tx| {
                                ids.next(tx).await?;
                                Err(Error::refused("changed its mind"))
                            })
                            .await;
                        assert_eq!(refused.unwrap_err().kind(), Kind::Refused);
                        given.insert(farm.transact(async |tx| ids.next(tx).await).await?);
                    }
                }
            }
            Ok::<_, Error>(given)
        };
        let farms = cluster.farms().iter();
        let threads: Vec<_> = farms
            .map(|farm| scope.spawn(move || pollster::block_on(take(farm.clone()))))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<farm::Result<_>>()
    })?;
    let all: BTreeSet<u64> = given.iter().flatten().copied().collect();
    assert_eq!(all.len(), given.iter().map(BTreeSet::len).sum::<usize>());
    // None is left out, either.
    assert_eq!(all, (5..5 + all.len() as u64).collect());
    cluster.block_on(async |farm| {
        let rest = u64::MAX - ids.next(&farm).await? - 1;
        assert_eq!(ids.take(&farm, rest).await?.end, u64::MAX);
        let error = ids.next(&farm).await.unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge, "{error}");
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

#[test]
fn the_graph_is_used_beside_tables_alone_and_in_transactions() -> farm::Result<()> {
    let cluster = Cluster::local(3).workers(2).start()?;
    let social = cluster.create_graph("social", schema("user"), 1000)?;
    let likes: Table<u64, u64> = cluster.create_table("likes", 100)?;
    let user = |data: &'static [u8]| NodeData {
        node_type: USER,
        version: 1,
        time: 0,
        data,
    };
    let mut nodes = vec![];
    for (number, farm) in cluster.farms().iter().enumerate() {
        let place = Place {
            id: Some(number as u64 + 1),
            ..Place::default()
        };
        nodes.push(pollster::block_on(farm.transact(async |tx| {
            let added = social.obj_add(tx, place, user(b"Ann")).await?;
            likes.put(tx, added.id, 10 * added.id).await?;
            Ok(added)
        }))?);
    }
    for farm in cluster.farms() {
        pollster::block_on(async {
            for from in &nodes {
                for to in &nodes {
                    let assoc = Assoc {
                        id2: to.id,
                        time: to.id,
                        version: 0,
                        visible: true,
                        target: Some(to.node),
                        data: b"",
                    };
                    social.assoc_add(farm, from.node, FOLLOWS, assoc, 9).await?;
                }
                // The same inside of a transaction as alone.
                let alone = social.assoc_range(farm, from.node, FOLLOWS, Range::newest(9));
                let alone = alone.await?;
                let (within, count, liked, found) = farm
                    .transact(async |tx| {
                        let newest = Range::newest(9);
                        Ok((
                            social.assoc_range(tx, from.node, FOLLOWS, newest).await?,
                            social.assoc_count(tx, from.node, FOLLOWS).await?,
                            likes.get(tx, from.id).await?,
                            social.obj_find(tx, from.id).await?,
                        ))
                    })
                    .await?;
                assert_eq!(alone, within);
                assert_eq!((alone.len(), count.count), (3, 3));
                assert_eq!(liked, Some(10 * from.id));
                assert_eq!(found, Some(from.node));
                assert_eq!(social.obj_find(farm, from.id).await?, found);
                let node = social.obj_get(farm, from.node).await?.unwrap();
                assert_eq!(node.data, b"Ann");
            }
            // A body that refuses leaves both as they were.
            let refused: farm::Result<()> = farm
                .transact(async |tx| {
                    social.obj_delete(tx, nodes[0].node).await?;
                    likes.remove(tx, 1).await?;
                    Err(Error::refused("no"))
                })
                .await;
            assert!(refused.is_err());
            assert!(social.obj_get(farm, nodes[0].node).await?.is_some());
            assert_eq!(likes.get(farm, 1).await?, Some(10));
            let error = social.assoc_count(farm, nodes[0].node, 99).await;
            assert_eq!(error.unwrap_err().kind(), Kind::Invalid);
            Ok::<_, Error>(())
        })?;
    }
    cluster.stop()
}

#[test]
fn a_name_names_one_thing() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    assert_eq!(
        cluster.graph("g").unwrap_err().to_string(),
        "graph \"g\" not found"
    );
    cluster.create_graph("g", schema("user"), 100)?;
    cluster.create_graph("g", schema("user"), 100)?;
    cluster.graph("g")?;
    cluster.create_table::<u64, u64>("t", 100)?;
    cluster.create_sequence("s", 0)?;
    let kinds = [
        cluster
            .create_graph("g", schema("person"), 100)
            .unwrap_err(),
        cluster.create_graph("t", schema("user"), 100).unwrap_err(),
        cluster.create_table::<u64, u64>("g", 100).unwrap_err(),
        cluster.create_table::<u64, u64>("s", 100).unwrap_err(),
        cluster.create_sequence("t", 0).unwrap_err(),
    ];
    for error in kinds {
        assert_eq!(error.kind(), Kind::Exists, "{error}");
    }
    let invalid = [
        cluster.graph("t").unwrap_err(),
        cluster.open_table::<u64, u64>("s").unwrap_err(),
        cluster.create_sequence("", 0).unwrap_err(),
        cluster.graph(&"x".repeat(65)).unwrap_err(),
    ];
    for error in invalid {
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    let second = cluster.create_graph("h", schema("user"), 100).unwrap_err();
    assert_eq!(second.kind(), Kind::Refused, "{second}");
    assert_eq!(cluster.graph("h").unwrap_err().kind(), Kind::NotFound);
    cluster.stop()
}
