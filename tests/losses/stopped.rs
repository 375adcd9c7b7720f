//! Processes are stopped (SIGSTOP), for longer or shorter than a lease, and go on.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::machines::Machines;
use crate::run::{LOOPS, MACHINES, PROGRAM, ROUNDS, wait_for};

/// A short lease, in milliseconds.
const LEASE_MS: u32 = 100;
/// What a process says that finds out that the others have gone on without it.
pub(crate) const WENT_ON: &str = "went on without machine";
/// What a machine says that has no majority.
const MINORITY: &str = "another part of the cluster may go on";

impl Machines {
    pub(crate) fn signal(&self, process: u16, signal: Signal) {
        let child = self.children[usize::from(process) - 1].as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    pub(crate) fn log_has(&self, process: u16, text: &str) -> bool {
        let log = self.dir.read(&format!("log-{process}"));
        log.is_some_and(|log| log.contains(text))
    }

    /// Waits until a process has logged this.
    pub(crate) fn wait_for_log(&self, process: u16, text: &str) {
        wait_for(text, || self.log_has(process, text).then_some(()));
    }

    /// Returns whether a process that was stopped goes on, or ends.
    fn goes_on(&mut self, process: u16) -> bool {
        let before = self.reported_by(&[process]);
        wait_for("a process that was stopped", || {
            let goes_on = self.reported_by(&[process]) > before + 100;
            let ended = self.has_ended(process);
            (goes_on || ended).then_some(!ended)
        })
    }

    /// Returns whether a process has ended by itself. It is none of those that are left, then.
    fn has_ended(&mut self, process: u16) -> bool {
        let child = &mut self.children[usize::from(process) - 1];
        let status = child.as_mut().unwrap().try_wait().unwrap();
        if status.is_some() {
            *child = None;
        }
        status.is_some()
    }

    /// Lets a process that was evicted while it was stopped go on: it reports nothing more, says why, and ends.
    pub(crate) fn end_evicted(&mut self, process: u16) {
        let before = self.reported_by(&[process]);
        self.signal(process, Signal::CONT);
        let mut child = self.children[usize::from(process) - 1].take().unwrap();
        let status = wait_for("the end of a process that was evicted", || {
            child.try_wait().unwrap()
        });
        assert!(!status.success());
        assert!(self.log_has(process, WENT_ON));
        // A loop may have been stopped after its transfer was reported to it, and before it wrote that.
        let most = before + LOOPS as u64;
        let after = self.reported_by(&[process]);
        assert!((before..=most).contains(&after), "{before}, then {after}");
    }
}

/// A machine that is stopped does not hold up the others for longer than a lease. When it goes on, it reports nothing of what it had begun.
/// It can be started again.
#[test]
fn the_others_go_on_when_a_machine_is_stopped() {
    for stopped in 1..=MACHINES {
        let mut machines = Machines::start(&format!("stops-{stopped}"), 2);
        machines.wait_for_transfers(500);
        machines.signal(stopped, Signal::STOP);
        let others: Vec<u16> = (1..=MACHINES).filter(|one| *one != stopped).collect();
        machines.wait_for_log(others[0], "the cluster goes on with");
        machines.wait_for_transfers_of(&others, 500);
        machines.end_evicted(stopped);
        let next = machines.start_again(stopped);
        machines.wait_for_first(next);
        machines.wait_until_full(2);
        machines.judge();
    }
}

/// A worker of a machine does not go on: nothing else is wrong with the machine, but the others would wait for it. They go on without it.
#[test]
fn the_others_go_on_when_a_worker_hangs() {
    for hung in [2, 1] {
        let mut machines =
            Machines::start_with_leases(&format!("hangs-{hung}"), 2, MACHINES, LEASE_MS);
        machines.wait_for_transfers(500);
        machines.dir.write(&format!("hang-{hung}"), "");
        machines.wait_for_log(hung, "a worker hangs");
        let others: Vec<u16> = (1..=MACHINES).filter(|one| *one != hung).collect();
        machines.wait_for_log(others[0], "the cluster goes on with");
        machines.wait_for_transfers_of(&others, 500);
        machines.dir.write(&format!("go-on-{hung}"), "");
        machines.end_evicted(hung);
        let next = machines.start_again(hung);
        machines.wait_for_first(next);
        machines.judge();
    }
}

/// While a machine that was left out stands still, programs join, and machines come back that are lost meanwhile.
#[test]
fn machines_join_while_one_that_was_evicted_stands_still() {
    let mut machines = Machines::start("joins", 3);
    machines.wait_for_transfers(200);
    machines.signal(1, Signal::STOP);
    machines.wait_for_log(2, "the cluster goes on with");
    let program = machines.start_again(PROGRAM);
    machines.wait_for_first(program);
    machines.kill(2);
    let second = machines.start_again(2);
    machines.wait_for_first(second);
    machines.end_evicted(1);
    let first = machines.start_again(1);
    machines.wait_for_first(first);
    machines.wait_until_full(3);
    machines.judge();
}

/// All machines but one that was evicted, and stands still, are killed, after a further change of the configuration. The next ones do not begin
/// before that one has ended: it could still write to their logs.
#[test]
fn a_start_waits_for_the_end_of_a_machine_that_was_evicted() {
    let mut machines = Machines::start_with_leases("awaits", 3, MACHINES, LEASE_MS);
    machines.wait_for_transfers(200);
    machines.signal(1, Signal::STOP);
    machines.wait_for_log(2, "the cluster goes on with");
    machines.wait_for_transfers_of(&[2, 3], 100);
    machines.kill(3);
    machines.wait_for_log(2, "the cluster goes on with 1 of 4");
    machines.kill(2);
    let second = machines.start_again(2);
    // It would take some milliseconds to begin.
    std::thread::sleep(Duration::from_millis(500));
    assert!(machines.reported(second).is_empty());
    machines.kill(1);
    machines.wait_for_first(second);
    machines.judge();
}

/// A machine with longer leases than the others gives signs of life less often, and stays.
#[test]
fn machines_with_leases_of_other_lengths_stay() {
    let mut machines = Machines::prepare("lengths", 2, LEASE_MS);
    let text = machines.dir.read("farm.toml").unwrap();
    let long = text.replace("lease_ms = 100", "lease_ms = 4000");
    assert_ne!(long, text);
    machines.dir.write("farm-1.toml", &long);
    machines.begin(MACHINES);
    machines.wait_for_transfers(200);
    std::thread::sleep(Duration::from_millis(1000));
    machines.wait_for_transfers(200);
    machines.judge();
}

/// Machines that are stopped for less than a lease stay.
#[test]
fn a_machine_that_is_stopped_for_a_short_time_stays() {
    let mut machines = Machines::start("short", 3);
    machines.wait_for_transfers(200);
    for round in 0..3 * MACHINES {
        let stopped = 1 + round % MACHINES;
        machines.signal(stopped, Signal::STOP);
        std::thread::sleep(Duration::from_millis(10 * u64::from(round)));
        machines.signal(stopped, Signal::CONT);
        machines.wait_for_transfers(100);
    }
    assert_eq!(machines.left().len(), usize::from(MACHINES));
    machines.judge();
}

/// Machines are stopped in turn for about the time of a lease, so that some go on before the others go on without them, some while these do that, and
/// some after it. Those that were left out are started again. [`ROUNDS`] sets how often each machine is stopped.
#[test]
fn machines_go_on_at_any_moment_of_their_eviction() {
    let rounds = std::env::var(ROUNDS).map_or(3, |rounds| rounds.parse().unwrap());
    let mut machines = Machines::start_with_leases("moments", 2, PROGRAM, LEASE_MS);
    machines.wait_for_transfers(200);
    let mut last: Vec<u16> = (1..=PROGRAM).collect();
    let mut evicted = 0;
    for round in 0..rounds {
        for at in 0..last.len() {
            let (machine, process) = (at as u64 + 1, last[at]);
            machines.signal(process, Signal::STOP);
            // Ten looks make a lease, and the first one is up to a tenth of it later.
            let more = Duration::from_micros((round * 7 + machine * 11) % 40 * 400);
            std::thread::sleep(Duration::from_millis(LEASE_MS.into()) + more);
            machines.signal(process, Signal::CONT);
            if machines.goes_on(process) {
                continue;
            }
            evicted += 1;
            assert!(machines.log_has(process, WENT_ON));
            last[at] = machines.start_again(machine as u16);
            machines.wait_for_first(last[at]);
            // If the store is slow, one that went on may have been evicted later.
            wait_for("full copies", || {
                for (machine, last) in (1..).zip(&mut last) {
                    if machines.has_ended(*last) {
                        assert!(machines.log_has(*last, WENT_ON));
                        *last = machines.start_again(machine);
                    }
                }
                machines.is_full(2).then_some(())
            });
        }
    }
    println!("{evicted} of {} were evicted", rounds * u64::from(PROGRAM));
    machines.wait_for_transfers(200);
    machines.judge();
}

/// Without a majority a machine does not go on, and evicts nobody: when the others answer again, all go on.
#[test]
fn a_minority_waits_for_machines_that_are_stopped() {
    let mut machines = Machines::start("minority", 3);
    machines.wait_for_transfers(200);
    for left in 1..=MACHINES {
        let stopped: Vec<u16> = (1..=MACHINES).filter(|one| *one != left).collect();
        for process in &stopped {
            machines.signal(*process, Signal::STOP);
        }
        machines.wait_for_log(left, MINORITY);
        for process in &stopped {
            machines.signal(*process, Signal::CONT);
        }
        machines.wait_for_transfers_of(&stopped, 100);
        machines.wait_for_transfers_of(&[left], 100);
    }
    machines.judge();
}

/// One machine is stopped, and another one is killed: the third one has no majority, and waits for the one that may be alive.
#[test]
fn a_machine_is_killed_while_another_one_is_stopped() {
    for [stopped, killed, left] in [[1, 2, 3], [2, 1, 3], [2, 3, 1]] {
        let mut machines = Machines::start(&format!("killed-{stopped}-{killed}"), 3);
        machines.wait_for_transfers(200);
        machines.signal(stopped, Signal::STOP);
        machines.kill(killed);
        machines.wait_for_log(left, MINORITY);
        machines.signal(stopped, Signal::CONT);
        machines.wait_for_transfers_of(&[stopped], 100);
        machines.wait_for_transfers_of(&[left], 100);
        machines.judge();
    }
}
