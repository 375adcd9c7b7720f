//! The messages of a workload between workers.

use farm_core::messaging::MessageId;

/// Asks for the addresses of some objects, or whether a worker has loaded its rows.
pub(super) const WHERE: MessageId = MessageId(MessageId::APPLICATION);
/// Runs a transaction.
pub(super) const RUN: MessageId = MessageId(MessageId::APPLICATION + 1);

/// The body of [`WHERE`] that asks a worker whether its rows are loaded.
pub(super) const LOADED: [u8; 4] = u32::MAX.to_le_bytes();
/// The reply once they are.
pub(super) const THEY_ARE: &[u8] = &[1];
/// The reply of a worker that could not make its objects.
pub(super) const NEVER: &[u8] = &[0];

/// The reply to [`RUN`]: the transaction committed.
pub(super) const DONE: u8 = 0;
/// The reply to [`RUN`]: it met conflicts. The client ships it again.
pub(super) const CONFLICT: u8 = 1;
/// The reply to [`RUN`]: no part of it took effect, and no part will.
pub(super) const REFUSED: u8 = 2;
/// The reply to [`RUN`]: machines are lost, and whether it took effect is not known.
pub(super) const IN_DOUBT: u8 = 3;

const BODY_BYTES: usize = 17;

/// Encodes a request to run a transaction.
pub(super) fn encode(number: u64, seed: u64, attempt: u8) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body[8..16].copy_from_slice(&seed.to_le_bytes());
    body[16] = attempt;
    body
}

/// Decodes a request to run a transaction: its number, its seed and the attempt.
pub(super) fn decode(body: &[u8]) -> Option<(u64, u64, u8)> {
    let body = <&[u8; BODY_BYTES]>::try_from(body).ok()?;
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("a word"));
    Some((word(0), word(8), body[16]))
}
