//! The two machines of the bench, in this process: by the calls that workers make.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farm_core::config::Config;
use farm_core::fabric::verbs::DevicePlace;
use farm_core::fabric::{
    ArenaConfig, Capability, Completion, Endpoint, FabricMachine, Read, ReadKind, Rejected, Remote,
    RemoteMemory, Source, Token, Write,
};
use farm_core::ids::MachineId;
use farm_core::machine::fabric_config;
use farm_core::mem::{LINE_BYTES, Memory, WORD_BYTES};

use super::{BATCH, Measure, OUTSTANDING};
use crate::micro::host::Pin;
use crate::micro::{MicroError, Spread, WORKER, check_completion, check_connected, meet};

/// Looks at the memory between two looks at the peer and the clock, for who waits for a write.
const LOOKS: u32 = 1 << 12;
/// How long an operation may take.
const LONGEST: Duration = Duration::from_secs(10);
/// Bytes of each machine's memory, in units of the largest operation.
const PLACES: usize = 16;

/// The two machines. The measuring thread is the first's worker.
pub(super) struct Ours {
    sides: [Side; 2],
    /// Core of the other's worker.
    answering: Option<u32>,
}

impl Ours {
    /// Connects the configuration's two machines, for operations of at most so many bytes.
    pub(super) fn start(
        config: &Config,
        most_bytes: usize,
        answering: Option<u32>,
    ) -> Result<Self, MicroError> {
        let ids = [config.machines[0].id, config.machines[1].id];
        let bytes = most_bytes.next_multiple_of(LINE_BYTES);
        let start = |id: MachineId| -> Result<_, MicroError> {
            let machine = FabricMachine::start(fabric_config(config, id)?)?;
            let memory = machine.exporter().export(bytes * PLACES, true)?;
            Ok((machine, memory))
        };
        let ((one, of_one), (other, of_other)) = (start(ids[0])?, start(ids[1])?);
        let mut machines = [one, other];
        let offers = [of_one.1, of_other.1].map(|capability| vec![capability]);
        let [to_one, to_other] = meet(&mut machines, ids, offers)?;
        let [one, other] = machines;
        let sides = [
            Side::new(one, of_one.0, &to_one, bytes)?,
            Side::new(other, of_other.0, &to_other, bytes)?,
        ];
        Ok(Self { sides, answering })
    }

    /// The devices that they use.
    pub(super) fn devices(&self) -> [DevicePlace; 2] {
        [0, 1].map(|side| match &self.sides[side].machine {
            FabricMachine::Verbs(machine) => machine.device(),
            FabricMachine::Shm(_) => unreachable!("the configuration's fabric was set"),
        })
    }

    /// Nanoseconds, or operations a second.
    pub(super) fn measure(
        &mut self,
        measure: Measure,
        bytes: usize,
        operations: u32,
    ) -> Result<f64, MicroError> {
        let ([one, other], core) = (&mut self.sides, self.answering);
        match measure {
            Measure::ReadLatency => one.read_latency(bytes, operations),
            Measure::ReadRate => one.rate(operations, |side, index| side.post_read(bytes, index)),
            Measure::WriteRate => one.rate(operations, |side, index| {
                let last = index + 1 == operations as usize;
                side.post_write(bytes, index, (index + 1).is_multiple_of(BATCH) || last)
            }),
            Measure::WriteLatency => std::thread::scope(|scope| {
                let answering = scope.spawn(move || {
                    let _pin = core.map(Pin::to).transpose()?;
                    other.ping_pong(false, bytes, operations)
                });
                let asked = one.ping_pong(true, bytes, operations);
                let answered = answering.join().expect("answering does not panic");
                // Where asking failed, the other side has waited in vain.
                let round_trip = asked?;
                answered?;
                Ok(round_trip / 2.0)
            }),
        }
    }
}

/// One machine with its worker's endpoint.
struct Side {
    // Before the machine, so that nothing uses its memory when that goes.
    endpoint: Endpoint,
    /// The peer's memory.
    theirs: RemoteMemory,
    /// What the peer writes.
    memory: Memory,
    /// Bytes of a place in either memory.
    place_bytes: usize,
    /// What is written: its last word differs from write to write.
    words: Vec<u64>,
    done: Vec<Completion>,
    /// Of the operations posted, those whose end was told.
    ended: usize,
    machine: FabricMachine,
}

impl Side {
    fn new(
        mut machine: FabricMachine,
        memory: Memory,
        offer: &[Capability],
        place_bytes: usize,
    ) -> Result<Self, MicroError> {
        let classes = vec![(place_bytes, OUTSTANDING)];
        let mut endpoint = machine.endpoint(WORKER, &ArenaConfig { classes }, OUTSTANDING)?;
        let [offer] = offer else {
            return Err(MicroError::broken("the peer did not offer its memory"));
        };
        Ok(Self {
            theirs: endpoint.import(offer)?,
            endpoint,
            memory,
            place_bytes,
            words: vec![0; place_bytes / WORD_BYTES],
            done: Vec::with_capacity(OUTSTANDING),
            ended: 0,
            machine,
        })
    }

    /// Whether it was taken.
    fn post_read(&mut self, bytes: usize, index: usize) -> Result<bool, MicroError> {
        let Some(slot) = self.endpoint.arena().take(bytes) else {
            return Ok(false);
        };
        let read = Read {
            from: self.place(index),
            bytes: bytes as u32,
            kind: ReadKind::Raw,
            fence: false,
            token: Token(index as u64 + 1),
        };
        let posted = self.endpoint.post_read(read, slot);
        self.taken(posted)
    }

