//! The clients' loop: each client has one operation at a time, and begins the next when the last has ended.

use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use rand::Rng;

use super::clients::{
    ASK_AGAIN, BACKOFF_NANOS, MOST_ATTEMPTS, again_soon, call_done, end_all, ended,
};
use super::doing::Doing;
use super::follow::{self, image_of};
use super::message::{CONFLICT, DONE, IN_DOUBT, REFUSED, RUN, encode};
use super::named::Named;
use super::spec::Kind;
use super::state::{moment, owner_place, owners, work};
use super::value::Value;
use super::{graph, rows, table};
use crate::history::{Access, ObjectId, Outcome, Transaction};

/// Maximum number of lock-free reads of one operation, one after the other.
const MOST_READS: u32 = 3;

/// Begins the client's next operation, or ends the client.
pub(super) fn next(worker: &mut Worker, index: usize) {
    let now = moment(worker);
    work(worker).clients[index].doing = Doing::Nothing;
    if work(worker).clients_left == 0 {
        return;
    }
    if worker.control().is_leaving() {
        return end_all(worker);
    }
    let work = work(worker);
    let spec = &work.spec;
    let state = &mut work.clients[index];
    if state.left == 0 {
        work.clients_left -= 1;
        let last = work.clients_left == 0;
        let is_graph = spec.kind == Kind::Graph;
        if last && !(is_graph && graph::close(worker)) {
            call_done(worker);
        }
        return;
    }
    state.left -= 1;
    state.sequence += 1;
    state.begun = now;
    work.progress.begun += 1;
    let lock_free = state.rng.random_range(0..100) < spec.lock_free;
    let kept = spec.kind == Kind::Churn && state.rng.random_bool(0.25);
    match spec.kind {
        Kind::Table => table::begin(worker, index),
        Kind::Graph => graph::begin(worker, index),
        kind if kind.has_rows() => rows::begin(worker, index),
        _ if lock_free => {
            if kept && follow::follow_kept(worker, index) {
                return;
            }
            let work = self::work(worker);
            let state = &mut work.clients[index];
            let object = state.rng.random_range(0..work.addresses.len());
            let more = state.rng.random_range(0..MOST_READS);
            state.doing = Doing::Read { object, more };
            let guard = worker.pin();
            self::work(worker).clients[index].guard = Some(guard);
            read(worker, index, ());
        }
        _ => begin_transaction(worker, index),
    }
}

/// Returns the machines that run transactions of this worker's clients. Another machine without memory may leave meanwhile.
fn executors(worker: &mut Worker) -> Vec<(MachineId, usize)> {
    let mut machines = owners(worker);
    if owner_place(worker).is_none() && work(worker).spec.spread {
        let me = worker.me().machine;
        let own = worker.machines().iter().find(|machine| machine.0 == me);
        machines.extend(own.copied());
    }
    machines
}

fn begin_transaction(worker: &mut Worker, index: usize) {
    let state = &mut work(worker).clients[index];
    let number = u64::from(state.number) << 32 | state.sequence;
    let (machine, seed, pick) = (
        state.rng.random::<u64>(),
        state.rng.random(),
        state.rng.random::<u64>(),
    );
    let (client, begun) = (state.number, state.begun);
    let machines = executors(worker);
    let (machine, workers) = machines[machine as usize % machines.len()];
    let runner = WorkerId::new((pick % workers as u64) as u16)
        .expect("a number below the number of workers of a machine is a valid worker id");
    let work = work(worker);
    work.clients[index].doing = Doing::Transaction {
        number,
        to: WorkerRef::new(machine, runner),
        seed,
        attempt: 0,
    };
    work.log.ask(number, client, begun);
    ship(worker, index, ());
}

fn ship(worker: &mut Worker, client: usize, (): ()) {
    let Doing::Transaction {
        number,
        to,
        seed,
        attempt,
    } = work(worker).clients[client].doing
    else {
        return;
    };
    let body = encode(number, seed, attempt);
    match worker.call(to, RUN, &[&body], 1, ReplyCont::new(answered, client)) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ship, client)),
        Err(CallError::PeerLost(_)) => lost(worker, client),
        Err(error) => {
            work(worker)
                .log
                .violate(format!("cannot ship a transaction to worker {to}: {error}"));
            end_all(worker);
        }
    }
}

