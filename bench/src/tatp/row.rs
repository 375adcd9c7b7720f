//! Rows of TATP: exactly the layouts of FaSST and FORD. Numbers are little-endian, padding is zero.
//!
//! ```text
//!              0        8      15    20          30    32    36    40
//! SUBSCRIBER   │ sub_nbr │ 0    │ hex │ bytes     │ bits│ msc │ vlr │
//!              0        4        8
//! index        │ s_id    │ 0     │
//!              0       1       2       5        10     16
//! ACCESS_INFO  │ data1 │ data2 │ data3 │ data4  │ 0    │
//!              0           1             2        3        8
//! SPECIAL_F.   │ is_active │ error_cntrl │ data_a │ data_b │
//!              0          1          16
//! CALL_FORW.   │ end_time │ numberx  │
//! ```

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::oltp::{BadRow, Row};

/// Bits of a subscriber: `bit_1` to `bit_10`.
pub const BITS: u16 = (1 << 10) - 1;

/// Number of digits of the number to which calls are forwarded.
pub const NUMBERX_DIGITS: usize = 15;

/// The number of a subscriber: `s_id` in 15 decimal digits, 4 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
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

    /// Returns whether these are 15 decimal digits.
    fn is_decimal(self) -> bool {
        let decimal = (0..Self::DIGITS).all(|digit| self.0 >> (4 * digit) & 0xF <= 9);
        decimal && self.0 >> (4 * Self::DIGITS) == 0
    }
}

impl fmt::Display for SubNbr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A decimal digit looks the same in hexadecimal.
        write!(out, "{:015x}", self.0)
    }
}

/// A row of SUBSCRIBER.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Subscriber {
    /// Number of the subscriber.
    pub sub_nbr: SubNbr,
    /// Padding.
    pub padding: [u8; 7],
    /// `hex_1` to `hex_10`, two in a byte; the low half is the first.
    pub hex: [u8; 5],
    /// `byte2_1` to `byte2_10`.
    pub bytes: [u8; 10],
    /// `bit_1` (lowest) to `bit_10`.
    pub bits: u16,
    /// `msc_location`.
    pub msc_location: u32,
    /// `vlr_location`.
    pub vlr_location: u32,
}

impl Subscriber {
    /// Returns the row with another `bit_1`.
    #[must_use]
    pub fn with_bit_1(self, bit_1: bool) -> Self {
        Self {
            bits: self.bits & !1 | u16::from(bit_1),
            ..self
        }
    }
}

impl Row for Subscriber {
    fn check(&self) -> Result<(), BadRow> {
        check(self.padding == [0; 7], "padding", "zero")?;
        check(self.bits <= BITS, "bits", "10 bits")?;
        check(self.sub_nbr.is_decimal(), "sub_nbr", "15 decimal digits")
    }
}

/// A row of the index from `sub_nbr` to `s_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IndexEntry {
    /// Id of the subscriber with this number.
    pub s_id: u32,
    /// Padding.
    pub padding: [u8; 4],
}

impl Row for IndexEntry {
    fn check(&self) -> Result<(), BadRow> {
        check(self.padding == [0; 4], "padding", "zero")
    }
}

/// A row of ACCESS_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AccessInfo {
    /// `data1`.
    pub data1: u8,
    /// `data2`.
    pub data2: u8,
    /// `data3`, letters from A to Z.
    pub data3: [u8; 3],
    /// `data4`, letters from A to Z.
    pub data4: [u8; 5],
    /// Padding.
    pub padding: [u8; 6],
}

impl Row for AccessInfo {
    fn check(&self) -> Result<(), BadRow> {
        check(are_letters(&self.data3), "data3", LETTERS)?;
        check(are_letters(&self.data4), "data4", LETTERS)?;
        check(self.padding == [0; 6], "padding", "zero")
    }
}

/// A row of SPECIAL_FACILITY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SpecialFacility {
    /// Whether it forwards calls: 0 or 1.
    pub is_active: u8,
    /// `error_cntrl`.
    pub error_cntrl: u8,
    /// `data_a`.
    pub data_a: u8,
    /// `data_b`, letters from A to Z.
    pub data_b: [u8; 5],
}

impl Row for SpecialFacility {
    fn check(&self) -> Result<(), BadRow> {
        check(self.is_active <= 1, "is_active", "0 or 1")?;
        check(are_letters(&self.data_b), "data_b", LETTERS)
    }
}

/// A row of CALL_FORWARDING.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CallForwarding {
    /// Hour at which it ends, 1 to 24.
    pub end_time: u8,
    /// Number to which calls are forwarded, in decimal digits as text.
    pub numberx: [u8; NUMBERX_DIGITS],
}

impl Row for CallForwarding {
    fn check(&self) -> Result<(), BadRow> {
        check((1..=24).contains(&self.end_time), "end_time", "1 to 24")?;
        let digits = self.numberx.iter().all(u8::is_ascii_digit);
        check(digits, "numberx", "15 decimal digits")
    }
}

const LETTERS: &str = "letters from A to Z";

fn check(holds: bool, field: &'static str, wanted: &'static str) -> Result<(), BadRow> {
    match holds {
        true => Ok(()),
        false => Err(BadRow::Field { field, wanted }),
    }
}

fn are_letters(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_fifteen_decimal_digits() {
        for s_id in [0, 1, 9, 10, 99_999, 4_294_967_295] {
            let number = SubNbr::of(s_id);
            assert_eq!(number.to_string(), format!("{s_id:015}"));
            assert!(number.is_decimal());
        }
        assert!(!SubNbr(0xA).is_decimal());
        assert!(!SubNbr(1 << 60).is_decimal());
    }
}
