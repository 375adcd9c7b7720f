//! Sizes of a simulated cluster and the pace of its scheduler.

use std::time::Duration;

use farm_core::config::TransactionsConfig;
use farm_core::ids::MachineId;
use farm_core::limits::{
    LARGEST_REPLY_BYTES, MESSAGES_PER_RING, READ_TRIES, RECORD_OVERHEAD_BYTES, REPLY_SHARE_OF_RING,
};
use farm_core::messaging::{RingFormat, SegmentLayout};
use farm_core::ring::RecordIntegrity;
use rand::Rng;
use serde::Serialize;

use crate::fabric::SimConfig;

/// Bytes of the smallest log. Its largest record, an eighth of the log, has room for the writes of a small transaction.
const LEAST_LOG_BYTES: usize = 8 << 10;

/// Maximum number of operations that a worker keeps in flight.
const MOST_OPERATIONS: usize = 16;

/// Largest share of turns, out of 1024, that the slow worker is skipped. With this share the worker still runs so often
/// that the run does not count as standing still.
const SLOWEST: u32 = 1008;

/// Minimum number of blocks of a region that has room for tables.
const BLOCKS_FOR_TABLES: usize = 32;

/// Minimum number of blocks of a region that has room for a graph.
const BLOCKS_FOR_A_GRAPH: usize = 64;
/// Bytes of the smallest log of a cluster with a graph.
const LEAST_LOG_BYTES_FOR_A_GRAPH: usize = 128 << 10;

/// Maximum number of bytes of a log record besides the objects.
const LOG_RECORD_BYTES: usize = 192;

/// Sizes of a cluster, so small that events that are rare in production are common.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClusterLimits {
    /// Number of machines.
    pub machines: usize,
    /// Number of machines without memory of their own: the last ones.
    pub without_memory: usize,
    /// Workers of each machine.
    pub workers: usize,
    /// Bytes of a ring.
    pub ring_bytes: usize,
    /// Bytes of a transaction log.
    pub log_bytes: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a region.
    pub region_bytes: usize,
    /// Maximum number of bytes of all regions of a machine.
    pub per_machine_bytes: u64,
    /// Maximum number of operations that a worker keeps in flight, and number of slots of its arena for small reads.
    pub operations: usize,
    /// Limit of the outstanding operations of an endpoint, as in [`SimConfig`](crate::fabric::SimConfig).
    pub most_outstanding: usize,
    /// Maximum number of bytes of an inline write.
    pub max_inline_bytes: usize,
    /// Maximum number of tries of a read.
    pub read_tries: u16,
    /// Limits of transactions, and how long they are retried.
    pub transactions: TransactionsConfig,
    /// Maximum number of transactions of a worker with records from the first one on that has not ended, if it is not that
    /// of production.
    pub most_ahead: Option<u64>,
    /// How a receiver detects that a record has arrived completely.
    pub integrity: RecordIntegrity,
    /// Number of copies of regions, the primary included; 0 if commits are not logged.
    pub replicas: usize,
    /// Whether the machines go on in another configuration when one of them is lost.
    pub survives: bool,
    /// The nanoseconds of a lease, if leases end by time, as on fabrics on which a machine may not be reached.
    pub lease_nanos: Option<u64>,
}

/// The number of machines that store regions is one of these: mostly a small one, because runs with many machines take long.
const STORING: [usize; 8] = [3, 4, 3, 4, 3, 5, 6, 7];
/// Maximum number of copies of clusters that survive losses.
const MOST_COPIES: usize = 3;
/// The shortest lease that is drawn, in nanoseconds.
const SHORTEST_LEASE: u64 = 50_000;

impl ClusterLimits {
    /// Returns the configuration of a fabric with these limits.
    pub fn fabric(&self, seed: u64) -> SimConfig {
        SimConfig {
            most_outstanding: self.most_outstanding,
            max_inline_bytes: self.max_inline_bytes,
            lease: self.lease_nanos.map(Duration::from_nanos),
            ..SimConfig::seeded(seed)
        }
    }

