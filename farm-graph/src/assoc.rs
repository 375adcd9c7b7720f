//! Associations, and the records that store them.
//!
//! A record's key orders the associations of a list: visible ones before hidden ones, then the newest first, and by
//! `id2` if the times are equal. Its body:
//!
//! ```text
//!  0         4       5                21
//!  ┌─────────┬───────┬────────────────┬─────── ─
//!  │ version │ flags │ target, if any │ data
//!  └─────────┴───────┴────────────────┴─────── ─
//! ```

use farm_core::object::FatPointer;

use crate::GraphError;
use crate::bytes::{POINTER_BYTES, pointer, pointer_bytes};
use crate::page::{Key, Record};

/// The greatest time of an association. Its unit is chosen by the application: LinkBench uses milliseconds.
pub const MAX_TIME: u64 = (1 << 63) - 1;

/// The bit of a key's high half that hidden associations have.
const HIDDEN: u64 = 1 << 63;
/// The bit of the flags that shows whether the body has a target.
const HAS_TARGET: u8 = 1;
/// Bytes of a body before the target or the data.
const FIXED_BYTES: usize = 5;
/// Bytes of a body without the data.
pub(crate) const BODY_BYTES: usize = FIXED_BYTES + POINTER_BYTES;

/// An association of a node: an edge to another node, or to any other entity with a 64-bit id (`FaRM'14 §4.4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assoc<'a> {
    /// Id of the entity to which the association points.
    pub id2: u64,
    /// Time, at most [`MAX_TIME`]. Lists are in the order of descending times.
    pub time: u64,
    /// Version, which the application chooses.
    pub version: u32,
    /// Whether lists and counts contain the association.
    pub visible: bool,
    /// Pointer to the node `id2`, if it was known when the association was written.
    pub target: Option<FatPointer>,
    /// Data of the application.
    pub data: &'a [u8],
}

impl<'a> Assoc<'a> {
    /// Returns the key of the record.
    pub(crate) fn key(&self) -> Key {
        key(self.time, self.visible, self.id2)
    }

    /// Appends the body of the record to `body`.
    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.version.to_le_bytes());
        body.push(self.target.map_or(0, |_| HAS_TARGET));
        if let Some(target) = self.target {
            body.extend_from_slice(&pointer_bytes(target));
        }
        body.extend_from_slice(self.data);
    }

    /// Returns the association that a record stores.
    #[inline]
    pub(crate) fn decode(record: &Record<'a>) -> Result<Self, GraphError> {
        let damaged = || GraphError::Damaged("an association's record is too short".to_owned());
        let (fixed, rest) = record
            .body
            .split_first_chunk::<FIXED_BYTES>()
            .ok_or_else(damaged)?;
        let (target, data) = match fixed[4] & HAS_TARGET {
            0 => (None, rest),
            _ => {
                let (target, data) = rest.split_at_checked(POINTER_BYTES).ok_or_else(damaged)?;
                (Some(pointer(target)?), data)
            }
        };
        Ok(Self {
            id2: record.key.1,
            time: MAX_TIME - (record.key.0 & MAX_TIME),
            version: u32::from_le_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]),
            visible: is_visible(record.key),
            target,
            data,
        })
    }
}

/// Returns the key of an association.
pub(crate) fn key(time: u64, visible: bool, id2: u64) -> Key {
    let newest_first = MAX_TIME - time;
    (newest_first | if visible { 0 } else { HIDDEN }, id2)
}

/// Returns whether the association with this key is visible.
pub(crate) fn is_visible(key: Key) -> bool {
    key.0 & HIDDEN == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_assoc() -> impl Strategy<Value = (u64, u64, u32, bool, bool, Vec<u8>)> {
        let times = prop_oneof![0..4u64, 0..=MAX_TIME];
        let data = proptest::collection::vec(any::<u8>(), 0..40);
        (
            any::<u64>(),
            times,
            any::<u32>(),
            any::<bool>(),
            any::<bool>(),
            data,
        )
    }

    proptest! {
        #[test]
        fn a_record_stores_the_whole_association((id2, time, version, visible, has_target, data) in any_assoc()) {
            let target = has_target.then(|| FatPointer::from_words([0x1000_0000_0040, 7 << 56 | 9]).unwrap());
            let assoc = Assoc { id2, time, version, visible, target, data: &data };
            let mut body = Vec::new();
            assoc.encode(&mut body);
            let record = Record { at: 0, key: assoc.key(), body: &body };
            prop_assert_eq!(Assoc::decode(&record).unwrap(), assoc);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(high: u64, id2: u64, body: Vec<u8>) {
            let record = Record { at: 0, key: (high, id2), body: &body };
            if let Ok(assoc) = Assoc::decode(&record) {
                prop_assert_eq!(assoc.key(), record.key);
            }
        }

        #[test]
        fn lists_have_visible_and_new_associations_first(
            first in (0..=MAX_TIME, any::<bool>(), any::<u64>()),
            second in (0..=MAX_TIME, any::<bool>(), any::<u64>()),
        ) {
            let order = |it: (u64, bool, u64)| (!it.1, std::cmp::Reverse(it.0), it.2);
            let keys = [first, second].map(|it| key(it.0, it.1, it.2));
            prop_assert_eq!(keys[0].cmp(&keys[1]), order(first).cmp(&order(second)));
        }
    }
}
