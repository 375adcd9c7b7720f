//! The costs of a commit by the formula of the protocol (`FaRM'15 §4`): records, one-sided reads and messages. Each
//! case has its own cluster, so that nothing else is counted.

use std::sync::mpsc;

use farm_core::ids::Address;
use farm_core::messaging::MessageCounters;
use farm_core::worker::{Cont, LogCounters, Worker};
use farm_txn::{Abort, ObjectId, RecordCounters, TxCounters, TxError, TxHandle, api};

use crate::cluster::{Cluster, cluster, commit, overwrite};

const MACHINES: usize = 4;
const BYTES: usize = 8;

/// The numbers of objects on each machine that a transaction writes, and that it only reads. The transaction runs on
/// the first machine.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    written: [usize; MACHINES],
    read: [usize; MACHINES],
}

const fn case(name: &'static str, written: [usize; MACHINES], read: [usize; MACHINES]) -> Case {
    Case {
        name,
        written,
        read,
    }
}

/// All counters of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) tx: TxCounters,
    pub(crate) log: LogCounters,
    messages: MessageCounters,
    reads: u64,
    pub(crate) writes: u64,
}

pub(crate) fn counted(cluster: &Cluster, machine: usize) -> Counted {
    cluster.on(machine, 0, |w| {
        let fabric = w.fabric_counters();
        Counted {
            tx: farm_txn::counters(w),
            log: w.log_counters(),
            messages: w.message_counters(),
            reads: fabric.reads,
            writes: fabric.writes,
        }
    })
}

type ReadAnswer = mpsc::Sender<Result<ObjectId, TxError>>;

fn read_done(worker: &mut Worker, _: u64, result: Result<ObjectId, TxError>) {
    worker.take_layer::<ReadAnswer>().send(result).unwrap();
}

pub(crate) fn read(cluster: &Cluster, tx: TxHandle, at: Address) -> ObjectId {
    let read = cluster.machines[0].ask(0, move |w, answer: ReadAnswer| {
        w.put_layer(Box::new(answer));
        api::read(w, tx, at, BYTES, Cont::new(read_done, 0));
    });
    read.unwrap().unwrap()
}

/// The objects of a case: those to write, and those only to read.
pub(crate) struct Objects {
    pub(crate) written: Vec<Address>,
    pub(crate) read: Vec<Address>,
}

fn objects(cluster: &Cluster, case: &Case) -> Objects {
    let make = |counts: [usize; MACHINES]| {
        let mut made = vec![];
        for (machine, count) in counts.into_iter().enumerate() {
            made.extend((0..count).map(|_| cluster.create(machine, 0, &1u64.to_le_bytes())));
        }
        made
    };
    let objects = Objects {
        written: make(case.written),
        read: make(case.read),
    };
    // The first access to each region asks for its location. Do that before counting.
    let tx = cluster.on(0, 0, api::begin);
    for at in objects.written.iter().chain(&objects.read) {
        read(cluster, tx, *at);
    }
    cluster.on(0, 0, move |w| api::abort(w, tx));
    objects
}

/// Reads all objects, and writes those to write, without a commit.
pub(crate) fn execute(cluster: &Cluster, objects: &Objects) -> TxHandle {
    let tx = cluster.on(0, 0, api::begin);
    for at in &objects.written {
        let object = read(cluster, tx, *at);
        cluster.on(0, 0, move |w| {
            api::payload_mut(w, tx, object).unwrap()[0] = 2
        });
    }
    for at in &objects.read {
        read(cluster, tx, *at);
    }
    tx
}

/// Waits until all records were handled and truncated.
pub(crate) fn rest(cluster: &Cluster) {
    for _ in 0..1_000_000 {
        let all: Vec<(u64, u64, bool)> = (0..cluster.machines.len())
            .map(|machine| {
                cluster.on(machine, 0, |w| {
                    let LogCounters {
                        appended, handled, ..
                    } = w.log_counters();
                    (appended, handled, farm_txn::left_over(w).is_none())
                })
            })
            .collect();
        let appended: u64 = all.iter().map(|one| one.0).sum();
        let handled: u64 = all.iter().map(|one| one.1).sum();
        if appended == handled && all.iter().all(|one| one.2) {
            return;
        }
        std::thread::yield_now();
    }
    panic!("some records were not handled or truncated in time");
}

