//! All processes are killed, and started again.

use std::time::Duration;

use crate::machines::{Machines, child};
use crate::run::{MACHINES, PROGRAM, ROUNDS};

/// All processes are killed in the middle of their transactions, and others of the same machines go on with their memory, several times.
/// In every second round the next ones are killed while they recover.
#[test]
fn all_processes_are_killed() {
    let rounds = std::env::var(ROUNDS).map_or(3, |rounds| rounds.parse().unwrap());
    for replicas in [1, 2, 3] {
        let mut machines = Machines::start_with(&format!("all-{replicas}"), replicas, PROGRAM);
        machines.wait_for_transfers(200);
        for round in 0..rounds {
            machines.kill_all();
            if round % 2 == 1 {
                kill_starts(&machines, 3);
            }
            let started = (1..=PROGRAM).map(|machine| machines.start_again(machine));
            for process in started.collect::<Vec<_>>() {
                machines.wait_for_first(process);
            }
        }
        machines.wait_for_transfers(200);
        machines.judge();
    }
}

/// All processes are killed, and the memory of one machine is gone. The others have copies of it and go on, and it joins them, in each turn
/// another machine.
#[test]
fn all_processes_are_killed_and_memory_of_some_is_gone() {
    go_on_without("gone", Machines::lose_memory);
}

/// Only the logs of a machine are gone. Once a start took them for empty ones: objects stayed locked, and copies differed.
#[test]
fn all_processes_are_killed_and_logs_of_some_are_gone() {
    go_on_without("no-logs", Machines::lose_logs);
}

fn go_on_without(name: &str, lose: impl Fn(&Machines, u16)) {
    let mut machines = Machines::start(name, 2);
    machines.wait_for_transfers(200);
    for gone in 1..=MACHINES {
        machines.wait_until_full(2);
        machines.kill_all();
        lose(&machines, gone);
        let started = (1..=MACHINES).map(|machine| machines.start_again(machine));
        for process in started.collect::<Vec<_>>() {
            machines.wait_for_first(process);
        }
    }
    machines.wait_for_transfers(200);
    machines.judge();
}

/// Starts all machines, and kills them again after a while, several times.
fn kill_starts(machines: &Machines, times: u16) {
    for number in 0..times {
        let id = |machine| 1000 + number * 10 + machine;
        let starts =
            (1..=MACHINES).map(|machine| child(&machines.dir.0, machine, [id(machine), 0]));
        let mut starts: Vec<_> = starts.collect();
        std::thread::sleep(Duration::from_millis(10 + 15 * u64::from(number)));
        for start in &mut starts {
            start.kill().unwrap();
        }
        for start in &mut starts {
            start.wait().unwrap();
        }
    }
}
