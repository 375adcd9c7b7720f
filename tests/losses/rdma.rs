//! Machines on RDMA devices are killed, stopped, hang, and are cut off. `./x test-rdma` runs these tests in a guest with two devices, `rxe0` at
//! 10.77.0.1 and `rxe1` at 10.77.0.2, the ends of a wire. Machine 2 is at one end of it, and the others are at the other one. The tests run
//! one at a time.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;

use crate::machines::Machines;
use crate::run::{LOOPS, MACHINES, PROGRAM, wait_for};
use crate::stopped::WENT_ON;

/// A lease in milliseconds. The processors of the guest are emulated.
const LEASE_MS: u32 = 2000;

/// Prepares the machines of a run.
fn prepare(name: &str, replicas: usize) -> Machines {
    let place = |id: u16| match id {
        2 => "address = \"10.77.0.2:7402\"\ndevice = \"rxe1\"\n".to_owned(),
        id => format!("address = \"10.77.0.1:740{id}\"\ndevice = \"rxe0\"\n"),
    };
    let machines = Machines::prepare_at(name, replicas, LEASE_MS, place);
    let secret = machines.dir.path("secret");
    std::fs::write(&secret, "known to this cluster").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let path = machines.dir.path("farm.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let rdma = format!("[rdma]\nsecret_file = \"{}\"\n", secret.display());
    // A worker that hangs holds up transactions for ten leases.
    let rdma = rdma + &format!("[transactions]\nopen_ms = {}\n", 30 * LEASE_MS);
    let text = text.replace("[cluster]\n", "[cluster]\nfabric = \"verbs\"\n");
    std::fs::write(&path, rdma + &text).unwrap();
    machines
}

fn start(name: &str, machines: u16) -> Machines {
    let mut all = prepare(name, 3);
    all.begin(machines);
    all
}

/// Runs a shell command.
fn system(command: &str) {
    let ended = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(ended.success(), "{command}: {ended}");
}

/// The wire between the two devices carries nothing until this is dropped.
struct Cut;

impl Cut {
    fn new() -> Self {
        for wire in ["wire0", "wire1"] {
            system(&format!("tc qdisc add dev {wire} root netem loss 100%"));
        }
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        for wire in ["wire0", "wire1"] {
            system(&format!("tc qdisc del dev {wire} root"));
        }
    }
}

/// Nothing proves the end of a process, and the others wait until its lease has ended.
#[test]
fn the_others_go_on_when_a_machine_is_killed_and_it_comes_back() {
    let mut machines = start("rdma-killed", PROGRAM);
    machines.wait_for_transfers(100);
    machines.kill(2);
    machines.wait_for_transfers(100);
    let second = machines.start_again(2);
    machines.wait_for_first(second);
    machines.wait_until_full(3);
    // The manager.
    machines.kill(1);
    machines.wait_for_transfers(100);
    let first = machines.start_again(1);
    machines.wait_for_first(first);
    machines.kill(PROGRAM);
    machines.wait_for_transfers(100);
    let program = machines.start_again(PROGRAM);
    machines.wait_for_first(program);
    machines.judge();
}

#[test]
fn the_others_go_on_when_a_machine_is_stopped() {
    let mut machines = start("rdma-stopped", MACHINES);
    machines.wait_for_transfers(100);
    machines.signal(3, Signal::STOP);
    machines.wait_for_log(1, "the cluster goes on with");
    machines.wait_for_transfers_of(&[1, 2], 100);
    machines.end_evicted(3);
    let next = machines.start_again(3);
    machines.wait_for_first(next);
    machines.wait_until_full(3);
    machines.judge();
}

/// The machine asks for no lease while one of its workers hangs.
#[test]
fn the_others_go_on_when_a_worker_hangs() {
    let mut machines = start("rdma-hangs", MACHINES);
    machines.wait_for_transfers(100);
    machines.dir.write("hang-2", "");
    machines.wait_for_log(2, "a worker hangs");
    machines.wait_for_log(1, "the cluster goes on with");
    machines.wait_for_transfers_of(&[1, 3], 100);
    machines.dir.write("go-on-2", "");
    machines.end_evicted(2);
    let next = machines.start_again(2);
    machines.wait_for_first(next);
    machines.wait_until_full(3);
    machines.judge();
}

/// The machine that is cut off serves nothing, finds out from the store, or when the wire is whole again, and comes back.
#[test]
fn the_majority_goes_on_when_the_wire_is_cut() {
    let mut machines = start("rdma-cut", MACHINES);
    machines.wait_for_transfers(100);
    let cut = Cut::new();
    machines.wait_for_log(1, "the cluster goes on with");
    // What was under way when its lease ended may have been reported.
    let before = machines.reported_by(&[2]);
    machines.wait_for_transfers_of(&[1, 3], 200);
    let after = machines.reported_by(&[2]);
    assert!(after <= before + LOOPS as u64, "{before}, then {after}");
    drop(cut);
    let mut child = machines.children[1].take().unwrap();
    let status = wait_for("the end of the machine that was cut off", || {
        child.try_wait().unwrap()
    });
    assert!(!status.success());
    assert!(machines.log_has(2, WENT_ON));
    let next = machines.start_again(2);
    machines.wait_for_first(next);
    machines.wait_until_full(3);
    machines.judge();
}
