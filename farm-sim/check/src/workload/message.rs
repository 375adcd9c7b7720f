//! The messages of a workload between workers.

use farm_core::messaging::MessageId;

/// Requests the addresses of some objects, or asks whether a worker has loaded its rows.
pub(super) const WHERE: MessageId = MessageId(MessageId::APPLICATION);
/// Runs a transaction.
pub(super) const RUN: MessageId = MessageId(MessageId::APPLICATION + 1);

/// The body of a [`WHERE`] message that asks whether the worker's rows are loaded.
pub(super) const ASK_LOADED: [u8; 4] = u32::MAX.to_le_bytes();
/// The body of a [`WHERE`] message that asks whether the clients of a worker have ended.
pub(super) const ASK_FINISHED: [u8; 4] = (u32::MAX - 1).to_le_bytes();
/// The reply of a worker whose clients have ended.
pub(super) const FINISHED: &[u8] = &[1];
/// The reply of a worker whose rows are loaded.
pub(super) const ROWS_LOADED: &[u8] = &[1];
/// The reply of a worker that could not set up its objects or rows.
pub(super) const SETUP_FAILED: &[u8] = &[0];

/// The reply to [`RUN`]: the transaction committed.
pub(super) const DONE: u8 = 0;
/// The reply to [`RUN`]: the transaction met conflicts. The client ships it again.
pub(super) const CONFLICT: u8 = 1;
/// The reply to [`RUN`]: the transaction did not take effect, and will not.
pub(super) const REFUSED: u8 = 2;
/// The reply to [`RUN`]: machines are lost, and it is not known whether the transaction took effect.
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
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
    Some((word(0), word(8), body[16]))
}
