//! Sizes and paces of a simulated cluster.

use farm_core::config::TransactionsConfig;
use farm_core::limits::{
    LARGEST_REPLY_BYTES, MESSAGES_PER_RING, READ_TRIES, RECORD_OVERHEAD_BYTES, REPLY_SHARE_OF_RING,
};
use farm_core::messaging::RingFormat;
use farm_core::ring::Wholeness;
use rand::Rng;
use serde::Serialize;

/// A log whose greatest record, an eighth, has the writes of a small transaction.
const LEAST_LOG_BYTES: usize = 8 << 10;

/// Operations that a worker keeps in flight, at most.
const MOST_OPERATIONS: usize = 16;

/// Share of turns, out of 1024, that the slowest worker is passed over: it does come on while others take
/// the steps after which a run counts as standing still.
const SLOWEST: u32 = 1008;

/// Blocks of a region in which there is room for tables.
const BLOCKS_FOR_TABLES: usize = 32;

/// What a record of a log has besides the objects, at most.
const LOG_RECORD_BYTES: usize = 192;

/// Sizes of a cluster, so small that what is rare in production is common.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClusterLimits {
    /// Machines.
    pub machines: usize,
    /// Workers of each.
    pub workers: usize,
    /// Bytes of a ring.
    pub ring_bytes: usize,
    /// Bytes of a log.
    pub log_bytes: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a region.
    pub region_bytes: usize,
    /// Bytes of regions on a machine.
    pub per_machine_bytes: u64,
    /// Operations that a worker keeps in flight, and slots of its arena for small reads.
    pub operations: usize,
    /// Outstanding operations of an endpoint.
    pub most_outstanding: usize,
    /// Bytes of an inline write.
    pub max_inline_bytes: usize,
    /// Tries of a read before it is given up.
    pub read_tries: u16,
    /// What transactions may hold, and how long they are retried.
    pub transactions: TransactionsConfig,
    /// How receivers know that a record is whole.
    pub wholeness: Wholeness,
}

impl ClusterLimits {
    /// Three machines, everything else drawn.
    pub fn drawn(rng: &mut impl Rng) -> Self {
        let workers = rng.random_range(1..=2usize);
        let least_ring = (LARGEST_REPLY_BYTES + RECORD_OVERHEAD_BYTES)
            * (2 * workers as u64 + 1)
            * REPLY_SHARE_OF_RING;
        let ring_bytes = (least_ring as usize).next_power_of_two() << rng.random_range(0..4u32);
        let block_bytes = 4096 << rng.random_range(0..2u32);
        let region_bytes = block_bytes * (4 << rng.random_range(0..3u32));
        Self {
            machines: 3,
            workers,
            ring_bytes,
            log_bytes: LEAST_LOG_BYTES << rng.random_range(0..4u32),
            block_bytes,
            region_bytes,
            per_machine_bytes: (region_bytes * rng.random_range(1..=4usize)) as u64,
            operations: rng.random_range(2..=MOST_OPERATIONS),
            most_outstanding: rng.random_range(4..=32),
            max_inline_bytes: 8 << rng.random_range(0..5u32),
            read_tries: READ_TRIES,
            transactions: TransactionsConfig::default(),
            wholeness: Wholeness::LastWord,
        }
    }

    /// The smallest logs, each of the only worker there is, with as many operations at one time as there may
    /// be.
    pub fn crowd_logs(&mut self) {
        self.workers = 1;
        self.log_bytes = LEAST_LOG_BYTES;
        self.operations = MOST_OPERATIONS;
    }

    /// Memory for the shards of several tables, each of which takes a block at least.
    pub fn make_room_for_tables(&mut self) {
        self.region_bytes = self.region_bytes.max(BLOCKS_FOR_TABLES * self.block_bytes);
        self.per_machine_bytes = self.per_machine_bytes.max(2 * self.region_bytes as u64);
    }

    /// What rings and logs are like.
    pub fn ring_format(&self) -> RingFormat {
        RingFormat {
            ring_bytes: self.ring_bytes,
            log_bytes: self.log_bytes,
            wholeness: self.wholeness,
        }
    }

    /// Most bytes that a transaction may write on one machine, with what each object adds to its record.
    pub fn max_log_writes(&self) -> usize {
        self.log_bytes / MESSAGES_PER_RING as usize - LOG_RECORD_BYTES
    }

    /// Most bytes of a message's body.
    pub fn max_body_bytes(&self) -> usize {
        self.ring_bytes / MESSAGES_PER_RING as usize - RECORD_OVERHEAD_BYTES as usize
    }
}

/// How the scheduler deals out time. Shares are out of 1024.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pace {
    /// Share of steps that are a worker's turn; the others are the fabric's.
    pub turns: u32,
    /// Share of idle turns after which a worker goes to sleep, where it may.
    pub sleeps: u32,
    /// Share of steps that let a processor stop.
    pub pauses: u32,
    /// Nanoseconds of the shortest pause; every doubling is half as likely.
    pub pause_nanos: u64,
    /// Share of turns that a slow worker is passed over.
    pub slow: u32,
    /// The slow worker, counted over all machines.
    pub slow_worker: usize,
    /// Most steps of others between two accesses of one turn.
    pub nested_steps: u32,
}

impl Pace {
    /// Over orders of magnitude.
    pub fn drawn(rng: &mut impl Rng) -> Self {
        Self {
            turns: rng.random_range(128..=896),
            sleeps: 1024 >> rng.random_range(0..8u32),
            pauses: (8 >> rng.random_range(0..8u32)) * u32::from(rng.random_bool(0.5)),
            pause_nanos: 100 << rng.random_range(0..10u32),
            slow: (1023 >> rng.random_range(0..8u32)).min(SLOWEST),
            slow_worker: rng.random_range(0..6),
            nested_steps: 1 << rng.random_range(0..6u32),
        }
    }
}
