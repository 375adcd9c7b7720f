//! Short constructors for histories.

use farm_check::history::{
    Access, History, KeyOperation, KeyRequest, KeyResult, ObjectId, Outcome, Transaction, WriteId,
};

/// A read of `object`: the version number, the write that was read, and the write that it replaced.
pub(crate) fn read(object: u32, version: u64, id: u64, parent: u64) -> Access {
    Access::Read {
        object: ObjectId(object),
        version,
        id: WriteId(id),
        parent: WriteId(parent),
    }
}

/// A write of `object`, and the write that it replaced.
pub(crate) fn write(object: u32, id: u64, parent: u64) -> Access {
    Access::Write {
        object: ObjectId(object),
        id: WriteId(id),
        parent: WriteId(parent),
    }
}

/// A read of an object's initial value.
pub(crate) fn first(object: u32) -> Access {
    read(object, 1, 0, 0)
}

/// A transaction that committed.
pub(crate) fn committed<const N: usize>(
    client: u32,
    begun: u64,
    ended: u64,
    accesses: [Access; N],
) -> Transaction {
    Transaction {
        client,
        begun,
        ended,
        outcome: Outcome::Committed,
        accesses: accesses.to_vec(),
    }
}

/// A transaction that aborted.
pub(crate) fn aborted<const N: usize>(
    client: u32,
    begun: u64,
    ended: u64,
    accesses: [Access; N],
) -> Transaction {
    Transaction {
        outcome: Outcome::Aborted,
        ..committed(client, begun, ended, accesses)
    }
}

/// A transaction of unknown outcome.
pub(crate) fn unknown<const N: usize>(
    client: u32,
    begun: u64,
    accesses: [Access; N],
) -> Transaction {
    Transaction {
        outcome: Outcome::Unknown,
        ..committed(client, begun, 0, accesses)
    }
}

/// A history of transactions.
pub(crate) fn history(transactions: impl IntoIterator<Item = Transaction>) -> History {
    History {
        transactions: transactions.into_iter().collect(),
        ..History::default()
    }
}

/// An operation on key 1, with its result.
pub(crate) fn operation(
    begun: u64,
    ended: u64,
    request: KeyRequest,
    result: KeyResult,
) -> KeyOperation {
    KeyOperation {
        client: begun as u32,
        key: 1,
        begun,
        ended,
        request,
        result: Some(result),
    }
}

/// An operation on key 1 without a result.
pub(crate) fn lost(begun: u64, request: KeyRequest) -> KeyOperation {
    KeyOperation {
        client: begun as u32,
        key: 1,
        begun,
        ended: 0,
        request,
        result: None,
    }
}
