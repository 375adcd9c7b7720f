//! `farm sim --pauses`: how long simulated clusters give no service when a machine is killed.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use farm_bench::losses::Times;
use farm_sim::run::pauses::{Pause, PauseSpec, measure};
use farm_sim::run::sweep::on_threads;

use crate::cli::SimArgs;

/// Kills a machine of each cluster, and the manager of another one, and prints the times.
pub(super) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    super::check_seeds(args, args.pauses.unwrap_or_default())?;
    let lease = Duration::from_millis(args.lease_ms.into());
    let spec = |of_manager| PauseSpec {
        machines: args.machines.into(),
        lease,
        of_manager,
    };
    let mut out = crate::Output;
    writeln!(
        out,
        "simulated: {} machines, 3 copies, leases of {} ms; times for which the protocol waits, without those of processors",
        args.machines, args.lease_ms
    )?;
    let mut wrong = 0;
    for (what, spec) in [("a machine", spec(false)), ("the manager", spec(true))] {
        let measured = measure_all(args, &spec);
        let right = measured.iter().filter_map(|(_, one)| one.as_ref().ok());
        let right: Vec<&Pause> = right.collect();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let times = Times::of(right.iter().map(|one| ms(one.without_service)));
        if let Some(Times {
            p50,
            p90,
            p99,
            most,
        }) = times
        {
            let kills = right.len();
            let gaps = Times::of(right.iter().map(|one| ms(one.without_end)));
            let [usual_gap, gap] = gaps.map_or([0.0; 2], |gaps| [gaps.p50, gaps.most]);
            let judged: usize = right.iter().map(|one| one.transactions).sum();
            writeln!(
                out,
                "{what} killed {kills} time(s): time without service median {p50:.1} ms, 90 % at most {p90:.1}, 99 % at most {p99:.1}, \
                 longest {most:.1} ms; longest time without any commit median {usual_gap:.1}, most {gap:.1} ms; {judged} transactions judged"
            )?;
        }
        for (seed, pause) in &measured {
            if let Err(why) = pause {
                wrong += 1;
                writeln!(out, "WRONG, seed {seed}, {what} killed: {why}")?;
            }
        }
    }
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Measures all seeds, on several threads. Returns what each showed, by ascending seed.
fn measure_all(args: &SimArgs, spec: &PauseSpec) -> Vec<(u64, Result<Pause, String>)> {
    let seeds = args.pauses.unwrap_or_default();
    let all = Mutex::new(Vec::new());
    let bar = super::progress(seeds, "kills");
    let range = args.first..args.first.saturating_add(seeds);
    on_threads(range, super::jobs(args), |seed| {
        let one = (seed, measure(seed, spec));
        bar.inc(1);
        let mut all = all
            .lock()
            .expect("no thread panics while it holds the lock of results");
        all.push(one);
        true
    });
    bar.finish_and_clear();
    let mut all = all
        .into_inner()
        .expect("no thread panics while it holds the lock of results");
    all.sort_by_key(|one| one.0);
    all
}
