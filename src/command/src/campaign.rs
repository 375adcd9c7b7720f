//! `farm campaign`: kills all processes of clusters under load, again and again, and checks what they have left.

mod single;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use farm_check::workload::{FinalState, Kind, Log, Spec};
use farm_core::config::host::{check_memory, probe};
use farm_core::config::{Config, Durability};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::Usage;
use crate::cli::{CampaignArgs, Losses};
use crate::cluster::Cluster;
use crate::cluster::protocol::{Beginning, News, Order};

/// Longest time for which clients run until all processes are killed, in milliseconds.
const MOST_RUNNING_MS: u64 = 60;
/// Longest time for which processes start until they are killed, in milliseconds.
const MOST_STARTING_MS: u64 = 120;
/// Most times that processes are killed while they start, one time after the other.
const MOST_STARTS: u32 = 3;
/// One run in this many is judged by adya, too, which takes longer than the run.
const ADYA_EACH: u64 = 20;
/// Number of wrong runs after which a campaign ends.
const MOST_WRONG: u64 = 5;
/// Most times that all processes are killed in a run over a graph. Each time leaves operations whose outcome is not known, and the checker
/// tries all of their orders.
const MOST_GRAPH_KILLS: u64 = 3;
/// Most times that a machine is lost in a run that adya judges. Until all copies are full again the clients go on, and the time that adya takes
/// grows with the square of the number of their operations.
const MOST_ADYA_LOSSES: u64 = 3;
/// Number of operations of each client: more than it makes until [`Order::Enough`] ends it.
const WITHOUT_END: u64 = 1 << 40;

/// The result of a run, as a line of the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RunResult {
    seed: u64,
    workload: String,
    copies: u8,
    /// What was lost each time.
    #[serde(default)]
    losses: Losses,
    /// Number of times that all processes were killed while clients ran, or one was lost.
    kills: u32,
    /// Number of times that one was not killed but stopped, for a shorter or a longer time than that of a lease.
    #[serde(default)]
    stops: u32,
    /// Number of times that all were killed while they started.
    kills_of_starts: u32,
    /// Transactions, and operations on keys, that were checked.
    operations: u64,
    /// `ok`, or what was wrong.
    outcome: String,
    note: String,
}

/// Runs `farm campaign`.
pub(crate) fn run(args: &CampaignArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let config = config_of(args)?;
    let known = args.results.as_deref().map(read_results).transpose()?;
    let mut known = known.unwrap_or_default();
    known.retain(|one| one.losses == args.losses);
    let mut results = args.results.as_deref().map(open_results).transpose()?;
    let mut done: u64 = known.iter().map(|one| u64::from(one.kills)).sum();
    let (before, mut ran, mut wrong) = (done, 0, 0);
    let mut seed = args.first;
    while done < args.kills && wrong < MOST_WRONG {
        if known.iter().any(|one| one.seed == seed) {
            seed += 1;
            continue;
        }
        let result = one(args, &config, (seed, args.kills - done), log)?;
        done += u64::from(result.kills);
        (ran, seed) = (ran + 1, seed + 1);
        let is_right = result.outcome == "ok";
        if let Some(file) = &mut results {
            let mut line = serde_json::to_vec(&result)?;
            line.push(b'\n');
            file.write_all(&line)
                .context("cannot write the results (--results)")?;
        }
        say(&result, (done, args.kills))?;
        wrong += u64::from(!is_right);
    }
    let kills = done - before;
    writeln!(
        crate::Output,
        "{ran} run(s), in which {} {kills} time(s): {wrong} run(s) were wrong",
        args.losses.in_words()
    )?;
    if before > 0 {
        let was_wrong = known.iter().filter(|one| one.outcome != "ok").count();
        writeln!(
            crate::Output,
            "earlier, in the file of results: {before} time(s) in {} run(s), of which {was_wrong} were wrong",
            known.len()
        )?;
    }
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns the configuration of all runs.
fn config_of(args: &CampaignArgs) -> anyhow::Result<Config> {
    let mut config = args.cluster.resolve(Durability::Memory)?;
    if !config.is_logged() {
        return Err(Usage::error(
            "a campaign needs durability.mode = \"memory\", which is its default: with \"none\" nothing is left of processes that are killed",
        ));
    }
    if let Some(dir) = &config.durability.dir {
        let why = format!(
            "each cluster of a campaign has a directory of its own for its configuration; leave out durability.dir, which is {}",
            dir.display()
        );
        return Err(Usage::error(why));
    }
    if let Some(mutant) = &args.mutant {
        crate::sim::mutants_called(mutant)?;
    }
    let mut ids = config.machines.iter().map(|machine| machine.id);
    if let Some(machine) = ids.find(|id| config.memory_of(*id) == 0) {
        let why = format!(
            "machine {machine} has no memory (memory_bytes = 0), but the workloads have objects on every machine; give it memory"
        );
        return Err(Usage::error(why));
    }
    config.cluster.name = format!("{}-campaign", config.cluster.name);
    let most = config.machines.len().min(5) as u8;
    if let Some(copies) = args.copies.filter(|copies| *copies > most) {
        let why = format!(
            "{copies} copies (--copies) need as many machines; the configuration has {}",
            config.machines.len()
        );
        return Err(Usage::error(why));
    }
    let least = args.losses.least_copies();
    if config.machines.len() < least
        || args
            .copies
            .is_some_and(|copies| usize::from(copies) < least)
    {
        return Err(Usage::error(
            "the others go on without a machine (--losses one) only if they have copies: that needs two machines, and two copies (--copies)",
        ));
    }
    config.validate()?;
    check_memory(&config, &probe(&config.memory.dir))?;
    Ok(config)
}

/// Reads the results of earlier runs; none if there is no file.
fn read_results(path: &Path) -> anyhow::Result<Vec<RunResult>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.with_context(|| format!("cannot read {} (--results)", path.display()))?,
    };
    let mut results = Vec::new();
    for (line, text) in BufReader::new(file).lines().enumerate() {
        let text = text.with_context(|| format!("cannot read {} (--results)", path.display()))?;
        let result = serde_json::from_str(&text);
        results.push(result.with_context(|| {
            format!(
                "line {} of {} (--results) is not the result of a run",
                line + 1,
                path.display()
            )
        })?);
    }
    Ok(results)
}

