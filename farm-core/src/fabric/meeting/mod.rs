//! What the backends share of how machines of a cluster meet: how long they wait for each other, why they
//! did not meet, who has dialled and not said who it is, and the sockets by whose end a machine's end is
//! noticed.
//!
//! Every pair of machines holds one socket, of whichever family. After the handshake it carries nothing
//! but its end, which is how a dead peer is noticed, and the farewell of a living one: that it leaves, or
//! that it stops because of a failure, and which.

mod callers;
mod fit;
mod lines;
mod monitor;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Capability, Departure};
use crate::ids::MachineId;
use crate::time::{Clock, Nanos};

pub(super) use callers::Callers;
pub(super) use fit::{
    offers_its_own, same_cluster, same_configuration, same_machines, same_version, told,
};
pub(super) use lines::{MAX_LINE_BYTES, receive_line, send_line};
pub(crate) use monitor::Reporter;
pub(super) use monitor::{Monitor, Socket, wait_readable};
use monitor::{farewell_of, readable_of};

/// Random words from the system, which nobody can guess.
pub(super) fn random_words<const N: usize>() -> std::io::Result<[u64; N]> {
    let mut words = [0; N];
    let mut bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    while !bytes.is_empty() {
        let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
        bytes = &mut bytes[got..];
    }
    Ok(words)
}

/// How often a machine that is not there yet is dialled again.
pub(super) const REDIAL: Duration = Duration::from_millis(5);

/// How long a machine waits for the others.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// At most so long.
    pub most: Duration,
    /// Or until somebody sets this.
    pub cancelled: Option<&'a AtomicBool>,
}

impl From<Duration> for Patience<'_> {
    fn from(most: Duration) -> Self {
        Self {
            most,
            cancelled: None,
        }
    }
}

impl Patience<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancelled
            .is_some_and(|cancelled| cancelled.load(Ordering::Acquire))
    }
}

/// What a peer said when it connected.
#[derive(Clone, Debug)]
pub struct PeerOffer {
    /// The peer.
    pub machine: MachineId,
    /// Memory that it offers to this machine, in the order it listed it.
    pub offer: Vec<Capability>,
}

/// A peer whose connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// The peer.
    pub machine: MachineId,
    /// How it ended.
    pub how: Departure,
    /// The failure that it reported, if it did.
    pub why: Option<String>,
}

impl fmt::Display for Departed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.machine;
        match (self.how, &self.why) {
            (Departure::Left, _) => write!(out, "machine {machine} left the cluster"),
            (Departure::Lost, None) => write!(
                out,
                "machine {machine} is lost: its process ended or its connection broke"
            ),
            (Departure::Lost, Some(why)) => {
                write!(out, "machine {machine} stopped because of a failure: {why}")
            }
        }
    }
}

/// Why the machines of a cluster did not meet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Some machines did not come in time.
    #[error(
        "machine {own} waited {waited:?} for {missing} of cluster \"{cluster}\"; start them with the \
         same configuration{refused}"
    )]
    Missing {
        /// This machine.
        own: MachineId,
        /// The cluster.
        cluster: String,
        /// The machines that did not come.
        missing: String,
        /// How long it waited.
        waited: Duration,
        /// Who came and could not be believed, as the end of the sentence.
        refused: String,
    },
    /// The wait was cancelled.
    #[error("told to stop while it waited for other machines")]
    Cancelled,
    /// The other side refused, or is not what it should be.
    #[error("machine {machine} and this one do not fit together: {why}")]
    Refused {
        /// The other machine.
        machine: MachineId,
        /// The reason.
        why: String,
    },
    /// A machine that was met ended while others were still waited for.
    #[error(
        "{ended}; machine {own} still waited for {missing}, and what the two had made for each other went with \
         it: start both again{refused}"
    )]
    Ended {
        /// This machine.
        own: MachineId,
        /// The machine that ended, and why.
        ended: Departed,
        /// The machines that had not come.
        missing: String,
        /// Who came and could not be believed, as the end of the sentence.
        refused: String,
    },
    /// The peer's memory could not be mapped.
    #[error("memory of machine {machine}: {source}")]
    Memory {
        /// The peer.
        machine: MachineId,
        /// Why.
        #[source]
        source: crate::mem::MappingError,
    },
    /// A queue pair to the peer could not be made or connected.
    #[error("connection with machine {machine}: {source}")]
    Device {
        /// The peer.
        machine: MachineId,
        /// Why.
        #[source]
        source: super::verbs::VerbsError,
    },
    /// Connecting again on a connected machine.
    #[error("this machine is already connected")]
    Twice,
    /// The operating system refused.
    #[error("the machine's socket failed: {0}")]
    Socket(#[from] std::io::Error),
}

