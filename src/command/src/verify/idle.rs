//! Whether a cluster changes its data.
//!
//! Everything that a commit changes is in a log record before, and a record is freed after it was applied, on every replica. So while
//! no byte is written into any log, and all bytes that were written are freed, no replica changes.
//!
//! A machine without memory can connect, write and leave between two looks, and is in neither of them. Each machine therefore counts
//! the connections that began or ended, and a machine that is connected must answer.

use farm::status::replicas::{LogPositions, ReplicaState};
use farm_core::ids::MachineId;

/// Checks that there are several replicas.
///
/// # Errors
/// That there is nothing to compare.
pub(super) fn check_replicated(states: &[ReplicaState]) -> Result<(), String> {
    let Some(state) = states.first() else {
        return Ok(());
    };
    let advice =
        "set durability.mode = \"memory\" and durability.replicas of at least 2 to have copies";
    match (state.is_logged, state.replicas) {
        (false, _) => Err(format!(
            "there is nothing to compare: it runs with durability.mode = \"none\", and stores every region once; {advice}"
        )),
        (true, 0 | 1) => Err(format!(
            "there is nothing to compare: it runs with durability.replicas = 1, and stores every region once; {advice}"
        )),
        (true, _) => Ok(()),
    }
}

/// Returns what has changed from one look at the machines to the next, or what is still to be applied; `None` if the cluster is idle.
pub(super) fn moving(before: &[ReplicaState], now: &[ReplicaState]) -> Option<String> {
    changed(before, now)
        .or_else(|| silent(now))
        .or_else(|| unapplied(now))
}

fn changed(before: &[ReplicaState], now: &[ReplicaState]) -> Option<String> {
    if before.len() != now.len() {
        return Some("a machine has joined or left".to_owned());
    }
    before.iter().zip(now).find_map(|(before, now)| {
        let machine = now.machine;
        if before == now {
            None
        } else if (before.machine, before.pid) != (machine, now.pid) {
            Some(format!("machine {machine} has started again"))
        } else if before.regions != now.regions {
            Some(format!("machine {machine} has learned of new regions"))
        } else {
            let log = now.logs.iter().zip(&before.logs).find(|(a, b)| a != b);
            let (now, before) = log?;
            if (now.connected, now.changes) != (before.connected, before.changes) {
                return Some(format!("machine {} has joined or left", now.machine));
            }
            Some(match now.written.wrapping_sub(before.written) {
                0 => format!(
                    "machine {machine} has applied log records of {}",
                    now.machine
                ),
                written => format!(
                    "machine {machine} has written {written} B of log records to {}",
                    now.machine
                ),
            })
        }
    })
}

/// Returns a machine that is connected to another one, and did not answer.
fn silent(states: &[ReplicaState]) -> Option<String> {
    let connected = |state: &ReplicaState| {
        let mut logs = state.logs.iter().filter(|log| log.connected);
        let silent = logs.find(|log| !states.iter().any(|state| state.machine == log.machine))?;
        let (one, silent) = (state.machine, silent.machine);
        Some(format!(
            "machine {silent} is connected to {one}, and does not answer this command"
        ))
    };
    states.iter().find_map(connected)
}

/// Returns which log records are not applied, or which machines do not know all regions.
fn unapplied(states: &[ReplicaState]) -> Option<String> {
    let first = states.first()?;
    let other = states.iter().find(|state| state.regions != first.regions);
    if let Some(other) = other {
        let (one, other) = (first.machine, other.machine);
        return Some(format!(
            "machines {one} and {other} do not know the same regions"
        ));
    }
    states.iter().find_map(|from| {
        states.iter().find_map(|to| {
            let written = with(from, to.machine)?.written;
            let left = written.checked_sub(with(to, from.machine)?.freed)?;
            let (from, to) = (from.machine, to.machine);
            (left > 0)
                .then(|| format!("machine {to} has not applied {left} B of log records of {from}"))
        })
    })
}

/// Returns the logs between a machine and another one. A machine that has left is in no state.
fn with(state: &ReplicaState, other: MachineId) -> Option<&LogPositions> {
    state.logs.iter().find(|log| log.machine == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: u16) -> MachineId {
        MachineId::new(id).unwrap()
    }

    /// Returns the state of a machine of two, with the bytes written and freed in the logs with each.
    fn state(id: u16, logs: [(u64, u64); 2]) -> ReplicaState {
        let logs = [1, 2].into_iter().zip(logs);
        let logs = logs.map(|(other, (written, freed))| LogPositions {
            machine: machine(other),
            written,
            freed,
            connected: true,
            changes: 0,
        });
        ReplicaState::new(machine(id), 2, logs.collect())
    }

    #[test]
    fn a_cluster_is_idle_if_all_that_was_written_is_freed() {
        let states = |freed| {
            vec![
                state(1, [(7, 7), (100, 50)]),
                state(2, [(50, freed), (0, 0)]),
            ]
        };
        assert_eq!(moving(&states(100), &states(100)), None);
        let left = moving(&states(60), &states(60)).unwrap();
        assert_eq!(left, "machine m2 has not applied 40 B of log records of m1");
        let applied = moving(&states(60), &states(100)).unwrap();
        assert_eq!(applied, "machine m2 has applied log records of m1");
        let mut own = states(100);
        own[0].logs[0].written = 9;
        let left = moving(&own, &own).unwrap();
        assert_eq!(left, "machine m1 has not applied 2 B of log records of m1");
        let written = moving(&states(100), &own).unwrap();
        assert_eq!(written, "machine m1 has written 2 B of log records to m1");
        // The second machine has left.
        let mut one = states(100);
        one.pop();
        let silent = moving(&one, &one).unwrap();
        assert_eq!(
            silent,
            "machine m2 is connected to m1, and does not answer this command"
        );
        one[0].logs[1].connected = false;
        assert_eq!(moving(&one, &one), None);
        assert!(moving(&states(100), &one).unwrap().contains("left"));
        // It has joined, written, and left between the two looks.
        let mut again = one.clone();
        again[0].logs[1].changes += 2;
        assert_eq!(
            moving(&one, &again).unwrap(),
            "machine m2 has joined or left"
        );
    }

    #[test]
    fn machines_that_start_again_or_learn_of_regions_are_reported() {
        let before = vec![state(1, [(0, 0); 2])];
        let mut now = before.clone();
        now[0].pid += 1;
        assert!(moving(&before, &now).unwrap().contains("started again"));
        let region = farm_core::ids::RegionId::new(3, 4).unwrap();
        let mut now = before.clone();
        now[0].regions = vec![farm::status::replicas::RegionReplicas {
            region,
            machines: vec![machine(1), machine(2)],
        }];
        assert!(moving(&before, &now).unwrap().contains("new regions"));
        now.push(state(2, [(0, 0); 2]));
        assert!(moving(&now, &now).unwrap().contains("m1 and m2"));
    }

    #[test]
    fn nothing_is_compared_without_replicas() {
        let mut one = state(1, [(0, 0); 2]);
        assert_eq!(check_replicated(&[one.clone()]), Ok(()));
        one.replicas = 1;
        assert!(
            check_replicated(&[one.clone()])
                .unwrap_err()
                .contains("durability.replicas = 1")
        );
        one.is_logged = false;
        assert!(check_replicated(&[one]).unwrap_err().contains("\"none\""));
    }
}
