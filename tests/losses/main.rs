//! Processes are killed while all machines of a cluster run transactions: some of them, and the others go on, or all, and the next ones go
//! on with what they have left. Nothing that was reported is lost.

mod all;
mod connected;
mod machines;
mod program;
#[cfg(feature = "rdma-tests")]
mod rdma;
mod run;
mod stopped;

use std::time::Duration;

use machines::{Machines, child};
use run::{MACHINES, PROGRAM, ROUNDS};

#[test]
fn the_others_go_on_when_a_machine_is_killed() {
    for killed in 1..=MACHINES {
        let mut machines = Machines::start(&format!("loses-{killed}"), 2);
        machines.wait_for_transfers(500);
        machines.kill(killed);
        machines.wait_for_transfers(500);
        machines.judge();
    }
}

/// The directory of the configuration is gone when a machine is lost: the others wait until it is there again. They once took it for a directory
/// without a first configuration, and stopped.
#[test]
fn the_others_wait_for_the_directory_of_the_configuration() {
    for killed in [1, 3] {
        let mut machines = Machines::start(&format!("away-{killed}"), 2);
        machines.wait_for_transfers(500);
        let (store, away) = (machines.dir.path("store"), machines.dir.path("away"));
        std::fs::rename(&store, &away).unwrap();
        machines.kill(killed);
        let next = if killed == 1 { 2 } else { 1 };
        machines.wait_for_log(next, "no configuration is in durability.dir any more");
        std::fs::rename(&away, &store).unwrap();
        machines.wait_for_transfers(500);
        machines.judge();
    }
}

#[test]
fn the_last_machine_goes_on_when_two_are_killed_at_once() {
    for last in 1..=MACHINES {
        let mut machines = Machines::start(&format!("left-{last}"), 3);
        machines.wait_for_transfers(500);
        let killed = (1..=MACHINES).filter(|machine| *machine != last);
        killed.for_each(|machine| machines.kill(machine));
        machines.wait_for_transfers(500);
        machines.judge();
    }
}

/// A program without memory is killed and comes back while the others recover, while the manager is lost, and when a machine is no
/// member any more.
#[test]
fn programs_without_memory_are_killed_and_come_back() {
    let mut machines = Machines::start_with("programs", 2, PROGRAM);
    machines.wait_for_transfers(500);
    // It comes back at once, while the others recover.
    machines.kill(PROGRAM);
    let second = machines.start_again(PROGRAM);
    machines.wait_for_first(second);
    machines.wait_for_transfers(500);
    // The next one finds a manager that is lost, or another one.
    machines.kill(second);
    let third = machines.start_again(PROGRAM);
    machines.kill(1);
    machines.wait_for_first(third);
    machines.wait_for_transfers(500);
    machines.kill(third);
    let fourth = machines.start_again(PROGRAM);
    machines.wait_for_first(fourth);
    machines.judge();
}

/// Each machine in turn is killed and comes back. When it has full copies again, the next one is killed: of the processes that began, none
/// is left in the end. [`ROUNDS`] sets how often each machine is killed.
#[test]
fn machines_with_memory_come_back() {
    let rounds = std::env::var(ROUNDS).map_or(2, |rounds| rounds.parse().unwrap());
    for replicas in [2, 3] {
        let mut machines = Machines::start(&format!("returns-{replicas}"), replicas);
        machines.wait_for_transfers(200);
        let mut last = [1, 2, 3];
        for round in 0..rounds {
            for machine in 1..=MACHINES {
                let at = usize::from(machine) - 1;
                machines.kill(last[at]);
                if round % 2 == 1 {
                    machines.wait_for_transfers(200);
                }
                last[at] = machines.start_again(machine);
                machines.wait_for_first(last[at]);
                machines.wait_until_full(replicas);
            }
        }
        machines.wait_for_transfers(200);
        machines.judge();
    }
}

/// The machine that comes back is killed again at many moments: while it connects, joins and is filled.
#[test]
fn a_machine_that_comes_back_is_killed_again() {
    let mut machines = Machines::start("again", 3);
    machines.wait_for_transfers(200);
    machines.kill(2);
    let (regions, mut most) = (machines.kept_regions(2), 0);
    for number in 0..30 {
        let mut idle = child(&machines.dir.0, 2, [1000 + number, 0]);
        std::thread::sleep(Duration::from_millis(8 * u64::from(number)));
        idle.kill().unwrap();
        idle.wait().unwrap();
        most = most.max(machines.kept_regions(2));
    }
    // Once, the memory that each of them had prepared for copies stayed.
    assert!(most <= 3 * regions, "{most} files of {regions} regions");
    machines.wait_for_transfers(200);
    let last = machines.start_again(2);
    machines.wait_for_first(last);
    machines.wait_until_full(3);
    machines.kill(1);
    machines.wait_for_transfers(200);
    machines.judge();
}
