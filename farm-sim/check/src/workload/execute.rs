//! Runs transactions on the worker that a client shipped them to. If all their objects are on its machine, one turn
//! runs the transaction up to its commit; otherwise continuations run it.

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

/// Tries of a transaction before the worker replies `CONFLICT`. Each try has its own write ids.
const TRIES: u64 = 3;
/// Bits of a write id that number the writes of one try.
const PLACE_BITS: u32 = 4;
/// Bits of a write id that number the tries of one transaction.
const TRY_BITS: u32 = 10;

/// Returns the script of the next try of a transaction.
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
    // A worker runs shipped transactions as soon as it runs, possibly before the workload is started on it.
    let known = work(worker).addresses.get(object).copied();
    known
        .filter(|address| !address.is_null())
        .ok_or(Stop::NotReady)
}

/// Returns the reply code for a failed try; `None` if the transaction may be tried again.
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

/// Runs a try whose objects are all on this machine: in one turn, except for its commit.
fn run(worker: &mut Worker, shipped: Shipped) {
    let mut script = script(worker, &shipped);
    let mut tx = farm_txn::checkout(worker);
    let outcome = run_to_commit(worker, &mut tx, &mut script);
    // Recorded before the commit: if this processor stops from here on, the outcome is unknown.
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

fn run_to_commit(worker: &mut Worker, tx: &mut Tx, script: &mut Script) -> Result<(), Stop> {
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
            // Single objects only: to allocate an array takes a message and a read, which need continuations.
            Want::Allocate { bytes, .. } => tx.alloc(worker, bytes, None),
        };
        got = got_of(read)?;
    }
}

/// Reads all objects of an array on this machine.
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

/// Begins a try: in one turn if all objects are on this machine, otherwise by continuations.
pub(super) fn begin(worker: &mut Worker, shipped: Shipped) {
    if !work(worker).spec.spread {
        return run(worker, shipped);
    }
    let tx = api::begin(worker);
    run_by_continuations(worker, shipped, tx, None);
}

/// Runs a try by continuations.
pub(super) fn run_by_continuations(
    worker: &mut Worker,
    shipped: Shipped,
    tx: TxHandle,
    retry: Option<Retry>,
) {
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
    let mut running = running.expect("no other step of this try is running");
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
    let cont = Cont::new(object_read, key);
    match wanted {
        Ok((Want::Read(_), address)) => api::read(worker, tx, address, payload, cont),
        Ok((Want::Follow(pointer), _)) => {
            api::read_class(worker, tx, pointer.address, pointer.class(), cont);
        }
        Ok((Want::FollowAll(pointer, count), _)) => {
            let (first, class) = (pointer.address, pointer.class());
            api::read_array(worker, tx, first, class, count, Cont::new(all_read, key));
        }
        Ok((Want::Allocate { bytes, count, .. }, near)) => match class_for_payload(bytes) {
            Ok(class) if count > 1 => {
                let cont = Cont::new(array_allocated, key);
                api::alloc_array(worker, tx, class, count, Some(near), cont);
            }
            _ => api::alloc(worker, tx, bytes, Some(near), cont),
        },
        Ok((Want::Commit, _)) => commit(worker, key),
        Err(stop) => give_up(worker, key, stop),
    }
}

fn object_read(worker: &mut Worker, key: u64, read: Result<TxObject, TxError>) {
    match got_of(read) {
        Ok(got) => step(worker, key, got),
        Err(stop) => give_up(worker, key, stop),
    }
}

fn all_read(worker: &mut Worker, key: u64, read: Result<arrays::Objects, TxError>) {
    match read {
        Ok(objects) => step(worker, key, Got::Objects(objects)),
        Err(error) => object_read(worker, key, Err(error)),
    }
}

fn array_allocated(worker: &mut Worker, key: u64, made: Result<Vec<TxObject>, TxError>) {
    let made = made.map(|objects| objects.into_iter().map(Some).collect());
    all_read(worker, key, made);
}

/// Appends a try to the log, and returns its index there. Called before the try commits, since the worker may stop
/// before it knows the outcome.
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
    let running = running.expect("no step of this try is running");
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
    running.expect("no step of this try is running")
}

/// Ends a try that did not reach its commit.
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

/// Returns whether a try took effect; `None` if that is not known.
pub(super) fn known(outcome: &Result<(), TxError>) -> Option<bool> {
    match outcome {
        Ok(()) => Some(true),
        Err(TxError::InDoubt(_)) => None,
        Err(_) => Some(false),
    }
}

/// Records the outcome of a try that reached its commit: `tried` is its index in the log. If the try took effect, also
/// records the invariants that its script found broken.
pub(super) fn settle(worker: &mut Worker, (tried, broken): Tried, committed: Option<bool>) {
    let log = &mut work(worker).log;
    // If the cluster was lost, the log may have been taken already.
    if let Some(tried) = log.tried.get_mut(tried) {
        tried.committed = committed;
    }
    if committed == Some(true) {
        log.violations.extend(broken);
    }
}

/// Ends a try: begins the next one if the transaction may be tried again, otherwise replies to the client.
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
