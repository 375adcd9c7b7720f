//! Transactions as `async` functions.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use farm_core::ids::Address;
use farm_core::machine::MachineError;
use farm_core::worker::AddressError;
use farm_testing::receive;
use farm_txn::{BackoffConfig, Handle, ObjectId, RetryCounters, Transaction, TxError, retry};

use crate::cluster::{Cluster, cluster, transact};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a task on worker 0 of a machine, and waits for its result.
pub(crate) fn task<T, F>(
    cluster: &Cluster,
    machine: usize,
    body: impl FnOnce(Handle) -> F + Send + 'static,
) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (answer, answered) = mpsc::channel();
    cluster.on(machine, 0, move |w| {
        farm_txn::spawn(w, |farm| {
            let body = body(farm);
            async move { answer.send(body.await).unwrap() }
        });
    });
    receive(&answered)
}

/// Waits until no worker has any transactions, tasks or reads left.
pub(crate) fn wait_for_rest(cluster: &Cluster) {
    let late = Instant::now() + PATIENCE;
    for machine in 0..cluster.machines.len() {
        loop {
            let left = cluster.on(machine, 0, |w| {
                let rest = w.check_at_rest().err().map(|left| left.to_string());
                let slab = w.check_slab().err().map(|left| format!("{left:?}"));
                farm_txn::left_over(w).or(rest).or(slab)
            });
            match left {
                None => break,
                Some(left) => assert!(Instant::now() < late, "{left}"),
            }
        }
    }
}

#[test]
fn a_task_reads_writes_allocates_and_frees_anywhere() {
    let cluster = cluster("task", 2, 1);
    let here = cluster.create(0, 0, b"here");
    let there = cluster.create(1, 0, b"there");
    let born = task(&cluster, 0, move |farm| async move {
        let tx = farm.begin().await.unwrap();
        let a = tx.read(here, 4).await?;
        let b = tx.read(there, 5).await?;
        assert_eq!(
            tx.read(there, 5).await?,
            b,
            "reading again returned another object"
        );
        let c = tx.alloc(100, Some(there)).await?;
        let d = tx.alloc(100, None).await?;
        assert_eq!(tx.payload(b).await?[..5], *b"there");
        tx.change(a, move |payload| payload[..4].copy_from_slice(b"HERE"))
            .await?;
        tx.change(c, move |payload| payload.fill(3)).await?;
        tx.change(d, move |payload| payload.fill(4)).await?;
        tx.free(b).await?;
        let born = [tx.address(c).await?, tx.address(d).await?];
        assert_eq!(tx.pointer(c).await?.address, born[0]);
        tx.commit().await?;
        Ok::<_, TxError>(born)
    })
    .unwrap();
    assert_eq!(
        born[0].region(),
        there.region(),
        "the new object is not in the region of its hint"
    );
    task(&cluster, 1, move |farm| async move {
        assert_eq!(farm.read_lock_free(here, 4).await.unwrap(), b"HERE");
        for (address, byte) in born.into_iter().zip([3, 4]) {
            assert_eq!(
                farm.read_lock_free(address, 100).await.unwrap(),
                [byte; 100]
            );
        }
        let gone = farm.read_lock_free(there, 5).await.unwrap_err();
        assert!(matches!(gone, TxError::NotAllocated(at) if at == there));
        let nowhere = farm
            .read_lock_free(Address::new(here.region(), !63), 5)
            .await;
        assert!(matches!(
            nowhere,
            Err(TxError::Address(AddressError::Nowhere(_)))
        ));
        let null = farm.read_lock_free(Address::NULL, 5).await;
        assert!(matches!(
            null,
            Err(TxError::Address(AddressError::Nowhere(_)))
        ));
        assert_eq!(farm.me().machine.get(), 2);
    });
    wait_for_rest(&cluster);
    cluster.stop();
}

