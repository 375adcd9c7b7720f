//! Calls from one worker to a worker of another process: the ring with all that stands on it.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::WorkerRef;
use farm_core::machine::{Attach, Machine};
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use hdrhistogram::Histogram;

use crate::micro::{MicroError, PATIENCE, Place, WORKER, histogram, machine_id, record};

const ECHO: MessageId = MessageId(MessageId::APPLICATION);

/// The configuration of both processes: they make it of the same parts, so that it is the same.
fn config(place: &Place, ring_bytes: u64, cores: Option<[u32; 2]>) -> Config {
    let mut config = Config::default_for(2, 1);
    config.cluster.name.clone_from(&place.cluster);
    config.cluster.run_dir = place.run_dir.clone().into();
    config.memory.dir.clone_from(&place.memory_dir);
    config.rings.ring_bytes = ring_bytes;
    config.rings.checksums = place.checksums;
    config.rings.max_message_bytes = ring_bytes / 16;
    config.worker.pin = cores.is_some();
    for (machine, core) in config.machines.iter_mut().zip(cores.into_iter().flatten()) {
        machine.cores = vec![core];
    }
    config
}

fn start(
    place: &Place,
    ring_bytes: u64,
    cores: Option<[u32; 2]>,
    number: u16,
) -> Result<Machine, MicroError> {
    let attach: Attach = Arc::new(|worker: &mut Worker| {
        worker.register(ECHO, |worker, request: Request, body| {
            worker.reply(request, &[body])
        });
    });
    let config = config(place, ring_bytes, cores);
    Ok(Machine::start(
        &config,
        machine_id(number),
        attach,
        PATIENCE,
    )?)
}

/// The other process: answers until the machine that asks leaves.
pub(in crate::micro) fn serve(
    place: &Place,
    ring_bytes: u64,
    cores: Option<[u32; 2]>,
) -> Result<(), MicroError> {
    Ok(start(place, ring_bytes, cores, 2)?.join()?)
}

/// The machine that asks.
pub(in crate::micro) struct Caller(Machine);

/// What a slice of calls came to.
pub(in crate::micro) struct Called {
    /// Calls a second.
    pub(in crate::micro) per_s: f64,
    /// From a call to its continuation.
    pub(in crate::micro) latencies: Histogram<u64>,
}

/// A slice that is under way.
struct Slice {
    to: WorkerRef,
    body: Vec<u8>,
    began: Nanos,
    until: Nanos,
    /// When each of the calls in flight was begun.
    sent: Vec<Nanos>,
    flying: usize,
    done: u64,
    latencies: Histogram<u64>,
    answer: Sender<Result<Called, CallError>>,
}

impl Caller {
    /// Starts the machine and meets the other one.
    pub(in crate::micro) fn start(
        place: &Place,
        ring_bytes: u64,
        cores: Option<[u32; 2]>,
    ) -> Result<Self, MicroError> {
        Ok(Self(start(place, ring_bytes, cores, 1)?))
    }

    /// Calls for a while, so many at a time.
    pub(in crate::micro) fn calls(
        &self,
        bytes: usize,
        in_flight: usize,
        slice: Duration,
    ) -> Result<Called, MicroError> {
        let called = self.0.ask(0, move |worker, answer| {
            let began = worker.clock().now();
            worker.put_layer(Box::new(Slice {
                to: WorkerRef::new(machine_id(2), WORKER),
                body: vec![7; bytes],
                began,
                until: began.after(slice),
                sent: vec![began; in_flight],
                flying: in_flight,
                done: 0,
                latencies: histogram(),
                answer,
            }));
            (0..in_flight as u64).for_each(|number| call(worker, number, ()));
        })?;
        called.map_err(MicroError::broken)
    }

    /// Leaves.
    pub(in crate::micro) fn stop(self) -> Result<(), MicroError> {
        Ok(self.0.stop()?)
    }
}

/// Begins call `number` again; when there is room, if there is none.
fn call(worker: &mut Worker, number: u64, (): ()) {
    let mut slice = worker.take_layer::<Slice>();
    slice.sent[number as usize] = worker.clock().now();
    let cont = ReplyCont::new(answered, number);
    let bytes = slice.body.len();
    match worker.call(slice.to, ECHO, &[&slice.body], bytes, cont) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(call, number)),
        Err(error) => fail(&slice, error),
    }
    worker.put_layer(slice);
}

fn answered(worker: &mut Worker, number: u64, reply: Result<&[u8], CallError>) {
    let now = worker.clock().now();
    let mut slice = worker.take_layer::<Slice>();
    match reply {
        Ok(_) => record(&mut slice.latencies, now.since(slice.sent[number as usize])),
        Err(error) => fail(&slice, error),
    }
    slice.done += 1;
    if now < slice.until {
        worker.put_layer(slice);
        return call(worker, number, ());
    }
    slice.flying -= 1;
    if slice.flying > 0 {
        return worker.put_layer(slice);
    }
    let per_s = slice.done as f64 / now.since(slice.began).as_secs_f64();
    let latencies = slice.latencies;
    // Whoever asked has given up if it does not hear this.
    let _ = slice.answer.send(Ok(Called { per_s, latencies }));
}

fn fail(slice: &Slice, error: CallError) {
    // As above.
    let _ = slice.answer.send(Err(error));
}
