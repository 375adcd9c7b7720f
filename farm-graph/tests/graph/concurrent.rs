//! Writers and readers on all machines at the same time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::tasks;
use farm_graph::tx::{Deletion, Range};
use farm_graph::{Assoc, Assocs, AssocsCont, Count, GraphError, Put, ops, owner_counters};
use farm_testing::{TestCluster, receive};
use farm_txn::{Handle, TxError, block_on};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::common::{CHILD, FRIEND, PARENT, PLAIN, cluster, people};

const IN_FLIGHT: u64 = 12;

/// Random operations of one worker.
struct Client {
    nodes: Vec<(u64, FatPointer)>,
    rng: Xoshiro256PlusPlus,
    left: u64,
    running: u64,
    done: Sender<()>,
}

fn step(worker: &mut Worker) -> ControlFlow<()> {
    let client = worker.layer::<Client>().unwrap();
    if client.left == 0 {
        return ControlFlow::Break(());
    }
    client.left -= 1;
    client.running += 1;
    let number = client.left;
    let rng = &mut client.rng;
    let [from, to] = [(); 2].map(|()| rng.random_range(0..client.nodes.len()));
    let assoc_type = [PLAIN, FRIEND, PARENT, CHILD][rng.random_range(0..4)];
    let drawn = rng.random_range(0..10);
    let (node, (id2, target)) = (client.nodes[from].1, client.nodes[to]);
    match drawn {
        0..4 => {
            let assoc = Assoc {
                id2,
                time: number,
                version: 1,
                visible: true,
                target: Some(target),
                data: &number.to_le_bytes(),
            };
            ops::assoc_add(worker, node, assoc_type, assoc, 1, Cont::new(put, ()));
        }
        4 | 5 => {
            let deletion = if drawn == 4 {
                Deletion::Hide
            } else {
                Deletion::Remove
            };
            let cont = Cont::new(changed, ());
            ops::assoc_delete(worker, node, (assoc_type, id2), deletion, 1, cont);
        }
        6 if assoc_type != PLAIN => {
            let types = (assoc_type, [FRIEND, PARENT, CHILD][number as usize % 3]);
            ops::assoc_change_type(worker, node, types, id2, 1, Cont::new(changed, ()));
        }
        6 | 7 => ops::assoc_count(worker, node, assoc_type, Cont::new(counted, ())),
        _ => {
            let cont = AssocsCont::new(ranged, ());
            ops::assoc_range(worker, node, assoc_type, Range::newest(100), cont);
        }
    }
    ControlFlow::Continue(())
}

fn next(worker: &mut Worker) {
    let client = worker.layer::<Client>().unwrap();
    client.running -= 1;
    if step(worker).is_break() {
        let client = worker.layer::<Client>().unwrap();
        if client.running == 0 {
            client.done.send(()).unwrap();
        }
    }
}

fn put(worker: &mut Worker, (): (), result: Result<Put, GraphError>) {
    result.unwrap();
    next(worker);
}

fn changed(worker: &mut Worker, (): (), result: Result<bool, GraphError>) {
    result.unwrap();
    next(worker);
}

fn counted(worker: &mut Worker, (): (), result: Result<Count, GraphError>) {
    result.unwrap();
    next(worker);
}

/// Checks a list, which is of one moment: it is in order, each id is in it once, and times and data belong together.
fn ranged(worker: &mut Worker, (): (), result: Result<Assocs<'_>, &GraphError>) {
    let found: Vec<_> = result.unwrap().iter().collect();
    assert!(found.is_sorted_by_key(|it| (std::cmp::Reverse(it.time), it.id2)));
    let ids: BTreeSet<_> = found.iter().map(|it| it.id2).collect();
    assert_eq!(ids.len(), found.len());
    assert!(
        found
            .iter()
            .all(|it| it.visible && it.data == it.time.to_le_bytes())
    );
    next(worker);
}

/// Checks that lists agree with counts, and associations with their inverses.
async fn check(farm: &Handle, nodes: &[(u64, FatPointer)]) -> Result<usize, TxError> {
    let tx = farm.begin().await.unwrap();
    let mut all = BTreeSet::new();
    for (id, node) in nodes {
        for assoc_type in [PLAIN, FRIEND, PARENT, CHILD] {
            let list = tasks::assoc_range(*tx, *node, assoc_type, Range::newest(1000)).await?;
            let count = tasks::assoc_count(*tx, *node, assoc_type).await?.count;
            assert_eq!(count as usize, list.len());
            all.extend(list.iter().map(|it| (*id, assoc_type, it.id2, it.time)));
            let ids: Vec<_> = list.iter().map(|it| it.id2).collect();
            let got = tasks::assoc_get(*tx, *node, assoc_type, &ids, Default::default()).await?;
            assert_eq!(got, list);
        }
    }
    tx.commit().await?;
    for (from, assoc_type, to, time) in &all {
        let inverse = match *assoc_type {
            PARENT => CHILD,
            CHILD => PARENT,
            FRIEND => FRIEND,
            _ => continue,
        };
        assert!(
            all.contains(&(*to, inverse, *from, *time)),
            "an inverse is missing"
        );
    }
    Ok(all.len())
}

fn run(cluster: &TestCluster, nodes: &[(u64, FatPointer)], seed: u64, operations: u64) {
    let ended = cluster
        .machines
        .iter()
        .enumerate()
        .map(|(machine, running)| {
            let (done, ended) = channel();
            let client = Client {
                nodes: nodes.to_vec(),
                rng: Xoshiro256PlusPlus::seed_from_u64(seed + machine as u64),
                left: operations,
                running: 0,
                done,
            };
            running
                .submit(0, move |worker| {
                    worker.put_layer(Box::new(client));
                    for _ in 0..IN_FLIGHT {
                        let _ = step(worker);
                    }
                })
                .unwrap();
            ended
        });
    let ended: Vec<_> = ended.collect();
    for ended in ended {
        receive(&ended);
    }
}

#[test]
fn lists_counts_and_inverses_agree_after_concurrent_writes() {
    let cluster = cluster("graph-concurrent", 3, 1024);
    let nodes = people(&cluster, 30);
    for seed in 0..4 {
        run(&cluster, &nodes, 100 * seed, 1500);
        let nodes = nodes.clone();
        let found = block_on(
            &cluster.machines[seed as usize % 3],
            0,
            async move |farm: Handle| check(&farm, &nodes).await,
        );
        assert!(
            found.unwrap().unwrap() > 200,
            "too few associations to check"
        );
        let left = cluster.on_all(farm_graph::left_over);
        assert!(left.iter().all(Option::is_none), "{left:?}");
    }
    let owners = cluster.on_all(owner_counters);
    assert!(owners.iter().all(|it| it.operations > 100), "{owners:?}");
    cluster.stop();
}
