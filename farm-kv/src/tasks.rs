//! Operations on tables as `async` functions: alone, and inside of transactions.
//!
//! ```
//! use std::sync::Arc;
//! use farm_core::config::Config;
//! use farm_core::machine::start_all;
//! use farm_core::worker::Worker;
//! use farm_kv::{Change, TableSpec, blocking, tasks};
//! use farm_txn::{TxError, block_on};
//!
//! let mut config = Config::tiny_for(2, 1);
//! config.cluster.name = "doc-kv-tasks".into();
//! let attach = Arc::new(|worker: &mut Worker| {
//!     farm_txn::attach(worker);
//!     farm_kv::attach(worker);
//! });
//! let machines = start_all(&config, &(attach as _))?;
//! let spec = TableSpec { id: 1, neighbourhood: 4, key_bytes: 16, value_bytes: 8, shards: 2, buckets: 8 };
//! let table = blocking::open(&machines, spec)?;
//!
//! // Both pairs are there, or neither is.
//! block_on(&machines[0], 0, async move |farm: farm_txn::Handle| {
//!     farm.transact(async |tx| {
//!         tasks::change(tx, table, &[1; 16], Change::Insert(&[10; 8])).await?;
//!         tasks::change(tx, table, &[2; 16], Change::Insert(&[20; 8])).await?;
//!         assert_eq!(tasks::get(tx, table, &[1; 16]).await?, Some(vec![10; 8]));
//!         Ok::<_, TxError>(())
//!     })
//!     .await
//! })??;
//! assert_eq!(blocking::get(&machines[1], 0, table, [2; 16])?, Some(vec![20; 8]));
//! for machine in machines {
//!     machine.stop()?;
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::future::Future;

use farm_core::marks;
use farm_core::worker::{Cont, Worker};
use farm_txn::tasks::{Answer, Slot, answer, with_answer};
use farm_txn::{Handle, Transaction, TxError, TxHandle};
use smallvec::SmallVec;

use crate::change::{self, Change};
use crate::pending::{GetCont, ValueRef, WaitingLookup};
use crate::shard::Changed;
use crate::table::{TableId, TableSpec};
use crate::{KEY_BYTES, KvError, state};

/// Bytes that a call owns, such as a key or a value.
pub trait Bytes: AsRef<[u8]> + Send + 'static {}

impl<T: AsRef<[u8]> + Send + 'static> Bytes for T {}

/// What a change does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// See [`Change::Insert`].
    Insert,
    /// See [`Change::Update`].
    Update,
    /// See [`Change::Upsert`].
    Upsert,
    /// See [`Change::Remove`]. The value is not used.
    Remove,
}

impl From<Change<'_>> for ChangeKind {
    fn from(change: Change<'_>) -> Self {
        match change {
            Change::Insert(_) => Self::Insert,
            Change::Update(_) => Self::Update,
            Change::Upsert(_) => Self::Upsert,
            Change::Remove => Self::Remove,
        }
    }
}

impl ChangeKind {
    fn of(self, value: &[u8]) -> Change<'_> {
        match self {
            Self::Insert => Change::Insert(value),
            Self::Update => Change::Update(value),
            Self::Upsert => Change::Upsert(value),
            Self::Remove => Change::Remove,
        }
    }
}

/// Opens a table on the worker: see [`crate::open`].
///
/// # Errors
/// The errors of [`crate::open`], as a [`TxError`]; [`TxError::Stopped`].
pub async fn open(farm: &Handle, spec: TableSpec) -> Result<TableId, TxError> {
    farm.call(opening(spec), opened).await
}

/// As [`open`], while a transaction runs: the table is open afterwards, even if the transaction aborts.
///
/// # Errors
/// As [`open`]; [`TxError::Ended`].
pub async fn open_within(tx: Transaction<'_>, spec: TableSpec) -> Result<TableId, TxError> {
    tx.call(opening(spec), opened).await
}

/// Opens all tables of the cluster on the worker. A worker that owns shards which only transactions change gets no message for which
/// it would open their table.
///
/// # Errors
/// As [`open`].
///
/// # Panics
/// If it is polled by another task than one of a worker.
pub async fn open_all(farm: &Handle) -> Result<(), TxError> {
    for spec in crate::open::existing(farm).await? {
        open(farm, spec).await?;
    }
    Ok(())
}

fn opening(spec: TableSpec) -> impl FnOnce(&mut Worker, Slot) + Send + 'static {
    let ended = |worker: &mut Worker, slot, opened: Result<TableId, KvError>| {
        let store = |answer: &mut Answer, table: TableId| answer.words[0] = table.0.into();
        let opened = opened.map_err(TxError::from);
        answer(worker, slot, |answer| answer.set(opened, store));
    };
    move |worker, slot| crate::open(worker, spec, Cont::new(ended, slot))
}

fn opened(answer: &mut Answer) -> Result<TableId, TxError> {
    Ok(TableId(answer.ok()?.words[0] as u16))
}

