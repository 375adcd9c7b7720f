//! Clusters whose regions have copies on other machines (`FaRM'15 §4`).

use std::collections::BTreeSet;

use farm_core::alloc::{BlockTable, compare_replicas};
use farm_core::config::{Config, Durability};
use farm_core::ids::{Address, MachineId};
use farm_txn::RecordCounters;

use crate::cluster::{Cluster, cluster_of, commit};
use crate::counts::{Objects, counted, difference, execute, read, rest};

fn replicated(name: &str, machines: u16, replicas: u8) -> Cluster {
    let mut config = Config::tiny_for(machines, 1);
    config.durability.mode = Some(Durability::Memory);
    config.durability.replicas = Some(replicas);
    cluster_of(name, config)
}

/// Returns the machines that store an object, the primary first.
fn stored_by(cluster: &Cluster, at: Address) -> Vec<MachineId> {
    let map = cluster.machines[0].store().map();
    map.lookup(at.region()).unwrap().all().to_vec()
}

/// Compares all copies of all regions, and returns the number of objects that were compared.
fn compare(cluster: &Cluster) -> u64 {
    let store = |id: MachineId| cluster.machines[id.get() as usize - 1].store();
    let mut compared = 0;
    for (region, replicas) in cluster.machines[0].store().map().all() {
        let replica = |machine| {
            let memory = store(machine).replica(region).unwrap();
            BlockTable::open(memory, region).unwrap()
        };
        let primary = replica(replicas.primary());
        for backup in replicas.backups() {
            compared += compare_replicas(&primary, &replica(*backup)).unwrap();
        }
    }
    compared
}

/// Objects on 20 machines, the first of which coordinates: the records and messages of commits over `primaries` other
/// machines are those of the paper's count, P_w (f + 3), where no machine has two roles.
#[test]
fn a_commit_writes_the_records_of_the_papers_count() {
    const MACHINES: usize = 20;
    for replicas in 1..=3u8 {
        let f = u64::from(replicas) - 1;
        let cluster = replicated(&format!("count-{replicas}"), MACHINES as u16, replicas);
        let me = cluster.machines[0].id();
        let objects: Vec<Address> = (1..MACHINES)
            .flat_map(|machine| (0..4).map(move |_| machine))
            .map(|machine| cluster.create(machine, 0, &[1]))
            .collect();
        let machines_of: Vec<Vec<MachineId>> =
            objects.iter().map(|at| stored_by(&cluster, *at)).collect();
        for primaries in 1..=3usize {
            let chosen = apart(&machines_of, me, primaries);
            let chosen =
                chosen.unwrap_or_else(|| panic!("no {primaries} sets of {replicas} machines"));
            let written: Vec<Address> = chosen.iter().map(|index| objects[*index]).collect();
            let all = Objects {
                written,
                read: vec![],
            };
            let warm = cluster.on(0, 0, farm_txn::api::begin);
            all.written
                .iter()
                .for_each(|at| _ = read(&cluster, warm, *at));
            cluster.on(0, 0, move |w| farm_txn::api::abort(w, warm));
            let tx = execute(&cluster, &all);
            // The truncations of earlier commits must not be counted.
            rest(&cluster);
            let before: Vec<_> = (0..MACHINES).map(|at| counted(&cluster, at)).collect();
            commit(&cluster, tx).unwrap();
            rest(&cluster);
            let after: Vec<_> = (0..MACHINES)
                .map(|at| difference(&before[at], &counted(&cluster, at)))
                .collect();
            let p = primaries as u64;
            let records = after[0].tx.records;
            let expected = RecordCounters {
                lock: p,
                commit_backup: p * f,
                commit_primary: p,
                abort: 0,
                truncate: p * (1 + f),
            };
            assert_eq!(records, expected, "P_w = {p}, f = {f}");
            let counted = records.total() - records.truncate + after[0].tx.lock_replies;
            assert_eq!(counted, p * (f + 3), "P_w = {p}, f = {f}");
            assert_eq!(after[0].log.own, 0, "nothing of the own machine changed");
            // A backup's processor replies to nothing, and handles two records: the copy, and the bound that applies it.
            for (index, machine) in cluster.machines.iter().enumerate().skip(1) {
                let of = |chosen: &&usize| machines_of[**chosen].contains(&machine.id());
                let handled = after[index].log.handled;
                let role = chosen.iter().find(of).map(|chosen| machines_of[*chosen][0]);
                let expected = match role {
                    Some(primary) if primary == machine.id() => 3,
                    Some(_) => 2,
                    None => 0,
                };
                assert_eq!(handled, expected, "{} has handled", machine.id());
            }
        }
        assert_eq!(compare(&cluster), objects.len() as u64 * f);
        cluster.stop();
    }
}

