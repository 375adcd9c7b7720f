//! `farm bench`: measures one part of the platform at a time, and compares it with its limit or with an alternative.

mod losses;

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use farm_bench::alloc::AllocOptions;
use farm_bench::commits::{self, CommitOptions, CommitReport};
use farm_bench::lookups::{self, LookupBench, LookupOptions, LookupRate, TaskRate};
use farm_bench::micro::limit::{LimitOptions, RawLimit, raw_limit};
use farm_bench::micro::maps::{self, MapRate};
use farm_bench::micro::{Conditions, Launcher, MicroReport, MicroRun, fabric, ring, verbs};
use farm_bench::report::{Figure, Measured, Started, limit_figures};
use farm_core::config::host::{check_memory, probe};
use farm_core::config::{Config, Durability, Fabric};
use farm_core::mem::Memory;
use farm_kv::config::TableConfig;
use serde::Serialize;

use crate::cli::{
    Bench, BenchAllocArgs, BenchArgs, BenchCommitArgs, BenchCommonArgs, BenchFabricArgs,
    BenchLimitArgs, BenchPairArgs,
};
use crate::measure::{repeat, report, try_writing, write};
use crate::scratch::Scratch;

/// Number of slices of each measurement; the result is their median.
const REPEATS: usize = 5;
/// Number of slices of each measurement of one-sided operations.
const FABRIC_REPEATS: usize = 7;
/// Bytes of each of two memories: one-sided reads use the first, and one-sided writes use the second.
const FABRIC_BYTES: u64 = 1 << 30;
/// Time of one slice of raw reads.
const LIMIT_SLICE: Duration = Duration::from_millis(60);
/// Numbers of tasks of another thread.
const OUTSIDE: [usize; 2] = [64, 1000];
/// Numbers of keys that are looked up at a time.
const BATCHES: [usize; 3] = [16, 64, 256];

/// Runs `farm bench`.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        Bench::Limit(args) => limit(args)?,
        Bench::Ring(args) => ring(args)?,
        Bench::Fabric(args) => fabric(args)?,
        Bench::Alloc(args) => alloc(args)?,
        Bench::Commit(args) => commit(args)?,
        Bench::Losses(args) => losses::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures `--repeat` times, prints the results, and writes them to the file of `--json`.
fn publish<R: Display + Serialize + Measured>(
    common: &BenchCommonArgs,
    config: &Config,
    measure: impl FnMut() -> anyhow::Result<R>,
) -> anyhow::Result<()> {
    let (started, json) = (Started::now(), common.json.as_deref());
    json.map(|path| try_writing(path, "--json")).transpose()?;
    let runs = repeat(common.repeat.repeat, measure)?;
    let report = report(&started, config, &probe(&config.memory.dir), runs)?;
    write(&report, json, "\n")
}

/// Prints what is measured next, if standard error is a terminal.
fn progress(what: &str) {
    if io::stderr().is_terminal() {
        eprintln!("measuring {what}");
    }
}

fn slice(common: &BenchCommonArgs) -> Duration {
    common.duration / REPEATS as u32
}

fn sizes(args: &BenchPairArgs) -> Vec<usize> {
    args.sizes.iter().map(|size| *size as usize).collect()
}

/// Returns the parameters of a run in which `share` measurements at each size share the time of `--duration`.
fn micro_run(
    config: &Config,
    common: &BenchCommonArgs,
    sizes: Vec<usize>,
    cores: &[u32],
    repeats: usize,
    share: u32,
) -> MicroRun {
    MicroRun {
        config: config.clone(),
        sizes,
        cores: cores.to_vec(),
        repeats,
        slice: slice(common) / share,
    }
}

/// Measures messages over rings, with about four measurements at each size.
fn measure_ring(
    config: &Config,
    common: &BenchCommonArgs,
    sizes: Vec<usize>,
    cores: &[u32],
) -> anyhow::Result<MicroReport> {
    let run = micro_run(config, common, sizes, cores, REPEATS, 4);
    ring::run(&run, &Launcher::this_program()?, &mut progress)
}