/// Runs a case. Calls `meanwhile` before the commit. Returns the outcome, and the counts of every machine from then
/// until all records were handled.
fn run(
    case: &Case,
    meanwhile: impl FnOnce(&Cluster, &Objects),
) -> (Result<(), TxError>, Vec<Counted>) {
    let name = format!("counts-{}", case.name.replace([' ', ','], "-"));
    let cluster = cluster(&name, MACHINES as u16, 1);
    let objects = objects(&cluster, case);
    let tx = execute(&cluster, &objects);
    meanwhile(&cluster, &objects);
    let before: Vec<Counted> = (0..MACHINES).map(|at| counted(&cluster, at)).collect();
    let ended = commit(&cluster, tx);
    rest(&cluster);
    let after = (0..MACHINES).map(|at| difference(&before[at], &counted(&cluster, at)));
    let after = after.collect();
    if ended.is_ok() {
        for (machine, count) in case.written.into_iter().enumerate() {
            let mine = case.written[..machine].iter().sum::<usize>();
            for at in objects.written[mine..][..count].iter().copied() {
                let seen = cluster.contents(machine, 0, at, 1).unwrap();
                assert_eq!(seen, [2]);
            }
        }
    }
    cluster.stop();
    (ended, after)
}

pub(crate) fn difference(before: &Counted, after: &Counted) -> Counted {
    let (log, messages) = (&after.log, &after.messages);
    Counted {
        tx: after.tx.since(&before.tx),
        log: LogCounters {
            appended: log.appended - before.log.appended,
            appended_bytes: log.appended_bytes - before.log.appended_bytes,
            acknowledged: log.acknowledged - before.log.acknowledged,
            handled: log.handled - before.log.handled,
            full: log.full - before.log.full,
            own: log.own - before.log.own,
            own_bytes: log.own_bytes - before.log.own_bytes,
        },
        messages: MessageCounters {
            calls: messages.calls - before.messages.calls,
            one_way: messages.one_way - before.messages.one_way,
            replies: messages.replies - before.messages.replies,
            received: messages.received - before.messages.received,
            handed_over: messages.handed_over - before.messages.handed_over,
            deferred: messages.deferred - before.messages.deferred,
            busy: messages.busy - before.messages.busy,
        },
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
    }
}

/// The expected costs of a commit on one other machine.
struct Expected {
    /// LOCK, COMMIT-PRIMARY or ABORT, TRUNCATE.
    records: u64,
    headers: u64,
    /// VALIDATE requests; each has a reply.
    validates: u64,
}

/// Addresses with versions per message, with the message size of these clusters.
const IN_MESSAGE: usize = 512 / 16;

fn expected(case: &Case, machine: usize) -> Expected {
    let writes = case.written.iter().any(|count| *count > 0);
    let one = case.written.iter().chain(&case.read).sum::<usize>() == 1;
    let (written, read) = (case.written[machine], case.read[machine]);
    let by_message = writes && read > 4;
    Expected {
        records: if written > 0 { 3 } else { 0 },
        headers: if by_message || one { 0 } else { read as u64 },
        validates: if by_message {
            read.div_ceil(IN_MESSAGE) as u64
        } else {
            0
        },
    }
}

