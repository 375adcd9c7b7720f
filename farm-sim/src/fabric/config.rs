//! What a simulated fabric is made of: its odds, its limits, and the bugs that prove the checkers.

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// How often the fabric does what it rarely does. Shares are out of [`Odds::WHOLE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odds {
    /// Share of posts that are answered `Full` although there is room.
    pub full: u32,
    /// Share of steps that make a connection stand still for a heavy-tailed time instead.
    pub stall: u32,
    /// Share of steps that go on with operations although a completion could be delivered.
    pub late_completion: u32,
    /// Share of waits that end `Notified` although nobody notified.
    pub spurious_wake: u32,
    /// Most steps that the fabric takes on its own at one poll.
    pub steps_per_poll: u32,
    /// Most words that land or are collected in one step (more for long operations).
    pub words_per_step: u32,
    /// The words of a write land in the order of their addresses; else in any.
    pub places_in_order: bool,
    /// A read of objects is one pass over its lines in any order, as a NIC makes it: the lines' versions
    /// alone tell that they belong together. Else it looks at the headers before and after, as the
    /// checked copy of shared memory does.
    pub one_pass: bool,
    /// Most times a read of objects starts again before it is torn; drawn per read.
    pub most_retries: u32,
    /// Share of words that processors see later than the fabric; what comes after waits for them.
    pub late_arrival: u32,
    /// Accesses of a turn to memory between two moments at which others run, on average.
    pub accesses_between_others: u32,
    /// Share of those moments at which other workers take turns; else the fabric alone goes on.
    pub nested_turn: u32,
}

impl Odds {
    /// The share that is always.
    pub const WHOLE: u32 = 1024;

    /// Odds over orders of magnitude.
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
        }
    }
}

/// A deliberate bug of the simulated fabric. The conformance suite must find each: a check that
/// never fails proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Fences do nothing.
    FencesIgnored,
    /// A read may pass an earlier write.
    ReadsPassWrites,
    /// Writes of one connection pass each other.
    WritesUnordered,
    /// A write lands from its end to its start.
    PlacedBackwards,
    /// Some completions come twice.
    CompletedTwice,
    /// Some completions never come.
    CompletionLost,
    /// Unsignalled writes complete too.
    UnsignalledCompletes,
    /// Completions of writes keep their slots.
    SlotKept,
    /// Some notifications wake nobody.
    WakeLost,
    /// A notification overtakes the data it tells of.
    WakeEarly,
    /// Reads of objects see torn lines.
    LinesTorn,
    /// Reads of objects do not look at the headers again.
    HeadersUnchecked,
    /// Operations outstanding at a break never complete.
    BreakForgets,
    /// A post to a machine that is gone is taken.
    BreakForgiven,
    /// Ranges and rights are not checked.
    AccessUnchecked,
    /// A capability of an earlier start is accepted.
    StaleAccepted,
    /// Atomics are a read and a write.
    AtomicsTorn,
    /// Reads are counted twice.
    Miscounted,
}

impl Defect {
    /// All of them.
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

/// What a [`SimFabric`](super::SimFabric) is made from.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Workers of each machine.
    pub workers: usize,
    /// Most outstanding operations of an endpoint.
    pub most_outstanding: usize,
    /// Most bytes of an inline write.
    pub max_inline_bytes: usize,
    /// `None`: drawn from the seed.
    pub odds: Option<Odds>,
    /// Processors buffer stores and see writes late; others run between the accesses of a turn.
    pub processors: bool,
    /// Keep every event, for reading.
    pub keep_events: bool,
    /// A bug to be found.
    pub defect: Option<Defect>,
}

impl SimConfig {
    /// The usual fabric of a seed: two workers per machine, odds drawn.
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
        }
    }
}
