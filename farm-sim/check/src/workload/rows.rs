//! SmallBank and TATP as judged workloads. Rows carry stamps, from which a history of objects is derived. Call
//! forwardings are inserted and removed, so they are recorded as keys of a table.

mod records;

use std::collections::BTreeSet;
use std::time::Duration;

use farm_bench::oltp::attempt::{self, Stamp, Stop, Trail};
use farm_bench::oltp::{Benchmark, RowBytes, RowName, task};
use farm_bench::{smallbank, tatp};
use farm_core::messaging::{CallError, ReplyCont, Request};
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, KvError, TableId, TableSpec};
use rand::Rng;

use super::clients::{self, ASK_AGAIN, BACKOFF_NANOS, MOST_ATTEMPTS, begin_all, end_all, give_up};
use super::doing::{Doing, RowsTransaction};
use super::final_state::{FinalState, Last};
use super::message::{ASK_LOADED, ROWS_LOADED, SETUP_FAILED, WHERE};
use super::persist::Tried;
use super::spec::{Kind, Spec};
use super::state::{Rows, first_client, id, moment, place, rows, work, workers};
use crate::history::{KeyOperation, KeyRequest, KeyResult, Outcome, Transaction};
use records::{LOADED_VALUE, accesses, key_of, object_of, operations, read_of};

/// Id of the first table.
const FIRST_TABLE: u16 = 10;
/// Initial cents of each account of SmallBank: so few that some payments are declined.
const CENTS: i64 = 1_500;
/// Low bits of an attempt's number, which count the attempts of one transaction.
const ATTEMPT_BITS: u32 = 8;

/// Returns the benchmark that the workload runs. Its TATP has a larger share of changes than the standard mix.
fn benchmark(spec: &Spec) -> Benchmark {
    match spec.kind {
        Kind::SmallBank => {
            let accounts = spec.keys.max(2);
            Benchmark::Smallbank(smallbank::Options {
                accounts,
                hot_accounts: (accounts / 3).max(2),
                hot_percent: 50,
                initial_cents: CENTS,
                savings_rule: match spec.seed % 2 {
                    0 => smallbank::SavingsRule::Deposit,
                    _ => smallbank::SavingsRule::Withdraw,
                },
                ..smallbank::Options::default()
            })
        }
        _ => Benchmark::Tatp(tatp::Options {
            subscribers: (spec.keys / 4).max(1) as u32,
            choice: tatp::Choice::Uniform,
            mix: tatp::Mix {
                get_subscriber_data: 10,
                get_new_destination: 20,
                get_access_data: 10,
                update_subscriber_data: 15,
                update_location: 15,
                insert_call_forwarding: 15,
                delete_call_forwarding: 15,
            },
        }),
    }
}

/// Returns all rows that are loaded.
fn all_rows(spec: &Spec) -> Vec<(RowName, RowBytes)> {
    let benchmark = benchmark(spec);
    let items = 0..benchmark.items();
    items
        .flat_map(|item| benchmark.rows(spec.seed, item))
        .collect()
}

/// Opens the tables, one after the other, and then loads this worker's part of the rows.
pub(super) fn set_up(worker: &mut Worker) {
    let mine = place(worker);
    let total: usize = worker.machines().iter().map(|machine| machine.1).sum();
    let spec = work(worker).spec.clone();
    let all = all_rows(&spec);
    let stay = all.iter().filter_map(|(name, _)| object_of(name)).collect();
    let is_first = work(worker).starts == 0;
    let part = all.into_iter().enumerate();
    let part = part.filter(|(index, _)| is_first && index % total == mine);
    work(worker).rows = Some(Rows {
        stream: benchmark(&spec)
            .stream()
            .expect("the benchmark's options are valid"),
        tables: Vec::new(),
        to_load: part.map(|(_, row)| row).collect(),
        begun: 0,
        loaded: false,
        missing: total - 1,
        stay,
    });
    open(worker);
}

