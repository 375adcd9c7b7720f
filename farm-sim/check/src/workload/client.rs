//! Clients: each does one thing at a time, and begins the next when it has heard of the last.

use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::{WorkerId, WorkerRef};
use farm_core::messaging::{CallError, ReplyCont};
use farm_core::object::Image;
use farm_core::worker::{Cont, Operation, ReadError, ReadRequest, ReadResult, Worker};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::execute::{self, CONFLICT, DONE, IN_DOUBT, REFUSED};
use super::log::Asked;
use super::value::Value;
use super::{Kind, RUN, churn, moment, place, rows, table, work};
use crate::history::{Access, KeyOperation, ObjectId, Outcome, Transaction};

/// Times that a transaction is shipped again after conflicts.
pub(super) const MOST_ATTEMPTS: u8 = 60;
/// Longest pause before a transaction is shipped again; drawn up to this times the attempts so far.
pub(super) const BACKOFF_NANOS: u64 = 2_000;
/// Longest pause when the arena is full.
const ROOM_NANOS: u64 = 1_000;
/// Reads of objects one after the other.
const MOST_READS: u32 = 3;

/// A client.
pub(super) struct Client {
    pub(super) rng: Xoshiro256PlusPlus,
    /// Its number in the whole cluster.
    pub(super) number: u32,
    pub(super) left: u64,
    pub(super) sequence: u64,
    /// The moment at which what is under way was begun.
    pub(super) begun: u64,
    pub(super) doing: Doing,
    /// From the read of an entry until that of the object that it names.
    pub(super) operation: Option<Operation>,
    /// What a transaction over rows does to keys, if it commits.
    pub(super) unsure: Vec<KeyOperation>,
}

/// What is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// A transaction, by its number and where it runs.
    Transaction {
        number: u64,
        to: WorkerRef,
        seed: u64,
        attempt: u8,
    },
    /// A lock-free read of an object, and how many more are to follow.
    Read { object: usize, more: u32 },
    /// An object that churn's entry named.
    Named(churn::Named),
    /// An operation on the table.
    Table(table::Pending),
    /// A transaction over rows of tables.
    Rows(rows::Pending),
}

/// Makes the clients, and lets each begin.
pub(super) fn begin_all(worker: &mut Worker) {
    let (place, _) = place(worker);
    let work = work(worker);
    let spec = &work.spec;
    let client = |index: usize| {
        let number = place * spec.clients + index;
        Client {
            rng: Xoshiro256PlusPlus::seed_from_u64(spec.seed ^ (number as u64 + 1) << 20),
            number: number as u32,
            left: spec.operations,
            sequence: 0,
            begun: 0,
            doing: Doing::Nothing,
            operation: None,
            unsure: Vec::new(),
        }
    };
    work.clients = (0..spec.clients).map(client).collect();
    if work.clients.is_empty() {
        return tell_done(worker);
    }
    for client in 0..work.clients.len() {
        worker.defer(Cont::new(next, client as u64));
    }
}

/// All clients of this worker end, because the cluster does.
pub(super) fn end_all(worker: &mut Worker) {
    for client in &mut work(worker).clients {
        client.left = 0;
    }
    work(worker).clients_left = 0;
    tell_done(worker);
}

fn tell_done(worker: &mut Worker) {
    if let Some(done) = work(worker).done.take() {
        done(worker);
    }
}

/// A client begins its next operation, or ends.
pub(super) fn next(worker: &mut Worker, client: u64, (): ()) {
    let index = client as usize;
    let now = moment(worker);
    let work = work(worker);
    let spec = &work.spec;
    let state = &mut work.clients[index];
    state.doing = Doing::Nothing;
    if work.clients_left == 0 {
        return;
    }
    if state.left == 0 {
        work.clients_left -= 1;
        if work.clients_left == 0 {
            tell_done(worker);
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
        kind if kind.has_rows() => rows::begin(worker, index),
        _ if lock_free => {
            if kept && churn::follow_kept(worker, index) {
                return;
            }
            let work = self::work(worker);
            let state = &mut work.clients[index];
            let object = state.rng.random_range(0..work.addresses.len());
            let more = state.rng.random_range(0..MOST_READS);
            state.doing = Doing::Read { object, more };
            let operation = worker.begin_operation();
            self::work(worker).clients[index].operation = Some(operation);
            read(worker, client, ());
        }
        _ => begin_transaction(worker, index),
    }
}

/// What was under way has ended; the next begins from the event loop.
pub(super) fn ended(worker: &mut Worker, client: usize) {
    let work = work(worker);
    work.progress.ended += 1;
    if let Some(operation) = work.clients[client].operation.take() {
        worker.end_operation(operation);
    }
    next(worker, client as u64, ());
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
    let machines = worker.machines();
    let (machine, workers) = machines[machine as usize % machines.len()];
    let runner = WorkerId::new((pick % workers as u64) as u16).expect("a worker of the cluster");
    let work = work(worker);
    work.clients[index].doing = Doing::Transaction {
        number,
        to: WorkerRef::new(machine, runner),
        seed,
        attempt: 0,
    };
    work.log.asked.push(Asked {
        number,
        client,
        begun,
        ended: None,
    });
    ship(worker, index as u64, ());
}

fn ship(worker: &mut Worker, client: u64, (): ()) {
    let Doing::Transaction {
        number,
        to,
        seed,
        attempt,
    } = work(worker).clients[client as usize].doing
    else {
        return;
    };
    let body = execute::encode(number, seed, attempt);
    match worker.call(to, RUN, &[&body], 1, ReplyCont::new(answered, client)) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ship, client)),
        Err(CallError::PeerLost(_)) => end_all(worker),
        Err(error) => {
            work(worker)
                .log
                .violations
                .push(format!("a transaction cannot be shipped: {error}"));
            end_all(worker);
        }
    }
}

