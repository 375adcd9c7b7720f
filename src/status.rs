//! What a running machine reports about itself, to `farm status` and to programs.
//!
//! A thread of each machine listens at a socket of this host, in the abstract namespace of Unix sockets, so that it leaves no
//! file. It writes one JSON document to each caller of the same user, and closes the connection. The workers are asked,
//! and go on. Another thread answers requests about the machine's [replicas], at a socket of its own.

mod client;
mod collect;
pub mod replicas;
mod server;

use farm_core::config::Config;
use farm_core::ids::MachineId;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::error::Kind;
use crate::error::Result;
pub use server::StatusServer;
use server::Topic;

/// The version of [`MachineStatus`]; it changes when a field gets another meaning.
pub const VERSION: u32 = 1;
/// The number of the table of names.
pub const CATALOG_TABLE: u16 = crate::catalog::CATALOG;

/// What a machine reports. Counts begin with the machine; the sums are over its workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineStatus {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the crate `farm` of the machine's program.
    pub farm: String,
    /// Number of the machine.
    pub machine: u16,
    /// Process of the machine.
    pub pid: u32,
    /// Seconds since the machine started.
    pub uptime_s: f64,
    /// Number of workers.
    pub workers: u16,
    /// `shm`, or the device, port and GID.
    pub fabric: String,
    /// Address at which the machine listens, on RDMA devices.
    pub address: Option<String>,
    /// Memory of objects.
    pub memory: MemoryStatus,
    /// Size classes with slots on this machine, in ascending order.
    pub classes: Vec<ClassStatus>,
    /// Tables that are open on this machine, with the pairs of its shards.
    pub tables: Vec<TableStatus>,
    /// The names of tables, sequences and the graph. One machine of a cluster has the list; it may be incomplete while names
    /// are added.
    #[serde(default)]
    pub names: Vec<NameStatus>,
    /// What the machine knows of the configuration, in a cluster that survives the loss of a machine.
    #[serde(default)]
    pub members: Option<MembersStatus>,
    /// Copies of regions that its workers fill now.
    #[serde(default)]
    pub filling: Vec<FillStatus>,
    /// Counts of operations.
    pub counts: Counts,
}

/// What a machine knows of the configuration of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersStatus {
    /// Number of the newest configuration that is in effect, and of the last change within it.
    pub configuration: [u64; 2],
    /// The machine that manages it.
    pub manager: u16,
    /// Whether another configuration is made or applied.
    pub is_changing: bool,
    /// Why that waits.
    pub waits: Option<String>,
    /// Machines whose leases have expired, as this machine finds.
    pub expired: Vec<u16>,
    /// On the manager, the machines that have not recovered transactions of earlier configurations.
    pub recovering: Vec<u16>,
}

/// A copy of a region that a worker fills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillStatus {
    /// The region.
    pub region: u32,
    /// Bytes that were read from its primary.
    pub bytes: u64,
    /// Bytes of everything that is to be read, when that is known.
    pub of: Option<u64>,
}

/// A name, and what it names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NameStatus {
    /// The name.
    pub name: String,
    /// `table`, `graph` or `sequence`.
    pub what: String,
    /// Number of the table, or of the table of the graph's ids.
    pub table: Option<u16>,
}

/// Memory of a machine's regions, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Directory of the memory.
    pub dir: String,
    /// Most bytes that the regions may take.
    pub limit: u64,
    /// Bytes that the regions take.
    pub regions: u64,
    /// Bytes of free blocks.
    pub free: u64,
    /// Bytes of blocks with objects of one size class.
    pub slabs: u64,
    /// Bytes of arrays, such as the buckets of tables.
    pub arrays: u64,
}

/// Objects of one size class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassStatus {
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Number of objects.
    pub objects: u64,
    /// Number of slots, used and free.
    pub slots: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}

/// A table, on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatus {
    /// Number of the table.
    pub number: u16,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Number of pairs in the shards of this machine; an estimate if the table is large.
    pub pairs: u64,
    /// Number of slots in the buckets of these shards.
    pub slots: u64,
    /// Bytes of buckets and overflow blocks of these shards.
    pub bytes: u64,
}

impl ClassStatus {
    /// Adds the same class on another worker or machine.
    pub fn add(&mut self, other: &Self) {
        self.object_bytes = other.object_bytes;
        self.objects += other.objects;
        self.slots += other.slots;
        self.bytes += other.bytes;
    }
}

impl TableStatus {
    /// Adds the same table on another worker or machine.
    pub fn add(&mut self, other: &Self) {
        self.number = other.number;
        (self.key_bytes, self.value_bytes) = (other.key_bytes, other.value_bytes);
        self.pairs += other.pairs;
        self.slots += other.slots;
        self.bytes += other.bytes;
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counts of a machine since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counts {
            /// Returns the sum of two counts.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name),)+ }
            }

            /// Returns the counts since `before`. If the machine has started again meanwhile, they are those since its start.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.checked_sub(before.$name).unwrap_or(self.$name),)+ }
            }
        }
    };
}

