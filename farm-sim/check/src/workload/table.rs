//! Operations on a hashtable, by all workers.

mod task;

use farm_bench::oltp::attempt::Stop;
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::tx::ValueRef;
use farm_kv::{Change, GetCont, KEY_BYTES, Key, KvError, TableId};
use farm_txn::{TxError, api};
use rand::Rng;

use super::clients::{MOST_ATTEMPTS, again_soon, begin_all, end_all, ended, give_up};
use super::doing::{Doing, TableOperation};
use super::state::{moment, work};
use crate::history::{KeyRequest, KeyResult};

/// Opens the table, and then begins the clients.
pub(super) fn set_up(worker: &mut Worker) {
    let spec = work(worker).spec.table();
    farm_kv::open(worker, spec, Cont::new(opened, ()));
}

fn opened(worker: &mut Worker, (): (), table: Result<TableId, KvError>) {
    match table {
        Ok(table) => {
            work(worker).table = Some(table);
            begin_all(worker);
        }
        // A machine was lost, and the cluster ends.
        Err(KvError::PeerLost(_)) => end_all(worker),
        Err(error) => give_up(worker, format!("cannot open the table: {error}")),
    }
}

fn key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&(!number).to_be_bytes());
    key
}

/// Returns a value that describes itself: its number, and words that follow from the number.
fn value(number: u64, bytes: usize) -> Vec<u8> {
    let words =
        (0u64..).map(|place| number.wrapping_add(place.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

/// Returns the number of a value; `None` if the value is torn.
fn number(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    (value(number, bytes.len()) == bytes).then_some(number)
}

/// Begins an operation that is drawn at random.
pub(super) fn begin(worker: &mut Worker, index: usize) {
    let work = work(worker);
    let state = &mut work.clients[index];
    let new = u64::from(state.number) << 32 | state.sequence;
    let gets = state.rng.random_range(0..100) < work.spec.lock_free;
    let request = match state.rng.random_range(0..8) {
        _ if gets => KeyRequest::Get,
        0..=1 => KeyRequest::Insert(new),
        2 => KeyRequest::Update(new),
        3..=4 => KeyRequest::Upsert(new),
        _ => KeyRequest::Remove,
    };
    let key = state.rng.random_range(0..work.spec.keys);
    let in_tx = state.rng.random_range(0..100) < work.spec.in_transactions;
    let changes = matches!(request, KeyRequest::Upsert(_) | KeyRequest::Remove);
    let in_two = in_tx && changes && state.rng.random_bool(0.5);
    let as_task = state.rng.random_range(0..100) < work.spec.tasks;
    state.doing = Doing::Table(TableOperation {
        key,
        request,
        in_tx,
        in_two,
        as_task,
        first: None,
        attempt: 0,
        tx: None,
        result: None,
    });
    ask(worker, index, ());
}

fn ask(worker: &mut Worker, client: usize, (): ()) {
    let now = moment(worker);
    let work = work(worker);
    let (bytes, table) = (work.spec.value_bytes, work.table);
    let state = &mut work.clients[client];
    let Doing::Table(pending) = state.doing else {
        return;
    };
    state.begun = now;
    if pending.request != KeyRequest::Get {
        let begun = pending.record_without_result(state.number, now);
        work.log.begin(begun);
    }
    let table = table.expect("clients begin when the table is open");
    let key = key(pending.key);
    if pending.as_task {
        return task::begin(worker, client, pending, table);
    }
    if pending.in_tx {
        return ask_in_tx(worker, client, table);
    }
    let change = |worker: &mut Worker, change: Change<'_>| {
        farm_kv::change(worker, table, &key, change, Cont::new(changed, client))
    };
    let begun = match pending.request {
        KeyRequest::Get => get(worker, table, &key, client),
        KeyRequest::Insert(number) => change(worker, Change::Insert(&value(number, bytes))),
        KeyRequest::Update(number) => change(worker, Change::Update(&value(number, bytes))),
        KeyRequest::Upsert(number) => change(worker, Change::Upsert(&value(number, bytes))),
        KeyRequest::Remove => change(worker, Change::Remove),
    };
    match begun {
        Ok(()) => {}
        Err(KvError::Busy) => again_soon(worker, client, ask),
        Err(error) => end(worker, client, Err(error)),
    }
}

/// Looks up a key: half of the time at once, if that is possible.
fn get(worker: &mut Worker, table: TableId, key: &Key, client: usize) -> Result<(), KvError> {
    if work(worker).clients[client].rng.random_bool(0.5) {
        let (mut found, mut left) = (None, Vec::new());
        let store = |_: usize, value: Option<&[u8]>| found = value.map(<[u8]>::to_vec);
        farm_kv::get_many(worker, table, 1, |_| key, store, &mut left)?;
        if left.is_empty() {
            got(worker, client, Ok(found.as_deref()));
            return Ok(());
        }
    }
    farm_kv::get(worker, table, key, GetCont::new(got, client))
}

fn got(worker: &mut Worker, client: usize, value: Result<Option<&[u8]>, &KvError>) {
    let result = match value {
        Ok(value) => Ok(read_as(worker, value)),
        Err(error) => Err(error.clone()),
    };
    end(worker, client, result);
}

/// Returns the result of a get, and records a violation if no client wrote the value.
fn read_as(worker: &mut Worker, value: Option<&[u8]>) -> KeyResult {
    let Some(bytes) = value else {
        return KeyResult::Value(None);
    };
    if let Some(number) = number(bytes) {
        return KeyResult::Value(Some(number));
    }
    let why = format!("a get returned a value that no client wrote: {bytes:x?}");
    work(worker).log.violate(why);
    KeyResult::Refused
}

fn changed(worker: &mut Worker, client: usize, changed: Result<Changed, KvError>) {
    end(worker, client, changed.map(KeyResult::from));
}

/// Returns the pending table operation of a client.
fn pending(worker: &mut Worker, client: usize) -> Option<&mut TableOperation> {
    match &mut work(worker).clients[client].doing {
        Doing::Table(pending) => Some(pending),
        _ => None,
    }
}

fn ask_in_tx(worker: &mut Worker, client: usize, table: TableId) {
    let tx = api::begin(worker);
    let Some(pending) = pending(worker, client) else {
        return api::abort(worker, tx);
    };
    (pending.tx, pending.first) = (Some(tx), None);
    if pending.request == KeyRequest::Get {
        let key = key(pending.key);
        return farm_kv::tx::get(worker, tx, table, &key, Cont::new(found_in_tx, client));
    }
    change_in_tx(worker, client);
}

/// Returns the value that a change writes.
fn new_value(request: KeyRequest, bytes: usize) -> Vec<u8> {
    match request {
        KeyRequest::Insert(new) | KeyRequest::Update(new) | KeyRequest::Upsert(new) => {
            value(new, bytes)
        }
        KeyRequest::Get | KeyRequest::Remove => value(0, bytes),
    }
}

/// Returns the requested change, or the next step of it.
fn step<'v>(pending: &TableOperation, new: &'v [u8]) -> Change<'v> {
    let before = pending.in_two && pending.first.is_none();
    match pending.request {
        KeyRequest::Upsert(_) if before => Change::Remove,
        KeyRequest::Remove if before => Change::Insert(new),
        KeyRequest::Upsert(_) if pending.in_two => Change::Insert(new),
        KeyRequest::Insert(_) => Change::Insert(new),
        KeyRequest::Update(_) => Change::Update(new),
        KeyRequest::Upsert(_) => Change::Upsert(new),
        KeyRequest::Get | KeyRequest::Remove => Change::Remove,
    }
}

