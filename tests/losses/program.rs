//! The program of one machine: transfers between accounts of all processes, and changes of a table.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use farm::farm_core::ids::Address;
use farm::farm_core::worker::Cont;
use farm::farm_txn::TxError;
use farm::prelude::*;

use crate::run::{ACCOUNTS, CHILD, Dir, EACH, KEYS, LOOPS, wait_for};

fn number(payload: &[u8]) -> i64 {
    i64::from_le_bytes(payload[..8].try_into().unwrap())
}

async fn add(tx: Tx<'_>, address: Address, by: i64) -> farm::Result<i64> {
    let raw = tx.raw();
    let account = raw.read(address, 8).await?;
    let sum = number(&raw.payload(account).await?) + by;
    let change = move |payload: &mut [u8]| payload[..8].copy_from_slice(&sum.to_le_bytes());
    raw.change(account, change).await?;
    Ok(sum)
}

/// Transfers between accounts until the run ends, and counts that in an account of its own.
async fn transfers(
    farm: Farm,
    dir: &Dir,
    all: &[Address],
    (own, reported): (Address, (&File, u64)),
) {
    let mut seed = own.to_bits();
    let mut draw = move |below: usize| {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let mut count = 0u64;
    while !dir.path("enough").exists() {
        for _ in 0..50 {
            let (from, to, sum) = (all[draw(all.len())], all[draw(all.len())], draw(10) as i64);
            let moved = farm.transact(async |tx| {
                add(tx, from, -sum).await?;
                add(tx, to, sum).await?;
                add(tx, own, 1).await.map(|_| ())
            });
            moved.await.unwrap();
            count += 1;
            reported
                .0
                .write_all_at(&count.to_le_bytes(), reported.1 * 8)
                .unwrap();
        }
    }
}

/// Puts numbers under the keys of one loop until the run ends, each higher than the one before, and looks them up.
async fn puts(farm: Farm, dir: &Dir, table: Table<u64, u64>, (first, reported): (u64, &File)) {
    let mut count = 0;
    while !dir.path("enough").exists() {
        for _ in 0..50 {
            count += 1;
            let key = first + count % KEYS;
            // An owner that is lost may have put it or not. Putting it again has the same effect.
            while let Err(error) = table.put(&farm, key, count).await {
                assert_eq!(error.kind(), Kind::Unknown, "{error}");
            }
            reported
                .write_all_at(&count.to_le_bytes(), (key - first) * 8)
                .unwrap();
            let key = first + (count + 1) % KEYS;
            let found = table.get(&farm, key).await.unwrap();
            assert_eq!(found, count.checked_sub(KEYS - 1).filter(|put| *put > 0));
        }
    }
}

/// Keeps the last worker from its next turn when the run asks for it, until it says that this is enough.
fn hang_when_asked(farm: &Farm, dir: &Dir, id: u16) {
    let asked = || dir.path(&format!("hang-{id}")).exists();
    while !asked() {
        if dir.path("enough").exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let go_on = dir.path(&format!("go-on-{id}"));
    let hangs = farm.handles().last().unwrap().operation(
        move |worker, cont: Cont<std::result::Result<(), TxError>>| {
            wait_for("the end of a worker that hangs", || {
                go_on.exists().then_some(())
            });
            cont.resume(worker, Ok(()));
        },
    );
    // The machine was evicted.
    let _ = pollster::block_on(hangs);
}

/// Not a test, unless it is started as the program of a machine by the tests below.
#[test]
fn a_machine() {
    let Ok(how) = std::env::var(CHILD) else {
        return;
    };
    let how: Vec<&str> = how.splitn(4, ':').collect();
    let number = |at: usize| how[at].parse::<u16>().unwrap();
    let (machine, id, begin, dir) = (number(0), number(1), number(2), Dir(how[3].into()));
    let log = File::create(dir.path(&format!("log-{id}"))).unwrap();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log)
        .init();
    // A machine can have a configuration of its own.
    let own = dir.path(&format!("farm-{machine}.toml"));
    let config = if own.exists() {
        own
    } else {
        dir.path("farm.toml")
    };
    let cluster = Cluster::join(config, MachineId::new(machine).unwrap());
    let cluster = cluster.start().unwrap();
    if begin == 0 {
        // It is killed.
        wait_for("the end", || dir.read("end"));
        return;
    }
    let created = cluster.block_on(async |farm| {
        let mut created = Vec::new();
        for index in 0..LOOPS + ACCOUNTS {
            let sum = if index < LOOPS { 0 } else { EACH };
            let account = farm.transact(async |tx| {
                let account = tx.raw().alloc(8, None).await?;
                let change =
                    move |payload: &mut [u8]| payload[..8].copy_from_slice(&i64::to_le_bytes(sum));
                tx.raw().change(account, change).await?;
                Ok::<_, Error>(tx.raw().address(account).await?)
            });
            created.push(account.await.unwrap());
        }
        created
    });
    let lines: String = created
        .iter()
        .map(|one| format!("{}\n", one.to_bits()))
        .collect();
    dir.write(&format!("accounts-{id}"), &lines);
    let accounts = (1..=begin).flat_map(|id| dir.accounts(id).split_off(LOOPS));
    let accounts: Vec<Address> = accounts.collect();
    let reported = File::create(dir.reported(id)).unwrap();
    let put = File::create(dir.put(id)).unwrap();
    let table = cluster.create_table::<u64, u64>("numbers", 1000).unwrap();
    let (farm, of_run) = (cluster.farm(), Dir(dir.0.clone()));
    // The process does not wait for it when its machine is evicted.
    std::thread::spawn(move || hang_when_asked(&farm, &of_run, id));
    std::thread::scope(|scope| {
        let put = (u64::from(id) * KEYS, &put);
        let (dir, farm) = (&dir, cluster.farm());
        scope.spawn(move || pollster::block_on(puts(farm, dir, table, put)));
        for (index, own) in created[..LOOPS].iter().enumerate() {
            let (farm, accounts, reported) = (cluster.farm(), &accounts, &reported);
            let own = (*own, (reported, index as u64));
            scope.spawn(move || pollster::block_on(transfers(farm, dir, accounts, own)));
        }
    });
    dir.write(&format!("ended-{id}"), "");
    // One of the processes that are left reads everything.
    let reader = wait_for("the reader", || dir.read("reader"));
    let (reader, processes) = reader.split_once(' ').unwrap();
    let processes: u16 = processes.parse().unwrap();
    if reader == id.to_string() {
        let all = (1..=processes).flat_map(|id| dir.accounts(id));
        let sums = cluster.block_on(async |farm| {
            let mut sums = String::new();
            for address in all {
                let sum = farm
                    .transact(async |tx| add(tx, address, 0).await)
                    .await
                    .unwrap();
                sums += &format!("{sum}\n");
            }
            sums
        });
        let pairs = cluster.block_on(async |farm| {
            let mut pairs = format!("{}\n", table.len(&farm).await.unwrap());
            for key in KEYS..KEYS * u64::from(processes + 1) {
                let found = table.get(&farm, key).await.unwrap();
                pairs += &format!("{}\n", found.unwrap_or(0));
            }
            pairs
        });
        dir.write("pairs", &pairs);
        dir.write("sums", &sums);
    }
    wait_for("the end", || dir.read("end"));
}
