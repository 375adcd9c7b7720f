//! Running transactions, on the worker that a client shipped them to: in one turn up to the commit if all their objects
//! are on its machine, else by continuations.

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::object::FatPointer;
use farm_core::worker::{AddressError, Cont, Worker};
use farm_txn::{ObjectId as TxObject, Tx, TxError, TxHandle, api, arrays};

use super::log::Tried as LoggedTry;
use super::message::{CONFLICT, DONE, IN_DOUBT, REFUSED};
use super::named::member;
use super::notes::{Got, Torn, Want};
use super::running::{Committing, Retry, Running, Shipped, Stop, Tried};
use super::script::Script;
use super::state::{place, work};
use crate::history::Access;

/// Tries before a conflict is told to the client. Each has write ids of its own.
const TRIES: u64 = 3;
/// Bits of a write's id that tell the writes of one try apart.
const PLACE_BITS: u32 = 4;
/// Bits that tell the tries of one transaction apart.
const TRY_BITS: u32 = 10;

/// The next try of a transaction.
fn script(worker: &mut Worker, shipped: &Shipped) -> Script {
    let (_, machine) = place(worker);
    let work = work(worker);
    let number = shipped.number;
    let name = ((number >> 32) + 1) << 40 | (number & 0xFF_FFFF) << (PLACE_BITS + TRY_BITS);
    let name = name | (shipped.attempt * TRIES + shipped.tries) << PLACE_BITS;
    let spec = work.spec.clone();
    let (first, count) = match spec.spread {
        true => (0, work.addresses.len().max(1)),
        false => (machine * spec.objects_per_machine, spec.objects_per_machine),
    };
    Script::new(spec, shipped.seed, name, first, count)
}

fn address_of(worker: &mut Worker, object: usize) -> Result<Address, Stop> {
    // A worker serves the others' transactions from the moment it runs, before it is told the workload.
    let known = work(worker).addresses.get(object).copied();
    known
        .filter(|address| !address.is_null())
        .ok_or(Stop::NotReady)
}

/// What a failed try means for its client; `None` if it may be tried again.
pub(super) fn code(worker: &mut Worker, number: u64, stop: Stop) -> Option<u8> {
    match stop {
        Stop::Tx(TxError::Abort(farm_txn::Abort::Lost(_)) | TxError::InDoubt(_)) => Some(IN_DOUBT),
        Stop::Tx(TxError::Abort(_)) => None,
        Stop::NotReady => Some(CONFLICT),
        Stop::Torn | Stop::Tx(TxError::Alloc(_) | TxError::NoMemory(_)) => Some(REFUSED),
        Stop::Tx(error) => {
            let violation = format!("transaction {number:#x} failed: {error}");
            work(worker).log.violations.push(violation);
            Some(REFUSED)
        }
    }
}

/// Runs a try whose objects are all here: in one turn, but for its commit.
fn run(worker: &mut Worker, shipped: Shipped) {
    let mut script = script(worker, &shipped);
    let mut tx = farm_txn::checkout(worker);
    let outcome = go_through(worker, &mut tx, &mut script);
    // Whatever stops this processor from here on, its outcome is not known.
    let tried = note(
        worker,
        &shipped,
        outcome.is_err().then_some(false),
        script.notes.accesses,
    );
    if let Err(stop) = outcome {
        farm_txn::checkin(worker, tx);
        return end(worker, shipped, Err(stop));
    }
    let key = work(worker).committing.insert(Committing {
        shipped,
        tried,
        broken: script.notes.broken,
    });
    farm_txn::commit(worker, tx, Cont::new(committed_here, key as u64));
}

fn committed_here(worker: &mut Worker, key: u64, outcome: Result<(), TxError>) {
    let Committing {
        shipped,
        tried,
        broken,
    } = work(worker).committing.remove(key as usize);
    settle(worker, (tried, broken), known(&outcome));
    end(worker, shipped, outcome.map_err(Stop::from));
}

