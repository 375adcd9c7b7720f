//! Every limit of the platform, in one file, related to each other by compile-time assertions.
//!
//! If a limit depends on another one, an assertion next to it states the relation and the reason. A change of one
//! number therefore either holds everywhere or does not compile. The doc comment of each limit states what it bounds.
//! [`Config::validate`](crate::config::Config::validate) checks a configuration against a [`Limits`] value. There are
//! two: [`Limits::PRODUCTION`], and [`Limits::TINY`], with which tests and the simulator shrink blocks and rings until
//! rare paths (a full ring, a full block, a wrap) become common ones.

use std::time::Duration;

/// Bytes in one KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in one GiB.
pub const GIB: u64 = 1 << 30;

// ---------------------------------------------------------------------------------------------
// Units of memory.

/// Bytes that are read and written atomically: the aligned word of every fabric.
pub const WORD_BYTES: u64 = 8;

/// Bytes in a cache line, the unit of consistency of objects (FaRM'14 §3.5).
pub const LINE_BYTES: u64 = 64;

/// Bytes in the smallest page, the unit in which the host provides memory.
pub const PAGE_BYTES: u64 = 4 * KIB;

// A line is whole words and a page is whole lines, so that nothing that starts at a line crosses a page boundary within
// the line, and no aligned word crosses a line boundary.
const _: () = assert!(LINE_BYTES.is_multiple_of(WORD_BYTES));
const _: () = assert!(PAGE_BYTES.is_multiple_of(LINE_BYTES));

// ---------------------------------------------------------------------------------------------
// Machines and workers.

/// Slots in a table indexed by machine id. Slot 0 stays empty, because 0 is not a valid id.
pub const MACHINE_SLOTS: usize = 1024;

/// The largest machine id. Ids start at 1, so that zeroed memory contains no machine id.
pub const MAX_MACHINE_ID: u16 = 1023;

/// Maximum number of machines in a cluster.
pub const MAX_MACHINES: usize = MAX_MACHINE_ID as usize;

/// Maximum number of copies of a region, the primary included.
pub const MAX_REPLICAS: usize = 5;

/// Maximum number of workers on one machine.
pub const MAX_WORKERS: usize = 64;

// Every id has its own slot, and slot 0 is the only slot without an id.
const _: () = assert!(MAX_MACHINE_ID as usize + 1 == MACHINE_SLOTS);
// A set of workers of one machine fits into one word, and machine and worker together into 16 bits.
const _: () = assert!(MAX_WORKERS <= u64::BITS as usize);
const _: () = assert!(MACHINE_SLOTS * MAX_WORKERS <= 1 << 16);

/// Maximum number of operations that one worker keeps in flight. When it starts, the worker allocates arena slots and
/// table entries for the configured number.
pub const MAX_OPERATIONS_IN_FLIGHT: u32 = 1 << 16;

/// Default number of transactions that a worker runs at the same time: enough to hide the latency of a commit over
/// several machines.
pub const DEFAULT_CONCURRENCY: u32 = 64;

// ---------------------------------------------------------------------------------------------
// Addresses, regions and blocks (FaRM'14 §3.3).

/// Bits of an address that are the offset within a region.
pub const OFFSET_BITS: u32 = 32;

/// Bits of an address that are the region id.
pub const REGION_BITS: u32 = 32;

/// Virtual rings on which regions have positions (FaRM'14 §3.3: k = 100).
pub const VIRTUAL_RINGS: u32 = 100;

/// Bits of a region id that are the virtual ring: the high ones.
pub const RING_BITS: u32 = 7;

/// Bits of a region id that are the position on its ring: the low ones.
pub const POSITION_BITS: u32 = 25;

// An address is one word, made of a whole region id and a whole offset.
const _: () = assert!(REGION_BITS + OFFSET_BITS == 64);
// A region id consists of the number of a ring and a position. Its bits suffice to number all virtual rings.
const _: () = assert!(RING_BITS + POSITION_BITS == REGION_BITS);
const _: () = assert!(VIRTUAL_RINGS <= 1 << RING_BITS);

/// Default bytes in a region (FaRM'14 §3.3).
pub const DEFAULT_REGION_BYTES: u64 = 2 * GIB;

/// Maximum number of bytes in a region: the range of an address's offset.
pub const MAX_REGION_BYTES: u64 = 1 << OFFSET_BITS;

/// The bytes of a production block are a power of two and a multiple of this number.
pub const BLOCK_GRAIN_BYTES: u64 = MIB;