fn open(worker: &mut Worker) {
    let spec = work(worker).spec.clone();
    let rows = rows(worker);
    let next = rows.tables.len();
    let all = benchmark(&spec).tables();
    let Some(table) = all.get(next) else {
        let tables: Vec<_> = all.iter().copied().zip(rows.tables.clone()).collect();
        attempt::attach(worker, tables, true, Some(look));
        return load(worker, (), ());
    };
    let spec = TableSpec {
        id: FIRST_TABLE + next as u16,
        value_bytes: attempt::value_bytes(table, true),
        ..spec.table()
    };
    farm_kv::open(worker, spec, Cont::new(opened, ()));
}

fn opened(worker: &mut Worker, (): (), table: Result<TableId, KvError>) {
    match table {
        Ok(table) => {
            rows(worker).tables.push(table);
            open(worker);
        }
        Err(KvError::PeerLost(_) | KvError::InDoubt(_)) => end_all(worker),
        Err(error) => give_up(worker, format!("cannot open a table: {error}")),
    }
}

fn load(worker: &mut Worker, (): (), (): ()) {
    let now = moment(worker);
    let rows = rows(worker);
    rows.begun = now;
    let Some((name, row)) = rows.to_load.last().copied() else {
        rows.loaded = true;
        return match work(worker).starts {
            0 => ask_all(worker),
            // All rows are loaded.
            _ => begin_all(worker),
        };
    };
    let table = attempt::table_of(worker, &name);
    let value = attempt::value_of(&row, Some(Stamp::default()));
    let change = Change::Insert(&value);
    let loaded = Cont::new(loaded, ());
    if let Err(error) = farm_kv::change(worker, table, &name.table_key(), change, loaded) {
        give_up(worker, format!("cannot load row {name}: {error}"));
    }
}

fn loaded(worker: &mut Worker, (): (), result: Result<Changed, KvError>) {
    let ended = moment(worker);
    let client = first_client(worker) as u32;
    match result {
        Ok(Changed::Inserted) => {
            let rows = rows(worker);
            let begun = rows.begun;
            let (name, _) = rows
                .to_load
                .pop()
                .expect("the row that was inserted is in `to_load`");
            if let Some(key) = key_of(&name) {
                work(worker).log.operate(KeyOperation {
                    client,
                    key,
                    begun,
                    ended,
                    request: KeyRequest::Insert(LOADED_VALUE | key),
                    result: Some(KeyResult::Inserted),
                });
            }
            load(worker, (), ());
        }
        Err(KvError::Conflict | KvError::Busy) => load(worker, (), ()),
        Err(KvError::PeerLost(_) | KvError::InDoubt(_)) => end_all(worker),
        other => give_up(
            worker,
            format!("cannot load a row: the insert returned {other:?}"),
        ),
    }
}

/// Asks every other worker whether it has loaded its part.
fn ask_all(worker: &mut Worker) {
    let me = worker.me();
    for machine in 0..worker.machines().len() {
        for index in 0..workers(worker, machine) {
            if (worker.machines()[machine].0, id(index)) != (me.machine, me.worker) {
                ask(worker, (machine as u32, index as u32), ());
            }
        }
    }
    if rows(worker).missing == 0 {
        begin_all(worker);
    }
}

/// Asks a worker, given by the indices of its machine and of the worker on it.
fn ask(worker: &mut Worker, whom: (u32, u32), (): ()) {
    let machine = worker.machines()[whom.0 as usize].0;
    let to = farm_core::ids::WorkerRef::new(machine, id(whom.1 as usize));
    match worker.call(
        to,
        WHERE,
        &[&ASK_LOADED],
        1,
        ReplyCont::new(loaded_answered, whom),
    ) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, whom)),
        Err(CallError::PeerLost(_)) => end_all(worker),
        Err(error) => give_up(
            worker,
            format!("cannot ask worker {to} whether its rows are loaded: {error}"),
        ),
    }
}

pub(super) fn answer(worker: &mut Worker, request: Request) {
    let work = work(worker);
    let loaded = work.rows.as_ref().is_some_and(|rows| rows.loaded);
    let answer = match (loaded, work.gave_up) {
        (_, true) => SETUP_FAILED,
        (true, _) => ROWS_LOADED,
        _ => &[],
    };
    worker.reply(request, &[answer]);
}

