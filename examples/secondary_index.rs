//! A table of users, and an index of the users by their handles. Each transaction changes both, so they stay consistent
//! while three machines change them at the same time. No two users have the same handle.

use farm::prelude::*;

const USERS: u64 = 60;
/// Number of handles, for which the users compete.
const HANDLES: u64 = 80;
/// Number of changes of each task.
const CHANGES: u64 = 60;
const TASKS_OF_A_MACHINE: u64 = 4;

/// Two tables: the handles of the users by their numbers, and the numbers by the handles.
#[derive(Clone, Copy)]
struct Directory {
    users: TableId,
    by_handle: TableId,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::default_for(3, 1);
    config.cluster.name = format!("directory-{}", std::process::id());
    config.memory.region_bytes = 64 << 20;
    config.memory.per_machine_bytes = 128 << 20;
    let machines = start_all(&config, &layers())?;
    let table = |id, value_bytes| TableSpec {
        id,
        neighbourhood: 6,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes,
        shards: 3,
        buckets: 32,
    };
    let directory = Directory {
        users: blocking::open(&machines, table(1, 16))?,
        by_handle: blocking::open(&machines, table(2, 8))?,
    };

    // On all machines, tasks add users, change handles, and remove users.
    let (report, reports) = std::sync::mpsc::channel();
    for (machine, number) in machines.iter().zip(0..) {
        for task in 0..TASKS_OF_A_MACHINE {
            let (report, seed) = (report.clone(), number * TASKS_OF_A_MACHINE + task);
            machine.submit(0, move |worker| {
                spawn(worker, move |farm| async move {
                    let _ = report.send(work(farm, directory, seed).await);
                });
            })?;
        }
    }
    drop(report);
    let (mut made, mut refused) = (0, 0);
    for report in reports {
        let (of_task, others) = report?;
        made += of_task;
        refused += others;
    }

    // A machine compares the two tables in one transaction.
    let (users, entries) = block_on(&machines[2], 0, move |farm| compare(farm, directory))??;
    println!("{made} changes, {refused} refused; {users} users, {entries} entries of the index");
    assert_eq!(users, entries);
    for machine in machines {
        machine.stop()?;
    }
    Ok(())
}

/// Makes random changes. Returns the numbers of changes that were made and refused.
async fn work(farm: Handle, directory: Directory, seed: u64) -> Result<(u64, u64), TxError> {
    let (mut dice, mut made) = (seed + 1, 0);
    let mut throw = |sides: u64| {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (dice >> 33) % sides
    };
    for _ in 0..CHANGES {
        let (user, handle, leaves) = (throw(USERS), throw(HANDLES), throw(4) == 0);
        let done = farm
            .transact(async |tx| match leaves {
                true => leave(tx, directory, user).await,
                false => call(tx, directory, user, handle).await,
            })
            .await?;
        made += u64::from(done);
    }
    Ok((made, CHANGES - made))
}

/// Sets the handle of a user, and adds the user if it is new. Returns `false` if the handle is taken.
async fn call(tx: Transaction<'_>, at: Directory, user: u64, new: u64) -> Result<bool, TxError> {
    if table::get(tx, at.by_handle, &handle(new)).await?.is_some() {
        return Ok(false);
    }
    if let Some(old) = table::get(tx, at.users, &key(user)).await? {
        let old: Key = old
            .try_into()
            .expect("the value of a user is a handle, which has sixteen bytes");
        table::change(tx, at.by_handle, &old, Change::Remove).await?;
    }
    let entry = user.to_le_bytes();
    table::change(tx, at.users, &key(user), Change::Upsert(&handle(new))).await?;
    table::change(tx, at.by_handle, &handle(new), Change::Insert(&entry)).await?;
    Ok(true)
}

/// Removes a user. Returns `false` if there is no such user.
async fn leave(tx: Transaction<'_>, at: Directory, user: u64) -> Result<bool, TxError> {
    let Some(old) = table::get(tx, at.users, &key(user)).await? else {
        return Ok(false);
    };
    let old: Key = old
        .try_into()
        .expect("the value of a user is a handle, which has sixteen bytes");
    table::change(tx, at.users, &key(user), Change::Remove).await?;
    table::change(tx, at.by_handle, &old, Change::Remove).await?;
    Ok(true)
}

/// Reads both tables in one transaction, and checks that the handle of every user leads back to the user. Returns the
/// numbers of users and of entries of the index.
async fn compare(farm: Handle, at: Directory) -> Result<(u64, u64), TxError> {
    farm.transact(async |tx| {
        let (mut users, mut entries) = (0, 0);
        for user in 0..USERS {
            if let Some(name) = table::get(tx, at.users, &key(user)).await? {
                let name: Key = name
                    .try_into()
                    .expect("the value of a user is a handle, which has sixteen bytes");
                let entry = table::get(tx, at.by_handle, &name).await?;
                assert_eq!(entry, Some(user.to_le_bytes().to_vec()));
                users += 1;
            }
        }
        for name in 0..HANDLES {
            let entry = table::get(tx, at.by_handle, &handle(name)).await?;
            entries += u64::from(entry.is_some());
        }
        Ok((users, entries))
    })
    .await
}

fn key(user: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&user.to_le_bytes());
    key
}

fn handle(number: u64) -> Key {
    let mut handle = *b"user-----000----";
    for (place, digit) in handle[9..12].iter_mut().zip([100, 10, 1]) {
        *place += (number / digit % 10) as u8;
    }
    handle
}