/// Returns whether an operation failed because its table is not open on the worker.
pub fn is_not_open(error: &TxError) -> bool {
    let TxError::Layer(error) = error else {
        return false;
    };
    matches!(error.downcast_ref(), Some(KvError::NotOpen(_)))
}

/// Looks up a key without a transaction: see [`crate::get`]. Returns what `finish` makes of the value, or of the error: it is
/// called with a reference, so that the value need not be copied.
///
/// If too many reads are in flight, the lookup waits on its worker, in order. While it reads further objects of a long chain, it
/// may find no room: then the error is [`TxError::Busy`], and [`when_slot`] waits for room. Other errors are a [`KvError`], as a
/// [`TxError`], or [`TxError::Stopped`].
#[inline]
pub fn look_up<T>(
    farm: &Handle,
    table: TableId,
    key: impl Bytes,
    finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
) -> impl Future<Output = T> {
    let start = move |worker: &mut Worker, slot| {
        if let Err(error) = crate::get(worker, table, key.as_ref(), GetCont::new(looked_up, slot)) {
            not_begun(worker, table, key.as_ref(), slot, error);
        }
    };
    farm.call(start, |answer| finish(found(answer)))
}

/// Handles that a lookup has not begun: it waits for room, or fails.
#[cold]
fn not_begun(worker: &mut Worker, table: TableId, key: &[u8], slot: Slot, error: KvError) {
    if error != KvError::Busy {
        return answer(worker, slot, |answer| answer.fail(error.into()));
    }
    marks::mark("kv: lookup waits for room");
    let key = key.into();
    let waiting = &mut state::kv(worker).waiting_lookups;
    let waiting = waiting.insert(WaitingLookup { table, key, slot });
    crate::when_slot(worker, table, Cont::new(begin_waiting, waiting));
}

fn begin_waiting(worker: &mut Worker, waiting: usize, (): ()) {
    let WaitingLookup { table, key, slot } = state::kv(worker).waiting_lookups.remove(waiting);
    if let Err(error) = crate::get(worker, table, &key, GetCont::new(looked_up, slot)) {
        not_begun(worker, table, &key, slot, error);
    }
}

#[inline(always)]
fn found(answer: &mut Answer) -> Result<Option<&[u8]>, TxError> {
    let answer = answer.ok()?;
    Ok((answer.words[0] == 1).then_some(&answer.bytes[..]))
}

// The result is taken apart before the closures are made: a closure that captures it as a whole copies it, and the copy
// waits for the stores of its parts.
#[inline]
fn looked_up(worker: &mut Worker, slot: Slot, value: Result<Option<&[u8]>, &KvError>) {
    match value {
        Ok(Some(value)) => answer(worker, slot, |answer| {
            answer.words[0] = 1;
            append(&mut answer.bytes, value);
        }),
        Ok(None) => not_found(worker, slot, None),
        Err(error) => not_found(worker, slot, Some(error)),
    }
}

/// Appends a value. The usual lengths are copied inline, which costs a tenth of a call of `memcpy`.
#[inline(always)]
fn append(bytes: &mut Vec<u8>, value: &[u8]) {
    match value.len() {
        8 => bytes.extend_from_slice(&value[..8]),
        16 => bytes.extend_from_slice(&value[..16]),
        32 => bytes.extend_from_slice(&value[..32]),
        64 => bytes.extend_from_slice(&value[..64]),
        _ => bytes.extend_from_slice(value),
    }
}

#[cold]
fn not_found(worker: &mut Worker, slot: Slot, error: Option<&KvError>) {
    answer(worker, slot, |answer| match error {
        None => answer.words[0] = 0,
        Some(error) => answer.fail(error.clone().into()),
    });
}

/// Waits until there is room for a lookup in a table, after [`look_up`] failed with [`TxError::Busy`].
pub async fn when_slot(farm: &Handle, table: TableId) {
    let start = move |worker: &mut Worker, slot| {
        let room = |worker: &mut Worker, slot, ()| answer(worker, slot, |_| ());
        match state::kv(worker).tables.open(table) {
            Ok(_) => crate::when_slot(worker, table, Cont::new(room, slot)),
            // The caller's next lookup reports the error.
            Err(_) => room(worker, slot, ()),
        }
    };
    farm.call(start, |_| ()).await;
}

/// Changes a table without a transaction: see [`crate::change`].
///
/// # Errors
/// A [`KvError`], as a [`TxError`]; [`TxError::Stopped`].
pub async fn change_alone(
    farm: &Handle,
    table: TableId,
    key: impl Bytes,
    kind: ChangeKind,
    value: impl Bytes,
) -> Result<Changed, TxError> {
    let start = move |worker: &mut Worker, slot| {
        let change = kind.of(value.as_ref());
        let cont = Cont::new(changed, slot);
        if let Err(error) = crate::change(worker, table, key.as_ref(), change, cont) {
            answer(worker, slot, |answer| answer.fail(error.into()));
        }
    };
    farm.call(start, outcome).await
}

