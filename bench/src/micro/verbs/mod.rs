//! `farm bench fabric --fabric verbs`: one-sided operations between two RDMA devices of this host, beside
//! those of perftest on the same devices and of the same size.
//!
//! | measure | perftest's tool | what both do |
//! |---|---|---|
//! | read latency | `ib_read_lat` | one read at a time; the median |
//! | write latency | `ib_write_lat` | a write that the other side answers by one, which both wait for by looking at their memory; half of the median |
//! | reads/s | `ib_read_bw` | reads by [`BATCH`], at most [`OUTSTANDING`] on their way |
//! | writes/s | `ib_write_bw` | the same of writes |
//!
//! The two take turns, and each pair of turns gives one ratio; a host that is disturbed disturbs both.

mod ours;
mod perftest;

use std::fmt;
use std::time::Instant;

use farm_core::config::{Config, Fabric};
use serde::{Deserialize, Serialize};

use super::host::{Pin, two_cores};
use super::{MicroError, Progress, Spread, text};
use ours::Ours;
use perftest::Perftest;

/// Operations on their way where rates are measured, of ours and of perftest.
pub const OUTSTANDING: usize = 128;
/// Operations that are posted together there: the rates of both are higher for it.
pub const BATCH: usize = 32;
/// Most bytes of an operation.
const MOST_BYTES: usize = 1 << 16;

/// What [`run`] measures.
#[derive(Clone, Debug)]
pub struct VerbsRun {
    /// Its first two machines are those that are measured, with their devices and addresses.
    pub config: Config,
    /// Bytes of an operation.
    pub sizes: Vec<usize>,
    /// Turns that each of the two takes at each measure.
    pub pairs: usize,
    /// Operations of one turn, rounded up to whole batches of [`BATCH`].
    pub operations: u32,
    /// The cores of the asking and the answering side, of ours and of perftest; `None` takes two where
    /// there are two.
    pub cores: Option<[u32; 2]>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Nanoseconds from the post of a read until its completion is polled.
    ReadLatency,
    /// Half of the nanoseconds from a write to the answer by a write.
    WriteLatency,
    /// Reads a second.
    ReadRate,
    /// Writes a second.
    WriteRate,
}

impl Measure {
    const ALL: [Self; 4] = [
        Self::ReadLatency,
        Self::WriteLatency,
        Self::ReadRate,
        Self::WriteRate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadLatency => "read latency, us",
            Self::WriteLatency => "write latency, us",
            Self::ReadRate => "reads/s",
            Self::WriteRate => "writes/s",
        }
    }

    pub(crate) fn is_latency(self) -> bool {
        matches!(self, Self::ReadLatency | Self::WriteLatency)
    }
}

/// What perftest found in the other turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// In the same unit.
    pub perftest: Spread,
    /// Ours by perftest's, of each pair of turns.
    pub ratio: Spread,
}

/// One measure at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerbsRow {
    /// Bytes of an operation.
    pub bytes: usize,
    /// What.
    pub measure: Measure,
    /// Of this platform's fabric.
    pub farm: Spread,
    /// Perftest's, where it is installed.
    pub beside: Option<Beside>,
}

/// What [`run`] found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerbsReport {
    /// The two devices.
    pub devices: [String; 2],
    /// Whose tools they are; `None`: perftest is not installed.
    pub perftest: Option<String>,
    /// Turns of each.
    pub pairs: usize,
    /// Operations of a turn.
    pub operations: u32,
    /// Cores that the two sides were pinned to; empty if they were not.
    pub pinned: Vec<u32>,
    /// Seconds of everything.
    pub took_s: f64,
    /// Each measure at each size.
    pub rows: Vec<VerbsRow>,
}

/// Measures one-sided operations at every size, beside perftest if it is installed.
///
/// # Errors
/// [`MicroError`]: options that nothing can be measured with, no device, or perftest failed.
pub fn run(run: &VerbsRun, progress: Progress<'_>) -> Result<VerbsReport, MicroError> {
    let config = check(run)?;
    // Perftest posts whole batches only.
    let run = &VerbsRun {
        operations: run.operations.next_multiple_of(BATCH as u32),
        ..run.clone()
    };
    let began = Instant::now();
    let most = run.sizes.iter().copied().max().unwrap_or(0);
    // Where the kernel moves one of them and not the other, that is all that is measured.
    let cores = two_cores(run.cores).ok();
    let _pin = cores.map(|[asking, _]| Pin::to(asking)).transpose()?;
    let answering = cores.map(|[_, answering]| answering);
    let mut ours = Ours::start(&config, most, answering)?;
    let devices = ours.devices();
    let perftest = Perftest::find(devices.clone(), answering);
    let mut rows = Vec::new();
    for bytes in &run.sizes {
        for measure in Measure::ALL {
            let of = text::bytes(*bytes as u64);
            progress(&format!("{} at {of}", measure.name()));
            rows.push(row(run, *bytes, measure, &mut ours, perftest.as_ref())?);
        }
    }
    Ok(VerbsReport {
        devices: devices.map(|device| device.to_string()),
        perftest: perftest.map(|perftest| perftest.version),
        pairs: run.pairs,
        operations: run.operations,
        pinned: cores.into_iter().flatten().collect(),
        took_s: began.elapsed().as_secs_f64(),
        rows,
    })
}

