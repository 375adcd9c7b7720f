//! `farm bench limit`: how many random reads a second one core can make of mapped memory, whatever
//! the software above does. It is the bound of one worker's lookups: a lookup is such a read.
//!
//! [`raw_limit`] measures any memory, for instance the very regions that lookups read, and only
//! reads it. [`run`] makes memory of its own, fills it, and measures that.

use std::fmt;
use std::time::Duration;

use farm_core::mem::{LINE_BYTES, LineLoads, Mapping, Memory};
use serde::{Deserialize, Serialize};

use super::host::{Conditions, Pin, Watch, allowed_cores};
use super::reads::{Access, Copying, Reader};
use super::{MicroError, Place, Progress, Rate, os, text};

/// What [`raw_limit`] measures.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// Reads that are prefetched and then copied.
    pub batches: Vec<usize>,
    /// Reads that a sliding window prefetches ahead.
    pub windows: Vec<usize>,
    /// Slices of each variant.
    pub repeats: usize,
    /// Time of one slice.
    pub slice: Duration,
    /// Core to measure on; `None` leaves the thread where it is.
    pub core: Option<u32>,
    /// Seed of the places.
    pub seed: u64,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            batches: vec![8, 16, 32, 64],
            windows: vec![8, 16, 32, 64],
            repeats: 9,
            slice: Duration::from_millis(60),
            core: None,
            seed: 1,
        }
    }
}

impl LimitOptions {
    /// A look that takes milliseconds and whose figures mean nothing: for tests.
    pub fn quick() -> Self {
        Self {
            repeats: 2,
            slice: Duration::from_micros(200),
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), MicroError> {
        let ahead = self.batches.iter().chain(&self.windows);
        match () {
            () if ahead.clone().any(|ahead| !(1..=4096).contains(ahead)) => Err(MicroError::bad(
                "batch",
                "between 1 and 4096 reads can be ahead",
            )),
            () if self.batches.is_empty() => {
                Err(MicroError::bad("batch", "at least one is needed"))
            }
            () if self.repeats == 0 => Err(MicroError::bad("repeats", "at least one is needed")),
            () => Ok(()),
        }
    }
}

/// How many reads a second one variant makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// The limit of reads of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
/// over their bytes. Only reads; nobody may write meanwhile, or checked copies could be torn.
///
/// # Errors
/// [`MicroError::BadOption`] for sizes that cannot be read.
///
/// # Panics
/// If the memory is written to so much that a checked copy is torn.
pub fn raw_limit(
    memories: &[Memory],
    stride: usize,
    bytes_per_read: usize,
    options: &LimitOptions,
) -> Result<RawLimit, MicroError> {
    options.check()?;
    let _pin = options.core.map(Pin::to).transpose()?;
    let most = options
        .batches
        .iter()
        .chain(&options.windows)
        .copied()
        .max()
        .unwrap_or(1);
    let mut reader = Reader::new(memories, stride, bytes_per_read, most, options.seed)?;
    reader.touch(4096);
    let variants = variants(options, bytes_per_read.is_multiple_of(LINE_BYTES));
    let mut slices = vec![Vec::with_capacity(options.repeats); variants.len()];
    for _ in 0..options.repeats {
        for ((access, copying), slices) in variants.iter().zip(&mut slices) {
            slices.push(reader.rate(*access, *copying, options.slice));
        }
    }
    let rated = variants.into_iter().zip(slices);
    let rates: Vec<Rated> = rated.map(|it| Rated::of(it, bytes_per_read)).collect();
    let of = |wanted: fn(&Rated) -> bool| best_of(rates.iter().filter(|rated| wanted(rated)));
    let missing = || MicroError::broken("no variant of the limit was measured");
    Ok(RawLimit {
        memory_bytes: memories.iter().map(|memory| memory.len() as u64).sum(),
        stride,
        bytes_per_read,
        best_batched: of(Rated::is_raw_batch).ok_or_else(missing)?,
        best: of(Rated::is_raw).ok_or_else(missing)?,
        best_checked: of(Rated::is_checked),
        dependent: of(Rated::is_dependent).ok_or_else(missing)?,
        rates: rates.into_iter().map(|rated| rated.rate).collect(),
    })
}

/// A rate and the variant that it is of.
struct Rated {
    access: Access,
    copying: Copying,
    rate: ReadRate,
}

impl Rated {
    fn of(((access, copying), slices): ((Access, Copying), Vec<f64>), bytes: usize) -> Self {
        let rate = Rate::of(slices);
        let (name, batch) = match access {
            Access::Batched(batch) => ("batch", batch),
            Access::Window(ahead) => ("window", ahead),
            Access::Dependent => ("dependent", 1),
        };
        let rate = ReadRate {
            variant: copying.name(),
            access: name.into(),
            batch,
            reads_per_s: rate.per_s,
            least: rate.least,
            most: rate.most,
            gb_per_s: rate.gb_per_s(bytes),
            ns_per_read: 1e9 / rate.per_s,
        };
        Self {
            access,
            copying,
            rate,
        }
    }

