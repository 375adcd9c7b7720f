//! The execution of one run, from the first turn to the verdict.

use farm_check::checkers;
use farm_check::history::{History, Transaction};
use farm_check::workload::{self, FinalState, Kind, Log};
use farm_core::alloc::class_for_payload;
use farm_core::time::Nanos;
use farm_core::worker::Worker;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::absences::Guests;
use super::kept;
use super::plan::{Loss, Plan};
use super::verdict::{Failure, Judge, Outcome};
use super::{Reached, RunOptions};
use crate::cluster::{Cluster, ClusterLimits, Stepped};

/// Virtual nanoseconds without an ended operation after which a run counts as standing still. Longer than every delay
/// and pause that is drawn, shorter than the longest sleep of a worker.
const STANDSTILL_NANOS: u64 = 1_000_000_000;
/// Steps without an ended operation after which a run also counts as standing still.
const STANDSTILL_STEPS: u64 = 3_000_000;
/// As [`STANDSTILL_STEPS`], after a loss: from then on operations need not end.
const STANDSTILL_STEPS_AFTER_LOSS: u64 = 20_000;
/// As [`STANDSTILL_STEPS`], after a loss that may leave locks: enough steps for the reads of locked objects to run out
/// of tries.
const STANDSTILL_STEPS_WITH_LOCKS: u64 = 60_000;
/// Steps between two checks of the clients' progress.
const STEPS_PER_LOOK: u64 = 64;

/// How the clients' part of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All clients ended. The value is the number of arrays that [`fill_memory`] reserved.
    Done(u64),
    Stopped,
    Standstill,
    /// All processors have stopped for good.
    Killed,
}

pub(super) fn attach(worker: &mut Worker, limits: &ClusterLimits) {
    farm_txn::attach(worker);
    if let Some(most) = limits.most_ahead {
        farm_txn::set_most_ahead(worker, most);
    }
    farm_kv::attach(worker);
    farm_graph::attach(worker);
    workload::attach(worker);
}

