//! Attaches the hashtable to a worker.

use farm_core::worker::{MembershipHook, Worker};

use crate::state::Kv;
use crate::{count, create, owner, owners};

/// Attaches the hashtable to a worker, on top of [`farm_txn::attach`].
pub fn attach(worker: &mut Worker) {
    let slots = worker.arena().slots();
    worker.put_layer(Box::new(Kv::new(slots)));

    worker.register(create::CREATE, create::handle_create);
    worker.register(create::MAKE, create::handle_make);
    worker.register(owner::CHANGE, owner::handle);
    worker.register(count::PAIRS, count::handle);
    worker.on_membership(MembershipHook {
        apply: owners::apply,
        commit: |_, _| (),
        forget: |_, _| (),
    });
}