/// Smallest block, in bytes, that tests and the simulator may choose.
pub const TINY_BLOCK_BYTES: u64 = PAGE_BYTES;

/// Maximum number of bytes in a block.
pub const MAX_BLOCK_BYTES: u64 = 256 * MIB;

/// Maximum number of bytes of regions on one machine.
pub const MAX_MACHINE_MEMORY_BYTES: u64 = 1 << 44;

/// Default number of bytes that a machine reads in a second at most while it fills new copies of regions, and the limits of the number.
pub const DEFAULT_FILL_RATE: u64 = 256 * MIB;
/// Default time of a lease, in milliseconds: long enough for a loaded host that does not run a process for some scheduling periods.
pub const DEFAULT_LEASE_MS: u32 = 500;
/// Shortest lease: ten looks of a thread that the system runs at least each millisecond.
pub const MIN_LEASE_MS: u32 = 10;
/// Longest lease.
pub const MAX_LEASE_MS: u32 = 600_000;
/// See [`DEFAULT_FILL_RATE`].
pub const MIN_FILL_RATE: u64 = MIB;
/// See [`DEFAULT_FILL_RATE`].
pub const MAX_FILL_RATE: u64 = 1024 * GIB;

/// If less than this fraction of its memory is available, a machine reclaims the memory of freed objects for other
/// sizes: 1/8 (FaRM'14 §3.5, "only when available memory drops below a threshold").
pub const LOW_MEMORY_SHARE: u64 = 8;

/// Number of tries after which a lock-free read of an object that stays locked fails. With the waits between the tries,
/// this takes a tenth of a second, which is much longer than any commit.
pub const READ_TRIES: u16 = 10_000;

/// Number of further tries on machines that survive the loss of one of them. Objects of commits in which the lost machine took part stay
/// locked until its lease has ended and they are recovered.
const LATER_READ_TRIES: u16 = 20_000;
/// Time for which reads are tried again besides that of two leases: longer than any recovery of transactions that was met.
const RECOVERY: Duration = Duration::from_millis(500);

/// How often a read of an object that stays locked is tried until it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTries {
    /// Number of tries with short waits between them.
    pub soon: u16,
    /// Number of further tries.
    pub later: u16,
    /// Longest wait before each of these.
    pub wait: Duration,
}

impl ReadTries {
    /// Returns this number of tries, all with short waits.
    pub const fn soon(tries: u16) -> Self {
        Self {
            soon: tries,
            later: 0,
            wait: Duration::ZERO,
        }
    }

    /// Returns the tries of a machine that survives the loss of others, whose leases have this length.
    pub fn of_survivor(lease: Duration) -> Self {
        // A wait takes half of the longest one on average.
        let wait = 2 * (2 * lease + RECOVERY) / u32::from(LATER_READ_TRIES);
        Self {
            soon: READ_TRIES,
            later: LATER_READ_TRIES,
            wait,
        }
    }
}

const _: () = assert!(DEFAULT_REGION_BYTES <= MAX_REGION_BYTES);
// A read fails when it has had more tries than this.
const _: () = assert!(READ_TRIES < u16::MAX - LATER_READ_TRIES);
// The memory of all machines together is counted in 64 bits.
const _: () = assert!(MAX_MACHINE_MEMORY_BYTES < u64::MAX / MACHINE_SLOTS as u64);
const _: () = assert!(DEFAULT_REGION_BYTES.is_multiple_of(BLOCK_GRAIN_BYTES));
// Blocks are mapped and placed by powers of two, and are whole pages.
const _: () = assert!(BLOCK_GRAIN_BYTES.is_power_of_two() && TINY_BLOCK_BYTES.is_power_of_two());
const _: () = assert!(TINY_BLOCK_BYTES.is_multiple_of(PAGE_BYTES));
// A region of the default size has room for several blocks of the largest size.
const _: () = assert!(MAX_BLOCK_BYTES * 8 <= DEFAULT_REGION_BYTES);
// The number of the smallest blocks in the largest region fits into 32 bits.
const _: () = assert!(MAX_REGION_BYTES / TINY_BLOCK_BYTES <= u32::MAX as u64);

// ---------------------------------------------------------------------------------------------
// Objects (FaRM'14 §3.5).

/// Bytes of an object's header: 64 bits of version and lock, 64 bits of incarnation.
pub const OBJECT_HEADER_BYTES: u64 = 16;

/// Bytes of version at the start of each further line of an object.
pub const LINE_VERSION_BYTES: u64 = 2;

/// Bytes of the largest size class, header and line versions included.
pub const MAX_OBJECT_BYTES: u64 = MIB;

