//! Checks of combinations of values: sizes that divide each other, messages that fit their rings,
//! machines with distinct ids.

use std::collections::BTreeSet;
use std::path::Path;

use super::error::{Place, Problem, ProblemKind};
use super::keys;
use super::origin::{WHOLE, origin_of};
use super::rdma::{LEAST_SEND_DEPTH, MOST_INLINE_BYTES, MOST_SEND_DEPTH};
use super::size::exact_size;
use super::{Config, Durability, Fabric, MachineConfig, RunDir};
use crate::fabric::verbs::is_packet_size;
use crate::limits::{
    Limits, MAX_CLUSTER_NAME, MAX_CORE, MAX_FILL_RATE, MAX_IDLE_US, MAX_LEASE_MS,
    MAX_MACHINE_MEMORY_BYTES, MAX_OPERATIONS_IN_FLIGHT, MAX_PATIENCE_MS, MAX_REPLICAS,
    MAX_SOCKET_PATH_BYTES, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OBJECTS, MESSAGES_PER_RING,
    MIN_FILL_RATE, MIN_LEASE_MS, MIN_MESSAGE_BYTES, MIN_TRANSACTION_BYTES, SOCKET_NAME_BYTES,
    WORD_BYTES,
};

/// A problem, and the keys whose values cause it.
pub(super) struct Found {
    pub(super) problem: Problem,
    pub(super) involves: Vec<&'static str>,
}

/// Returns all problems.
pub(super) fn problems(config: &Config, limits: &Limits) -> Vec<Problem> {
    found(config, limits)
        .into_iter()
        .map(|found| found.problem)
        .collect()
}

/// Returns all problems with the keys that cause them.
pub(super) fn found(config: &Config, limits: &Limits) -> Vec<Found> {
    let mut check = Check {
        config,
        limits,
        block_fits: true,
        message_fits: true,
        found: Vec::new(),
    };
    check.cluster();
    check.machines();
    check.memory();
    check.rings();
    check.worker();
    check.transactions();
    check.durability();
    config.sections.check(&mut check);
    check.rdma();
    check.found
}

/// A check of a configuration, and the problems that it found so far.
pub struct Check<'a> {
    config: &'a Config,
    limits: &'a Limits,
    /// Whether `memory.block_bytes` is valid, so that other sizes can be compared with it.
    block_fits: bool,
    /// Whether `rings.max_message_bytes` is valid.
    message_fits: bool,
    found: Vec<Found>,
}