fn answered(worker: &mut Worker, client: u64, reply: Result<&[u8], CallError>) {
    let now = moment(worker);
    let index = client as usize;
    let Ok(reply) = reply else {
        return end_all(worker);
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
    let asked = work
        .log
        .asked
        .iter_mut()
        .rev()
        .find(|asked| asked.number == number);
    // The log was taken already if the cluster was lost.
    if let Some(asked) = asked {
        asked.ended = Some((now, outcome));
    }
    ended(worker, index);
}

/// Reads an object without locks.
fn read(worker: &mut Worker, client: u64, (): ()) {
    let now = moment(worker);
    let work = work(worker);
    let bytes = work.spec.payload();
    let state = &mut work.clients[client as usize];
    let Doing::Read { object, .. } = state.doing else {
        return;
    };
    state.begun = now;
    let class = class_for_payload(bytes).expect("the object was made");
    let request = ReadRequest::object(work.addresses[object], class);
    if worker
        .read_lock_free(request, Cont::new(came, client))
        .is_err()
    {
        again_soon(worker, client, read);
    }
}

/// Calls `what` again when slots may have come back.
pub(super) fn again_soon(
    worker: &mut Worker,
    client: u64,
    what: impl Fn(&mut Worker, u64, ()) + Copy + 'static,
) {
    let wait = work(worker).clients[client as usize]
        .rng
        .random_range(1..=ROOM_NANOS);
    worker.set_timer(Duration::from_nanos(wait), Cont::new(what, client));
}

fn came(worker: &mut Worker, client: u64, result: ReadResult) {
    let now = moment(worker);
    let index = client as usize;
    let Doing::Read { object, more } = work(worker).clients[index].doing else {
        return;
    };
    let slot = match result {
        Ok(slot) => slot,
        Err(ReadError::Busy) => return again_soon(worker, client, read),
        Err(ReadError::PeerLost(_)) => return end_all(worker),
        // It was locked for as long as anybody tries: of one that crashed, say.
        Err(ReadError::StaysLocked(_)) => return ended(worker, index),
        Err(error) => {
            work(worker)
                .log
                .violations
                .push(format!("object {object} cannot be read: {error}"));
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
            let violation = format!("object {object}, version {version}, lock-free: {torn}");
            work(worker).log.violations.push(violation);
            return ended(worker, index);
        }
    };
    let work = work(worker);
    let state = &work.clients[index];
    work.log.reads.push(Transaction {
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
    match churn::Named::by(work.spec.kind, object, &value) {
        Some(named) => churn::follow(worker, index, named),
        None => read_more(worker, index, more),
    }
}

/// The version and the payload of an image that was found consistent.
pub(super) fn image_of(words: &[u64], bytes: usize) -> (u64, Vec<u8>) {
    let image = Image::check(&words[..bytes / 8]).expect("lock-free reads bring consistent images");
    let mut payload = vec![0; image.payload_len()];
    image.copy_payload(0, &mut payload);
    (image.version().get(), payload)
}

/// Reads on, mostly objects near the last one, which the same transactions write.
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
    read(worker, index as u64, ());
}

/// Records what is under way and will not be answered.
pub(super) fn note_unanswered(worker: &mut Worker) {
    let work = work(worker);
    for client in &work.clients {
        if let Doing::Table(pending) = client.doing {
            work.log
                .operations
                .push(pending.unanswered(client.number, client.begun));
        }
        work.log.operations.extend(&client.unsure);
    }
}
