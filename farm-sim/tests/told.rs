//! A message about regions counts only in the configuration whose number it has.

mod common;
mod objects;

use common::until;
use farm_core::ids::{MachineId, RegionId, WorkerRef};
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::Worker;
use farm_sim::cluster::Cluster;
use objects::{PROGRAM, cluster_with, create};

/// The machine that is lost.
const LOST: usize = 2;
/// The message about regions, from the manager.
const CHANGES: MessageId = MessageId(MessageId::CORE + 4);

/// Whether the manager has an answer.
#[derive(Default)]
struct Answered(bool);

fn answered(worker: &mut Worker) -> &mut bool {
    &mut worker.layer::<Answered>().unwrap().0
}

/// Has the manager send the program a message of this configuration, in which a region has only its primary.
fn tell(cluster: &Cluster, configuration: u64, region: RegionId, primary: MachineId) {
    fn on_answer(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
        reply.unwrap();
        *answered(worker) = true;
    }
    let mut body = configuration.to_le_bytes().to_vec();
    // No catalog.
    body.extend([0; 8]);
    body.extend(region.to_bits().to_le_bytes());
    body.push(1);
    body.extend(primary.get().to_le_bytes());
    let program = WorkerRef::first_of(MachineId::new(PROGRAM as u16 + 1).unwrap());
    until(cluster, "room", || {
        cluster.on(0, |worker| {
            *answered(worker) = false;
            let cont = ReplyCont::new(on_answer, 0);
            worker.call(program, CHANGES, &[&body], 0, cont).is_ok()
        })
    });
    until(cluster, "an answer", || {
        cluster.inspect(0, |worker| *answered(worker))
    });
}

/// A program that joined while a machine came back got the regions of the configuration before, after it had applied the next one.
/// Its commits then reached fewer copies than a region had, and were lost with the others.
#[test]
fn regions_of_an_earlier_configuration_have_no_effect() {
    for seed in 0..10 {
        let cluster = cluster_with(seed, |limits| limits.replicas = 2);
        cluster.on(0, |worker| worker.put_layer(Box::<Answered>::default()));
        let region = create(&cluster, 0, None).region();
        cluster.kill_process(LOST);
        until(&cluster, "to go on", || {
            !cluster.is_running(LOST) && !cluster.changes_configuration()
        });
        let known = |cluster: &Cluster| {
            cluster.inspect(PROGRAM, |worker| {
                let (map, membership) = (worker.store().map(), worker.membership());
                (map.lookup(region).unwrap(), membership.configuration())
            })
        };
        let (replicas, configuration) = known(&cluster);
        assert_eq!(replicas.all().len(), 2, "seed {seed}");
        assert!(configuration > 1, "seed {seed}");
        for other in [1, configuration + 1] {
            tell(&cluster, other, region, replicas.primary());
            assert_eq!(known(&cluster).0, replicas, "seed {seed}");
        }
        tell(&cluster, configuration, region, replicas.primary());
        assert_eq!(known(&cluster).0.all().len(), 1, "seed {seed}");
        // All machines know the replicas of the newest configuration, in all runs of the simulator that end.
        let wrong = cluster.check_replicas().unwrap_err();
        assert!(wrong.contains("knows other replicas"), "{wrong}");
    }
}
