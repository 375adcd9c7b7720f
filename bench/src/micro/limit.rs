//! `farm bench limit`: the number of random reads of mapped memory that one core can perform per second, regardless of
//! the software above. This number bounds the rate of one worker's lookups, because a lookup is such a read.
//!
//! [`raw_limit`] measures any memory, for example the regions that lookups read. It does not write to the memory.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use farm_core::mem::{LINE_BYTES, LineLoads, Memory};
use serde::Serialize;

use super::figures::Rate;
use super::host::Pin;
use super::measure::in_turns;
use super::reads::{Access, Copying, Reader};
use crate::text;

/// Numbers of reads that are prefetched and then copied as a batch, or that a sliding window prefetches ahead.
const AHEAD: [usize; 4] = [8, 16, 32, 64];
/// Seed of the random places of reads.
const SEED: u64 = 1;

/// How [`raw_limit`] measures.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// Number of time slices of each variant.
    pub repeats: usize,
    /// Time of one slice.
    pub slice: Duration,
    /// Core to which the measuring thread is pinned; `None` does not pin it.
    pub core: Option<u32>,
}

/// The rate of reads of one variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadRate {
    /// How reads copy: `memcpy`; `words`, `sse`, `avx` or `avx512` for such loads without a check; or `checked` and the
    /// name of the loads, for copies with the check of reads of objects.
    pub variant: String,
    /// How reads follow each other: `batch`, `window` or `dependent`.
    pub access: String,
    /// Number of reads in a batch, or that are prefetched ahead; 1 if each read depends on the previous one.
    pub batch: usize,
    /// Reads per second of the core, in the median slice. Time in which other threads had the core does not count. So
    /// on a busy host this rate is higher than the rate by wall-clock time, never lower.
    pub reads_per_s: f64,
    /// Reads per second in the slowest slice.
    pub least: f64,
    /// Reads per second in the fastest slice.
    pub most: f64,
    /// Gigabytes (10⁹ bytes) per second.
    pub gb_per_s: f64,
    /// Nanoseconds per read.
    pub ns_per_read: f64,
}

impl ReadRate {
    fn of(access: Access, copying: Copying, slices: Vec<f64>, bytes: usize) -> Self {
        let rate = Rate::of(slices);
        let (name, batch) = match access {
            Access::Batched(batch) => ("batch", batch),
            Access::Window(ahead) => ("window", ahead),
            Access::Dependent => ("dependent", 1),
        };
        Self {
            variant: copying.name(),
            access: name.into(),
            batch,
            reads_per_s: rate.per_s,
            least: rate.least,
            most: rate.most,
            gb_per_s: rate.gb_per_s(bytes),
            ns_per_read: 1e9 / rate.per_s,
        }
    }
}

/// The limit of reads of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RawLimit {
    /// Bytes of the memories from which the reads copy.
    pub memory_bytes: u64,
    /// Bytes between possible places of reads; also the size of an object in checked copies.
    pub stride: usize,
    /// Bytes of a read.
    pub bytes_per_read: usize,
    /// Rates of all variants.
    pub rates: Vec<ReadRate>,
    /// Best rate in batches without a check.
    pub best_batched: ReadRate,
    /// Best rate of independent reads without a check: the limit.
    pub best: ReadRate,
    /// Best rate with a check; `None` if the reads are not whole lines, because checked copies require whole lines.
    pub best_checked: Option<ReadRate>,
    /// Rate of reads that each depend on the previous one: its `ns_per_read` is the full latency of a read.
    pub dependent: ReadRate,
}

impl RawLimit {
    /// Returns the rate of the fastest reads without a check, in batches or not, per second.
    pub fn fastest(&self) -> f64 {
        self.best_batched.reads_per_s.max(self.best.reads_per_s)
    }
}

