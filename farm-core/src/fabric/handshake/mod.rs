//! The parts of connecting the machines of a cluster that the backends share: how long machines
//! wait for each other, why connecting failed, callers without a complete hello, and the sockets
//! whose end means that a peer ended.
//!
//! Every pair of machines is connected by one socket, of an address family that the backend chooses.
//! After the handshake, a machine sends only a farewell through the socket: that the machine leaves,
//! or that it stops because of a failure, with the reason. If the socket ends without a farewell, the
//! peer is lost.

mod callers;
mod door;
mod fit;
mod lines;
mod monitor;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Capability, Departure};
use serde::{Deserialize, Serialize};

use crate::ids::MachineId;
use crate::time::{Clock, Nanos};

pub(super) use callers::Callers;
pub use door::Admission;
pub(super) use door::{Accepts, After, Door, announce_ready};
pub(super) use fit::{
    excerpt, offers_its_own, same_cluster, same_configuration, same_machines, same_version,
};
pub(super) use lines::{MAX_LINE_BYTES, receive_line, send_line};
pub(crate) use monitor::Reporter;
pub(super) use monitor::{Monitor, Socket, Sockets, wait_readable};
use monitor::{farewell_of, readable_of};

/// Returns unpredictable random words from the operating system.
pub(crate) fn random_words<const N: usize>() -> std::io::Result<[u64; N]> {
    let mut words = [0; N];
    let mut bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    while !bytes.is_empty() {
        let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
        bytes = &mut bytes[got..];
    }
    Ok(words)
}

/// Delay before a machine that does not listen yet is dialled again.
pub(super) const REDIAL: Duration = Duration::from_millis(5);

/// How long a machine waits for the other machines.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// Longest wait.
    pub most: Duration,
    /// Ends the wait early when set.
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
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
            .is_some_and(|cancelled| cancelled.load(Ordering::Acquire))
    }
}

/// The machines of a cluster, as a machine connects to them.
#[derive(Clone, Copy, Debug)]
pub struct Roster<'a> {
    /// All machines.
    pub machines: &'a [MachineId],
    /// Those that need not be present when the others start. Each of them calls the others when these run, and is admitted by their
    /// doors. The others meet each other at their start.
    pub joiners: &'a [MachineId],
    /// Those that may call again later, although they are met at the start, because they may be lost.
    pub returning: &'a [MachineId],
    /// Those that have no part in what this machine joins, for example because they were evicted: they are not awaited if they do not answer.
    pub outsiders: &'a [MachineId],
    /// With what the machine begins, if it does not run. It connects only to machines that run, or begin with the same.
    pub begins: Begins,
}

/// With what a machine begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Begins {
    /// A new cluster.
    #[default]
    New,
    /// What others have that run.
    Joining,
    /// What its processes have kept that ended after this change of the configuration.
    After(u64),
}

impl<'a> From<&'a [MachineId]> for Roster<'a> {
    fn from(machines: &'a [MachineId]) -> Self {
        Self {
            machines,
            joiners: &[],
            returning: &[],
            outsiders: &[],
            begins: Begins::New,
        }
    }
}

impl<'a, const N: usize> From<&'a [MachineId; N]> for Roster<'a> {
    fn from(machines: &'a [MachineId; N]) -> Self {
        machines.as_slice().into()
    }
}

/// A peer's offer at connection setup.
#[derive(Clone, Debug)]
pub struct PeerOffer {
    /// The peer.
    pub machine: MachineId,
    /// Whether the peer ran before the two machines connected.
    pub runs: bool,
    /// Memory that the peer offers to this machine, in the peer's order.
    pub offer: Vec<Capability>,
}

/// A peer whose connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// The peer.
    pub machine: MachineId,
    /// How the connection ended.
    pub how: Departure,
    /// The failure that the peer reported, if any.
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

