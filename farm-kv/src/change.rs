//! Changes of tables, and their messages to the owners of shards.

use farm_core::ids::MachineId;

use crate::KvError;
use crate::shard::Changed;
use crate::table::TableId;

/// Bytes of the header: operation, length of the key minus one, table, shard and bucket.
pub(crate) const HEADER_BYTES: usize = 12;
/// The codes of inserts, updates and upserts, which an owner combines.
pub(crate) const PUTS: std::ops::RangeInclusive<u8> = 1..=3;
/// The code of a remove.
pub(crate) const REMOVE: u8 = 4;

/// A change of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Inserts a pair; no-op if the key exists.
    Insert(&'a [u8]),
    /// Replaces the value; no-op if the key does not exist.
    Update(&'a [u8]),
    /// Inserts a pair, or replaces its value.
    Upsert(&'a [u8]),
    /// Removes the pair.
    Remove,
}

impl<'a> Change<'a> {
    /// Returns the code of the change in messages.
    fn code(&self) -> u8 {
        match self {
            Change::Insert(_) => 1,
            Change::Update(_) => 2,
            Change::Upsert(_) => 3,
            Change::Remove => 4,
        }
    }

    /// Returns the new value; empty for a remove.
    pub(crate) fn value(&self) -> &'a [u8] {
        match self {
            Change::Insert(value) | Change::Update(value) | Change::Upsert(value) => value,
            Change::Remove => &[],
        }
    }

    /// Checks that the new value has the length of the table's values.
    pub(crate) fn check_length(&self, expected: usize) -> Result<(), KvError> {
        let found = self.value().len();
        if *self != Change::Remove && found != expected {
            return Err(KvError::ValueLength { expected, found });
        }
        Ok(())
    }

    /// Replaces `body` by the message body for this change of `key`; `place` is the key's table, shard and bucket.
    pub(crate) fn encode(&self, body: &mut Vec<u8>, place: (TableId, u32, u32), key: &[u8]) {
        let (table, shard, bucket) = place;
        body.clear();
        body.reserve(HEADER_BYTES + key.len() + self.value().len());
        body.extend_from_slice(&[self.code(), (key.len() - 1) as u8]);
        body.extend_from_slice(&table.0.to_le_bytes());
        body.extend_from_slice(&shard.to_le_bytes());
        body.extend_from_slice(&bucket.to_le_bytes());
        body.extend_from_slice(key);
        body.extend_from_slice(self.value());
    }
}

/// The parts of a change message.
pub(crate) struct Order<'a> {
    pub(crate) code: u8,
    pub(crate) table: u16,
    pub(crate) shard: u32,
    pub(crate) bucket: u32,
    pub(crate) key_bytes: usize,
    /// The key, and the value of a put.
    pub(crate) pair: &'a [u8],
}

impl Order<'_> {
    pub(crate) fn key(&self) -> &[u8] {
        &self.pair[..self.key_bytes]
    }

    /// Returns the change. Its code is valid.
    pub(crate) fn change(&self) -> Change<'_> {
        let value = &self.pair[self.key_bytes..];
        match self.code {
            REMOVE => Change::Remove,
            1 => Change::Insert(value),
            2 => Change::Update(value),
            _ => Change::Upsert(value),
        }
    }
}

/// Returns the number of the table in the message of a change; `None` if the message is shorter.
pub(crate) fn table_of(body: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(*body.get(2..)?.first_chunk()?))
}

/// Returns the length of the key in the message of a change; `None` if the message is shorter.
pub(crate) fn key_bytes(body: &[u8]) -> Option<usize> {
    let bytes = 1 + usize::from(*body.get(1)?);
    (body.len() >= HEADER_BYTES + bytes).then_some(bytes)
}

/// Splits a message; `None` if it is too short. The lengths of key and value are checked with the table.
pub(crate) fn parse(body: &[u8]) -> Option<Order<'_>> {
    let key_bytes = key_bytes(body)?;
    let (header, pair) = body.split_at(HEADER_BYTES);
    let word = |at: usize| {
        u32::from_le_bytes(
            header[at..at + 4]
                .try_into()
                .expect("a slice of four bytes can be converted to a u32"),
        )
    };
    let table = u16::from_le_bytes([header[2], header[3]]);
    Some(Order {
        code: header[0],
        table,
        shard: word(4),
        bucket: word(8),
        key_bytes,
        pair,
    })
}

/// Returns the byte of a reply that encodes an outcome.
pub(crate) fn encode(outcome: &Result<Changed, KvError>) -> u8 {
    match outcome {
        Ok(Changed::Inserted) => 0,
        Ok(Changed::Updated) => 1,
        Ok(Changed::Removed) => 2,
        Ok(Changed::Exists) => 3,
        Ok(Changed::Absent) => 4,
        Err(KvError::Full(_)) => 5,
        Err(KvError::Conflict) => 6,
        Err(KvError::Crowded(_)) => 7,
        Err(KvError::Moved(_)) => 9,
        Err(KvError::InDoubt(_)) => 10,
        Err(_) => 8,
    }
}

/// Returns the effect that a byte encodes.
pub(crate) fn decode_changed(code: u8) -> Option<Changed> {
    match code {
        0 => Some(Changed::Inserted),
        1 => Some(Changed::Updated),
        2 => Some(Changed::Removed),
        3 => Some(Changed::Exists),
        4 => Some(Changed::Absent),
        _ => None,
    }
}

/// Returns the outcome that a byte of a reply from `machine` encodes.
pub(crate) fn decode(code: u8, machine: MachineId) -> Result<Changed, KvError> {
    if let Some(changed) = decode_changed(code) {
        return Ok(changed);
    }
    match code {
        5 => Err(KvError::Full(machine)),
        6 => Err(KvError::Conflict),
        7 => Err(KvError::Crowded(machine)),
        9 => Err(KvError::Moved(machine)),
        10 => Err(KvError::InDoubt(machine)),
        _ => Err(KvError::Damaged(format!(
            "machine {machine} rejected the change; see the log of that machine for the reason"
        ))),
    }
}
