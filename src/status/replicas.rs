//! What a running machine reports about its replicas of regions, to `farm verify`.
//!
//! A caller sends one request as JSON, and receives the answer. Digests are computed from memory by the thread that answers. Only the
//! positions of the logs are asked of the workers, in one of their turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farm_core::alloc::BlockTable;
use farm_core::alloc::replicas::{BlockDigest, SlotDigest, block_digests, slot_digests};
use farm_core::config::Config;
use farm_core::ids::{MachineId, RegionId};
use farm_core::machine::Machine;
use farm_core::region::store::Store;
use serde::{Deserialize, Serialize};

use super::client::{PATIENCE, ask, refused};
use super::server::Topic;
use crate::error::{Error, Kind, Result};
use crate::farm::Farm;

/// The version of requests and answers; it changes when a field gets another meaning.
const VERSION: u32 = 2;
/// Number of slots in one answer.
const PAGE_SLOTS: u32 = 4096;

/// Longest time that a caller waits for digests: a region has at most 4 GiB.
const DIGEST_PATIENCE: Duration = Duration::from_secs(60);

/// A request about the replicas of a machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Request {
    /// [`ReplicaState`].
    State,
    /// The [keys](Config::canonical) on which the machines agree, as text.
    Configuration,
    /// [`RegionDigest`].
    Region { region: RegionId },
    /// [`SlotPage`].
    Slots {
        region: RegionId,
        block: u32,
        from: u32,
    },
}

/// What a machine knows of the replicas of the cluster, and the positions of its logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaState {
    version: u32,
    /// Version of the crate `farm` of the machine's program.
    pub farm: String,
    /// The machine.
    pub machine: MachineId,
    /// Process of the machine.
    pub pid: u32,
    /// [Digest](Config::digest) of the machine's configuration.
    #[serde(default)]
    pub digest: u64,
    /// Whether commits write records of all that they change, for copies.
    pub is_logged: bool,
    /// Number of replicas of every region.
    pub replicas: u64,
    /// The regions that the configuration has, in ascending order.
    pub regions: Vec<RegionReplicas>,
    /// The logs between this machine and each machine of the cluster, itself included.
    pub logs: Vec<LogPositions>,
}

impl ReplicaState {
    /// Creates the state of a machine of this process that knows no regions, with this number of replicas of each.
    pub fn new(machine: MachineId, replicas: u64, logs: Vec<LogPositions>) -> Self {
        Self {
            version: VERSION,
            farm: env!("CARGO_PKG_VERSION").to_owned(),
            machine,
            pid: std::process::id(),
            digest: 0,
            is_logged: true,
            replicas,
            regions: Vec::new(),
            logs,
        }
    }
}

/// A region, and the machines that store it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionReplicas {
    /// The region.
    pub region: RegionId,
    /// The machines, the primary first.
    pub machines: Vec<MachineId>,
}

/// Bytes of the logs between two machines, summed over their workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPositions {
    /// The other machine.
    pub machine: MachineId,
    /// Bytes that this machine has written into its logs there.
    pub written: u64,
    /// Bytes that this machine has freed in the logs of that machine here.
    pub freed: u64,
    /// Whether a worker of this machine is connected to that machine.
    #[serde(default)]
    pub connected: bool,
    /// Number of connections of this machine's workers to that machine that began or ended after the start.
    #[serde(default)]
    pub changes: u64,
}

/// A machine's replica of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionDigest {
    /// Its blocks, in ascending order.
    Blocks(Vec<BlockDigest>),
    /// Its block table is damaged, for this reason.
    Damaged(String),
    /// The machine does not store the region.
    Missing,
}

/// A part of the slots of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPage {
    /// The slots that commits have changed, in ascending order.
    pub slots: Vec<SlotDigest>,
    /// The slot at which the next part begins, if there is one.
    pub next: Option<u32>,
}

/// Returns what a machine of this host knows of the replicas; `None` if it does not run, or its program is older than this request.
///
/// # Errors
/// [`Kind::Refused`] if the machine does not answer, belongs to another user, or answers in a way that this version does not know.
pub fn replica_state(config: &Config, machine: MachineId) -> Result<Option<ReplicaState>> {
    let state: Option<ReplicaState> = request(config, machine, Request::State)?;
    match state {
        Some(state) if state.version != VERSION => {
            let (theirs, version) = (state.version, &state.farm);
            let why = format!(
                "its answer about its replicas has version {theirs}, not {VERSION}; use the program of farm {version}"
            );
            Err(refused(machine, why))
        }
        state => Ok(state),
    }
}

