//! One machine on whichever fabric it is configured for.

use super::meeting::Reporter;
use super::shm::{self, ShmConfig, ShmMachine};
use super::verbs::{VerbsConfig, VerbsError, VerbsExporter, VerbsMachine, VerbsStartError};
use super::{ArenaConfig, Capability, ConnectError, Departed, Endpoint, Patience, PeerOffer};
use crate::ids::{MachineId, WorkerId};
use crate::mem::{MappingError, Memory};

/// What a machine needs to know to start on a fabric.
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
    /// Shared memory.
    #[error(transparent)]
    Shm(#[from] shm::StartError),
    /// RDMA.
    #[error(transparent)]
    Verbs(#[from] VerbsStartError),
}

/// Why memory could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is none.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// It cannot be registered with the device.
    #[error(transparent)]
    Device(#[from] VerbsError),
}

/// One machine on a fabric. Dropping it tells the peers that it leaves, unless they were told before that it
/// [failed](FabricMachine::fail).
pub enum FabricMachine {
    /// Processes on one host.
    Shm(ShmMachine),
    /// RDMA devices.
    Verbs(VerbsMachine),
}

impl FabricMachine {
    /// Starts: claims the machine's name or address, and listens for peers.
    ///
    /// # Errors
    /// [`FabricStartError`].
    pub fn start(config: FabricConfig) -> Result<Self, FabricStartError> {
        Ok(match config {
            FabricConfig::Shm(config) => Self::Shm(ShmMachine::start(config)?),
            FabricConfig::Verbs(config) => Self::Verbs(VerbsMachine::start(*config)?),
        })
    }

    /// A handle by which any thread exports memory and wakes workers.
    pub fn exporter(&self) -> Exporter {
        match self {
            Self::Shm(machine) => Exporter::Shm(machine.exporter()),
            Self::Verbs(machine) => Exporter::Verbs(machine.exporter()),
        }
    }

    /// Connects to every machine of the cluster (this one included), giving each the memory that `offer`
    /// names for it. Waits for them no longer than `patience` says.
    ///
    /// # Errors
    /// [`ConnectError`] names the machine that did not come, or refused, and why.
    pub fn connect<'p>(
        &mut self,
        machines: &[MachineId],
        offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Vec<PeerOffer>, ConnectError> {
        match self {
            Self::Shm(machine) => machine.connect(machines, offer, patience),
            Self::Verbs(machine) => machine.connect(machines, offer, patience),
        }
    }

    /// Peers whose connections have ended, in the order in which that was noticed.
    pub fn departed(&self) -> Vec<Departed> {
        match self {
            Self::Shm(machine) => machine.departed(),
            Self::Verbs(machine) => machine.departed(),
        }
    }

    /// How threads of this machine tell its peers that it has failed; `None` before it has connected.
    pub(crate) fn reporter(&self) -> Option<Reporter> {
        match self {
            Self::Shm(machine) => machine.reporter(),
            Self::Verbs(machine) => machine.reporter(),
        }
    }

    /// Tells the peers, if it has met them, that this machine has failed, and why: they take it for lost.
    pub fn fail(&self, why: &str) {
        if let Some(reporter) = self.reporter() {
            reporter.fail(why);
        }
    }

    /// The endpoint of one of this machine's workers.
    ///
    /// # Errors
    /// [`VerbsError`]: its arena cannot be registered with the device.
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

/// Exports memory and wakes workers, from any thread of the machine.
#[derive(Clone)]
pub enum Exporter {
    /// Processes on one host.
    Shm(shm::Exporter),
    /// RDMA devices.
    Verbs(VerbsExporter),
}

impl Exporter {
    /// Makes memory that peers can import. Its space is reserved now.
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

    /// The number of this start of the machine, drawn at random.
    pub fn boot(&self) -> u64 {
        match self {
            Self::Shm(exporter) => exporter.boot(),
            Self::Verbs(exporter) => exporter.boot(),
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
