//! Rows of TATP as bytes: exactly the layouts of FaSST and FORD. Numbers are little-endian, padding is zero.
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
//!
//! Each byte of `hex` contains two fields, the first one in the low half; in `bits`, `bit_1` is the lowest bit.

use super::names::{
    ACCESS_INFO, CALL_FORWARDING, SPECIAL_FACILITY, SUB_NBR_INDEX, SUBSCRIBER, SubNbr,
};
use crate::oltp::{BadRow, Row, RowBytes, sized};

// The lengths of the layouts below are those of the tables.
const _: () = assert!(SUBSCRIBER.row_bytes == 8 + 7 + 5 + 10 + 2 + 4 + 4);
const _: () = assert!(SUB_NBR_INDEX.row_bytes == 4 + 4);
const _: () = assert!(ACCESS_INFO.row_bytes == 1 + 1 + 3 + 5 + 6);
const _: () = assert!(SPECIAL_FACILITY.row_bytes == 1 + 1 + 1 + 5);
const _: () = assert!(CALL_FORWARDING.row_bytes == 1 + 15);

/// Bits of a subscriber: `bit_1` to `bit_10`.
pub const BITS: u16 = (1 << 10) - 1;

/// Number of digits of the number to which calls are forwarded.
pub const NUMBERX_DIGITS: usize = 15;

/// A row of SUBSCRIBER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// Number of the subscriber.
    pub sub_nbr: SubNbr,
    /// `hex_1` to `hex_10`, each below 16.
    pub hex: [u8; 10],
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
    /// Encodes the row. If a field exceeds its range, its upper bits are dropped.
    fn encode(&self) -> RowBytes {
        let mut row = [0; SUBSCRIBER.row_bytes];
        row[..8].copy_from_slice(&self.sub_nbr.packed().to_le_bytes());
        for (byte, pair) in row[15..20].iter_mut().zip(self.hex.chunks_exact(2)) {
            *byte = pair[0] & 0xF | pair[1] << 4;
        }
        row[20..30].copy_from_slice(&self.bytes);
        row[30..32].copy_from_slice(&(self.bits & BITS).to_le_bytes());
        row[32..36].copy_from_slice(&self.msc_location.to_le_bytes());
        row[36..].copy_from_slice(&self.vlr_location.to_le_bytes());
        row.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        let row = sized::<{ SUBSCRIBER.row_bytes }>(bytes)?;
        let sub_nbr = SubNbr::from_packed(u64::from_le_bytes(part(row, 0)));
        let bits = u16::from_le_bytes(part(row, 30));
        check(row[8..15] == [0; 7], "padding", "zero")?;
        check(bits <= BITS, "bits", "10 bits")?;
        let nibbles: [u8; 5] = part(row, 15);
        Ok(Self {
            sub_nbr: sub_nbr.ok_or(BadRow::Field {
                field: "sub_nbr",
                wanted: "15 decimal digits",
            })?,
            hex: std::array::from_fn(|place| nibbles[place / 2] >> (4 * (place % 2)) & 0xF),
            bytes: part(row, 20),
            bits,
            msc_location: u32::from_le_bytes(part(row, 32)),
            vlr_location: u32::from_le_bytes(part(row, 36)),
        })
    }
}

/// A row of the index from `sub_nbr` to `s_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Id of the subscriber with this number.
    pub s_id: u32,
}

impl Row for IndexEntry {
    fn encode(&self) -> RowBytes {
        u64::from(self.s_id).to_le_bytes().into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        let word = u64::from_le_bytes(*sized(bytes)?);
        let s_id = u32::try_from(word).map_err(|_| BadRow::Field {
            field: "padding",
            wanted: "zero",
        })?;
        Ok(Self { s_id })
    }
}

/// A row of ACCESS_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessInfo {
    /// `data1`.
    pub data1: u8,
    /// `data2`.
    pub data2: u8,
    /// `data3`, letters from A to Z.
    pub data3: [u8; 3],
    /// `data4`, letters from A to Z.
    pub data4: [u8; 5],
}

impl Row for AccessInfo {
    fn encode(&self) -> RowBytes {
        let mut row = [0; ACCESS_INFO.row_bytes];
        (row[0], row[1]) = (self.data1, self.data2);
        row[2..5].copy_from_slice(&self.data3);
        row[5..10].copy_from_slice(&self.data4);
        row.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        let row = sized::<{ ACCESS_INFO.row_bytes }>(bytes)?;
        check(are_letters(&row[2..5]), "data3", "letters from A to Z")?;
        check(are_letters(&row[5..10]), "data4", "letters from A to Z")?;
        check(row[10..] == [0; 6], "padding", "zero")?;
        Ok(Self {
            data1: row[0],
            data2: row[1],
            data3: part(row, 2),
            data4: part(row, 5),
        })
    }
}

/// A row of SPECIAL_FACILITY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialFacility {
    /// Whether it forwards calls.
    pub is_active: bool,
    /// `error_cntrl`.
    pub error_cntrl: u8,
    /// `data_a`.
    pub data_a: u8,
    /// `data_b`, letters from A to Z.
    pub data_b: [u8; 5],
}

impl Row for SpecialFacility {
    fn encode(&self) -> RowBytes {
        let mut row = [0; SPECIAL_FACILITY.row_bytes];
        row[0] = u8::from(self.is_active);
        (row[1], row[2]) = (self.error_cntrl, self.data_a);
        row[3..].copy_from_slice(&self.data_b);
        row.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        let row = sized::<{ SPECIAL_FACILITY.row_bytes }>(bytes)?;
        check(row[0] <= 1, "is_active", "0 or 1")?;
        check(are_letters(&row[3..]), "data_b", "letters from A to Z")?;
        Ok(Self {
            is_active: row[0] == 1,
            error_cntrl: row[1],
            data_a: row[2],
            data_b: part(row, 3),
        })
    }
}

/// A row of CALL_FORWARDING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForwarding {
    /// Hour at which it ends, 1 to 24.
    pub end_time: u8,
    /// Number to which calls are forwarded, in decimal digits as text.
    pub numberx: [u8; NUMBERX_DIGITS],
}

impl Row for CallForwarding {
    fn encode(&self) -> RowBytes {
        let mut row = [0; CALL_FORWARDING.row_bytes];
        row[0] = self.end_time;
        row[1..].copy_from_slice(&self.numberx);
        row.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        let row = sized::<{ CALL_FORWARDING.row_bytes }>(bytes)?;
        check((1..=24).contains(&row[0]), "end_time", "1 to 24")?;
        let digits = row[1..].iter().all(u8::is_ascii_digit);
        check(digits, "numberx", "15 decimal digits")?;
        Ok(Self {
            end_time: row[0],
            numberx: part(row, 1),
        })
    }
}

/// Returns `N` bytes at an offset of a row, which must contain them.
#[inline]
fn part<const N: usize>(row: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|place| row[at + place])
}

fn check(holds: bool, field: &'static str, wanted: &'static str) -> Result<(), BadRow> {
    if holds {
        Ok(())
    } else {
        Err(BadRow::Field { field, wanted })
    }
}

fn are_letters(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_uppercase)
}
