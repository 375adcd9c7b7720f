//! Operations on a hashtable, from every worker.

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KEY_BYTES, Key, KvError};
use rand::Rng;

use super::client::{self, Doing};
use super::history::{Answered, Asked, KeyOperation};
use super::{moment, work};

/// An operation that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    key: u64,
    asked: Asked,
}

impl Pending {
    fn answered(
        self,
        client: u32,
        begun: u64,
        ended: u64,
        answered: Option<Answered>,
    ) -> KeyOperation {
        KeyOperation {
            client,
            key: self.key,
            begun,
            ended,
            asked: self.asked,
            answered,
        }
    }

    /// Of which no answer will come.
    pub(super) fn unanswered(self, client: u32, begun: u64) -> KeyOperation {
        self.answered(client, begun, begun, None)
    }
}

pub(super) fn key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&(!number).to_be_bytes());
    key
}

/// A value that describes itself: its number, and what follows from it.
fn value(number: u64, bytes: usize) -> Vec<u8> {
    let words =
        (0u64..).map(|place| number.wrapping_add(place.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

/// The number of a value; nothing of one that is put together from two.
fn number(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    (value(number, bytes.len()) == bytes).then_some(number)
}

/// Begins an operation that is drawn.
pub(super) fn begin(worker: &mut Worker, index: usize) {
    let work = work(worker);
    let state = &mut work.clients[index];
    let new = u64::from(state.number) << 32 | state.sequence;
    let gets = state.rng.random_range(0..100) < work.spec.lock_free;
    let asked = match state.rng.random_range(0..8) {
        _ if gets => Asked::Get,
        0..=1 => Asked::Insert(new),
        2 => Asked::Update(new),
        3..=4 => Asked::Upsert(new),
        _ => Asked::Remove,
    };
    let key = state.rng.random_range(0..work.spec.keys);
    state.doing = Doing::Table(Pending { key, asked });
    ask(worker, index as u64, ());
}

fn ask(worker: &mut Worker, client: u64, (): ()) {
    let now = moment(worker);
    let work = work(worker);
    let (bytes, table) = (work.spec.value_bytes, work.table);
    let state = &mut work.clients[client as usize];
    let Doing::Table(pending) = state.doing else {
        return;
    };
    state.begun = now;
    let table = table.expect("clients begin when the table is open");
    let key = key(pending.key);
    let change = |worker: &mut Worker, change: Change<'_>| {
        farm_kv::change(worker, table, &key, change, Cont::new(changed, client))
    };
    let begun = match pending.asked {
        Asked::Get => farm_kv::get(worker, table, &key, GetCont::new(got, client)),
        Asked::Insert(number) => change(worker, Change::Insert(&value(number, bytes))),
        Asked::Update(number) => change(worker, Change::Update(&value(number, bytes))),
        Asked::Upsert(number) => change(worker, Change::Upsert(&value(number, bytes))),
        Asked::Remove => change(worker, Change::Remove),
    };
    match begun {
        Ok(()) => {}
        Err(KvError::Busy) => client::again_soon(worker, client, ask),
        Err(error) => end(worker, client, Err(error)),
    }
}

fn got(worker: &mut Worker, client: u64, value: Result<Option<&[u8]>, KvError>) {
    let answered = match value {
        Ok(None) => Ok(Answered::Value(None)),
        Ok(Some(bytes)) => match number(bytes) {
            Some(number) => Ok(Answered::Value(Some(number))),
            None => {
                let why = format!("a value of the table that nobody wrote: {bytes:x?}");
                work(worker).log.violations.push(why);
                Ok(Answered::Refused)
            }
        },
        Err(error) => Err(error),
    };
    end(worker, client, answered);
}

fn changed(worker: &mut Worker, client: u64, changed: Result<Changed, KvError>) {
    let answered = changed.map(|changed| match changed {
        Changed::Inserted => Answered::Inserted,
        Changed::Updated => Answered::Updated,
        Changed::Removed => Answered::Removed,
        Changed::Exists => Answered::Exists,
        Changed::Absent => Answered::Absent,
    });
    end(worker, client, answered);
}

fn end(worker: &mut Worker, client: u64, answered: Result<Answered, KvError>) {
    let now = moment(worker);
    let index = client as usize;
    let answered = match answered {
        Ok(answered) => answered,
        Err(KvError::Busy) => return client::again_soon(worker, client, ask),
        Err(KvError::Full(_) | KvError::Crowded(_) | KvError::Conflict) => Answered::Refused,
        Err(KvError::PeerLost(_)) => return client::end_all(worker),
        Err(error) => {
            work(worker)
                .log
                .violations
                .push(format!("an operation on the table failed: {error}"));
            return client::end_all(worker);
        }
    };
    let work = work(worker);
    let state = &work.clients[index];
    let Doing::Table(pending) = state.doing else {
        return;
    };
    let operation = pending.answered(state.number, state.begun, now, Some(answered));
    work.log.operations.push(operation);
    client::ended(worker, index);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_their_number_unless_they_are_torn() {
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
