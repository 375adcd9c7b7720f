//! Attaches the hashtable to a worker.

use farm_core::worker::Worker;

use crate::state::Kv;
use crate::{count, create, owner};

/// Attaches the hashtable to a worker, on top of [`farm_txn::attach`].
pub fn attach(worker: &mut Worker) {
    let slots = worker.arena().slots();
    worker.put_layer(Box::new(Kv::new(slots)));

    worker.register(create::CREATE, create::handle_create);
    worker.register(create::MAKE, create::handle_make);
    worker.register(owner::CHANGE, owner::handle);
    worker.register(count::PAIRS, count::handle);
}
