//! Calls from one worker to a worker of another process, by the message layer over rings.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Result;
use farm_core::config::Config;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::machine::{Attach, Machine};
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::worker::{Cont, Worker};

use crate::closed_loop::{self, Clients, ClosedLoop, Extent, Ran, again};
use crate::micro::machines::{PATIENCE, WORKER, ids};
use crate::micro::measure::{Sample, Slice};
use crate::recorder::{Outcome, Recorder};

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
        let ran = self.call(slice, 1)?;
        Ok(Sample::Latencies(ran.recorder.latency_ns(0).clone()))
    }

    /// Measures the calls per second; the slice determines the number in flight.
    pub(in crate::micro) fn calls(&mut self, slice: Slice) -> Result<Sample> {
        let ran = self.call(slice, slice.in_flight)?;
        Ok(Sample::Rate(
            ran.recorder.executed() as f64 / ran.duration_s,
        ))
    }

    fn call(&self, slice: Slice, in_flight: usize) -> Result<Ran> {
        let to = self.to;
        let extent = Extent {
            in_flight,
            duration: Some(slice.duration),
            ..Extent::default()
        };
        let ran = self.machine.ask(0, move |worker, answer| {
            let body = vec![7; slice.bytes];
            let calls = Calls { to, body, answer };
            closed_loop::start(worker, calls, Recorder::new(1, 1), extent);
        })?;
        ran.unless_failed()
    }

    /// Stops the machine, which leaves the cluster.
    pub(in crate::micro) fn stop(self) -> Result<()> {
        Ok(self.machine.stop()?)
    }
}

/// The clients of a time slice, which call the other worker.
struct Calls {
    to: WorkerRef,
    body: Vec<u8>,
    answer: Sender<Ran>,
}

impl Clients for Calls {
    type Operation = ();
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<()> {
        Some(())
    }

    /// Begins a call, as soon as there is room.
    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let Calls { to, body, .. } = &own.clients;
        let cont = ReplyCont::new(answered, seat);
        match worker.call(*to, ECHO, &[body], body.len(), cont) {
            Ok(()) => {}
            Err(CallError::Busy) => worker.when_room(Cont::new(again::<Self>, seat)),
            Err(error) => own.stop(seat, error.to_string()),
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        // Fails if the bench has failed and dropped the receiver.
        _ = self.answer.send(ran);
    }
}

fn answered(worker: &mut Worker, seat: usize, reply: Result<&[u8], CallError>) {
    closed_loop::resume(worker, |own: &mut ClosedLoop<Calls>, worker| match reply {
        Ok(_) => own.finish(worker, seat, 0, Outcome::Committed),
        Err(error) => own.stop(seat, error.to_string()),
    });
}
