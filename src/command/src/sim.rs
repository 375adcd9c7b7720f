//! `farm sim`: runs the simulator.

mod pauses;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use farm_sim::run::mutants::{self, HuntResult, MOST_SEEDS, Mutant};
use farm_sim::run::sweep::{Sweep, Swept};
use farm_sim::run::{Outcome, Plan, RunOptions, Scenario, marks, run as run_seed};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Usage;
use crate::cli::SimArgs;

/// Number of failed runs after which a sweep stops, and maximum number of failed runs that are printed.
const SHOWN_FAILURES: usize = 5;
/// Whether the panic hook is replaced by one that prints nothing. A panic within a run is part of its verdict.
static QUIET: Mutex<bool> = Mutex::new(false);

/// Runs `farm sim`.
pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    keep_panics_quiet();
    match (args.seed, args.seeds) {
        _ if args.pauses.is_some() => pauses::run(args),
        (Some(seed), _) => replay(args, seed),
        _ if args.mutants || args.mutant.is_some() => hunt(args),
        (None, Some(seeds)) => sweep(args, seeds),
        (None, None) => Err(Usage::error(
            "nothing to run: add --seed N, --seeds N, --pauses N, --mutants or --mutant TEXT",
        )),
    }
}

/// Turns off messages of panics, unless `RUST_BACKTRACE` is set.
fn keep_panics_quiet() {
    let mut quiet = QUIET
        .lock()
        .expect("no thread panics while it holds the lock of a flag");
    if !std::mem::replace(&mut *quiet, true) && std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|_| {}));
    }
}

fn jobs(args: &SimArgs) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    args.jobs.map_or_else(cores, usize::from)
}

/// Runs one seed, and prints its events or writes its trace.
fn replay(args: &SimArgs, seed: u64) -> anyhow::Result<ExitCode> {
    let scenario = args.scenario.unwrap_or_else(|| Scenario::of_seed(seed));
    let plan = Plan::new(seed, scenario);
    let trace = match &args.trace {
        Some(path) => Some(
            std::fs::File::create(path)
                .with_context(|| format!("cannot create the trace {} (--trace)", path.display()))?,
        ),
        None => None,
    };
    let mut out = crate::Output;
    writeln!(out, "{plan}")?;
    let options = RunOptions {
        trace: true,
        ..RunOptions::default()
    };
    let outcome = match chosen_mutants(args)?.as_slice() {
        _ if args.mutant.is_none() => run_seed(&plan, options),
        [mutant, ..] => {
            writeln!(out, "with the deliberate bug \"{}\"", mutant.name)?;
            mutant.run(&plan, options).0
        }
        [] => bail!("cannot run with a deliberate bug: --mutant matches none"),
    };
    match trace {
        Some(mut file) => {
            let lines = outcome.trace.join("\n") + "\n";
            file.write_all(lines.as_bytes())
                .context("cannot write the trace (--trace)")?;
        }
        // Without a file, print only the events of clients and the faults. The fabric has thousands of events.
        None => {
            for line in outcome.trace.iter().filter(|line| is_printed(line)) {
                writeln!(out, "{line}")?;
            }
        }
    }
    for (mark, count) in &outcome.reached {
        writeln!(out, "reached {count:>6} times  {mark}")?;
    }
    writeln!(
        out,
        "{} operations in {} turns of workers and {:.3} ms of simulated time",
        outcome.operations,
        outcome.turns,
        outcome.nanos as f64 / 1e6
    )?;
    let (verdict, code) = match &outcome.failure {
        None => ("PASSED", ExitCode::SUCCESS),
        Some(failure) => {
            writeln!(out, "WRONG, {failure}")?;
            ("FAILED", ExitCode::FAILURE)
        }
    };
    let hash = outcome.hash;
    writeln!(
        out,
        "{verdict}: seed {seed} of {scenario}; hash {hash:016x}"
    )?;
    Ok(code)
}

