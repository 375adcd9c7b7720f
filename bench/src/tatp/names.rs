//! Tables and keys of TATP: one word identifies a row in its table (FaSST, FORD).
//!
//! ```text
//!  63        48 47        40 39        32 31                     0
//!  ┌───────────┬────────────┬────────────┬───────────────────────┐
//!  │ 0         │ start_time │ type       │ s_id                  │   all tables but the index
//!  ├───────────┴────────────┴────────────┴───────────────────────┤
//!  │ sub_nbr, 15 digits of 4 bits, the last one lowest           │   the index
//!  └─────────────────────────────────────────────────────────────┘
//! ```

use super::row::{AccessInfo, CallForwarding, IndexEntry, SpecialFacility, SubNbr, Subscriber};
use crate::oltp::{RowName, Table};

/// SUBSCRIBER, by `s_id`.
pub const SUBSCRIBER: Table = Table::of::<Subscriber>(1, "SUBSCRIBER");
/// The index from `sub_nbr` to `s_id`.
pub const SUB_NBR_INDEX: Table = Table::of::<IndexEntry>(2, "SUB_NBR_INDEX");
/// ACCESS_INFO, by `s_id` and `ai_type`.
pub const ACCESS_INFO: Table = Table::of::<AccessInfo>(3, "ACCESS_INFO");
/// SPECIAL_FACILITY, by `s_id` and `sf_type`.
pub const SPECIAL_FACILITY: Table = Table::of::<SpecialFacility>(4, "SPECIAL_FACILITY");
/// CALL_FORWARDING, by `s_id`, `sf_type` and `start_time`.
pub const CALL_FORWARDING: Table = Table::of::<CallForwarding>(5, "CALL_FORWARDING");

/// All tables.
pub const TABLES: [Table; 5] = [
    SUBSCRIBER,
    SUB_NBR_INDEX,
    ACCESS_INFO,
    SPECIAL_FACILITY,
    CALL_FORWARDING,
];

/// The hours at which a call forwarding may start.
pub const START_TIMES: [u8; 3] = [0, 8, 16];

/// Types of access infos and of special facilities: 1 to 4.
pub const TYPES: std::ops::RangeInclusive<u8> = 1..=4;

/// Returns the name of the row of a subscriber.
pub const fn subscriber(s_id: u32) -> RowName {
    named(SUBSCRIBER, s_id, 0, 0)
}

/// Returns the name of the index entry of a number.
pub const fn index_entry(sub_nbr: SubNbr) -> RowName {
    RowName {
        table: SUB_NBR_INDEX,
        key: sub_nbr.packed(),
    }
}

/// Returns the name of an access info of a subscriber.
pub const fn access_info(s_id: u32, ai_type: u8) -> RowName {
    named(ACCESS_INFO, s_id, ai_type, 0)
}

/// Returns the name of a special facility of a subscriber.
pub const fn special_facility(s_id: u32, sf_type: u8) -> RowName {
    named(SPECIAL_FACILITY, s_id, sf_type, 0)
}

/// Returns the name of a call forwarding of a special facility.
pub const fn call_forwarding(s_id: u32, sf_type: u8, start_time: u8) -> RowName {
    named(CALL_FORWARDING, s_id, sf_type, start_time)
}

const fn named(table: Table, s_id: u32, kind: u8, start_time: u8) -> RowName {
    RowName {
        table,
        key: (start_time as u64) << 40 | (kind as u64) << 32 | s_id as u64,
    }
}

/// Returns the names of all rows that a subscriber may have; its own row and its index entry are first.
pub fn all(s_id: u32) -> impl Iterator<Item = RowName> {
    let first = [subscriber(s_id), index_entry(SubNbr::of(s_id))];
    let access = TYPES.map(move |kind| access_info(s_id, kind));
    let facilities = TYPES.map(move |kind| special_facility(s_id, kind));
    let starts = TYPES.flat_map(|kind| START_TIMES.map(|start| (kind, start)));
    let forwardings = starts.map(move |(kind, start)| call_forwarding(s_id, kind, start));
    let rows = first.into_iter().chain(access);
    rows.chain(facilities).chain(forwardings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_the_drawn_layout() {
        assert_eq!(subscriber(0x8765_4321).key, 0x8765_4321);
        assert_eq!(access_info(7, 4).key, 0x04_0000_0007);
        assert_eq!(call_forwarding(7, 3, 16).key, 0x1003_0000_0007);
        assert_eq!(index_entry(SubNbr::of(1234)).key, 0x1234);
        let mut keys = TABLES.map(|table| RowName { table, key: 1 }.table_key());
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
