//! Messages between workers, over rings: one-way messages, and calls that have replies
//! (`FaRM'14 §3.1`; `msgRegisterHandler` and `msgSend` of figure 6).
//!
//! A worker has one ring into every other machine, and one ring into every worker of its own
//! machine. If the receiving machine has n workers, worker i mod n polls the ring of sender i. If a
//! record in this ring is for another worker, the polling worker hands the record over through its
//! own ring into that worker. A call reserves the space of its reply when it is sent. A worker that
//! handles requests therefore never waits for room to reply, and full rings cannot deadlock.
//! [`crate::ring`] states the argument.

mod links;
mod outgoing;

pub(crate) use links::{IncomingLog, PeerLinks};
pub use links::{LinkError, LinkPeer, Links, RingFormat, SegmentLayout};
pub use outgoing::MessageCounters;
pub(crate) use outgoing::{Garbage, Messaging, Taken};

use crate::ids::{MachineId, WorkerRef};
use crate::mem::Borrowed;

use crate::worker::{BorrowCont, Worker};

/// The id of a message kind. Each layer has a range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u16);

impl MessageId {
    /// First id of farm-core's own messages.
    pub const CORE: u16 = 1;
    /// First id of farm-txn.
    pub const TXN: u16 = 100;
    /// First id of farm-kv.
    pub const KV: u16 = 200;
    /// First id of farm-graph.
    pub const GRAPH: u16 = 300;
    /// First id that applications may use.
    pub const APPLICATION: u16 = 1000;
    /// Upper bound (exclusive) of the ids that can have handlers.
    pub const LIMIT: u16 = 2048;

    /// Returns whether the message's handler replies without waiting. The handlers of farm-core and
    /// farm-txn do.
    pub(crate) fn is_prompt(self) -> bool {
        self.0 < Self::KV
    }
}

/// A request that is being handled: its sender, and the token for the reply.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The worker that sent the request.
    pub from: WorkerRef,
    /// Token of the call; `None` for a one-way message.
    pub(crate) token: Option<u64>,
    /// Number of the connection to the sender's machine over which the request came.
    pub(crate) link: u32,
}

impl Request {
    /// Returns whether the sender waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.token.is_some()
    }
}

/// A message handler. Runs on the destination worker of the message.
pub type Handler = fn(&mut Worker, Request, &[u8]);

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The ring or the reply credit is full: nothing was sent. Retry when replies have arrived.
    #[error("too many messages are in flight to the machine; retry when replies have arrived")]
    Busy,
    /// The message or its reply is larger than the rings carry.
    #[error(
        "a message of {bytes} bytes is larger than the maximum of {most} bytes; raise rings.max_message_bytes"
    )]
    TooLarge {
        /// Length of the message or the reply, in bytes.
        bytes: usize,
        /// Largest permitted length, in bytes.
        most: usize,
    },
    /// The connection to the machine is broken. It is unknown whether the call took effect.
    #[error("the connection to machine {0} is lost; it is unknown whether the call took effect")]
    PeerLost(MachineId),
    /// The cluster has no such machine or worker.
    #[error("the cluster has no worker {0}")]
    NoWorker(WorkerRef),
}

/// The result of a call: the body of the reply.
#[derive(Debug)]
pub enum Reply {}

impl Borrowed for Reply {
    type Of<'a> = Result<&'a [u8], CallError>;
}

/// The continuation of a call, run with its reply.
pub type ReplyCont = BorrowCont<Reply>;
