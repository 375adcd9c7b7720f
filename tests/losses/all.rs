//! All processes are killed, and started again.

use std::time::Duration;

use farm::Cluster;
use farm::farm_core::ids::MachineId;

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
            machines.start_all_again(PROGRAM);
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

/// Only logs of a machine are gone: all, its own, or those of a program. Once a start took them for empty ones: objects stayed locked, and
/// copies differed.
#[test]
fn all_processes_are_killed_and_logs_of_some_are_gone() {
    go_on_without("no-logs", |machines, gone| {
        machines.lose_logs(gone, &[1, 2, 3, PROGRAM])
    });
    go_on_without("no-own-logs", |machines, gone| {
        machines.lose_logs(gone, &[gone])
    });
    go_on_without("no-program", |machines, gone| {
        machines.lose_logs(gone, &[PROGRAM])
    });
}

/// The directory of the configuration was restored from a backup, or its newest file was removed because it was damaged. A start once went on
/// from the earlier configuration, and what was committed since was lost.
#[test]
fn a_configuration_that_is_out_of_date_is_refused() {
    let mut machines = Machines::start("out-of-date", 2);
    machines.wait_for_transfers(200);
    machines.wait_until_full(2);
    let [store, backup] = ["store", "backup"].map(|name| machines.dir.path(name));
    std::fs::create_dir(&backup).unwrap();
    for file in std::fs::read_dir(&store).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), backup.join(file.file_name())).unwrap();
    }
    machines.kill(3);
    machines.wait_for_transfers(200);
    machines.kill_all();
    let newest = machines.dir.path("newest");
    std::fs::rename(&store, &newest).unwrap();
    std::fs::rename(&backup, &store).unwrap();
    let error = refusal(&machines);
    assert!(
        error.contains("is out of date: its newest change is"),
        "{error}"
    );
    std::fs::rename(&store, &backup).unwrap();
    std::fs::rename(&newest, &store).unwrap();
    machines.start_all_again(MACHINES);
    machines.judge();
}

/// Machines wait for one whose memory is then lost: they go on without it. They once waited in vain, for as long as they wait.
#[test]
fn machines_that_wait_go_on_without_memory_that_is_gone_then() {
    let mut machines = Machines::start("gone-later", 2);
    machines.wait_for_transfers(200);
    machines.wait_until_full(2);
    machines.kill_all();
    let waiting = [1, 2].map(|machine| machines.start_again(machine));
    for process in waiting {
        machines.wait_for_log(process, "connected to machine");
    }
    machines.lose_memory(3);
    let last = machines.start_again(3);
    for process in waiting.into_iter().chain([last]) {
        machines.wait_for_first(process);
    }
    machines.judge();
}

/// No other machine has copies: a start refuses, and names the machines whose logs are missing.
#[test]
fn logs_of_a_machine_without_copies_are_missed() {
    let mut machines = Machines::start("only-logs", 1);
    machines.wait_for_transfers(200);
    machines.kill_all();
    machines.lose_logs(2, &[3]);
    let error = refusal(&machines);
    assert!(
        error.contains("the memory of machine m2, which configuration"),
        "{error}"
    );
    machines.lose_logs(3, &[2]);
    let error = refusal(&machines);
    assert!(
        error.contains("the memory of machines m2, m3, which configuration"),
        "{error}"
    );
}

/// Starts machine 1, which must refuse. Returns why.
fn refusal(machines: &Machines) -> String {
    let config = machines.dir.path("farm.toml");
    let started = Cluster::join(config, MachineId::new(1).unwrap()).start();
    started.unwrap_err().to_string()
}

/// All processes are killed, and something that a machine has kept is gone. The others go on, and it joins them, in each turn another machine.
fn go_on_without(name: &str, lose: impl Fn(&Machines, u16)) {
    let mut machines = Machines::start_with(name, 2, PROGRAM);
    machines.wait_for_transfers(200);
    for gone in 1..=MACHINES {
        machines.wait_until_full(2);
        machines.kill_all();
        lose(&machines, gone);
        machines.start_all_again(PROGRAM);
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