fn loaded_answered(worker: &mut Worker, whom: (u32, u32), reply: Result<&[u8], CallError>) {
    match reply {
        Ok([]) => worker.set_timer(ASK_AGAIN, Cont::new(ask, whom)),
        Ok(answer) if answer == ROWS_LOADED => {
            let rows = rows(worker);
            rows.missing -= 1;
            if rows.missing == 0 {
                begin_all(worker);
            }
        }
        _ => end_all(worker),
    }
}

/// Begins a transaction that is drawn at random.
pub(super) fn begin(worker: &mut Worker, index: usize) {
    let work = work(worker);
    let state = &mut work.clients[index];
    let rows = work
        .rows
        .as_ref()
        .expect("only the workloads smallbank and tatp begin transactions over rows");
    state.doing = Doing::Rows(RowsTransaction {
        what: rows.stream.next(&mut state.rng),
        attempt: 0,
        tried: None,
        asked: None,
    });
    attempt(worker, index, ());
}

fn attempt(worker: &mut Worker, client: usize, (): ()) {
    let state = &mut work(worker).clients[client];
    let Doing::Rows(pending) = state.doing else {
        return;
    };
    let transaction = u64::from(state.number) << 24 | state.sequence;
    let number = transaction << ATTEMPT_BITS | u64::from(pending.attempt);
    // The choice depends on the transaction, so that all of its attempts are made in the same way.
    let mixed = transaction.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let run = match mixed % 100 < u64::from(work(worker).spec.tasks) {
        true => task::run,
        false => attempt::run,
    };
    run(worker, pending.what, number, Cont::new(ended, client));
}

/// Records an attempt that is about to commit: from now on it may have taken effect.
fn look(worker: &mut Worker, trail: &Trail) {
    let first = first_client(worker);
    let work = work(worker);
    let number = trail.number >> ATTEMPT_BITS;
    let state = &mut work.clients[(number >> 24) as usize - first];
    let Doing::Rows(pending) = &mut state.doing else {
        return;
    };
    let (client, begun) = (state.number, state.begun);
    if pending.asked.is_none() {
        work.log.ask(number, client, begun);
        pending.asked = Some(number);
    }
    pending.tried = Some(work.log.attempt(Tried {
        number,
        committed: None,
        accesses: accesses(trail),
    }));
    state.unsure = operations(trail, client, begun, begun, false);
    state.unsure_cents = cents(trail);
    work.log.doubt(client, &state.unsure, state.unsure_cents);
}

fn ended(worker: &mut Worker, client: usize, (trail, result): (Box<Trail>, Result<(), Stop>)) {
    let now = moment(worker);
    let index = client;
    let work = work(worker);
    let state = &mut work.clients[index];
    let Doing::Rows(mut pending) = state.doing else {
        return;
    };
    let tried = pending.tried.take();
    if let (Some(tried), false) = (tried, matches!(result, Err(Stop::InDoubt(_)))) {
        work.log.settle(tried, Some(result.is_ok()));
        if result.is_ok() {
            let operations = operations(&trail, state.number, state.begun, now, true);
            operations.into_iter().for_each(|one| work.log.operate(one));
            work.log.pay(cents(&trail));
        }
        work.log.doubt(state.number, &[], 0);
        state.unsure.clear();
        state.unsure_cents = 0;
    }
    if result.is_ok() {
        let stay = &work
            .rows
            .as_ref()
            .expect("only the workloads smallbank and tatp begin transactions over rows")
            .stay;
        let seen = trail.names.iter().zip(&trail.seen);
        for (name, _) in seen.filter(|(_, seen)| seen.row.is_none()) {
            if object_of(name).is_some_and(|object| stay.contains(&object)) {
                let why = format!("{name} was absent, although no transaction removes it");
                work.log.violate(why);
            }
        }
    }
    match result {
        Ok(()) if trail.lock_free => work.log.read(Transaction {
            client: state.number,
            begun: state.begun,
            ended: now,
            outcome: Outcome::Committed,
            accesses: accesses(&trail),
        }),
        Ok(()) => {
            if let Some(number) = pending.asked {
                work.log.end(number, now, Outcome::Committed);
            }
        }
        Err(Stop::Conflict(_)) if pending.attempt < MOST_ATTEMPTS => {
            pending.attempt += 1;
            let most = BACKOFF_NANOS * u64::from(pending.attempt);
            let wait = Duration::from_nanos(state.rng.random_range(1..=most));
            state.doing = Doing::Rows(pending);
            return worker.set_timer(wait, Cont::new(attempt, client));
        }
        Err(Stop::Conflict(_) | Stop::Full(_)) => {
            if let Some(number) = pending.asked {
                work.log.end(number, now, Outcome::Aborted);
            }
        }
        Err(Stop::Lost(_) | Stop::InDoubt(_) | Stop::Leaving) => return end_all(worker),
        Err(Stop::Failed(why)) => {
            work.log.violate(why);
            return end_all(worker);
        }
    }
    clients::ended(worker, index);
}

