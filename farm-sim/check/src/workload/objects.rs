//! Creates this worker's objects, and requests the addresses of all other objects.

use farm_core::ids::{Address, WorkerRef};
use farm_core::messaging::{CallError, ReplyCont, Request};
use farm_core::worker::{Cont, Worker};
use farm_txn::TxError;
use rand::seq::SliceRandom;

use super::clients::{ASK_AGAIN, begin_all, end_all, give_up};
use super::message::{SETUP_FAILED, WHERE};
use super::spec::{BALANCE, Kind, Spec};
use super::state::{id, owner_place, owners, work};
use super::value::Value;

/// Number of addresses per request: as many as fit the smallest reply.
const AT_A_TIME: usize = 4;
const ADDRESS_BYTES: usize = 8;

/// Creates this worker's objects, and requests the addresses of all other objects.
pub(super) fn set_up(worker: &mut Worker) {
    let spec = work(worker).spec.clone();
    let me = worker.me();
    let owners = owners(worker);
    let is_first = work(worker).starts == 0;
    if let Some(machine) = owner_place(worker).filter(|_| is_first) {
        let (first, count) = (machine * spec.objects_per_machine, owners[machine].1);
        let is_mine = |local: &usize| local % count == me.worker.index();
        for local in (0..spec.objects_per_machine).filter(is_mine) {
            if let Err(error) = make(worker, first + local) {
                return not_made(worker, first + local, &error);
            }
        }
    }
    for (place, (machine, workers)) in owners.into_iter().enumerate() {
        let workers = 0..workers.min(spec.objects_per_machine);
        for index in workers.filter(|index| WorkerRef::new(machine, id(*index)) != me || !is_first)
        {
            ask(worker, place * spec.objects_per_machine + index, ());
        }
    }
}

/// Begins with objects that exist, and that no other worker may know.
pub(super) fn set_up_again(worker: &mut Worker, known: &[Address]) {
    for (object, address) in known.iter().enumerate() {
        found(worker, object, *address);
    }
}

/// Returns the initial data of an object.
fn initial(spec: &Spec, object: usize, machines: usize) -> [u64; 3] {
    match spec.kind {
        Kind::Cycle => {
            let (first, count) = spec.range_of(object, machines);
            [(first + (object - first + 1) % count) as u64, 0, 0]
        }
        Kind::Bank => [BALANCE, 0, 0],
        _ => [0; 3],
    }
}

/// Starts the transaction that creates an object. [`made`] is called when the transaction has ended.
fn make(worker: &mut Worker, object: usize) -> Result<(), TxError> {
    let machines = owners(worker).len();
    let spec = &work(worker).spec;
    let bytes = spec.payload();
    let value = Value {
        data: initial(spec, object, machines),
        ..Value::default()
    };
    let mut tx = farm_txn::checkout(worker);
    let new = match tx.alloc(worker, bytes, None) {
        Ok(new) => new,
        Err(error) => {
            farm_txn::checkin(worker, tx);
            return Err(error);
        }
    };
    value.write(tx.payload_mut(new));
    let key = work(worker).making.insert((object, tx.address(new)));
    farm_txn::commit(worker, tx, Cont::new(made, key));
    Ok(())
}

fn made(worker: &mut Worker, key: usize, outcome: Result<(), TxError>) {
    let (object, address) = work(worker).making.remove(key);
    match outcome {
        Ok(()) => found(worker, object, address),
        Err(error) => not_made(worker, object, &error),
    }
}

fn not_made(worker: &mut Worker, object: usize, error: &TxError) {
    give_up(worker, format!("cannot create object {object}: {error}"));
}

/// Returns the objects whose addresses one message requests: from `first` on, those of the same worker.
fn asked_for(worker: &mut Worker, first: usize) -> Vec<usize> {
    let per_machine = work(worker).spec.objects_per_machine;
    let machine = first / per_machine;
    let step = owners(worker)[machine].1;
    let end = (machine + 1) * per_machine;
    (first..end).step_by(step).take(AT_A_TIME).collect()
}

fn ask(worker: &mut Worker, first: usize, (): ()) {
    let machine = first / work(worker).spec.objects_per_machine;
    let local = first % work(worker).spec.objects_per_machine;
    let (me, mut owners) = (worker.me().machine, owners(worker));
    if work(worker).starts == 0 {
        owners = vec![owners[machine]];
    } else {
        // The owner may be lost, or its process may be a later one, which asks itself. So any machine is asked.
        owners.retain(|owner| owner.0 != me);
        owners.shuffle(worker.rng());
    }
    let most = AT_A_TIME * ADDRESS_BYTES;
    for (owner, workers) in owners {
        let to = WorkerRef::new(owner, id(local % workers));
        let cont = ReplyCont::new(addresses_received, first);
        return match worker.call(to, WHERE, &[&(first as u32).to_le_bytes()], most, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => worker.when_room(Cont::new(ask, first)),
            Err(CallError::PeerLost(_)) => continue,
            Err(error) => give_up(
                worker,
                format!("cannot request the addresses of objects from worker {to}: {error}"),
            ),
        };
    }
    end_all(worker);
}

/// Replies with the addresses of objects. The reply is empty while one of them has not been created yet, and
/// [`SETUP_FAILED`] if creating them failed.
pub(super) fn answer(worker: &mut Worker, request: Request, body: &[u8]) {
    let first = body.try_into().map(u32::from_le_bytes).ok();
    let known = first
        .map(|first| first as usize)
        .filter(|first| *first < work(worker).addresses.len());
    let objects = known
        .map(|first| asked_for(worker, first))
        .unwrap_or_default();
    let mut reply = Vec::with_capacity(AT_A_TIME * ADDRESS_BYTES);
    for object in objects {
        let address = work(worker).addresses[object];
        if address.is_null() {
            let gave_up = work(worker).gave_up;
            return worker.reply(request, if gave_up { &[SETUP_FAILED] } else { &[] });
        }
        reply.extend_from_slice(&address.to_bits().to_le_bytes());
    }
    worker.reply(request, &[&reply]);
}

fn addresses_received(worker: &mut Worker, first: usize, reply: Result<&[u8], CallError>) {
    let Ok(body) = reply else {
        return match work(worker).starts {
            0 => end_all(worker),
            _ => worker.set_timer(ASK_AGAIN, Cont::new(ask, first)),
        };
    };
    match body {
        [] => return worker.set_timer(ASK_AGAIN, Cont::new(ask, first)),
        SETUP_FAILED => return end_all(worker),
        _ => {}
    }
    let objects = asked_for(worker, first);
    for (object, bits) in objects.iter().zip(body.chunks_exact(ADDRESS_BYTES)) {
        let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
        match Address::from_bits(bits) {
            Some(address) => found(worker, *object, address),
            None => {
                return give_up(
                    worker,
                    format!(
                        "the reply to a request for addresses has an invalid address for object {object}"
                    ),
                );
            }
        }
    }
    // Requests the next objects of the same worker.
    let per_machine = work(worker).spec.objects_per_machine;
    let machine = first / per_machine;
    let next = first + objects.len() * owners(worker)[machine].1;
    if next < (machine + 1) * per_machine {
        ask(worker, next, ());
    }
}

fn found(worker: &mut Worker, object: usize, address: Address) {
    let work = work(worker);
    work.addresses[object] = address;
    work.missing -= 1;
    if work.missing == 0 {
        begin_all(worker);
    }
}