/// Why the machines of a cluster did not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Some machines did not connect in time.
    #[error(
        "machine {own} waited {waited:.1?} for a connection to {missing} of cluster \"{cluster}\"; start the \
         missing machines with the same configuration{refused}"
    )]
    Missing {
        /// This machine.
        own: MachineId,
        /// The cluster's name.
        cluster: String,
        /// The machines that did not connect.
        missing: String,
        /// Duration of the wait.
        waited: Duration,
        /// Reasons why callers were refused or machines not reached, as the end of the message.
        refused: String,
    },
    /// The wait was cancelled.
    #[error("connecting to the other machines was cancelled")]
    Cancelled,
    /// The peer refused the connection, or is incompatible.
    #[error("machine {machine} and this machine cannot connect: {why}")]
    Refused {
        /// The peer.
        machine: MachineId,
        /// The reason.
        why: String,
    },
    /// The peer has ended, or does not answer: another try can succeed.
    #[error("machine {machine} and this machine cannot connect: {why}")]
    Unanswered {
        /// The peer.
        machine: MachineId,
        /// The reason.
        why: String,
    },
    /// A connected machine ended before all machines had connected.
    #[error(
        "{ended}; machine {own} was still waiting for {missing}, and cannot restore the connection to the \
         machine that ended: start both machines again{refused}"
    )]
    Ended {
        /// This machine.
        own: MachineId,
        /// The machine that ended, and why.
        ended: Departed,
        /// The machines that had not connected.
        missing: String,
        /// Reasons why callers were refused or machines not reached, as the end of the message.
        refused: String,
    },
    /// The peer's memory could not be mapped.
    #[error("cannot map memory of machine {machine}: {source}")]
    Memory {
        /// The peer.
        machine: MachineId,
        /// The cause.
        #[source]
        source: crate::mem::MappingError,
    },
    /// A queue pair to the peer could not be created or connected.
    #[error("cannot connect to machine {machine}: {source}")]
    Device {
        /// The peer.
        machine: MachineId,
        /// The cause.
        #[source]
        source: super::verbs::VerbsError,
    },
    /// `connect` was called on a connected machine.
    #[error(
        "cannot connect to the other machines again: this machine was connected once since its start"
    )]
    Twice,
    /// A socket operation failed.
    #[error("a socket operation of this machine failed: {0}")]
    Socket(#[from] std::io::Error),
}

/// Why a machine does not connect to a caller, in a text for the caller.
#[derive(Debug)]
pub(super) enum TurnedAway {
    /// It never does.
    Refused(String),
    /// It may do later.
    NotYet(String),
}

/// The machines for which a machine waits.
///
/// A machine that joins waits for all machines that do not, until they run. Of the others that join, it waits for those that run,
/// and for those with smaller ids that are present, because these do not call it. So of two machines that join at the same time, the
/// one with the greater id connects to the other when that one runs.
pub(super) struct Awaited<'a> {
    own: MachineId,
    cluster: &'a str,
    roster: Roster<'a>,
    missing: Vec<MachineId>,
    /// The other machines that join, if this one does, and that are not connected.
    joiners: Vec<MachineId>,
    /// Those of them that may be present, and must be met, or answer that they wait themselves.
    unsettled: BTreeSet<MachineId>,
    /// Machines that have answered whether they run, and need not be asked again.
    asked: Vec<MachineId>,
    /// Machines that are not connected, and have answered that they run already.
    running: Vec<MachineId>,
    patience: Patience<'a>,
    started: Nanos,
    /// Reasons why callers were refused.
    refused: Vec<String>,
    /// Reasons why missing machines could not be reached, from the last attempt.
    unreached: BTreeMap<MachineId, String>,
    /// [Outsiders](Roster::outsiders) that do not answer.
    silent: BTreeSet<MachineId>,
}

/// Longest time until a machine answers that need not be present.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);
/// Longest time until an [outsider](Roster::outsiders) answers: a part of the time of one attempt to join.
pub(super) const LONGEST_ANSWER_OF_OUTSIDER: Duration = Duration::from_millis(200);
/// Maximum number of refused callers that are remembered for the message.
const MOST_REFUSED: usize = 8;

impl<'a> Awaited<'a> {
    /// Creates the list of machines for which `own` waits. The wait begins now.
    pub(super) fn new(
        own: MachineId,
        cluster: &'a str,
        roster: Roster<'a>,
        patience: Patience<'a>,
    ) -> Self {
        let others = roster.machines.iter().copied();
        let others = others.filter(|machine| *machine != own);
        let (mut joiners, missing): (Vec<MachineId>, Vec<MachineId>) =
            others.partition(|machine| roster.joiners.contains(machine));
        if !roster.joiners.contains(&own) {
            joiners.clear();
        }
        Self {
            own,
            cluster,
            roster,
            missing,
            joiners,
            unsettled: BTreeSet::new(),
            asked: Vec::new(),
            running: Vec::new(),
            patience,
            started: Clock::Host.now(),
            refused: Vec::new(),
            unreached: BTreeMap::new(),
            silent: BTreeSet::new(),
        }
    }

    /// Records the reason why a caller was refused.
    pub(super) fn refuse(&mut self, why: String) {
        if self.refused.len() < MOST_REFUSED && !self.refused.contains(&why) {
            self.refused.push(why);
        }
    }

