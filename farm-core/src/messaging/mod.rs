//! Messages between workers, over rings: one-way messages, and calls that have replies
//! (`FaRM'14 §3.1`; `msgRegisterHandler` and `msgSend` of figure 6).
//!
//! A worker has one ring into every other machine, and one into every worker of its own. The ring
//! of sender i is polled by worker i mod n of the receiving machine, which hands a record for
//! another worker over through its ring into that worker. A call reserves the space of its reply
//! when it is sent, so a worker that handles requests never waits for room to answer, and full rings
//! cannot deadlock; the argument stands in [`crate::ring`].

mod links;
mod outgoing;

pub(crate) use links::IncomingLog;
pub use links::{LinkError, LinkPeer, Links, RingFormat, SegmentLayout};
pub use outgoing::MessageCounters;
pub(crate) use outgoing::{Garbage, Messaging, Taken};

use crate::ids::{MachineId, WorkerRef};
use crate::mem::{Context, with_context_borrowing};
use crate::worker::Worker;

/// Names a kind of message. Each layer has a hundred of its own.
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
    /// Ids below this can have handlers.
    pub const LIMIT: u16 = 2048;

    /// Whether its handler answers at once: those of farm-core and farm-txn wait for nobody.
    pub(crate) fn is_prompt(self) -> bool {
        self.0 < Self::KV
    }
}

/// A request that is being handled: who asked, and how to answer.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The worker that asked.
    pub from: WorkerRef,
    /// Token of the call; `None` for a one-way message.
    pub(crate) token: Option<u64>,
}

impl Request {
    /// Whether the sender waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.token.is_some()
    }
}

/// Handles a message. Runs on the worker that the message named.
pub type Handler = fn(&mut Worker, Request, &[u8]);

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Rings or reply reservations are full: nothing was sent; try again when replies have come.
    #[error("too many messages are in flight to that machine")]
    Busy,
    /// The message or its reply is longer than a ring carries.
    #[error(
        "a message of {bytes} bytes is longer than the most, {most}; raise rings.max_message_bytes"
    )]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// The connection to the machine is broken; whether the call took effect is unknown.
    #[error("machine {0} is lost")]
    PeerLost(MachineId),
    /// There is no such machine or worker.
    #[error("there is no worker {0}")]
    NoWorker(WorkerRef),
}

/// What to do with the reply of a call. As [`crate::worker::Cont`], for a result that borrows.
#[derive(Clone, Copy)]
pub struct ReplyCont {
    run: fn(&mut Worker, u64, Result<&[u8], CallError>),
    context: u64,
}

impl ReplyCont {
    /// The continuation that calls `run` with `context`.
    #[inline]
    pub fn new<C: Context>(
        run: impl Fn(&mut Worker, C, Result<&[u8], CallError>) + Copy + 'static,
        context: C,
    ) -> Self {
        Self {
            run: with_context_borrowing(run),
            context: context.to_word(),
        }
    }

    pub(crate) fn resume(self, worker: &mut Worker, result: Result<&[u8], CallError>) {
        (self.run)(worker, self.context, result);
    }
}

impl std::fmt::Debug for ReplyCont {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplyCont({:#x})", self.context)
    }
}
