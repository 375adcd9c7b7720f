//! `farm bench fabric --fabric verbs`: one-sided operations between two RDMA devices of this host, compared with those
//! of perftest on the same devices and of the same sizes.
//!
//! | measure | perftest's tool | what both do |
//! |---|---|---|
//! | read latency | `ib_read_lat` | one read at a time; the median |
//! | write latency | `ib_write_lat` | a write that the other side answers with a write; each side polls its memory for the write of the other side; half of the median round trip |
//! | reads/s | `ib_read_bw` | reads, posted in batches of 32, at most 128 in flight |
//! | writes/s | `ib_write_bw` | writes, posted in batches of 32, at most 128 in flight |
//!
//! This platform and perftest take turns, and each pair of turns gives one ratio. So a busy host disturbs both. In the
//! JSON of a row, `farm` contains the median, least and greatest result of this platform's turns, in nanoseconds or in
//! operations per second. `beside.perftest` contains those of perftest's turns, and `beside.ratio` those of the ratios
//! of this platform's results to perftest's. If perftest is not installed, `beside` is `null`.

mod ours;
mod perftest;

use std::time::Instant;

use anyhow::{Result, ensure};
use farm_core::config::{Config, Fabric, rounded_size};
use farm_core::mem::WORD_BYTES;
use serde_json::json;

use self::ours::{BATCH, OUTSTANDING, Ours};
use self::perftest::Perftest;
use super::host::{Pin, two_cores};
use super::machines::{MicroRun, check_sizes};
use super::measure::{Progress, in_turns};
use super::report::{Cell, MicroReport, Row, Unit};

/// Maximum number of bytes of an operation.
const MOST_BYTES: usize = 1 << 16;

/// A measure that this platform and perftest have in common.
struct Measure {
    /// Name in JSON.
    label: &'static str,
    /// Name in tables.
    name: &'static str,
    /// Name of perftest's tool.
    tool: &'static str,
    is_latency: bool,
    /// Farm's measurement: receives the bytes of an operation and the number of operations.
    ours: fn(&mut Ours, usize, usize) -> Result<f64>,
}

const MEASURES: [Measure; 4] = [
    Measure {
        label: "ReadLatency",
        name: "read latency",
        tool: "ib_read_lat",
        is_latency: true,
        ours: Ours::read_latency,
    },
    Measure {
        label: "WriteLatency",
        name: "write latency",
        tool: "ib_write_lat",
        is_latency: true,
        ours: Ours::write_latency,
    },
    Measure {
        label: "ReadRate",
        name: "reads/s",
        tool: "ib_read_bw",
        is_latency: false,
        ours: Ours::read_rate,
    },
    Measure {
        label: "WriteRate",
        name: "writes/s",
        tool: "ib_write_bw",
        is_latency: false,
        ours: Ours::write_rate,
    },
];

impl Measure {
    /// Takes one turn of perftest. Returns nanoseconds or operations per second.
    fn of_perftest(&self, perftest: &Perftest, bytes: usize, operations: usize) -> Result<f64> {
        let mut options = vec![format!("-n{operations}")];
        // Perftest reports microseconds, and millions per second.
        let unit = match self.is_latency {
            true => 1e3,
            false => {
                options.extend([format!("-t{OUTSTANDING}"), format!("-l{BATCH}")]);
                1e6
            }
        };
        Ok(perftest.measure(self.tool, bytes, &options)? * unit)
    }

    /// Takes all turns of one size. Returns the results of this platform, and those of perftest if it is installed.
    fn turns(
        &self,
        turns: usize,
        bytes: usize,
        operations: usize,
        ours: &mut Ours,
        perftest: Option<&Perftest>,
    ) -> Result<Vec<Vec<f64>>> {
        let sides = [None, perftest];
        let sides = &sides[..1 + usize::from(perftest.is_some())];
        in_turns(sides, turns, |side| match side {
            None => (self.ours)(ours, bytes, operations),
            Some(perftest) => self.of_perftest(perftest, bytes, operations),
        })
    }