pub(crate) async fn add_one(tx: Transaction<'_>, address: Address) -> Result<u64, TxError> {
    let object = tx.read(address, 8).await?;
    tx.change(object, |payload| {
        let count = u64::from_le_bytes(payload[..8].try_into().unwrap()) + 1;
        payload[..8].copy_from_slice(&count.to_le_bytes());
        count
    })
    .await
}

#[test]
fn many_tasks_of_many_workers_increment_one_object() {
    const TASKS: usize = 40;
    const EACH: usize = 5;
    const AT_ONCE: usize = 8;
    let cluster = cluster("hot-tasks", 3, 1);
    let address = cluster.create(1, 0, &[0; 8]);
    let (done, seen) = mpsc::channel();
    for machine in 0..3 {
        let done = done.clone();
        cluster.on(machine, 0, move |w| {
            let config = BackoffConfig {
                concurrency: AT_ONCE,
                ..BackoffConfig::default()
            };
            retry::configure(w, config);
            for _ in 0..TASKS {
                let done = done.clone();
                farm_txn::spawn(w, move |farm| async move {
                    for _ in 0..EACH {
                        let count = farm.transact(async |tx| add_one(tx, address).await).await;
                        done.send(count.unwrap()).unwrap();
                    }
                });
            }
        });
    }
    drop(done);
    let mut counts: Vec<u64> = seen.iter().collect();
    counts.sort_unstable();
    let all = (3 * TASKS * EACH) as u64;
    assert_eq!(
        counts,
        (1..=all).collect::<Vec<_>>(),
        "an increment was lost or repeated"
    );
    for machine in 0..3 {
        let counted = cluster.on(machine, 0, retry::counters);
        assert_eq!(counted.committed, (TASKS * EACH) as u64);
        assert_eq!((counted.failed, counted.most_at_once), (0, AT_ONCE));
    }
    wait_for_rest(&cluster);
    cluster.stop();
}

/// A future that is dropped after a number of polls.
struct Cut<F>(Option<Pin<Box<F>>>, usize);

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.1 == 0 {
            self.0 = None;
            return Poll::Ready(None);
        }
        self.1 -= 1;
        let inner = self.0.as_mut().unwrap();
        match inner.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                if self.1 == 0 {
                    // The call was made, and its reply is outstanding.
                    self.0 = None;
                    return Poll::Ready(None);
                }
                Poll::Pending
            }
        }
    }
}

fn cut<F: Future>(polls: usize, future: F) -> Cut<F> {
    Cut(Some(Box::pin(future)), polls)
}

/// Runs a transaction with every kind of call.
async fn of_every_kind(farm: &Handle, all: [Address; 2]) -> Result<(), TxError> {
    farm.transact(async |tx| {
        for address in all {
            let object = tx.read(address, 8).await?;
            tx.change(object, move |payload| {
                payload[..8].copy_from_slice(b"new, new")
            })
            .await?;
            tx.alloc(300, Some(address)).await?;
            farm.read_lock_free(address, 8).await?;
        }
        farm.sleep(Duration::from_micros(10)).await;
        Ok(())
    })
    .await
}

