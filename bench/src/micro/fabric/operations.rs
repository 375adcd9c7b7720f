//! The measuring end: posts and polls, as a worker does.

use std::hint::black_box;
use std::time::Instant;

use farm_core::fabric::{
    ArenaConfig, Capability, Completion, Endpoint, FabricMachine, Read, ReadKind, Remote,
    RemoteMemory, Slot, Source, Token, Write,
};
use farm_core::mem::{LINE_BYTES, Memory, WORD_BYTES};
use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{FabricRow, FabricRun, Operations};
use crate::micro::host::core_rate_of;
use crate::micro::reads::{Access, Copying, Reader};
use crate::micro::{Latency, MicroError, Rate, WORKER, check_completion, histogram, record};

/// Outstanding operations that rates are measured at.
const FEW: usize = 32;
const MANY: usize = 256;
/// Completions taken by one poll, as a worker does.
const POLL: usize = 32;
/// Completions between two looks at the clock.
const CHUNK: u64 = 1024;
#[derive(Clone, Copy)]
enum Operation {
    Read(ReadKind),
    Write,
}

/// The measuring end.
pub(super) struct Bench {
    endpoint: Endpoint,
    readable: RemoteMemory,
    writable: RemoteMemory,
    memory_bytes: u64,
    rng: Xoshiro256PlusPlus,
    words: Vec<u64>,
    done: Vec<Completion>,
}

impl Bench {
    pub(super) fn new(
        reader: &mut FabricMachine,
        offer: &[Capability],
        memory_bytes: u64,
        most: usize,
    ) -> Result<Self, MicroError> {
        if most as u64 > memory_bytes {
            return Err(MicroError::bad(
                "bytes",
                format!("less than an operation of {most} bytes"),
            ));
        }
        let slots = MANY + FEW;
        let mut classes = vec![(512, slots)];
        classes.extend((most > 512).then_some((most.next_multiple_of(LINE_BYTES), slots)));
        let arena = ArenaConfig { classes };
        let mut endpoint = reader.endpoint(WORKER, &arena, slots)?;
        let [readable, writable] = offer else {
            return Err(MicroError::broken(
                "the owner did not offer its two memories",
            ));
        };
        Ok(Self {
            readable: endpoint.import(readable)?,
            writable: endpoint.import(writable)?,
            endpoint,
            memory_bytes,
            rng: Xoshiro256PlusPlus::seed_from_u64(1),
            words: vec![7; most / WORD_BYTES],
            done: Vec::with_capacity(slots),
        })
    }

    /// Touches every page of both memories, so that none is mapped in while the clock runs.
    pub(super) fn touch(&mut self) -> Result<(), MicroError> {
        for offset in (0..self.memory_bytes).step_by(4096) {
            self.post(Operation::Read(ReadKind::Raw), WORD_BYTES, offset)?;
            self.post(Operation::Write, WORD_BYTES, offset)?;
            self.complete(2)?;
        }
        Ok(())
    }

    pub(super) fn row(
        &mut self,
        run: &FabricRun,
        bytes: usize,
        memory: &Memory,
    ) -> Result<FabricRow, MicroError> {
        let objects = ReadKind::Objects {
            stride: bytes as u32,
        };
        let whole_lines = bytes.is_multiple_of(LINE_BYTES);
        let mut row = FabricRow {
            bytes,
            ..FabricRow::default()
        };
        row.read_raw = self.operations(run, bytes, Operation::Read(ReadKind::Raw))?;
        if whole_lines {
            row.read_object = Some(self.operations(run, bytes, Operation::Read(objects))?);
        }
        row.write = self.operations(run, bytes, Operation::Write)?;
        let memories = std::slice::from_ref(memory);
        let mut reader = Reader::new(memories, stride_of(bytes), bytes, FEW, 1)?;
        let mut of = |access| {
            let slices = (0..run.repeats).map(|_| reader.rate(access, Copying::Memcpy, run.slice));
            Rate::of(slices.collect())
        };
        row.memcpy_of_32 = of(Access::Batched(FEW));
        row.memcpy_one = of(Access::Dependent);
        Ok(row)
    }

