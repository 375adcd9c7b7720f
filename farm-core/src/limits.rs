//! Every limit of the platform, in one file, related to each other by compile-time assertions.
//!
//! A limit that follows from another is asserted beside it together with the argument, so that a
//! change of one number either still holds everywhere or does not compile. What a limit bounds is
//! told at the limit; what a configuration may say within them is checked by
//! [`Config::validate`](crate::config::Config::validate) against a [`Limits`] value, of which there
//! are two: [`Limits::PRODUCTION`], and [`Limits::TINY`], by which tests and the simulator shrink
//! blocks and rings until rare paths (a full ring, a full block, a wrap) become common ones.

/// Bytes in one KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in one GiB.
pub const GIB: u64 = 1 << 30;

// ---------------------------------------------------------------------------------------------
// Memory's own grains.

/// Bytes that are read and written whole: the aligned word of every fabric.
pub const WORD_BYTES: u64 = 8;

/// Bytes in a cache line, the unit of consistency of objects (FaRM'14 §3.5).
pub const LINE_BYTES: u64 = 64;

/// Bytes in the smallest page, the unit in which the host gives memory.
pub const PAGE_BYTES: u64 = 4 * KIB;

// A line is whole words and a page whole lines, so that nothing that starts at a line straddles
// a page and nothing that starts at a word straddles a line.
const _: () = assert!(LINE_BYTES.is_multiple_of(WORD_BYTES));
const _: () = assert!(PAGE_BYTES.is_multiple_of(LINE_BYTES));

// ---------------------------------------------------------------------------------------------
// Machines and workers.

/// Slots in a table indexed by machine id. Slot 0 stays empty: 0 names nobody.
pub const MACHINE_SLOTS: usize = 1024;

/// The greatest machine id. Ids start at 1, so that zeroed memory names no machine.
pub const MAX_MACHINE_ID: u16 = 1023;

/// Most machines in a cluster.
pub const MAX_MACHINES: usize = MAX_MACHINE_ID as usize;

/// Most workers on one machine.
pub const MAX_WORKERS: usize = 64;

// Every id has its own slot, and slot 0 is the only one without an id.
const _: () = assert!(MAX_MACHINE_ID as usize + 1 == MACHINE_SLOTS);
// A set of workers of one machine fits one word, and machine and worker together 16 bits.
const _: () = assert!(MAX_WORKERS <= u64::BITS as usize);
const _: () = assert!(MACHINE_SLOTS * MAX_WORKERS <= 1 << 16);

/// Most operations one worker keeps in flight. They are slots of the worker's arena and slab.
pub const MAX_OPERATIONS_IN_FLIGHT: u32 = 1 << 16;

/// Transactions that a worker runs at once by default: enough to hide the latency of a commit over several machines.
pub const DEFAULT_CONCURRENCY: u32 = 64;

// ---------------------------------------------------------------------------------------------
// Addresses, regions and blocks (FaRM'14 §3.3).

/// Bits of an address that are the offset within a region.
pub const OFFSET_BITS: u32 = 32;

/// Bits of an address that name the region.
pub const REGION_BITS: u32 = 32;

/// Virtual rings on which regions have positions (FaRM'14 §3.3: k = 100).
pub const VIRTUAL_RINGS: u32 = 100;

/// Bits of a region id that name the virtual ring: the high ones.
pub const RING_BITS: u32 = 7;

/// Bits of a region id that are the position on its ring: the low ones.
pub const POSITION_BITS: u32 = 25;

// An address is one word, made of a whole region id and a whole offset.
const _: () = assert!(REGION_BITS + OFFSET_BITS == 64);
// A region id is made of a ring and a position, and every ring has a number.
const _: () = assert!(RING_BITS + POSITION_BITS == REGION_BITS);
const _: () = assert!(VIRTUAL_RINGS <= 1 << RING_BITS);

/// Bytes in a region unless the configuration says otherwise (FaRM'14 §3.3).
pub const DEFAULT_REGION_BYTES: u64 = 2 * GIB;

/// Most bytes in a region: what the offset of an address can tell apart.
pub const MAX_REGION_BYTES: u64 = 1 << OFFSET_BITS;

/// A production block is a power of two and a multiple of this.
pub const BLOCK_GRAIN_BYTES: u64 = MIB;

/// Least block that tests and the simulator may choose.
pub const TINY_BLOCK_BYTES: u64 = PAGE_BYTES;

/// Most bytes in a block.
pub const MAX_BLOCK_BYTES: u64 = 256 * MIB;

/// Most bytes of regions on one machine.
pub const MAX_MACHINE_MEMORY_BYTES: u64 = 1 << 44;

/// A machine wins back the memory of freed objects for other sizes when less than this part of its
/// memory is available: 1/8 (FaRM'14 §3.5, "only when available memory drops below a threshold").
pub const LOW_MEMORY_SHARE: u64 = 8;

/// Tries before a lock-free read is given up: its object is locked and stays so. With the waits between
/// them a tenth of a second, far beyond any commit.
pub const READ_TRIES: u16 = 10_000;

