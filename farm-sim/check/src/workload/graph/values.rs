//! Values of nodes and associations. Each is a number, from which all bytes follow, so that a value that mixes two writes
//! is detected.

use farm_core::object::FatPointer;
use farm_graph::tasks::{OwnedAssoc, OwnedNode};

use crate::history::graph::{NewAssoc, SeenAssoc};

/// Bytes of the number at the beginning of data.
const NUMBER_BYTES: usize = 8;
/// Length from which data is never stored in the node, even if the node is created with it.
const LONG_BYTES: u64 = 1025;
/// Maximum number of bytes by which long data exceeds [`LONG_BYTES`].
const MORE_BYTES: u64 = 900;
/// Length from which data has no room in a node that was created with other data.
const SPILLED_BYTES: u64 = 400;
/// Number of lengths of such data. They are few, so that the memory of freed data is soon used for other data.
const SPILLED_LENGTHS: u64 = 100;
/// Maximum number of bytes of other data of a node.
const SHORT_BYTES: u64 = 200;
/// Number of types of nodes.
pub(super) const NODE_TYPES: u64 = 2;
/// The bit of values whose data has [`SPILLED_BYTES`] bytes or a few more. Of the other values, one in four has long data.
pub(super) const SPILLED: u64 = 1 << 63;

fn mixed(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 29
}

/// Returns data that begins with a number. All bytes follow from the number.
fn data(number: u64, bytes: u64) -> Vec<u8> {
    let words =
        (0u64..).map(|place| number.wrapping_add(place.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let bytes = bytes as usize + NUMBER_BYTES;
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

fn node_bytes(value: u64) -> Vec<u8> {
    let drawn = mixed(value);
    let bytes = match drawn % 4 {
        _ if value & SPILLED != 0 => SPILLED_BYTES + (drawn >> 8) % SPILLED_LENGTHS,
        0 => LONG_BYTES + (drawn >> 8) % MORE_BYTES,
        _ => (drawn >> 8) % SHORT_BYTES,
    };
    data(value, bytes)
}

fn node_type(value: u64) -> u32 {
    (value % NODE_TYPES) as u32 + 1
}

/// Returns the node that has this value. Its id is not set.
pub(super) fn node_of(value: u64) -> OwnedNode {
    OwnedNode {
        id: 0,
        node_type: node_type(value),
        version: value,
        time: !value,
        data: node_bytes(value),
    }
}

/// Returns an association. It has at most `most` bytes of data after the number.
pub(super) fn assoc_of(
    new: NewAssoc,
    id2: u64,
    target: Option<FatPointer>,
    most: usize,
) -> OwnedAssoc {
    OwnedAssoc {
        id2,
        time: new.time,
        version: new.value as u32,
        visible: true,
        target,
        data: data(new.value, mixed(new.value) % (most as u64 + 1)),
    }
}

/// Returns the number at the beginning of data.
fn number(bytes: &[u8]) -> Result<u64, String> {
    let number = bytes.first_chunk::<NUMBER_BYTES>();
    number
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| format!("data of {} bytes, which no client wrote", bytes.len()))
}

/// Returns the value of a node that was read.
pub(super) fn value_of(id: u64, node: &OwnedNode) -> Result<u64, String> {
    let value = number(&node.data)?;
    match *node
        == (OwnedNode {
            id,
            ..node_of(value)
        }) {
        true => Ok(value),
        false => Err(format!(
            "node {id} is not as the write of value {value:#x} made it: {node:x?}"
        )),
    }
}

/// Returns an association that was read. `target` is the pointer to its other node, if that is known.
pub(super) fn seen(assoc: &OwnedAssoc, target: Option<FatPointer>) -> Result<SeenAssoc, String> {
    let value = number(&assoc.data)?;
    let is_right = assoc.version == value as u32
        && data(value, (assoc.data.len() - NUMBER_BYTES) as u64) == assoc.data
        && (assoc.target.is_none() || target.is_none() || assoc.target == target);
    match is_right {
        true => Ok(SeenAssoc {
            id2: assoc.id2,
            time: assoc.time,
            value,
            visible: assoc.visible,
            target: assoc.target.is_some(),
        }),
        false => Err(format!(
            "an association is not as the write of value {value:#x} made it: {assoc:x?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_mixes_two_writes_is_detected() {
        let owned = |value| OwnedNode {
            id: 7,
            ..node_of(value)
        };
        for value in 1..50 {
            assert_eq!(value_of(7, &owned(value)), Ok(value));
            assert!(value_of(8, &owned(value)).is_err());
            let mixed = OwnedNode {
                data: owned(value + 1).data,
                ..owned(value)
            };
            assert!(value_of(7, &mixed).is_err());
        }
    }
}