/// Returns objects whose machines are all different, without `me`.
fn apart(machines_of: &[Vec<MachineId>], me: MachineId, count: usize) -> Option<Vec<usize>> {
    fn more(
        machines_of: &[Vec<MachineId>],
        (from, count): (usize, usize),
        taken: &BTreeSet<MachineId>,
    ) -> Option<Vec<usize>> {
        if count == 0 {
            return Some(vec![]);
        }
        (from..machines_of.len()).find_map(|index| {
            let mut taken = taken.clone();
            let is_new = machines_of[index].iter().all(|id| taken.insert(*id));
            let mut rest = more(machines_of, (index + 1, count - 1), &taken).filter(|_| is_new)?;
            rest.push(index);
            Some(rest)
        })
    }
    more(machines_of, (0, count), &BTreeSet::from([me]))
}

/// A transaction whose objects are all on the coordinator's machine writes one record for each backup, and two to its own log; one
/// that only reads writes none.
#[test]
fn a_commit_on_one_machine_writes_one_record_for_each_backup() {
    for replicas in 1..=3u8 {
        let f = u64::from(replicas) - 1;
        let cluster = replicated(&format!("single-{replicas}"), 3, replicas);
        let at = cluster.create(0, 0, &[1]);
        for (written, read) in [(vec![at], vec![]), (vec![], vec![at])] {
            let writes = !written.is_empty();
            let tx = execute(&cluster, &Objects { written, read });
            rest(&cluster);
            let before = counted(&cluster, 0);
            commit(&cluster, tx).unwrap();
            rest(&cluster);
            let after = difference(&before, &counted(&cluster, 0));
            let expected = RecordCounters {
                commit_backup: if writes { f } else { 0 },
                truncate: if writes { f } else { 0 },
                ..RecordCounters::default()
            };
            assert_eq!(after.tx.records, expected, "f = {f}, writes: {writes}");
            assert_eq!(after.log.own, if writes { 2 } else { 0 });
        }
        assert_eq!(compare(&cluster), f);
        cluster.stop();
    }
}

/// Regression test: an array over several blocks is one object of a record, whose block word is about the block of the first
/// object. Backups took it for the blocks of the others, too, and rejected the record, so that no large table could be made.
#[test]
fn an_array_over_several_blocks_reaches_its_copies() {
    const COUNT: u32 = 500;
    let cluster = replicated("large-array", 3, 3);
    let first = farm_txn::block_on(&cluster.machines[0], 0, async |farm| {
        let class = farm_core::alloc::class_for_payload(100).unwrap();
        let reserve = move |worker: &mut farm_core::worker::Worker| {
            worker.reserve_array(class, COUNT, None).unwrap()
        };
        let array = farm.with_worker(reserve).await.unwrap();
        let first = array.first();
        farm.create_array(array).await.unwrap();
        first
    })
    .unwrap();
    rest(&cluster);
    assert_eq!(stored_by(&cluster, first).len(), 3);
    assert_eq!(compare(&cluster), u64::from(COUNT) * 2);
    cluster.stop();
}
