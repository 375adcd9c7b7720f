//! Handles and continuations (`FaRM'14` figure 6): every continuation is called exactly once, from the event loop, even
//! if the transaction ends in the meantime.

use std::sync::mpsc;

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_testing::receive;
use farm_txn::{Abort, ObjectId, TxError, TxHandle, api};

use crate::cluster::{Cluster, cluster, overwrite};

/// A call of a continuation with its context, in the order of the calls.
#[derive(Debug, PartialEq, Eq)]
enum Called {
    Object(u64, Option<ObjectId>),
    Done(u64, Result<(), Refusal>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Ended,
    Changed(Address),
    Other,
}

fn refusal(error: TxError) -> Refusal {
    match error {
        TxError::Ended => Refusal::Ended,
        TxError::Abort(Abort::Changed(at)) => Refusal::Changed(at),
        _ => Refusal::Other,
    }
}

struct Log {
    called: Vec<Called>,
    /// Whether the test is inside of a call of the interface: no continuation may be called then.
    inside: bool,
    /// Number of calls after which `done` is sent.
    enough: usize,
    done: mpsc::Sender<Vec<Called>>,
}

fn record(worker: &mut Worker, what: Called) {
    let log = worker.layer::<Log>().unwrap();
    assert!(
        !log.inside,
        "the continuation {what:?} was called inside the call that started its operation"
    );
    log.called.push(what);
    if log.called.len() == log.enough {
        // Wait some turns, to find continuations that are called twice.
        worker.defer(Cont::new(send_after_some_turns, 0));
    }
}

fn send_after_some_turns(worker: &mut Worker, turns: u64, (): ()) {
    if turns < 3 {
        return worker.defer(Cont::new(send_after_some_turns, turns + 1));
    }
    let log = worker.layer::<Log>().unwrap();
    let called = std::mem::take(&mut log.called);
    log.done.send(called).unwrap();
}

fn object(worker: &mut Worker, context: u64, result: Result<ObjectId, TxError>) {
    record(worker, Called::Object(context, result.ok()));
}

fn done(worker: &mut Worker, context: u64, result: Result<(), TxError>) {
    record(worker, Called::Done(context, result.map_err(refusal)));
}

/// Makes calls on worker 0, and returns the calls of `enough` continuations.
fn record_calls(
    cluster: &Cluster,
    enough: usize,
    calls: impl FnOnce(&mut Worker) + Send + 'static,
) -> Vec<Called> {
    let (done, called) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        w.put_layer(Box::new(Log {
            called: vec![],
            inside: true,
            enough,
            done,
        }));
        calls(w);
        w.layer::<Log>().unwrap().inside = false;
    });
    receive(&called)
}