const _: () = assert!(DEFAULT_REGION_BYTES <= MAX_REGION_BYTES);
// The memory of all machines together is counted in 64 bits.
const _: () = assert!(MAX_MACHINE_MEMORY_BYTES < u64::MAX / MACHINE_SLOTS as u64);
const _: () = assert!(DEFAULT_REGION_BYTES.is_multiple_of(BLOCK_GRAIN_BYTES));
// Blocks are mapped and placed by powers of two, and are whole pages.
const _: () = assert!(BLOCK_GRAIN_BYTES.is_power_of_two() && TINY_BLOCK_BYTES.is_power_of_two());
const _: () = assert!(TINY_BLOCK_BYTES.is_multiple_of(PAGE_BYTES));
// Some region of the default size has room for some blocks of the greatest size.
const _: () = assert!(MAX_BLOCK_BYTES * 8 <= DEFAULT_REGION_BYTES);
// Blocks of the least size in a region of the greatest are counted by 32 bits.
const _: () = assert!(MAX_REGION_BYTES / TINY_BLOCK_BYTES <= u32::MAX as u64);

// ---------------------------------------------------------------------------------------------
// Objects (FaRM'14 §3.5).

/// Bytes of an object's header: 64 bits of version and lock, 64 bits of incarnation.
pub const OBJECT_HEADER_BYTES: u64 = 16;

/// Bytes of version at the start of each further line of an object.
pub const LINE_VERSION_BYTES: u64 = 2;

/// Bytes of the greatest size class, header and line versions included.
pub const MAX_OBJECT_BYTES: u64 = MIB;

/// Most bytes of data in one object.
pub const MAX_VALUE_BYTES: u64 = 960 * KIB;

/// Most bytes in a key of a hashtable.
pub const MAX_KEY_BYTES: u64 = 256;

/// Bytes of data that an object of `object_bytes` has room for: what the header and the versions
/// of the further lines leave. `object_bytes` is a positive multiple of [`LINE_BYTES`].
pub const fn object_data_bytes(object_bytes: u64) -> u64 {
    let lines = object_bytes / LINE_BYTES;
    object_bytes - OBJECT_HEADER_BYTES - (lines - 1) * LINE_VERSION_BYTES
}

/// Least bytes of an object that has room for `data_bytes` of data: the inverse of
/// [`object_data_bytes`], before rounding up to a size class.
pub const fn object_bytes(data_bytes: u64) -> u64 {
    let first = LINE_BYTES - OBJECT_HEADER_BYTES;
    if data_bytes <= first {
        return LINE_BYTES;
    }
    LINE_BYTES + (data_bytes - first).div_ceil(LINE_BYTES - LINE_VERSION_BYTES) * LINE_BYTES
}

// The greatest object is one production block, and offers what the greatest value needs.
const _: () = assert!(MAX_OBJECT_BYTES <= BLOCK_GRAIN_BYTES);
const _: () = assert!(object_data_bytes(MAX_OBJECT_BYTES) >= MAX_VALUE_BYTES);
const _: () = assert!(object_bytes(MAX_VALUE_BYTES) <= MAX_OBJECT_BYTES);
// The greatest pair fits one slot of the smallest bucket, which is one object.
const _: () = assert!(object_bytes(MAX_KEY_BYTES + MAX_VALUE_BYTES) <= MAX_OBJECT_BYTES);

// ---------------------------------------------------------------------------------------------
// Rings and messages (FaRM'14 §3.1).

/// The greatest message is at most this share of its ring: 1/8. The head goes back to the sender
/// after half of the ring, and records are contiguous, so a wrap may waste almost one record; with
/// eighths there is always room for several, and no reservation of a reply can wait for itself.
pub const MESSAGES_PER_RING: u64 = 8;

/// Bytes of a ring that a message takes besides its own.
pub const RECORD_OVERHEAD_BYTES: u64 = 24;

/// Bytes of the largest reply that the platform itself asks for, a region's capability, as whole words. Each
/// worker has room for one such reply from each other worker whatever else it waits for.
pub const LARGEST_REPLY_BYTES: u64 = 32;

/// Replies have this part of a ring, and each worker of the machine that asks its share of it.
pub const REPLY_SHARE_OF_RING: u64 = 4;

/// Least bytes of `max_message_bytes`: a lock request and its reply must fit.
pub const MIN_MESSAGE_BYTES: u64 = 64;

/// Bytes that a shipped operation adds to its key and value, at most: the ring's record, the call's
/// matching, the operation's own fields.
pub const SHIPPED_OVERHEAD_BYTES: u64 = 128;

/// Least bytes in a production ring.
pub const MIN_RING_BYTES: u64 = 32 * KIB;

/// Least bytes in a ring of tests and the simulator.
pub const TINY_RING_BYTES: u64 = 512;

/// Most bytes in a ring.
pub const MAX_RING_BYTES: u64 = GIB;

