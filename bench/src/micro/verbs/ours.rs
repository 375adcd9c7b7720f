//! The measurements of this platform: two machines in this process, accessed by the same calls as in workers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farm_core::config::Config;
use farm_core::fabric::verbs::DevicePlace;
use farm_core::fabric::{FabricMachine, ReadKind, Remote, RemoteMemory, Token};
use farm_core::mem::{LINE_BYTES, Memory, WORD_BYTES};

use crate::micro::figures::Spread;
use crate::micro::host::Pin;
use crate::micro::initiator::{Initiator, check_connected};
use crate::micro::machines::{connect_both, ids, start_both};

/// Maximum number of operations in flight in measurements of rates, for this platform and for perftest.
pub(super) const OUTSTANDING: usize = 128;
/// Number of operations that are posted together in measurements of rates, which raises the rates of both.
pub(super) const BATCH: usize = 32;
/// Number of polls of the memory or of completions between two checks of the connection and of the time.
const LOOKS: u32 = 1 << 12;
/// Maximum duration of a wait for an operation.
const LONGEST: Duration = Duration::from_secs(10);
/// Number of places in each machine's memory. A place has room for the largest operation.
const PLACES: usize = 16;

/// The two machines. The measuring thread acts as the worker of the first machine.
pub(super) struct Ours {
    sides: [Side; 2],
    /// Core of the thread that acts as the worker of the second machine.
    answering: Option<u32>,
}

impl Ours {
    /// Connects the configuration's two machines, for operations of at most `most_bytes` bytes.
    pub(super) fn start(
        config: &Config,
        most_bytes: usize,
        answering: Option<u32>,
    ) -> Result<Self> {
        let mut machines = start_both(config)?;
        let place_bytes = most_bytes.next_multiple_of(LINE_BYTES);
        let export = |machine: &FabricMachine| {
            let exporter = machine.exporter();
            exporter.export(place_bytes * PLACES, true)
        };
        let (of_one, of_other) = (export(&machines[0])?, export(&machines[1])?);
        let offers: [&[_]; 2] = [&[of_one.1], &[of_other.1]];
        let [to_one, to_other] = connect_both(&mut machines, ids(config), offers)?;
        let side = |mut machine, memory, offer: &[_]| -> Result<Side> {
            let mut initiator = Initiator::new(&mut machine, place_bytes, OUTSTANDING)?;
            let theirs = offer
                .first()
                .context("the other machine did not offer its memory")?;
            Ok(Side {
                theirs: initiator.endpoint.import(theirs)?,
                initiator,
                memory,
                place_bytes,
                round: 0,
                machine,
            })
        };
        let [one, other] = machines;
        let sides = [
            side(one, of_one.0, &to_one)?,
            side(other, of_other.0, &to_other)?,
        ];
        Ok(Self { sides, answering })
    }

    /// Returns the devices of the two machines.
    pub(super) fn devices(&self) -> [DevicePlace; 2] {
        self.sides.each_ref().map(|side| match &side.machine {
            FabricMachine::Verbs(machine) => machine.device(),
            FabricMachine::Shm(_) => {
                unreachable!("the caller started machines on the fabric of RDMA devices")
            }
        })
    }

    /// Measures the median nanoseconds from the post of a read until its completion is polled.
    pub(super) fn read_latency(&mut self, bytes: usize, operations: usize) -> Result<f64> {
        let side = &mut self.sides[0];
        median_ns(operations, |index| {
            side.initiator.last_token = 0;
            let posted = side.post_read(bytes, index)?;
            ensure!(
                posted,
                "the endpoint rejected a read although none was outstanding"
            );
            side.initiator.endpoint.flush();
            side.await_end(1)
        })
    }

    /// Measures half of the median nanoseconds from a write until the answering write arrives.
    pub(super) fn write_latency(&mut self, bytes: usize, operations: usize) -> Result<f64> {
        let ([one, other], core) = (&mut self.sides, self.answering);
        std::thread::scope(|scope| {
            let answering = scope.spawn(move || {
                let _pin = Pin::to_any(core)?;
                other.ping_pong(false, bytes, operations)
            });
            let asked = one.ping_pong(true, bytes, operations);
            let answered = answering
                .join()
                .expect("the answering thread does not panic");
            // If this side failed, the other side timed out only for that reason. So this side's error is reported
            // first.
            let round_trip = asked?;
            answered?;
            Ok(round_trip / 2.0)
        })
    }

    /// Measures the reads per second.
    pub(super) fn read_rate(&mut self, bytes: usize, operations: usize) -> Result<f64> {
        self.sides[0].rate(operations, |side, index| side.post_read(bytes, index))
    }