/// Measures one-sided operations, with about eight measurements at each size.
fn measure_fabric(
    config: &Config,
    common: &BenchCommonArgs,
    sizes: Vec<usize>,
    cores: &[u32],
) -> anyhow::Result<MicroReport> {
    let run = micro_run(config, common, sizes, cores, FABRIC_REPEATS, 8);
    fabric::run(&run, FABRIC_BYTES, &mut progress)
}

fn ring(args: &BenchPairArgs) -> anyhow::Result<()> {
    let config = args.common.config.resolve_temporary(Durability::None)?;
    publish(&args.common, &config, || {
        measure_ring(&config, &args.common, sizes(args), &args.cores)
    })
}

fn fabric(args: &BenchFabricArgs) -> anyhow::Result<()> {
    let BenchPairArgs { common, cores, .. } = &args.pair;
    let mut config = common.config.resolve_temporary(Durability::None)?;
    if let Some(fabric) = &args.fabric {
        config.set_by("--fabric", "cluster.fabric", fabric)?;
        config.validate()?;
    }
    if config.cluster.fabric == Fabric::Shm {
        return publish(common, &config, || {
            measure_fabric(&config, common, sizes(&args.pair), cores)
        });
    }
    let run = micro_run(
        &config,
        common,
        sizes(&args.pair),
        cores,
        args.pairs.into(),
        1,
    );
    publish(common, &config, || {
        verbs::run(&run, args.operations, &mut progress)
    })
}

fn alloc(args: &BenchAllocArgs) -> anyhow::Result<()> {
    let config = args.common.config.resolve_temporary(Durability::None)?;
    let options = AllocOptions {
        seed: args.seed,
        block_bytes: config.memory.block_bytes as usize,
        region_bytes: config.memory.region_bytes as usize,
        ..AllocOptions::default()
    };
    publish(&args.common, &config, || farm_bench::alloc::run(&options))
}

/// The result of `farm bench commit`.
#[derive(Serialize)]
struct CommitResult {
    /// Load average of the host over 1 minute before the measurement. Other load matters, because the bench itself
    /// needs more threads than a small host has cores.
    load_before: Option<f64>,
    /// Round trips of 64-byte messages over rings, between two processes.
    ring: MicroReport,
    /// One-sided writes of 64 bytes, from the post to the acknowledgement.
    fabric: MicroReport,
    commits: CommitReport,
    /// Lower limit of the latency of a distributed commit, in nanoseconds: the sum of the median round trip over rings
    /// and the median write.
    least_commit_ns: Option<u64>,
}

fn commit(args: &BenchCommitArgs) -> anyhow::Result<()> {
    let config = args.common.config.resolve_temporary(Durability::None)?;
    publish(&args.common, &config, || measure_commits(args, &config))
}

fn measure_commits(args: &BenchCommitArgs, config: &Config) -> anyhow::Result<CommitResult> {
    const BYTES: usize = 64;
    let (common, mut config) = (&args.common, config.clone());
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load_before = load.and_then(|load| load.split(' ').next()?.parse().ok());
    let ring = measure_ring(&config, common, vec![BYTES], &[])?;
    let fabric = measure_fabric(&config, common, vec![BYTES], &[])?;
    config.cluster.name = format!("{}-commit", config.cluster.name);
    let mut scratch = Scratch::new(&std::env::temp_dir())?;
    scratch.keep_store_of(&mut config);
    let options = CommitOptions {
        slice: slice(common),
        repeats: REPEATS,
        in_flight: usize::from(args.in_flight),
    };
    let commits = commits::run(&config, &options, &mut progress)?;
    Ok(CommitResult {
        load_before,
        least_commit_ns: limits(&ring, &fabric).map(|[ring, write]| ring + write),
        ring,
        fabric,
        commits,
    })
}