    /// Records that a machine could not be reached, or ended before it was connected. It will be
    /// dialled again.
    pub(super) fn not_reached(&mut self, machine: MachineId, why: String) {
        self.unreached.insert(machine, why);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unsettled.is_empty()
    }

    /// Returns whether this machine joins machines that run.
    pub(super) fn joins(&self) -> bool {
        self.is_joiner(self.own)
    }

    /// Records that a machine runs already, and must be dialled.
    pub(super) fn runs(&mut self, machine: MachineId) {
        self.running.push(machine);
        self.is_present(machine);
    }

    /// Records that a machine which was dialled listens, and does not connect yet, or has not answered. If it ran when it was asked, it
    /// may have ended since, and start again: it must be asked again before it is dialled. Two machines that take each other for
    /// running would wait for each other's answers, and give none meanwhile.
    pub(super) fn not_connected(&mut self, machine: MachineId, why: String) {
        self.not_reached(machine, why);
        self.is_present(machine);
        self.running.retain(|running| *running != machine);
        self.asked.retain(|asked| *asked != machine);
    }

    /// Records that an [outsider](Roster::outsiders) listens, and has not answered. It may stand still, because it was stopped, and is not awaited.
    /// If it is about to join, too, the manager lets only one of the two join; the other one begins again, and finds it running.
    pub(super) fn is_silent(&mut self, machine: MachineId, why: String) {
        tracing::info!(%machine, "a machine that is no member does not answer: not waiting for it");
        self.not_reached(machine, why);
        self.running.retain(|running| *running != machine);
        self.unsettled.remove(&machine);
        self.silent.insert(machine);
    }

    /// Records that a machine has answered whether it runs.
    pub(super) fn answered(&mut self, machine: MachineId) {
        self.asked.push(machine);
    }

    /// Records that a machine listens, has called, or was asked.
    pub(super) fn is_present(&mut self, machine: MachineId) {
        self.silent.remove(&machine);
        if self.joiners.contains(&machine) {
            self.unsettled.insert(machine);
        }
    }

    /// Records that a machine has answered that it waits for machines itself. It dials this machine.
    pub(super) fn waits(&mut self, machine: MachineId) {
        if machine > self.own {
            self.unsettled.remove(&machine);
        }
    }

    /// Records that a machine does not listen. If it joins, it is not awaited.
    pub(super) fn is_absent(&mut self, machine: MachineId) {
        if self.unsettled.remove(&machine) {
            self.running.retain(|running| *running != machine);
        }
    }

    /// Returns whether a machine joins machines that run.
    pub(super) fn is_joiner(&self, machine: MachineId) -> bool {
        self.roster.joiners.contains(&machine)
    }

    /// Returns whether a machine need not be present.
    pub(super) fn may_be_absent(&self, machine: MachineId) -> bool {
        self.joiners.contains(&machine)
    }

    /// Returns how long to wait for an answer of a machine; `None` for as long as this machine waits at all.
    pub(super) fn longest_answer(&self, machine: MachineId) -> Option<Duration> {
        match self.is_outsider(machine) {
            true => Some(LONGEST_ANSWER_OF_OUTSIDER),
            false => self.may_be_absent(machine).then_some(LONGEST_ANSWER),
        }
    }

    /// Returns whether a machine has no part in what this one joins.
    pub(super) fn is_outsider(&self, machine: MachineId) -> bool {
        self.joiners.contains(&machine) && self.roster.outsiders.contains(&machine)
    }

    fn must_dial(&self, machine: MachineId) -> bool {
        let joins = self.joins() && !self.is_joiner(machine);
        joins || machine < self.own || self.running.contains(&machine)
    }

