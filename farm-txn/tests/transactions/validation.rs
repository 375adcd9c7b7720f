//! Errors of the bodies of transactions, which are reported only if the reads are of one moment.

use std::cell::Cell;

use farm_core::ids::Address;
use farm_txn::{Abort, Handle, Transaction, TxError, retry};

use crate::cluster::cluster;
use crate::tasks::{add_one, task, wait_for_rest};

/// If the reads of a body were overtaken, its error is not reported, and its transaction is retried.
#[test]
fn an_overtaken_body_is_called_again() {
    let cluster = cluster("overtaken", 1, 1);
    let [x, y] = [b"x", b"y"].map(|payload| cluster.create(0, 0, payload));
    let tries = task(&cluster, 0, move |farm| async move {
        let tries = Cell::new(0);
        let outcome = farm
            .transact(async |tx| {
                tries.set(tries.get() + 1);
                let object = tx.read(x, 1).await?;
                // A read of a single object is always consistent, so the body reads a second one.
                tx.read(y, 1).await?;
                if tries.get() < 4 {
                    // Another transaction commits between the read and the end.
                    let other = farm.begin().await.unwrap();
                    let theirs = other.read(x, 1).await?;
                    other.change(theirs, move |payload| payload[0] += 1).await?;
                    other.commit().await?;
                }
                match tries.get() {
                    1 | 2 => tx.change(object, |payload| payload[0] = b'?').await,
                    3 => Err(TxError::GivenUp),
                    _ => Ok(()),
                }
            })
            .await;
        outcome.unwrap();
        assert_eq!(farm.read_lock_free(x, 1).await.unwrap(), [b'x' + 3]);
        tries.get()
    });
    assert_eq!(tries, 4);
    assert_eq!(cluster.on(0, 0, retry::counters).conflicts, 3);
    cluster.stop();
}

/// Increments an object of 8 bytes, by a transaction of its own.
async fn bump(farm: &Handle, address: Address) -> Result<(), TxError> {
    let tx = farm.begin().await.unwrap();
    add_one(*tx, address).await?;
    tx.commit().await
}

/// Regression: two values that every transaction changes together were reported as different, because the error of a
/// body was passed on without a validation of its reads.
#[test]
fn a_body_cannot_report_equal_values_as_different() {
    let cluster = cluster("false-refusal", 2, 1);
    let x = cluster.create(0, 0, &[0; 8]);
    let y = cluster.create(1, 0, &[0; 8]);
    let (tries, outcome) = task(&cluster, 0, move |farm| async move {
        let tries = Cell::new(0);
        let equal = async |tx: Transaction<'_>| {
            tries.set(tries.get() + 1);
            let one = tx.read(x, 8).await?;
            if tries.get() == 1 {
                let both = async |other: Transaction<'_>| {
                    add_one(other, x).await?;
                    add_one(other, y).await
                };
                farm.transact(both).await?;
            }
            let two = tx.read(y, 8).await?;
            match tx.payload(one).await? == tx.payload(two).await? {
                true => Ok(()),
                false => Err(TxError::Refused("x and y are different".into())),
            }
        };
        let outcome = farm.transact(equal).await;
        (tries.get(), outcome)
    });
    outcome.unwrap();
    assert_eq!(tries, 2);
    wait_for_rest(&cluster);
    cluster.stop();
}

/// The object of an error may be outside of the transaction: the reads that led to it are validated, even if they are a
/// single object.
#[test]
fn an_error_after_a_stale_read_is_validated() {
    let cluster = cluster("stale-size", 2, 1);
    let here = cluster.create(0, 0, &[0; 8]);
    let there = cluster.create(1, 0, &[0; 8]);
    let data = cluster.create(0, 0, &[0; 16]);
    for size_of in [here, there] {
        let (tries, outcome) = task(&cluster, 0, move |farm| async move {
            let tries = Cell::new(0);
            let read_by_size = async |tx: Transaction<'_>| {
                tries.set(tries.get() + 1);
                let size = tx.read(size_of, 8).await?;
                let bytes = if tx.payload(size).await?[0] == 0 {
                    400
                } else {
                    16
                };
                if tries.get() == 1 {
                    bump(&farm, size_of).await?;
                }
                tx.read(data, bytes).await
            };
            let outcome = farm.transact(read_by_size).await.map(|_| ());
            (tries.get(), outcome)
        });
        outcome.unwrap();
        assert_eq!(tries, 2, "the size of {size_of} was stale");
    }
    wait_for_rest(&cluster);
    cluster.stop();
}

/// The validation of a context finds that its reads are mutually inconsistent, and succeeds otherwise.
#[test]
fn validate_of_a_context_finds_inconsistent_reads() {
    let cluster = cluster("context-validate", 2, 1);
    let [x, y] = [(); 2].map(|()| cluster.create(0, 0, &[0; 8]));
    for overtake in [true, false] {
        let (mut tx, one) = cluster.open(0, 0, move |tx, w| tx.read(w, x, 8).unwrap());
        if overtake {
            let other = cluster.transact(0, 0, move |tx, w| {
                for at in [x, y] {
                    let object = tx.read(w, at, 8)?;
                    tx.payload_mut(object)[0] += 1;
                }
                Ok(())
            });
            other.unwrap();
        }
        let (tx, equal) = cluster.on(0, 0, move |w| {
            let two = tx.read(w, y, 8).unwrap();
            let equal = tx.payload(one) == tx.payload(two);
            (tx, equal)
        });
        assert_eq!(equal, !overtake);
        let validated = cluster.validate(0, 0, tx);
        match overtake {
            true => assert!(
                matches!(validated, Err(TxError::Abort(Abort::Changed(at))) if at == x),
                "{validated:?}"
            ),
            false => validated.unwrap(),
        }
    }
    wait_for_rest(&cluster);
    cluster.stop();
}

/// `validate` ends a transaction without effect, and validates its reads.
#[test]
fn validate_ends_a_transaction_without_effect() {
    let cluster = cluster("validate", 2, 1);
    let x = cluster.create(0, 0, &[0; 8]);
    task(&cluster, 1, move |farm| async move {
        let tx = farm.begin().await.unwrap();
        tx.read(x, 8).await.unwrap();
        bump(&farm, x).await.unwrap();
        let stale = tx.validate().await.unwrap_err();
        // The commit may be reported before its object is unlocked.
        assert!(
            matches!(stale, TxError::Abort(Abort::Changed(at) | Abort::Locked(at)) if at == x),
            "{stale}"
        );
        loop {
            let tx = farm.begin().await.unwrap();
            let object = tx.read(x, 8).await.unwrap();
            tx.change(object, move |payload| payload.fill(9))
                .await
                .unwrap();
            match tx.validate().await {
                Ok(()) => break,
                Err(TxError::Abort(Abort::Locked(_))) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let now = farm.read_lock_free(x, 8).await.unwrap();
        assert_eq!(now[0], 1, "a validated transaction took effect");
    });
    wait_for_rest(&cluster);
    cluster.stop();
}
