//! What a primary does (`FaRM'15 §4`): it finds records in the logs that coordinators of other machines
//! write into its memory, locks, installs and unlocks, and keeps each record until it is truncated.

use std::collections::VecDeque;

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::mem::Memory;
use farm_core::object::{LockMode, VersionWord, write};
use farm_core::worker::{Cont, LogId, LogRecord, Worker};
use farm_core::{marks, mutants};

use super::give_back;
use crate::error::TxError;
use crate::layer::transactions;
use crate::record::{Effect, Kind, Lock, Object, Record};
use crate::tx::is_slot;

#[cfg(test)]
mod tests;

/// LOCK-REPLY: every object is locked.
pub(crate) const LOCKED: u8 = 0;
/// One was locked by another transaction.
pub(crate) const WAS_LOCKED: u8 = 1;
/// One has changed since it was read.
pub(crate) const HAS_CHANGED: u8 = 2;
/// One is of another size class.
pub(crate) const OTHER_CLASS: u8 = 3;
/// No object starts at an address.
pub(crate) const NO_OBJECT: u8 = 4;
/// Bytes of LOCK-REPLY, which names the object after the code, and its size class where it is another; and
/// of the answer to VALIDATE.
pub(crate) const REPLY_BYTES: usize = 10;

/// Why a LOCK is refused.
pub(super) struct Refused {
    pub(super) code: u8,
    pub(super) address: Address,
    /// The size class that the object has.
    pub(super) class: u8,
}

impl Refused {
    /// Nothing is.
    pub(super) const NOTHING: Self = Self {
        code: LOCKED,
        address: Address::NULL,
        class: 0,
    };

    pub(super) fn conflict(code: u8, address: Address) -> Self {
        Self {
            code,
            address,
            class: 0,
        }
    }

    /// The answer that says so.
    pub(super) fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut reply = [self.code; REPLY_BYTES];
        reply[1..9].copy_from_slice(&self.address.to_bits().to_le_bytes());
        reply[9] = self.class;
        reply
    }

    pub(super) fn decode(reply: &[u8; REPLY_BYTES]) -> Self {
        let address = u64::from_le_bytes(reply[1..9].try_into().expect("a word"));
        Self {
            code: reply[0],
            address: Address::from_bits(address).unwrap_or(Address::NULL),
            class: reply[9],
        }
    }
}

/// How far a transaction is at this primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Locked,
    Refused,
    Ended,
}

/// A transaction that is not truncated.
struct Open {
    sequence: u64,
    /// Its LOCK record: where it ends, and the bytes of its body.
    lock_end: u64,
    lock_bytes: usize,
    state: State,
}

/// What is kept of one log.
#[derive(Default)]
struct Log {
    id: Option<LogId>,
    /// The records in it, as they stand there: the transaction, 0 for none, and where each ends.
    records: VecDeque<(u64, u64)>,
    /// In the order of their numbers.
    open: VecDeque<Open>,
}

impl Log {
    fn find(&mut self, sequence: u64) -> Option<&mut Open> {
        let at = self
            .open
            .binary_search_by_key(&sequence, |open| open.sequence);
        at.ok().map(|at| &mut self.open[at])
    }

    fn insert(&mut self, open: Open) -> bool {
        let sequence = open.sequence;
        match self
            .open
            .binary_search_by_key(&sequence, |open| open.sequence)
        {
            Ok(_) => false,
            Err(at) => {
                self.open.insert(at, open);
                true
            }
        }
    }

    /// Forgets transactions that their coordinator needs no more. False if one of them has not ended.
    fn truncate(&mut self, record: &Record<'_>) -> bool {
        let below = self.open.partition_point(|open| open.sequence < record.low);
        let mut ended = true;
        for open in self.open.drain(..below) {
            ended &= open.state == State::Ended;
        }
        for sequence in record.truncated() {
            if let Ok(at) = self
                .open
                .binary_search_by_key(&sequence, |open| open.sequence)
            {
                marks::mark("truncate: by name");
                let open = self.open.remove(at);
                ended &= open.is_some_and(|open| open.state == State::Ended);
            }
        }
        ended
    }

