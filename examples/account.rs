//! A table of accounts, and a transaction that changes one of them. The README begins with this program.

use farm::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Account {
    balance: i64,
    opened: u64,
}

fn main() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let accounts: Table<u64, Account> = cluster.create_table("accounts", 10_000)?;
    cluster.block_on(async |farm| {
        accounts
            .insert(
                &farm,
                1,
                Account {
                    balance: 100,
                    opened: 2026,
                },
            )
            .await?;
        let left = farm
            .transact(async |tx| {
                let mut account = accounts
                    .get(tx, 1)
                    .await?
                    .ok_or(Error::not_found("account 1"))?;
                account.balance -= 10;
                accounts.put(tx, 1, account).await?;
                Ok(account.balance)
            })
            .await?;
        println!("{left} left; {:?}", accounts.get(&farm, 1).await?); // the second: one one-sided read
        Ok(())
    })
}