/// Measures random reads of `bytes_per_read` bytes at multiples of `stride` in these memories, uniformly distributed
/// over their bytes. The memories must not be written meanwhile, because checked copies could be torn.
///
/// # Errors
/// If a size is not valid, or if the thread cannot be pinned to the core.
///
/// # Panics
/// If a checked copy is torn because the memory was written meanwhile.
pub fn raw_limit(
    memories: &[Memory],
    stride: usize,
    bytes_per_read: usize,
    options: &LimitOptions,
) -> Result<RawLimit> {
    let _pin = Pin::to_any(options.core)?;
    let most_ahead = AHEAD[AHEAD.len() - 1];
    let mut reader = Reader::new(memories, stride, bytes_per_read, most_ahead, SEED)?;
    reader.touch(4096);
    let variants = variants(bytes_per_read.is_multiple_of(LINE_BYTES));
    let slices = in_turns(&variants, options.repeats, |(access, copying)| {
        Ok(reader.rate(*access, *copying, options.slice))
    })?;
    let rates: Vec<ReadRate> = variants
        .iter()
        .zip(slices)
        .map(|((access, copying), slices)| ReadRate::of(*access, *copying, slices, bytes_per_read))
        .collect();
    let best = |wanted: &dyn Fn(Access, Copying) -> bool| {
        let measured = variants.iter().zip(&rates);
        let wanted = measured.filter(|((access, copying), _)| wanted(*access, *copying));
        let best = wanted.max_by(|(_, a), (_, b)| a.reads_per_s.total_cmp(&b.reads_per_s));
        best.map(|(_, rate)| rate.clone())
    };
    let is_checked = |copying: Copying| matches!(copying, Copying::Checked(_));
    let is_raw = |access: Access, copying| access != Access::Dependent && !is_checked(copying);
    let is_batch = |access: Access| matches!(access, Access::Batched(_));
    let missing = "no variant of the limit was measured";
    Ok(RawLimit {
        memory_bytes: memories.iter().map(|memory| memory.len() as u64).sum(),
        stride,
        bytes_per_read,
        best_batched: best(&|access, copying| is_raw(access, copying) && is_batch(access))
            .context(missing)?,
        best: best(&is_raw).context(missing)?,
        best_checked: best(&|_, copying| is_checked(copying)),
        dependent: best(&|access, _| access == Access::Dependent).context(missing)?,
        rates,
    })
}

fn variants(whole_lines: bool) -> Vec<(Access, Copying)> {
    let best = LineLoads::best();
    let mut batched = vec![Copying::Memcpy, Copying::Raw(LineLoads::WORDS)];
    let mut through_windows = vec![Copying::Memcpy];
    if whole_lines {
        let vectors = LineLoads::available().into_iter().skip(1);
        batched.extend(vectors.map(Copying::Raw));
        batched.push(Copying::Checked(LineLoads::WORDS));
        batched.extend((best != LineLoads::WORDS).then_some(Copying::Checked(best)));
        through_windows.push(Copying::Checked(best));
    }
    let ahead = |access: fn(usize) -> Access, copyings: Vec<Copying>| {
        let variants = |copying| AHEAD.map(|ahead| (access(ahead), copying));
        copyings.into_iter().flat_map(variants).collect::<Vec<_>>()
    };
    let mut variants = ahead(Access::Batched, batched);
    variants.extend(ahead(Access::Window, through_windows));
    variants.push((Access::Dependent, Copying::Memcpy));
    variants
}

impl fmt::Display for RawLimit {
    /// Formats the rates in million reads per second: a line for each way to copy, a column for each number of reads in
    /// a batch or ahead.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawLimit {
            bytes_per_read,
            stride,
            ..
        } = self;
        writeln!(
            out,
            "  {bytes_per_read} bytes at multiples of {stride}, million reads/s"
        )?;
        for access in ["batch", "window"] {
            let mut lines = vec![vec![format!("{access} of")]];
            lines[0].extend(AHEAD.map(|ahead| ahead.to_string()));
            // The rates of one way to copy are adjacent, one for each number in `AHEAD`.
            let rates: Vec<_> = self.rates.iter().filter(|it| it.access == access).collect();
            for rates in rates.chunks(AHEAD.len()) {
                let mut line = vec![rates[0].variant.clone()];
                line.extend(rates.iter().map(|rate| text::millions(rate.reads_per_s)));
                lines.push(line);
            }
            writeln!(out, "\n{}", text::table(&lines, [0; 2]).trim_end())?;
        }
        writeln!(out, "\n  {:<16} {}", "limit", self.best)?;
        writeln!(out, "  {:<16} {}", "batched", self.best_batched)?;
        if let Some(checked) = &self.best_checked {
            let share = checked.reads_per_s / self.best.reads_per_s * 100.0;
            writeln!(
                out,
                "  {:<16} {checked}, {share:.0} % of the limit",
                "checked copy"
            )?;
        }
        writeln!(out, "  {:<16} {}", "dependent", self.dependent)
    }
}

impl fmt::Display for ReadRate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} million reads/s ({} to {}), {:.2} GB/s, {:.1} ns each; {} of {}, {}",
            text::millions(self.reads_per_s),
            text::millions(self.least),
            text::millions(self.most),
            self.gb_per_s,
            self.ns_per_read,
            self.access,
            self.batch,
            self.variant
        )
    }
}