/// Returns whether a line of the trace is printed: an event of a client, or a fault.
fn is_printed(line: &str) -> bool {
    ["client ", " are disconnected: ", " are paused "]
        .iter()
        .any(|word| line.contains(word))
}

fn progress(seeds: u64, what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{prefix} [{bar:40}] {pos}/{len}, {per_sec}, {eta} left";
    let style =
        ProgressStyle::with_template(style).expect("the template of the progress bar is valid");
    ProgressBar::new(seeds)
        .with_style(style.progress_chars("=> "))
        .with_prefix(what.to_owned())
}

/// Returns an error unless there are this many seeds from the first one on.
fn check_seeds(args: &SimArgs, seeds: u64) -> anyhow::Result<()> {
    if args.first.checked_add(seeds).is_none() {
        let (first, last) = (args.first, u64::MAX);
        let why = format!(
            "--first {first} and {seeds} seed(s) exceed the greatest seed, {last}; lower one of them"
        );
        return Err(Usage::error(why));
    }
    Ok(())
}

/// Runs a range of seeds, and prints the failed runs.
fn sweep(args: &SimArgs, seeds: u64) -> anyhow::Result<ExitCode> {
    check_seeds(args, seeds)?;
    let sweep = Sweep {
        first: args.first,
        seeds,
        scenario: args.scenario,
        jobs: jobs(args),
        options: RunOptions::default(),
    };
    let bar = progress(seeds, "seeds");
    let failed = Mutex::new(0);
    let began = Instant::now();
    let swept = sweep.run(|outcome| {
        bar.inc(1);
        let mut failed = failed
            .lock()
            .expect("no thread panics while it holds the lock of a counter");
        *failed += usize::from(outcome.failure.is_some());
        *failed < SHOWN_FAILURES
    });
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let mut out = crate::Output;
    writeln!(
        out,
        "{} runs with {} operations in {:.1} s: {:.0} runs/s on {} thread(s)",
        swept.runs,
        swept.operations,
        seconds,
        swept.runs as f64 / seconds,
        sweep.jobs
    )?;
    for outcome in swept.failures.iter().take(SHOWN_FAILURES) {
        print_failure(&mut out, outcome)?;
    }
    let unreached = match args.reach_all {
        true => print_marks(&mut out, &swept)?,
        false => 0,
    };
    let (line, passed) = verdict(&swept, seeds, unreached);
    writeln!(out, "{line}")?;
    Ok(match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Returns the last line of a sweep, and whether the sweep passed. The script `x` reads the hash at the end of the
/// line.
fn verdict(swept: &Swept, seeds: u64, wrong_marks: usize) -> (String, bool) {
    let failed = swept.failures.len();
    let passed = failed == 0 && wrong_marks == 0 && swept.runs == seeds;
    let mut line = format!(
        "{}: {} runs, {failed} failed",
        if passed { "PASSED" } else { "FAILED" },
        swept.runs
    );
    if swept.runs < seeds {
        line += &format!(
            " (stopped early after {} of {seeds} runs, because of the failures)",
            swept.runs
        );
    }
    if wrong_marks > 0 {
        line += &format!(
            ", {wrong_marks} coverage mark(s) listed but not reached, or reached but not listed"
        );
    }
    (format!("{line}; hash {:016x}", swept.hash), passed)
}

fn print_failure(out: &mut impl Write, outcome: &Outcome) -> std::io::Result<()> {
    match &outcome.failure {
        Some(failure) => {
            let command = outcome.command();
            writeln!(out, "WRONG, {failure}\n  repeat with: {command}")
        }
        None => Ok(()),
    }
}

/// Prints the listed marks that were not reached, and the reached marks that are not listed. Returns their number.
fn print_marks(out: &mut impl Write, swept: &Swept) -> std::io::Result<usize> {
    let (missing, unknown) = (
        marks::missing(&swept.reached),
        marks::unknown(&swept.reached),
    );
    for mark in &missing {
        writeln!(out, "mark not reached: {mark}")?;
    }
    for mark in &unknown {
        writeln!(
            out,
            "mark reached that farm-sim/src/run/marks.rs does not list (add it): {mark}"
        )?;
    }
    writeln!(
        out,
        "{} of {} marks reached",
        marks::ALL.len() - missing.len(),
        marks::ALL.len()
    )?;
    Ok(missing.len() + unknown.len())
}

/// Returns the deliberate bugs that `--mutants` and `--mutant` select. Returns none without these options.
fn chosen_mutants(args: &SimArgs) -> anyhow::Result<Vec<Mutant>> {
    if !args.mutants && args.mutant.is_none() {
        return Ok(Vec::new());
    }
    mutants_called(args.mutant.as_deref().unwrap_or(""))
}

/// Returns the deliberate bugs whose names contain `wanted`.
///
/// # Errors
/// [`Usage`]: the program was built without deliberate bugs, or no name contains `wanted`.
pub(crate) fn mutants_called(wanted: &str) -> anyhow::Result<Vec<Mutant>> {
    if !farm_core::mutants::BUILT_IN {
        return Err(Usage::error(
            "cannot switch on deliberate bugs: this program was built without deliberate bugs, as programs for \
             production must be; build another one with `cargo build --release --features mutants`",
        ));
    }
    let chosen = mutants::ALL
        .iter()
        .filter(|mutant| mutant.name.contains(wanted));
    let chosen: Vec<Mutant> = chosen.copied().collect();
    if chosen.is_empty() {
        let names: BTreeSet<_> = mutants::ALL.iter().map(|mutant| mutant.name).collect();
        let why = format!(
            "no deliberate bug has {wanted:?} in its name (--mutant); the names are {names:?}"
        );
        return Err(Usage::error(why));
    }
    Ok(chosen)
}

/// Runs seeds with each selected deliberate bug until a checker finds the bug, at most [`MOST_SEEDS`] seeds.
fn hunt(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let chosen = chosen_mutants(args)?;
    let (next, lives) = (Mutex::new(chosen.iter()), Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..jobs(args) {
            scope.spawn(|| {
                loop {
                    let mutant = next
                        .lock()
                        .expect("no thread panics while it holds the lock of the mutants")
                        .next();
                    let Some(mutant) = mutant else { return };
                    let seeds = args.first..args.first.saturating_add(MOST_SEEDS);
                    let result = mutant.hunt(seeds, RunOptions::default());
                    // Errors are ignored, because the last line has the number of bugs that were not found.
                    let _ = writeln!(crate::Output, "{}", describe(&result));
                    let lives_on = usize::from(result.killed_by.is_none());
                    *lives
                        .lock()
                        .expect("no thread panics while it holds the lock of a counter") +=
                        lives_on;
                }
            });
        }
    });
    let lives = lives
        .into_inner()
        .expect("no thread panics while it holds the lock of a counter");
    writeln!(
        crate::Output,
        "{}: {} of {} deliberate bugs were found",
        if lives == 0 { "PASSED" } else { "FAILED" },
        chosen.len() - lives,
        chosen.len()
    )?;
    Ok(match lives {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Formats the result for one deliberate bug, as one line.
fn describe(result: &HuntResult) -> String {
    let Mutant { name, scenario } = result.mutant;
    match &result.killed_by {
        Some((seed, failure)) => {
            let first = failure.text.lines().next().unwrap_or_default();
            let short: String = first.chars().take(90).collect();
            let judge = failure.judge;
            format!("found  {name}: {scenario} seed {seed}, by {judge}: {short}")
        }
        None if !result.met => {
            format!("MISSED {name}: no seed of {scenario} executed the code of this bug")
        }
        None => format!(
            "MISSED {name}: no checker found this bug in {} seeds of {scenario}; {} seeds panicked",
            result.seeds, result.panics
        ),
    }
}