fn open_results(path: &Path) -> anyhow::Result<File> {
    let mut options = File::options();
    let file = options.create(true).append(true).open(path);
    file.with_context(|| format!("cannot write {} (--results)", path.display()))
}

fn say(result: &RunResult, (done, of): (u64, u64)) -> anyhow::Result<()> {
    let RunResult {
        seed,
        workload,
        copies,
        kills,
        kills_of_starts,
        stops,
        operations,
        outcome,
        ..
    } = result;
    let how = match result.losses {
        Losses::All => {
            format!("killed {kills} time(s) and {kills_of_starts} time(s) at the start")
        }
        Losses::One => format!("one lost {kills} time(s), {stops} of them stopped"),
    };
    writeln!(
        crate::Output,
        "[{done} of {of}] seed {seed}: {workload}, {copies} cop{}, {how}, {operations} operations: {outcome}",
        if *copies == 1 { "y" } else { "ies" }
    )?;
    Ok(())
}

/// Does one run. An error of the command itself, for example an interrupt, is returned; what is wrong with the run is in its result.
fn one(
    args: &CampaignArgs,
    config: &Config,
    (seed, most): (u64, u64),
    log: Option<&str>,
) -> anyhow::Result<RunResult> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let drawn = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
    let machines = config.machines.len();
    let copies = rng.random_range(args.losses.least_copies()..=machines.min(3)) as u8;
    let (kind, copies) = (
        args.workload.unwrap_or(drawn),
        args.copies.unwrap_or(copies),
    );
    let mut config = config.clone();
    config.durability.replicas = Some(copies);
    let spec = Spec {
        kind,
        objects_per_machine: 8,
        payload_bytes: 200,
        clients: if kind == Kind::Graph { 1 } else { 2 },
        operations: WITHOUT_END,
        tasks: if kind == Kind::Append { 0 } else { 50 },
        shards: machines as u32,
        seed,
        ..Spec::default()
    };
    let most = match kind {
        Kind::Graph => most.min(MOST_GRAPH_KILLS),
        _ if args.losses == Losses::One && seed.is_multiple_of(ADYA_EACH) => {
            most.min(MOST_ADYA_LOSSES)
        }
        _ => most,
    };
    let kills = u64::from(args.kills_per_run).min(most) as u32;
    let mut result = RunResult {
        seed,
        workload: kind.to_string(),
        copies,
        losses: args.losses,
        kills: 0,
        stops: 0,
        kills_of_starts: 0,
        operations: 0,
        outcome: "ok".into(),
        note: args.note.clone(),
    };
    let mut cluster = Cluster::start_judged(&config, log, args.mutant.as_deref())?;
    let patience = Duration::from_secs(args.patience.into());
    let ran = lose_and_judge(
        &mut cluster,
        &spec,
        (&mut rng, patience),
        (kills, &mut result),
    );
    cluster.check_interrupted()?;
    let Err(why) = ran else {
        if let Err(why) = cluster.stop() {
            result.outcome = crate::with_causes(&why);
        }
        return Ok(result);
    };
    result.outcome = crate::with_causes(&why);
    let kept = std::env::temp_dir().join(format!("farm-campaign-{}-{seed}", std::process::id()));
    match copy(&cluster.dir().join("logs"), &kept) {
        Ok(()) => crate::write_stderr(format_args!(
            "the records of the run with seed {seed} are in {}",
            kept.display()
        )),
        Err(error) => tracing::warn!(%error, "cannot keep the records of the run"),
    }
    Ok(result)
}