fn check_committed(case: &Case) {
    let (ended, counted) = run(case, |_, _| ());
    ended.unwrap();
    let remote: Vec<Expected> = (1..MACHINES).map(|at| expected(case, at)).collect();
    let sum = |of: fn(&Expected) -> u64| remote.iter().map(of).sum::<u64>();
    let (records, headers) = (sum(|one| one.records), sum(|one| one.headers));
    let (validates, primaries) = (sum(|one| one.validates), records / 3);
    let name = case.name;
    let distributed = (1..MACHINES).any(|at| case.written[at] + case.read[at] > 0);
    let coordinator = &counted[0];
    let tx = TxCounters {
        committed: 1,
        distributed: u64::from(distributed),
        records: RecordCounters {
            lock: primaries,
            commit_backup: 0,
            commit_primary: primaries,
            abort: 0,
            truncate: primaries,
        },
        header_reads: headers,
        validates,
        lock_replies: primaries,
        ..TxCounters::default()
    };
    assert_eq!(coordinator.tx, tx, "{name}");
    assert_eq!(coordinator.log.appended, records, "{name}");
    assert_eq!(coordinator.log.acknowledged, primaries, "{name}");
    assert_eq!(coordinator.messages.calls, validates, "{name}");
    assert_eq!(
        coordinator.messages.received,
        primaries + validates,
        "{name}"
    );
    assert_eq!(coordinator.reads, headers, "{name}");
    assert_eq!(coordinator.writes, records + validates, "{name}");
    for (machine, found) in counted.iter().enumerate().skip(1) {
        let want = expected(case, machine);
        assert_eq!(found.log.handled, want.records, "{name}, {machine}");
        assert_eq!(found.messages.received, want.validates, "{name}, {machine}");
        let replies = want.validates + want.records / 3;
        assert_eq!(found.messages.replies, replies, "{name}, {machine}");
        if want.records + want.validates == 0 {
            // The processor of this machine did nothing, although its memory may have been read.
            assert_eq!(*found, Counted::default(), "{name}, {machine}");
        }
    }
}

#[test]
fn a_commit_writes_a_lock_and_a_commit_record_to_every_other_primary() {
    check_committed(&case("one primary", [0, 1, 0, 0], [0; 4]));
    check_committed(&case("one of many", [0, 5, 0, 0], [0; 4]));
    check_committed(&case("two primaries", [0, 1, 1, 0], [0; 4]));
    check_committed(&case("three primaries", [0, 2, 1, 3], [0; 4]));
}

#[test]
fn objects_of_the_coordinators_machine_need_no_record() {
    check_committed(&case("here", [3, 0, 0, 0], [2, 0, 0, 0]));
    check_committed(&case("here and there", [2, 1, 0, 0], [1, 0, 0, 0]));
    check_committed(&case("here, read there", [1, 0, 0, 0], [0, 2, 1, 0]));
}

#[test]
fn a_few_objects_that_were_only_read_cost_a_header_read_each() {
    check_committed(&case("one", [0; 4], [0, 1, 0, 0]));
    check_committed(&case("two", [0; 4], [0, 2, 0, 0]));
    check_committed(&case("everywhere", [0; 4], [1, 4, 3, 1]));
    check_committed(&case("and one written", [0, 1, 0, 0], [0, 4, 4, 1]));
}

#[test]
fn more_than_four_reads_of_one_machine_are_validated_by_message_if_the_transaction_writes() {
    check_committed(&case("only read", [0; 4], [0, 5, 9, 0]));
    check_committed(&case("five", [0, 1, 0, 0], [0, 0, 5, 0]));
    check_committed(&case("five here written", [1, 0, 0, 0], [0, 5, 4, 0]));
    check_committed(&case("more than a message", [0, 0, 0, 1], [9, 33, 6, 2]));
}

#[test]
fn an_abort_costs_a_record_for_every_lock_that_was_sent() {
    let change = |machine: usize, at: Address| {
        move |cluster: &Cluster| {
            let changed = cluster.transact(machine, 0, move |tx, w| overwrite(tx, w, at, &[9]));
            changed.unwrap();
        }
    };
    // Another transaction wrote an object of the last primary, so its lock is refused.
    let all = case("refused", [0, 1, 1, 1], [0; 4]);
    let (ended, counted) = run(&all, |cluster, objects| {
        change(3, objects.written[2])(cluster)
    });
    assert!(matches!(ended, Err(TxError::Abort(Abort::Changed(_)))));
    let records = RecordCounters {
        lock: 3,
        commit_backup: 0,
        commit_primary: 0,
        abort: 3,
        truncate: 3,
    };
    assert_eq!(counted[0].tx.records, records);
    assert_eq!(
        (counted[0].tx.aborts.changed, counted[0].tx.committed),
        (1, 0)
    );
    assert_eq!(counted[0].tx.lock_replies, 3);

    // Another transaction wrote an object of this machine, so the commit sends nothing to other machines.
    let here = case("refused here", [1, 1, 1, 0], [0; 4]);
    let (ended, counted) = run(&here, |cluster, objects| {
        change(0, objects.written[0])(cluster)
    });
    assert!(matches!(ended, Err(TxError::Abort(Abort::Changed(_)))));
    assert_eq!(counted[0].tx.records, RecordCounters::default());
    assert_eq!((counted[0].writes, counted[0].reads), (0, 0));
    assert_eq!(counted[1..], [Counted::default(); 3]);

    // Another transaction wrote an object that was only read, so the validation fails.
    let reads = case("changed", [0, 1, 0, 0], [0, 0, 1, 0]);
    let (ended, counted) = run(&reads, |cluster, objects| {
        change(2, objects.read[0])(cluster)
    });
    assert!(matches!(ended, Err(TxError::Abort(Abort::Changed(_)))));
    let records = RecordCounters {
        lock: 1,
        commit_backup: 0,
        commit_primary: 0,
        abort: 1,
        truncate: 1,
    };
    assert_eq!(counted[0].tx.records, records);
    assert_eq!(counted[0].tx.header_reads, 1);
    assert_eq!(counted[2], Counted::default());
}

