//! Calls from one worker to a worker of another process, by the message layer over rings.

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

/// Runs the second machine of the configuration in the other process. It answers calls until the first machine leaves.
pub(in crate::micro) fn serve(config: &Config) -> Result<()> {
    Ok(start(config, ids(config)[1])?.join()?)
}

/// The machine that calls, and the worker that answers.
pub(in crate::micro) struct Caller {
    machine: Machine,
    to: WorkerRef,
}

/// The result of a slice of calls.
struct Called {
    per_s: f64,
    /// Latencies from a call to its continuation.
    latencies: Histogram<u64>,
}

/// State of a time slice in progress.
struct Calls {
    to: WorkerRef,
    body: Vec<u8>,
    began: Nanos,
    until: Nanos,
    /// Start of each call in flight.
    sent: Vec<Nanos>,
    flying: usize,
    done: u64,
    latencies: Histogram<u64>,
    answer: Sender<Result<Called, CallError>>,
}

impl Caller {
    /// Starts the first machine of the configuration, and connects it to the second one.
    pub(in crate::micro) fn start(config: &Config) -> Result<Self> {
        let [asking, answering] = ids(config);
        Ok(Self {
            machine: start(config, asking)?,
            to: WorkerRef::new(answering, WORKER),
        })
    }

    /// Measures the latency of calls, one at a time.
    pub(in crate::micro) fn round_trips(&mut self, slice: Slice) -> Result<Sample> {
        let slice = Slice {
            in_flight: 1,
            ..slice
        };
        Ok(Sample::Latencies(self.call(slice)?.latencies))
    }

    /// Measures the calls per second; the slice determines the number in flight.
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

    /// Stops the machine, which leaves the cluster.
    pub(in crate::micro) fn stop(self) -> Result<()> {
        Ok(self.machine.stop()?)
    }
}

/// Begins the next call in position `number` of the calls in flight, as soon as there is room.
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
    // Fails if the bench has failed and dropped the receiver.
    let _ = calls.answer.send(Ok(Called { per_s, latencies }));
}

fn fail(calls: &Calls, error: CallError) {
    // Fails if an earlier failure has ended the bench.
    let _ = calls.answer.send(Err(error));
}