    /// Draws the limits of three machines.
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
            without_memory: 0,
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
            most_ahead: None,
            integrity: RecordIntegrity::LastWord,
            replicas: 0,
            survives: false,
            lease_nanos: None,
        }
    }

    /// Leaves the last `count` machines without memory of their own, and at least two with memory. These get as much more.
    pub fn leave_without_memory(&mut self, count: usize) {
        self.without_memory = count;
        self.machines = self.machines.max(2 + count);
        self.per_machine_bytes *= 2;
    }

    /// Lets the cluster go on without machines that are killed: one of three that store regions, or two of four to seven. Every third seed
    /// has one without memory, too.
    pub fn survive(&mut self, seed: u64) {
        self.survives = true;
        self.without_memory = usize::from(seed / 64 % 3 == 1);
        let storing = STORING[(seed / 3 % STORING.len() as u64) as usize];
        self.machines = storing + self.without_memory;
        self.replicas = (storing - 1).min(MOST_COPIES);
    }

    /// As [`ClusterLimits::survive`], with leases that end by time.
    pub fn survive_by_leases(&mut self, seed: u64) {
        self.survive(seed);
        self.lease_nanos = Some(SHORTEST_LEASE << (seed / 9 % 7));
    }

    /// Lets the cluster go on without one of this many machines, all with memory, when its lease has ended.
    pub fn survive_with_leases(&mut self, machines: usize, lease: Duration) {
        (self.survives, self.without_memory) = (true, 0);
        self.machines = machines;
        self.replicas = machines.min(MOST_COPIES);
        self.lease_nanos = Some(lease.as_nanos() as u64);
    }

    /// As [`ClusterLimits::survive`], for the end of all processes. Every fourth seed has no further copies: then no machine goes on without
    /// another one, and all go on with what they have kept.
    pub fn survive_the_end_of_all(&mut self, seed: u64) {
        self.survive(seed);
        if seed / 16 % 4 == 3 {
            self.replicas = 1;
        }
    }

    /// Returns the layout of the segment that one machine exports for another, or for itself.
    pub(super) fn layout(&self, owner: MachineId, peer: MachineId) -> SegmentLayout {
        let of = |machine| (machine, self.workers);
        SegmentLayout::of(self.ring_format(), of(owner), of(peer))
    }

    /// Makes logs fill up: one worker per machine, with the smallest logs and the most operations in flight.
    pub fn crowd_logs(&mut self) {
        self.workers = 1;
        self.log_bytes = LEAST_LOG_BYTES;
        self.operations = MOST_OPERATIONS;
    }

    /// Raises the memory sizes so that the shards of several tables fit. Each shard takes at least one block.
    pub fn make_room_for_tables(&mut self) {
        self.region_bytes = self.region_bytes.max(BLOCKS_FOR_TABLES * self.block_bytes);
        self.per_machine_bytes = self.per_machine_bytes.max(2 * self.region_bytes as u64);
    }

    /// Raises the sizes of memory and logs so that nodes and lists of several pages fit. A transaction may change several
    /// pages of 1 KiB.
    pub fn make_room_for_a_graph(&mut self) {
        self.region_bytes = self.region_bytes.max(BLOCKS_FOR_A_GRAPH * self.block_bytes);
        self.per_machine_bytes = self.per_machine_bytes.max(4 * self.region_bytes as u64);
        self.log_bytes = self.log_bytes.max(LEAST_LOG_BYTES_FOR_A_GRAPH);
    }

    /// Returns the format of rings and logs.
    pub fn ring_format(&self) -> RingFormat {
        RingFormat {
            ring_bytes: self.ring_bytes,
            log_bytes: self.log_bytes,
            integrity: self.integrity,
            own_logs: self.replicas > 0,
        }
    }

    /// Returns the maximum number of bytes that a transaction may write on one machine. They include the record's
    /// overhead per object.
    pub fn max_log_writes(&self) -> usize {
        self.log_bytes / MESSAGES_PER_RING as usize - LOG_RECORD_BYTES
    }

    /// Returns the maximum number of bytes of a message's body.
    pub fn max_body_bytes(&self) -> usize {
        self.ring_bytes / MESSAGES_PER_RING as usize - RECORD_OVERHEAD_BYTES as usize
    }
}

/// How the scheduler distributes time. Shares are out of 1024.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pace {
    /// Share of steps that are a worker's turn. The others are steps of the fabric.
    pub turns: u32,
    /// Share of idle turns after which the worker sleeps, if it need not poll.
    pub sleeps: u32,
    /// Share of steps, out of 16 * 1024, that pause the processors of a machine.
    pub pauses: u32,
    /// Nanoseconds of the shortest pause. Each doubling of the pause is half as likely.
    pub pause_nanos: u64,
    /// Share of turns that the slow worker is skipped.
    pub slow: u32,
    /// The number of the slow worker, over all machines and modulo the number of workers.
    pub slow_worker: usize,
    /// Maximum number of steps of the fabric and of other workers at one interruption of a turn.
    pub nested_steps: u32,
}

impl Pace {
    /// Draws a pace; its shares span orders of magnitude.
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