/// Sequential transactions on the first worker; each begins when the last one ends.
struct Chain {
    objects: Vec<Address>,
    read: usize,
    tx: Option<TxHandle>,
    left: u64,
    began: farm_core::time::Nanos,
    done: mpsc::Sender<u64>,
}

fn begin_next(worker: &mut Worker) {
    let tx = api::begin(worker);
    let chain = worker.layer::<Chain>().unwrap();
    (chain.tx, chain.read) = (Some(tx), 0);
    read_next(worker, tx);
}

fn read_next(worker: &mut Worker, tx: TxHandle) {
    let chain = worker.layer::<Chain>().unwrap();
    match chain.objects.get(chain.read).copied() {
        Some(at) => api::read(worker, tx, at, BYTES, Cont::new(chain_read, 0)),
        None => api::commit(worker, tx, Cont::new(chain_ended, 0)),
    }
}

fn chain_read(worker: &mut Worker, _: u64, object: Result<ObjectId, TxError>) {
    let chain = worker.layer::<Chain>().unwrap();
    chain.read += 1;
    let tx = chain.tx.unwrap();
    api::payload_mut(worker, tx, object.unwrap()).unwrap()[0] += 1;
    read_next(worker, tx);
}

fn chain_ended(worker: &mut Worker, _: u64, result: Result<(), TxError>) {
    // The lock of the previous transaction may still be held. In that case the transaction is retried.
    let committed = u64::from(result.is_ok());
    let now = worker.now();
    let chain = worker.layer::<Chain>().unwrap();
    chain.left -= committed;
    if chain.left > 0 {
        return begin_next(worker);
    }
    let took = now.since(chain.began).as_nanos() as u64;
    chain.done.send(took).unwrap();
}

/// Each commit writes two records to each primary, because truncations are carried by the records of later commits. A
/// TRUNCATE record is sent only if its timer finds a truncation that no record has carried yet.
#[test]
fn truncations_are_carried_by_the_records_of_later_transactions() {
    const COMMITS: u64 = 100;
    let cluster = cluster("counts-chain", MACHINES as u16, 1);
    let all = case("chain", [0, 1, 1, 1], [0; 4]);
    let Objects { written, .. } = objects(&cluster, &all);
    let before = counted(&cluster, 0);
    let (done, took) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        let began = w.now();
        w.put_layer(Box::new(Chain {
            objects: written,
            read: 0,
            tx: None,
            left: COMMITS,
            began,
            done,
        }));
        begin_next(w);
    });
    let took = cluster.machines[0].wait_for(&took).unwrap();
    rest(&cluster);
    let tx = counted(&cluster, 0).tx.since(&before.tx);
    let primaries = 3;
    assert_eq!(tx.committed, COMMITS);
    assert_eq!(tx.records.commit_primary, primaries * COMMITS);
    assert_eq!(
        tx.records.lock,
        tx.records.commit_primary + tx.records.abort
    );
    // The transactions are sequential, so one TRUNCATE record carries all truncations. The timer expires at most once
    // per interval, and twice after the end: for the last two transactions.
    let timers = 2 + took / 500_000;
    assert!(
        tx.records.truncate <= primaries * timers,
        "{tx:?} in {took} ns"
    );
    cluster.stop();
}
