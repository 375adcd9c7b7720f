//! Runs transactions on the worker that a client shipped them to. If all their objects are on its machine, one turn
//! runs the transaction up to its commit; otherwise continuations run it, or an `async` task.

use farm_core::alloc::class_for_payload;
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_txn::{ObjectId as TxObject, Tx, TxError, TxHandle, api, arrays};

use super::attempt::{Plan, TRIES, address_of, got_of, known, next, note, plan, script, settle};
use super::message::{CONFLICT, DONE, IN_DOUBT, REFUSED};
use super::named::member;
use super::notes::{Got, Want};
use super::running::{Committing, Retry, Running, Shipped, Stop};
use super::script::Script;
use super::state::work;
use super::task;

/// Returns the reply code for a failed try; `None` if the transaction may be tried again.
pub(super) fn code(worker: &mut Worker, number: u64, stop: Stop) -> Option<u8> {
    match stop {
        Stop::Tx(TxError::Abort(farm_txn::Abort::Lost(_)) | TxError::InDoubt(_)) => Some(IN_DOUBT),
        Stop::Tx(TxError::Abort(_)) => None,
        Stop::NotReady => Some(CONFLICT),
        Stop::Torn
        | Stop::Tx(TxError::Alloc(_) | TxError::NoMemory(_) | TxError::Stopped(None)) => {
            Some(REFUSED)
        }
        Stop::Tx(error) => {
            let violation = format!("transaction {number:#x} failed: {error}");
            work(worker).log.violate(violation);
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
    farm_txn::commit(worker, tx, Cont::new(committed_here, key));
}

fn committed_here(worker: &mut Worker, key: usize, outcome: Result<(), TxError>) {
    let Committing {
        shipped,
        tried,
        broken,
    } = work(worker).committing.remove(key);
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

/// Begins a try: in one turn if all objects are on this machine, otherwise by continuations or as a task.
pub(super) fn begin(worker: &mut Worker, shipped: Shipped) {
    if task::runs(worker, &shipped) {
        return task::begin(worker, shipped, end);
    }
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
    step(worker, key, Got::Nothing);
}

fn step(worker: &mut Worker, key: usize, got: Got) {
    let running = work(worker).running[key].take();
    let mut running =
        running.expect("a step puts the state of its try back before the next step begins");
    let tx = running.tx;
    let planned = plan(worker, tx, &mut running.script, got);
    let payload = running.script.notes.spec.payload();
    if matches!(&planned, Ok(plan) if matches!(plan.want, Want::Commit)) {
        let accesses = running.script.notes.accesses.clone();
        running.tried = note(worker, &running.shipped, None, accesses);
    }
    work(worker).running[key] = Some(running);
    let Plan { want, address } = match planned {
        Ok(plan) => plan,
        Err(stop) => return give_up(worker, key, stop),
    };
    let cont = Cont::new(object_read, key);
    match want {
        Want::Read(_) => api::read(worker, tx, address, payload, cont),
        Want::Follow(pointer) => {
            api::read_class(worker, tx, pointer.address, pointer.class(), cont);
        }
        Want::FollowAll(pointer, count) => {
            let (first, class) = (pointer.address, pointer.class());
            api::read_array(worker, tx, first, class, count, Cont::new(all_read, key));
        }
        Want::Allocate { bytes, count, .. } => match class_for_payload(bytes) {
            Ok(class) if count > 1 => {
                let cont = Cont::new(array_allocated, key);
                api::alloc_array(worker, tx, class, count, Some(address), cont);
            }
            _ => api::alloc(worker, tx, bytes, Some(address), cont),
        },
        Want::Commit => commit(worker, key),
    }
}

fn object_read(worker: &mut Worker, key: usize, read: Result<TxObject, TxError>) {
    match got_of(read) {
        Ok(got) => step(worker, key, got),
        Err(stop) => give_up(worker, key, stop),
    }
}

fn all_read(worker: &mut Worker, key: usize, read: Result<arrays::Objects, TxError>) {
    match read {
        Ok(objects) => step(worker, key, Got::Objects(objects)),
        Err(error) => object_read(worker, key, Err(error)),
    }
}

fn array_allocated(worker: &mut Worker, key: usize, made: Result<Vec<TxObject>, TxError>) {
    let made = made.map(|objects| objects.into_iter().map(Some).collect());
    all_read(worker, key, made);
}

fn commit(worker: &mut Worker, key: usize) {
    let running = work(worker).running[key].as_ref();
    let running = running.expect("a step puts the state of its try back before the try ends");
    match (running.retry, running.tx) {
        (None, tx) => api::commit(worker, tx, Cont::new(committed, key)),
        (Some(retry), tx) => {
            let Running { tried, script, .. } = take(worker, key);
            (retry.conclude)(worker, retry.key, tx, (tried, script.notes.broken));
        }
    }
}

fn take(worker: &mut Worker, key: usize) -> Running {
    let running = work(worker).running.remove(key);
    running.expect("a step puts the state of its try back before the try ends")
}

/// Ends a try that did not reach its commit.
fn give_up(worker: &mut Worker, key: usize, stop: Stop) {
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

fn committed(worker: &mut Worker, key: usize, outcome: Result<(), TxError>) {
    let Running {
        tried,
        script,
        shipped,
        ..
    } = take(worker, key);
    settle(worker, (tried, script.notes.broken), known(&outcome));
    end(worker, shipped, outcome.map_err(Stop::from));
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
