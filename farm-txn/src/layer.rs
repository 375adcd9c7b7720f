//! What the transaction layer keeps with each worker: a pool of contexts, and the transactions that
//! are open through handles.

use std::time::Duration;

use farm_core::ids::WorkerRef;
use farm_core::worker::{Operation, Worker};

use crate::arrays::{self, AskedArray};
use crate::backoff::BackoffConfig;
use crate::commit::coordinator::{CommitId, Coordinator};
use crate::commit::primary::Primary;
use crate::commit::queues::Queues;
use crate::commit::truncations::Truncations;
use crate::commit::validate;
use crate::counters::TxCounters;
use crate::error::TxError;
use crate::handle::{OpenTx, TxHandle};
use crate::object_run::ObjectRun;
use crate::remote::{self, Asked};
use crate::results::DeferredResult;
use crate::retry::{Gate, Run};
use crate::slots;
use crate::tx::{Tx, TxLimits};

/// The results for which memory is allocated in advance.
const EXPECTED_RESULTS: usize = 256;

/// State of the layer on one worker.
#[derive(Default)]
pub(crate) struct Transactions {
    /// Boxed, as they go from hand to hand and back.
    #[allow(clippy::vec_box)]
    pool: Vec<Box<Tx>>,
    pub(crate) open: slab::Slab<OpenTx>,
    /// Results on their way to continuations.
    pub(crate) results: slab::Slab<DeferredResult>,
    /// Calls that other machines have to answer.
    pub(crate) asked: slab::Slab<Asked>,
    /// Arrays that are being read.
    pub(crate) arrays: slab::Slab<AskedArray>,
    pub(crate) generation: u32,
    /// Transactions that are tried until they commit, and how many of them at once.
    pub(crate) runs: slab::Slab<Run>,
    pub(crate) gate: Gate,
    /// Most that a transaction of this worker may hold.
    limits: TxLimits,
    /// How long reads of one transaction that time out are tried again.
    pub(crate) patience: Duration,
    /// Slots on their way to other workers.
    pub(crate) releases: Vec<(WorkerRef, ObjectRun)>,
    /// Commits that are under way over several machines; out while they are worked on.
    pub(crate) commits: slab::Slab<Option<Box<Coordinator>>>,
    /// Commits that have ended, to be used again with the memory that they have.
    #[allow(clippy::vec_box)]
    pub(crate) spare_commits: Vec<Box<Coordinator>>,
    pub(crate) truncations: Truncations,
    /// The two parts of the log record that is being appended.
    pub(crate) record_head: Vec<u8>,
    pub(crate) record_rest: Vec<u8>,
    /// Commits that wait for room in logs.
    pub(crate) queues: Queues,
    pub(crate) primary: Primary,
    /// The body of the VALIDATE message that is being sent.
    pub(crate) validate_body: Vec<u8>,
    pub(crate) counters: TxCounters,
    /// Commits of this machine's objects alone do without the readable mode of locks.
    pub(crate) locks_exclusively: bool,
}

/// Attaches the transaction layer to a worker.
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::new(Transactions {
        results: slab::Slab::with_capacity(EXPECTED_RESULTS),
        ..Transactions::default()
    }));
    crate::tasks::attach(worker);
    let config = worker.transactions_config();
    let patience = Duration::from_millis(config.patience_ms.into());
    let limits = TxLimits {
        objects: config.objects as usize,
        bytes: config.bytes as usize,
    };
    set_limits(worker, limits);
    let avoidance = BackoffConfig {
        concurrency: config.concurrency as usize,
        ..BackoffConfig::default()
    };
    crate::retry::configure(worker, avoidance);
    crate::retry::set_patience(worker, patience);
    worker.register(slots::RELEASE, slots::handle);
    worker.register(validate::VALIDATE, validate::handle);
    worker.register(remote::ALLOC, remote::handle_alloc);
    worker.register(arrays::ALLOC_ARRAY, arrays::handle_alloc);
    worker.register_log(crate::commit::serve::handle);
}

/// Sets how much each transaction that this worker begins from now on may hold. Until it is set that is
/// `transactions.objects` and `transactions.bytes` of the configuration.
///
/// # Panics
/// If the layer is not attached.
pub fn set_limits(worker: &mut Worker, limits: TxLimits) {
    transactions(worker).limits = limits;
}

/// Makes commits on this worker whose objects all lie here lock exclusively from the start, or again in the
/// mode that lets lock-free reads pass while locks are gathered (`FaRM'14 §3.4`), as they do unless told.
/// For measuring what that mode is worth; both are right.
pub fn lock_exclusively(worker: &mut Worker, from_the_start: bool) {
    transactions(worker).locks_exclusively = from_the_start;
}

/// Most commits of this worker that reserved room in a log while one that had asked for room there before them
/// still waited for it.
#[doc(hidden)]
pub fn most_overtaken(worker: &mut Worker) -> u64 {
    transactions(worker).queues.most_overtaken()
}

/// What a worker at rest still has of transactions: a leak, or `None`.
pub fn left_over(worker: &mut Worker) -> Option<String> {
    let tasks = crate::tasks::tasks(worker).held();
    let state = transactions(worker);
    let held = [
        ("commits under way", state.commits.len()),
        ("commits that wait for room in logs", state.queues.waiting()),
        ("calls that wait for other machines", state.asked.len()),
        ("arrays that are being read", state.arrays.len()),
        ("results that wait", state.results.len()),
        ("transactions to be tried", state.gate.len()),
        ("slots to be given back", state.releases.len()),
        ("transactions to be truncated", state.truncations.waiting()),
        ("records in its logs", state.primary.records()),
    ];
    let mut held = tasks.into_iter().chain(held);
    let (what, count) = held.find(|(_, count)| *count > 0)?;
    Some(format!(
        "worker {} is at rest and has {count} {what}",
        worker.me()
    ))
}

