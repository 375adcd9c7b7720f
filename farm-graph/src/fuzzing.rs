//! The decoders of bytes from other machines, for fuzzing.

use farm_core::object::FatPointer;

use crate::list::TimeBounds;
use crate::node::{Header, list_in, spill};
use crate::op::{Assocs, Op, Outcome, RangeOp};
use crate::page::Page;
use crate::wire::{node_of, op_of};

/// Decodes a message with an operation. What is decoded is the same after it is encoded and decoded again.
pub fn message(bytes: &[u8]) -> Option<FatPointer> {
    let op = op_of(bytes)?;
    let mut encoded = Vec::new();
    op.encode(&mut encoded);
    assert_eq!(Op::decode(&encoded), Some(op));
    node_of(bytes)
}

/// Decodes the result of an operation, and reads all of it.
pub fn result(bytes: &[u8]) {
    if let Ok(Outcome::Assocs(found)) = Outcome::decode(bytes) {
        assert_eq!(found.iter().count(), found.len());
    }
}

/// Decodes an object that should be a node, and its lists.
pub fn node(payload: &[u8]) {
    let Ok(header) = Header::decode(payload) else {
        return;
    };
    let _ = spill(payload, &header);
    let _ = header.inline(payload);
    for assoc_type in 0..4 {
        let _ = list_in(payload, &header, assoc_type);
    }
}

/// Decodes an object that should be the first page of a list, and reads a range of it.
pub fn first_page(payload: &[u8], offset: u64, limit: u64) {
    let Ok(page) = Page::new(payload) else {
        return;
    };
    let range = RangeOp {
        assoc_type: 1,
        bounds: TimeBounds::default(),
        offset,
        limit,
    };
    if let Ok(Some(found)) = Assocs::of_first_page(page, &range) {
        assert_eq!(found.iter().count(), found.len());
    }
}
