//! An audit of a whole table in one transaction. Regression: 2,000 rows exceeded the limits of every transaction.

#![allow(clippy::disallowed_methods)] // Tests may wait.

mod common;

use std::cell::Cell;

use farm_core::config::{Config, TransactionsConfig};
use farm_kv::{Change, Key, TableSpec, blocking, tasks};
use farm_txn::{Handle, Transaction, TxError, block_on};

const ROWS: u16 = 2_000;
const EACH: u64 = 100;

fn key(row: u16) -> Key {
    let mut key = [0; 16];
    key[..2].copy_from_slice(&row.to_le_bytes());
    key
}

async fn balance(tx: Transaction<'_>, table: farm_kv::TableId, row: u16) -> Result<u64, TxError> {
    let value = tasks::get(tx, table, &key(row)).await?;
    let value = value.expect("every row exists");
    Ok(u64::from_le_bytes(value.try_into().expect("eight bytes")))
}

async fn transfer(
    tx: Transaction<'_>,
    table: farm_kv::TableId,
    [from, to]: [u16; 2],
) -> Result<(), TxError> {
    for (row, change) in [(from, u64::MAX), (to, 1)] {
        let now = balance(tx, table, row).await?.wrapping_add(change);
        let change = Change::Update(&now.to_le_bytes());
        tasks::change(tx, table, &key(row), change).await?;
    }
    Ok(())
}

#[test]
fn an_audit_of_2000_rows_is_serializable() {
    let mut config = Config::tiny_for(2, 1);
    // The defaults, as in production.
    config.transactions = TransactionsConfig::default();
    let cluster = common::start("kv-audit", config);
    let machines = &cluster.machines;
    let spec = TableSpec::sized(1, 6, 8, 2, u64::from(ROWS), 0.9).unwrap();
    let table = blocking::open(machines, spec).unwrap();
    for row in 0..ROWS {
        let insert = blocking::OwnedChange::Insert(EACH.to_le_bytes().to_vec());
        blocking::change(&machines[0], 0, table, key(row), insert).unwrap();
    }
    let (tries, sum) = block_on(&machines[0], 0, async move |farm: Handle| {
        let tries = Cell::new(0);
        let audit = async |tx: Transaction<'_>| {
            tries.set(tries.get() + 1);
            let mut sum = 0;
            for row in 0..ROWS {
                sum += balance(tx, table, row).await?;
                if tries.get() == 1 && row == ROWS / 2 {
                    // Transfer from a row that was read to one that was not read yet.
                    let rows = [0, ROWS - 1];
                    farm.transact(async |tx| transfer(tx, table, rows).await)
                        .await?;
                }
            }
            Ok::<_, TxError>(sum)
        };
        let sum = farm.transact(audit).await.unwrap();
        (tries.get(), sum)
    })
    .unwrap();
    assert_eq!((tries, sum), (2, EACH * u64::from(ROWS)));
    cluster.stop();
}
