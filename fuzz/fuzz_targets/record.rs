//! Fuzzes the decoder of log records of transactions (FaRM'15 §4). It must not panic, and a decoded record must be
//! within the bounds of its bytes. The first byte of the input is the kind, the next eight are the transaction's
//! sequence number, and the rest is the body. The body is decoded unchanged, and with a correct checksum, so that the
//! code behind the check of the checksum runs, too.
#![no_main]

use farm_core::ids::WorkerRef;
use farm_txn::record::{FIRST_CONFIGURATION, Kind, Record, RecordError, TxId};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const WORD: usize = 8;
/// Bytes of the part that all records have.
const FIXED: usize = 3 * WORD;
/// The worker that coordinates the transactions.
const COORDINATOR: u32 = 2 << 16 | 3;
/// Bytes of an object before its payload.
const OBJECT: usize = 4 * WORD;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let Some((sequence, body)) = rest.split_first_chunk() else {
        return;
    };
    let (kind, sequence) = (u16::from(*kind), u64::from_le_bytes(*sequence));
    let id = TxId {
        configuration: FIRST_CONFIGURATION,
        coordinator: WorkerRef::from_bits(COORDINATOR).expect("a valid worker"),
        sequence,
    };
    let unchanged = Record::decode(kind, id, body);
    let Some(known) = Kind::of(kind) else {
        assert!(matches!(unchanged, Err(RecordError::Kind(found)) if found == kind));
        return;
    };
    let unchecked = Record::decode_unchecked(known, body);
    let mut signed = body.to_vec();
    let is_signed = sign(kind, sequence, &mut signed);
    match Record::decode(kind, id, &signed) {
        Ok(record) => {
            assert!(is_signed && unchecked.is_ok());
            read(&record, signed.len());
        }
        Err(error) if (sequence == 0) != (known == Kind::Truncate) => {
            assert!(matches!(error, RecordError::Word { found, .. } if found == sequence));
        }
        Err(RecordError::Configuration { found, .. }) => {
            assert!(unchecked.is_ok_and(|record| record.configuration == found));
            assert_ne!(found, FIRST_CONFIGURATION);
        }
        // All other checks are also made by `decode_unchecked`.
        Err(error) => assert_eq!(unchecked.err(), Some(error)),
    }
    if let Ok(record) = unchanged {
        assert_eq!(
            signed, body,
            "the body of a valid record has the correct checksum"
        );
        read(&record, body.len());
    }
});

/// Writes the correct checksum into the body. Returns `false` if the body is too short for a head.
fn sign(kind: u16, sequence: u64, body: &mut [u8]) -> bool {
    if body.len() < FIXED {
        return false;
    }
    let seed = (sequence << 8 | u64::from(kind)) ^ u64::from(COORDINATOR).rotate_right(32);
    let first = xxh3_64_with_seed(&body[WORD..FIXED], seed);
    let sum = xxh3_64_with_seed(&body[FIXED..], first);
    body[..WORD].copy_from_slice(&sum.to_le_bytes());
    true
}

fn read(record: &Record<'_>, bytes: usize) {
    assert!(FIXED <= bytes);
    let Ok(lock) = record.lock() else {
        return;
    };
    let has_objects = matches!(record.kind, Kind::Lock | Kind::CommitBackup);
    assert!(has_objects, "only LOCK and COMMIT-BACKUP have objects");
    let regions = lock.region_words().count();
    let (mut objects, mut used) = (0, FIXED + (regions + 2) * WORD);
    let mut whole = true;
    for object in lock.objects() {
        assert!(whole, "the iterator ends after an error");
        let Ok(object) = object else {
            whole = false;
            continue;
        };
        objects += 1;
        used += OBJECT + object.payload.len().next_multiple_of(WORD);
        used += if object.block != 0 { WORD } else { 0 };
        assert!(used <= bytes && object.payload.len() <= object.class.payload_capacity());
        assert!(!object.address.is_null() && object.address.is_line_aligned());
        assert_eq!(object.incarnation.class(), object.class);
    }
    if whole {
        assert_eq!((objects, used), (lock.count, bytes));
    }
}