/// Returns a context from the worker's pool. It goes back by [`checkin`], or by [`commit`](crate::commit) or
/// [`validate`](crate::validate). Until then no machine uses memory again, for objects of another size, that was freed
/// since.
///
/// # Panics
/// If the layer is not attached.
pub fn checkout(worker: &mut Worker) -> Box<Tx> {
    let operation = worker.begin_operation();
    transactions(worker).context(operation)
}

/// Returns a context to the worker's pool; its transaction is aborted.
pub fn checkin(worker: &mut Worker, mut tx: Box<Tx>) {
    end_of(worker, &mut tx);
    transactions(worker).keep(tx);
}

/// Ends the transaction of a context; whatever it still holds is aborted.
pub(crate) fn end_of(worker: &mut Worker, tx: &mut Tx) {
    tx.abort(worker);
    tx.trim();
    if let Some(operation) = tx.operation.take() {
        worker.end_operation(operation);
    }
}

impl Transactions {
    /// A context for a transaction within an operation.
    pub(crate) fn context(&mut self, operation: Operation) -> Box<Tx> {
        let mut tx = match self.pool.pop() {
            Some(tx) => tx,
            None => Box::new(Tx::new()),
        };
        tx.set_limits(self.limits);
        tx.operation = Some(operation);
        tx
    }

    /// Takes a commit out while it runs.
    pub(crate) fn take(&mut self, id: CommitId) -> Box<Coordinator> {
        let commit = self.commits[id.index()].take();
        commit.expect("a commit that is stored")
    }

    /// Returns an open transaction.
    ///
    /// # Errors
    /// [`TxError::Ended`].
    pub(crate) fn entry(&mut self, tx: TxHandle) -> Result<&mut OpenTx, TxError> {
        let open = self.open.get_mut(tx.key as usize);
        open.filter(|open| open.generation == tx.generation)
            .ok_or(TxError::Ended)
    }

    /// Keeps a context whose transaction has ended, for another.
    pub(crate) fn keep(&mut self, tx: Box<Tx>) {
        self.pool.push(tx);
    }
}

pub(crate) fn transactions(worker: &mut Worker) -> &mut Transactions {
    worker
        .layer()
        .expect("farm_txn::attach was called for this worker")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farm_core::config::Config;
    use farm_core::ids::Address;
    use farm_core::machine::start_all;
    use farm_core::worker::Cont;

    use super::*;
    use crate::api;

    /// Thousands of transactions, ended in every way there is: contexts come back, and no more are
    /// made than were open at one time.
    #[test]
    fn nothing_is_kept_of_transactions_that_have_ended() {
        const AT_ONCE: usize = 5;
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::tiny_for(1, 1);
        config.cluster.name = "txn-pool".into();
        config.cluster.run_dir = dir.path().to_path_buf().into();
        let machine = start_all(&config, &(Arc::new(attach) as _))
            .unwrap()
            .remove(0);
        for _ in 0..300 {
            machine
                .ask(0, |worker, answer| {
                    let handles = [(); AT_ONCE].map(|()| api::begin(worker));
                    for (index, tx) in handles.into_iter().enumerate() {
                        let heard = Cont::new(|_, _, _| (), ());
                        api::alloc(worker, tx, 100, None, heard);
                        api::read(worker, tx, Address::NULL, 1, heard);
                        match index {
                            0 => api::abort(worker, tx),
                            1 => api::commit(worker, tx, Cont::new(|_, _, _| (), ())),
                            2 => {
                                api::with(worker, tx, |tx, worker| tx.abort(worker)).unwrap();
                                api::commit(worker, tx, Cont::new(|_, _, _| (), ()));
                            }
                            3 => {
                                let all = |tx: &mut Tx, worker: &mut Worker| {
                                    while tx.alloc(worker, 1, None).is_ok() {}
                                };
                                api::with(worker, tx, all).unwrap();
                                api::abort(worker, tx);
                            }
                            _ => {
                                // It is freed where it was born.
                                let born = |tx: &mut Tx, worker: &mut Worker| {
                                    let object = tx.alloc(worker, 100, None).unwrap();
                                    tx.free(object);
                                };
                                api::with(worker, tx, born).unwrap();
                                api::commit(worker, tx, Cont::new(|_, _, _| (), ()));
                            }
                        }
                        api::commit(worker, tx, Cont::new(|_, _, _| (), ()));
                    }
                    answer.send(()).unwrap();
                })
                .unwrap();
        }
        let waiting = |worker: &mut Worker| transactions(worker).results.len();
        while machine
            .ask(0, move |worker, answer| {
                answer.send(waiting(worker)).unwrap()
            })
            .unwrap()
            > 0
        {
            std::thread::yield_now();
        }
        machine
            .ask(0, |worker, answer| {
                worker.check_slab().unwrap();
                assert_eq!(worker.arena().taken(), 0);
                let layer = transactions(worker);
                assert_eq!((layer.open.len(), layer.results.len()), (0, 0));
                assert!(layer.pool.len() <= AT_ONCE && layer.releases.is_empty());
                assert!(layer.pool.iter().all(|tx| tx.is_empty()));
                answer.send(()).unwrap();
            })
            .unwrap();
        machine.stop().unwrap();
    }
}