/// Medians of a round trip over rings and of a one-sided write, in nanoseconds.
fn limits(ring: &MicroReport, fabric: &MicroReport) -> Option<[u64; 2]> {
    let ring = ring.rows.first()?.figure("ring_rtt")?;
    let write = fabric.rows.first()?.figure("write.latency")?;
    Some([ring as u64, write as u64])
}

impl Measured for CommitResult {
    fn what(&self) -> String {
        self.commits.what()
    }

    fn figures(&self) -> Vec<Figure> {
        let least = self.least_commit_ns;
        let least = least.map(|ns| Figure::new("limit of a distributed commit, ns", ns as f64));
        self.commits.figures().into_iter().chain(least).collect()
    }
}

impl Display for CommitResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(load) = self.load_before {
            writeln!(f, "  load average of the host before the run: {load}")?;
        }
        if let Some([ring, write]) = limits(&self.ring, &self.fabric) {
            let least = ring + write;
            writeln!(
                f,
                "  lower limit of a distributed commit: {least} ns = {ring} ns for a round trip over rings + \
                 {write} ns for a one-sided write"
            )?;
        }
        write!(f, "{}", self.commits)
    }
}

/// The result of `farm bench limit`.
#[derive(Serialize)]
struct LimitResult {
    conditions: Conditions,
    raw: RawLimit,
    lookups: Vec<LookupRate>,
    /// Lookups by `async` tasks on the worker, for values of 32 bytes.
    tasks: Vec<TaskRate>,
    /// Lookups by tasks of another thread, for values of 32 bytes.
    outside: Vec<TaskRate>,
    /// Lookups by one such task, of several keys at a time.
    batches: Vec<TaskRate>,
    /// Lookups in maps of this process, if they were requested.
    maps: Vec<MapRate>,
    /// Lookups of absent keys, with the number of lookups in flight of the first entry of `lookups`.
    misses: LookupRate,
    /// Rate of the fastest lookups, divided by that of the fastest raw reads.
    share_of_limit: f64,
}

impl Measured for LimitResult {
    fn what(&self) -> String {
        "limit".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = limit_figures(&self.raw, &self.lookups, &self.misses);
        figures.insert(0, Figure::new("share of the limit", self.share_of_limit));
        figures
    }
}

fn limit(args: &BenchLimitArgs) -> anyhow::Result<()> {
    let mut config = args.common.config.resolve_temporary(Durability::None)?;
    let options = LookupOptions {
        bytes: args.bytes,
        neighbourhood: args.neighbourhood,
        value_bytes: TableConfig::of(&config).value_bytes as usize,
        in_flight: args
            .in_flight
            .iter()
            .max()
            .map_or(256, |most| *most as usize),
        duration: slice(&args.common),
        repeats: REPEATS,
    };
    config.cluster.name = format!("{}-limit", config.cluster.name);
    config.memory.region_bytes = config.memory.region_bytes.max(1 << 30);
    lookups::configure(&mut config, &options);
    check_memory(&config, &probe(&config.memory.dir))?;
    publish(&args.common, &config, || {
        measure_limit(args, &config, &options)
    })
}