pub(super) fn drive(plan: &Plan, options: RunOptions) -> Outcome {
    let attach = |worker: &mut Worker| attach(worker, &plan.limits);
    let cluster = Cluster::new(plan.fabric(options.trace), &plan.limits, plan.pace, attach);
    for worker in 0..cluster.workers() {
        cluster.on(worker, |worker| {
            workload::start(worker, plan.spec.clone(), Box::new(|_| {}))
        });
    }
    let guests = Guests::new((&plan.absences, &plan.returns), &plan.spec, &plan.limits);
    let mut guests = guests.that_resume(!plan.kills.is_empty(), plan.seed);
    let mut served_twice = None;
    let end = run_clients(plan, &cluster, &mut guests, &attach, &mut served_twice);
    let survives = plan.limits.survives;
    let rested = match (end, plan.loss) {
        (End::Done(_), Some(_)) if survives && !cluster.failures().is_empty() => {
            let why = format!(
                "machines that were not lost stopped: {:?}",
                cluster.failures()
            );
            Err(Failure::new(Judge::Stopped, why))
        }
        (End::Done(_), Some(_)) if survives => cluster
            .come_to_rest_with(&left_over)
            .and_then(|()| check_tables(&cluster))
            .and_then(|()| check_allocators(&cluster))
            .map_err(|why| Failure::new(Judge::Rest, why + &cluster.membership())),
        (End::Stopped, Some(_)) if survives => {
            let why = format!(
                "all machines stopped although they have copies: {:?}",
                cluster.failures()
            );
            Err(Failure::new(Judge::Stopped, why))
        }
        (End::Done(_), None) => cluster
            .come_to_rest_with(&left_over)
            .map_err(|why| Failure::new(Judge::Rest, why)),
        (End::Standstill, None) => Err(standstill(&cluster, &guests)),
        // A machine that notices the loss stops, and calls to a lost machine fail. So the clients must end here too.
        (
            End::Standstill,
            Some((
                _,
                Loss::Machine(_)
                | Loss::Machines(..)
                | Loss::Process(_)
                | Loss::Stalled(_)
                | Loss::Parted(..)
                | Loss::Deaf(..)
                | Loss::Processes(..)
                | Loss::AllProcesses(_)
                | Loss::Connection(..),
            )),
        ) => Err(standstill(&cluster, &guests)),
        (End::Stopped, None) => {
            let why = format!(
                "all machines stopped although nothing was lost: {:?}",
                cluster.failures()
            );
            Err(Failure::new(Judge::Stopped, why))
        }
        (_, Some(_)) => Ok(()),
        (End::Killed, None) => unreachable!("processors stop only by a loss"),
    };
    cluster.fabric().drain();
    let kept = match plan.limits.replicas {
        0 => Ok(()),
        _ if survives => Ok(()),
        _ => kept::check(&cluster)
            .map(drop)
            .map_err(|why| Failure::new(Judge::Kept, why)),
    };
    let operations = guests.ended(&cluster);
    let present: Vec<usize> = guests.present(&cluster).collect();
    let mut logs = guests.into_logs();
    let of = |worker: &usize| cluster.inspect(*worker, workload::take_log);
    logs.extend(present.iter().map(of));
    // No client knows the nodes that those of lost processes have added.
    let is_known = plan.loss.is_none() || survives && plan.spec.kind != Kind::Graph;
    let finished = match end {
        End::Done(filled) if is_known && rested.is_ok() => {
            let mut running = present;
            running.retain(|worker| cluster.is_running(*worker));
            finish(plan, &cluster, &running, (&logs, filled))
        }
        _ => Ok(None),
    };
    let quiet = plan.loss.is_none() && rested.is_ok() && matches!(end, End::Done(_));
    let mut history = Log::merge(logs);
    if let Ok(Some(last)) = &finished {
        history.transactions.push(last.clone());
    }
    let demands = quiet && plan.full_after.is_none();
    let failure = judge(&history, demands, options)
        .err()
        .or(served_twice)
        .or(rested.err())
        .or(finished.err())
        .or(kept.err());
    let mut outcome = Outcome {
        plan: plan.clone(),
        hash: 0,
        nanos: cluster.now().0,
        turns: cluster.turns(),
        operations,
        reached: Reached::new(),
        failure,
        trace: Vec::new(),
        history: None,
    };
    let words = [cluster.fabric().trace_hash(), outcome.turns, outcome.nanos];
    // The text of the failure is not part of the hash: a text of `adya` may depend on its time limit.
    let judge = outcome.failure.as_ref().map(|failure| failure.judge);
    let answers = format!("{history:?} {judge:?}");
    outcome.hash = xxh3_64_with_seed(answers.as_bytes(), words[0] ^ words[1] ^ words[2] << 32);
    if options.trace {
        outcome.trace = super::trace::lines(&cluster, &history);
        outcome.history = Some(history);
    }
    outcome
}

/// Returns the resources of operations that the layers for transactions, tables and graphs still hold on a worker; `None`
/// if none.
fn left_over(worker: &mut Worker) -> Option<String> {
    farm_txn::left_over(worker)
        .or_else(|| farm_kv::left_over(worker))
        .or_else(|| workload::left_over(worker))
}