/// Copies the files of a directory.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Runs the workload, has processes be lost again and again, and checks the history and the final state.
fn lose_and_judge(
    cluster: &mut Cluster,
    spec: &Spec,
    (rng, patience): (&mut Xoshiro256PlusPlus, Duration),
    (kills, result): (u32, &mut RunResult),
) -> anyhow::Result<()> {
    let logs = cluster.dir().join("logs");
    std::fs::create_dir(&logs).context("the records of the run need a directory")?;
    let mut beginning = Beginning {
        spec: spec.clone(),
        starts: 0,
        known: Vec::new(),
        logs: logs.clone(),
    };
    beginning.known = begin(cluster, &beginning, patience)?;
    let losses = result.losses;
    let (by, of) = ((&mut *rng, patience), (kills, &mut *result));
    match losses {
        Losses::All => kill_all(cluster, by, &mut beginning, of)?,
        Losses::One => single::lose_some(cluster, by, &mut beginning, of)?,
    }
    judge(cluster, spec, &logs, patience, result)
}

/// Kills all processes, and starts them again, `kills` times.
fn kill_all(
    cluster: &mut Cluster,
    (rng, patience): (&mut Xoshiro256PlusPlus, Duration),
    beginning: &mut Beginning,
    (kills, result): (u32, &mut RunResult),
) -> anyhow::Result<()> {
    for _ in 0..kills {
        wait(cluster, rng.random_range(0..MOST_RUNNING_MS))?;
        cluster.kill_all()?;
        result.kills += 1;
        let starts = match rng.random_ratio(1, 3) {
            true => rng.random_range(1..=MOST_STARTS),
            false => 0,
        };
        for _ in 0..starts {
            cluster.launch_again()?;
            wait(cluster, rng.random_range(0..MOST_STARTING_MS))?;
            cluster.kill_all()?;
            result.kills_of_starts += 1;
        }
        cluster.launch_again()?;
        cluster.gather_within(("the start", patience), |_, news| {
            matches!(news, News::Ready).then_some(())
        })?;
        beginning.starts += 1;
        begin(cluster, beginning, patience)?;
    }
    Ok(())
}

/// Ends the workload, and checks the history and the final state.
fn judge(
    cluster: &mut Cluster,
    spec: &Spec,
    logs: &Path,
    patience: Duration,
    result: &mut RunResult,
) -> anyhow::Result<()> {
    cluster.order(&Order::Enough)?;
    cluster.gather_within(("the end of all operations", patience), |_, news| {
        matches!(news, News::Worked).then_some(())
    })?;
    if cluster.config().replicas() > 1 {
        crate::verify::check_equal(cluster.config(), patience)?;
    }
    let is_graph = spec.kind == Kind::Graph;
    let settle_s = match is_graph {
        true => 0,
        false => patience.as_secs(),
    };
    cluster.order(&Order::SendWork { settle_s })?;
    let finished =
        cluster.gather_within(("the final state", 2 * patience), |_, news| match news {
            News::Work { finished, .. } => Some(finished),
            _ => None,
        })?;
    let (logs, mut finished) = (read_logs(logs)?, FinalState::all(finished));
    finished.take_paid(&logs);
    if is_graph {
        // No client knows the nodes that those of killed processes have added with ids that the graph has chosen.
        finished.taken = finished.live;
    }
    let mut merged = Log::merge(logs);
    merged.transactions.extend(finished.last_read());
    let with_adya = spec.seed.is_multiple_of(ADYA_EACH);
    let facts = crate::workload::judge(spec, &merged, &finished, with_adya)?;
    result.operations = (facts.transactions + facts.operations) as u64;
    Ok(())
}

/// Begins the workload on all machines. Returns the addresses of its objects.
fn begin(
    cluster: &mut Cluster,
    beginning: &Beginning,
    patience: Duration,
) -> anyhow::Result<Vec<u64>> {
    cluster.order(&Order::Begin(beginning.clone()))?;
    let begun =
        cluster.gather_within(("the first operations", patience), |_, news| match news {
            News::Begun { addresses } => Some(addresses),
            _ => None,
        })?;
    begun
        .into_iter()
        .next()
        .context("the cluster has no machines")
}

/// Lets the processes run for a time, unless the command is interrupted.
fn wait(cluster: &Cluster, milliseconds: u64) -> anyhow::Result<()> {
    std::thread::sleep(Duration::from_millis(milliseconds));
    cluster.check_interrupted()
}

/// Reads the records of all processes.
fn read_logs(dir: &Path) -> anyhow::Result<Vec<Log>> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(dir).context("cannot read the records of the run")? {
        let path = entry?.path();
        let log = Log::from_file(&path);
        logs.push(log.with_context(|| format!("cannot read the records in {}", path.display()))?);
    }
    if logs.is_empty() {
        bail!("the run has no records");
    }
    Ok(logs)
}
