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

use std::fmt;

use crate::oltp::{RowName, Table};

/// SUBSCRIBER, by `s_id`.
pub const SUBSCRIBER: Table = table(1, "SUBSCRIBER", 40);
/// The index from `sub_nbr` to `s_id`.
pub const SUB_NBR_INDEX: Table = table(2, "SUB_NBR_INDEX", 8);
/// ACCESS_INFO, by `s_id` and `ai_type`.
pub const ACCESS_INFO: Table = table(3, "ACCESS_INFO", 16);
/// SPECIAL_FACILITY, by `s_id` and `sf_type`.
pub const SPECIAL_FACILITY: Table = table(4, "SPECIAL_FACILITY", 8);
/// CALL_FORWARDING, by `s_id`, `sf_type` and `start_time`.
pub const CALL_FORWARDING: Table = table(5, "CALL_FORWARDING", 16);

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

const fn table(id: u8, name: &'static str, row_bytes: usize) -> Table {
    Table {
        id,
        name,
        row_bytes,
    }
}

/// Returns the name of the row of a subscriber.
pub const fn subscriber(s_id: u32) -> RowName {
    named(SUBSCRIBER, s_id, 0, 0)
}

/// Returns the name of the index entry of a number.
pub const fn index_entry(sub_nbr: SubNbr) -> RowName {
    RowName {
        table: SUB_NBR_INDEX,
        key: sub_nbr.0,
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

/// The number of a subscriber: `s_id` in 15 decimal digits, 4 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubNbr(u64);

impl SubNbr {
    /// Number of digits.
    pub const DIGITS: u32 = 15;

    /// Returns the number of a subscriber.
    pub const fn of(s_id: u32) -> Self {
        let (mut rest, mut packed, mut digit) = (s_id as u64, 0, 0);
        while digit < Self::DIGITS {
            packed |= (rest % 10) << (4 * digit);
            rest /= 10;
            digit += 1;
        }
        Self(packed)
    }

    /// Returns the packed digits.
    pub const fn packed(self) -> u64 {
        self.0
    }

    /// Creates a number from packed digits; `None` if a digit is above 9, or if there are more than 15.
    pub fn from_packed(packed: u64) -> Option<Self> {
        let decimal = (0..Self::DIGITS).all(|digit| packed >> (4 * digit) & 0xF <= 9);
        (decimal && packed >> (4 * Self::DIGITS) == 0).then_some(Self(packed))
    }
}

impl fmt::Display for SubNbr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A decimal digit looks the same in hexadecimal.
        write!(out, "{:015x}", self.0)
    }
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

    #[test]
    fn numbers_are_fifteen_decimal_digits() {
        for s_id in [0, 1, 9, 10, 99_999, 4_294_967_295] {
            let number = SubNbr::of(s_id);
            assert_eq!(number.to_string(), format!("{s_id:015}"));
            assert_eq!(SubNbr::from_packed(number.packed()), Some(number));
        }
        assert_eq!(SubNbr::from_packed(0xA), None);
        assert_eq!(SubNbr::from_packed(1 << 60), None);
    }
}
