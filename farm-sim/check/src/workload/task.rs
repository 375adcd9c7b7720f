//! Runs a try of a transaction as an `async` task of its worker.

use farm_core::ids::Address;
use farm_core::worker::Worker;
use farm_txn::{Handle, Transaction, TxError};

use super::attempt::{Plan, got_of, known, note, plan, script, settle};
use super::notes::{Got, Want};
use super::running::{Shipped, Stop};
use super::script::Script;
use super::state::work;

/// Returns whether the tries of a transaction run as tasks.
pub(super) fn runs(worker: &mut Worker, shipped: &Shipped) -> bool {
    shipped.seed % 100 < u64::from(work(worker).spec.tasks)
}

/// Called with the outcome of a try.
type End = fn(&mut Worker, Shipped, Result<(), Stop>);

/// Begins a try.
pub(super) fn begin(worker: &mut Worker, shipped: Shipped, end: End) {
    let script = script(worker, &shipped);
    farm_txn::spawn(worker, move |farm| async move {
        // If the worker stops, the try ends without a reply, as any other.
        let _ = run(&farm, shipped, script, end).await;
    });
}

async fn run(farm: &Handle, shipped: Shipped, script: Script, end: End) -> Result<(), TxError> {
    let tx = farm.begin().await.unwrap();
    let (script, planned) = run_to_commit(*tx, script).await?;
    let accesses = script.notes.accesses;
    let committed = planned.is_err().then_some(false);
    // Recorded before the commit: if this processor stops from here on, the outcome is unknown.
    let tried = farm
        .with_worker(move |worker| note(worker, &shipped, committed, accesses))
        .await?;
    let outcome = match planned {
        Err(stop) => {
            tx.abort();
            Err(stop)
        }
        Ok(()) => {
            let outcome = tx.commit().await;
            if matches!(outcome, Err(TxError::Ended)) {
                return outcome;
            }
            let (broken, took_effect) = (script.notes.broken, known(&outcome));
            farm.with_worker(move |worker| settle(worker, (tried, broken), took_effect))
                .await?;
            outcome.map_err(Stop::from)
        }
    };
    farm.with_worker(move |worker| end(worker, shipped, outcome))
        .await
}

/// Takes the steps of a script until it requests the commit, or fails.
async fn run_to_commit(
    tx: Transaction<'_>,
    mut script: Script,
) -> Result<(Script, Result<(), Stop>), TxError> {
    let mut got = Got::Nothing;
    loop {
        let planned: Result<Plan, Stop>;
        (script, planned) = tx
            .operation(move |worker, handle, cont| {
                let planned = plan(worker, handle, &mut script, got);
                cont.resume(worker, Ok((script, planned)));
            })
            .await?;
        let read = match planned {
            Ok(Plan { want, address }) => {
                make_request(tx, want, address, script.notes.spec.payload()).await
            }
            Err(stop) => Err(stop),
        };
        got = match read {
            Ok(Some(next)) => next,
            Ok(None) => return Ok((script, Ok(()))),
            Err(Stop::Tx(TxError::Ended)) => return Err(TxError::Ended),
            Err(stop) => return Ok((script, Err(stop))),
        };
    }
}

/// Makes a request, and returns its result; `None` if it is the request for the commit.
async fn make_request(
    tx: Transaction<'_>,
    want: Want,
    address: Address,
    payload: usize,
) -> Result<Option<Got>, Stop> {
    let object = match want {
        Want::Commit => return Ok(None),
        Want::Read(_) => tx.read(address, payload).await,
        Want::Follow(pointer) => tx.read_class(pointer.address, pointer.class()).await,
        Want::FollowAll(pointer, count) => {
            let (first, class) = (pointer.address, pointer.class());
            match tx.read_array(first, class.payload_capacity(), count).await {
                Ok(objects) => return Ok(Some(Got::Objects(objects))),
                Err(error) => Err(error),
            }
        }
        Want::Allocate {
            bytes, count: 1, ..
        } => tx.alloc(bytes, Some(address)).await,
        Want::Allocate { bytes, count, .. } => {
            match tx.alloc_array(bytes, count, Some(address)).await {
                Ok(objects) => {
                    let objects = objects.into_iter().map(Some).collect();
                    return Ok(Some(Got::Objects(objects)));
                }
                Err(error) => Err(error),
            }
        }
    };
    got_of(object).map(Some)
}