fn go_through(worker: &mut Worker, tx: &mut Tx, script: &mut Script) -> Result<(), Stop> {
    let mut got = Got::Nothing;
    loop {
        let read = match next(worker, tx, script, got)? {
            Want::Commit => return Ok(()),
            Want::Read(object) => {
                let address = address_of(worker, object)?;
                tx.read(worker, address, script.notes.spec.payload())
            }
            Want::Follow(pointer) => tx.read_class(worker, pointer.address, pointer.class()),
            Want::FollowAll(pointer, count) => {
                got = follow_all(worker, tx, pointer, count)?;
                continue;
            }
            // Arrays come with a message and a read, which takes continuations.
            Want::Allocate { bytes, .. } => tx.alloc(worker, bytes, None),
        };
        got = got_of(read)?;
    }
}

/// Reads the objects of an array of this machine.
fn follow_all(
    worker: &mut Worker,
    tx: &mut Tx,
    pointer: FatPointer,
    count: u32,
) -> Result<Got, Stop> {
    let class = pointer.class();
    let mut all = Vec::new();
    for index in 0..count {
        let read = member(pointer, index).map(|address| tx.read_class(worker, address, class));
        all.push(match read.map(got_of).transpose()? {
            Some(Got::Object(object)) => Some(object),
            _ => None,
        });
    }
    Ok(Got::Objects(all))
}

fn next(worker: &mut Worker, tx: &mut Tx, script: &mut Script, got: Got) -> Result<Want, Stop> {
    script.next(tx, got).map_err(|Torn(why)| {
        work(worker).log.violations.push(why);
        Stop::Torn
    })
}

fn got_of(read: Result<TxObject, TxError>) -> Result<Got, Stop> {
    match read {
        Ok(object) => Ok(Got::Object(object)),
        Err(TxError::NotAllocated(_) | TxError::Address(AddressError::Nowhere(_))) => {
            Ok(Got::NotThere)
        }
        Err(error) => Err(error.into()),
    }
}

/// Begins a try: by continuations, unless its objects are all here.
pub(super) fn begin(worker: &mut Worker, shipped: Shipped) {
    if !work(worker).spec.spread {
        return run(worker, shipped);
    }
    let tx = api::begin(worker);
    go(worker, shipped, tx, None);
}

/// Goes through a try.
pub(super) fn go(worker: &mut Worker, shipped: Shipped, tx: TxHandle, retry: Option<Retry>) {
    let script = script(worker, &shipped);
    let running = Running {
        shipped,
        script,
        tx,
        tried: usize::MAX,
        retry,
    };
    let key = work(worker).running.insert(Some(running));
    step(worker, key as u64, Got::Nothing);
}

fn step(worker: &mut Worker, key: u64, got: Got) {
    let running = work(worker).running[key as usize].take();
    let mut running = running.expect("it is gone on with once at a time");
    let (tx, script) = (running.tx, &mut running.script);
    let want = api::with(worker, tx, |tx, worker| next(worker, tx, script, got));
    let want = want.map_err(Stop::from).and_then(|want| want);
    let wanted = match want {
        Ok(Want::Read(object)) => address_of(worker, object).map(|at| (Want::Read(object), at)),
        Ok(want @ Want::Allocate { near, .. }) => address_of(worker, near).map(|at| (want, at)),
        Ok(want) => Ok((want, Address::NULL)),
        Err(stop) => Err(stop),
    };
    let payload = running.script.notes.spec.payload();
    if let Ok((Want::Commit, _)) = wanted {
        let accesses = running.script.notes.accesses.clone();
        running.tried = note(worker, &running.shipped, None, accesses);
    }
    work(worker).running[key as usize] = Some(running);
    let cont = Cont::new(came, key);
    match wanted {
        Ok((Want::Read(_), address)) => api::read(worker, tx, address, payload, cont),
        Ok((Want::Follow(pointer), _)) => {
            api::read_class(worker, tx, pointer.address, pointer.class(), cont);
        }
        Ok((Want::FollowAll(pointer, count), _)) => {
            let (first, class) = (pointer.address, pointer.class());
            api::read_array(worker, tx, first, class, count, Cont::new(all_came, key));
        }
        Ok((Want::Allocate { bytes, count, .. }, near)) => match class_for_payload(bytes) {
            Ok(class) if count > 1 => {
                let cont = Cont::new(array_came, key);
                api::alloc_array(worker, tx, class, count, Some(near), cont);
            }
            _ => api::alloc(worker, tx, bytes, Some(near), cont),
        },
        Ok((Want::Commit, _)) => commit(worker, key),
        Err(stop) => give_up(worker, key, stop),
    }
}