    fn unmet(&self) -> impl Iterator<Item = MachineId> + '_ {
        let unmet = self.missing.iter().chain(&self.joiners);
        unmet
            .copied()
            .filter(|machine| !self.silent.contains(machine))
    }

    /// Returns the machines to dial. Of two machines that start, the one with the greater id dials. A machine that runs is
    /// dialled, and by a machine that joins also one that will run.
    pub(super) fn to_dial(&self) -> Vec<MachineId> {
        self.unmet()
            .filter(|machine| self.must_dial(*machine))
            .collect()
    }

    /// Returns the machines with greater ids that may be starting and have not answered. Such a machine dials this machine if its configuration
    /// lists this machine. Therefore this machine asks whether the two are compatible, and whether the other one runs
    /// already.
    pub(super) fn to_ask(&self) -> Vec<MachineId> {
        self.unmet()
            .filter(|machine| !self.must_dial(*machine) && !self.asked.contains(machine))
            .collect()
    }

    /// Checks that this machine waits for a call from `machine`.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_call_of(&self, machine: MachineId) -> Result<(), TurnedAway> {
        if self.joins() || self.is_joiner(machine) {
            let own = self.own;
            return Err(TurnedAway::NotYet(format!(
                "machine {own} waits for other machines itself"
            )));
        }
        if machine < self.own {
            return Err(TurnedAway::Refused(format!(
                "machine {machine} has the smaller id of the two machines and must wait for a call"
            )));
        }
        match self.missing.contains(&machine) {
            true => Ok(()),
            // The process that connected has ended, which is noticed soon.
            false => Err(TurnedAway::NotYet(format!(
                "another process of machine {machine} is connected already"
            ))),
        }
    }

    pub(super) fn met(&mut self, machine: MachineId) {
        tracing::info!(%machine, "connected to machine");
        self.missing.retain(|missing| *missing != machine);
        self.joiners.retain(|joiner| *joiner != machine);
        self.unsettled.remove(&machine);
        self.unreached.remove(&machine);
    }

    /// Checks that the connected machines still run.
    ///
    /// # Errors
    /// [`ConnectError::Ended`] when a socket is readable: after the handshake, it becomes readable
    /// only when the peer sends its farewell or the connection ends. If this machine joins, and so does the peer, no error: it is
    /// among those that are returned, and this machine does not wait for it unless it comes back.
    pub(super) fn check_met<'s, S: Socket>(
        &mut self,
        met: impl Iterator<Item = (MachineId, &'s mut S)>,
    ) -> Result<Vec<MachineId>, ConnectError> {
        let mut met: Vec<(MachineId, &mut S)> = met.collect();
        let readable = readable_of(
            met.iter().map(|(_, socket)| socket.as_fd()),
            Some(Duration::ZERO),
        );
        let ended = met.iter().zip(&readable).filter(|one| *one.1);
        let ended: Vec<MachineId> = ended.map(|one| one.0.0).collect();
        let (left, lost): (Vec<_>, Vec<_>) = ended
            .into_iter()
            .partition(|machine| self.joins() && self.is_joiner(*machine));
        self.running.retain(|machine| !left.contains(machine));
        self.joiners.extend(&left);
        let lost = met.iter_mut().find(|one| lost.contains(&one.0));
        let Some((machine, socket)) = lost else {
            return Ok(left);
        };
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

    /// Returns the names of the missing machines.
    fn missing(&self) -> String {
        let awaited = self.missing.iter().chain(&self.unsettled);
        let names: Vec<String> = awaited.map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Returns why callers were refused and machines not reached, as the end of a message.
    fn reasons(&self) -> String {
        let unreached = self.unreached.iter();
        let unreached = unreached.map(|(machine, why)| format!("{machine}: {why}"));
        let reasons: Vec<String> = self.refused.iter().cloned().chain(unreached).collect();
        match reasons.is_empty() {
            true => String::new(),
            false => format!(" ({})", reasons.join("; ")),
        }
    }

    /// Returns the remaining time.
    ///
    /// # Errors
    /// [`ConnectError::Missing`] when no time remains, [`ConnectError::Cancelled`] when the wait
    /// was cancelled.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: two machines that joined at the same time took each other for running, because each had asked the other before
    /// that one started again. Each dialled, and while it waited for the answer, it gave none; so both waited in vain.
    #[test]
    fn a_machine_that_does_not_connect_is_asked_again_whether_it_runs() {
        let machines = [1, 2, 3, 4].map(|id| MachineId::new(id).unwrap());
        let [_, _, third, fourth] = machines;
        let roster = Roster {
            machines: &machines,
            joiners: &machines[2..],
            returning: &[],
            outsiders: &[],
            begins: Begins::New,
        };
        let mut awaited = Awaited::new(third, "test", roster, Duration::from_secs(1).into());
        assert_eq!(awaited.to_dial(), machines[..2]);
        assert_eq!(awaited.to_ask(), [fourth]);
        awaited.answered(fourth);
        assert_eq!(awaited.to_ask(), []);
        awaited.runs(fourth);
        assert_eq!(awaited.to_dial(), [machines[0], machines[1], fourth]);
        awaited.not_connected(fourth, "it waits for other machines itself".into());
        assert_eq!(awaited.to_dial(), machines[..2]);
        assert_eq!(awaited.to_ask(), [fourth]);
        for machine in &machines[..2] {
            awaited.not_connected(*machine, "it does not run yet".into());
            awaited.met(*machine);
        }
        assert!(!awaited.is_complete(), "the fourth machine may run");
        awaited.waits(fourth);
        assert!(awaited.is_complete());
    }
}
