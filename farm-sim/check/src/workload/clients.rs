//! The beginning and the end of clients and of their operations.

use std::time::Duration;

use farm_core::worker::{Cont, Worker};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::doing::{Client, Doing};
use super::state::{first_client, work};

/// Maximum number of times that a transaction is attempted again after conflicts.
pub(super) const MOST_ATTEMPTS: u8 = 60;
/// Longest pause before a transaction is attempted again, in nanoseconds for each attempt so far.
pub(super) const BACKOFF_NANOS: u64 = 2_000;
/// Pause before a worker repeats a request about objects or rows that another worker has not created yet.
pub(super) const ASK_AGAIN: Duration = Duration::from_micros(5);
/// Longest pause before an operation that found no room is tried again, in nanoseconds.
const ROOM_NANOS: u64 = 1_000;

/// Creates the clients, and begins the first operation of each.
pub(super) fn begin_all(worker: &mut Worker) {
    let first = first_client(worker);
    let work = work(worker);
    let spec = &work.spec;
    let client = |index: usize| {
        let number = first + index;
        Client {
            rng: Xoshiro256PlusPlus::seed_from_u64(spec.seed ^ (number as u64 + 1) << 20),
            number: number as u32,
            left: spec.operations,
            sequence: 0,
            begun: 0,
            doing: Doing::Nothing,
            guard: None,
            unsure: Vec::new(),
            unsure_cents: 0,
        }
    };
    work.clients = (0..spec.clients).map(client).collect();
    if work.clients.is_empty() {
        return call_done(worker);
    }
    for client in 0..work.clients.len() {
        worker.defer(Cont::new(next, client));
    }
}

/// Ends all clients of this worker, because the cluster ends.
pub(super) fn end_all(worker: &mut Worker) {
    for client in &mut work(worker).clients {
        client.left = 0;
    }
    work(worker).clients_left = 0;
    call_done(worker);
}

pub(super) fn call_done(worker: &mut Worker) {
    if let Some(done) = work(worker).done.take() {
        done(worker);
    }
}

/// Ends all clients, because the workload cannot be set up.
pub(super) fn give_up(worker: &mut Worker, why: String) {
    work(worker).gave_up = true;
    work(worker).log.violate(why);
    end_all(worker);
}

/// Begins a client's next operation, or ends the client.
fn next(worker: &mut Worker, client: usize, (): ()) {
    let next = work(worker)
        .next
        .expect("the clients of a worker run only after the workload was started");
    next(worker, client);
}

/// Ends a client's operation. The next operation begins at once.
pub(super) fn ended(worker: &mut Worker, client: usize) {
    let work = work(worker);
    work.progress.ended += 1;
    if let Some(guard) = work.clients[client].guard.take() {
        worker.unpin(guard);
    }
    next(worker, client, ());
}

/// Calls `what` again after a short random pause, because it found no room or its transaction met a conflict.
pub(super) fn again_soon(
    worker: &mut Worker,
    client: usize,
    what: impl Fn(&mut Worker, usize, ()) + Copy + Send + 'static,
) {
    let wait = work(worker).clients[client]
        .rng
        .random_range(1..=ROOM_NANOS);
    worker.set_timer(Duration::from_nanos(wait), Cont::new(what, client));
}

/// Records the key operations that are under way and will get no result, and what they add.
pub(super) fn note_unanswered(worker: &mut Worker) {
    let work = work(worker);
    for client in &work.clients {
        if let Doing::Table(pending) = client.doing {
            work.log
                .operations
                .push(pending.record_without_result(client.number, client.begun));
        }
        work.log.operations.extend(&client.unsure);
        work.log
            .unsure
            .extend((client.unsure_cents != 0).then_some(client.unsure_cents));
    }
}