    /// Whether it was taken. The token of a signalled write tells how many have ended with it.
    fn post_write(
        &mut self,
        bytes: usize,
        index: usize,
        signalled: bool,
    ) -> Result<bool, MicroError> {
        let write = Write {
            to: self.place(index),
            fence: false,
            notify: None,
            signal: signalled.then_some(Token(index as u64 + 1)),
        };
        let words = &self.words[..bytes / WORD_BYTES];
        let posted = if bytes <= self.endpoint.capabilities().max_inline_bytes {
            self.endpoint.post_write(write, Source::Inline(words))
        } else {
            let Some(mut slot) = self.endpoint.arena().take(bytes) else {
                return Ok(false);
            };
            self.endpoint.arena().words_mut(&mut slot)[..words.len()].copy_from_slice(words);
            let bytes = bytes as u32;
            self.endpoint
                .post_write(write, Source::Slot { slot, bytes })
        };
        self.taken(posted)
    }

    fn place(&self, index: usize) -> Remote {
        Remote {
            memory: self.theirs,
            offset: (index % PLACES * self.place_bytes) as u64,
        }
    }

    fn taken(&mut self, posted: Result<(), Rejected>) -> Result<bool, MicroError> {
        match posted {
            Ok(()) => Ok(true),
            Err(Rejected::Full(slot)) => {
                slot.into_iter()
                    .for_each(|slot| self.endpoint.arena().give(slot));
                Ok(false)
            }
            Err(refused) => Err(MicroError::broken(refused)),
        }
    }

    /// Polls once. Connections keep the order of what is posted, so that the last end tells of all before.
    fn poll(&mut self) -> Result<(), MicroError> {
        self.endpoint.poll(OUTSTANDING, &mut self.done);
        for completion in self.done.drain(..) {
            check_completion(completion.status)?;
            self.ended = completion.token.0 as usize;
            if let Some(slot) = completion.slot {
                self.endpoint.arena().give(slot);
            }
        }
        Ok(())
    }

    /// Polls until so many of the operations have ended.
    fn await_end(&mut self, count: usize) -> Result<(), MicroError> {
        let mut patience = Patience::default();
        while self.ended < count {
            self.poll()?;
            patience.look(&mut self.endpoint)?;
        }
        Ok(())
    }

    /// Median. As in perftest, the clock is read once for each.
    fn read_latency(&mut self, bytes: usize, operations: u32) -> Result<f64, MicroError> {
        let mut latencies = Vec::with_capacity(operations as usize);
        let mut before = Instant::now();
        for index in 0..operations as usize {
            self.ended = 0;
            if !self.post_read(bytes, index)? {
                return Err(MicroError::broken("one read at a time was too many"));
            }
            self.endpoint.flush();
            self.await_end(1)?;
            let now = Instant::now();
            latencies.push((now - before).as_nanos() as f64);
            before = now;
        }
        Ok(Spread::of(latencies).median)
    }

    /// Operations a second, of so many, in batches, with at most [`OUTSTANDING`] on their way.
    fn rate(
        &mut self,
        operations: u32,
        post: impl Fn(&mut Self, usize) -> Result<bool, MicroError>,
    ) -> Result<f64, MicroError> {
        let operations = operations as usize;
        let began = Instant::now();
        let mut posted = 0;
        self.ended = 0;
        while posted < operations {
            let batch = (posted + BATCH).min(operations);
            self.await_end(batch.saturating_sub(OUTSTANDING))?;
            while posted < batch {
                match post(self, posted)? {
                    true => posted += 1,
                    false => self.poll()?,
                }
            }
            self.endpoint.flush();
        }
        self.await_end(operations)?;
        Ok(operations as f64 / began.elapsed().as_secs_f64())
    }

    /// Writes and waits for the other side's write, or the other way round. Median of the round trips.
    fn ping_pong(&mut self, begins: bool, bytes: usize, rounds: u32) -> Result<f64, MicroError> {
        let mut latencies = Vec::with_capacity(rounds as usize);
        let last = bytes / WORD_BYTES - 1;
        let mut round = self.words[last];
        let mut before = Instant::now();
        for _ in 0..rounds {
            round += 1;
            if !begins {
                self.await_write(last, round)?;
            }
            self.words[last] = round;
            if !self.post_write(bytes, 0, false)? {
                return Err(MicroError::broken("one write at a time was too many"));
            }
            self.endpoint.flush();
            self.poll()?;
            if begins {
                self.await_write(last, round)?;
            }
            let now = Instant::now();
            latencies.push((now - before).as_nanos() as f64);
            before = now;
        }
        Ok(Spread::of(latencies).median)
    }

    fn await_write(&mut self, last: usize, value: u64) -> Result<(), MicroError> {
        let mut patience = Patience::default();
        while self.memory.load(last * WORD_BYTES, Ordering::Acquire) != value {
            std::hint::spin_loop();
            patience.look(&mut self.endpoint)?;
        }
        Ok(())
    }
}

/// Waits, but not for a peer that has gone, nor for ever.
#[derive(Default)]
struct Patience {
    looks: u32,
    until: Option<Instant>,
}

impl Patience {
    #[inline]
    fn look(&mut self, endpoint: &mut Endpoint) -> Result<(), MicroError> {
        self.looks += 1;
        match self.looks.is_multiple_of(LOOKS) {
            true => self.look_closely(endpoint),
            false => Ok(()),
        }
    }

    #[cold]
    fn look_closely(&mut self, endpoint: &mut Endpoint) -> Result<(), MicroError> {
        check_connected(endpoint)?;
        let now = Instant::now();
        match now < *self.until.get_or_insert(now + LONGEST) {
            true => Ok(()),
            false => Err(MicroError::broken(format!(
                "nothing has come for {} s",
                LONGEST.as_secs()
            ))),
        }
    }
}
