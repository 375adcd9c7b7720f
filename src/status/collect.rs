//! Collects the status of a machine from its workers.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farm_core::alloc::SizeClass;
use farm_core::config::Config;
use farm_core::ids::MachineId;
use farm_core::machine::Machine;
use farm_core::region::store::Store;
use farm_core::worker::{Cont, Worker};
use farm_txn::{Handle, TxError};
use futures_util::future::select;

use super::{
    ClassStatus, Counts, FillStatus, MachineStatus, MembersStatus, MemoryStatus, NameStatus,
    TableStatus, VERSION,
};
use crate::catalog::{self, Entry};
use crate::error::{Error, Kind, Result};
use crate::farm::Farm;

/// About how many buckets of a table a worker reads to count or to estimate its pairs.
const READ_BUCKETS: u32 = 4096;
/// Longest time for which a worker reads tables. Tables that it has not read by then are not reported.
const LONGEST_READ: Duration = Duration::from_secs(1);

/// What is needed to collect the status of a machine.
pub(super) struct Collector {
    /// The parts that do not change.
    fixed: MachineStatus,
    started: Instant,
    store: Arc<Store>,
    farm: Farm,
}

/// What one worker reports.
struct OfWorker {
    counts: Counts,
    classes: Vec<ClassStatus>,
    tables: Vec<TableStatus>,
    names: Vec<NameStatus>,
    members: Option<MembersStatus>,
    filling: Option<FillStatus>,
}

impl Collector {
    pub(super) fn new(config: &Config, machine: &Machine) -> Result<Self> {
        let id = machine.id();
        let farm = Farm::of(machine)?;
        let device = machine.device();
        let own = config.machine(id);
        let fixed = MachineStatus {
            version: VERSION,
            farm: env!("CARGO_PKG_VERSION").to_owned(),
            machine: id.get(),
            pid: std::process::id(),
            uptime_s: 0.0,
            workers: farm.handles().len() as u16,
            address: own
                .filter(|_| device.is_some())
                .map(|own| own.rdma.address_of(id)),
            fabric: device.map_or_else(|| "shm".to_owned(), |device| device.to_string()),
            memory: MemoryStatus {
                dir: config.memory.dir.display().to_string(),
                limit: config.memory_of(id),
                ..MemoryStatus::default()
            },
            classes: Vec::new(),
            tables: Vec::new(),
            names: Vec::new(),
            members: None,
            filling: Vec::new(),
            counts: Counts::default(),
        };
        Ok(Self {
            fixed,
            started: Instant::now(),
            store: Arc::clone(machine.store()),
            farm,
        })
    }

    /// Asks all workers, and waits for their answers, which take somewhat longer than [`LONGEST_READ`] at most.
    pub(super) fn collect(&self) -> Result<MachineStatus> {
        let mut status = self.fixed.clone();
        status.uptime_s = self.started.elapsed().as_secs_f64();
        let usage = self.store.usage();
        let usage = usage.map_err(|error| Error::new(Kind::Damaged, error.to_string()))?;
        status.memory.regions = usage.region_bytes;
        status.memory.free = usage.free_bytes;
        status.memory.slabs = usage.slab_bytes;
        status.memory.arrays = usage.array_bytes;
        let workers = self.farm.handles().iter();
        let asked = workers.map(|worker| worker.operation(of_worker));
        let answers = pollster::block_on(futures_util::future::try_join_all(asked))?;
        let mut classes: BTreeMap<u64, ClassStatus> = BTreeMap::new();
        let mut tables: BTreeMap<u16, TableStatus> = BTreeMap::new();
        for mut answer in answers {
            status.names.append(&mut answer.names);
            status.members = status.members.or(answer.members);
            status.filling.extend(answer.filling);
            status.counts = status.counts.plus(&answer.counts);
            for class in &answer.classes {
                classes.entry(class.object_bytes).or_default().add(class);
            }
            for table in &answer.tables {
                tables.entry(table.number).or_default().add(table);
            }
        }
        status.classes = classes.into_values().collect();
        status.tables = tables.into_values().collect();
        Ok(status)
    }
}