    /// Where the first record ends that has to stay; everything before it can go.
    fn take_truncated(&mut self) -> Option<u64> {
        let mut end = None;
        while let Some(&(sequence, at)) = self.records.front() {
            if sequence != 0 && self.find(sequence).is_some() {
                break;
            }
            end = Some(at);
            self.records.pop_front();
        }
        end
    }
}

/// The logs that one worker polls.
#[derive(Default)]
pub(crate) struct Primary {
    logs: Vec<Log>,
    /// A LOCK record that is read once more.
    words: Vec<u64>,
}

impl Primary {
    fn log(&mut self, id: LogId) -> &mut Log {
        if self.logs.len() <= id.index() {
            self.logs.resize_with(id.index() + 1, Log::default);
        }
        let log = &mut self.logs[id.index()];
        log.id = Some(id);
        log
    }

    /// Records that are kept.
    pub(crate) fn records(&self) -> usize {
        self.logs.iter().map(|log| log.records.len()).sum()
    }
}

/// Works on a record.
pub(crate) fn handle(worker: &mut Worker, at: LogRecord, body: &[u8]) {
    if let Err(why) = work(worker, at, body) {
        let (from, number) = (at.from, at.token);
        let why = format!("{from} wrote a record of transaction {number} into its log: {why}");
        worker.distrust(from.machine, why);
    }
}

fn work(worker: &mut Worker, at: LogRecord, body: &[u8]) -> Result<(), String> {
    let record = Record::decode(at.kind, at.token, body).map_err(|error| error.to_string())?;
    let log = transactions(worker).primary.log(at.log);
    let ended = log.truncate(&record);
    let sequence = if record.kind == Kind::Truncate {
        0
    } else {
        at.token
    };
    log.records.push_back((sequence, at.end));
    if !ended {
        return Err("it truncates a transaction that has not ended here".into());
    }
    match record.kind {
        Kind::Lock => {
            let lock = record.lock().map_err(|error| error.to_string())?;
            lock_all(worker, at, &lock, body.len())?;
        }
        Kind::CommitPrimary => end(worker, at, true)?,
        Kind::Abort => end(worker, at, false)?,
        Kind::Truncate => {}
    }
    let log = transactions(worker).primary.log(at.log);
    if let Some(end) = log.take_truncated() {
        worker.free_log(at.log, end);
    }
    Ok(())
}

/// The memory of an object of a record, if it lies here as a whole.
fn memory_of<'w>(
    worker: &'w mut Worker,
    object: &Object<'_>,
) -> Result<(&'w Memory, usize), String> {
    let bytes = object.class.object_bytes();
    let (memory, at) = worker
        .local_memory(object.address)
        .map_err(|error| error.to_string())?;
    if at + bytes > memory.len() {
        return Err(format!("there is no object at {}", object.address));
    }
    Ok((memory, at))
}

/// In which mode a distributed commit locks: from the first acknowledgement of COMMIT-PRIMARY on nobody
/// may read the old value.
fn mode() -> LockMode {
    match mutants::is_on("readable LOCK in a distributed commit") {
        true => LockMode::Readable,
        false => LockMode::Exclusive,
    }
}

