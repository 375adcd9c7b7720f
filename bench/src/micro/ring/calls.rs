//! Calls from one worker to a worker of another process: the ring, and the message layer above it.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Result;
use farm_core::config::Config;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::machine::{Attach, Machine};
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use hdrhistogram::Histogram;

use crate::micro::figures::{histogram, record};
use crate::micro::machines::{PATIENCE, WORKER, ids};
use crate::micro::measure::{Sample, Slice};

const ECHO: MessageId = MessageId(MessageId::APPLICATION);

fn start(config: &Config, machine: MachineId) -> Result<Machine> {
    let attach: Attach = Arc::new(|worker: &mut Worker| {
        worker.register(ECHO, |worker, request: Request, body| {
            worker.reply(request, &[body])
        });
    });
    Ok(Machine::start(config, machine, attach, PATIENCE)?)
}

/// The other process: the second machine of the configuration. Answers until the first one leaves.
pub(in crate::micro) fn serve(config: &Config) -> Result<()> {
    Ok(start(config, ids(config)[1])?.join()?)
}

/// The machine that asks.
pub(in crate::micro) struct Caller {
    machine: Machine,
    to: WorkerRef,
}

/// The result of a slice of calls.
struct Called {
    per_s: f64,
    /// From a call to its continuation.
    latencies: Histogram<u64>,
}

/// A slice that is under way.
struct Calls {
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
    /// Starts the first machine of the configuration, and meets the other one.
    pub(in crate::micro) fn start(config: &Config) -> Result<Self> {
        let [asking, answering] = ids(config);
        Ok(Self {
            machine: start(config, asking)?,
            to: WorkerRef::new(answering, WORKER),
        })
    }

    /// Calls one at a time.
    pub(in crate::micro) fn round_trips(&mut self, slice: Slice) -> Result<Sample> {
        let slice = Slice {
            in_flight: 1,
            ..slice
        };
        Ok(Sample::Latencies(self.call(slice)?.latencies))
    }

    /// Makes calls; the slice determines the number in flight.
    pub(in crate::micro) fn calls(&mut self, slice: Slice) -> Result<Sample> {
        Ok(Sample::Rate(self.call(slice)?.per_s))
    }

    fn call(&self, slice: Slice) -> Result<Called> {
        let to = self.to;
        let called = self.machine.ask(0, move |worker, answer| {
            let began = worker.clock().now();
            worker.put_layer(Box::new(Calls {
                to,
                body: vec![7; slice.bytes],
                began,
                until: began.after(slice.duration),
                sent: vec![began; slice.in_flight],
                flying: slice.in_flight,
                done: 0,
                latencies: histogram(),
                answer,
            }));
            (0..slice.in_flight as u64).for_each(|number| call(worker, number, ()));
        })?;
        Ok(called?)
    }

    /// Leaves.
    pub(in crate::micro) fn stop(self) -> Result<()> {
        Ok(self.machine.stop()?)
    }
}

/// Begins call `number` again, as soon as there is room.
fn call(worker: &mut Worker, number: u64, (): ()) {
    let mut calls = worker.take_layer::<Calls>();
    calls.sent[number as usize] = worker.clock().now();
    let cont = ReplyCont::new(answered, number);
    let bytes = calls.body.len();
    match worker.call(calls.to, ECHO, &[&calls.body], bytes, cont) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(call, number)),
        Err(error) => fail(&calls, error),
    }
    worker.put_layer(calls);
}

fn answered(worker: &mut Worker, number: u64, reply: Result<&[u8], CallError>) {
    let now = worker.clock().now();
    let mut calls = worker.take_layer::<Calls>();
    match reply {
        Ok(_) => record(&mut calls.latencies, now.since(calls.sent[number as usize])),
        Err(error) => fail(&calls, error),
    }
    calls.done += 1;
    if now < calls.until {
        worker.put_layer(calls);
        return call(worker, number, ());
    }
    calls.flying -= 1;
    if calls.flying > 0 {
        return worker.put_layer(calls);
    }
    let per_s = calls.done as f64 / now.since(calls.began).as_secs_f64();
    let latencies = calls.latencies;
    // The receiver is gone if the bench has failed.
    let _ = calls.answer.send(Ok(Called { per_s, latencies }));
}

fn fail(calls: &Calls, error: CallError) {
    // As above.
    let _ = calls.answer.send(Err(error));
}