counts! {
    /// Lookups in tables outside of transactions.
    lookups,
    /// Changes of pairs of this machine's shards, without those of callers' transactions.
    changes,
    /// Transactions that committed, with those that make changes of tables.
    committed,
    /// Commits that met a lock of another transaction.
    aborts_locked,
    /// Commits that met a change of another transaction.
    aborts_changed,
    /// Reads that waited too long for a lock.
    aborts_timed_out,
    /// Transactions that needed a lost machine.
    aborts_lost,
    /// Transactions that ended for other reasons.
    aborts_other,
    /// Commits whose outcome is unknown.
    in_doubt,
    /// One-sided reads.
    reads,
    /// Bytes of one-sided reads.
    read_bytes,
    /// One-sided writes.
    writes,
    /// Bytes of one-sided writes.
    write_bytes,
    /// Messages sent through rings: calls, one-way messages and replies.
    messages,
    /// Calls that were not sent at once because a ring was full.
    rings_full,
    /// Records appended to logs of other machines.
    log_records,
    /// Bytes of these records.
    log_bytes,
    /// Reservations that found a log full.
    logs_full,
}

impl Counts {
    /// Returns the number of aborts for all reasons.
    pub fn aborts(&self) -> u64 {
        self.aborts_locked
            + self.aborts_changed
            + self.aborts_timed_out
            + self.aborts_lost
            + self.aborts_other
    }
}

/// Returns the status of a machine of this host; `None` if it does not run.
///
/// # Errors
/// [`Kind::Refused`] if the machine does not answer, belongs to another user, or answers in a way that this version does not
/// know.
pub fn machine_status(config: &Config, machine: MachineId) -> Result<Option<MachineStatus>> {
    let status: Option<MachineStatus> =
        client::ask(config, machine, Topic::Status, &[], client::PATIENCE)?;
    let Some(status) = status else {
        return Ok(None);
    };
    if status.version != VERSION {
        let (theirs, version) = (status.version, &status.farm);
        let why = format!(
            "its status has version {theirs}, not {VERSION}; use the program of farm {version}"
        );
        return Err(client::refused(machine, why));
    }
    Ok(Some(status))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    use farm_kv::TableSpec;

    use super::*;
    use crate::{Cluster, Error, Kind, Table};

    #[test]
    fn machines_of_a_process_report_until_they_stop() {
        let cluster = Cluster::local(2).workers(2).start().unwrap();
        let config = cluster.config().clone();
        let table: Table<u64, u64> = cluster.create_table("t", 100).unwrap();
        // The second machine does not open it before it is asked for its status.
        let own = TableSpec::sized(7, 4, 8, 4, 100, 0.5).unwrap();
        cluster
            .block_on(async |farm| {
                let own = farm_kv::tasks::open(&farm.handles()[0], own).await?;
                let insert = async |tx: farm_txn::Transaction<'_>| {
                    for key in 0..20 {
                        let change = farm_kv::Change::Insert(&[0; 8]);
                        farm_kv::tasks::change(tx, own, &[key; 16], change).await?;
                    }
                    Ok(())
                };
                farm.handles()[0].transact(insert).await?;
                for key in 0..50 {
                    table.insert(&farm, key, key).await?;
                    table.get(&farm, key).await?;
                }
                Ok::<_, Error>(())
            })
            .unwrap();
        let read = |config: &Config| {
            let machines = config.machines.iter();
            let all = machines.map(|machine| machine_status(config, machine.id).unwrap());
            all.collect::<Vec<_>>()
        };
        let all: Vec<MachineStatus> = read(&config).into_iter().flatten().collect();
        assert_eq!(all.len(), 2);
        for (number, expected) in [(table.spec().id, 50), (own.id, 20)] {
            let tables = all.iter().flat_map(|status| &status.tables);
            let pairs = tables.filter(|it| it.number == number).map(|it| it.pairs);
            assert_eq!(pairs.sum::<u64>(), expected);
        }
        let counts = all
            .iter()
            .fold(Counts::default(), |sum, it| sum.plus(&it.counts));
        assert!(counts.lookups >= 50 && counts.changes >= 50, "{counts:?}");
        assert_eq!(counts.since(&counts), Counts::default());
        assert_eq!(all[0].workers, 2);
        cluster.stop().unwrap();
        assert_eq!(read(&config), [None, None]);
    }

    #[test]
    fn another_answer_than_a_status_is_refused() {
        let mut config = farm_graph::config::default_for(1, 1);
        config.cluster.name = format!("status-garbage-{}", std::process::id());
        let machine = config.machines[0].id;
        let listener =
            UnixListener::bind_addr(&server::address(&config, machine, Topic::Status).unwrap())
                .unwrap();
        let answers = ["", "{}", "\u{0}garbage", "{\"version\": 1}"];
        let answering = std::thread::spawn(move || {
            for answer in answers {
                let (mut caller, _) = listener.accept().unwrap();
                caller.write_all(answer.as_bytes()).unwrap();
            }
        });
        for _ in answers {
            let error = machine_status(&config, machine).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{error}");
            assert!(error.to_string().contains("not readable"), "{error}");
        }
        answering.join().unwrap();
    }
}