/// Returns the keys on which the machines of a cluster agree, with the values of this machine, as [`Config::canonical`] lists them;
/// `None` if the machine does not run.
///
/// # Errors
/// As [`replica_state`].
pub fn running_configuration(config: &Config, machine: MachineId) -> Result<Option<String>> {
    request(config, machine, Request::Configuration)
}

/// Returns the digests of a machine's replica of a region, while nothing changes it; `None` if the machine does not run.
///
/// # Errors
/// As [`replica_state`].
pub fn region_digest(
    config: &Config,
    machine: MachineId,
    region: RegionId,
) -> Result<Option<RegionDigest>> {
    request(config, machine, Request::Region { region })
}

/// Returns the digests of the slots of a block from a slot on; `None` if the machine does not run. There are none if the machine does not
/// store the region, or its table is damaged.
///
/// # Errors
/// As [`replica_state`].
pub fn slot_page(
    config: &Config,
    machine: MachineId,
    (region, block): (RegionId, u32),
    from: u32,
) -> Result<Option<SlotPage>> {
    let slots = Request::Slots {
        region,
        block,
        from,
    };
    request(config, machine, slots)
}

fn request<T: serde::de::DeserializeOwned>(
    config: &Config,
    machine: MachineId,
    request: Request,
) -> Result<Option<T>> {
    let patience = match request {
        Request::State | Request::Configuration => PATIENCE,
        Request::Region { .. } | Request::Slots { .. } => DIGEST_PATIENCE,
    };
    let request = serde_json::to_vec(&request).map_err(std::io::Error::from)?;
    ask(config, machine, Topic::Replicas, &request, patience)
}

/// Answers requests about the replicas of a machine of this process.
pub(super) struct Inspector {
    store: Arc<Store>,
    farm: Farm,
    /// [`Config::canonical`] of the machine's configuration, and its digest.
    configuration: (String, u64),
}

impl Inspector {
    pub(super) fn new(config: &Config, machine: &Machine) -> Result<Self> {
        Ok(Self {
            configuration: (config.canonical(), config.digest()),
            store: Arc::clone(machine.store()),
            farm: Farm::of(machine)?,
        })
    }

    /// Returns the answer to a request. Gives up when the machine ends.
    ///
    /// # Errors
    /// [`Kind::Refused`] for a request that is not readable; [`Kind::Stopped`].
    pub(super) fn answer(&self, request: &[u8], ends: &AtomicBool) -> Result<Vec<u8>> {
        let request = serde_json::from_slice(request).map_err(|error| {
            let text = format!("the request about replicas is not readable: {error}");
            Error::new(Kind::Refused, text)
        })?;
        let answer = match request {
            Request::State => serde_json::to_vec(&self.state()?),
            Request::Configuration => serde_json::to_vec(&self.configuration.0),
            Request::Region { region } => serde_json::to_vec(&self.region(region, ends)?),
            Request::Slots {
                region,
                block,
                from,
            } => serde_json::to_vec(&self.slots(region, block, from)),
        };
        Ok(answer.map_err(std::io::Error::from)?)
    }

    fn state(&self) -> Result<ReplicaState> {
        let workers = self.farm.handles().iter();
        let asked = workers.map(|worker| worker.with_worker(|worker| worker.log_bytes()));
        let answers = pollster::block_on(futures_util::future::try_join_all(asked))?;
        let mut logs: Vec<LogPositions> = Vec::new();
        for log in answers.into_iter().flatten() {
            let log = LogPositions {
                machine: log.machine,
                written: log.written,
                freed: log.freed,
                connected: log.connected,
                changes: log.changes,
            };
            match logs.iter_mut().find(|sum| sum.machine == log.machine) {
                Some(sum) => {
                    sum.written += log.written;
                    sum.freed += log.freed;
                    sum.connected |= log.connected;
                    sum.changes += log.changes;
                }
                None => logs.push(log),
            }
        }
        let regions = self.store.map().all().into_iter();
        let regions = regions.map(|(region, replicas)| RegionReplicas {
            region,
            machines: replicas.all().to_vec(),
        });
        let replication = self.store.replication();
        Ok(ReplicaState {
            digest: self.configuration.1,
            is_logged: replication.logged,
            regions: regions.collect(),
            ..ReplicaState::new(self.farm.machine(), replication.replicas as u64, logs)
        })
    }

