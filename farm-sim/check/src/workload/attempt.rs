//! One try of a transaction: its script, the steps of the script, and the records of the try.

use farm_core::ids::Address;
use farm_core::worker::{AddressError, Worker};
use farm_txn::{ObjectId as TxObject, Tx, TxError, TxHandle, api};

use super::notes::{Got, Torn, Want};
use super::persist::Tried as LoggedTry;
use super::running::{Shipped, Stop, Tried};
use super::script::Script;
use super::state::{owner_place, work};
use crate::history::Access;

/// Tries of a transaction before the worker replies `CONFLICT`. Each try has its own write ids.
pub(super) const TRIES: u64 = 3;
/// Bits of a write id that number the writes of one try.
const PLACE_BITS: u32 = 4;
/// Bits of a write id that number the tries of one transaction.
const TRY_BITS: u32 = 10;

/// Returns the script of the next try of a transaction.
pub(super) fn script(worker: &mut Worker, shipped: &Shipped) -> Script {
    let machine = owner_place(worker).unwrap_or(0);
    let work = work(worker);
    let number = shipped.number;
    let name = ((number >> 32) + 1) << 40 | (number & 0xFF_FFFF) << (PLACE_BITS + TRY_BITS);
    let name = name | (shipped.attempt * TRIES + shipped.tries) << PLACE_BITS;
    let spec = work.spec.clone();
    let (first, count) = match spec.spread {
        true => (0, work.addresses.len().max(1)),
        false => (machine * spec.objects_per_machine, spec.objects_per_machine),
    };
    Script::new(spec, shipped.seed, name, first, count)
}

pub(super) fn address_of(worker: &mut Worker, object: usize) -> Result<Address, Stop> {
    // A worker runs shipped transactions as soon as it runs, possibly before the workload is started on it.
    let known = work(worker).addresses.get(object).copied();
    known
        .filter(|address| !address.is_null())
        .ok_or(Stop::NotReady)
}

pub(super) fn next(
    worker: &mut Worker,
    tx: &mut Tx,
    script: &mut Script,
    got: Got,
) -> Result<Want, Stop> {
    script.next(tx, got).map_err(|Torn(why)| {
        work(worker).log.violate(why);
        Stop::Torn
    })
}

pub(super) fn got_of(read: Result<TxObject, TxError>) -> Result<Got, Stop> {
    match read {
        Ok(object) => Ok(Got::Object(object)),
        Err(TxError::NotAllocated(_) | TxError::Address(AddressError::Nowhere(_))) => {
            Ok(Got::NotThere)
        }
        Err(error) => Err(error.into()),
    }
}

/// The next request of a script.
pub(super) struct Plan {
    pub(super) want: Want,
    /// Address of the object to read, or near which to allocate; null for other requests.
    pub(super) address: Address,
}

/// Takes the next step of a script.
pub(super) fn plan(
    worker: &mut Worker,
    tx: TxHandle,
    script: &mut Script,
    got: Got,
) -> Result<Plan, Stop> {
    let want = api::with(worker, tx, |tx, worker| next(worker, tx, script, got))??;
    let address = match want {
        Want::Read(object) => address_of(worker, object)?,
        Want::Allocate { near, .. } => address_of(worker, near)?,
        _ => Address::NULL,
    };
    Ok(Plan { want, address })
}

/// Appends a try to the log, and returns its index there. Called before the try commits, since the worker may stop
/// before it knows the outcome.
pub(super) fn note(
    worker: &mut Worker,
    shipped: &Shipped,
    committed: Option<bool>,
    accesses: Vec<Access>,
) -> usize {
    work(worker).log.attempt(LoggedTry {
        number: shipped.number,
        committed,
        accesses,
    })
}

/// Returns whether a try took effect; `None` if that is not known.
pub(super) fn known(outcome: &Result<(), TxError>) -> Option<bool> {
    match outcome {
        Ok(()) => Some(true),
        Err(TxError::InDoubt(_)) => None,
        Err(_) => Some(false),
    }
}

/// Records the outcome of a try that reached its commit: `tried` is its index in the log. If the try took effect, also
/// records the invariants that its script found broken.
pub(super) fn settle(worker: &mut Worker, (tried, broken): Tried, committed: Option<bool>) {
    let log = &mut work(worker).log;
    log.settle(tried, committed);
    if committed == Some(true) {
        broken.into_iter().for_each(|why| log.violate(why));
    }
}
