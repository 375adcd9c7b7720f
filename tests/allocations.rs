//! Tasks on workers take no lock for an operation, and allocate no memory once they are warm, neither on their worker nor on
//! the owner of the data.

#[path = "../farm-txn/tests/counting/mod.rs"]
mod counting;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;

use farm::LocalFarm;
use farm::prelude::*;

const KEYS: u64 = 2000;
/// Tasks that count, and tasks that warm everything up: no queue may become longer while allocations are counted.
const TASKS: u64 = 8;
const WARM_TASKS: u64 = 64;
const WARM: u64 = 400;
const COUNTED: u64 = 2000;
/// Maximum number of runs after which nothing is allocated any more.
const MOST_WARM_UPS: usize = 5;

/// Allocations for the task that reads the count of the other machine: its future and its waker.
const OF_COUNTING: u64 = 2;

type Value = [u64; 4];

#[derive(Clone, Copy, Debug)]
enum What {
    Gets,
    Puts,
    ReadOnly,
    Transfers,
}

/// Returns how often the lock of the worker's queue was taken, which is counted in debug builds only.
#[cfg(debug_assertions)]
fn locks_taken(here: &LocalFarm) -> u64 {
    here.handle().locks()
}

#[cfg(not(debug_assertions))]
fn locks_taken(_: &LocalFarm) -> u64 {
    0
}

async fn work(
    here: &LocalFarm,
    table: Table<u64, Value>,
    what: What,
    number: u64,
) -> farm::Result<()> {
    let (key, other) = (number * 7919 % KEYS, number * 104_729 % KEYS);
    match what {
        What::Gets => {
            let value = table.get(here, key).await?;
            assert_eq!(value.unwrap()[0], key);
        }
        What::Puts => _ = table.put(here, key, [key, number, 0, 0]).await?,
        What::ReadOnly => {
            let read = here.transact(async |tx| {
                let one = table.get(tx, key).await?;
                Ok((one, table.get(tx, other).await?))
            });
            assert_eq!(read.await?.1.unwrap()[0], other);
        }
        What::Transfers => {
            here.transact(async |tx| {
                for key in [key, other] {
                    let mut value = table.get(tx, key).await?.unwrap();
                    value[1] += 1;
                    table.put(tx, key, value).await?;
                }
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// Runs operations on the first machine, and returns the allocations of each machine.
fn run(cluster: &Cluster, table: Table<u64, Value>, what: What, tasks: u64, each: u64) -> Vec<u64> {
    let count = |farm: &Farm, counts: bool| {
        let taken = farm.run(async move |_| {
            counting::count(counts);
            counting::take().times
        });
        pollster::block_on(taken).unwrap()
    };
    let (send, done) = mpsc::channel();
    let start = async move |here: LocalFarm| {
        let left = Rc::new(Cell::new(tasks));
        let failed = Rc::new(RefCell::new(Ok(())));
        for task in 0..tasks {
            let (left, failed, send) = (Rc::clone(&left), Rc::clone(&failed), send.clone());
            here.spawn(async move |here: LocalFarm| {
                let locks = locks_taken(&here);
                for number in 0..each {
                    let done = work(&here, table, what, task * each + number).await;
                    if done.is_err() {
                        drop(failed.replace(done));
                        break;
                    }
                }
                left.set(left.get() - 1);
                if left.get() == 0 {
                    counting::count(false);
                    // All tasks have begun in one turn of the worker, so that no operation was before this count.
                    assert_eq!(locks_taken(&here), locks, "a task took a lock");
                    let _ = send.send(failed.replace(Ok(())));
                }
            });
        }
        // The tasks begin when this one has ended.
        counting::count(true);
    };
    let [first, other] = cluster.farms() else {
        panic!("the cluster has two machines");
    };
    count(other, true);
    pollster::block_on(first.run(start)).unwrap();
    done.recv().unwrap().unwrap();
    vec![count(first, false), count(other, false)]
}

#[test]
fn warm_tasks_allocate_nothing_and_take_no_lock() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    let table: Table<u64, Value> = cluster.create_table("counted", KEYS)?;
    cluster.block_on(async |farm| {
        for key in 0..KEYS {
            table.insert(&farm, key, [key, 0, 0, 0]).await?;
        }
        Ok::<_, Error>(())
    })?;
    let all = [What::Gets, What::Puts, What::ReadOnly, What::Transfers];
    for what in all {
        let allocated = run(&cluster, table, what, WARM_TASKS, WARM);
        println!("while it got warm, {what:?}: {allocated:?}");
    }
    for what in all {
        // On a loaded host a buffer may still grow in a schedule that was not met before.
        let run = || run(&cluster, table, what, TASKS, COUNTED);
        let _ = (0..MOST_WARM_UPS).any(|_| run() == [0, OF_COUNTING]);
        assert_eq!(run(), [0, OF_COUNTING], "{what:?}");
    }
    cluster.stop()
}
