//! The suite on fabrics of this host, shared memory and RDMA devices: [`Threads`] has all machines in the
//! test's own process, [`Processes`] has each in a process of its own, which is how they run in production.

// Real threads, processes and their environment are what this harness is made of.
#![allow(clippy::disallowed_methods)]

mod child;
mod processes;
mod threads;
mod verbs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use farm_core::fabric::shm::ShmConfig;
use farm_core::fabric::verbs::ObjectReads;
use farm_core::fabric::{FabricConfig, FabricMachine};
use farm_core::ids::{MachineId, WorkerId};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::node::{CLOSED_BYTES, OPEN_BYTES};
use super::{Node, Offer, THREE};

pub use child::{Child, ChildTask, Command, Reply, be_child_if_asked};
pub use processes::Processes;
pub use threads::Threads;
pub use verbs::{Variant, VerbsPlace};

/// Most outstanding operations of the suite's endpoints.
const MOST_OUTSTANDING: usize = 64;

/// How long anything may take over shared memory before it counts as lost.
const SHM_PATIENCE: Duration = Duration::from_secs(20);

/// Which of this host's fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Shared memory.
    Shm,
    /// RDMA devices, of which there is at least one, used in this way.
    Verbs(Variant),
}

/// Where the machines of one cluster find each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Site {
    /// In shared memory.
    Shm(Place),
    /// By RDMA devices.
    Verbs(VerbsPlace),
}

impl Site {
    /// A site that no other test has, and what is to be kept for as long as it is used.
    fn fresh(fabric: Fabric) -> (Self, Option<Ground>) {
        match fabric {
            Fabric::Shm => {
                let (place, ground) = Place::fresh();
                (Self::Shm(place), Some(ground))
            }
            Fabric::Verbs(variant) => (Self::Verbs(VerbsPlace::fresh(variant)), None),
        }
    }

    fn config(&self, machine: MachineId) -> FabricConfig {
        match self {
            Self::Shm(place) => FabricConfig::Shm(place.config(machine)),
            Self::Verbs(place) => FabricConfig::Verbs(Box::new(place.config(machine))),
        }
    }

    /// How often to do what should be done `most` times.
    fn rounds(&self, most: u64) -> u64 {
        match self {
            Self::Shm(_) => most,
            // A software device does thousands of operations a second, not millions; and of reads that make
            // three round trips few find a writer at rest.
            Self::Verbs(place) => match place.variant.object_reads {
                Some(ObjectReads::HeadersAround) => most.div_ceil(200),
                _ => most.div_ceil(20),
            },
        }
    }

    /// How long anything may take before it counts as lost.
    fn patience(&self) -> Duration {
        match self {
            Self::Shm(_) => SHM_PATIENCE,
            // An emulated guest's devices are slow.
            Self::Verbs(_) => SHM_PATIENCE * 6,
        }
    }
}

/// The names of one cluster in this host's shared memory: in directories of its own, so that tests run side by side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The cluster's name.
    pub cluster: String,
    /// Its sockets and locks.
    pub run_dir: PathBuf,
    /// Its shared memory.
    pub memory_dir: PathBuf,
}

/// The directories of a [`Place`]: gone, with all that is left in them, when this is dropped.
pub struct Ground {
    _run: TempDir,
    _memory: TempDir,
}

impl Place {
    /// A place that no other test has, in directories of its own.
    ///
    /// # Panics
    /// If a directory cannot be made.
    pub fn fresh() -> (Place, Ground) {
        let run = tempfile::tempdir().expect("a temporary directory");
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared } else { run.path() };
        let memory = tempfile::tempdir_in(parent).expect("a directory for shared memory");
        let place = Place {
            cluster: "conformance".into(),
            run_dir: run.path().into(),
            memory_dir: memory.path().into(),
        };
        let ground = Ground {
            _run: run,
            _memory: memory,
        };
        (place, ground)
    }

    /// The configuration of one machine here.
    pub fn config(&self, machine: MachineId) -> ShmConfig {
        ShmConfig {
            cluster: self.cluster.clone(),
            run_dir: self.run_dir.clone(),
            memory_dir: self.memory_dir.clone(),
            huge_pages: false,
            machine,
            workers: 1,
            digest: 1,
        }
    }

    /// The files of shared memory that are here, of whichever cluster.
    ///
    /// # Panics
    /// If the directory cannot be read.
    pub fn memory_files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.memory_dir).expect("the directory of shared memory");
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let mut files: Vec<PathBuf> = paths.collect();
        files.sort();
        files
    }
}

/// Starts a machine, exports its memory and meets the other two.
///
/// # Panics
/// If any of it fails.
fn join(site: &Site, machine: MachineId) -> (FabricMachine, Node) {
    let mut fabric = FabricMachine::start(site.config(machine)).expect("the machine starts");
    let exporter = fabric.exporter();
    let (open, open_capability) = exporter
        .export(OPEN_BYTES, true)
        .expect("room for memory to write");
    let (closed, closed_capability) = exporter
        .export(CLOSED_BYTES, false)
        .expect("room for memory to read");
    let mut offer = |_| vec![open_capability, closed_capability];
    let met = fabric
        .connect(&THREE, &mut offer, site.patience())
        .expect("the machines meet");
    let offers: Vec<Offer> = met
        .iter()
        .map(|peer| Offer {
            open: peer.offer[0],
            closed: peer.offer[1],
        })
        .collect();
    let endpoint = fabric
        .endpoint(WorkerId::FIRST, &Node::arena(), MOST_OUTSTANDING)
        .expect("an endpoint");
    let memories = (open, closed);
    let (patience, pause) = (site.patience(), std::thread::yield_now);
    (
        fabric,
        Node::new(machine, endpoint, memories, &offers, patience, pause),
    )
}
