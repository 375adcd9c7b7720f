//! Why machines fail.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::ConfigError;
use crate::fabric::verbs::{SecretError, VerbsError};
use crate::fabric::{ConnectError, ExportError, FabricStartError};
use crate::ids::{MachineId, WorkerRef};
use crate::kept::{GIVE_UP, KeptError};
use crate::membership::configuration::Version;
use crate::membership::store::StoreError;
use crate::messaging::LinkError;
use crate::region::store::AllocationError;

/// What a start of a machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Awaited {
    /// The start of the others.
    #[error(
        "the others went on without it before they ended, so they have its data: start them, and it joins them"
    )]
    Others,
    /// An answer of one of the others, which have its data.
    #[error(
        "no machine answers that has the data of the cluster. If all of them have ended, their data is lost: remove the configuration with \
         `farm destroy`, and start all machines. Otherwise check the network between the machines"
    )]
    Answer,
    /// The end of a process of this machine.
    #[error(
        "a process of machine {0} runs, which was a member of the cluster and may still write to its memory: end that process, or let it \
         go on if it is stopped; its number is in m{n}.lock in the directory of sockets (cluster.run_dir)",
        n = .0.get()
    )]
    EndOf(MachineId),
    /// That the others record it.
    #[error(
        "it is connected to them, and they do not record it while they recover from a loss, while an earlier process of the machine runs, or \
         while the configuration cannot be stored; see their logs"
    )]
    Record,
}

