//! The configuration of a cluster with copies, as its store has it: who is a member, and who has which copies.

use farm_bench::text;
use farm_core::config::Config;
use farm_core::machine::newest_configuration;
use farm_core::membership::configuration::Configuration;
use serde::Serialize;

/// The newest configuration.
#[derive(Debug, Serialize)]
pub(super) struct ConfigurationStatus {
    /// Its number, and that of the last change within it.
    number: u64,
    minor: u64,
    /// The machine that changes it.
    manager: u16,
    /// Whether all transactions of earlier configurations are decided.
    recovered: bool,
    /// The machines of the configuration file.
    machines: Vec<MemberStatus>,
}

/// What a configuration says of a machine.
#[derive(Debug, Serialize)]
struct MemberStatus {
    machine: u16,
    /// Whether a process of the machine is a member. A lost machine has none until it has come back.
    member: bool,
    /// Number of regions of which it is the primary.
    primaries: usize,
    /// Number of full copies of other regions.
    copies: usize,
    /// Number of copies that are being filled.
    filling: usize,
}

impl ConfigurationStatus {
    /// Reads the store; `None` if the cluster has no copies, or has stored nothing yet.
    pub(super) fn read(config: &Config) -> Option<Self> {
        if !config.is_logged() {
            return None;
        }
        let newest = newest_configuration(config).ok()??;
        Some(Self::of(config, &newest))
    }

    fn of(config: &Config, newest: &Configuration) -> Self {
        let machines = config.machines.iter().map(|machine| {
            let id = machine.id;
            let (mut primaries, mut copies, mut filling) = (0, 0, 0);
            for region in &newest.regions {
                match region.replicas.iter().find(|one| one.machine == id) {
                    Some(_) if region.primary() == id => primaries += 1,
                    Some(one) if one.is_full() => copies += 1,
                    Some(_) => filling += 1,
                    None => {}
                }
            }
            MemberStatus {
                machine: id.get(),
                member: newest.member(id).is_some_and(|member| member.runs()),
                primaries,
                copies,
                filling,
            }
        });
        Self {
            number: newest.version.id,
            minor: newest.version.minor,
            manager: newest.manager.get(),
            recovered: newest.recovered == newest.version.id,
            machines: machines.collect(),
        }
    }

    /// Returns the status as text.
    pub(super) fn in_words(&self) -> String {
        let heading = ["machine", "member", "primary of", "copies", "being filled"];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        for one in &self.machines {
            let member = if one.member { "yes" } else { "no" };
            lines.push(vec![
                format!("m{}", one.machine),
                member.to_owned(),
                one.primaries.to_string(),
                one.copies.to_string(),
                one.filling.to_string(),
            ]);
        }
        let state = match self.recovered {
            true => "all earlier transactions are decided",
            false => "earlier transactions are being recovered",
        };
        format!(
            "  configuration {}.{}, managed by m{}: {state}\n{}",
            self.number,
            self.minor,
            self.manager,
            text::table(&lines, [0; 2])
        )
    }
}

#[cfg(test)]
mod tests {
    use farm_core::ids::{MachineId, RegionId};
    use farm_core::membership::configuration::{
        Domain, Member, RegionReplicas, Replica, ReplicaState,
    };

    use super::*;

    #[test]
    fn lost_machines_and_copies_that_are_filled_are_shown() {
        let text = "[cluster]\nname = \"c\"\n[[machine]]\nid = 1\n[[machine]]\nid = 2\n[[machine]]\nid = 3\n";
        let config = Config::from_str(text, "a test").unwrap();
        let machine = |id| MachineId::new(id).unwrap();
        let member = |id| Member {
            machine: machine(id),
            boot: 5,
            workers: 1,
            stores: true,
            domain: Domain::default(),
        };
        let mut newest = Configuration::first("c", vec![member(1), member(3)]).unwrap();
        let replica = |id, state| Replica {
            machine: machine(id),
            since: 1,
            state,
        };
        let region = |position, second| RegionReplicas {
            region: RegionId::new(1, position).unwrap(),
            replicas: vec![replica(1, ReplicaState::Full), replica(3, second)],
            last_primary_change: 1,
        };
        newest.regions = vec![
            region(1, ReplicaState::Full),
            region(2, ReplicaState::Filling),
        ];
        newest.check().unwrap();
        let text = ConfigurationStatus::of(&config, &newest).in_words();
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "configuration 1.0, managed by m1: all earlier transactions are decided",
                "machine member primary of copies being filled",
                "m1 yes 2 0 0",
                "m2 no 0 0 0",
                "m3 yes 0 1 1",
            ]
        );
    }
}