fn measure_limit(
    args: &BenchLimitArgs,
    config: &Config,
    options: &LookupOptions,
) -> anyhow::Result<LimitResult> {
    let started = Instant::now();
    progress("the load of the table");
    let bench = LookupBench::start(config, options)?;
    let mut rates = Vec::new();
    for in_flight in &args.in_flight {
        progress(&format!("{in_flight} lookups in flight"));
        rates.push(bench.measure(*in_flight as usize, true)?);
    }
    let mut tasks = Vec::new();
    if options.value_bytes == lookups::TASK_VALUE_BYTES {
        for in_flight in &args.in_flight {
            progress(&format!("{in_flight} tasks"));
            tasks.push(bench.measure_tasks(*in_flight as usize)?);
        }
    }
    let mut outside = Vec::new();
    if options.value_bytes == lookups::TASK_VALUE_BYTES {
        for tasks in OUTSIDE {
            progress(&format!("{tasks} tasks of another thread"));
            outside.push(bench.measure_outside(tasks)?);
        }
    }
    let mut batches = Vec::new();
    if options.value_bytes == lookups::TASK_VALUE_BYTES {
        for batch in BATCHES {
            progress(&format!("lookups of {batch} keys at a time"));
            batches.push(bench.measure_batches(batch)?);
        }
    }
    let mut maps = Vec::new();
    if args.maps {
        progress("lookups in maps of this process");
        maps = maps::measure_maps(bench.pairs(), options.duration, options.repeats);
    }
    let read = rates
        .first()
        .context("cannot measure lookups: --in-flight has no number")?;
    progress("lookups of absent keys");
    let misses = bench.measure(read.in_flight, false)?;
    progress("raw reads of the same memory");
    let limits = LimitOptions {
        repeats: REPEATS,
        slice: LIMIT_SLICE,
        core: Some(0),
    };
    let memory = bench.memory()?;
    let raw = raw_limit(&memory, read.bucket_bytes, read.bytes_per_read, &limits)?;
    let fastest = rates
        .iter()
        .map(|rate| rate.lookups_per_s)
        .fold(0.0, f64::max);
    let share_of_limit = fastest / raw.fastest();
    let page_bytes = memory.iter().map(Memory::page_bytes).min().unwrap_or(0);
    let mut conditions = Conditions::before(
        &config.memory.dir,
        page_bytes as u64,
        REPEATS,
        options.duration,
    );
    conditions.pinned = vec![0];
    conditions.took_s = started.elapsed().as_secs_f64();
    Ok(LimitResult {
        conditions,
        raw,
        lookups: rates,
        tasks,
        outside,
        batches,
        maps,
        misses,
        share_of_limit,
    })
}

impl Display for LimitResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.conditions)?;
        writeln!(f, "{}", self.raw)?;
        for rate in &self.lookups {
            writeln!(
                f,
                "  lookups, {:>4} in flight  {:>12.0} /s   {:.4} one-sided reads each",
                rate.in_flight, rate.lookups_per_s, rate.reads_per_lookup
            )?;
        }
        for (rate, lookups) in self.tasks.iter().zip(&self.lookups) {
            writeln!(
                f,
                "  lookups, {:>4} async tasks {:>11.0} /s   {:.1} % of those in flight",
                rate.tasks,
                rate.lookups_per_s,
                rate.lookups_per_s / lookups.lookups_per_s * 100.0
            )?;
        }
        for rate in &self.outside {
            writeln!(
                f,
                "  lookups, {:>4} tasks outside {:>9.0} /s   of one other thread, which shares a handle among them",
                rate.tasks, rate.lookups_per_s
            )?;
        }
        for rate in &self.batches {
            writeln!(
                f,
                "  lookups, {:>4} at a time   {:>12.0} /s   {:.1} ns each, {:.1} % of the limit",
                rate.batch,
                rate.lookups_per_s,
                1e9 / rate.lookups_per_s,
                rate.lookups_per_s / self.raw.fastest() * 100.0
            )?;
        }
        for rate in &self.maps {
            writeln!(
                f,
                "  lookups in {:<14} {:>10.0} /s   {:.1} ns each, {} pairs in the memory of this process",
                rate.map,
                rate.lookups_per_s,
                1e9 / rate.lookups_per_s,
                rate.pairs
            )?;
        }
        let rate = &self.misses;
        writeln!(
            f,
            "  misses,  {:>4} in flight  {:>12.0} /s   {:.4} one-sided reads each",
            rate.in_flight, rate.lookups_per_s, rate.reads_per_lookup
        )?;
        if let Some(rate) = self.lookups.first() {
            writeln!(
                f,
                "  table: {} pairs in {} bytes, loaded at {:.0} pairs/s",
                rate.pairs, rate.bytes, rate.load_pairs_per_s
            )?;
        }
        write!(
            f,
            "  fastest lookups as a share of the fastest raw reads: {:.1} %",
            self.share_of_limit * 100.0
        )
    }
}
