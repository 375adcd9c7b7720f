//! One machine on the configured fabric.

use std::fs::File;

use super::handshake::{Reporter, Roster};
use super::shm::{self, ShmConfig, ShmMachine};
use super::verbs::{VerbsConfig, VerbsError, VerbsExporter, VerbsMachine, VerbsStartError};
use super::{
    Admission, ArenaConfig, Capability, ConnectError, Departed, Endpoint, Patience, PeerOffer,
};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{MappingError, Memory};

/// The configuration of a machine's fabric.
#[derive(Clone, Debug)]
pub enum FabricConfig {
    /// Processes on one host.
    Shm(ShmConfig),
    /// RDMA devices.
    Verbs(Box<VerbsConfig>),
}

/// Why a machine could not start on its fabric.
#[derive(Debug, thiserror::Error)]
pub enum FabricStartError {
    /// Starting on shared memory failed.
    #[error(transparent)]
    Shm(#[from] shm::StartError),
    /// Starting on RDMA devices failed.
    #[error(transparent)]
    Verbs(#[from] VerbsStartError),
}

/// Why exporting memory failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The memory could not be allocated or mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The memory could not be registered with the device.
    #[error(transparent)]
    Device(#[from] VerbsError),
}

/// One machine on a fabric. Dropping it notifies the peers that the machine leaves, unless they
/// were notified before that it [failed](FabricMachine::fail).
pub enum FabricMachine {
    /// Processes on one host.
    Shm(ShmMachine),
    /// RDMA devices.
    Verbs(VerbsMachine),
}

impl FabricMachine {
    /// Starts the machine: claims its name or address, and listens for peers.
    ///
    /// # Errors
    /// [`FabricStartError`].
    pub fn start(config: FabricConfig) -> Result<Self, FabricStartError> {
        Ok(match config {
            FabricConfig::Shm(config) => Self::Shm(ShmMachine::start(config)?),
            FabricConfig::Verbs(config) => Self::Verbs(VerbsMachine::start(*config)?),
        })
    }

    /// Returns a handle with which any thread exports memory and wakes workers.
    pub fn exporter(&self) -> Exporter {
        match self {
            Self::Shm(machine) => Exporter::Shm(machine.exporter()),
            Self::Verbs(machine) => Exporter::Verbs(machine.exporter()),
        }
    }

    /// Connects to the machines of the cluster, this one included: those that join only if they are present, and this one joins, too.
    /// Offers each machine the memory that `offer` returns for it. Waits at most for `patience`.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not connect, or refused, and the reason.
    pub fn connect<'r, 'p>(
        &mut self,
        machines: impl Into<Roster<'r>>,
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        match self {
            Self::Shm(machine) => machine.connect(machines, offer, patience),
            Self::Verbs(machine) => machine.connect(machines, offer, patience),
        }
    }

    /// Sets which machines may connect to this connected machine from now on. Until it is set, all callers are refused, or get
    /// no answer.
    ///
    /// # Errors
    /// [`ConnectError::Socket`].
    ///
    /// # Panics
    /// If this machine has not connected.
    pub fn admit(&mut self, admission: Box<dyn Admission>) -> Result<(), ConnectError> {
        match self {
            Self::Shm(machine) => machine.admit(admission),
            Self::Verbs(machine) => machine.admit(admission)?,
        }
        Ok(())
    }

    /// Returns the peers whose connections have ended, in the order in which this machine noticed
    /// the ends.
    pub fn departed(&self) -> Vec<Departed> {
        match self {
            Self::Shm(machine) => machine.departed(),
            Self::Verbs(machine) => machine.departed(),
        }
    }

    /// Returns the handle with which threads of this machine report its failure to the peers;
    /// `None` before it has connected.
    pub(crate) fn reporter(&self) -> Option<Reporter> {
        match self {
            Self::Shm(machine) => machine.reporter(),
            Self::Verbs(machine) => machine.reporter(),
        }
    }

    /// Returns the file whose lock shows that this machine runs, on shared memory.
    pub(crate) fn life(&self) -> Option<File> {
        match self {
            Self::Shm(machine) => machine.life(),
            Self::Verbs(_) => None,
        }
    }

    /// Notifies the peers, if they are connected, that this machine has failed, and why. The peers
    /// then treat this machine as lost.
    pub fn fail(&self, why: &str) {
        if let Some(reporter) = self.reporter() {
            reporter.fail(why);
        }
    }

    /// Creates the endpoint of one of this machine's workers.
    ///
    /// # Errors
    /// [`VerbsError`] when its arena cannot be registered with the device.
    pub fn endpoint(
        &mut self,
        worker: WorkerId,
        arena: &ArenaConfig,
        most_outstanding: usize,
    ) -> Result<Endpoint, VerbsError> {
        Ok(match self {
            Self::Shm(machine) => {
                Endpoint::Shm(Box::new(machine.endpoint(worker, arena, most_outstanding)))
            }
            Self::Verbs(machine) => Endpoint::Verbs(Box::new(machine.endpoint(
                worker,
                arena,
                most_outstanding,
            )?)),
        })
    }
}

/// A handle to export memory and wake workers, from any thread of the machine.
#[derive(Clone)]
pub enum Exporter {
    /// Processes on one host.
    Shm(shm::Exporter),
    /// RDMA devices.
    Verbs(VerbsExporter),
}

impl Exporter {
    /// Returns an exporter that does not ask for huge pages if making them can take long.
    pub(crate) fn with_small_pages(self) -> Self {
        match self {
            Self::Shm(exporter) => Self::Shm(exporter.with_small_pages()),
            Self::Verbs(exporter) => Self::Verbs(exporter),
        }
    }

    /// Allocates memory that peers can import. Reserves its space immediately.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(
        &self,
        bytes: usize,
        writable: bool,
    ) -> Result<(Memory, Capability), ExportError> {
        match self {
            Self::Shm(exporter) => Ok(exporter.export(bytes, writable)?),
            Self::Verbs(exporter) => exporter.export(bytes, writable),
        }
    }

    /// Returns the random number of this start of the machine.
    pub fn boot(&self) -> u64 {
        match self {
            Self::Shm(exporter) => exporter.boot(),
            Self::Verbs(exporter) => exporter.boot(),
        }
    }

    /// Removes exported memory: peers cannot import it any more.
    pub fn withdraw(&self, capability: &Capability) {
        match self {
            Self::Shm(exporter) => exporter.withdraw(capability),
            Self::Verbs(exporter) => exporter.withdraw(capability),
        }
    }

    /// Wakes a worker of this machine.
    pub fn wake(&self, worker: WorkerId) {
        match self {
            Self::Shm(exporter) => exporter.wake(worker),
            Self::Verbs(exporter) => exporter.wake(worker),
        }
    }
}