impl Check<'_> {
    /// Returns the bytes of a block, if `memory.block_bytes` is valid.
    pub fn block_bytes(&self) -> Option<u64> {
        self.block_fits.then_some(self.config.memory.block_bytes)
    }

    /// Returns the bytes of the largest message, if `rings.max_message_bytes` is valid.
    pub fn message_bytes(&self) -> Option<u64> {
        let bytes = self.config.rings.max_message_bytes;
        self.message_fits.then_some(bytes)
    }

    /// Reports a problem of `involves[0]`. The problem has the place of the first of these keys that a file or a flag
    /// sets. The problem is not reported if the value of one of the keys is unknown because another problem was found
    /// in it.
    pub fn report(
        &mut self,
        kind: ProblemKind,
        involves: &[&'static str],
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let written = involves
            .iter()
            .find_map(|key| self.config.origins.get(*key));
        let problem = Problem {
            kind,
            place: written.cloned().unwrap_or(Place::Program),
            key: involves[0].to_owned(),
            found: found.into(),
            expected: keys::expected(&self.config.sections, involves[0], self.limits),
            advice: advice.into(),
        };
        self.found.push(Found {
            problem,
            involves: involves.to_vec(),
        });
    }

    /// Reports a problem of a machine's key.
    fn report_machine(
        &mut self,
        kind: ProblemKind,
        machine: &MachineConfig,
        key: &'static str,
        found: String,
        advice: &str,
    ) {
        let origins = &self.config.origins;
        let name = key.trim_start_matches("machine.");
        let written = origins
            .get(&origin_of(machine.id, name))
            .or_else(|| origins.get(&origin_of(machine.id, "id")));
        let problem = Problem {
            kind,
            place: written.cloned().unwrap_or(Place::Program),
            key: key.to_owned(),
            found,
            expected: keys::expected(&self.config.sections, key, self.limits),
            advice: advice.to_owned(),
        };
        self.found.push(Found {
            problem,
            involves: vec![key],
        });
    }

    fn cluster(&mut self) {
        let cluster = &self.config.cluster;
        let name = &cluster.name;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > MAX_CLUSTER_NAME || !name.chars().all(plain) {
            let what = match name.chars().find(|c| !plain(*c)) {
                Some(other) => format!("{name:?} has the invalid character {other:?}"),
                None if name.is_empty() => "the cluster's name is empty".to_owned(),
                None => format!("the name has {} characters, which is too many", name.len()),
            };
            let advice = "choose a short name of lower-case letters, digits and dashes";
            self.report(ProblemKind::OutOfRange, &["cluster.name"], what, advice);
        }
        if let RunDir::Path(path) = &cluster.run_dir {
            let bytes = path.as_os_str().len();
            if !path.is_absolute() {
                self.relative("cluster.run_dir", path);
            } else if bytes + SOCKET_NAME_BYTES > MAX_SOCKET_PATH_BYTES {
                let most = MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES;
                let what = format!("the path has {bytes} bytes, {} too many", bytes - most);
                let advice = format!("choose a path of at most {most} bytes");
                self.report(ProblemKind::OutOfRange, &["cluster.run_dir"], what, advice);
            }
        }
    }

    fn relative(&mut self, key: &'static str, path: &Path) {
        let what = format!("{:?} is not an absolute path", path.to_string_lossy());
        let advice =
            "start the path with /, because machines may be started in different directories";
        self.report(ProblemKind::OutOfRange, &[key], what, advice);
    }

    fn machines(&mut self) {
        let (machines, most) = (&self.config.machines, self.limits.max_machines);
        if machines.is_empty() {
            self.found.push(Found {
                problem: Problem {
                    kind: ProblemKind::NoMachines,
                    place: self.whole(),
                    key: "machine".to_owned(),
                    found: "no machine is configured".to_owned(),
                    expected: "at least one [[machine]] section".to_owned(),
                    advice: "add a line [[machine]], and below it a line id = 1".to_owned(),
                },
                involves: vec!["machine"],
            });
        }
        if machines.len() > most {
            self.found.push(Found {
                problem: Problem {
                    kind: ProblemKind::TooManyMachines,
                    place: self.whole(),
                    key: "machine".to_owned(),
                    found: format!("there are {} machines", machines.len()),
                    expected: format!("at most {most}"),
                    advice: format!("remove {} of the machines", machines.len() - most),
                },
                involves: vec!["machine"],
            });
        }
        let mut ids = BTreeSet::new();
        for machine in machines {
            if !ids.insert(machine.id) {
                let what = format!("two machines have the id {}", machine.id.get());
                let advice = "number the machines 1, 2, 3 …";
                self.report_machine(
                    ProblemKind::DuplicateMachine,
                    machine,
                    "machine.id",
                    what,
                    advice,
                );
            }
            self.machine(machine);
        }
    }

    /// Returns the place of the file as a whole, for reports of missing parts.
    fn whole(&self) -> Place {
        self.config
            .origins
            .get(WHOLE)
            .cloned()
            .unwrap_or(Place::Program)
    }

    fn machine(&mut self, machine: &MachineConfig) {
        let (id, workers) = (machine.id.get(), machine.workers);
        if workers == 0 || usize::from(workers) > self.limits.max_workers {
            let what = format!("machine {id} cannot have {workers} workers");
            let advice = "one worker per core is a good start";
            self.report_machine(
                ProblemKind::OutOfRange,
                machine,
                "machine.workers",
                what,
                advice,
            );
        }
        let mut seen = BTreeSet::new();
        for &core in &machine.cores {
            let what = if core > MAX_CORE {
                format!("machine {id} has the core {core}, which is not a valid core number")
            } else if !seen.insert(core) {
                format!("machine {id} has the core {core} twice")
            } else {
                continue;
            };
            let advice = "list each core once, as `lscpu -e` numbers them";
            self.report_machine(
                ProblemKind::OutOfRange,
                machine,
                "machine.cores",
                what,
                advice,
            );
        }
    }

    fn memory(&mut self) {
        let memory = &self.config.memory;
        let (region, block) = (memory.region_bytes, memory.block_bytes);
        if !memory.dir.is_absolute() {
            self.relative("memory.dir", &memory.dir);
        }
        let (grain, most) = (self.limits.block_grain_bytes, self.limits.max_block_bytes);
        self.block_fits = self.power_of_two("memory.block_bytes", block, grain, most);
        if self.block_fits {
            self.multiple(
                &["memory.region_bytes", "memory.block_bytes"],
                region,
                block,
                self.limits.max_region_bytes,
            );
        }
        if region > 0 {
            self.memory_of_machines(region);
        }
    }

    /// Checks that the memory of each machine is whole regions, and that at least one machine has some.
    fn memory_of_machines(&mut self, region: u64) {
        let config = self.config;
        let keys = ["memory.per_machine_bytes", "memory.region_bytes"];
        let default = config.memory.per_machine_bytes;
        if default > 0 {
            self.multiple(&keys, default, region, MAX_MACHINE_MEMORY_BYTES);
        }
        for machine in &config.machines {
            let bytes = machine.memory_bytes.filter(|bytes| *bytes > 0);
            let wrong = bytes.and_then(|bytes| {
                not_a_multiple(bytes, (keys[1], region), MAX_MACHINE_MEMORY_BYTES)
            });
            if let Some((what, advice)) = wrong {
                let (kind, key) = (ProblemKind::ImpossibleSize, "machine.memory_bytes");
                self.report_machine(kind, machine, key, what, &advice);
            }
        }
        if !config.machines.is_empty() && config.storing_machines().next().is_none() {
            let what = "the size is 0 for every machine, so that nothing can be stored";
            let kind = ProblemKind::ImpossibleSize;
            let of_machine = config.machines.iter().find(|it| it.memory_bytes.is_some());
            match of_machine {
                Some(machine) => {
                    let key = "machine.memory_bytes";
                    self.report_machine(kind, machine, key, what.to_owned(), "write \"auto\"");
                }
                None => {
                    let advice = format!("write \"{}\"", exact_size(region));
                    self.report(kind, &keys, what, advice);
                }
            }
        }
    }

    /// Checks a size that must be a power of two between `least` and `most`.
    fn power_of_two(&mut self, key: &'static str, bytes: u64, least: u64, most: u64) -> bool {
        if bytes.is_power_of_two() && (least..=most).contains(&bytes) {
            return true;
        }
        let size = exact_size(bytes);
        let what = match bytes {
            0 => "the size is 0".to_owned(),
            _ if bytes < least => format!("{size} is less than {}", exact_size(least)),
            _ if bytes > most => format!("{size} is more than {}", exact_size(most)),
            _ => format!("{size} is not a power of two"),
        };
        let near = bytes
            .clamp(least, most)
            .checked_next_power_of_two()
            .unwrap_or(most);
        let advice = format!("write \"{}\"", exact_size(near));
        self.report(ProblemKind::ImpossibleSize, &[key], what, advice);
        false
    }

    /// Checks that the size of `keys[0]` is a positive multiple of `unit`, the value of `keys[1]`,
    /// and at most `most`.
    fn multiple(&mut self, keys: &[&'static str; 2], bytes: u64, unit: u64, most: u64) {
        if let Some((what, advice)) = not_a_multiple(bytes, (keys[1], unit), most) {
            self.report(ProblemKind::ImpossibleSize, keys, what, advice);
        }
    }

    fn rings(&mut self) {
        let rings = &self.config.rings;
        let (ring, message) = (rings.ring_bytes, rings.max_message_bytes);
        let (least, most) = (self.limits.min_ring_bytes, self.limits.max_ring_bytes);
        let ring_fits = self.power_of_two("rings.ring_bytes", ring, least, most);
        self.power_of_two("rings.log_bytes", rings.log_bytes, least, most);
        self.message_fits = message >= MIN_MESSAGE_BYTES && message.is_multiple_of(WORD_BYTES);
        if !self.message_fits {
            let what = match message {
                0 => "the size is 0".to_owned(),
                _ if message < MIN_MESSAGE_BYTES => {
                    format!("{message} bytes are too few for the smallest call")
                }
                _ => format!("{message} bytes are not whole words of {WORD_BYTES}"),
            };
            let near = message.next_multiple_of(WORD_BYTES).max(MIN_MESSAGE_BYTES);
            let advice = format!("write {near}");
            self.report(
                ProblemKind::ImpossibleSize,
                &["rings.max_message_bytes"],
                what,
                advice,
            );
        } else if ring_fits && message > ring / MESSAGES_PER_RING {
            let what = format!(
                "{} is more than 1/{MESSAGES_PER_RING} of rings.ring_bytes, which is {}",
                exact_size(message),
                exact_size(ring)
            );
            let needed = message.saturating_mul(MESSAGES_PER_RING);
            let advice = match needed
                .checked_next_power_of_two()
                .filter(|ring| *ring <= most)
            {
                Some(ring) => format!(
                    "raise rings.ring_bytes to \"{}\" or lower rings.max_message_bytes",
                    exact_size(ring)
                ),
                None => "lower rings.max_message_bytes".to_owned(),
            };
            let keys = ["rings.max_message_bytes", "rings.ring_bytes"];
            self.report(ProblemKind::Inconsistent, &keys, what, advice);
        }
    }

    fn worker(&mut self) {
        let worker = &self.config.worker;
        for (key, us) in [
            ("worker.spin_us", worker.spin_us),
            ("worker.yield_us", worker.yield_us),
        ] {
            self.whole_between(key, us, 0, MAX_IDLE_US);
        }
        let in_flight = worker.operations_in_flight;
        self.whole_between(
            "worker.operations_in_flight",
            in_flight,
            1,
            MAX_OPERATIONS_IN_FLIGHT,
        );
    }

    fn transactions(&mut self) {
        let limits = self.config.transactions;
        self.whole_between(
            "transactions.objects",
            limits.objects,
            1,
            MAX_TRANSACTION_OBJECTS,
        );
        self.whole_between(
            "transactions.patience_ms",
            limits.patience_ms,
            0,
            MAX_PATIENCE_MS,
        );
        self.whole_between("transactions.open_ms", limits.open_ms, 1, MAX_PATIENCE_MS);
        self.whole_between(
            "transactions.concurrency",
            limits.concurrency,
            1,
            MAX_OPERATIONS_IN_FLIGHT,
        );
        let (least, most) = (MIN_TRANSACTION_BYTES, MAX_TRANSACTION_BYTES);
        if !(least..=most).contains(&limits.bytes) {
            let near = exact_size(limits.bytes.clamp(least, most));
            let what = format!(
                "a limit of {} is too small or too large",
                exact_size(limits.bytes)
            );
            self.report(
                ProblemKind::ImpossibleSize,
                &["transactions.bytes"],
                what,
                format!("write \"{near}\""),
            );
        }
    }

    fn durability(&mut self) {
        let durability = &self.config.durability;
        if let Some(dir) = durability.dir.as_deref().filter(|dir| !dir.is_absolute()) {
            self.relative("durability.dir", dir);
        }
        let rate = durability.fill_rate;
        if !(MIN_FILL_RATE..=MAX_FILL_RATE).contains(&rate) {
            let near = exact_size(rate.clamp(MIN_FILL_RATE, MAX_FILL_RATE));
            self.report(
                ProblemKind::OutOfRange,
                &["durability.fill_rate"],
                format!("{} a second", exact_size(rate)),
                format!("write a size, for example \"{near}\""),
            );
        }
        self.whole_between(
            "durability.lease_ms",
            durability.lease_ms,
            MIN_LEASE_MS,
            MAX_LEASE_MS,
        );
        let Some(replicas) = durability.replicas else {
            return;
        };
        let key = "durability.replicas";
        let (asked, machines) = (
            u32::from(replicas),
            self.config.storing_machines().count() as u32,
        );
        let most = MAX_REPLICAS as u32;
        if !(1..=most).contains(&asked) {
            return self.whole_between(key, asked, 1, most);
        }
        let (what, advice) = match self.config.durability() {
            Durability::None if asked > 1 => (
                format!("{asked} copies of every region, and durability.mode is \"none\""),
                "write durability.mode = \"memory\", or replicas = 1".to_owned(),
            ),
            _ if asked > machines && machines > 0 => (
                format!(
                    "{asked} copies of every region on {machines} machine(s) that store regions"
                ),
                format!("write {machines}, or add machines"),
            ),
            _ => return,
        };
        let involves = &[key, "durability.mode", "memory.per_machine_bytes"];
        self.report(ProblemKind::Inconsistent, involves, what, advice);
    }

    /// Reports a problem if `number`, the value of `key`, is not between `least` and `most`.
    pub fn whole_between(&mut self, key: &'static str, number: u32, least: u32, most: u32) {
        if !(least..=most).contains(&number) {
            let near = number.clamp(least, most);
            let what = format!("{number} is out of range");
            self.report(
                ProblemKind::OutOfRange,
                &[key],
                what,
                format!("write {near}"),
            );
        }
    }

    fn rdma(&mut self) {
        let rdma = &self.config.rdma;
        if let Some(path) = rdma.secret_file.as_ref().filter(|path| !path.is_absolute()) {
            self.relative("rdma.secret_file", path);
        }
        let most_workers = self.limits.max_workers as u32;
        self.whole_between(
            "rdma.workers_per_queue",
            rdma.workers_per_queue,
            1,
            most_workers,
        );
        self.whole_between("rdma.receive_depth", rdma.receive_depth, 1, MOST_SEND_DEPTH);
        self.whole_between("rdma.timeout", rdma.timeout.into(), 1, 31);
        self.whole_between("rdma.service_level", rdma.service_level.into(), 0, 15);
        let depth = rdma.send_depth;
        self.whole_between("rdma.send_depth", depth, LEAST_SEND_DEPTH, MOST_SEND_DEPTH);
        if !depth.is_power_of_two() && (LEAST_SEND_DEPTH..MOST_SEND_DEPTH).contains(&depth) {
            let advice = format!("write {}", depth.next_power_of_two());
            let what = format!("{depth} is not a power of two");
            self.report(ProblemKind::OutOfRange, &["rdma.send_depth"], what, advice);
        }
        let inline = rdma.inline_bytes;
        self.whole_between("rdma.inline_bytes", inline, 8, MOST_INLINE_BYTES);
        if !inline.is_multiple_of(8) && (8..MOST_INLINE_BYTES).contains(&inline) {
            let advice = format!("write {}", inline.next_multiple_of(8));
            let what = format!("{inline} is not a multiple of {WORD_BYTES} bytes");
            self.report(
                ProblemKind::OutOfRange,
                &["rdma.inline_bytes"],
                what,
                advice,
            );
        }
        if let Some(mtu) = rdma.mtu.filter(|mtu| !is_packet_size(*mtu)) {
            let what = format!("RDMA packets cannot have {mtu} bytes");
            self.report(
                ProblemKind::OutOfRange,
                &["rdma.mtu"],
                what,
                "write \"auto\"",
            );
        }
        if self.config.cluster.fabric == Fabric::Verbs {
            self.addresses();
        }
    }

    /// Checks that machines listen at distinct, valid addresses.
    fn addresses(&mut self) {
        let mut seen = BTreeSet::new();
        for machine in &self.config.machines {
            let address = machine.rdma.address_of(machine.id);
            let port = address
                .rsplit_once(':')
                .map(|(_, port)| port.parse::<u16>());
            let (what, advice) = if !matches!(port, Some(Ok(1..))) {
                let advice = "write it like \"node1:7401\" or \"[fe80::1]:7401\"";
                (format!("{address:?} is not a host and a port"), advice)
            } else if !seen.insert(address.clone()) {
                let advice = "give every machine a port of its own";
                (format!("two machines listen at {address:?}"), advice)
            } else {
                continue;
            };
            let kind = ProblemKind::OutOfRange;
            self.report_machine(kind, machine, "machine.address", what, advice);
        }
    }
}

/// Returns the problem and the advice if a size is not a positive multiple of `unit`, which is the value of a key, or is more
/// than `most`.
fn not_a_multiple(bytes: u64, (key, unit): (&str, u64), most: u64) -> Option<(String, String)> {
    if bytes > 0 && bytes.is_multiple_of(unit) && bytes <= most {
        return None;
    }
    let size = exact_size(bytes);
    let what = match bytes {
        0 => "the size is 0".to_owned(),
        _ if bytes > most => format!("{size} is more than {}", exact_size(most)),
        _ => format!(
            "{size} is not a multiple of {key}, which is {}",
            exact_size(unit)
        ),
    };
    let most = most - most % unit;
    let near = bytes
        .checked_next_multiple_of(unit)
        .map_or(most, |near| near.min(most));
    let advice = match near.max(unit) {
        near if unit <= most => format!("write \"{}\"", exact_size(near)),
        _ => format!("lower {key}"),
    };
    Some((what, advice))
}