/// Collects what a worker reports.
fn of_worker(worker: &mut Worker, cont: Cont<std::result::Result<OfWorker, TxError>>) {
    farm_txn::spawn(worker, move |farm| async move {
        let mut tables = Vec::new();
        {
            // While the cluster waits for a machine, so do reads.
            let (read, limit) = (
                pin!(read_tables(&farm, &mut tables)),
                pin!(farm.sleep(LONGEST_READ)),
            );
            select(read, limit).await;
        }
        farm.at_once(|worker| {
            let own = OfWorker {
                classes: classes(worker),
                tables,
                names: names(worker),
                members: members(worker),
                filling: filling(worker),
                counts: counts(worker),
            };
            cont.resume(worker, Ok(own));
        });
    });
}

fn classes(worker: &mut Worker) -> Vec<ClassStatus> {
    let classes = SizeClass::all().filter_map(|class| {
        let usage = worker.slab_usage(class);
        (usage.blocks > 0).then_some(ClassStatus {
            object_bytes: class.object_bytes() as u64,
            objects: usage.live,
            slots: usage.slots,
            bytes: usage.reserved_bytes,
        })
    });
    classes.collect()
}

/// Adds the tables, with the pairs of this worker's shards.
async fn read_tables(farm: &Handle, all: &mut Vec<TableStatus>) {
    // Tables that cannot be opened now are not reported.
    let _ = farm_kv::tasks::open_all(farm).await;
    for spec in farm.at_once(farm_kv::ops::open_tables).unwrap_or_default() {
        if let Ok(own) = farm_kv::ops::own_shards(farm, spec.table(), READ_BUCKETS).await {
            all.push(TableStatus {
                number: spec.id,
                key_bytes: spec.key_bytes as u64,
                value_bytes: spec.value_bytes as u64,
                pairs: own.pairs,
                slots: own.slots,
                bytes: own.bytes,
            });
        }
    }
}

fn names(worker: &mut Worker) -> Vec<NameStatus> {
    let status = |(name, entry): (String, Entry)| {
        let (what, table) = match entry {
            Entry::Table(spec) => ("table", Some(spec.id)),
            Entry::Graph(graph) => ("graph", Some(graph.ids.id)),
            Entry::Sequence(_) => ("sequence", None),
        };
        let what = what.to_owned();
        NameStatus { name, what, table }
    };
    let mut names: Vec<_> = catalog::names(worker).into_iter().map(status).collect();
    names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    names
}

fn members(worker: &Worker) -> Option<MembersStatus> {
    let known = worker.members_status()?;
    let numbers = |machines: Vec<MachineId>| machines.into_iter().map(MachineId::get).collect();
    Some(MembersStatus {
        configuration: [known.configuration.id, known.configuration.minor],
        manager: known.manager.get(),
        is_changing: known.is_changing,
        waits: known.waits,
        expired: numbers(known.expired),
        recovering: numbers(known.recovering),
    })
}

fn filling(worker: &Worker) -> Option<FillStatus> {
    let fills = worker.fill_status()?;
    Some(FillStatus {
        region: fills.region.to_bits(),
        bytes: fills.bytes,
        of: fills.of,
    })
}

fn counts(worker: &mut Worker) -> Counts {
    let fabric = worker.fabric_counters();
    let messages = worker.message_counters();
    let logs = worker.log_counters();
    let lookups = farm_kv::counters(worker);
    let changes = farm_kv::change_counters(worker);
    let txns = farm_txn::counters(worker);
    Counts {
        lookups: lookups.hits + lookups.misses,
        changes: changes.changes,
        committed: txns.committed,
        aborts_locked: txns.aborts.locked,
        aborts_changed: txns.aborts.changed,
        aborts_timed_out: txns.aborts.timed_out,
        aborts_lost: txns.aborts.lost,
        aborts_other: txns.aborts.other,
        in_doubt: txns.in_doubt,
        reads: fabric.reads,
        read_bytes: fabric.read_bytes,
        writes: fabric.writes,
        write_bytes: fabric.write_bytes,
        messages: messages.calls + messages.one_way + messages.replies,
        rings_full: messages.busy,
        log_records: logs.appended,
        log_bytes: logs.appended_bytes,
        logs_full: logs.full,
    }
}
