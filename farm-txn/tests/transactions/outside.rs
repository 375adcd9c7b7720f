//! Transactions by the futures of other threads, with tokio.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_testing::receive;
use farm_txn::{BackoffConfig, Handle, TxError, retry};
use tokio::runtime::Runtime;

use crate::cluster::{Cluster, cluster, cluster_of};
use crate::tasks::{add_one, wait_for_rest};

fn handle(cluster: &Cluster, machine: usize) -> Handle {
    farm_txn::handle(&cluster.machines[machine], 0).unwrap()
}

fn runtime() -> Runtime {
    Runtime::new().unwrap()
}

fn count_of(cluster: &Cluster, address: Address) -> u64 {
    let seen = cluster.look(0, address, 64).unwrap().payload[..8].to_vec();
    u64::from_le_bytes(seen.try_into().unwrap())
}

/// Thousands of tasks increment two objects together. A third of them is cancelled.
#[test]
fn thousands_of_tasks_and_cancellations_lose_nothing() {
    const TASKS: usize = 3_000;
    let cluster = cluster("outside-many", 2, 1);
    let all = [0, 1].map(|machine| cluster.create(machine, 0, &[0; 8]));
    let handles: Vec<Handle> = (0..2).map(|machine| handle(&cluster, machine)).collect();
    let done = runtime().block_on(async {
        let start = |n: usize| {
            let farm = handles[n % 2].clone();
            tokio::spawn(async move {
                farm.transact(async |tx| {
                    add_one(tx, all[0]).await?;
                    add_one(tx, all[1]).await
                })
                .await
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(start).collect();
        for task in tasks.iter().step_by(3) {
            tokio::task::yield_now().await;
            task.abort();
        }
        let mut done = 0;
        for task in tasks {
            done += u64::from(task.await.is_ok_and(|count| count.is_ok()));
        }
        done
    });
    wait_for_rest(&cluster);
    let [one, two] = all.map(|address| count_of(&cluster, address));
    assert_eq!(one, two, "a part of a transaction took effect");
    let committed: u64 = (0..2)
        .map(|machine| cluster.on(machine, 0, retry::counters).committed)
        .sum();
    // A commit that had begun when its task was cancelled has taken effect.
    assert_eq!(one, committed);
    assert!(done <= committed && done >= TASKS as u64 / 3, "{done}");
    cluster.stop();
}

/// Calls of one transaction that run at the same time see each other's effects.
#[test]
fn calls_of_a_transaction_can_run_at_the_same_time() {
    let cluster = cluster("outside-join", 2, 1);
    let all = [0, 1].map(|machine| cluster.create(machine, 0, &[0; 8]));
    let farm = handle(&cluster, 0);
    let counts = runtime().block_on(async {
        farm.transact(async |tx| {
            let (one, two) = tokio::join!(add_one(tx, all[0]), add_one(tx, all[1]));
            let again = add_one(tx, all[0]).await?;
            Ok([one?, two?, again])
        })
        .await
    });
    assert_eq!(counts.unwrap(), [1, 1, 2]);
    assert_eq!(count_of(&cluster, all[0]), 2);
    wait_for_rest(&cluster);
    cluster.stop();
}

/// A runtime that is dropped drops its futures at any point. Nothing of their transactions remains.
#[test]
fn a_dropped_runtime_leaves_nothing_behind() {
    let cluster = cluster("outside-drop", 2, 1);
    let there = cluster.create(1, 0, &[0; 8]);
    let farm = handle(&cluster, 0);
    for round in 0..20 {
        let runtime = runtime();
        for _ in 0..100 {
            let farm = farm.clone();
            runtime.spawn(async move {
                loop {
                    let _ = farm.transact(async |tx| add_one(tx, there).await).await;
                    let _ = farm.read_lock_free(there, 8).await;
                }
            });
        }
        std::thread::sleep(Duration::from_millis(round));
        runtime.shutdown_timeout(Duration::from_secs(30));
        wait_for_rest(&cluster);
    }
    let committed = cluster.on(0, 0, retry::counters).committed;
    assert_eq!(count_of(&cluster, there), committed);
    cluster.stop();
}

/// A future that a task of the worker has polled is completed by another thread, and the other way round.
#[test]
fn a_future_moves_between_a_worker_and_another_thread() {
    let cluster = cluster("outside-move", 2, 1);
    let there = cluster.create(1, 0, &[0; 8]);
    type Moved = Pin<Box<dyn Future<Output = Result<u64, TxError>> + Send>>;
    let increments = move |farm: Handle| -> Moved {
        Box::pin(async move {
            let seen = farm.transact(async |tx| add_one(tx, there).await).await?;
            let read = farm.read_lock_free(there, 8).await?;
            assert_eq!(read[..8], seen.to_le_bytes());
            Ok(seen)
        })
    };
    let mut expected = 0;
    for polls in 0..12 {
        // From the worker to this thread.
        let (send, moved) = mpsc::channel();
        cluster.on(0, 0, move |w| {
            farm_txn::spawn(w, move |farm| async move {
                let mut future = increments(farm.clone());
                let mut ended = None;
                for _ in 0..polls {
                    let polled = std::future::poll_fn(|context| {
                        std::task::Poll::Ready(future.as_mut().poll(context))
                    });
                    if let std::task::Poll::Ready(count) = polled.await {
                        ended = Some(count);
                        break;
                    }
                    farm.sleep(Duration::from_micros(50)).await;
                }
                send.send((future, ended)).unwrap();
            });
        });
        let (future, ended) = receive(&moved);
        let count = match ended {
            Some(count) => count,
            None => runtime().block_on(future),
        };
        expected += 1;
        assert_eq!(count.unwrap(), expected);
        // From this thread to the worker. A future that is dropped on the way ends its call.
        let mut future = increments(handle(&cluster, 0));
        let mut context = Context::from_waker(Waker::noop());
        let mut dropped = increments(handle(&cluster, 0));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        drop(dropped);
        assert!(future.as_mut().poll(&mut context).is_pending());
        let (send, counted) = mpsc::channel();
        cluster.on(0, 0, move |w| {
            farm_txn::spawn(w, move |_| async move { send.send(future.await).unwrap() });
        });
        expected += 1;
        assert_eq!(receive(&counted).unwrap(), expected);
    }
    wait_for_rest(&cluster);
    cluster.stop();
}

/// Transactions wait for something outside of the cluster: others of the worker run meanwhile, and those that wait for
/// too long end with an error.
#[test]
fn a_transaction_that_waits_for_others_does_not_stop_the_worker() {
    let mut config = Config::tiny_for(2, 1);
    config.transactions.open_ms = 300;
    let cluster = cluster_of("outside-wait", config);
    let there = cluster.create(1, 0, &[0; 8]);
    let other = cluster.create(1, 0, &[0; 8]);
    cluster.on(0, 0, |w| {
        let config = BackoffConfig {
            concurrency: 2,
            ..BackoffConfig::default()
        };
        retry::configure(w, config);
    });
    let farm = handle(&cluster, 0);
    runtime().block_on(async {
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let farm = farm.clone();
                tokio::spawn(async move {
                    farm.transact(async |tx| {
                        tx.read(there, 8).await?;
                        tokio::time::sleep(Duration::from_secs(3)).await;
                        add_one(tx, there).await
                    })
                    .await
                })
            })
            .collect();
        for expected in 1..=100 {
            let count = farm.transact(async |tx| add_one(tx, other).await).await;
            assert_eq!(count.unwrap(), expected);
        }
        for task in waiting {
            let outcome = task.await.unwrap();
            let expired = Duration::from_millis(300);
            assert!(
                matches!(outcome, Err(TxError::OpenTooLong(most)) if most == expired),
                "{outcome:?}"
            );
        }
        // One that waits for a shorter time commits.
        let patient = farm.transact(async |tx| {
            tx.read(there, 8).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            add_one(tx, there).await
        });
        assert_eq!(patient.await.unwrap(), 1);
    });
    let counted = cluster.on(0, 0, retry::counters);
    assert_eq!((counted.committed, counted.failed), (101, 8));
    wait_for_rest(&cluster);
    cluster.stop();
}

/// The error of a caller.
#[derive(Debug)]
enum OrderError {
    OutOfStock,
    Store(TxError),
}

impl From<TxError> for OrderError {
    fn from(error: TxError) -> Self {
        Self::Store(error)
    }
}

/// An error of the caller's own type is reported after validation, and conflicts behind it are retried.
#[test]
fn errors_of_the_caller_are_reported_when_they_are_certain() {
    let cluster = cluster("outside-own", 2, 1);
    let [stock, total] = [(); 2].map(|()| cluster.create(1, 0, &[0; 8]));
    let farm = handle(&cluster, 0);
    runtime().block_on(async {
        let tries = AtomicU64::new(0);
        let sold: Result<(), OrderError> = farm
            .try_transact(async |tx| {
                let object = tx.read(stock, 8).await?;
                tx.read(total, 8).await?;
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    // The stock is no longer what this try has read.
                    farm.transact(async |tx| add_one(tx, stock).await).await?;
                }
                match tx.look(object, |payload| payload[0]).await? {
                    0 | 1 => Err(OrderError::OutOfStock),
                    _ => Ok(()),
                }
            })
            .await;
        assert!(matches!(sold, Err(OrderError::OutOfStock)), "{sold:?}");
        assert_eq!(tries.load(Ordering::Relaxed), 2);
        let lost: Result<(), OrderError> = farm
            .try_transact(async |tx| {
                tx.read(Address::NULL, 8).await?;
                Ok(())
            })
            .await;
        assert!(
            matches!(&lost, Err(OrderError::Store(TxError::Address(_)))),
            "{lost:?}"
        );
    });
    wait_for_rest(&cluster);
    cluster.stop();
}

/// A transaction is copied, and its copies outlive its body. They find that it has ended.
#[test]
fn a_copy_of_a_transaction_that_has_ended_is_a_typed_error() {
    let cluster = cluster("outside-late", 2, 1);
    let there = cluster.create(1, 0, &[0; 8]);
    let farm = Arc::new(handle(&cluster, 0));
    runtime().block_on(async {
        let late = std::sync::Mutex::new(None);
        let body = async |tx| {
            *late.lock().unwrap() = Some(tx);
            add_one(tx, there).await
        };
        assert_eq!(farm.transact(body).await.unwrap(), 1);
        let late = late.lock().unwrap().take().unwrap();
        for _ in 0..2 {
            assert!(matches!(add_one(late, there).await, Err(TxError::Ended)));
            // The state of the worker is used again by others.
            assert!(
                farm.transact(async |tx| add_one(tx, there).await)
                    .await
                    .is_ok()
            );
        }
    });
    assert_eq!(count_of(&cluster, there), 3);
    wait_for_rest(&cluster);
    cluster.stop();
}