/// Maximum number of bytes of data in one object.
pub const MAX_VALUE_BYTES: u64 = 960 * KIB;

/// Returns the bytes of data that fit into an object of `object_bytes`: all but the header and the versions of the
/// further lines. `object_bytes` must be a positive multiple of [`LINE_BYTES`].
pub const fn object_data_bytes(object_bytes: u64) -> u64 {
    let lines = object_bytes / LINE_BYTES;
    object_bytes - OBJECT_HEADER_BYTES - (lines - 1) * LINE_VERSION_BYTES
}

/// Returns the bytes of the smallest object that has room for `data_bytes` of data: the inverse of
/// [`object_data_bytes`], before rounding up to a size class.
pub const fn object_bytes(data_bytes: u64) -> u64 {
    let first = LINE_BYTES - OBJECT_HEADER_BYTES;
    if data_bytes <= first {
        return LINE_BYTES;
    }
    LINE_BYTES + (data_bytes - first).div_ceil(LINE_BYTES - LINE_VERSION_BYTES) * LINE_BYTES
}

// The largest object fits into one production block, and has room for the largest value.
const _: () = assert!(MAX_OBJECT_BYTES <= BLOCK_GRAIN_BYTES);
const _: () = assert!(object_data_bytes(MAX_OBJECT_BYTES) >= MAX_VALUE_BYTES);
const _: () = assert!(object_bytes(MAX_VALUE_BYTES) <= MAX_OBJECT_BYTES);

// ---------------------------------------------------------------------------------------------
// Rings and messages (FaRM'14 §3.1).

/// The largest message is at most this fraction of its ring: 1/8. The receiver may leave half of the ring unreported, a
/// wrap may waste almost one record, and a quarter stays free for replies. With a limit of 1/8, any message therefore
/// fits into a ring that is empty ([`crate::ring`], claim 2).
pub const MESSAGES_PER_RING: u64 = 8;

/// Bytes of a ring that a message takes in addition to its own.
pub const RECORD_OVERHEAD_BYTES: u64 = 24;

/// Bytes of the largest reply to the platform's own requests, which is a region's capability, as whole words. Each
/// worker has room for one such reply from each other worker, whatever other replies it waits for.
pub const LARGEST_REPLY_BYTES: u64 = 32;

/// Replies may use this fraction of a ring, 1/4, and each worker of the requesting machine has an equal share of it.
pub const REPLY_SHARE_OF_RING: u64 = 4;

/// Smallest `max_message_bytes`: a lock request and its reply must fit.
pub const MIN_MESSAGE_BYTES: u64 = 64;

/// Minimum number of bytes in a production ring.
pub const MIN_RING_BYTES: u64 = 32 * KIB;

/// Minimum number of bytes in a ring of tests and the simulator.
pub const TINY_RING_BYTES: u64 = 512;

/// Maximum number of bytes in a ring.
pub const MAX_RING_BYTES: u64 = GIB;

// In a quarter of the smallest ring, every worker has room for the largest reply and for one prompt reply, and there is
// room for one more reply: n(s + p) + max(s, p), as rule 2 of the documentation of `ring` requires.
const _: () = assert!(
    (LARGEST_REPLY_BYTES + RECORD_OVERHEAD_BYTES)
        * (2 * MAX_WORKERS as u64 + 1)
        * REPLY_SHARE_OF_RING
        <= MIN_RING_BYTES
);
// A ring of the smallest size carries messages of the smallest size.
const _: () = assert!(TINY_RING_BYTES / MESSAGES_PER_RING >= MIN_MESSAGE_BYTES);
const _: () = assert!(MIN_RING_BYTES >= TINY_RING_BYTES && MIN_RING_BYTES.is_power_of_two());
// Offsets and lengths within a ring have 32 bits, of which the top one is free to count wraps.
const _: () = assert!(MAX_RING_BYTES < 1 << 31);

// ---------------------------------------------------------------------------------------------
// Transactions.

/// Upper bound of the configurable number of objects of a transaction.
pub const MAX_TRANSACTION_OBJECTS: u32 = 1 << 24;

/// Lower bound of the configurable bytes of payloads of a transaction.
pub const MIN_TRANSACTION_BYTES: u64 = MIB;

/// Upper bound of the configurable bytes of payloads of a transaction.
pub const MAX_TRANSACTION_BYTES: u64 = GIB;

/// Maximum number of milliseconds for which a transaction may be retried on an object that stays locked.
pub const MAX_PATIENCE_MS: u32 = 3_600_000;