/// The configuration of what is measured: two machines of one worker.
fn check(run: &VerbsRun) -> Result<Config, MicroError> {
    let fits = |bytes: &usize| {
        bytes.is_multiple_of(farm_core::mem::WORD_BYTES) && (1..=MOST_BYTES).contains(bytes)
    };
    let why = match () {
        () if !run.sizes.iter().all(fits) => ("sizes", "multiples of 8 from 8 bytes to 64 KiB"),
        () if run.pairs == 0 => ("pairs", "at least one is needed"),
        () if run.operations < 10 => ("operations", "at least ten are needed"),
        () if run.config.machines.len() < 2 => ("config", "two machines are needed"),
        () => {
            let mut config = run.config.clone();
            config.cluster.fabric = Fabric::Verbs;
            config.machines.truncate(2);
            config.machines.iter_mut().for_each(|it| it.workers = 1);
            return Ok(config);
        }
    };
    Err(MicroError::bad(why.0, why.1))
}

fn row(
    run: &VerbsRun,
    bytes: usize,
    measure: Measure,
    ours: &mut Ours,
    perftest: Option<&Perftest>,
) -> Result<VerbsRow, MicroError> {
    let (mut farm, mut others) = (Vec::new(), Vec::new());
    for pair in 0..run.pairs {
        // Whoever comes first in one pair comes second in the next.
        for turn in [pair, pair + 1] {
            match (turn % 2, perftest) {
                (0, _) => farm.push(ours.measure(measure, bytes, run.operations)?),
                (_, Some(perftest)) => {
                    others.push(perftest.measure(measure, bytes, run.operations)?);
                }
                (_, None) => {}
            }
        }
    }
    let ratios = farm.iter().zip(&others).map(|(ours, theirs)| ours / theirs);
    let beside = perftest.map(|_| Beside {
        ratio: Spread::of(ratios.collect()),
        perftest: Spread::of(others.clone()),
    });
    Ok(VerbsRow {
        bytes,
        measure,
        farm: Spread::of(farm),
        beside,
    })
}

impl fmt::Display for VerbsReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = &self.devices;
        writeln!(
            out,
            "fabric: one-sided operations between {one} and {other}"
        )?;
        let beside = match &self.perftest {
            Some(version) => format!("taking turns with perftest {version}"),
            None => "alone: perftest is not installed (on Debian: apt-get install perftest)".into(),
        };
        writeln!(
            out,
            "  {beside}, pinned to {:?}\n  {} turns of {} operations; median (least to most); {:.0} s in all\n  \
             of latencies the lesser is better, of rates the greater",
            self.pinned, self.pairs, self.operations, self.took_s
        )?;
        let columns = ["farm", "perftest", "farm / perftest"].map(String::from);
        write_row(out, "bytes", "", &columns)?;
        for row in &self.rows {
            let show = |spread: &Spread| match row.measure.is_latency() {
                true => spread_text(spread, |nanos| text::micros(nanos as u64)),
                false => spread_text(spread, |per_s| format!("{per_s:.0}")),
            };
            let cells = match &row.beside {
                Some(Beside { perftest, ratio }) => [
                    show(&row.farm),
                    show(perftest),
                    spread_text(ratio, |ratio| format!("{ratio:.3}")),
                ],
                None => [show(&row.farm), "-".into(), "-".into()],
            };
            write_row(out, &row.bytes.to_string(), row.measure.name(), &cells)?;
        }
        Ok(())
    }
}

fn spread_text(spread: &Spread, show: impl Fn(f64) -> String) -> String {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(show);
    format!("{median} ({least} to {most})")
}

fn write_row(
    out: &mut fmt::Formatter<'_>,
    bytes: &str,
    name: &str,
    [ours, theirs, ratio]: &[String; 3],
) -> fmt::Result {
    writeln!(
        out,
        "  {bytes:>7}  {name:<17} {ours:>26} {theirs:>26} {ratio:>24}"
    )
}