    /// Measures the writes per second. Only the last write of each batch is signalled.
    pub(super) fn write_rate(&mut self, bytes: usize, operations: usize) -> Result<f64> {
        self.sides[0].rate(operations, |side, index| {
            let ends_batch = (index + 1).is_multiple_of(BATCH) || index + 1 == operations;
            side.post_write(bytes, index, ends_batch.then_some(token(index)))
        })
    }
}

/// Returns the token of operation `index`: the number of operations that have ended when this operation has ended.
fn token(index: usize) -> Token {
    Token(index as u64 + 1)
}

/// Repeats an operation. Returns its median latency in nanoseconds. As in perftest, the clock is read once per
/// operation.
fn median_ns(operations: usize, mut operation: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut latencies = Vec::with_capacity(operations);
    let mut before = Instant::now();
    for index in 0..operations {
        operation(index)?;
        let now = Instant::now();
        latencies.push((now - before).as_nanos() as f64);
        before = now;
    }
    Ok(Spread::of(latencies).median)
}

/// One machine with its worker's endpoint.
struct Side {
    // The initiator uses the machine's memory. It is declared before the machine, so that it is dropped first.
    initiator: Initiator,
    /// The peer's memory.
    theirs: RemoteMemory,
    /// Memory of this machine that the peer writes.
    memory: Memory,
    /// Bytes of a place in both memories.
    place_bytes: usize,
    /// Number of rounds of ping-pong that have begun, which is also the last word of the current round's writes.
    round: u64,
    machine: FabricMachine,
}

impl Side {
    fn place(&self, index: usize) -> Remote {
        Remote {
            memory: self.theirs,
            offset: (index % PLACES * self.place_bytes) as u64,
        }
    }

    fn post_read(&mut self, bytes: usize, index: usize) -> Result<bool> {
        let from = self.place(index);
        self.initiator
            .post_read(from, bytes, ReadKind::Raw, token(index))
    }

    fn post_write(&mut self, bytes: usize, index: usize, signal: Option<Token>) -> Result<bool> {
        let to = self.place(index);
        self.initiator.post_write(to, bytes, self.round, signal)
    }

    /// Polls until `count` operations have ended. A connection completes operations in the order in which they were
    /// posted. So when an operation completes, all earlier ones have ended, too.
    fn await_end(&mut self, count: usize) -> Result<()> {
        self.wait(|side| {
            side.initiator.poll(OUTSTANDING)?;
            Ok(side.initiator.last_token >= count as u64)
        })
    }

    /// Waits until the peer has written the number of the round.
    fn await_write(&mut self, at: usize) -> Result<()> {
        self.wait(|side| {
            std::hint::spin_loop();
            Ok(side.memory.load(at, Ordering::Acquire) == side.round)
        })
    }

    /// Waits until `is_so` returns true. Fails if the peer leaves, or after about [`LONGEST`].
    #[inline]
    fn wait(&mut self, is_so: impl Fn(&mut Self) -> Result<bool>) -> Result<()> {
        let (mut looks, mut until) = (0u32, None);
        while !is_so(self)? {
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                check_connected(&mut self.initiator.endpoint)?;
                let now = Instant::now();
                let until = *until.get_or_insert(now + LONGEST);
                ensure!(now < until, "no operation has completed for {LONGEST:?}");
            }
        }
        Ok(())
    }

    /// Measures the operations per second, posted in batches, with at most [`OUTSTANDING`] in flight.
    fn rate(
        &mut self,
        operations: usize,
        post: impl Fn(&mut Self, usize) -> Result<bool>,
    ) -> Result<f64> {
        let began = Instant::now();
        let mut posted = 0;
        self.initiator.last_token = 0;
        while posted < operations {
            let batch = (posted + BATCH).min(operations);
            self.await_end(batch.saturating_sub(OUTSTANDING))?;
            while posted < batch {
                match post(self, posted)? {
                    true => posted += 1,
                    false => drop(self.initiator.poll(OUTSTANDING)?),
                }
            }
            self.initiator.endpoint.flush();
        }
        self.await_end(operations)?;
        Ok(operations as f64 / began.elapsed().as_secs_f64())
    }

    /// In each round, writes and then waits for the other side's write; the side that does not begin waits first and
    /// then writes. Returns the median nanoseconds of a round.
    fn ping_pong(&mut self, begins: bool, bytes: usize, rounds: usize) -> Result<f64> {
        let last_word = bytes - WORD_BYTES;
        median_ns(rounds, |_| {
            self.round += 1;
            if !begins {
                self.await_write(last_word)?;
            }
            let posted = self.post_write(bytes, 0, None)?;
            ensure!(
                posted,
                "the endpoint rejected a write although none was outstanding"
            );
            self.initiator.endpoint.flush();
            self.initiator.poll(OUTSTANDING)?;
            match begins {
                true => self.await_write(last_word),
                false => Ok(()),
            }
        })
    }
}
