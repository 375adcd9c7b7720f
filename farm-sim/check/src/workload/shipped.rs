//! The handler of transactions that clients ship.

use farm_core::messaging::Request;
use farm_core::worker::Worker;

use super::message::{REFUSED, decode};
use super::running::Shipped;
use super::state::work;
use super::{execute, retried};

/// Runs a transaction that a client shipped.
pub(super) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let Some((number, seed, attempt)) = decode(body) else {
        return worker.reply(request, &[&[REFUSED]]);
    };
    let shipped = Shipped {
        request,
        number,
        seed,
        attempt: u64::from(attempt),
        tries: 0,
    };
    match work(worker).spec.spread && retried::is_of(&shipped) {
        true => retried::begin(worker, shipped),
        false => execute::begin(worker, shipped),
    }
}
