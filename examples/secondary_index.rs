//! A table of users, and an index of the users by their handles. Each transaction changes both, so they stay consistent
//! while three machines change them at the same time. No two users have the same handle.

use farm::prelude::*;
use futures_util::future::try_join_all;

const USERS: u64 = 60;
/// Number of handles, for which the users compete.
const HANDLES: u64 = 80;
/// Number of changes of each task.
const CHANGES: u64 = 60;
const TASKS_OF_A_MACHINE: u64 = 4;

/// A handle: sixteen letters.
type UserHandle = [u8; 16];

/// Two tables: the handles of the users by their numbers, and the numbers by the handles.
#[derive(Clone, Copy)]
struct Directory {
    users: Table<u64, UserHandle>,
    by_handle: Table<UserHandle, u64>,
}

fn main() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let directory = Directory {
        users: cluster.create_table("users", USERS)?,
        by_handle: cluster.create_table("users by handle", USERS)?,
    };

    // On all machines, tasks add users, change handles, and remove users.
    let tasks = cluster.farms().iter().flat_map(|farm| {
        let of_machine = u64::from(farm.machine().get()) * TASKS_OF_A_MACHINE;
        (of_machine..of_machine + TASKS_OF_A_MACHINE).map(|seed| directory.work(farm, seed))
    });
    let done = cluster.block_on(async |_| try_join_all(tasks).await)?;
    let (made, refused) = done
        .into_iter()
        .fold((0, 0), |sum, done| (sum.0 + done.0, sum.1 + done.1));

    // A machine compares the two tables in one transaction.
    let (users, entries) = cluster.block_on(async |farm| directory.compare(&farm).await)?;
    println!("{made} changes, {refused} refused; {users} users, {entries} entries of the index");
    assert_eq!(users, entries);
    cluster.stop()
}

impl Directory {
    /// Makes random changes. Returns the numbers of changes that were made and refused.
    async fn work(self, farm: &Farm, seed: u64) -> farm::Result<(u64, u64)> {
        let (mut dice, mut made) = (seed + 1, 0);
        let mut throw = |sides: u64| {
            dice = dice
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (dice >> 33) % sides
        };
        for _ in 0..CHANGES {
            let (user, handle, leaves) = (throw(USERS), handle(throw(HANDLES)), throw(4) == 0);
            let done = farm
                .transact(async |tx| match leaves {
                    true => self.leave(tx, user).await,
                    false => self.call(tx, user, handle).await,
                })
                .await?;
            made += u64::from(done);
        }
        Ok((made, CHANGES - made))
    }

    /// Sets the handle of a user, and adds the user if it is new. Returns `false` if the handle is taken.
    async fn call(self, tx: Tx<'_>, user: u64, handle: UserHandle) -> farm::Result<bool> {
        if !self.by_handle.insert(tx, handle, user).await? {
            return Ok(false);
        }
        if let Some(old) = self.users.get(tx, user).await? {
            self.by_handle.remove(tx, old).await?;
        }
        self.users.put(tx, user, handle).await?;
        Ok(true)
    }

    /// Removes a user. Returns `false` if there is no such user.
    async fn leave(self, tx: Tx<'_>, user: u64) -> farm::Result<bool> {
        let Some(handle) = self.users.get(tx, user).await? else {
            return Ok(false);
        };
        self.users.remove(tx, user).await?;
        self.by_handle.remove(tx, handle).await
    }

    /// Reads both tables in one transaction, and checks that the handle of every user leads back to the user. Returns the
    /// numbers of users and of entries of the index.
    async fn compare(self, farm: &Farm) -> farm::Result<(usize, usize)> {
        let (all_users, all_handles): (Vec<u64>, Vec<UserHandle>) =
            ((0..USERS).collect(), (0..HANDLES).map(handle).collect());
        farm.transact(async |tx| {
            let mut users = 0;
            for (user, handle) in all_users
                .iter()
                .zip(self.users.get_many(tx, &all_users).await?)
            {
                if let Some(handle) = handle {
                    assert_eq!(self.by_handle.get(tx, handle).await?, Some(*user));
                    users += 1;
                }
            }
            let entries = self.by_handle.get_many(tx, &all_handles).await?;
            Ok((users, entries.into_iter().flatten().count()))
        })
        .await
    }
}

fn handle(number: u64) -> UserHandle {
    let mut handle = *b"user-----000----";
    for (place, digit) in handle[9..12].iter_mut().zip([100, 10, 1]) {
        *place += (number / digit % 10) as u8;
    }
    handle
}
