//! Tests of both ends together. The module doc of each file states what it guards.

mod corpus;
mod deadlock;
mod garbage;
mod kept;
mod model;
mod oracle;

use super::testing::Pair;
use super::{Header, Kind, SendError};
use crate::ids::WorkerId;
use crate::time::Nanos;

fn header(kind: Kind, token: u64) -> Header {
    Header {
        kind,
        to_worker: WorkerId::new(5).unwrap(),
        message_id: 0xbeef,
        token,
    }
}

fn send(pair: &mut Pair, kind: Kind, token: u64, body: &[u8]) -> Result<(), SendError> {
    pair.sender
        .try_send(&mut pair.sender_endpoint, header(kind, token), &[body])
}

/// Returns the record at the head, without consuming it.
fn peek(pair: &mut Pair) -> Option<(Header, Vec<u8>)> {
    let record = pair
        .receiver
        .peek(&mut pair.receiver_endpoint, Nanos::default())
        .expect("a valid ring")?;
    let (to_worker, message_id) = (record.to_worker, record.message_id);
    let header = Header {
        kind: record.kind,
        to_worker,
        message_id,
        token: record.token,
    };
    Some((header, record.body.to_vec()))
}

fn receive(pair: &mut Pair) -> Option<(Header, Vec<u8>)> {
    let record = peek(pair)?;
    pair.receiver.consume(&mut pair.receiver_endpoint);
    Some(record)
}

/// Returns a body that differs between tokens and between offsets.
fn body(token: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| ((token.wrapping_mul(31) + i).wrapping_mul(0x9e37_79b9) >> 16) as u8)
        .collect()
}