fn lock_all(
    worker: &mut Worker,
    at: LogRecord,
    lock: &Lock<'_>,
    lock_bytes: usize,
) -> Result<(), String> {
    let late = mutants::is_on("answer LOCK-REPLY before locking");
    let refused = match late {
        true => None,
        false => try_lock_all(worker, lock)?,
    };
    let state = match refused {
        None => State::Locked,
        Some(_) => State::Refused,
    };
    let new = transactions(worker).primary.log(at.log).insert(Open {
        sequence: at.token,
        lock_end: at.end,
        lock_bytes,
        state,
    });
    if !new {
        if state == State::Locked && !late {
            unlock(worker, lock, lock.count)?;
        }
        return Err("the transaction has a LOCK record already".into());
    }
    let refused = refused.unwrap_or(Refused::NOTHING);
    worker.reply(at.request(lock.reply), &[&refused.encode()]);
    if late {
        worker.defer(Cont::new(lock_late, at.token << 8 | at.log.index() as u64));
    }
    Ok(())
}

/// Locks every object at exactly the version that was read, or none: returns why not.
///
/// # Errors
/// The record is wrong; nothing is locked.
fn try_lock_all(worker: &mut Worker, lock: &Lock<'_>) -> Result<Option<Refused>, String> {
    let mut outcome = Ok(None);
    let mut locked = 0;
    for object in lock.objects() {
        let object = object.map_err(|error| error.to_string());
        outcome = object.and_then(|object| try_lock(worker, &object));
        if !matches!(outcome, Ok(None)) {
            break;
        }
        locked += 1;
    }
    if matches!(outcome, Ok(None)) {
        return outcome;
    }
    let unlocked = unlock(worker, lock, locked);
    outcome.and_then(|refused| unlocked.map(|()| refused))
}

/// Locks an object at exactly the version that was read: returns why not.
fn try_lock(worker: &mut Worker, object: &Object<'_>) -> Result<Option<Refused>, String> {
    let geometry = worker.store().geometry();
    let address = object.address;
    let (memory, at) = memory_of(worker, object)?;
    // A coordinator that read it with another size has not read a version there, or would leave half of it.
    let slot = is_slot((memory, geometry, at), address, object.class);
    if !matches!(slot, Ok(true)) {
        return Ok(Some(misplaced(address, slot)));
    }
    let wanted = match mutants::is_on("lock at a newer version than read") {
        true => write::load_version(memory, at).version(),
        false => object.version,
    };
    if write::try_lock(memory, at, wanted, mode()) {
        return Ok(None);
    }
    marks::mark("lock: refused");
    let changed = write::load_version(memory, at).version() != object.version;
    let code = if changed { HAS_CHANGED } else { WAS_LOCKED };
    Ok(Some(Refused::conflict(code, address)))
}

/// There is no object of the class that was said.
#[cold]
fn misplaced(address: Address, slot: Result<bool, TxError>) -> Refused {
    let (code, class) = match slot {
        Err(TxError::WrongSize { is, .. }) => (OTHER_CLASS, class_for_payload(is).ok()),
        _ => (NO_OBJECT, None),
    };
    Refused {
        code,
        address,
        class: class.map_or(0, SizeClass::get),
    }
}

/// Unlocks the first objects of a record: all that it holds of them, also if one is wrong.
fn unlock(worker: &mut Worker, lock: &Lock<'_>, count: usize) -> Result<(), String> {
    let mut outcome = Ok(());
    for object in lock.objects().take(count) {
        let object = object.map_err(|error| error.to_string());
        let unlocked = object.and_then(|object| unlock_one(worker, &object));
        outcome = outcome.and(unlocked);
    }
    outcome
}

fn unlock_one(worker: &mut Worker, object: &Object<'_>) -> Result<(), String> {
    let (memory, at) = memory_of(worker, object)?;
    match held_version(memory, at, object) {
        Ok(held) => write::unlock(memory, at, held.version()),
        Err(_) if mutants::is_on("answer LOCK-REPLY before locking") => {}
        Err(why) => return Err(why),
    }
    Ok(())
}

/// The header of an object that this transaction holds. What the log says now may not be what it said.
fn held_version(memory: &Memory, at: usize, object: &Object<'_>) -> Result<VersionWord, String> {
    let now = write::load_version(memory, at);
    let held = VersionWord::of(object.version, mode());
    if now == held || mutants::is_on("lock at a newer version than read") {
        return Ok(now);
    }
    Err(format!("it does not hold the object at {}", object.address))
}

