//! Continuations that wait for the commit of a transaction.

use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::worker::{Cont, Worker};

use crate::cluster::cluster;

const BYTES: usize = 40;

#[test]
fn when_committed_is_called_after_a_commit_and_not_after_an_abort() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    fn called(_: &mut Worker, context: u64, (): ()) {
        CALLED.fetch_add(context, Ordering::Relaxed);
    }
    let cluster = cluster("called", 1, 1);
    let at = cluster.create(0, 0, &[1; BYTES]);
    for (commits, context) in [(false, 100), (true, 1), (false, 100), (true, 10)] {
        let (mut tx, ()) = cluster.open(0, 0, move |tx, w| {
            let object = tx.read(w, at, BYTES).unwrap();
            tx.payload_mut(object)[0] += 1;
            tx.when_committed(Cont::new(called, context));
        });
        match commits {
            true => cluster.commit(0, 0, tx).unwrap(),
            false => cluster.on(0, 0, move |w| {
                tx.abort(w);
                farm_txn::checkin(w, tx);
            }),
        }
    }
    assert_eq!(CALLED.load(Ordering::Relaxed), 11);
    cluster.stop();
}