    fn row(&self, bytes: usize, mut turns: Vec<Vec<f64>>) -> Row {
        let unit = match self.is_latency {
            true => Unit::Nanos,
            false => Unit::PerSecond,
        };
        let cell = |key, side, unit, turns| {
            Cell::turns(key, &format!("{}, {side}", self.name), unit, turns)
        };
        let others = turns.split_off(1).pop();
        let ours = turns.remove(0);
        let mut row = Row::new(bytes);
        row.cells.push(Cell::value("measure", self.label));
        row.cells.push(cell("farm", "farm", unit, ours.clone()));
        match others {
            None => row.cells.push(Cell::value("beside", ())),
            Some(others) => {
                let ratios = ours.iter().zip(&others).map(|(ours, theirs)| ours / theirs);
                let ratios = ratios.collect();
                row.cells
                    .push(cell("beside.perftest", "perftest", unit, others));
                row.cells
                    .push(cell("beside.ratio", "farm / perftest", Unit::Ratio, ratios));
            }
        }
        row
    }
}

/// Measures one-sided operations at every size, in turns with perftest if it is installed, between the first two
/// machines of the configuration, with their devices and addresses. A turn has `operations` operations, rounded
/// up to whole batches of 32.
///
/// # Errors
/// The options are not valid, there is no device, or perftest failed.
pub fn run(run: &MicroRun, operations: u32, progress: Progress<'_>) -> Result<MicroReport> {
    check_sizes(&run.sizes, WORD_BYTES, MOST_BYTES)?;
    let config = machines(run)?;
    let began = Instant::now();
    let most = run.sizes.iter().copied().max().unwrap_or(0);
    // Both this platform and perftest are pinned: if the kernel moved only one of them between cores, the ratio would
    // mainly show the effect of these moves.
    let cores = two_cores(&run.cores).ok();
    let _pin = Pin::to_any(cores.map(|[asking, _]| asking))?;
    let answering = cores.map(|[_, answering]| answering);
    let mut ours = Ours::start(&config, most, answering)?;
    let devices = ours.devices();
    let perftest = Perftest::find(&devices, answering);
    // Perftest posts whole batches only.
    let operations = (operations as usize).next_multiple_of(BATCH);
    let mut rows = Vec::new();
    for bytes in &run.sizes {
        for measure in &MEASURES {
            let of = rounded_size(*bytes as u64);
            progress(&format!("{} at {of}", measure.name));
            let perftest = perftest.as_ref();
            let turns = measure.turns(run.repeats, *bytes, operations, &mut ours, perftest)?;
            rows.push(measure.row(*bytes, turns));
        }
    }
    let [one, other] = devices.map(|device| device.to_string());
    let beside = match &perftest {
        Some(perftest) => format!("taking turns with perftest {}", perftest.version),
        None => {
            "without perftest, which is not installed (on Debian: apt-get install perftest)".into()
        }
    };
    let pinned: Vec<u32> = cores.into_iter().flatten().collect();
    let took_s = began.elapsed().as_secs_f64();
    let heading = format!(
        "fabric: one-sided operations between {one} and {other}\n  \
         {beside}, pinned to {pinned:?}\n  \
         {} turns of {operations} operations; {took_s:.0} s in all\n  \
         lower latencies and higher rates are better\n",
        run.repeats
    );
    Ok(MicroReport {
        what: "fabric over RDMA devices",
        heading,
        setup: json!({
            "devices": [one, other],
            "perftest": perftest.map(|perftest| perftest.version),
            "pairs": run.repeats,
            "operations": operations,
            "pinned": pinned,
            "took_s": took_s,
        }),
        rows,
    })
}

/// Returns the configuration of the two machines, with one worker each.
fn machines(run: &MicroRun) -> Result<Config> {
    let mut config = run.config.clone();
    ensure!(
        config.machines.len() >= 2,
        "config: the measurement needs two machines, but the configuration has fewer"
    );
    config.cluster.fabric = Fabric::Verbs;
    config.machines.truncate(2);
    config.set_workers(1);
    Ok(config)
}