fn run_clients(
    plan: &Plan,
    cluster: &Cluster,
    guests: &mut Guests<'_>,
    attach: &dyn Fn(&mut Worker),
    served_twice: &mut Option<Failure>,
) -> End {
    let (mut loss, mut full_after) = (plan.loss, plan.full_after);
    // The second loss, and the looks until it strikes.
    let mut second = None;
    let mut in_set_up = plan.in_set_up;
    let mut kills = Kills::new(&plan.kills);
    let (mut done, mut since, mut steps, mut filled) = (0, Nanos(0), 0, 0);
    loop {
        for _ in 0..STEPS_PER_LOOK {
            if cluster.step() == Stepped::Stopped {
                match guests.will_resume() {
                    true => break,
                    false => return End::Stopped,
                }
            }
        }
        steps += STEPS_PER_LOOK;
        if plan.limits.survives && served_twice.is_none() {
            let two = cluster.two_primaries();
            *served_twice = two.map(|(region, [one, other])| {
                let why =
                    format!("{one} and {other} may both serve region {region} as its primary");
                Failure::new(Judge::Primaries, why)
            });
        }
        let changed = guests.advance(cluster, attach);
        let now_done = guests.ended(cluster);
        if now_done > done || changed {
            (done, since, steps) = (now_done, cluster.now(), 0);
        }
        let set_up = done > 0;
        if set_up && full_after.take_if(|after| done >= *after).is_some() {
            filled = fill_memory(cluster);
        }
        if let Some((after, what)) = loss
            && match &mut in_set_up {
                Some(looks) => {
                    *looks -= 1;
                    *looks == 0
                }
                None => done >= after && (!plan.limits.survives || guests.notice_set_up(cluster)),
            }
        {
            what.strike(cluster);
            loss = None;
            if let Loss::Processes(_, other, looks) = what {
                second = Some((looks, other));
            }
        }
        if let Some((looks, other)) = &mut second {
            *looks -= 1;
            if *looks == 0 {
                cluster.kill_process(*other);
                second = None;
            }
        }
        if loss.is_none() {
            kills.look(cluster, (guests.resumed(), guests.is_idle(cluster)));
        }
        if !kills.is_over() || cluster.is_killing() {
            // Time passes while clients are idle.
            since = cluster.now();
        }
        let all_ended = guests.have_ended(cluster) && guests.is_idle(cluster);
        if all_ended && kills.is_over() && !cluster.is_killing() {
            return End::Done(filled);
        }
        if cluster.processors_have_stopped() && !guests.will_resume() {
            return End::Killed;
        }
        let lost = plan.loss.is_some() && loss.is_none();
        let most_steps = match plan.loss {
            Some((_, Loss::ProcessorsInTurn(_) | Loss::AllProcessors)) if lost => {
                STANDSTILL_STEPS_WITH_LOCKS
            }
            Some(_) if lost && !plan.limits.survives => STANDSTILL_STEPS_AFTER_LOSS,
            _ => STANDSTILL_STEPS,
        };
        if cluster.now() - since > STANDSTILL_NANOS || steps > most_steps {
            return End::Standstill;
        }
    }
}

/// When all processes are killed.
struct Kills<'p> {
    plan: &'p [Vec<u64>],
    /// The number of the time whose looks are counted.
    time: usize,
    looks: u64,
}

impl<'p> Kills<'p> {
    fn new(plan: &'p [Vec<u64>]) -> Self {
        Self {
            plan,
            time: 0,
            looks: 0,
        }
    }

    /// Counts a look at the run, and kills the processes that are due: the next ones, if all clients are `idle`. `resumed` is the number
    /// of times that all have started again.
    fn look(&mut self, cluster: &Cluster, (resumed, idle): (usize, bool)) {
        if resumed > self.time {
            (self.time, self.looks) = (resumed, 0);
        }
        let due = self.plan.get(self.time).into_iter().flatten();
        let next = due.clone().filter(|looks| **looks > self.looks).min();
        self.looks = match next.filter(|_| idle) {
            Some(next) => *next,
            None => self.looks + 1,
        };
        let due = due.enumerate();
        for (machine, _) in due.filter(|(_, looks)| **looks == self.looks) {
            cluster.kill_process(machine);
        }
    }

    /// Returns whether none is killed any more.
    fn is_over(&self) -> bool {
        let last = self.plan.get(self.time).and_then(|time| time.iter().max());
        last.is_none_or(|last| self.looks >= *last)
    }
}

