//! Calls and requests that no careful program makes: they end with an error, and stop neither a worker nor the cluster.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::object::{FIRST_LINE_PAYLOAD, Incarnation};
use farm_core::worker::{Cont, ReadError, ReadRequest, Worker};
use farm_testing::receive;
use farm_txn::{TxError, TxHandle, api, block_on, retry};

use crate::cluster::{Cluster, cluster};
use crate::tasks::wait_for_rest;

type Outcomes = mpsc::Sender<Result<(), TxError>>;

fn done(worker: &mut Worker, (): (), outcome: Result<(), TxError>) {
    worker.layer::<Outcomes>().unwrap().send(outcome).unwrap();
}

/// Returns the outcome of a run with this body, after the worker has come to rest.
fn outcome_of(name: &str, body: Cont<TxHandle>) -> Result<(), TxError> {
    let cluster = cluster(name, 1, 1);
    let (outcomes, received) = mpsc::channel();
    cluster.on(0, 0, move |worker| {
        worker.put_layer(Box::<Outcomes>::new(outcomes));
        retry::run(worker, body, Cont::new(done, ()));
    });
    let outcome = receive(&received);
    wait_for_rest(&cluster);
    cluster.stop();
    outcome
}

/// Regression: the run ended with `TxError::Ended`, and its transaction stayed open.
#[test]
fn a_run_may_commit_or_fail_while_its_context_is_in_use() {
    let commit = |worker: &mut Worker, (): (), tx: TxHandle| {
        api::with(worker, tx, |_, worker| retry::commit(worker, tx)).unwrap();
    };
    let committed = outcome_of("with-commit", Cont::new(commit, ()));
    assert!(committed.is_ok(), "{committed:?}");
    let fail = |worker: &mut Worker, (): (), tx: TxHandle| {
        api::with(worker, tx, |_, worker| {
            retry::fail(worker, tx, TxError::GivenUp)
        })
        .unwrap();
    };
    let failed = outcome_of("with-fail", Cont::new(fail, ()));
    assert!(matches!(failed, Err(TxError::GivenUp)), "{failed:?}");
}

/// Regression: payload that looks like the header of an unlocked object, in an object whose version has certain low bits,
/// was read as an object with a version that no object has. The machine of the object then rejected the LOCK record,
/// and stopped the cluster.
#[test]
fn a_write_at_a_wrong_address_is_an_error() {
    const COMMITS: u64 = 0xfffc;
    let cluster = cluster("wrong-address", 2, 1);
    let class = class_for_payload(8).unwrap();
    let like = Incarnation::new(class, 1 << 53).allocated();
    let mut payload = vec![0; 200];
    payload[FIRST_LINE_PAYLOAD] = 3;
    payload[FIRST_LINE_PAYLOAD + 6..][..8].copy_from_slice(&like.0.to_le_bytes());
    let at = cluster.create(1, 0, &payload);
    // Each commit increments the version of the object, which its lines contain.
    let written = block_on(&cluster.machines[1], 0, async move |farm| {
        for _ in 1..COMMITS {
            let write = async |tx: farm_txn::Transaction<'_>| {
                let object = tx.read(at, 200).await?;
                tx.change(object, move |payload| payload[150] ^= 1).await?;
                Ok(())
            };
            farm.transact(write).await?;
        }
        Ok::<_, TxError>(())
    });
    written.unwrap().unwrap();
    let inside = at.checked_add(64).unwrap();
    let outcome = block_on(&cluster.machines[0], 0, async move |farm| {
        let write = async |tx: farm_txn::Transaction<'_>| {
            let object = tx.read(inside, 8).await?;
            tx.change(object, move |payload| payload[0] = 1).await?;
            Ok(())
        };
        farm.transact(write).await
    });
    let outcome = outcome.unwrap();
    assert!(matches!(outcome, Err(TxError::Address(_))), "{outcome:?}");
    cluster.stop();
}

/// A future that completes at once and panics when it is dropped.
struct PanicsWhenDropped(mpsc::Sender<()>);

impl Future for PanicsWhenDropped {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
        panic!("a value of a task panics when it is dropped");
    }
}

/// Checks that the worker of the first machine still works.
fn works(cluster: &Cluster) {
    let at = cluster.create(0, 0, b"works");
    assert_eq!(cluster.contents(0, 0, at, 5).unwrap(), b"works");
}

