//! A program joins a cluster whose other machines run as `farm node`; machines without memory come and go.

mod common;

use std::time::Duration;

use common::{Place, Run};
use farm::{Cluster, Error, Kind, Table};
use farm_core::ids::MachineId;
use rustix::process::Signal;

/// Time limit within which the other processes end after a machine has died.
const NOTICED: Duration = Duration::from_secs(5);
/// Time limit within which a process ends after a signal.
const PROMPT: Duration = Duration::from_secs(3);

#[test]
fn a_program_joins_nodes() {
    let place = Place::new("join");
    let config = place.three_machines();
    let nodes = [2, 3].map(|machine| place.start_node(&config, machine));
    let me = MachineId::new(1).unwrap();
    let cluster = Cluster::join(&config, me).start().unwrap();
    // The nodes have not opened the tables: they do when the program asks for shards.
    let table: Table<u64, u64> = cluster.create_table("joined", 1000).unwrap();
    cluster
        .block_on(async |farm| {
            assert_eq!(farm.machine(), me);
            for key in 0..200 {
                assert!(table.insert(&farm, key, key * key).await?);
            }
            let keys: Vec<u64> = (0..201).collect();
            let found = table.get_many(&farm, &keys).await?;
            assert!(
                found[..200]
                    .iter()
                    .zip(&keys)
                    .all(|(value, key)| *value == Some(key * key))
            );
            assert_eq!(found[200], None);
            // The pairs of this transaction are on several machines.
            let sum = farm.transact(async |tx| {
                let mut sum = 0;
                for key in 0..20 {
                    sum += table.get_or_default(tx, key).await?;
                    table.put(tx, key, 1).await?;
                }
                Ok(sum)
            });
            assert_eq!(sum.await?, (0..20).map(|key| key * key).sum::<u64>());
            assert_eq!(table.get(&farm, 19).await?, Some(1));
            Ok::<_, Error>(())
        })
        .unwrap();
    cluster.stop().unwrap();
    // A machine that leaves in order ends the others in order.
    for node in nodes {
        assert_eq!(node.end().code, Some(0));
    }
}

#[test]
fn a_machine_that_the_configuration_does_not_have_is_refused() {
    let place = Place::new("join-no");
    let config = place.three_machines();
    let error = Cluster::join(&config, MachineId::new(9).unwrap())
        .start()
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

/// Machine 3 has no memory. It leaves after SIGINT and the others continue, also with the operations of a program that joins; if
/// it is killed, its locks may remain, so the others stop.
#[test]
fn a_node_without_memory_leaves_and_the_others_continue() {
    let place = Place::new("no-memory");
    let config = place.config(
        "farm.toml",
        "32MiB",
        3,
        "memory_bytes = 0\n[[machine]]\nid = 4\nmemory_bytes = 0\n",
    );
    let mut nodes: Vec<Run> = [1, 2, 3]
        .map(|machine| place.start_node(&config, machine))
        .into();
    let cluster = Cluster::join(&config, MachineId::new(4).unwrap());
    let cluster = cluster.start().unwrap();
    let mut third = nodes.pop().unwrap();
    third.wait_for("up to 0 B for regions");
    third.signal(Signal::INT);
    third.end_within(PROMPT).ok();
    let table: Table<u64, u64> = cluster.create_table("kept", 1000).unwrap();
    cluster
        .block_on(async |farm| {
            for key in 0..100 {
                table.insert(&farm, key, key).await?;
            }
            let sum = farm.transact(async |tx| {
                let mut sum = 0;
                for key in 0..100 {
                    sum += table.get_or_default(tx, key).await?;
                }
                table.put(tx, 0, sum).await?;
                Ok(sum)
            });
            assert_eq!(sum.await?, 4950);
            Ok::<_, Error>(())
        })
        .unwrap();
    // The program leaves, too.
    cluster.stop().unwrap();
    let status = place.farm(&["status", "--config", &config]).end();
    assert!(
        status.stdout.contains("2 of 4 machine(s) run"),
        "{status:?}"
    );
    nodes[0].signal(Signal::INT);
    for node in nodes {
        let ended = node.end_within(PROMPT);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!ended.stderr.contains("m3"), "{ended:?}");
    }
}

/// Machines with memory do not wait for machine 3, which joins them later.
#[test]
fn nodes_with_memory_start_without_the_others() {
    let place = Place::new("no-memory-late");
    let config = place.config("farm.toml", "32MiB", 3, "memory_bytes = 0\n");
    let mut nodes = [1, 2].map(|machine| place.start_node(&config, machine));
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    let status = || place.farm(&["status", "--config", &config]).end().stdout;
    assert!(status().contains("2 of 3 machine(s) run"), "{}", status());
    // With another configuration than those that run, it hears the key.
    let key = ["--set", "rings.checksums=true"];
    let node = ["node", "--machine", "3", "--config", &config];
    place.farm(&[&node[..], &key].concat()).end().failed(
        1,
        &[
            "configurations differ",
            "rings.checksums is true here, and false there",
        ],
    );
    let cluster = Cluster::join(&config, MachineId::new(3).unwrap());
    let cluster = cluster.start().unwrap();
    let table: Table<u64, u64> = cluster.create_table("late", 1000).unwrap();
    cluster
        .block_on(async |farm| {
            table.insert(&farm, 1, 2).await?;
            assert_eq!(table.get(&farm, 1).await?, Some(2));
            Ok::<_, Error>(())
        })
        .unwrap();
    assert!(status().contains("3 of 3 machine(s) run"), "{}", status());
    cluster.stop().unwrap();
    nodes[0].signal(Signal::INT);
    for node in nodes {
        node.end_within(PROMPT).ok();
    }
}

#[test]
fn a_killed_node_without_memory_stops_the_others() {
    let place = Place::new("no-memory-killed");
    let config = place.config("farm.toml", "32MiB", 3, "memory_bytes = 0\n");
    let mut nodes: Vec<Run> = [1, 2, 3]
        .map(|machine| place.start_node(&config, machine))
        .into();
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    nodes.pop().unwrap().signal(Signal::KILL);
    for node in nodes {
        node.end_within(NOTICED).failed(1, &["m3 is lost"]);
    }
    place.farm(&["clean", "--config", &config]).end().ok();
}

/// Machine 1 does not answer, so machine 2, which has no memory, cannot leave in order. It ends nevertheless.
#[test]
fn a_node_without_memory_ends_if_another_does_not_answer() {
    let place = Place::new("no-memory-stuck");
    let config = place.config("farm.toml", "32MiB", 2, "memory_bytes = 0\n");
    let mut nodes = [1, 2].map(|machine| place.start_node(&config, machine));
    for node in &mut nodes {
        node.wait_for("runs; stop it with Ctrl-C");
    }
    let [first, second] = nodes;
    first.signal(Signal::STOP);
    second.signal(Signal::INT);
    second
        .end_within(Duration::from_secs(20))
        .failed(1, &["cannot leave the cluster in order within 10 s"]);
    first.signal(Signal::CONT);
    first.end_within(NOTICED).failed(1, &["m2 is lost"]);
}