/// The machines that a machine waits for.
pub(super) struct Awaited<'a> {
    own: MachineId,
    cluster: &'a str,
    missing: Vec<MachineId>,
    patience: Patience<'a>,
    started: Nanos,
    /// Callers that were refused, and why.
    refused: Vec<String>,
    /// Why those that are missing could not be reached, when they were last tried.
    unreached: BTreeMap<MachineId, String>,
}

/// Callers that are remembered to be told of.
const MOST_REFUSED: usize = 8;

impl<'a> Awaited<'a> {
    /// Everybody but itself.
    pub(super) fn new(
        own: MachineId,
        cluster: &'a str,
        machines: &[MachineId],
        patience: Patience<'a>,
    ) -> Self {
        Self {
            own,
            cluster,
            missing: machines.iter().copied().filter(|m| *m != own).collect(),
            patience,
            started: Clock::Host.now(),
            refused: Vec::new(),
            unreached: BTreeMap::new(),
        }
    }

    /// A caller was refused.
    pub(super) fn refuse(&mut self, why: String) {
        if self.refused.len() < MOST_REFUSED && !self.refused.contains(&why) {
            self.refused.push(why);
        }
    }

    /// A machine could not be reached, or went away before it was met. It is dialled again.
    pub(super) fn not_reached(&mut self, machine: MachineId, why: String) {
        self.unreached.insert(machine, why);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Machines to be dialled: the one with the greater id dials.
    pub(super) fn to_dial(&self) -> Vec<MachineId> {
        let smaller = self.missing.iter().copied();
        smaller.filter(|machine| *machine < self.own).collect()
    }

    /// Machines that call this one, if they know of it. They are asked whether they do.
    pub(super) fn to_ask(&self) -> Vec<MachineId> {
        let greater = self.missing.iter().copied();
        greater.filter(|machine| *machine > self.own).collect()
    }

    /// Whether a call of this machine is waited for.
    pub(super) fn awaits_call_of(&self, machine: MachineId) -> bool {
        self.missing.contains(&machine) && machine > self.own
    }

    pub(super) fn met(&mut self, machine: MachineId) {
        tracing::info!(%machine, "met");
        self.missing.retain(|missing| *missing != machine);
        self.unreached.remove(&machine);
    }

    /// Checks the connections of those that were met.
    ///
    /// # Errors
    /// [`ConnectError::Ended`]: after the handshake a socket carries nothing but its end and what is said before it.
    pub(super) fn check_met<'s, S: Socket>(
        &self,
        met: impl Iterator<Item = (MachineId, &'s mut S)>,
    ) -> Result<(), ConnectError> {
        let mut met: Vec<(MachineId, &mut S)> = met.collect();
        let readable = readable_of(
            met.iter().map(|(_, socket)| socket.as_fd()),
            Some(Duration::ZERO),
        );
        let Some(at) = readable.iter().position(|readable| *readable) else {
            return Ok(());
        };
        let (machine, socket) = &mut met[at];
        let (how, why) = farewell_of(*socket);
        Err(ConnectError::Ended {
            own: self.own,
            ended: Departed {
                machine: *machine,
                how,
                why,
            },
            missing: self.missing(),
            refused: self.reasons(),
        })
    }

    /// The names of those that are missing.
    fn missing(&self) -> String {
        let names: Vec<String> = self.missing.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Why callers were refused and machines not reached, as the end of a sentence.
    fn reasons(&self) -> String {
        let unreached = self.unreached.iter();
        let unreached = unreached.map(|(machine, why)| format!("{machine}: {why}"));
        let reasons: Vec<String> = self.refused.iter().cloned().chain(unreached).collect();
        match reasons.is_empty() {
            true => String::new(),
            false => format!(" ({})", reasons.join("; ")),
        }
    }

    /// The time that is left.
    ///
    /// # Errors
    /// There is none, or the wait was cancelled.
    pub(super) fn left(&self) -> Result<Duration, ConnectError> {
        if self.patience.is_cancelled() {
            return Err(ConnectError::Cancelled);
        }
        let waited = Clock::Host.now().since(self.started);
        let left = self.patience.most.saturating_sub(waited);
        if !left.is_zero() {
            return Ok(left);
        }
        Err(ConnectError::Missing {
            own: self.own,
            cluster: self.cluster.to_owned(),
            missing: self.missing(),
            waited: self.patience.most,
            refused: self.reasons(),
        })
    }
}
