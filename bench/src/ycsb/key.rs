//! Keys: 16 bytes that identify a record.
//!
//! ```text
//!  0                       8                       16
//!  ┌───────────────────────┬───────────────────────┐
//!  │ |FNV-64(key number)|  │ key number            │   both big-endian
//!  └───────────────────────┴───────────────────────┘
//! ```
//!
//! The first half is the number in the text keys of the reference client (`user6284781860667377211` is record 0). The
//! second half makes the key unique. FaRM'14 measures 16-byte keys.

use farm_kv::Key;

const FNV_OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01B3;

/// Returns the FNV-1a hash of the eight octets of `value`, the least significant first.
#[inline]
pub const fn fnv64(value: u64) -> u64 {
    let mut hash = FNV_OFFSET_BASIS;
    let mut octet = 0;
    while octet < 8 {
        hash ^= (value >> (8 * octet)) & 0xFF;
        hash = hash.wrapping_mul(FNV_PRIME);
        octet += 1;
    }
    hash
}

/// Returns [`fnv64`] as the Java client does: the absolute value of the hash as a signed number.
#[inline]
pub const fn fnv64_abs(value: u64) -> u64 {
    (fnv64(value) as i64).unsigned_abs()
}

/// Returns the key of record `keynum`.
#[inline]
pub fn key_bytes(keynum: u64) -> Key {
    let whole = (u128::from(fnv64_abs(keynum)) << 64) | u128::from(keynum);
    whole.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_reference_clients() {
        let known = [
            (0, 6284781860667377211, 12161962213042174405),
            (1, 8517097267634966620, 9929646806074584996),
            (2, 1820151046732198393, 16626593026977353223),
            (3, 4052466453699787802, 14394277620009763814),
            (999, 2071219101098386137, 16375524972611165479),
            (1000, 5952875239596136740, 12493868834113414876),
            (999_999, 2744965632448235251, 2744965632448235251),
        ];
        for (value, java, raw) in known {
            assert_eq!((fnv64_abs(value), fnv64(value)), (java, raw), "of {value}");
        }
    }

    #[test]
    fn a_key_is_a_hash_and_the_number() {
        let key = key_bytes(1);
        assert_eq!(key[..8], 8517097267634966620u64.to_be_bytes());
        assert_eq!(key[8..], 1u64.to_be_bytes());
    }
}