fn changed<E: Into<TxError>>(worker: &mut Worker, slot: Slot, changed: Result<Changed, E>) {
    let store =
        |answer: &mut Answer, changed| answer.words[0] = change::encode(&Ok(changed)).into();
    answer(worker, slot, |answer| {
        answer.set(changed.map_err(Into::into), store)
    });
}

fn outcome(answer: &mut Answer) -> Result<Changed, TxError> {
    let code = answer.ok()?.words[0] as u8;
    Ok(change::decode_changed(code).expect("the answer to a change contains its outcome"))
}

/// Counts the pairs of a table: see [`crate::count()`].
///
/// # Errors
/// A [`KvError`], as a [`TxError`]; [`TxError::Stopped`].
pub async fn count(farm: &Handle, table: TableId) -> Result<u64, TxError> {
    let ended = |worker: &mut Worker, slot, pairs: Result<u64, KvError>| {
        let store = |answer: &mut Answer, pairs| answer.words[0] = pairs;
        let pairs = pairs.map_err(TxError::from);
        answer(worker, slot, |answer| answer.set(pairs, store));
    };
    let start =
        move |worker: &mut Worker, slot| crate::count(worker, table, Cont::new(ended, slot));
    farm.call(start, |answer| Ok(answer.ok()?.words[0])).await
}

/// Looks up a key: see [`crate::tx::get`].
///
/// # Errors
/// Those of [`Transaction::read`]; a [`KvError`] as a [`TxError`].
pub async fn get(
    tx: Transaction<'_>,
    table: TableId,
    key: &[u8],
) -> Result<Option<Vec<u8>>, TxError> {
    let key: SmallVec<[u8; KEY_BYTES]> = key.into();
    let copy = |found: Result<Option<&[u8]>, TxError>| found.map(|value| value.map(<[u8]>::to_vec));
    read(tx, table, key, copy).await
}

/// Looks up a key, as [`get`] does. Returns what `finish` makes of the value, or of the error: it is called with a reference,
/// so that the value need not be copied.
///
/// The error is one of those of [`Transaction::read`], or a [`KvError`] as a [`TxError`] if the table is not open on the
/// task's worker, or its keys have another length.
#[inline]
pub fn read<'f, T>(
    tx: Transaction<'f>,
    table: TableId,
    key: impl Bytes,
    finish: impl FnOnce(Result<Option<&[u8]>, TxError>) -> T,
) -> impl Future<Output = T> {
    let handle = tx.handle();
    let start = move |worker: &mut Worker, slot| {
        with_answer(worker, slot, |answer| answer.words[1] = handle.to_context());
        let cont = Cont::new(found_in_tx, slot);
        crate::tx::get(worker, handle, table, key.as_ref(), cont);
    };
    tx.call(start, |answer| finish(found(answer)))
}

fn found_in_tx(worker: &mut Worker, slot: Slot, found: Result<Option<ValueRef>, TxError>) {
    let value = match found {
        Ok(Some(value)) => value,
        Ok(None) => return answer(worker, slot, |answer| answer.words[0] = 0),
        Err(error) => return answer(worker, slot, |answer| answer.fail(error)),
    };
    let (tx, mut bytes) = with_answer(worker, slot, |answer| {
        let tx = TxHandle::from_context(answer.words[1]);
        (tx, std::mem::take(&mut answer.bytes))
    });
    let copied = crate::tx::value(worker, tx, value).map(|value| bytes.extend_from_slice(value));
    answer(worker, slot, |answer| {
        answer.bytes = bytes;
        answer.set(copied, |answer, ()| answer.words[0] = 1);
    });
}

/// Changes a table when the transaction commits: see [`crate::tx::change`].
///
/// # Errors
/// As [`write()`].
pub async fn change(
    tx: Transaction<'_>,
    table: TableId,
    key: &[u8],
    change: Change<'_>,
) -> Result<Changed, TxError> {
    let key: SmallVec<[u8; KEY_BYTES]> = key.into();
    let value = change.value().to_vec();
    write(tx, table, key, change.into(), value).await
}

/// Changes a table when the transaction commits, as [`change`] does, by a key and a value that the call owns.
///
/// # Errors
/// Those of [`Transaction::read`] and [`Transaction::alloc`]; a [`KvError`] as a [`TxError`] if the key or the value has
/// another length than those of the table, or if the table is not open on the task's worker.
pub async fn write(
    tx: Transaction<'_>,
    table: TableId,
    key: impl Bytes,
    kind: ChangeKind,
    value: impl Bytes,
) -> Result<Changed, TxError> {
    let handle = tx.handle();
    let start = move |worker: &mut Worker, slot| {
        let change = kind.of(value.as_ref());
        let cont = Cont::new(changed, slot);
        if let Err(error) = crate::tx::change(worker, handle, table, key.as_ref(), change, cont) {
            answer(worker, slot, |answer| answer.fail(error.into()));
        }
    };
    tx.call(start, outcome).await
}
