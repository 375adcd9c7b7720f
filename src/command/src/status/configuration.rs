//! The configuration of a cluster with copies, as its store has it: who is a member, and who has which copies.

use farm::status::{MachineStatus, MembersStatus};
use farm_bench::text;
use farm_core::config::{Config, rounded_size};
use farm_core::ids::MachineId;
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
    role: Role,
    /// Number of regions of which it is the primary.
    primaries: usize,
    /// Number of full copies of other regions.
    copies: usize,
    /// Number of copies that are being filled.
    filling: usize,
}

/// The part of a machine in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    /// It changes the configuration, and stores regions.
    Manager,
    /// It stores regions.
    Member,
    /// It stores nothing.
    Program,
    /// It is no member.
    None,
}

impl Role {
    fn of(newest: &Configuration, machine: MachineId) -> Self {
        match newest.running_on(machine) {
            Some(_) if newest.manager == machine => Self::Manager,
            Some(member) if member.stores => Self::Member,
            Some(_) => Self::Program,
            None => Self::None,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Member => "member",
            Self::Program => "program",
            Self::None => "not a member",
        }
    }
}

impl ConfigurationStatus {
    /// Reads the store; `None` if the cluster has no copies, or has stored nothing yet.
    pub(super) fn read(config: &Config) -> Option<Self> {
        if !config.is_logged() {
            return None;
        }
        let newest = newest_configuration(config).inspect_err(|error| {
            tracing::warn!(%error, "the newest configuration is not shown: its store cannot be read");
        });
        let newest = newest.ok()??;
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
            let role = Role::of(newest, id);
            MemberStatus {
                machine: id.get(),
                member: role != Role::None,
                role,
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
        let heading = ["machine", "role", "primary of", "copies", "being filled"];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        for one in &self.machines {
            lines.push(vec![
                format!("m{}", one.machine),
                one.role.in_words().to_owned(),
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

/// Returns what a machine finds of the others, and which copies it fills: nothing if there is nothing to say.
pub(super) fn findings(status: &MachineStatus) -> String {
    let machine = status.machine;
    let mut lines = Vec::new();
    if let Some(members) = &status.members {
        lines.extend(of_members(machine, members));
    }
    let (mut bytes, mut of) = (0, Some(0));
    for fill in &status.filling {
        bytes += fill.bytes;
        of = of.zip(fill.of).map(|(sum, of)| sum + of);
    }
    if !status.filling.is_empty() {
        let of = of.map_or_else(String::new, |of| format!(" of {}", rounded_size(of)));
        let copies = status.filling.len();
        let copied = rounded_size(bytes);
        lines.push(format!(
            "  m{machine} fills {copies} cop{}: {copied}{of}",
            if copies == 1 { "y" } else { "ies" }
        ));
    }
    lines.join("\n")
}

fn of_members(machine: u16, members: &MembersStatus) -> Vec<String> {
    let mut lines = Vec::new();
    for expired in &members.expired {
        lines.push(format!(
            "  m{machine} finds that the lease of m{expired} has expired"
        ));
    }
    match &members.waits {
        Some(why) => lines.push(format!("  m{machine} waits: {why}")),
        None if members.is_changing => {
            lines.push(format!("  m{machine} changes to another configuration"));
        }
        None => {}
    }
    if !members.recovering.is_empty() {
        let recovering: Vec<String> = members
            .recovering
            .iter()
            .map(|machine| format!("m{machine}"))
            .collect();
        lines.push(format!(
            "  transactions of earlier configurations are recovered by {}",
            recovering.join(", ")
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use farm_core::ids::RegionId;
    use farm_core::membership::configuration::{
        Domain, Member, RegionReplicas, Replica, ReplicaState,
    };

    use super::*;

    /// A JSON status without the fields that say nothing here.
    fn status(more: &str) -> MachineStatus {
        let text = format!(
            r#"{{"version": 1, "farm": "", "machine": 1, "pid": 1, "uptime_s": 1.0, "workers": 1, "fabric": "shm", "address": null,
                "memory": {{"dir": "", "limit": 0, "regions": 0, "free": 0, "slabs": 0, "arrays": 0}}, "classes": [], "tables": [],
                "counts": {{}} {more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn machines_say_what_they_find_and_fill() {
        assert_eq!(findings(&status("")), "");
        let members = |more: &str| {
            let known = r#""configuration": [3, 0], "manager": 1"#;
            findings(&status(&format!(r#", "members": {{{known}, {more}}}"#)))
        };
        let waits = r#""is_changing": true, "waits": "of 3 machines, only 1", "expired": [2, 3], "recovering": []"#;
        let expected = [
            "  m1 finds that the lease of m2 has expired",
            "  m1 finds that the lease of m3 has expired",
            "  m1 waits: of 3 machines, only 1",
        ];
        assert_eq!(members(waits), expected.join("\n"));
        let recovers =
            r#""is_changing": false, "waits": null, "expired": [], "recovering": [1, 3]"#;
        assert_eq!(
            members(recovers),
            "  transactions of earlier configurations are recovered by m1, m3"
        );
        let fills = r#", "filling": [{"region": 7, "bytes": 1048576, "of": 4194304}, {"region": 8, "bytes": 1048576, "of": 2097152}]"#;
        assert_eq!(
            findings(&status(fills)),
            "  m1 fills 2 copies: 2 MiB of 6 MiB"
        );
        let begins = r#", "filling": [{"region": 7, "bytes": 0, "of": null}]"#;
        assert_eq!(findings(&status(begins)), "  m1 fills 1 copy: 0 B");
    }

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
                "machine role primary of copies being filled",
                "m1 manager 2 0 0",
                "m2 not a member 0 0 0",
                "m3 member 0 1 1",
            ]
        );
    }
}