#[test]
fn a_dropped_transaction_leaves_nothing_behind() {
    let cluster = cluster("half-way", 2, 1);
    let (mut ended, mut effects) = (0, 0);
    for polls in 0..14 {
        let all = [0, 1].map(|machine| cluster.create(machine, 0, b"old, old"));
        let outcome = task(&cluster, 0, move |farm| async move {
            cut(polls, of_every_kind(&farm, all)).await
        });
        wait_for_rest(&cluster);
        let seen: Vec<_> = all
            .map(|at| cluster.look(0, at, 64).unwrap().payload[..8].to_vec())
            .to_vec();
        assert_eq!(seen[0], seen[1], "a part of the transaction took effect");
        effects += u64::from(seen[0] == b"new, new");
        if let Some(outcome) = outcome {
            outcome.unwrap();
            ended += 1;
            assert_eq!(seen[0], b"new, new");
        }
    }
    assert!(
        ended > 0,
        "no transaction ended within the tried numbers of polls"
    );
    let counted = cluster.on(0, 0, retry::counters);
    // The first was dropped before it was polled.
    assert_eq!(counted.begun, 13);
    // A commit that had begun took effect, although its future was dropped.
    assert_eq!(counted.committed, effects);
    // All of the concurrency is available again.
    let bound = BackoffConfig::default().concurrency as u64;
    task(&cluster, 0, move |farm| async move {
        let mut futures: Vec<_> = (0..bound)
            .map(|_| Box::pin(farm.transact(async |_| farm_pending().await)))
            .collect();
        std::future::poll_fn(|context| {
            for future in &mut futures {
                assert!(future.as_mut().poll(context).is_pending());
            }
            Poll::Ready(())
        })
        .await;
        farm.sleep(Duration::from_micros(10)).await;
        drop(futures);
    });
    wait_for_rest(&cluster);
    cluster.stop();
}

async fn farm_pending() -> Result<(), TxError> {
    std::future::pending().await
}

#[test]
fn a_transaction_whose_call_was_dropped_has_ended() {
    let cluster = cluster("cut-call", 2, 1);
    let there = cluster.create(1, 0, b"there");
    task(&cluster, 0, move |farm| async move {
        for allocates in [false, true] {
            let tx = farm.begin().await.unwrap();
            let object = tx.read(there, 5).await.unwrap();
            if allocates {
                assert!(cut(1, tx.alloc(900, Some(there))).await.is_none());
            } else {
                let other = Address::new(there.region(), there.offset() + 64);
                assert!(cut(1, tx.read(other, 5)).await.is_none());
            }
            assert!(matches!(tx.payload(object).await, Err(TxError::Ended)));
            assert!(matches!(
                tx.change(object, |_| ()).await,
                Err(TxError::Ended)
            ));
            assert!(matches!(tx.free(object).await, Err(TxError::Ended)));
            assert!(matches!(tx.read(there, 5).await, Err(TxError::Ended)));
            assert!(matches!(tx.commit().await, Err(TxError::Ended)));
        }
    });
    wait_for_rest(&cluster);
    cluster.stop();
}

#[test]
fn errors_of_calls_are_typed_and_leave_the_transaction_open() {
    let cluster = cluster("call-errors", 2, 1);
    let here = cluster.create(0, 0, b"here");
    let there = cluster.create(1, 0, b"there");
    task(&cluster, 0, move |farm| async move {
        let (a, b) = (farm.begin().await.unwrap(), farm.begin().await.unwrap());
        let of_a = a.read(here, 4).await.unwrap();
        let is_other = |error: TxError| matches!(error, TxError::OtherTransaction);
        assert!(
            is_other(b.payload(of_a).await.unwrap_err()),
            "the object of another transaction was accepted"
        );
        let of_b = b.read(there, 5).await.unwrap();
        assert!(is_other(a.payload(of_b).await.unwrap_err()));
        assert!(is_other(b.change(of_a, |_| ()).await.unwrap_err()));
        assert!(is_other(b.free(of_a).await.unwrap_err()));
        assert!(is_other(b.address(of_a).await.unwrap_err()));
        assert!(is_other(b.increment_incarnation(of_a).await.unwrap_err()));
        let large = a.alloc(100 << 20, None).await;
        assert!(matches!(large, Err(TxError::TooLarge(_))));
        let size = a.read(here, 400).await;
        assert!(matches!(size, Err(TxError::WrongSize { .. })));
        assert_eq!(a.payload(of_a).await.unwrap()[..4], *b"here");
        a.commit().await.unwrap();
        b.abort();
    });
    wait_for_rest(&cluster);
    cluster.stop();
}

