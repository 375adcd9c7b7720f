//! The configuration of a simulated fabric: its odds, its limits, and deliberate bugs that the checks must find.

use std::time::Duration;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// How often rare behaviours of the fabric occur. Shares are out of [`Odds::WHOLE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odds {
    /// Share of posts that return `Full` although there is room.
    pub full: u32,
    /// Share of steps that stall a connection for a heavy-tailed time, instead of advancing an operation.
    pub stall: u32,
    /// Share of steps that advance an operation although a completion could be delivered.
    pub late_completion: u32,
    /// Share of waits that return `Notified` although no notification has arrived.
    pub spurious_wake: u32,
    /// Maximum number of steps that the fabric takes at one poll, or at one interruption of a turn.
    pub steps_per_poll: u32,
    /// Maximum number of words of a write, or pieces of a read (words, or lines of objects), that one step processes;
    /// more for long operations.
    pub words_per_step: u32,
    /// Whether the words of a write land in increasing address order. Otherwise they land in any order.
    pub places_in_order: bool,
    /// Whether a read of objects is one pass over its lines in any order, like the read of a NIC: then only the lines'
    /// versions show whether the lines belong together. Otherwise the read also compares the headers before and after,
    /// as the checked copy of shared memory does.
    pub one_pass: bool,
    /// Upper bound of the restarts of a read of objects before it completes as torn. The limit of each read is drawn
    /// from 0 to this.
    pub most_retries: u32,
    /// Share of remotely written words that the machine's processors see late. While such a word is not visible, all
    /// later remotely written words of that machine queue after it.
    pub late_arrival: u32,
    /// Mean number of memory accesses between two interruptions of a turn. At each, the fabric takes steps.
    pub accesses_between_others: u32,
    /// Share of interruptions at which other workers also take turns.
    pub nested_turn: u32,
    /// Share of steps after which a buffered store or some late words become visible, if there are any.
    pub retire: u32,
}

impl Odds {
    /// The share of an event that always occurs.
    pub const WHOLE: u32 = 1024;

    /// Draws odds at random. The shares span orders of magnitude.
    pub fn drawn(rng: &mut Xoshiro256PlusPlus) -> Self {
        let mut share = |most: u32| most >> rng.random_range(0..8u32);
        let (full, stall) = (share(128), share(64));
        let (late_completion, spurious_wake) = (share(1000), share(64));
        Self {
            full,
            stall,
            late_completion,
            spurious_wake,
            steps_per_poll: 1 << rng.random_range(0..6u32),
            words_per_step: 1 << rng.random_range(0..4u32),
            places_in_order: true,
            one_pass: rng.random_bool(0.5),
            most_retries: 1 << rng.random_range(0..6u32),
            late_arrival: (Self::WHOLE / 4) >> rng.random_range(0..10u32),
            accesses_between_others: 1 << rng.random_range(3..12u32),
            nested_turn: Self::WHOLE >> rng.random_range(1..6u32),
            retire: Self::WHOLE / 4,
        }
    }
}

/// A deliberate bug of the simulated fabric. The conformance suite must find each of them: a check that never fails
/// proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Fences have no effect.
    FencesIgnored,
    /// A read may pass an earlier write.
    ReadsPassWrites,
    /// The writes of one connection may pass each other.
    WritesUnordered,
    /// A write lands in decreasing address order.
    PlacedBackwards,
    /// Some completions are delivered twice.
    CompletedTwice,
    /// Some completions are never delivered.
    CompletionLost,
    /// Unsignalled writes also produce a completion.
    UnsignalledCompletes,
    /// Completions of writes do not return their slots.
    SlotKept,
    /// Some notifications are dropped.
    WakeLost,
    /// A notification may pass the earlier write that it announces.
    WakeEarly,
    /// Reads of objects return torn lines.
    LinesTorn,
    /// Reads of objects do not check the headers again at their end.
    HeadersUnchecked,
    /// Operations that are outstanding when a connection breaks never complete.
    BreakForgets,
    /// A broken connection still accepts posts.
    BreakForgiven,
    /// A write outside of the imported range, or to read-only memory, is accepted and dropped.
    AccessUnchecked,
    /// A capability from an earlier run of the machine's process is accepted.
    StaleAccepted,
    /// An atomic reads in one step and writes in another.
    AtomicsTorn,
    /// Reads are counted twice.
    Miscounted,
}

impl Defect {
    /// All defects.
    pub const ALL: [Defect; 18] = [
        Defect::FencesIgnored,
        Defect::ReadsPassWrites,
        Defect::WritesUnordered,
        Defect::PlacedBackwards,
        Defect::CompletedTwice,
        Defect::CompletionLost,
        Defect::UnsignalledCompletes,
        Defect::SlotKept,
        Defect::WakeLost,
        Defect::WakeEarly,
        Defect::LinesTorn,
        Defect::HeadersUnchecked,
        Defect::BreakForgets,
        Defect::BreakForgiven,
        Defect::AccessUnchecked,
        Defect::StaleAccepted,
        Defect::AtomicsTorn,
        Defect::Miscounted,
    ];
}

/// The configuration of a [`SimFabric`](super::SimFabric).
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of workers of each machine.
    pub workers: usize,
    /// Limit of the outstanding signalled operations of an endpoint. Reads and atomics are accepted while fewer than
    /// this number of operations are outstanding, signalled writes while fewer than twice this number are.
    pub most_outstanding: usize,
    /// Maximum number of bytes of an inline write.
    pub max_inline_bytes: usize,
    /// The odds. `None`: they are drawn from the seed, except that [`Odds::one_pass`] is false.
    pub odds: Option<Odds>,
    /// Whether to simulate processors: they buffer stores and see remote writes late, and other workers run between the
    /// accesses of a turn.
    pub processors: bool,
    /// Whether to keep every event for [`SimFabric::trace`](super::SimFabric::trace).
    pub keep_events: bool,
    /// The deliberate bug, if any.
    pub defect: Option<Defect>,
    /// The time of a lease, if leases end by time. Then nothing proves the end of a process.
    pub lease: Option<Duration>,
}

impl SimConfig {
    /// Returns the default configuration for a seed: two workers per machine. How often rare behaviours of the fabric
    /// occur ([`Odds`]) is drawn from the seed.
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed,
            workers: 2,
            most_outstanding: 32,
            max_inline_bytes: 128,
            odds: None,
            processors: false,
            keep_events: false,
            defect: None,
            lease: None,
        }
    }
}