// A transaction has room for the largest object.
const _: () = assert!(MIN_TRANSACTION_BYTES >= MAX_OBJECT_BYTES);
// The offset of a payload among those of its transaction has 32 bits.
const _: () = assert!(MAX_TRANSACTION_BYTES < u32::MAX as u64);

// ---------------------------------------------------------------------------------------------
// Names and idling.

/// Maximum number of characters in the name of a cluster.
pub const MAX_CLUSTER_NAME: usize = 40;

/// Maximum number of bytes in the path of a Unix socket on Linux, without the closing zero.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Maximum number of bytes of the names below `cluster.run_dir`: `/<cluster>/machine-1023.sock`.
pub const SOCKET_NAME_BYTES: usize = 1 + MAX_CLUSTER_NAME + "/machine-1023.sock".len();

/// Longest configurable time for which a worker spins or yields before it parks, in microseconds.
pub const MAX_IDLE_US: u32 = 1_000_000;

/// The largest number of a core to which a worker can be pinned.
pub const MAX_CORE: u32 = 4095;

// The default directories of sockets, `/run/user/<uid>/farm` and `/tmp/farm-<uid>`, leave room for the longest name of
// a cluster.
const _: () =
    assert!("/run/user/4294967295/farm".len() + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES);

/// The limits that differ between production and tests or the simulator.
///
/// The upper limits are equal; the lower limits of tests are smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of machines in a cluster.
    pub max_machines: usize,
    /// Maximum number of workers on one machine.
    pub max_workers: usize,
    /// Blocks are powers of two and multiples of this many bytes.
    pub block_grain_bytes: u64,
    /// Maximum number of bytes in a block.
    pub max_block_bytes: u64,
    /// Maximum number of bytes in a region.
    pub max_region_bytes: u64,
    /// Minimum number of bytes in a ring.
    pub min_ring_bytes: u64,
    /// Maximum number of bytes in a ring.
    pub max_ring_bytes: u64,
}

impl Limits {
    /// Limits of the configuration of a production cluster.
    pub const PRODUCTION: Limits = Limits {
        max_machines: MAX_MACHINES,
        max_workers: MAX_WORKERS,
        block_grain_bytes: BLOCK_GRAIN_BYTES,
        max_block_bytes: MAX_BLOCK_BYTES,
        max_region_bytes: MAX_REGION_BYTES,
        min_ring_bytes: MIN_RING_BYTES,
        max_ring_bytes: MAX_RING_BYTES,
    };

    /// Limits of the configuration of tests and the simulator.
    pub const TINY: Limits = Limits {
        block_grain_bytes: TINY_BLOCK_BYTES,
        min_ring_bytes: TINY_RING_BYTES,
        ..Limits::PRODUCTION
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is stopped keeps its locks until its lease has ended, and the others have recovered.
    #[test]
    fn reads_of_survivors_outlast_the_lease_of_a_stopped_machine() {
        for lease in [10, 500, 60_000].map(Duration::from_millis) {
            let ReadTries { later, wait, .. } = ReadTries::of_survivor(lease);
            let usual = wait / 2 * u32::from(later);
            assert!(usual >= 2 * lease, "{lease:?}: {usual:?}");
        }
    }

    #[test]
    fn object_sizes_and_their_data_are_inverse() {
        for data in 0..10_000 {
            let bytes = object_bytes(data);
            assert_eq!(bytes % LINE_BYTES, 0);
            assert!(
                object_data_bytes(bytes) >= data,
                "{data} bytes do not fit into {bytes}"
            );
            assert!(
                bytes == LINE_BYTES || object_data_bytes(bytes - LINE_BYTES) < data,
                "{data} bytes would fit into fewer than {bytes}"
            );
        }
    }

    #[test]
    fn first_line_keeps_48_bytes_of_data_and_each_further_one_62() {
        assert_eq!(object_data_bytes(64), 48);
        assert_eq!(object_data_bytes(128), 48 + 62);
        assert_eq!(object_bytes(48), 64);
        assert_eq!(object_bytes(49), 128);
    }

    #[test]
    fn tiny_limits_only_lower_floors() {
        let (tiny, production) = (Limits::TINY, Limits::PRODUCTION);
        assert!(tiny.block_grain_bytes < production.block_grain_bytes);
        assert!(tiny.min_ring_bytes < production.min_ring_bytes);
        assert_eq!(
            Limits {
                block_grain_bytes: production.block_grain_bytes,
                min_ring_bytes: production.min_ring_bytes,
                ..tiny
            },
            production
        );
    }
}