#[test]
fn errors_of_bodies_are_reported_without_effect() {
    let cluster = cluster("body-errors", 2, 1);
    let here = cluster.create(0, 0, b"here");
    let there = cluster.create(1, 0, b"there");
    let gone = cluster.create(1, 0, b"gone");
    cluster.free(1, 0, gone, 4).unwrap();
    task(&cluster, 0, move |farm| async move {
        let tries = Cell::new(0);
        let outcome = farm
            .transact(async |tx| {
                tries.set(tries.get() + 1);
                let object = tx.read(there, 5).await?;
                tx.change(object, move |payload| payload.fill(0)).await?;
                tx.alloc(64, Some(there)).await?;
                tx.read(gone, 4).await
            })
            .await;
        assert!(matches!(outcome, Err(TxError::NotAllocated(at)) if at == gone));
        let outcome: Result<ObjectId, _> = farm
            .transact(async |tx| {
                let object = tx.read(here, 4).await?;
                tx.change(object, move |payload| payload.fill(0)).await?;
                Err(TxError::GivenUp)
            })
            .await;
        assert!(matches!(outcome, Err(TxError::GivenUp)));
        assert_eq!(tries.get(), 1);
        assert_eq!(farm.read_lock_free(here, 4).await.unwrap(), b"here");
        assert_eq!(farm.read_lock_free(there, 5).await.unwrap(), b"there");
    });
    let counted = cluster.on(0, 0, retry::counters);
    let expected = RetryCounters {
        begun: 2,
        failed: 2,
        most_at_once: 1,
        ..RetryCounters::default()
    };
    assert_eq!(counted, expected);
    wait_for_rest(&cluster);
    cluster.stop();
}

/// Counts its live instances.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_worker_that_stops_drops_its_tasks() {
    let cluster = cluster("stops", 2, 1);
    let there = cluster.create(1, 0, b"there");
    let alive = Arc::new(AtomicUsize::new(0));
    let (kept, handles) = mpsc::channel();
    for kind in 0..5 {
        let (count, kept) = (Arc::clone(&alive), kept.clone());
        cluster.on(0, 0, move |w| {
            for _ in 0..20 {
                let (alive, kept) = (Alive::new(&count), kept.clone());
                farm_txn::spawn(w, move |farm| async move {
                    let _alive = alive;
                    // So that the transaction can outlive the task.
                    let farm: &'static Handle = Box::leak(Box::new(farm));
                    let tx = farm.begin().await.unwrap();
                    match kind {
                        0 => farm.sleep(Duration::from_secs(10_000)).await,
                        1 => {
                            // The transaction is open, and its owner waits forever.
                            tx.alloc(64, Some(there)).await.unwrap();
                            std::future::pending().await
                        }
                        2 => farm.transact(async |_| farm_pending().await).await.unwrap(),
                        3 => loop {
                            let _ = farm.transact(async |tx| add_one(tx, there).await).await;
                        },
                        _ => {
                            tx.read(there, 5).await.unwrap();
                            kept.send((farm, tx)).unwrap();
                        }
                    }
                });
            }
        });
    }
    drop(kept);
    let (farm, tx) = receive(&handles);
    assert!(alive.load(Ordering::SeqCst) >= 80);
    cluster.stop();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    // Handles and transactions that outlive the worker return errors, and do not wait forever.
    let mut context = Context::from_waker(Waker::noop());
    let mut outcome = |future: Pin<&mut dyn Future<Output = Result<(), TxError>>>| {
        let outcome = future.poll(&mut context);
        assert!(matches!(outcome, Poll::Ready(Err(TxError::Stopped(None)))));
    };
    outcome(pin!(async { tx.alloc(8, None).await.map(|_| ()) }));
    outcome(pin!(farm.transact(async |_| Ok(()))));
    outcome(pin!(async {
        farm.with_worker(|_| panic!("the closure ran although there is no worker"))
            .await
    }));
    drop(handles);
}

/// A signal that another thread sends.
#[derive(Default)]
struct Signal(Mutex<(bool, Option<Waker>)>);

