//! What machines tell each other in recovery.

use std::collections::BTreeSet;

use farm_core::ids::{Address, MachineId, RegionId};
use serde::{Deserialize, Serialize};

use super::undecided::{Body, LowBounds};
use super::{Decision, Evidence, Vote};
use crate::record::TxId;

/// A transaction that a machine has found in its evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its number.
    pub id: TxId,
    /// All regions that it wrote.
    pub regions: BTreeSet<RegionId>,
    /// What the sender knows of it in regions of which the receiver is the primary, and whether it has the values.
    pub of: Vec<(RegionId, Evidence, bool)>,
}

/// The replicas that a decision is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum To {
    /// The backups of all regions that the transaction wrote.
    Backups,
    /// Their primaries, when all backups have it.
    Primaries,
}

/// A message of recovery. It belongs to a configuration, which is sent with it. Messages between two machines arrive in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From each machine to each: what it has found, and its low bounds. There is one such message.
    Found(Vec<Found>, LowBounds),
    /// From a primary that lacks the values of a transaction, to a machine that has them.
    Fetch(TxId, RegionId),
    /// The answer.
    Fetched(TxId, RegionId, Body),
    /// From a primary to a backup: the region's vote, and the values.
    Replicate(TxId, RegionId, Vote, Body),
    /// The answer.
    Replicated(TxId, RegionId),
    /// From a primary to the machine that decides the transaction: the region's vote, and all regions that the transaction wrote.
    Vote(TxId, RegionId, Vote, BTreeSet<RegionId>),
    /// From the machine that decides: COMMIT-RECOVERY or ABORT-RECOVERY, with all regions that the transaction wrote.
    Decide(TxId, To, Decision, BTreeSet<RegionId>),
    /// The answer.
    Decided(TxId, To),
}

/// Bytes are not a message of recovery: their sender does not follow the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a message of recovery: {0}")]
pub struct NotAMessage(String);

impl Message {
    /// Returns the bytes of the message and its configuration.
    pub fn encode(&self, configuration: u64) -> Vec<u8> {
        let encoded = postcard::to_allocvec(&(configuration, self));
        encoded.expect("a message has no part that cannot be encoded")
    }

    /// Returns the configuration and the message that the bytes are.
    ///
    /// # Errors
    /// [`NotAMessage`].
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), NotAMessage> {
        let decoded = postcard::take_from_bytes(bytes);
        let (decoded, rest) = decoded.map_err(|error| NotAMessage(error.to_string()))?;
        match rest {
            [] => Ok(decoded),
            _ => Err(NotAMessage(format!("{} bytes follow it", rest.len()))),
        }
    }

    /// Returns the transaction that the message is about, if it is about one.
    pub fn id(&self) -> Option<TxId> {
        match self {
            Self::Found(..) => None,
            Self::Fetch(id, _)
            | Self::Fetched(id, ..)
            | Self::Replicate(id, ..)
            | Self::Replicated(id, _)
            | Self::Vote(id, ..)
            | Self::Decide(id, ..)
            | Self::Decided(id, _) => Some(*id),
        }
    }
}

/// What recovery has to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send a message; it may be to the own machine.
    Send(MachineId, Message),
    /// Lock the objects of a transaction in a region of which this machine is the primary, at whatever version they have.
    Lock(RegionId, Body),
    /// Install the values of a committed transaction in a backup, where they are newer, and the words of new blocks.
    Apply(RegionId, Body),
    /// All transactions with this object are decided: install the values of those that commit, oldest first, where they are newer, and
    /// the words of new blocks; then unlock the object. If it is not allocated afterwards, its slot is free: a transaction that
    /// aborts may have reserved it.
    Release(Address, Vec<Body>),
    /// All objects of undecided transactions in this region are locked: it can be used.
    Activate(RegionId),
    /// A transaction of a worker of this machine is decided, and all replicas know.
    Outcome(TxId, Decision),
    /// Nothing is left to be decided in the regions of which this machine is the primary, and all transactions of its own workers are
    /// decided.
    Recovered,
}