fn came(worker: &mut Worker, key: u64, read: Result<TxObject, TxError>) {
    match got_of(read) {
        Ok(got) => step(worker, key, got),
        Err(stop) => give_up(worker, key, stop),
    }
}

fn all_came(worker: &mut Worker, key: u64, read: Result<arrays::Objects, TxError>) {
    match read {
        Ok(objects) => step(worker, key, Got::Objects(objects)),
        Err(error) => came(worker, key, Err(error)),
    }
}

fn array_came(worker: &mut Worker, key: u64, made: Result<Vec<TxObject>, TxError>) {
    let made = made.map(|objects| objects.into_iter().map(Some).collect());
    all_came(worker, key, made);
}

/// Notes a try: before it commits, for nobody knows what comes between. Tells where in the log it is.
fn note(
    worker: &mut Worker,
    shipped: &Shipped,
    committed: Option<bool>,
    accesses: Vec<Access>,
) -> usize {
    let log = &mut work(worker).log;
    log.tried.push(LoggedTry {
        number: shipped.number,
        committed,
        accesses,
    });
    log.tried.len() - 1
}

fn commit(worker: &mut Worker, key: u64) {
    let running = work(worker).running[key as usize].as_ref();
    let running = running.expect("it is not being gone on with");
    match (running.retry, running.tx) {
        (None, tx) => api::commit(worker, tx, Cont::new(committed, key)),
        (Some(retry), tx) => {
            let Running { tried, script, .. } = take(worker, key);
            (retry.conclude)(worker, retry.key, tx, (tried, script.notes.broken));
        }
    }
}

fn take(worker: &mut Worker, key: u64) -> Running {
    let running = work(worker).running.remove(key as usize);
    running.expect("it is not being gone on with")
}

/// Ends a try that did not come as far as to commit.
fn give_up(worker: &mut Worker, key: u64, stop: Stop) {
    let Running {
        tx,
        shipped,
        script,
        retry,
        ..
    } = take(worker, key);
    note(worker, &shipped, Some(false), script.notes.accesses);
    if let Some(retry) = retry {
        return (retry.fail)(worker, tx, stop);
    }
    api::abort(worker, tx);
    end(worker, shipped, Err(stop));
}

fn committed(worker: &mut Worker, key: u64, outcome: Result<(), TxError>) {
    let Running {
        tried,
        script,
        shipped,
        ..
    } = take(worker, key);
    settle(worker, (tried, script.notes.broken), known(&outcome));
    end(worker, shipped, outcome.map_err(Stop::from));
}

/// Whether a try took effect, if that is known.
pub(super) fn known(outcome: &Result<(), TxError>) -> Option<bool> {
    match outcome {
        Ok(()) => Some(true),
        Err(TxError::InDoubt(_)) => None,
        Err(_) => Some(false),
    }
}

/// Notes what became of a try that came to its commit: where in the log it is, and what its script found broken
/// if it took effect.
pub(super) fn settle(worker: &mut Worker, (tried, broken): Tried, committed: Option<bool>) {
    let log = &mut work(worker).log;
    // The log was taken already if the cluster was lost.
    if let Some(tried) = log.tried.get_mut(tried) {
        tried.committed = committed;
    }
    if committed == Some(true) {
        log.violations.extend(broken);
    }
}

/// A try has ended: its client is told, or it is tried again.
fn end(worker: &mut Worker, mut shipped: Shipped, outcome: Result<(), Stop>) {
    let code = match outcome {
        Ok(()) => Some(DONE),
        Err(stop) => code(worker, shipped.number, stop),
    };
    shipped.tries += 1;
    match code {
        None if shipped.tries < TRIES => begin(worker, shipped),
        code => worker.reply(shipped.request, &[&[code.unwrap_or(CONFLICT)]]),
    }
}