/// Why a machine could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration has no such machine.
    #[error("the configuration has no machine {0}")]
    NoSuchMachine(MachineId),
    /// The fabric could not start.
    #[error(transparent)]
    Start(#[from] FabricStartError),
    /// The cluster's secret, by which machines authenticate each other, is missing or unreadable.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The fabric's device reported an error.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The machines did not connect to each other.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The machine's memory could not be allocated.
    #[error(transparent)]
    Memory(#[from] ExportError),
    /// A peer's memory could not be imported.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The store of the configuration does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has a configuration from before.
    #[error(
        "{} has the configuration of a cluster {cluster:?} that ran before (change {change}): its data was in the memory of its \
         processes, which have ended. Remove the configuration with `farm destroy` and the options --config and --set of this machine, \
         or set durability.dir to another directory",
        dir.display()
    )]
    StoreFromBefore {
        /// Directory of the store.
        dir: PathBuf,
        /// Name of the cluster.
        cluster: String,
        /// Number of the last change of its configuration.
        change: u64,
    },
    /// What a machine keeps beyond its process cannot be written or read.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// What earlier processes of these machines had in memory is gone.
    #[error(
        "the memory of {}, which configuration {configuration} of this cluster names, is not complete in {} with its journals in {}, and \
         no other machine has complete copies of all regions in it. If it had other directories before (memory.dir, \
         cluster.run_dir, or XDG_RUNTIME_DIR), start all machines with those. If this host was switched off since, the memory is lost: remove what \
         the cluster has left with `farm destroy --memory-is-gone`, and load the data again",
        listed(machines), memory.display(), run_dir.display()
    )]
    MemoryGone {
        /// The machines.
        machines: BTreeSet<MachineId>,
        /// Directory of the memory.
        memory: PathBuf,
        /// Directory of the journals.
        run_dir: PathBuf,
        /// The configuration that names it.
        configuration: Version,
    },
    /// The store has lost changes of the configuration.
    #[error(
        "the configuration in {} is out of date: its newest change is {change}, and machine {machine} has seen change {seen} there. With it the cluster \
         would lose data. Bring the files back that were there (config-{seen:020}, or a later one); without them, give the data up with \
         `farm destroy --yes --memory-is-gone` and the options --config and --set of this machine",
        dir.display()
    )]
    OutOfDate {
        /// The machine.
        machine: MachineId,
        /// The change that it has seen.
        seen: u64,
        /// The newest change that is there.
        change: u64,
        /// Directory of the store.
        dir: PathBuf,
    },
    /// The store has no configuration, and memory of this machine was kept for one.
    #[error(
        "machine {machine} of cluster {cluster:?} has kept memory in {} for the configuration in {}, and no configuration is there: bring it \
         back (is its file system mounted?) and start again, and the machine goes on with that memory. If the data is not needed, remove \
         it with `farm destroy` and the options --config and --set of this machine",
        memory.display(), dir.display()
    )]
    ConfigurationGone {
        /// The machine.
        machine: MachineId,
        /// Name of the cluster.
        cluster: String,
        /// Directory of the store.
        dir: PathBuf,
        /// Directory of the memory.
        memory: PathBuf,
    },
    /// Another store than the configured one names memory that this machine has kept.
    #[error(
        "machine {machine} of cluster {cluster:?} has kept memory for the configuration in {}, and this start would begin a new cluster of \
         that name, with its configuration in {}: start the machine with durability.dir = {theirs:?} to go on with that memory, or give the \
         new cluster another name (cluster.name). If the data is not needed, remove it with `farm destroy` and that durability.dir",
        theirs.display(), dir.display()
    )]
    KeptElsewhere {
        /// The machine.
        machine: MachineId,
        /// Name of the cluster.
        cluster: String,
        /// The configured directory of the store.
        dir: PathBuf,
        /// The directory of the store that names the memory.
        theirs: PathBuf,
    },
    /// Another process uses the store.
    #[error(
        "another process uses the configuration of this cluster in {}: start each machine once, and give each cluster a \
         directory of its own (durability.dir)",
        .0.display()
    )]
    StoreInUse(PathBuf),
    /// A machine that joins has not connected to a member of the configuration.
    #[error(
        "machine {0} belongs to the cluster (configuration {1}), and this machine is not connected to it: the cluster has changed while \
         this machine connected to it; start it again"
    )]
    NotMet(MachineId, Version),
    /// The configuration has changed while a machine started.
    #[error(
        "the configuration of the cluster has changed (now {0}), or another machine has ended, while this machine started: start it again"
    )]
    Changed(Version),
    /// The regions of an earlier process cannot be used.
    #[error("this machine cannot go on with the memory of its earlier process: {0}; {GIVE_UP}")]
    NotResumed(#[source] AllocationError),
    /// A machine that was to start with the others has found that they run.
    #[error("the other machines run already: start machine {0} again, and it joins them")]
    RunsAlready(MachineId),
    /// A machine has not joined the others in time.
    #[error("machine {machine} has not joined the others within {} s: {awaited}", waited.as_secs())]
    NotJoined {
        /// The machine.
        machine: MachineId,
        /// How long it has tried.
        waited: Duration,
        /// What it has waited for.
        awaited: Awaited,
    },
    /// The operating system refused to start a thread.
    #[error("cannot start a worker's thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The machine stopped because of a failure.
    #[error("{0}")]
    Failed(String),
    /// Too many work items wait for a worker, and the caller must not block.
    #[error(
        "cannot submit a work item to worker {worker}: {items} items are waiting already; submit fewer at a time, \
         or from a thread that is not a worker, which then blocks"
    )]
    Full {
        /// The worker whose inbox is full.
        worker: WorkerRef,
        /// Maximum number of items that may wait.
        items: usize,
    },
    /// A worker panicked.
    #[error("worker {0} panicked; see the panic message above")]
    Panicked(WorkerRef),
    /// A task panicked. Its transaction is aborted, and the worker continues.
    #[error("a task on worker {worker} panicked: {message}")]
    TaskPanicked {
        /// The worker that ran the task.
        worker: WorkerRef,
        /// The panic's message.
        message: String,
    },
}

/// Returns the names of machines: `machine m1`, or `machines m1, m2`.
fn listed(machines: &BTreeSet<MachineId>) -> String {
    let all: Vec<String> = machines.iter().map(ToString::to_string).collect();
    let plural = if all.len() == 1 { "" } else { "s" };
    format!("machine{plural} {}", all.join(", "))
}

impl MachineError {
    /// Returns whether a machine that joins others may have failed because these change the configuration, so that another try can
    /// succeed.
    pub(super) fn may_be_of_a_change(&self) -> bool {
        match self {
            Self::NotMet(..) | Self::Link(_) | Self::Changed(_) => true,
            Self::Connect(error) => !matches!(
                error,
                ConnectError::Cancelled | ConnectError::Refused { .. }
            ),
            _ => false,
        }
    }

    /// Sets how long the machine has waited for the others, in several tries.
    #[must_use]
    pub(super) fn after(mut self, all: Duration) -> Self {
        if let Self::Connect(ConnectError::Missing { waited, .. }) = &mut self {
            *waited = all;
        }
        self
    }
}