/// Returns the result of a change, or of both of its steps together.
fn result_of(first: Option<Changed>, changed: Changed) -> KeyResult {
    match first {
        None => changed.into(),
        Some(Changed::Removed) => KeyResult::Updated,
        Some(Changed::Absent) => KeyResult::Inserted,
        Some(Changed::Inserted) => KeyResult::Absent,
        Some(_) => KeyResult::Removed,
    }
}

/// Makes the requested change, or the next step of it.
fn change_in_tx(worker: &mut Worker, client: usize) {
    let work = work(worker);
    let (bytes, table) = (work.spec.value_bytes, work.table);
    let Some(pending) = pending(worker, client) else {
        return;
    };
    let pending = *pending;
    let (key, request) = (key(pending.key), pending.request);
    let (Some(tx), Some(table)) = (pending.tx, table) else {
        return;
    };
    let new = new_value(request, bytes);
    let change = step(&pending, &new);
    let changed = Cont::new(changed_in_tx, client);
    if let Err(error) = farm_kv::tx::change(worker, tx, table, &key, change, changed) {
        end(worker, client, Err(error));
    }
}

fn found_in_tx(worker: &mut Worker, client: usize, found: Result<Option<ValueRef>, TxError>) {
    let tx = pending(worker, client).and_then(|pending| pending.tx);
    let number = match (found, tx) {
        (Ok(Some(found)), Some(tx)) => farm_kv::tx::value(worker, tx, found).map(number),
        (Ok(None), _) => return commit(worker, client, Ok(KeyResult::Value(None))),
        (Err(error), _) => return commit(worker, client, Err(error)),
        (_, None) => return,
    };
    let result = match number {
        Ok(Some(number)) => Ok(KeyResult::Value(Some(number))),
        Ok(None) => {
            let why = "a get in a transaction returned a value that no client wrote";
            work(worker).log.violate(why.into());
            Ok(KeyResult::Refused)
        }
        Err(error) => Err(error),
    };
    commit(worker, client, result);
}

