//! `farm bench fabric`: one-sided reads and writes of another machine's memory, compared with
//! plain copies of the same memory at the same sizes.
//!
//! Both machines are in the same process. The other machine is passive in one-sided operations, so that its own mapping
//! of the memory can be used for the plain copies. The reading machine has a separate mapping of the memory, as it
//! would have in another process.
//!
//! | key of a row | |
//! |---|---|
//! | `read_raw` | reads that are atomic per word only |
//! | `read_object` | reads of one object; `null` for sizes that are not whole lines |
//! | `write` | writes, each signalled |
//! | `….latency` | from the post to the completion, one at a time |
//! | `….one`, `….of_32`, `….of_256` | operations per second with 1, 32 and 256 outstanding |
//! | `memcpy_of_32` | `memcpy` of as many bytes from the same memory, prefetched in batches of 32: the limit of the rates of reads |
//! | `memcpy_one` | `memcpy`, each of which begins after the previous one has ended: the limit of the latency of reads |

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use farm_core::config::host::cores_allowed;
use farm_core::config::rounded_size;
use farm_core::fabric::{Capability, FabricMachine, ReadKind, Remote, RemoteMemory, Token};
use farm_core::mem::{LINE_BYTES, Memory, WORD_BYTES};
use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::json;

use super::host::{Pin, Watch, core_rate_of};
use super::initiator::Initiator;
use super::machines::{MicroRun, check_sizes, connect_both, ids, start_both};
use super::measure::{Measurement, Progress, Sample, in_turns, latencies};
use super::reads::{Access, Copying, Reader};
use super::report::{Cell, MicroReport, Row};

/// Maximum number of bytes of an operation.
const MOST_BYTES: usize = 1 << 20;
/// Number of outstanding operations in the second of the three rates, and of reads in a batch of `memcpy`.
const FEW: usize = 32;
/// Number of outstanding operations in the third of the three rates.
const MANY: usize = 256;
/// Maximum number of completions that one poll returns.
const POLL: usize = 32;
/// Number of completions between two readings of the clock.
const CHUNK: u64 = 1024;

/// Measures one-sided operations at every size, on two memories of `memory_bytes` bytes each. Uses one core.
///
/// # Errors
/// If there is no space for the memories, or if a size is not valid.
pub fn run(run: &MicroRun, memory_bytes: u64, progress: Progress<'_>) -> Result<MicroReport> {
    check_sizes(&run.sizes, WORD_BYTES, MOST_BYTES)?;
    let most_bytes = run.sizes.iter().copied().max().unwrap_or(0);
    ensure!(
        memory_bytes.is_multiple_of(LINE_BYTES as u64) && memory_bytes >= most_bytes as u64,
        "bytes: a memory of {memory_bytes} bytes is not a multiple of {LINE_BYTES} bytes, or is smaller than the \
         largest operation of {most_bytes} bytes"
    );
    let core = run.cores.first().copied();
    let core = core.or_else(|| cores_allowed().last().copied());
    let mut conditions = run.conditions()?;
    conditions.pinned.extend(core);
    let _pin = Pin::to_any(core)?;
    let watch = Watch::begin();
    let memory_text = rounded_size(memory_bytes);
    progress(&format!(
        "creating and filling two memories of {memory_text}"
    ));
    let config = run.machines();
    // The first machine reads and writes; the second one owns the memories.
    let mut machines = start_both(&config)?;
    let exporter = machines[1].exporter();
    let readable = exporter.export(memory_bytes as usize, false)?;
    let writable = exporter.export(memory_bytes as usize, true)?;
    fill(&readable.0);
    fill(&writable.0);
    let offers: [&[_]; 2] = [&[], &[readable.1, writable.1]];
    let [offer, _] = connect_both(&mut machines, ids(&config), offers)?;
    let mut bench = Bench::new(&mut machines[0], &offer, memory_bytes, most_bytes)?;
    bench.touch()?;
    let mut rows = Vec::with_capacity(run.sizes.len());
    for bytes in &run.sizes {
        let size = rounded_size(*bytes as u64);
        progress(&format!("one-sided operations of {size}"));
        rows.push(row(run, *bytes, &mut bench, &readable.0)?);
    }
    // The endpoint must be dropped before its machine.
    drop(bench);
    drop(machines);
    watch.end(&mut conditions);
    Ok(MicroReport {
        what: "fabric",
        heading: format!(
            "fabric: one-sided operations at random places of {memory_text} of another machine\n{conditions}"
        ),
        setup: json!({ "conditions": conditions, "memory_bytes": memory_bytes }),
        rows,
    })
}

/// Writes every word, so that all pages are allocated.
fn fill(memory: &Memory) {
    const WORDS: usize = 4096;
    let mut block: Vec<u64> = (0..WORDS as u64)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let mut at = 0;
    while memory.len() - at >= 8 {
        let words = WORDS.min((memory.len() - at) / 8);
        block[0] = at as u64;
        memory.write_words(at, &block[..words]);
        at += words * 8;
    }
}

/// Measures all operations of one size.
fn row(run: &MicroRun, bytes: usize, bench: &mut Bench, memory: &Memory) -> Result<Row> {
    let mut row = Row::new(bytes);
    let stride = bytes.next_multiple_of(LINE_BYTES);
    let memories = std::slice::from_ref(memory);
    let mut reader = Reader::new(memories, stride, bytes, FEW, 1)?;
    let whole_lines = bytes.is_multiple_of(LINE_BYTES);
    if !whole_lines {
        row.cells.push(Cell::value("read_object", ()));
    }
    let object = ReadKind::Objects {
        stride: bytes as u32,
    };
    let groups = [
        Some(operation(
            "read_raw",
            "read raw",
            Operation::Read(ReadKind::Raw),
        )),
        whole_lines.then(|| operation("read_object", "read object", Operation::Read(object))),
        Some(operation("write", "write", Operation::Write)),
        Some(memcpys()),
    ];
    for measurements in groups.into_iter().flatten() {
        let samples = in_turns(&measurements, run.repeats, |measurement| {
            bench.slice(measurement.operation, bytes, run.slice, &mut reader)
        })?;
        row.add(&measurements, samples);
    }
    Ok(row)
}