    /// Returns the table of a replica of this machine, or what there is instead.
    fn table(&self, region: RegionId) -> Result<BlockTable, RegionDigest> {
        let memory = self.store.replica(region).ok_or(RegionDigest::Missing)?;
        BlockTable::open(memory, region).map_err(|error| RegionDigest::Damaged(error.to_string()))
    }

    fn region(&self, region: RegionId, ends: &AtomicBool) -> Result<RegionDigest> {
        let table = match self.table(region) {
            Ok(table) => table,
            Err(instead) => return Ok(instead),
        };
        let mut blocks = Vec::new();
        for digest in block_digests(&table) {
            if ends.load(Ordering::Acquire) {
                return Err(Error::new(Kind::Stopped, "the machine stops"));
            }
            match digest {
                Ok(digest) => blocks.push(digest),
                Err(error) => return Ok(RegionDigest::Damaged(error.to_string())),
            }
        }
        Ok(RegionDigest::Blocks(blocks))
    }

    fn slots(&self, region: RegionId, block: u32, from: u32) -> SlotPage {
        let table = self.table(region).ok();
        let table = table.filter(|table| block < table.geometry().blocks());
        let run = table.and_then(|table| table.run_at(block).ok().flatten());
        let Some(run) = run else {
            return SlotPage::default();
        };
        let end = from.saturating_add(PAGE_SLOTS);
        SlotPage {
            slots: slot_digests(&run, from..end).collect(),
            next: (end < run.slots()).then_some(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, Table};

    /// Returns a cluster with two replicas of every region, and the directory of its configuration.
    fn replicated() -> (Cluster, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::local(2)
            .set("durability.mode", "memory")
            .set("durability.replicas", "2")
            .set("durability.dir", dir.path().to_str().unwrap());
        (cluster.start().unwrap(), dir)
    }

    #[test]
    fn machines_report_their_replicas_and_any_request_has_an_answer() {
        let (cluster, _dir) = replicated();
        let config = cluster.config().clone();
        let table: Table<u64, u64> = cluster.create_table("t", 100).unwrap();
        let insert = async |farm| table.insert(&farm, 1, 2).await;
        cluster.block_on(insert).unwrap();
        let ids = [1, 2].map(|id| MachineId::new(id).unwrap());
        let states = ids.map(|id| replica_state(&config, id).unwrap().unwrap());
        for (state, id) in states.iter().zip(ids) {
            assert_eq!((state.machine, state.replicas), (id, 2));
            assert!(state.is_logged);
            assert_eq!(state.logs.len(), 2);
            assert!(
                state
                    .logs
                    .iter()
                    .all(|log| log.connected && log.changes == 0)
            );
            assert_eq!(state.digest, config.digest());
            let running = running_configuration(&config, id).unwrap();
            assert_eq!(running, Some(config.canonical()));
            assert_eq!(state.regions, states[0].regions);
        }
        let region = states[0].regions[0].region;
        assert_eq!(states[0].regions[0].machines.len(), 2);
        let digest = region_digest(&config, ids[1], region).unwrap().unwrap();
        let RegionDigest::Blocks(blocks) = digest else {
            panic!("{digest:?}");
        };
        assert_eq!(blocks.first().map(|block| block.block), Some(0));
        let absent = RegionId::new(99, RegionId::MAX_POSITION).unwrap();
        let digest = region_digest(&config, ids[0], absent).unwrap();
        assert_eq!(digest, Some(RegionDigest::Missing));
        for (block, from) in [(0, u32::MAX), (u32::MAX, 0), (3, 70)] {
            let page = slot_page(&config, ids[0], (region, block), from);
            assert!(page.unwrap().is_some());
        }
        let none = slot_page(&config, ids[0], (absent, 0), 0).unwrap();
        assert_eq!(none, Some(SlotPage::default()));
        for garbage in ["", "{}", "garbage", "{\"Slots\":{\"region\":-1}}", "\u{0}"] {
            let answer: Result<Option<ReplicaState>> = ask(
                &config,
                ids[0],
                Topic::Replicas,
                format!("{garbage} ").as_bytes(),
                PATIENCE,
            );
            assert_eq!(answer.unwrap_err().kind(), Kind::Refused, "{garbage:?}");
        }
        assert!(replica_state(&config, ids[0]).unwrap().is_some());
        cluster.stop().unwrap();
        assert_eq!(replica_state(&config, ids[0]).unwrap(), None);
    }
}
