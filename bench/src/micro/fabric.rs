//! `farm bench fabric`: one-sided reads and writes against another machine's memory, beside what the
//! memory itself does at the same sizes.
//!
//! The other machine is in the same process: it has no part in one-sided operations, and so its own
//! mapping of the memory can be measured beside. The reading machine maps the memory by itself, as
//! it would from another process.

mod operations;

use std::fmt;
use std::time::Duration;

use farm_core::fabric::FabricMachine;
use farm_core::mem::{LINE_BYTES, WORD_BYTES};
use serde::{Deserialize, Serialize};

use super::host::{Conditions, Pin, Watch, allowed_cores};
use super::{Latency, MicroError, Place, Progress, Rate, limit, machine_id, meet, text};
use operations::Bench;

/// The machine that reads and writes, and the one whose memory it is.
const READER: u16 = 1;
const OWNER: u16 = 2;

/// What [`run`] measures.
#[derive(Clone, Debug)]
pub struct FabricRun {
    /// Where the machines meet.
    pub place: Place,
    /// Bytes of the memory that is read, and of that which is written.
    pub bytes: u64,
    /// Bytes of an operation.
    pub sizes: Vec<usize>,
    /// Core to measure on; `None` takes the last that this process may use.
    pub core: Option<u32>,
    /// Slices of each measurement.
    pub repeats: usize,
    /// Time of one slice.
    pub slice: Duration,
}

impl FabricRun {
    /// Operations of 16 B to 4 KiB on 1 GiB.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            bytes: 1 << 30,
            sizes: (4..=12).map(|shift| 1 << shift).collect(),
            core: None,
            repeats: 7,
            slice: Duration::from_millis(40),
        }
    }

    fn check(&self) -> Result<(), MicroError> {
        let fits =
            |bytes: &usize| *bytes > 0 && bytes.is_multiple_of(WORD_BYTES) && *bytes <= 1 << 20;
        match () {
            () if !self.sizes.iter().all(fits) => {
                let why = format!("multiples of {WORD_BYTES} from {WORD_BYTES} bytes to 1 MiB");
                Err(MicroError::bad("sizes", why))
            }
            () if self.repeats == 0 => Err(MicroError::bad("repeats", "at least one is needed")),
            () if !self.bytes.is_multiple_of(LINE_BYTES as u64) => Err(MicroError::bad(
                "bytes",
                format!("a multiple of {LINE_BYTES}"),
            )),
            () => Ok(()),
        }
    }
}

/// Operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Operations {
    /// From the post to the completion, one at a time.
    pub latency: Latency,
    /// Operations a second, one at a time.
    pub one: Rate,
    /// With 32 outstanding.
    pub of_32: Rate,
    /// With 256 outstanding.
    pub of_256: Rate,
}

/// Operations of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricRow {
    /// Bytes of an operation.
    pub bytes: usize,
    /// Reads whose words are whole.
    pub read_raw: Operations,
    /// Reads of one object; only of whole lines.
    pub read_object: Option<Operations>,
    /// Writes, each signalled.
    pub write: Operations,
    /// `memcpy` of as many bytes from the same memory, prefetched in batches of 32: the limit of the
    /// rates of reads.
    pub memcpy_of_32: Rate,
    /// `memcpy` that waits for the one before: what the latency of reads is held against.
    pub memcpy_one: Rate,
}

/// What [`run`] found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricReport {
    /// What it was measured on.
    pub conditions: Conditions,
    /// Bytes of the memory that is read, and of that which is written.
    pub memory_bytes: u64,
    /// A row for each size.
    pub rows: Vec<FabricRow>,
}

/// Measures one-sided operations at every size.
///
/// # Errors
/// [`MicroError`]: no space, or sizes that the fabric does not take.
pub fn run(run: &FabricRun, progress: Progress<'_>) -> Result<FabricReport, MicroError> {
    run.check()?;
    let FabricRun {
        place,
        bytes,
        repeats,
        slice,
        ..
    } = run;
    let core = run.core.or_else(|| allowed_cores().last().copied());
    let mut conditions =
        Conditions::before(&place.memory_dir, place.page_bytes()?, *repeats, *slice);
    conditions.pinned.extend(core);
    let _pin = core.map(Pin::to).transpose()?;
    let watch = Watch::begin();
    progress(&format!(
        "making and filling two memories of {}",
        text::bytes(*bytes)
    ));
    let owner = place.machine(OWNER)?;
    let readable = owner.export(*bytes as usize, false)?;
    let writable = owner.export(*bytes as usize, true)?;
    limit::fill(&readable.0);
    limit::fill(&writable.0);
    let memory = readable.0.clone();
    let mut machines = [place.machine(READER)?, owner].map(FabricMachine::Shm);
    let ids = [READER, OWNER].map(machine_id);
    let offers = [vec![], vec![readable.1, writable.1]];
    let [offer, _] = meet(&mut machines, ids, offers)?;
    let [mut reader, owner] = machines;
    let most = run.sizes.iter().copied().max().unwrap_or(0);
    let mut bench = Bench::new(&mut reader, &offer, *bytes, most)?;
    bench.touch()?;
    let mut rows = Vec::with_capacity(run.sizes.len());
    for size in &run.sizes {
        progress(&format!(
            "one-sided operations of {}",
            text::bytes(*size as u64)
        ));
        rows.push(bench.row(run, *size, &memory)?);
    }
    drop(bench);
    drop((reader, owner));
    watch.end(&mut conditions);
    Ok(FabricReport {
        conditions,
        memory_bytes: *bytes,
        rows,
    })
}

impl fmt::Display for FabricReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = text::bytes(self.memory_bytes);
        writeln!(
            out,
            "fabric: one-sided operations at random places of {memory} of another machine"
        )?;
        write!(out, "{}", self.conditions)?;
        writeln!(out, "\n  one at a time, ns: median / 99th percentile")?;
        let columns = ["bytes", "read raw", "read object", "write", "memcpy"];
        write_row(out, columns.map(String::from))?;
        for row in &self.rows {
            let of = |it: &Operations| format!("{} / {}", it.latency.p50_ns, it.latency.p99_ns);
            let object = row.read_object.as_ref().map_or("-".into(), of);
            let memcpy = format!("{:.0}", 1e9 / row.memcpy_one.per_s);
            write_row(
                out,
                [
                    row.bytes.to_string(),
                    of(&row.read_raw),
                    object,
                    of(&row.write),
                    memcpy,
                ],
            )?;
        }
        writeln!(
            out,
            "\n  rates, million/s: 32 / 256 outstanding; memcpy: batches of 32"
        )?;
        write_row(out, columns.map(String::from))?;
        for row in &self.rows {
            let of = |it: &Operations| {
                format!(
                    "{} / {}",
                    text::millions(it.of_32.per_s),
                    text::millions(it.of_256.per_s)
                )
            };
            let object = row.read_object.as_ref().map_or("-".into(), of);
            let memcpy = text::millions(row.memcpy_of_32.per_s);
            write_row(
                out,
                [
                    row.bytes.to_string(),
                    of(&row.read_raw),
                    object,
                    of(&row.write),
                    memcpy,
                ],
            )?;
        }
        Ok(())
    }
}

fn write_row(out: &mut fmt::Formatter<'_>, [first, rest @ ..]: [String; 5]) -> fmt::Result {
    write!(out, "  {first:>6}")?;
    rest.iter()
        .try_for_each(|cell| write!(out, " {cell:>16}"))?;
    writeln!(out)
}
