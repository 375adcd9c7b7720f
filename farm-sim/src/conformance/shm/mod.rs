//! The suite on shared memory: [`Threads`] has all machines in the test's own process, [`Processes`]
//! has each in a process of its own, which is how they run in production.

// Real threads, processes and their environment are what this harness is made of.
#![allow(clippy::disallowed_methods)]

mod child;
mod processes;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farm_core::fabric::Endpoint;
use farm_core::fabric::shm::{ShmConfig, ShmMachine};
use farm_core::ids::{MachineId, WorkerId};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::node::{CLOSED_BYTES, OPEN_BYTES};
use super::{Node, Offer, THREE};

pub use child::{Child, ChildTask, Command, Reply, be_child_if_asked};
pub use processes::Processes;
pub use threads::Threads;

/// How long anything may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most outstanding operations of the suite's endpoints.
const MOST_OUTSTANDING: usize = 64;

/// The names of one cluster on this host: unique, so that tests run side by side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The cluster's name.
    pub cluster: String,
    /// Its sockets and locks.
    pub run_dir: PathBuf,
    /// Its shared memory.
    pub memory_dir: PathBuf,
}

impl Place {
    /// A place in a directory that goes when it is dropped, with a name that no other test has.
    ///
    /// # Panics
    /// If the directory cannot be made.
    pub fn fresh() -> (Place, TempDir) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shared = Path::new("/dev/shm");
        let memory_dir = if shared.is_dir() { shared } else { dir.path() };
        let place = Place {
            cluster: format!("conformance-{}-{number}", std::process::id()),
            run_dir: dir.path().into(),
            memory_dir: memory_dir.into(),
        };
        (place, dir)
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

    /// The files of shared memory that belong to this cluster.
    pub fn memory_files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.memory_dir).expect("the directory of shared memory");
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let ours = |path: &PathBuf| path.to_string_lossy().contains(&self.cluster);
        let mut files: Vec<PathBuf> = paths.filter(ours).collect();
        files.sort();
        files
    }
}

/// Starts a machine, exports its memory and meets the other two.
///
/// # Panics
/// If any of it fails.
fn join(place: &Place, machine: MachineId) -> (ShmMachine, Node) {
    let mut fabric = ShmMachine::start(place.config(machine)).expect("the machine starts");
    let (open, open_capability) = fabric
        .export(OPEN_BYTES, true)
        .expect("room for shared memory");
    let (closed, closed_capability) = fabric
        .export(CLOSED_BYTES, false)
        .expect("room for shared memory");
    let mut offer = |_| vec![open_capability, closed_capability];
    let met = fabric
        .connect(&THREE, &mut offer, PATIENCE)
        .expect("the machines meet");
    let offers: Vec<Offer> = met
        .iter()
        .map(|peer| Offer {
            open: peer.offer[0],
            closed: peer.offer[1],
        })
        .collect();
    let endpoint = fabric.endpoint(WorkerId::FIRST, &Node::arena(), MOST_OUTSTANDING);
    let endpoint = Endpoint::Shm(Box::new(endpoint));
    let memories = (open, closed);
    let pause = std::thread::yield_now;
    (
        fabric,
        Node::new(machine, endpoint, memories, &offers, PATIENCE, pause),
    )
}