/// Checks the tables on all machines that run.
fn check_tables(cluster: &Cluster) -> Result<(), String> {
    let mut running = cluster.running();
    running.try_for_each(|worker| cluster.inspect(worker, workload::check_tables))
}

/// Checks that no machine could hand out the slot of an object that is allocated.
fn check_allocators(cluster: &Cluster) -> Result<(), String> {
    let check = |worker: &mut Worker| {
        let checked = worker.check_slab();
        checked.map_err(|mismatch| format!("worker {}: {mismatch}", worker.me()))
    };
    let mut running = cluster.running();
    running.try_for_each(|worker| cluster.inspect(worker, check))
}

/// Reserves arrays of one object until no machine has a free block left. Returns the number of arrays.
fn fill_memory(cluster: &Cluster) -> u64 {
    let class = class_for_payload(1).expect("a payload of one byte has a size class");
    let fill = |worker: &mut Worker| {
        let taken = std::iter::repeat_with(|| worker.reserve_array(class, 1, None));
        taken.take_while(Result::is_ok).count() as u64
    };
    let running = cluster.running();
    running.map(|worker| cluster.on(worker, fill)).sum()
}

fn standstill(cluster: &Cluster, guests: &Guests<'_>) -> Failure {
    let mut text = format!(
        "the run makes no progress at {} ns of virtual time: operations no longer end",
        cluster.now().0
    );
    for worker in 0..cluster.workers() {
        let left = cluster.inspect(worker, |worker| worker.check_at_rest());
        let (progress, done) = cluster.inspect(worker, |worker| {
            (workload::progress(worker), workload::is_done(worker))
        });
        let transactions = cluster.inspect(worker, left_over);
        text += &format!(
            "\n  worker {worker}: {progress:?}, done: {done}, check: {left:?}, left over: {transactions:?}"
        );
    }
    text += &guests.text();
    text += &cluster.membership();
    Failure::new(Judge::Liveness, text)
}

/// Checks the final state of the workers that run against the workload, and returns it as a transaction that reads every object.
/// `logs` are those of all processes, and `filled` is the number of arrays that [`fill_memory`] reserved.
fn finish(
    plan: &Plan,
    cluster: &Cluster,
    running: &[usize],
    (logs, filled): (&[Log], u64),
) -> Result<Option<Transaction>, Failure> {
    let failure = |why| Failure::new(Judge::Rest, why);
    let mut all = Vec::new();
    for &worker in running {
        let finished = cluster.inspect(worker, workload::finish);
        all.push(finished.map_err(failure)?);
        let overtaken = cluster.inspect(worker, farm_txn::most_overtaken);
        if overtaken > 0 {
            return Err(failure(format!(
                "a commit of worker {worker} that waited for room in a log was overtaken by {overtaken} later commit(s)"
            )));
        }
    }
    let mut all = FinalState::all(all);
    all.take_paid(logs);
    if plan.loss.is_some() && filled > 0 {
        // The arrays of a machine that was lost are free.
        all.taken = all.live;
    } else if plan.spec.kind.has_objects() {
        all.taken -= filled;
    }
    all.check(&plan.spec).map_err(failure)?;
    Ok(all.last_read())
}

fn judge(history: &History, demands: bool, options: RunOptions) -> Result<(), Failure> {
    if let Some(violation) = history.violations.first() {
        return Err(Failure::new(Judge::Workload, violation.clone()));
    }
    let facts = checkers::check(history)
        .map_err(|finding| Failure::new(Judge::History, finding.to_string()))?;
    if demands && facts.committed + facts.changed == 0 {
        let why = "no operation took effect, although nothing was lost and memory was not full";
        return Err(Failure::new(Judge::Liveness, why));
    }
    if options.without_adya {
        return Ok(());
    }
    checkers::append::judge(history).map_err(|why| Failure::new(Judge::Adya, why))
}
