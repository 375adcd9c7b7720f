//! Leases by time, as data: the thread of each machine that asks for leases and grants them, and the network between these threads. The
//! clocks of machines differ by up to 1 % from virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use farm_core::fabric::{Eviction, LeaseBook, LeaseMessage, Start};
use farm_core::ids::MachineId;
use farm_core::time::Nanos;

/// A clock differs from virtual time by at most this many parts in [`WHOLE`].
pub(super) const MOST_DRIFT: i64 = 10;
const WHOLE: i64 = 1000;

/// The thread of one start of a machine.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) boot: u64,
    pub(super) book: LeaseBook,
    pub(super) eviction: Eviction,
    /// When it sends its next requests.
    pub(super) next: Nanos,
    /// How much its clock is faster, in parts of [`WHOLE`].
    pub(super) drift: i64,
    /// Whether its process is stopped.
    pub(super) stopped: bool,
}

impl Agent {
    /// Returns what its clock shows at a moment.
    pub(super) fn local(&self, at: Nanos) -> Nanos {
        convert(at, WHOLE + self.drift, WHOLE)
    }

    /// Returns the moment at which its clock shows a time.
    pub(super) fn moment(&self, local: Nanos) -> Nanos {
        convert(local, WHOLE, WHOLE + self.drift)
    }
}

fn convert(time: Nanos, by: i64, of: i64) -> Nanos {
    let converted = u128::from(time.0) * by as u128 / of as u128;
    Nanos(u64::try_from(converted).unwrap_or(u64::MAX))
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) from: Start,
    pub(super) to: Start,
    pub(super) message: LeaseMessage,
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    Arrives(Datagram),
    /// The connections between two starts of machines break, unless the network between them works again.
    Breaks(Start, Start),
}

/// The leases of all machines.
#[derive(Debug)]
pub(super) struct Leases {
    pub(super) lease: Duration,
    pub(super) agents: BTreeMap<MachineId, Agent>,
    /// By the moment, and a number.
    pub(super) due: BTreeMap<(Nanos, u64), Due>,
    numbers: u64,
    /// Until when nothing passes from one machine to another.
    pub(super) cut: BTreeMap<(MachineId, MachineId), Nanos>,
}

impl Leases {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            lease,
            agents: BTreeMap::new(),
            due: BTreeMap::new(),
            numbers: 0,
            cut: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, at: Nanos, due: Due) {
        self.numbers += 1;
        self.due.insert((at, self.numbers), due);
    }

    pub(super) fn is_cut(&self, from: MachineId, to: MachineId, now: Nanos) -> bool {
        self.cut.get(&(from, to)).is_some_and(|until| now < *until)
    }

    /// Returns the next moment at which something happens.
    pub(super) fn next(&self) -> Nanos {
        let due = self.due.keys().next().map(|(at, _)| *at);
        let sends = self.agents.values().filter(|agent| !agent.stopped);
        let sends = sends.map(|agent| agent.next);
        sends.chain(due).min().unwrap_or(Nanos(u64::MAX))
    }

    /// Returns until when nothing passes between two machines in some direction.
    pub(super) fn cut_until(&self, one: MachineId, other: MachineId) -> Nanos {
        let until = |pair| self.cut.get(&pair).copied().unwrap_or_default();
        until((one, other)).max(until((other, one)))
    }
}