    fn is_checked(&self) -> bool {
        matches!(self.copying, Copying::Checked(_))
    }

    fn is_dependent(&self) -> bool {
        self.access == Access::Dependent
    }

    fn is_raw(&self) -> bool {
        !self.is_checked() && !self.is_dependent()
    }

    fn is_raw_batch(&self) -> bool {
        self.is_raw() && matches!(self.access, Access::Batched(_))
    }
}

fn best_of<'a>(rates: impl Iterator<Item = &'a Rated>) -> Option<ReadRate> {
    let best = rates.max_by(|a, b| a.rate.reads_per_s.total_cmp(&b.rate.reads_per_s));
    best.map(|rated| rated.rate.clone())
}

fn variants(options: &LimitOptions, whole_lines: bool) -> Vec<(Access, Copying)> {
    let best = LineLoads::best();
    let mut copyings = vec![Copying::Memcpy, Copying::Raw(LineLoads::WORDS)];
    let mut through_windows = vec![Copying::Memcpy];
    if whole_lines {
        let vectors = LineLoads::available().into_iter().skip(1);
        copyings.extend(vectors.map(Copying::Raw));
        copyings.push(Copying::Checked(LineLoads::WORDS));
        copyings.extend((best != LineLoads::WORDS).then_some(Copying::Checked(best)));
        through_windows.push(Copying::Checked(best));
    }
    let mut variants = Vec::new();
    for copying in copyings {
        variants.extend(
            options
                .batches
                .iter()
                .map(|batch| (Access::Batched(*batch), copying)),
        );
    }
    for copying in through_windows {
        variants.extend(
            options
                .windows
                .iter()
                .map(|ahead| (Access::Window(*ahead), copying)),
        );
    }
    variants.push((Access::Dependent, Copying::Memcpy));
    variants
}

/// A size of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadShape {
    /// Bytes of a read, a multiple of 8.
    pub bytes: usize,
    /// Bytes between places, a multiple of 64.
    pub stride: usize,
}

impl ReadShape {
    /// The read of a lookup at the default settings: two adjacent buckets of 192 bytes.
    pub const LOOKUP: Self = Self {
        bytes: 384,
        stride: 192,
    };

    /// Reads of so many bytes: for a lookup's, two adjacent objects; else one object of whole lines.
    pub fn of_bytes(bytes: usize) -> Self {
        if bytes == Self::LOOKUP.bytes {
            return Self::LOOKUP;
        }
        Self {
            bytes,
            stride: bytes.next_multiple_of(LINE_BYTES).max(LINE_BYTES),
        }
    }
}

/// What [`run`] measures.
#[derive(Clone, Debug)]
pub struct LimitRun {
    /// Where the memory is made.
    pub place: Place,
    /// Bytes of it: many times the processor's caches, or the caches are what is measured.
    pub bytes: u64,
    /// The sizes, one after the other.
    pub shapes: Vec<ReadShape>,
    /// How each is measured. Without a core, the last that this process may use is taken.
    pub options: LimitOptions,
}