// Every worker's share of the least ring holds the largest reply, and has room for one prompt reply
// besides; there is one share more than workers.
const _: () = assert!(
    (LARGEST_REPLY_BYTES + RECORD_OVERHEAD_BYTES)
        * (2 * MAX_WORKERS as u64 + 1)
        * REPLY_SHARE_OF_RING
        <= MIN_RING_BYTES
);
// A ring of the least size carries messages of the least size.
const _: () = assert!(TINY_RING_BYTES / MESSAGES_PER_RING >= MIN_MESSAGE_BYTES);
const _: () = assert!(MIN_RING_BYTES >= TINY_RING_BYTES && MIN_RING_BYTES.is_power_of_two());
// The greatest pair can be shipped by some ring.
const _: () = assert!(
    MAX_KEY_BYTES + MAX_VALUE_BYTES + SHIPPED_OVERHEAD_BYTES <= MAX_RING_BYTES / MESSAGES_PER_RING
);
// Offsets and lengths within a ring are 32 bits, with the top one free to count wraps.
const _: () = assert!(MAX_RING_BYTES < 1 << 31);

// ---------------------------------------------------------------------------------------------
// Transactions.

/// Most objects that the limit of a transaction may be set to.
pub const MAX_TRANSACTION_OBJECTS: u32 = 1 << 24;

/// Least bytes of payloads that the limit of a transaction may be set to.
pub const MIN_TRANSACTION_BYTES: u64 = MIB;

/// Most bytes of payloads that the limit of a transaction may be set to.
pub const MAX_TRANSACTION_BYTES: u64 = GIB;

/// Most milliseconds for which a transaction may be retried on an object that stays locked.
pub const MAX_PATIENCE_MS: u32 = 3_600_000;

// A transaction holds the greatest object.
const _: () = assert!(MIN_TRANSACTION_BYTES >= MAX_OBJECT_BYTES);
// The place of a payload among those of its transaction has 32 bits.
const _: () = assert!(MAX_TRANSACTION_BYTES < u32::MAX as u64);

// ---------------------------------------------------------------------------------------------
// The hashtable (FaRM'14 §3.6).

/// The neighbourhoods H that buckets are laid out for; a bucket has H/2 slots.
pub const NEIGHBOURHOODS: [u32; 5] = [2, 4, 6, 8, 12];

/// Most shards that one worker owns.
pub const MAX_SHARDS_PER_WORKER: u32 = 64;

// ---------------------------------------------------------------------------------------------
// Names and idling.

/// Most characters in the name of a cluster.
pub const MAX_CLUSTER_NAME: usize = 40;

/// Most bytes in the path of a Unix socket on Linux, without the closing zero.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Bytes that the names below `cluster.run_dir` take at most: `/<cluster>/machine-1023.sock`.
pub const SOCKET_NAME_BYTES: usize = 1 + MAX_CLUSTER_NAME + "/machine-1023.sock".len();

/// Longest time a worker may be told to spin or to yield before it parks, in microseconds.
pub const MAX_IDLE_US: u32 = 1_000_000;

/// The greatest number of a core that a worker can be pinned to.
pub const MAX_CORE: u32 = 4095;

// The default places of sockets, `/run/user/<uid>/farm` and `/tmp/farm-<uid>`, leave room for the
// longest name of a cluster.
const _: () =
    assert!("/run/user/4294967295/farm".len() + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES);

/// The limits that differ between production on one side and tests and the simulator on the other.
///
/// The ceilings are the same; the tiny floors are lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most machines in a cluster.
    pub max_machines: usize,
    /// Most workers on one machine.
    pub max_workers: usize,
    /// Blocks are powers of two and multiples of this many bytes.
    pub block_grain_bytes: u64,
    /// Most bytes in a block.
    pub max_block_bytes: u64,
    /// Most bytes in a region.
    pub max_region_bytes: u64,
    /// Least bytes in a ring.
    pub min_ring_bytes: u64,
    /// Most bytes in a ring.
    pub max_ring_bytes: u64,
}

impl Limits {
    /// What a cluster that serves may be configured to.
    pub const PRODUCTION: Limits = Limits {
        max_machines: MAX_MACHINES,
        max_workers: MAX_WORKERS,
        block_grain_bytes: BLOCK_GRAIN_BYTES,
        max_block_bytes: MAX_BLOCK_BYTES,
        max_region_bytes: MAX_REGION_BYTES,
        min_ring_bytes: MIN_RING_BYTES,
        max_ring_bytes: MAX_RING_BYTES,
    };

    /// What tests and the simulator may shrink to.
    pub const TINY: Limits = Limits {
        block_grain_bytes: TINY_BLOCK_BYTES,
        min_ring_bytes: TINY_RING_BYTES,
        ..Limits::PRODUCTION
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_sizes_and_their_data_are_inverse() {
        for data in 0..10_000 {
            let bytes = object_bytes(data);
            assert_eq!(bytes % LINE_BYTES, 0);
            assert!(
                object_data_bytes(bytes) >= data,
                "{data} bytes do not fit {bytes}"
            );
            assert!(
                bytes == LINE_BYTES || object_data_bytes(bytes - LINE_BYTES) < data,
                "{data} bytes would fit less than {bytes}"
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
