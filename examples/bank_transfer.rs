//! A bank on three machines: many concurrent transactions transfer money between accounts on all machines, and one
//! transaction sums all balances at the end.

use std::time::Instant;

use farm::prelude::*;

const ACCOUNTS_OF_A_MACHINE: usize = 20;
const OPENING_BALANCE: i64 = 100;
/// Number of tasks on each machine. Each task makes one transfer at a time.
const TELLERS: u64 = 8;
const TRANSFERS_OF_A_TELLER: u64 = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Three machines of one worker each. The name must be unique among the clusters of this host.
    let mut config = Config::default_for(3, 1);
    config.cluster.name = format!("bank-{}", std::process::id());
    config.memory.region_bytes = 64 << 20;
    config.memory.per_machine_bytes = 128 << 20;
    let machines = start_all(&config, &layers())?;

    // Every machine opens accounts in its own memory. An account is an object of eight bytes, its balance.
    let mut accounts = Vec::new();
    for machine in &machines {
        accounts.extend(block_on(machine, 0, open_accounts)??);
    }

    // Start the tellers of all machines. A task runs on one worker, interleaved with the other work of that worker.
    let began = Instant::now();
    let (report, reports) = std::sync::mpsc::channel();
    for (machine, number) in machines.iter().zip(0..) {
        for teller in 0..TELLERS {
            let (accounts, report) = (accounts.clone(), report.clone());
            machine.submit(0, move |worker| {
                let seed = number * TELLERS + teller;
                spawn(worker, move |farm| async move {
                    let _ = report.send(work(farm, accounts, seed).await);
                });
            })?;
        }
    }
    drop(report);
    let (mut made, mut refused) = (0, 0);
    for report in reports {
        let of_teller = report?;
        made += of_teller;
        refused += TRANSFERS_OF_A_TELLER - of_teller;
    }
    let took = began.elapsed();

    // Count the conflicts: a transfer was retried if another transfer changed its accounts at the same time.
    let mut conflicts = 0;
    for machine in &machines {
        let counters = machine.ask(0, |worker, answer| {
            let _ = answer.send(retry::counters(worker));
        })?;
        conflicts += counters.conflicts;
    }
    let expected = accounts.len() as i64 * OPENING_BALANCE;
    let total = block_on(&machines[1], 0, |farm| count(farm, accounts))??;
    println!("{made} transfers, {refused} refused for lack of money, in {took:.1?}");
    println!(
        "{conflicts} attempts had a conflict; the balances sum to {total}, expected {expected}"
    );
    assert_eq!(
        total, expected,
        "transfers must not change the sum of all balances"
    );

    for machine in machines {
        machine.stop()?;
    }
    Ok(())
}

/// Opens the accounts of one machine, all or none of them.
async fn open_accounts(farm: Handle) -> Result<Vec<Address>, TxError> {
    farm.transact(async |tx| {
        let mut accounts = Vec::new();
        for _ in 0..ACCOUNTS_OF_A_MACHINE {
            let account = tx.alloc(8, None).await?;
            set_balance(tx, account, OPENING_BALANCE).await?;
            accounts.push(tx.address(account).await?);
        }
        Ok(accounts)
    })
    .await
}

/// Makes transfers between random accounts. Returns the number of transfers that were not refused.
async fn work(farm: Handle, accounts: Vec<Address>, seed: u64) -> Result<u64, TxError> {
    let (mut dice, mut made) = (seed, 0);
    let mut throw = |sides: usize| {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (dice >> 33) as usize % sides
    };
    for _ in 0..TRANSFERS_OF_A_TELLER {
        let from = throw(accounts.len());
        let to = (from + 1 + throw(accounts.len() - 1)) % accounts.len();
        let amount = 1 + throw(80) as i64;
        made += u64::from(transfer(&farm, accounts[from], accounts[to], amount).await?);
    }
    Ok(made)
}

/// Transfers money if the balance suffices; otherwise returns `false`. The transaction is atomic, and is retried after
/// a conflict.
async fn transfer(farm: &Handle, from: Address, to: Address, amount: i64) -> Result<bool, TxError> {
    farm.transact(async |tx| {
        let from = tx.read(from, 8).await?;
        let left = balance(tx, from).await? - amount;
        if left < 0 {
            return Ok(false);
        }
        let to = tx.read(to, 8).await?;
        let right = balance(tx, to).await? + amount;
        set_balance(tx, from, left).await?;
        set_balance(tx, to, right).await?;
        Ok(true)
    })
    .await
}

/// Sums the balances of all accounts in one transaction, at one point in time.
async fn count(farm: Handle, accounts: Vec<Address>) -> Result<i64, TxError> {
    farm.transact(async |tx| {
        let mut total = 0;
        for account in &accounts {
            let account = tx.read(*account, 8).await?;
            total += balance(tx, account).await?;
        }
        Ok(total)
    })
    .await
}

async fn balance(tx: Transaction<'_>, account: ObjectId) -> Result<i64, TxError> {
    let bytes = tx.payload(account).await?[..8]
        .try_into()
        .expect("eight bytes");
    Ok(i64::from_le_bytes(bytes))
}

async fn set_balance(tx: Transaction<'_>, account: ObjectId, balance: i64) -> Result<(), TxError> {
    tx.write(account, &balance.to_le_bytes()).await
}