impl LimitRun {
    /// 4 GiB, read as lookups do.
    pub fn new(place: Place) -> Self {
        let shapes = vec![ReadShape::LOOKUP];
        Self {
            place,
            bytes: 4 << 30,
            shapes,
            options: LimitOptions::default(),
        }
    }
}

/// What [`run`] found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitReport {
    /// What it was measured on.
    pub conditions: Conditions,
    /// Bytes of the memory.
    pub memory_bytes: u64,
    /// Seconds it took to make and fill it.
    pub fill_s: f64,
    /// The limit at each size.
    pub limits: Vec<RawLimit>,
}

/// Makes memory, fills it, and measures its limit at every size asked for.
///
/// # Errors
/// [`MicroError`]: no space, or sizes that cannot be read.
pub fn run(run: &LimitRun, progress: Progress<'_>) -> Result<LimitReport, MicroError> {
    let LimitRun {
        place,
        bytes,
        shapes,
        options,
    } = run;
    let core = options.core.or_else(|| allowed_cores().last().copied());
    let options = LimitOptions {
        core,
        ..options.clone()
    };
    options.check()?;
    let _pin = core.map(Pin::to).transpose()?;
    progress(&format!("filling {}", text::bytes(*bytes)));
    let watch = Watch::begin();
    let memory = make(place, *bytes)?;
    let mut conditions = Conditions::before(
        &place.memory_dir,
        memory.page_bytes() as u64,
        options.repeats,
        options.slice,
    );
    conditions.pinned.extend(core);
    fill(&memory);
    watch.end(&mut conditions);
    let fill_s = conditions.took_s;
    let measuring = Watch::begin();
    let mut limits = Vec::with_capacity(shapes.len());
    for shape in shapes {
        progress(&format!("random reads of {} bytes", shape.bytes));
        let memories = std::slice::from_ref(&memory);
        limits.push(raw_limit(memories, shape.stride, shape.bytes, &options)?);
    }
    measuring.end(&mut conditions);
    Ok(LimitReport {
        conditions,
        memory_bytes: *bytes,
        fill_s,
        limits,
    })
}

/// Memory that is a file in the place, as regions are; but without a name, so that nothing is left
/// behind however this process ends.
fn make(place: &Place, bytes: u64) -> Result<Memory, MicroError> {
    let name = format!("farm-{}-limit-{}", place.cluster, std::process::id());
    let path = place.memory_dir.join(name);
    let mapping = Mapping::create(&path, bytes as usize, place.huge_pages)?;
    std::fs::remove_file(&path).map_err(os("remove the name of the bench's memory"))?;
    Ok(Memory::of(mapping).window(0, bytes as usize))
}

/// Writes every word, so that all pages are there and none is the same as another.
pub(super) fn fill(memory: &Memory) {
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

impl fmt::Display for LimitReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = text::bytes(self.memory_bytes);
        writeln!(
            out,
            "limit: random reads of {memory} on one core, filled in {:.1} s",
            self.fill_s
        )?;
        write!(out, "{}", self.conditions)?;
        self.limits
            .iter()
            .try_for_each(|limit| write!(out, "\n{limit}"))
    }
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
            let rates = || self.rates.iter().filter(|rate| rate.access == access);
            let mut ahead: Vec<usize> = rates().map(|rate| rate.batch).collect();
            ahead.sort_unstable();
            ahead.dedup();
            write!(out, "\n  {:<16}", format!("{access} of"))?;
            ahead
                .iter()
                .try_for_each(|ahead| write!(out, " {ahead:>8}"))?;
            let mut last = "";
            for rate in rates() {
                if rate.variant != last {
                    write!(out, "\n  {:<16}", rate.variant)?;
                    last = &rate.variant;
                }
                write!(out, " {:>8}", text::millions(rate.reads_per_s))?;
            }
            writeln!(out)?;
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
