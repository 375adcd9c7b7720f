//! Attaches the transaction layer to a worker, and configures it.

use std::time::Duration;

use farm_core::worker::Worker;

use crate::backoff::BackoffConfig;
use crate::commit::{serve, validate};
use crate::counters::TxCounters;
use crate::layer::{Transactions, transactions};
use crate::limits::TxLimits;
use crate::{arrays, leave, remote, slots};

/// Attaches the transaction layer to a worker.
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::new(Transactions::new(
        worker.membership().configuration(),
    )));
    let config = worker.transactions_config();
    crate::tasks::attach(worker, Duration::from_millis(config.open_ms.into()));
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
    worker.register_log(serve::handle);
    leave::attach(worker);
    crate::recovery::serve::attach(worker);
}

/// Sets the limits of the transactions that this worker begins from now on. The initial limits are
/// `transactions.objects` and `transactions.bytes` of the configuration.
///
/// # Panics
/// If the layer is not attached.
pub fn set_limits(worker: &mut Worker, limits: TxLimits) {
    transactions(worker).limits = limits;
}

/// Sets whether commits on this worker lock exclusively from the start if all of their objects are stored on this
/// machine. By default such commits lock in the mode that lets lock-free reads pass while locks are gathered (`FaRM'14
/// §3.4`). Both are correct; this setting measures the value of that mode.
pub fn lock_exclusively(worker: &mut Worker, from_the_start: bool) {
    transactions(worker).locks_exclusively = from_the_start;
}

/// Sets how many transactions of this worker may have begun to write records from the first one on that has not ended. By
/// default it is 4,096. For tests.
#[doc(hidden)]
pub fn set_most_ahead(worker: &mut Worker, most: u64) {
    transactions(worker).truncations.set_most_ahead(most);
}

/// Returns the counts of this worker's transactions so far.
pub fn counters(worker: &mut Worker) -> TxCounters {
    transactions(worker).counters
}

/// Returns the maximum number of commits of this worker that reserved room in a log while a commit that had requested
/// room there earlier still waited.
#[doc(hidden)]
pub fn most_overtaken(worker: &mut Worker) -> u64 {
    transactions(worker).queues.most_overtaken()
}

/// Returns a description of resources of transactions that this worker still holds. Call it when no operation is in
/// flight: such resources are then a leak. Returns `None` if there are none.
pub fn left_over(worker: &mut Worker) -> Option<String> {
    let tasks = crate::tasks::tasks(worker).held();
    let state = transactions(worker);
    let changes = leave::changes_under_way(state);
    let held = [
        ("calls to other machines", state.calls.len()),
        ("reads of arrays", state.arrays.len()),
        (
            "results that were not passed to their continuations",
            state.results.len(),
        ),
        ("transactions to retry", state.gate.len()),
        ("records in logs", state.primary.records()),
        ("records in the own log", state.own.records()),
        ("slots reserved for other machines", state.lent.len()),
        ("slots released twice", state.not_released),
    ];
    let held = tasks.into_iter().chain(changes).chain(held);
    let what = leave::first_held(&held.collect::<Vec<_>>())?;
    Some(format!(
        "leak on worker {}: {what}, although every operation should have ended",
        worker.me()
    ))
}

#[cfg(test)]
mod tests {
    use farm_core::config::Config;
    use farm_core::ids::Address;
    use farm_core::worker::Cont;
    use farm_testing::TestCluster;

    use super::*;
    use crate::api;
    use crate::tx::Tx;

    /// Thousands of transactions, ended in every way there is: contexts come back, and no more are
    /// made than were open at one time.
    #[test]
    fn nothing_is_kept_of_transactions_that_have_ended() {
        const AT_ONCE: usize = 5;
        let cluster = TestCluster::start("txn-pool", Config::tiny_for(1, 1), attach);
        // Commits that wait for the first region would hold contexts.
        cluster.on(0, 0, |worker| {
            let class = farm_core::alloc::class_for_payload(100).unwrap();
            let (object, _) = worker.reserve_object(class, None).unwrap();
            worker.release_object(object.address).unwrap();
        });
        for _ in 0..300 {
            cluster.on(0, 0, |worker| {
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
            });
        }
        let waiting = |worker: &mut Worker| transactions(worker).results.len();
        while cluster.on(0, 0, waiting) > 0 {
            std::thread::yield_now();
        }
        cluster.on(0, 0, |worker| {
            worker.check_slab().unwrap();
            assert_eq!(worker.arena().taken(), 0);
            let layer = transactions(worker);
            assert_eq!((layer.open.len(), layer.results.len()), (0, 0));
            assert!(layer.pool.len() <= AT_ONCE && layer.releases.is_empty());
            assert!(layer.pool.iter().all(|tx| tx.is_empty()));
        });
        cluster.stop();
    }
}