/// Regression: both panics stopped the machine.
#[test]
fn a_panic_of_a_completed_task_or_of_a_body_ends_only_the_task() {
    let cluster = cluster("task-panics", 1, 1);
    let (dropped, was_dropped) = mpsc::channel();
    let started = cluster.machines[0].submit(0, |worker| {
        farm_txn::spawn(worker, |_| PanicsWhenDropped(dropped));
    });
    assert!(started.is_ok());
    receive(&was_dropped);
    works(&cluster);
    let asked = block_on(&cluster.machines[0], 0, async |farm| {
        farm.spawn(|_| -> std::future::Ready<()> { panic!("before the body returned a future") });
        farm.sleep(Duration::from_millis(1)).await;
    });
    assert!(asked.is_ok(), "{asked:?}");
    works(&cluster);
    cluster.stop();
}

/// Regression: the number of bytes overflowed, so that the machine stopped, or read less than requested.
#[test]
fn a_read_of_too_many_objects_is_an_error() {
    let cluster = cluster("read-many", 1, 1);
    let at = cluster.create(0, 0, &[1; 8]);
    let class = class_for_payload(8).unwrap();
    let refused = cluster.on(0, 0, move |worker| {
        let request = ReadRequest::objects(at, class, (1 << 26) + 1);
        let cont = Cont::new(
            |_: &mut Worker, (): (), _| unreachable!("the read is not started"),
            (),
        );
        worker.read_lock_free(request, cont)
    });
    assert_eq!(refused, Err(ReadError::Busy));
    cluster.stop();
}

/// A waker that owns a future, as the tasks of simple executors do.
struct Owner(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// Regression: the waker of a dropped call was dropped under the lock that the drop of the calls that it owns needs.
#[test]
fn a_dropped_call_drops_its_waker_without_a_lock() {
    let cluster = cluster("waker-drop", 1, 1);
    let farm = block_on(&cluster.machines[0], 0, async |farm| farm).unwrap();
    let (done, was_done) = mpsc::channel();
    std::thread::spawn(move || {
        let sleep = || {
            let farm = farm.clone();
            Box::pin(async move { farm.sleep(Duration::from_secs(3600)).await })
        };
        let pending = |future: Pin<&mut (dyn Future<Output = ()> + Send)>, waker: &Waker| {
            assert!(future.poll(&mut Context::from_waker(waker)).is_pending());
        };
        let mut owned = sleep();
        pending(owned.as_mut(), Waker::noop());
        let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(owned)))));
        let mut other = sleep();
        pending(other.as_mut(), &waker);
        drop(waker);
        drop(other);
        done.send(()).unwrap();
    });
    receive(&was_done);
    cluster.stop();
}

/// Regression: the number of blocks of an array that fits no region overflowed. A peer's request had the same effect.
#[test]
fn absurd_requests_for_memory_are_refused() {
    let cluster = cluster("absurd", 2, 1);
    let at = cluster.create(1, 0, &[1; 8]);
    let own = cluster.create(0, 0, &[1; 8]);
    let refused = cluster.on(0, 0, |w| w.reserve_array(SizeClass::LARGEST, 1 << 25, None));
    assert!(refused.is_err());
    let hints = [
        at,
        own,
        Address::new(at.region(), u32::MAX),
        Address::new(at.region(), 1),
    ];
    for hint in hints {
        for class in [0u8, 27, 100, 254, 255] {
            for count in [1u32, 64, 1 << 20, (1 << 26) + 1, 1 << 31, u32::MAX] {
                request_memory(&cluster, hint, class, count);
            }
        }
    }
    cluster.stop();
}

/// Sends a request for `count` objects to the second machine, and waits for the reply.
fn request_memory(cluster: &Cluster, hint: Address, class: u8, count: u32) {
    let replied: Result<(), _> = cluster.machines[0].ask(0, move |worker, answer| {
        worker.put_layer(Box::<mpsc::Sender<()>>::new(answer));
        let to = worker.log_poller(worker.machines()[1].0).unwrap();
        let on_reply = |worker: &mut Worker, (): (), reply: Result<&[u8], CallError>| {
            assert!(reply.is_ok());
            worker.take_layer::<mpsc::Sender<()>>().send(()).unwrap();
        };
        let mut body = vec![class];
        if count > 1 {
            body.extend_from_slice(&count.to_le_bytes());
        }
        body.extend_from_slice(&hint.to_bits().to_le_bytes());
        // The configuration.
        body.extend_from_slice(&1u64.to_le_bytes());
        let id = MessageId(MessageId::TXN + if count > 1 { 3 } else { 2 });
        worker
            .call(to, id, &[&body], 24, ReplyCont::new(on_reply, ()))
            .unwrap();
    });
    assert!(
        replied.is_ok(),
        "hint {hint}, class {class}, count {count}: {replied:?}"
    );
}
