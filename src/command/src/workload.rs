//! `farm workload`: runs a workload on a cluster of processes, and checks its history.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use farm_check::checkers::{self, Facts};
use farm_check::history::History;
use farm_check::workload::{FinalState, Kind, Log, Spec};
use farm_core::config::Durability;
use farm_core::config::host::{check_memory, probe};

use crate::Usage;
use crate::cli::WorkloadArgs;
use crate::cluster::Cluster;
use crate::cluster::node::SETTLE;
use crate::cluster::protocol::{News, Order};

/// Runs `farm workload`.
pub(crate) fn run(args: &WorkloadArgs, log: Option<&str>) -> anyhow::Result<ExitCode> {
    let config = args.cluster.resolve(Durability::None)?;
    check_memory(&config, &probe(&config.memory.dir))?;
    let spec = Spec {
        kind: args.kind,
        objects_per_machine: usize::from(args.objects),
        payload_bytes: args.payload_bytes as usize,
        clients: usize::from(args.clients),
        operations: args.operations,
        tasks: args.tasks.unwrap_or(match args.kind {
            Kind::Append => 0,
            _ => 100,
        }),
        shards: config.machines.len() as u32,
        seed: args.seed,
        ..Spec::default()
    };
    if matches!(args.kind, Kind::Table | Kind::Graph) && args.history.is_some() {
        let why = "--history cannot be combined with the workloads table and graph: the file contains transactions on \
                   objects, and these workloads have none; leave --history out, or choose another workload";
        return Err(Usage::error(why));
    }
    let mut ids = config.machines.iter().map(|machine| machine.id);
    if args.kind.has_objects()
        && let Some(machine) = ids.find(|id| config.memory_of(*id) == 0)
    {
        let why = format!(
            "the workload {} has objects on every machine, but machine {machine} has no memory (memory_bytes = 0); choose \
             table, smallbank, tatp or graph, or give the machine memory",
            args.kind
        );
        return Err(Usage::error(why));
    }
    if let Some(mutant) = &args.mutant {
        crate::sim::mutants_called(mutant)?;
    }
    // Created after all options were checked, because an existing file is truncated.
    let mut history = match &args.history {
        Some(path) => Some(std::fs::File::create(path).with_context(|| {
            format!("cannot create the history {} (--history)", path.display())
        })?),
        None => None,
    };
    let mut cluster = Cluster::start_judged(&config, log, args.mutant.as_deref())?;
    let began = Instant::now();
    cluster.order(&Order::Work(spec.clone()))?;
    cluster.gather(|_, news| matches!(news, News::Worked).then_some(()))?;
    let seconds = began.elapsed().as_secs_f64();
    let settle_s = SETTLE.as_secs();
    cluster.order(&Order::SendWork { settle_s })?;
    let records = cluster.gather(|_, news| match news {
        News::Work { logs, finished } => Some((logs, finished)),
        _ => None,
    })?;
    cluster.stop()?;
    let (logs, finished): (Vec<Vec<Log>>, Vec<FinalState>) = records.into_iter().unzip();
    let (logs, mut finished) = (logs.concat(), FinalState::all(finished));
    finished.take_paid(&logs);
    let mut merged = Log::merge(logs);
    merged.transactions.extend(finished.last_read());
    if let Some(file) = &mut history {
        let lines = checkers::append::to_json_lines(&merged).map_err(|why| {
            anyhow::anyhow!("cannot convert the history to list-append operations: {why}")
        })?;
        file.write_all(lines.as_bytes())
            .context("cannot write the history (--history)")?;
    }
    if args.verify {
        verify(&spec, &merged, &finished)?;
    }
    writeln!(
        crate::Output,
        "{}: {} transactions, including those that did not commit, and {} operations on keys or on a graph on {} \
         machine(s) in {seconds:.2} s",
        args.kind,
        merged.transactions.len(),
        merged.operations.len() + merged.graph.len(),
        config.machines.len()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Runs all checkers, and prints the number of checked operations.
fn verify(spec: &Spec, history: &History, finished: &FinalState) -> anyhow::Result<()> {
    let facts = judge(spec, history, finished, true)?;
    writeln!(
        crate::Output,
        "right: all checks passed; {} transactions, {} of them committed, {} reads, {} writes; {} operations on keys or on \
         a graph",
        facts.transactions,
        facts.committed,
        facts.reads,
        facts.writes,
        facts.operations
    )?;
    Ok(())
}

/// Runs all checkers, also adya if it is asked for.
///
/// # Errors
/// The findings of all checkers, and if the history has nothing to check.
pub(crate) fn judge(
    spec: &Spec,
    history: &History,
    finished: &FinalState,
    with_adya: bool,
) -> anyhow::Result<Facts> {
    let facts = checkers::check(history);
    let adya = match spec.kind {
        Kind::Table | Kind::Graph => Ok(()),
        _ if !with_adya => Ok(()),
        _ => checkers::append::judge(history),
    };
    // Report the findings of all checkers, not only the first.
    let mut wrong: Vec<String> = facts
        .as_ref()
        .err()
        .map(ToString::to_string)
        .into_iter()
        .collect();
    wrong.extend(adya.err().map(|why| format!("adya: {why}")));
    wrong.extend(finished.check(spec).err().map(|why| why.to_string()));
    let facts = match facts {
        Ok(facts) if wrong.is_empty() => facts,
        _ => bail!("WRONG, {}", wrong.join("\nWRONG, ")),
    };
    if facts.committed + facts.changed == 0 {
        bail!(
            "WRONG, no transaction committed and no operation changed a key, so the check proves nothing"
        );
    }
    Ok(facts)
}
