//! The suite on the fabrics of this host: shared memory and RDMA devices. [`Threads`] runs all machines in
//! the test's process. [`Processes`] runs each machine in its own process, as in production.

// This harness uses real threads, processes and environment variables.
#![allow(clippy::disallowed_methods)]

mod child;
mod processes;
mod threads;
mod verbs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use farm_core::fabric::shm::ShmConfig;
use farm_core::fabric::{FabricConfig, FabricMachine};
use farm_core::ids::{MachineId, WorkerId};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::node::{CLOSED_BYTES, OPEN_BYTES};
use super::{Hammered, Node, Offer, THREE};

pub use child::{Child, ChildTask, Command, Reply, be_child_if_asked};
pub use processes::Processes;
pub use threads::Threads;
pub use verbs::{Variant, VerbsPlace};

/// Limit of outstanding operations of the suite's endpoints.
const MOST_OUTSTANDING: usize = 64;

/// Time limit of every wait over shared memory.
const SHM_PATIENCE: Duration = Duration::from_secs(20);

/// A fabric of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Shared memory.
    Shm,
    /// RDMA devices, used as the variant says. There must be at least one.
    Verbs(Variant),
}

/// What the machines of one cluster need to find each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Site {
    /// Names in shared memory.
    Shm(Place),
    /// Addresses and RDMA devices.
    Verbs(VerbsPlace),
}

impl Site {
    /// Creates a site for one test. The directories, if any, must be kept while the site is used.
    fn fresh(fabric: Fabric) -> (Self, Option<PlaceDirs>) {
        match fabric {
            Fabric::Shm => {
                let (place, dirs) = Place::fresh();
                (Self::Shm(place), Some(dirs))
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

    /// Scales a number of repetitions down for slow fabrics.
    fn rounds(&self, most: u64) -> u64 {
        match self {
            Self::Shm(_) => most,
            // A software device does thousands of operations a second, not millions.
            Self::Verbs(_) => most.div_ceil(20),
        }
    }

    fn hammered(&self) -> Hammered {
        match self {
            Self::Shm(_) => Hammered::USUAL,
            Self::Verbs(_) => Hammered::SLOW,
        }
    }

    /// Returns the time limit of every wait.
    fn patience(&self) -> Duration {
        match self {
            Self::Shm(_) => SHM_PATIENCE,
            // The software devices of an emulated guest are slow.
            Self::Verbs(_) => SHM_PATIENCE * 6,
        }
    }
}

/// The names of one cluster in shared memory. Each place has its own directories, so that tests can run in parallel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The cluster's name.
    pub cluster: String,
    /// Directory of its sockets and locks.
    pub run_dir: PathBuf,
    /// Directory of its shared memory.
    pub memory_dir: PathBuf,
}

/// The directories of a [`Place`]. Dropping it removes them with their content.
pub struct PlaceDirs {
    _run: TempDir,
    _memory: TempDir,
}

impl Place {
    /// Creates a place for one test, in new directories.
    ///
    /// # Panics
    /// If a directory cannot be created.
    pub fn fresh() -> (Place, PlaceDirs) {
        let run = tempfile::tempdir().expect("a temporary directory");
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared } else { run.path() };
        let memory = tempfile::tempdir_in(parent).expect("a directory for shared memory");
        let place = Place {
            cluster: "conformance".into(),
            run_dir: run.path().into(),
            memory_dir: memory.path().into(),
        };
        let dirs = PlaceDirs {
            _run: run,
            _memory: memory,
        };
        (place, dirs)
    }

    /// Returns the configuration of one machine of this place.
    pub fn config(&self, machine: MachineId) -> ShmConfig {
        ShmConfig {
            cluster: self.cluster.clone(),
            run_dir: self.run_dir.clone(),
            memory_dir: self.memory_dir.clone(),
            huge_pages: false,
            machine,
            workers: 1,
            digest: 1,
            lease: None,
        }
    }

    /// Returns all files in the directory of shared memory, sorted, also those of other clusters.
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

/// Starts a machine, exports its memory and connects to the other two machines.
///
/// # Panics
/// If a step fails.
fn join(site: &Site, machine: MachineId) -> (FabricMachine, Node) {
    let mut fabric = FabricMachine::start(site.config(machine)).expect("the machine starts");
    let exporter = fabric.exporter();
    let (open, open_capability) = exporter
        .export(OPEN_BYTES, true)
        .expect("the writable memory can be exported");
    let (closed, closed_capability) = exporter
        .export(CLOSED_BYTES, false)
        .expect("the read-only memory can be exported");
    let mut offer = |_| vec![open_capability, closed_capability];
    let met = fabric
        .connect(&THREE, &mut offer, site.patience())
        .expect("the machines connect");
    let offers: Vec<Offer> = met
        .iter()
        .map(|peer| Offer {
            open: peer.offer[0],
            closed: peer.offer[1],
        })
        .collect();
    let endpoint = fabric
        .endpoint(WorkerId::FIRST, &Node::arena(), MOST_OUTSTANDING)
        .expect("the endpoint is created");
    let memories = (open, closed);
    let (patience, pause) = (site.patience(), std::thread::yield_now);
    (
        fabric,
        Node::new(machine, endpoint, memories, &offers, patience, pause),
    )
}