/// COMMIT-PRIMARY or ABORT.
fn end(worker: &mut Worker, at: LogRecord, commit: bool) -> Result<(), String> {
    let primary = &mut transactions(worker).primary;
    let open = primary.log(at.log).find(at.token);
    let open = open.ok_or("there is no LOCK record of it")?;
    let (lock_end, lock_bytes) = (open.lock_end, open.lock_bytes);
    let state = std::mem::replace(&mut open.state, State::Ended);
    if state == State::Ended || commit && state == State::Refused {
        return Err("it ended here before".into());
    }
    let mut words = std::mem::take(&mut primary.words);
    worker.read_log(at.log, lock_end, lock_bytes, &mut words);
    let body: &[u8] = &bytemuck::cast_slice(&words)[..lock_bytes];
    let outcome = Record::decode_unchecked(Kind::Lock, body)
        .and_then(|record| record.lock())
        .map_err(|error| error.to_string())
        .and_then(|lock| match commit {
            true => install_all(worker, &lock),
            false => abort_all(worker, &lock, state),
        });
    transactions(worker).primary.words = words;
    outcome
}

fn install_all(worker: &mut Worker, lock: &Lock<'_>) -> Result<(), String> {
    for object in lock.objects() {
        let object = object.map_err(|error| error.to_string())?;
        let (memory, at) = memory_of(worker, &object)?;
        let late = mutants::is_on("answer LOCK-REPLY before locking");
        let held = match late {
            true => VersionWord::of(write::load_version(memory, at).version(), mode()),
            false => held_version(memory, at, &object)?,
        };
        if late || held.mode() != LockMode::Exclusive {
            write::make_exclusive(memory, at, held.version());
        }
        let bytes = object.class.object_bytes();
        let next = held.version().next();
        write::install(memory, at, bytes, next, object.incarnation, object.payload);
        // Freed, or never to be.
        if !object.incarnation.is_allocated() {
            release(worker, &object)?;
        }
    }
    Ok(())
}

fn release(worker: &mut Worker, object: &Object<'_>) -> Result<(), String> {
    let released = give_back(worker, object.address, object.class);
    released.map_err(|error| error.to_string())
}

fn abort_all(worker: &mut Worker, lock: &Lock<'_>, state: State) -> Result<(), String> {
    marks::mark("abort: at a primary");
    if state == State::Locked {
        unlock(worker, lock, lock.count)?;
    }
    for object in lock.objects() {
        let object = object.map_err(|error| error.to_string())?;
        let leaks = mutants::is_on("allocation leaked on abort");
        let frees = mutants::is_on("free takes effect on abort");
        match object.effect {
            Effect::Allocate if !leaks => release(worker, &object)?,
            Effect::Free if frees => release(worker, &object)?,
            _ => {}
        }
    }
    Ok(())
}

/// The bug that locks after it has said so.
fn lock_late(worker: &mut Worker, context: u64, (): ()) {
    let (log, sequence) = ((context & 0xFF) as usize, context >> 8);
    let Some(open) = transactions(worker).primary.logs[log].find(sequence) else {
        return;
    };
    let (end, bytes, state) = (open.lock_end, open.lock_bytes, open.state);
    if state != State::Locked {
        return;
    }
    let mut words = Vec::new();
    let id = transactions(worker).primary.logs[log]
        .id
        .expect("it was read from");
    worker.read_log(id, end, bytes, &mut words);
    let body: &[u8] = &bytemuck::cast_slice(&words)[..bytes];
    let lock = Record::decode_unchecked(Kind::Lock, body).and_then(|record| record.lock());
    if let Ok(lock) = lock {
        // Whether it has the locks nobody asks any more.
        let _ = try_lock_all(worker, &lock);
    }
}