impl Signal {
    fn give(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            state.1 = Some(context.waker().clone());
            if state.0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

#[test]
fn other_threads_can_wake_tasks_and_drop_their_transactions() {
    let cluster = cluster("outside", 2, 1);
    let there = cluster.create(1, 0, b"there");
    for _ in 0..50 {
        let signal = Arc::new(Signal::default());
        let (answer, answered) = mpsc::channel();
        let waits = Arc::clone(&signal);
        cluster.on(0, 0, move |w| {
            farm_txn::spawn(w, move |farm| async move {
                let farm: &'static Handle = Box::leak(Box::new(farm));
                let tx = farm.begin().await.unwrap();
                tx.alloc(64, Some(there)).await.unwrap();
                answer.send(Some(tx)).unwrap();
                waits.wait().await;
                answer.send(None).unwrap();
            });
        });
        drop(receive(&answered).expect("the task sends its transaction first"));
        signal.give();
        assert!(receive(&answered).is_none());
    }
    wait_for_rest(&cluster);
    cluster.stop();
}

#[test]
fn tasks_spawn_tasks_and_use_their_worker() {
    let cluster = cluster("children", 1, 1);
    let (answer, answered) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        farm_txn::spawn(w, move |farm| async move {
            for child in 0..500u64 {
                let answer = answer.clone();
                farm.spawn(move |farm| async move {
                    farm.sleep(Duration::from_micros(child % 7)).await;
                    let made = transact(&farm, |tx, w| {
                        let object = tx.alloc(w, 5, None)?;
                        tx.payload_mut(object)[..5].copy_from_slice(b"child");
                        Ok(tx.address(object))
                    });
                    let address = made.await.unwrap();
                    let read = farm.read_lock_free(address, 5).await.unwrap();
                    answer.send((child, read)).unwrap();
                });
            }
        });
    });
    let mut children: Vec<_> = answered.iter().collect();
    children.sort_unstable();
    let expected: Vec<_> = (0..500).map(|child| (child, b"child".to_vec())).collect();
    assert_eq!(children, expected);
    wait_for_rest(&cluster);
    cluster.stop();
}

