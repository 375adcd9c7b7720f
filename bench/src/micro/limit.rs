//! `farm bench limit`: how many random reads a second one core can make of mapped memory, whatever
//! the software above does. It is the bound of one worker's lookups: a lookup is such a read.
//!
//! [`raw_limit`] measures any memory, for instance the very regions that lookups read, and only
//! reads it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use farm_core::mem::{LINE_BYTES, LineLoads, Memory};
use serde::Serialize;

use super::figures::Rate;
use super::host::Pin;
use super::measure::in_turns;
use super::reads::{Access, Copying, Reader};
use super::text;

/// Reads that are prefetched and then copied as a batch, or that a sliding window prefetches ahead.
const AHEAD: [usize; 4] = [8, 16, 32, 64];
/// Seed of the places.
const SEED: u64 = 1;

/// How [`raw_limit`] measures.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// Slices of each variant.
    pub repeats: usize,
    /// Time of one slice.
    pub slice: Duration,
    /// Core to measure on; `None` leaves the thread where it is.
    pub core: Option<u32>,
}

/// How many reads a second one variant makes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadRate {
    /// How it copies: `memcpy`; `words`, `sse`, `avx` or `avx512` loads without a check; or
    /// `checked` by such loads, as reads of objects are.
    pub variant: String,
    /// How reads follow each other: `batch`, `window` or `dependent`.
    pub access: String,
    /// Reads ahead; 1 if each depends on the one before.
    pub batch: usize,
    /// Reads per second of the core, the median slice. Time in which other threads had the core does
    /// not count, so on a busy host this is more than a wall clock would tell, never less.
    pub reads_per_s: f64,
    /// The slowest slice.
    pub least: f64,
    /// The fastest slice.
    pub most: f64,
    /// Gigabytes (10⁹) a second.
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
    /// Bytes that the places are in.
    pub memory_bytes: u64,
    /// Places are at multiples of this many bytes; also the size of an object to checked copies.
    pub stride: usize,
    /// Bytes of a read.
    pub bytes_per_read: usize,
    /// Every variant.
    pub rates: Vec<ReadRate>,
    /// The best in batches without a check.
    pub best_batched: ReadRate,
    /// The best of all without a check: the limit.
    pub best: ReadRate,
    /// The best with a check, of reads that a checked copy can make (whole lines).
    pub best_checked: Option<ReadRate>,
    /// Each read depending on the one before: what a read costs that nothing hides.
    pub dependent: ReadRate,
}

/// Measures random reads of `bytes_per_read` at multiples of `stride` in these memories, uniformly
/// over their bytes. Only reads; nothing may be written meanwhile, or checked copies could be torn.
///
/// # Errors
/// Sizes that cannot be read.
///
/// # Panics
/// If the memory is written to so much that a checked copy is torn.
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
    /// Reads a second in millions, a line for each way to copy, a column for each number ahead.
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
            // The rates of one variant follow each other, one for each number ahead.
            let rates: Vec<_> = self.rates.iter().filter(|it| it.access == access).collect();
            for rates in rates.chunks(AHEAD.len()) {
                let mut line = vec![rates[0].variant.clone()];
                line.extend(rates.iter().map(|rate| text::millions(rate.reads_per_s)));
                lines.push(line);
            }
            writeln!(out, "\n{}", text::table(&lines).trim_end())?;
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
