//! Changes whose chains reach objects of other machines. All objects of a shard are on one machine when they are made; after a loss,
//! their copies may become primaries on different ones.
//!
//! Such a change is the operation that any worker can make inside of a transaction ([`crate::tx`]), in a transaction of its own.

use farm_core::marks;
use farm_core::worker::{Cont, Worker};
use farm_txn::{TxError, TxLimits, api};

use super::queue::BatchId;
use super::{begin_ready, on_committed, on_validated, refusal, refuse, retry};
use crate::change::parse;
use crate::shard::Changed;
use crate::state::kv;
use crate::table::TableId;

/// Makes the change of a batch, and commits it. If the batch has several changes, each becomes a batch of its own first.
pub(super) fn attempt(worker: &mut Worker, id: BatchId) {
    marks::mark("kv: a change reaches another machine");
    if !kv(worker).owner.split(id) {
        return worker.defer(Cont::new(begin_ready, ()));
    }
    let tx = api::begin(worker);
    let limited = api::with(worker, tx, |tx, _| tx.set_limits(TxLimits::default()));
    limited.expect("the transaction has just begun");
    let body = kv(worker).owner.first_of(id).body.clone();
    let order = parse(&body).expect("the change was parsed before");
    let table = TableId(order.table);
    let cont = Cont::new(changed, id);
    match crate::tx::change(worker, tx, table, order.key(), order.change(), cont) {
        Ok(()) => kv(worker).owner.batch(id).far = Some(tx),
        Err(error) => {
            api::abort(worker, tx);
            refuse(worker, id, error);
        }
    }
}

fn changed(worker: &mut Worker, id: BatchId, result: Result<Changed, TxError>) {
    let owner = &mut kv(worker).owner;
    let tx = owner.batch(id).far.take();
    let tx = tx.expect(
        "the transaction of a change that reaches another machine is stored until it is made",
    );
    match result {
        Ok(changed) => {
            owner.batch(id).made = 1;
            owner.first_of(id).outcome = Some(Ok(changed));
            api::commit(worker, tx, Cont::new(on_committed, id));
        }
        Err(TxError::Abort(why)) => {
            api::abort(worker, tx);
            retry(worker, id, why);
        }
        Err(error) => {
            let machine = worker.me().machine;
            kv(worker).owner.batch(id).refusal = Some(refusal(error, machine));
            api::validate(worker, tx, Cont::new(on_validated, id));
        }
    }
}
