//! A program joins a cluster whose other machines run as `farm node`.

mod common;

use common::Place;
use farm::{Cluster, Error, Kind, Table};
use farm_core::ids::MachineId;

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