/// Returns the measurements of one operation. Their slices alternate only with each other, because writes are slower
/// after slices of reads or of `memcpy`.
fn operation(key: &str, name: &str, operation: Operation) -> Vec<Measurement<Measured>> {
    let latency = Measured::Latency(operation);
    let mut all = vec![Measurement::new(format!("{key}.latency"), name, latency)];
    for (of, outstanding) in [("one", 1), ("of_32", FEW), ("of_256", MANY)] {
        let measured = Measured::Rate(operation, outstanding);
        let name = format!("{name}s/s, {outstanding} outstanding");
        all.push(Measurement::new(format!("{key}.{of}"), name, measured));
    }
    all
}

fn memcpys() -> Vec<Measurement<Measured>> {
    let [few, one] = [Access::Batched(FEW), Access::Dependent].map(Measured::Memcpy);
    vec![
        Measurement::new("memcpy_of_32", "memcpys/s, batches of 32", few),
        Measurement::new("memcpy_one", "memcpys/s, one at a time", one),
    ]
}

/// A one-sided operation.
#[derive(Clone, Copy)]
enum Operation {
    Read(ReadKind),
    Write,
}

/// What a slice measures.
#[derive(Clone, Copy)]
enum Measured {
    /// Latency, with one operation in flight.
    Latency(Operation),
    /// Operations per second of the core, with this many in flight.
    Rate(Operation, usize),
    /// `memcpy` of the same memory.
    Memcpy(Access),
}

/// The endpoint of the measuring machine, and the memories of the other machine.
struct Bench {
    initiator: Initiator,
    readable: RemoteMemory,
    writable: RemoteMemory,
    memory_bytes: u64,
    rng: Xoshiro256PlusPlus,
}

impl Bench {
    fn new(
        reader: &mut FabricMachine,
        offer: &[Capability],
        memory_bytes: u64,
        most_bytes: usize,
    ) -> Result<Self> {
        let [readable, writable] = offer else {
            bail!(
                "the other machine must offer two memories, to read and to write, but offers {}",
                offer.len()
            );
        };
        let mut initiator = Initiator::new(reader, most_bytes, MANY + POLL)?;
        Ok(Self {
            readable: initiator.endpoint.import(readable)?,
            writable: initiator.endpoint.import(writable)?,
            initiator,
            memory_bytes,
            rng: Xoshiro256PlusPlus::seed_from_u64(1),
        })
    }

    /// Accesses every page of both memories, so that no page is mapped while the clock runs.
    fn touch(&mut self) -> Result<()> {
        for offset in (0..self.memory_bytes).step_by(4096) {
            self.post(Operation::Read(ReadKind::Raw), WORD_BYTES, offset)?;
            self.post(Operation::Write, WORD_BYTES, offset)?;
            self.initiator.poll(2)?;
        }
        Ok(())
    }

    /// Measures one slice.
    fn slice(
        &mut self,
        measured: Measured,
        bytes: usize,
        duration: Duration,
        reader: &mut Reader<'_>,
    ) -> Result<Sample> {
        match measured {
            Measured::Latency(operation) => latencies(duration, || self.one(operation, bytes)),
            Measured::Rate(operation, outstanding) => {
                let rate = core_rate_of(duration, || self.chunk(operation, bytes, outstanding))?;
                self.initiator.poll(outstanding)?;
                Ok(Sample::Rate(rate))
            }
            Measured::Memcpy(access) => {
                Ok(Sample::Rate(reader.rate(access, Copying::Memcpy, duration)))
            }
        }
    }

    #[inline]
    fn one(&mut self, operation: Operation, bytes: usize) -> Result<()> {
        let offset = self.draw(bytes);
        self.post(operation, bytes, offset)?;
        self.initiator.poll(1).map(drop)
    }

    /// Keeps `outstanding` operations in flight until a chunk of them is complete.
    #[inline(never)]
    fn chunk(&mut self, operation: Operation, bytes: usize, outstanding: usize) -> Result<u64> {
        let mut complete = 0;
        while complete < CHUNK {
            while self.initiator.endpoint.outstanding() < outstanding {
                let offset = self.draw(bytes);
                self.post(operation, bytes, offset)?;
            }
            complete += self.initiator.poll(POLL)?;
        }
        Ok(complete)
    }

    /// Draws the offset of an operation: a multiple of its size, rounded up to whole lines.
    #[inline]
    fn draw(&mut self, bytes: usize) -> u64 {
        let stride = bytes.next_multiple_of(LINE_BYTES) as u64;
        let places = (self.memory_bytes - bytes as u64) / stride + 1;
        ((u128::from(self.rng.next_u64()) * u128::from(places)) >> 64) as u64 * stride
    }

    #[inline]
    fn post(&mut self, operation: Operation, bytes: usize, offset: u64) -> Result<()> {
        let token = Token(offset);
        let at = |memory| Remote { memory, offset };
        let taken = match operation {
            Operation::Read(kind) => {
                let from = at(self.readable);
                self.initiator.post_read(from, bytes, kind, token)?
            }
            Operation::Write => {
                let to = at(self.writable);
                self.initiator.post_write(to, bytes, 7, Some(token))?
            }
        };
        ensure!(
            taken,
            "the endpoint did not accept an operation: its queue is full, or its arena has no free slot"
        );
        Ok(())
    }
}