fn changed_in_tx(worker: &mut Worker, client: usize, changed: Result<Changed, TxError>) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    let result = match (changed, pending.first) {
        (Ok(changed), None) if pending.in_two => {
            pending.first = Some(changed);
            return change_in_tx(worker, client);
        }
        (Ok(changed), first) => Ok(result_of(first, changed)),
        (Err(error), _) => Err(error),
    };
    commit(worker, client, result);
}

fn commit(worker: &mut Worker, client: usize, result: Result<KeyResult, TxError>) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    let tx = pending
        .tx
        .take()
        .expect("a transaction that commits was begun");
    match result {
        Ok(result) => {
            pending.result = Some(result);
            api::commit(worker, tx, Cont::new(committed, client));
        }
        Err(error) => {
            api::abort(worker, tx);
            committed(worker, client, Err(error));
        }
    }
}

fn committed(worker: &mut Worker, client: usize, committed: Result<(), TxError>) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    let result = pending.result;
    let result = committed.map(|()| result.expect("the result is set before the commit"));
    end_in_tx(worker, client, result);
}

/// Ends a try of an operation in a transaction, or begins the next one.
fn end_in_tx(worker: &mut Worker, client: usize, result: Result<KeyResult, TxError>) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    let result = match result.map_err(Stop::from) {
        Ok(result) => Ok(result),
        Err(Stop::Conflict(_)) if pending.attempt < MOST_ATTEMPTS => {
            pending.attempt += 1;
            return again_soon(worker, client, ask);
        }
        Err(Stop::Conflict(_)) => Err(KvError::Conflict),
        Err(Stop::Full(_)) => Err(KvError::Full(worker.me().machine)),
        Err(Stop::Lost(machine)) => Err(KvError::PeerLost(machine)),
        Err(Stop::InDoubt(machine)) => Err(KvError::InDoubt(machine)),
        Err(Stop::Leaving) => {
            work(worker).clients[client].doing = Doing::Nothing;
            return end_all(worker);
        }
        Err(Stop::Failed(why)) => Err(KvError::Damaged(why)),
    };
    end(worker, client, result);
}

fn end(worker: &mut Worker, client: usize, result: Result<KeyResult, KvError>) {
    let now = moment(worker);
    let index = client;
    let result = match result {
        Ok(result) => result,
        Err(KvError::Busy) => return again_soon(worker, client, ask),
        Err(KvError::Full(_) | KvError::Crowded(_) | KvError::Conflict) => KeyResult::Refused,
        Err(KvError::InDoubt(_)) if worker.survives() => return in_doubt(worker, client),
        Err(KvError::PeerLost(_) | KvError::InDoubt(_)) => return end_all(worker),
        Err(error) => {
            work(worker)
                .log
                .violate(format!("an operation on the table failed: {error}"));
            return end_all(worker);
        }
    };
    let work = work(worker);
    let state = &work.clients[index];
    let Doing::Table(pending) = state.doing else {
        return;
    };
    // A get that was refused returned no value.
    if (pending.request, result) != (KeyRequest::Get, KeyResult::Refused) {
        let operation = pending.record(state.number, state.begun, now, Some(result));
        work.log.operate(operation);
    }
    ended(worker, index);
}

/// Ends a change that the owner of the shard may have made before it was lost.
fn in_doubt(worker: &mut Worker, client: usize) {
    let work = work(worker);
    let state = &work.clients[client];
    if let Doing::Table(pending) = state.doing {
        let operation = pending.record_without_result(state.number, state.begun);
        work.log.operate(operation);
    }
    ended(worker, client);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_value_is_found_unless_the_value_is_torn() {
        for bytes in [8, 12, 32, 100] {
            let one = value(77, bytes);
            assert_eq!(number(&one), Some(77));
            if bytes > 8 {
                let mut torn = one.clone();
                torn[8..].copy_from_slice(&value(78, bytes)[8..]);
                assert_eq!(number(&torn), None);
            }
        }
    }
}