fn id(called: &Called) -> ObjectId {
    match called {
        Called::Object(_, Some(id)) => *id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_call_of_a_transaction_has_its_own_continuation() {
    let cluster = cluster("calls", 1, 1);
    let [x, y] = [b"x", b"y"].map(|payload| cluster.create(0, 0, payload));
    let tx = cluster.on(0, 0, api::begin);
    // Three concurrent operations.
    let called = record_calls(&cluster, 3, move |w| {
        api::read(w, tx, x, 1, Cont::new(object, 1));
        api::alloc(w, tx, 100, Some(x), Cont::new(object, 2));
        api::read(w, tx, y, 1, Cont::new(object, 3));
    });
    let ids: Vec<ObjectId> = called.iter().map(id).collect();
    assert_eq!(
        called,
        [1, 2, 3].map(|n| Called::Object(n, Some(ids[n as usize - 1])))
    );
    let (born, address) = mpsc::channel();
    let called = record_calls(&cluster, 2, move |w| {
        assert_eq!(api::payload(w, tx, ids[0]).unwrap()[..1], *b"x");
        assert_eq!(api::payload(w, tx, ids[2]).unwrap()[..1], *b"y");
        api::payload_mut(w, tx, ids[1]).unwrap().fill(5);
        api::free(w, tx, ids[0]).unwrap();
        born.send(api::address(w, tx, ids[1]).unwrap()).unwrap();
        api::commit(w, tx, Cont::new(done, 4));
        // The handle ends with the call of `commit`, and not with the continuation.
        assert!(matches!(api::payload(w, tx, ids[0]), Err(TxError::Ended)));
        api::read(w, tx, x, 1, Cont::new(object, 5));
    });
    assert_eq!(called, [Called::Done(4, Ok(())), Called::Object(5, None)]);
    let born = address.recv().unwrap();
    assert_eq!(cluster.contents(0, 0, born, 100).unwrap(), vec![5; 100]);
    let gone = cluster.contents(0, 0, x, 1);
    assert!(matches!(gone, Err(TxError::NotAllocated(_))));
    cluster.on(0, 0, |w| w.check_slab()).unwrap();
    cluster.stop();
}

#[test]
fn a_handle_that_has_ended_is_a_typed_error_everywhere() {
    let cluster = cluster("ended", 1, 1);
    let x = cluster.create(0, 0, b"x");
    for aborted in [false, true] {
        let (tx, received) = mpsc::channel();
        let first = record_calls(&cluster, 1, move |w| {
            let handle = api::begin(w);
            tx.send(handle).unwrap();
            if aborted {
                api::abort(w, handle);
                api::abort(w, handle);
                api::commit(w, handle, Cont::new(done, 1));
            } else {
                api::commit(w, handle, Cont::new(done, 1));
                api::abort(w, handle);
            }
        });
        let expected = if aborted { Err(Refusal::Ended) } else { Ok(()) };
        assert_eq!(first, [Called::Done(1, expected)]);
        let tx: TxHandle = received.recv().unwrap();
        let called = record_calls(&cluster, 3, move |w| {
            // The slot of the handle is now used by another transaction.
            let other = api::begin(w);
            assert_ne!(other, tx);
            api::read(w, tx, x, 1, Cont::new(object, 2));
            api::alloc(w, tx, 1, None, Cont::new(object, 3));
            api::commit(w, tx, Cont::new(done, 4));
            assert!(matches!(api::with(w, tx, |_, _| ()), Err(TxError::Ended)));
            assert!(api::with(w, other, |_, _| ()).is_ok());
            api::abort(w, other);
        });
        let expected = [
            Called::Object(2, None),
            Called::Object(3, None),
            Called::Done(4, Err(Refusal::Ended)),
        ];
        assert_eq!(called, expected);
    }
    cluster.on(0, 0, |w| {
        assert_eq!(w.slab_usage(SizeClass::SMALLEST).live, 1)
    });
    cluster.stop();
}

/// Operations that were started before the end of their transaction report an error afterwards.
#[test]
fn operations_in_flight_at_the_end_call_their_continuations() {
    let cluster = cluster("under-way", 1, 1);
    let x = cluster.create(0, 0, b"x");
    for commit in [false, true] {
        let called = record_calls(&cluster, 2 + usize::from(commit), move |w| {
            let tx = api::begin(w);
            api::read(w, tx, x, 1, Cont::new(object, 1));
            api::alloc(w, tx, 1, None, Cont::new(object, 2));
            if commit {
                api::commit(w, tx, Cont::new(done, 3));
            } else {
                api::abort(w, tx);
            }
        });
        assert_eq!(
            called[..2],
            [Called::Object(1, None), Called::Object(2, None)]
        );
        assert_eq!(called.get(2), commit.then_some(&Called::Done(3, Ok(()))));
    }
    cluster.on(0, 0, |w| {
        assert_eq!(
            w.slab_usage(SizeClass::SMALLEST).live,
            2,
            "x and the committed object are live, the aborted one is not"
        );
        w.check_slab().unwrap();
    });
    cluster.stop();
}

#[test]
fn the_continuation_of_commit_receives_a_conflict() {
    let cluster = cluster("called", 1, 1);
    let x = cluster.create(0, 0, b"x");
    let tx = cluster.on(0, 0, api::begin);
    let called = record_calls(&cluster, 1, move |w| {
        api::read(w, tx, x, 1, Cont::new(object, 1))
    });
    let object = id(&called[0]);
    cluster.on(0, 0, move |w| {
        api::payload_mut(w, tx, object).unwrap()[0] = b'?';
    });
    let other = cluster.transact(0, 0, move |tx, w| overwrite(tx, w, x, b"!"));
    other.unwrap();
    let called = record_calls(&cluster, 1, move |w| api::commit(w, tx, Cont::new(done, 2)));
    assert_eq!(called, [Called::Done(2, Err(Refusal::Changed(x)))]);
    assert_eq!(cluster.contents(0, 0, x, 1).unwrap(), b"!");
    cluster.stop();
}