    fn operations(
        &mut self,
        run: &FabricRun,
        bytes: usize,
        operation: Operation,
    ) -> Result<Operations, MicroError> {
        let mut latencies = histogram();
        let mut slices = [const { Vec::new() }; 3];
        for _ in 0..run.repeats {
            let until = Instant::now() + run.slice;
            let mut before = Instant::now();
            while before < until {
                self.one(operation, bytes)?;
                let now = Instant::now();
                record(&mut latencies, now - before);
                before = now;
            }
            for (outstanding, slices) in [1, FEW, MANY].into_iter().zip(&mut slices) {
                slices.push(core_rate_of(run.slice, || {
                    self.chunk(operation, bytes, outstanding)
                })?);
                self.complete(outstanding)?;
            }
        }
        let [one, of_32, of_256] = slices.map(Rate::of);
        Ok(Operations {
            latency: Latency::of(&latencies),
            one,
            of_32,
            of_256,
        })
    }

    #[inline]
    fn one(&mut self, operation: Operation, bytes: usize) -> Result<(), MicroError> {
        let offset = self.draw(bytes);
        self.post(operation, bytes, offset)?;
        self.complete(1).map(drop)
    }

    /// Keeps so many outstanding until a chunk of them is complete.
    #[inline(never)]
    fn chunk(
        &mut self,
        operation: Operation,
        bytes: usize,
        outstanding: usize,
    ) -> Result<u64, MicroError> {
        let mut complete = 0;
        while complete < CHUNK {
            while self.endpoint.outstanding() < outstanding {
                let offset = self.draw(bytes);
                self.post(operation, bytes, offset)?;
            }
            complete += self.complete(POLL)?;
        }
        Ok(complete)
    }

    #[inline]
    fn draw(&mut self, bytes: usize) -> u64 {
        let stride = stride_of(bytes) as u64;
        let places = (self.memory_bytes - bytes as u64) / stride + 1;
        ((u128::from(self.rng.next_u64()) * u128::from(places)) >> 64) as u64 * stride
    }

    #[inline]
    fn post(&mut self, operation: Operation, bytes: usize, offset: u64) -> Result<(), MicroError> {
        let token = Token(offset);
        let posted = match operation {
            Operation::Read(kind) => {
                let from = Remote {
                    memory: self.readable,
                    offset,
                };
                let slot = self.slot(bytes)?;
                let read = Read {
                    from,
                    bytes: bytes as u32,
                    kind,
                    fence: false,
                    token,
                };
                self.endpoint.post_read(read, slot)
            }
            Operation::Write => {
                let to = Remote {
                    memory: self.writable,
                    offset,
                };
                let write = Write {
                    to,
                    fence: false,
                    notify: None,
                    signal: Some(token),
                };
                if bytes <= self.endpoint.capabilities().max_inline_bytes {
                    let words = &self.words[..bytes / WORD_BYTES];
                    self.endpoint.post_write(write, Source::Inline(words))
                } else {
                    let slot = self.slot(bytes)?;
                    self.endpoint.post_write(
                        write,
                        Source::Slot {
                            slot,
                            bytes: bytes as u32,
                        },
                    )
                }
            }
        };
        posted.map_err(MicroError::broken)
    }

    #[inline]
    fn slot(&mut self, bytes: usize) -> Result<Slot, MicroError> {
        let taken = self.endpoint.arena().take(bytes);
        taken.ok_or_else(|| MicroError::broken("the arena has no slot left"))
    }

    /// Takes what a poll for so many gives, and tells how many it was.
    #[inline]
    fn complete(&mut self, most: usize) -> Result<u64, MicroError> {
        let count = self.endpoint.poll(most, &mut self.done);
        for completion in self.done.drain(..) {
            check_completion(completion.status)?;
            if let Some(slot) = completion.slot {
                let arena = self.endpoint.arena();
                black_box(arena.words(&slot));
                arena.give(slot);
            }
        }
        Ok(count as u64)
    }
}

/// Operations are at whole lines.
fn stride_of(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE_BYTES)
}