/// Handles the loss of the machine that runs a client's transaction. If the others go on without it, so does the client; whether the
/// transaction took effect stays unknown.
fn lost(worker: &mut Worker, client: usize) {
    match worker.survives() {
        true => worker.set_timer(ASK_AGAIN, Cont::new(go_on, client)),
        false => end_all(worker),
    }
}

fn go_on(worker: &mut Worker, client: usize, (): ()) {
    ended(worker, client);
}

fn answered(worker: &mut Worker, client: usize, reply: Result<&[u8], CallError>) {
    let now = moment(worker);
    let index = client;
    let Ok(reply) = reply else {
        return lost(worker, client);
    };
    let work = work(worker);
    let state = &mut work.clients[index];
    let Doing::Transaction {
        number, attempt, ..
    } = &mut state.doing
    else {
        return;
    };
    let outcome = match reply {
        [DONE] => Outcome::Committed,
        [REFUSED] => Outcome::Aborted,
        [IN_DOUBT] => return end_all(worker),
        [CONFLICT] if *attempt < MOST_ATTEMPTS => {
            *attempt += 1;
            let most = BACKOFF_NANOS * u64::from(*attempt);
            let wait = Duration::from_nanos(state.rng.random_range(1..=most));
            return worker.set_timer(wait, Cont::new(ship, client));
        }
        _ => Outcome::Aborted,
    };
    let number = *number;
    work.log.end(number, now, outcome);
    ended(worker, index);
}

/// Reads an object without locks.
fn read(worker: &mut Worker, client: usize, (): ()) {
    let now = moment(worker);
    let work = work(worker);
    let bytes = work.spec.payload();
    let state = &mut work.clients[client];
    let Doing::Read { object, .. } = state.doing else {
        return;
    };
    state.begun = now;
    let class =
        class_for_payload(bytes).expect("the size of an object that was created has a size class");
    let request = ReadRequest::object(work.addresses[object], class);
    if worker
        .read_lock_free(request, Cont::new(read_done, client))
        .is_err()
    {
        again_soon(worker, client, read);
    }
}

fn read_done(worker: &mut Worker, client: usize, result: ReadResult) {
    let now = moment(worker);
    let index = client;
    let Doing::Read { object, more } = work(worker).clients[index].doing else {
        return;
    };
    let slot = match result {
        Ok(slot) => slot,
        Err(ReadError::Busy) => return again_soon(worker, client, read),
        Err(ReadError::PeerLost(_)) => return end_all(worker),
        // The object stayed locked for all tries of the read: its locker may have crashed.
        Err(ReadError::StaysLocked(_)) => return ended(worker, index),
        Err(error) => {
            work(worker).log.violate(format!(
                "cannot read object {object} without locks: {error}"
            ));
            return end_all(worker);
        }
    };
    let bytes =
        class_for_payload(work(worker).spec.payload()).map_or(0, |class| class.object_bytes());
    let (version, payload) = image_of(worker.arena().words(&slot), bytes);
    worker.arena().give(slot);
    let value = match Value::read(&payload) {
        Ok(value) => value,
        Err(torn) => {
            let violation = format!("lock-free read of object {object}, version {version}: {torn}");
            work(worker).log.violate(violation);
            return ended(worker, index);
        }
    };
    let work = work(worker);
    let state = &work.clients[index];
    work.log.read(Transaction {
        client: state.number,
        begun: state.begun,
        ended: now,
        outcome: Outcome::Committed,
        accesses: vec![Access::Read {
            object: ObjectId(object as u32),
            version,
            id: value.id,
            parent: value.parent,
        }],
    });
    match Named::by(work.spec.kind, object, &value) {
        Some(named) => follow::follow(worker, index, named),
        None => read_more(worker, index, more),
    }
}

/// Reads further objects, mostly on the machine of the last one, because transactions often write several objects of
/// one machine.
fn read_more(worker: &mut Worker, index: usize, more: u32) {
    if more == 0 {
        return ended(worker, index);
    }
    let work = work(worker);
    let (total, per_machine) = (work.addresses.len(), work.spec.objects_per_machine);
    let state = &mut work.clients[index];
    let Doing::Read { object, .. } = state.doing else {
        return;
    };
    let machine = object / per_machine * per_machine;
    let object = match state.rng.random_range(0..4) {
        0 => state.rng.random_range(0..total),
        _ => machine + state.rng.random_range(0..per_machine),
    };
    state.doing = Doing::Read {
        object,
        more: more - 1,
    };
    read(worker, index, ());
}