/// Two concurrent calls of one task share the waker of the task.
#[test]
fn a_task_can_wait_for_several_calls() {
    let cluster = cluster("several", 2, 1);
    let all: Vec<_> = (0..20u8)
        .map(|byte| cluster.create(1, 0, &[byte; 8]))
        .collect();
    let read = task(&cluster, 0, move |farm| async move {
        let mut calls: Vec<_> = all
            .iter()
            .map(|at| (Box::pin(farm.read_lock_free(*at, 8)), None))
            .collect();
        std::future::poll_fn(|context| {
            for (call, answer) in calls.iter_mut().filter(|(_, answer)| answer.is_none()) {
                if let Poll::Ready(read) = call.as_mut().poll(context) {
                    *answer = Some(read.unwrap());
                }
            }
            match calls.iter().all(|(_, answer)| answer.is_some()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        calls
            .iter_mut()
            .map(|(_, answer)| answer.take().unwrap()[0])
            .collect::<Vec<_>>()
    });
    assert_eq!(read, (0..20).collect::<Vec<u8>>());
    wait_for_rest(&cluster);
    cluster.stop();
}

/// The worker wakes a task while its own inbox is full. Only the worker itself could make room, and nothing else makes
/// it poll its tasks.
#[test]
fn a_wake_up_by_the_worker_whose_inbox_is_full_is_not_lost() {
    let cluster = cluster("task-full", 1, 1);
    let signal = Arc::new(Signal::default());
    let (answer, answered) = mpsc::channel();
    let waits = Arc::clone(&signal);
    cluster.on(0, 0, move |w| {
        farm_txn::spawn(w, |_| async move {
            waits.wait().await;
            answer.send(()).unwrap();
        });
    });
    while signal.0.lock().unwrap().1.is_none() {
        std::thread::yield_now();
    }
    cluster.on(0, 0, move |w| {
        while w.inbox().submit(|_| ()).is_ok() {}
        signal.give();
    });
    receive(&answered);
    cluster.stop();
}

/// With a concurrency of one, the inner transaction starts although the outer one runs.
#[test]
fn a_transaction_can_wait_for_an_inner_one() {
    let cluster = cluster("task-nest", 1, 1);
    let object = cluster.create(0, 0, b"0");
    cluster.on(0, 0, |w| {
        let config = BackoffConfig {
            concurrency: 1,
            ..BackoffConfig::default()
        };
        retry::configure(w, config);
    });
    let seen = task(&cluster, 0, move |farm| async move {
        farm.transact(async |outer| {
            farm.transact(async |inner| {
                let object = inner.read(object, 1).await?;
                inner.change(object, move |payload| payload[0] += 1).await?;
                Ok(())
            })
            .await?;
            let object = outer.read(object, 1).await?;
            Ok(outer.payload(object).await?[0])
        })
        .await
    });
    assert_eq!(seen.unwrap(), b'1');
    let counters = cluster.on(0, 0, retry::counters);
    let [begun, committed] = [counters.begun, counters.committed];
    assert_eq!((begun, committed, counters.most_at_once), (1, 1, 1));
    wait_for_rest(&cluster);
    cluster.stop();
}

/// Regression: a panic of a task stopped its machine, and thereby the cluster. Now only the task ends, its transaction
/// is aborted, and the worker continues.
#[test]
fn a_panic_of_a_task_ends_only_that_task() {
    let cluster = cluster("task-panic", 2, 1);
    let there = cluster.create(1, 0, b"there");
    let panicked = farm_txn::block_on(&cluster.machines[0], 0, async move |farm| {
        let tx = farm.begin().await.unwrap();
        let object = tx.read(there, 5).await.unwrap();
        tx.change(object, move |payload| payload[0] = b'X')
            .await
            .unwrap();
        tx.alloc(100, None).await.unwrap();
        let rows = Vec::<u32>::new();
        *rows.first().expect("a row that is not there")
    });
    match panicked {
        Err(MachineError::TaskPanicked { message, .. }) => {
            assert!(message.contains("a row that is not there"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    // A task without a waiting thread panics inside of a transaction that is retried until it commits.
    cluster.on(0, 0, move |w| {
        farm_txn::spawn(w, |farm| async move {
            let body = async |tx: Transaction<'_>| -> Result<(), TxError> {
                tx.read(there, 5).await?;
                panic!("in the body of a transaction")
            };
            let _ = farm.transact(body).await;
        });
    });
    let seen = task(&cluster, 0, move |farm| async move {
        farm.transact(async |tx| {
            let object = tx.read(there, 5).await?;
            Ok(tx.payload(object).await?[..5].to_vec())
        })
        .await
    });
    assert_eq!(seen.unwrap(), b"there");
    wait_for_rest(&cluster);
    assert!(!cluster.machines[0].control().is_stopping());
    cluster.stop();
}

/// A panic while a task uses the worker stops the machine, because the worker's state may be incomplete.
#[test]
fn a_panic_with_the_worker_stops_the_machine() {
    let cluster = cluster("task-panic-worker", 2, 1);
    let (started, wait) = mpsc::channel::<()>();
    cluster.on(0, 0, move |w| {
        farm_txn::spawn(w, |farm| async move {
            let _started = started;
            let _ = farm
                .with_worker(|_| panic!("while the worker is in use"))
                .await;
        });
    });
    assert!(wait.recv_timeout(PATIENCE).is_err(), "the task goes on");
    let late = Instant::now() + PATIENCE;
    while !cluster.machines[0].control().is_stopping() {
        assert!(Instant::now() < late);
        std::thread::yield_now();
    }
}
