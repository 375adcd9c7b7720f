//! Numbers and pointers in byte strings. All are little-endian.

use farm_core::object::FatPointer;

use crate::GraphError;

/// Bytes of a fat pointer.
pub(crate) const POINTER_BYTES: usize = 16;

/// Returns the little-endian number in the `bytes` bytes from `at`.
pub(crate) fn number(from: &[u8], at: usize, bytes: usize) -> u64 {
    let mut word = [0; 8];
    word[..bytes].copy_from_slice(&from[at..at + bytes]);
    u64::from_le_bytes(word)
}

/// Returns the bytes of a fat pointer.
pub(crate) fn pointer_bytes(pointer: FatPointer) -> [u8; POINTER_BYTES] {
    let [address, expected] = pointer.to_words();
    let bits = u128::from(expected) << 64 | u128::from(address);
    bits.to_le_bytes()
}

/// Returns the fat pointer with these bytes.
#[inline]
pub(crate) fn pointer(bytes: &[u8]) -> Result<FatPointer, GraphError> {
    let bits = u128::from_le_bytes(bytes.try_into().map_err(|_| invalid())?);
    FatPointer::from_words([bits as u64, (bits >> 64) as u64]).ok_or_else(invalid)
}

#[cold]
fn invalid() -> GraphError {
    GraphError::Damaged("an object of the graph has an invalid pointer".to_owned())
}