/// Returns the cents that a transaction adds to the total of all accounts.
fn cents(trail: &Trail) -> i64 {
    let decision = trail.decision.as_ref();
    decision.map_or(0, |decision| decision.delta_cents)
}

/// Checks the rows of this worker's shards, and adds them to the final state.
pub(super) fn finish(worker: &mut Worker, finished: &mut FinalState) -> Result<(), String> {
    let me = worker.me();
    for table in rows(worker).tables.clone() {
        let facts = farm_kv::ops::check(worker, table)?;
        finished.live += facts.iter().map(|shard| shard.blocks).sum::<u64>();
    }
    for (name, _) in all_rows(&work(worker).spec.clone()) {
        let (Some(object), table) = (object_of(&name), attempt::table_of(worker, &name)) else {
            continue;
        };
        let key = name.table_key();
        let at = farm_kv::lookup::place_of(worker, table, &key);
        if at.map_err(|error| error.to_string())?.owner() != me {
            continue;
        }
        let mut tx = farm_txn::checkout(worker);
        let last = farm_kv::tx::get_here(worker, &mut tx, table, &key);
        let last = last.map(|found| found.map(|found| found.of(&tx).to_vec()));
        let locked = tx.locked_now(worker);
        farm_txn::checkin(worker, tx);
        if let Some(at) = locked {
            return Err(format!("{name}: the object at {at} is still locked"));
        }
        let value = last.map_err(|error| format!("{name}: {error}"))?;
        let value = value.ok_or_else(|| {
            format!("{name} is missing at the end of the run, although no transaction removes it")
        })?;
        let (row, stamp) = value.split_at(name.table.row_bytes);
        let stamp = Stamp::of(stamp).ok_or_else(|| {
            format!("the value of {name} does not contain the id of the write that produced it")
        })?;
        let word = row
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        finished.objects.push(Last {
            read: read_of(object, stamp),
            value: word,
        });
    }
    Ok(())
}

/// Checks that the sum of all accounts is the initial sum plus the cents that clients added. Each of `unsure` may have been added, too.
pub(super) fn check(
    spec: &Spec,
    objects: &[Last],
    (paid_in, unsure): (i64, &[i64]),
) -> Result<(), String> {
    let Some(initial) = benchmark(spec).initial_cents() else {
        return Ok(());
    };
    let cents: i64 = objects.iter().map(|object| object.value as i64).sum();
    let wanted = initial + i128::from(paid_in);
    let mut sums = BTreeSet::from([wanted]);
    for cents in unsure.iter().filter(|cents| **cents != 0) {
        let more: Vec<i128> = sums.iter().map(|sum| sum + i128::from(*cents)).collect();
        sums.extend(more);
    }
    match sums.contains(&i128::from(cents)) {
        true => Ok(()),
        false => Err(format!(
            "all accounts together have {cents} cents, not {wanted}"
        )),
    }
}
