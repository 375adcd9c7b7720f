//! Clients of an engine with blocking calls: a thread for each, which performs one operation after the other.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use farm_core::time::Nanos;

use crate::closed_loop::{Ran, part_of};
use crate::counters::Counters;
use crate::recorder::{Outcome, Recorder};
use crate::report::MachineReport;
use crate::slices::Slicer;

/// A client, whose operations are of several kinds.
pub(super) trait Client: Send {
    /// An operation.
    type Operation;
    /// What the client counts itself.
    type Counters: Counters + Send;

    /// Returns its counters.
    fn counters(&mut self) -> &mut Self::Counters;

    /// Draws the next operation.
    fn draw(&mut self) -> Self::Operation;

    /// Performs an operation. Returns the index of its kind, and its outcome.
    fn perform(&mut self, operation: Self::Operation) -> anyhow::Result<(usize, Outcome)>;
}

/// How long and how much each client runs.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Number of clients, each with a thread of its own.
    pub threads: usize,
    /// Duration of the warm-up, whose operations do not count.
    pub warmup: Duration,
    /// Maximum duration of the counted part; `None` if it is not bounded.
    pub duration: Option<Duration>,
    /// Number of operations to count, of all clients together; `None` if it is not bounded.
    pub operations: Option<u64>,
    /// One operation in this many is timed.
    pub sampled_1_in: u32,
}

/// Returns the report of the threads of an engine, in the form of a machine's report.
pub(super) fn report<W>(workers: Vec<W>) -> MachineReport<W> {
    MachineReport {
        machine: "threads".to_owned(),
        load_s: 0.0,
        loaded: 0,
        tables: (),
        workers,
    }
}

/// Runs clients, and returns what they have done with the clients.
///
/// # Errors
/// The first failure of an operation.
pub(super) fn run<C: Client>(
    clients: Vec<C>,
    kinds: usize,
    extent: &Extent,
) -> anyhow::Result<Vec<(Ran<C::Counters>, C)>> {
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| scope.spawn(move || run_one(client, number, kinds, extent)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err(anyhow!("a client has panicked"))))
            .collect()
    })
}

fn run_one<C: Client>(
    mut client: C,
    number: usize,
    kinds: usize,
    extent: &Extent,
) -> anyhow::Result<(Ran<C::Counters>, C)> {
    let mut recorder = Recorder::new(kinds, extent.sampled_1_in);
    let begin = Instant::now();
    while begin.elapsed() < extent.warmup {
        let operation = client.draw();
        client.perform(operation)?;
    }
    *client.counters() = C::Counters::default();
    let counted = extent.operations.map(|all| {
        let part = part_of(all, number as u64, extent.threads as u64);
        part.end - part.start
    });
    let begin = Instant::now();
    let mut slicer = Slicer::new(extent.duration);
    slicer.start(Nanos(0));
    let mut now = Nanos(0);
    while extent
        .duration
        .is_none_or(|most| now < Nanos(0).after(most))
        && counted.is_none_or(|most| recorder.executed() < most)
    {
        let operation = client.draw();
        let began = recorder.sample().then(Instant::now);
        let (kind, outcome) = client.perform(operation)?;
        let latency = began.map(|began| began.elapsed().as_nanos() as u64);
        now = Nanos(begin.elapsed().as_nanos() as u64);
        if slicer.is_due(now) {
            slicer.advance(now, recorder.executed());
        }
        recorder.finish(kind, outcome, latency);
    }
    recorder.counters = *client.counters();
    let ran = Ran {
        slices: slicer.finish(now, recorder.executed()),
        duration_s: begin.elapsed().as_secs_f64(),
        recorder,
        failure: None,
    };
    Ok((ran, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(u64);

    impl Client for Counting {
        type Operation = u64;
        type Counters = u64;

        fn counters(&mut self) -> &mut u64 {
            &mut self.0
        }

        fn draw(&mut self) -> u64 {
            self.0 += 1;
            self.0
        }

        fn perform(&mut self, operation: u64) -> anyhow::Result<(usize, Outcome)> {
            anyhow::ensure!(operation < 1000, "operation {operation} fails");
            Ok(((operation % 2) as usize, Outcome::Committed))
        }
    }

    fn extent(operations: u64) -> Extent {
        Extent {
            threads: 2,
            warmup: Duration::ZERO,
            duration: None,
            operations: Some(operations),
            sampled_1_in: 4,
        }
    }

    #[test]
    fn each_thread_performs_its_share() {
        let ran = run(vec![Counting(0), Counting(0)], 2, &extent(800)).unwrap();
        for (ran, client) in &ran {
            assert_eq!((ran.recorder.executed(), client.0), (400, 400));
            assert_eq!(ran.recorder.counters, 400);
            assert_eq!(ran.recorder.executed_of(0), 200);
            assert_eq!(
                ran.recorder.latency_ns(0).len() + ran.recorder.latency_ns(1).len(),
                100
            );
        }
        let ran = run(vec![Counting(0), Counting(0)], 2, &extent(1)).unwrap();
        let counts: Vec<u64> = ran.iter().map(|(ran, _)| ran.recorder.executed()).collect();
        assert_eq!(counts.iter().sum::<u64>(), 1);
        let failed = run(vec![Counting(0), Counting(0)], 2, &extent(4000));
        assert_eq!(failed.err().unwrap().to_string(), "operation 1000 fails");
    }
}
