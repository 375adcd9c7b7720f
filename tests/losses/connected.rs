//! Programs that join at the same time: each must be connected to the others, also if one of them stood still for a moment.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use farm::farm_core::ids::MachineId;
use farm::farm_core::machine::{Attach, Machine};
use farm::farm_core::membership::files::FileStore;
use farm::farm_core::membership::store::ConfigStore;
use rustix::process::{Pid, Signal, kill_process};

use crate::machines::{Machines, child};
use crate::run::{Dir, MACHINES, wait_for};

const SLOW: &str = "FARM_TEST_SLOW_CHILD";

/// The process of machine 4, in the test below: it waits before its first turn. Not a test by itself.
#[test]
fn a_slow_program() {
    let Ok(dir) = std::env::var(SLOW) else { return };
    let dir = Arc::new(Dir(dir.into()));
    let config = farm::farm_graph::config::load(dir.path("farm.toml")).unwrap();
    let (layers, of_run) = (farm::layers(), Arc::clone(&dir));
    let attach: Attach = Arc::new(move |worker| {
        layers(worker);
        of_run.write("slow-met", "");
        wait_for("the test", || {
            of_run.path("slow-goes-on").exists().then_some(())
        });
    });
    let id = MachineId::new(4).unwrap();
    let machine = Machine::start(&config, id, attach, Duration::from_secs(50)).unwrap();
    assert!(machine.wait_until_joined(|| false));
    dir.write("slow-joined", "");
    wait_for("the end", || dir.read("end"));
}

/// One of two programs stood still while the other one connected to the machines, and was not awaited. Both became members without a
/// connection, and could not send each other messages of recovery: the machines never recovered from the next loss, and nobody could join.
#[test]
fn programs_that_join_together_are_connected() {
    let name = "connected";
    let mut machines = Machines::prepare(name, 2, 2000);
    let text = machines.dir.read("farm.toml").unwrap() + "[[machine]]\nid = 5\nmemory_bytes = 0\n";
    machines.dir.write("farm.toml", &text);
    machines.begin(MACHINES);
    machines.wait_for_transfers(200);
    let cluster = format!("{name}-{}", std::process::id());
    let mut store = FileStore::at(&machines.dir.path("store"), &cluster);
    let mut runs = |id: u16| {
        let newest = store.read().unwrap();
        newest.is_some_and(|newest| newest.running_on(MachineId::new(id).unwrap()).is_some())
    };
    let slow: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connected::a_slow_program", "--nocapture"])
        .env(SLOW, machines.dir.0.display().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("machine 4 to meet the others", || {
        machines.dir.read("slow-met")
    });
    kill_process(Pid::from_child(&slow), Signal::STOP).unwrap();
    let fifth = child(&machines.dir.0, 5, [5, 0]);
    wait_for("machine 5", || runs(5).then_some(()));
    kill_process(Pid::from_child(&slow), Signal::CONT).unwrap();
    machines.dir.write("slow-goes-on", "");
    wait_for("machine 4", || machines.dir.read("slow-joined"));
    machines.wait_for_log(1, "a machine that joins is not connected to another one");
    assert!(runs(4) && runs(5));
    machines.kill(3);
    machines.wait_for_log(1, "the cluster goes on with");
    machines.wait_for_log(1, "all machines have recovered");
    machines.wait_for_transfers(200);
    for mut program in [slow, fifth] {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
