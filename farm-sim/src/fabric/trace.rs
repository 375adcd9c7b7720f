//! The events of a run, folded into one hash: the same seed produces the same trace, to the last event.

use std::fmt;

use farm_core::fabric::{Departure, Status};
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::time::Nanos;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One event of the simulated fabric or its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names of the fields suffice.
pub enum Event {
    /// A worker posted an operation.
    Posted {
        by: WorkerRef,
        to: MachineId,
        operation: u64,
        what: Operation,
        bytes: u64,
        fence: bool,
    },
    /// A post returned `Full` although there was room.
    Refused { by: WorkerRef },
    /// Words of a write landed.
    Landed {
        operation: u64,
        words: u64,
        left: u64,
    },
    /// Pieces of a read were collected. The digest is over their contents.
    Collected {
        operation: u64,
        pieces: u64,
        digest: u64,
    },
    /// A read of objects found a changed header and restarts.
    Retried { operation: u64 },
    /// An atomic executed on the value `old`.
    Swapped { operation: u64, old: u64 },
    /// A notification arrived. `woken`: whether it woke the worker.
    Notified { worker: WorkerRef, woken: bool },
    /// A completion was delivered to the poster's endpoint.
    Completed { operation: u64, status: Status },
    /// A connection stalls until a moment.
    Stalled {
        by: WorkerRef,
        to: MachineId,
        until: Nanos,
    },
    /// The connection between two machines ended.
    Broke {
        one: MachineId,
        other: MachineId,
        how: Departure,
    },
    /// A machine was started again.
    Restarted { machine: MachineId },
    /// A worker went to sleep.
    Slept { worker: WorkerRef, until: Nanos },
    /// A buffered store of a worker became visible to all processors.
    Stored {
        worker: WorkerRef,
        export: u64,
        offset: u64,
        value: u64,
    },
    /// A worker took a turn. `busy`: whether the turn did any work.
    Turned { worker: WorkerRef, busy: bool },
    /// The lease of a machine has expired, or is renewed.
    Lease {
        /// The machine.
        machine: MachineId,
        /// Whether it has expired.
        has_expired: bool,
    },
    /// A machine's processors are paused until a moment.
    Paused { machine: MachineId, until: Nanos },
    /// Words that remote writes had stored became visible to a machine's processors.
    Arrived {
        machine: MachineId,
        words: u64,
        left: u64,
    },
}

/// The kind of a posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Read,
    Write,
    Atomic,
    Notify,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Event::Posted {
                by,
                to,
                operation,
                what,
                bytes,
                fence,
            } => {
                let fence = if fence { ", fenced" } else { "" };
                write!(
                    f,
                    "{by} posts #{operation} to {to}: {what:?} of {bytes} bytes{fence}"
                )
            }
            Event::Refused { by } => write!(f, "{by}'s post is rejected: Full"),
            Event::Landed {
                operation,
                words,
                left,
            } => {
                write!(f, "#{operation} lands {words} words, {left} left")
            }
            Event::Collected {
                operation, pieces, ..
            } => write!(f, "#{operation} collects {pieces} pieces"),
            Event::Retried { operation } => {
                write!(f, "#{operation} found a changed header and restarts")
            }
            Event::Swapped { operation, old } => write!(f, "#{operation} executes on {old:#x}"),
            Event::Notified {
                worker,
                woken: true,
            } => write!(f, "{worker} is woken"),
            Event::Notified {
                worker,
                woken: false,
            } => write!(f, "{worker} is notified while awake"),
            Event::Completed { operation, status } => {
                write!(f, "#{operation} completes {status:?}")
            }
            Event::Stalled { by, to, until } => write!(f, "{by} to {to} stalls until {}", until.0),
            Event::Broke { one, other, how } => {
                write!(f, "{one} and {other} are disconnected: {how:?}")
            }
            Event::Restarted { machine } => write!(f, "{machine} is started again"),
            Event::Slept { worker, until } => write!(f, "{worker} sleeps until {}", until.0),
            Event::Stored {
                worker,
                export,
                offset,
                value,
            } => write!(
                f,
                "{worker}'s store of {value:#x} is visible at {export}:{offset:#x}"
            ),
            Event::Turned { worker, busy: true } => write!(f, "{worker} took a turn"),
            Event::Turned {
                worker,
                busy: false,
            } => write!(f, "{worker} took a turn and found no work"),
            Event::Paused { machine, until } => {
                write!(f, "{machine}'s processors are paused until {}", until.0)
            }
            Event::Lease {
                machine,
                has_expired: true,
            } => write!(f, "the lease of {machine} expires"),
            Event::Lease {
                machine,
                has_expired: false,
            } => write!(f, "the lease of {machine} is renewed"),
            Event::Arrived {
                machine,
                words,
                left,
            } => write!(
                f,
                "{machine}'s processors see {words} landed words, {left} left"
            ),
        }
    }
}

/// The events so far: their hash always, the events themselves if the configuration keeps them.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    events: Option<Vec<(Nanos, Event)>>,
}

impl Trace {
    pub(super) fn new(keep_events: bool) -> Self {
        Self {
            hash: 0,
            events: keep_events.then(Vec::new),
        }
    }

    pub(super) fn add(&mut self, now: Nanos, event: Event) {
        let mut bytes = [0; 6 * size_of::<u64>()];
        let words = [now.0].into_iter().chain(words_of(event));
        for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.hash = xxh3_64_with_seed(&bytes, self.hash);
        if let Some(events) = &mut self.events {
            events.push((now, event));
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn events(&self) -> &[(Nanos, Event)] {
        self.events.as_deref().unwrap_or_default()
    }
}

/// Encodes an event as words. The low byte of the first word is the kind of the event.
fn words_of(event: Event) -> [u64; 5] {
    let worker = |w: WorkerRef| u64::from(w.to_bits());
    let machine = |m: MachineId| u64::from(m.get());
    match event {
        Event::Posted {
            by,
            to,
            operation,
            what,
            bytes,
            fence,
        } => {
            let kind = what as u64 * 2 + u64::from(fence);
            [1 | kind << 8, worker(by), machine(to), operation, bytes]
        }
        Event::Refused { by } => [2, worker(by), 0, 0, 0],
        Event::Landed {
            operation,
            words,
            left,
        } => [3, operation, words, left, 0],
        Event::Collected {
            operation,
            pieces,
            digest,
        } => [4, operation, pieces, digest, 0],
        Event::Retried { operation } => [5, operation, 0, 0, 0],
        Event::Swapped { operation, old } => [6, operation, old, 0, 0],
        Event::Notified { worker: w, woken } => [7, worker(w), u64::from(woken), 0, 0],
        Event::Completed { operation, status } => [8, operation, status as u64, 0, 0],
        Event::Stalled { by, to, until } => [9, worker(by), machine(to), until.0, 0],
        Event::Broke { one, other, how } => [10, machine(one), machine(other), how as u64, 0],
        Event::Restarted { machine: m } => [16, machine(m), 0, 0, 0],
        Event::Slept { worker: w, until } => [11, worker(w), until.0, 0, 0],
        Event::Stored {
            worker: w,
            export,
            offset,
            value,
        } => [12, worker(w), export, offset, value],
        Event::Arrived {
            machine: m,
            words,
            left,
        } => [13, machine(m), words, left, 0],
        Event::Turned { worker: w, busy } => [14, worker(w), u64::from(busy), 0, 0],
        Event::Paused { machine: m, until } => [15, machine(m), until.0, 0, 0],
        Event::Lease {
            machine: m,
            has_expired,
        } => [16, machine(m), u64::from(has_expired), 0, 0],
    }
}
