//! Futures of a cluster in `tokio::spawn`: captures of many kinds, cancellation, and thousands of tasks.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm::prelude::*;

/// The error of a caller.
#[derive(Debug)]
enum OrderError {
    OutOfStock(u64),
    Farm(Error),
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        OrderError::Farm(error)
    }
}

async fn transfer(
    farm: &Farm,
    table: &Table<u64, i64>,
    [from, to]: [u64; 2],
    sum: i64,
) -> farm::Result<bool> {
    farm.transact(async |tx| {
        let left = table.get_or_default(tx, from).await?;
        if left < sum {
            return Ok(false);
        }
        let right = table.get_or_default(tx, to).await?;
        table.put(tx, from, left - sum).await?;
        table.put(tx, to, right + sum).await?;
        Ok(true)
    })
    .await
}

/// A function that works on a caller's transaction.
async fn add(tx: Tx<'_>, table: &Table<u64, i64>, key: u64, by: i64) -> farm::Result<i64> {
    let sum = table.get_or_default(tx, key).await? + by;
    table.put(tx, key, sum).await?;
    Ok(sum)
}

/// As the handlers of web frameworks are.
#[allow(clippy::manual_async_fn)] // The bounds are what is tested.
fn handler(
    farm: Farm,
    table: Table<u64, i64>,
) -> impl Future<Output = farm::Result<i64>> + Send + 'static {
    async move { farm.transact(async |tx| add(tx, &table, 1, 1).await).await }
}

type Boxed<'a> = Pin<Box<dyn Future<Output = farm::Result<i64>> + Send + 'a>>;

fn boxed<'a>(farm: &'a Farm, table: &'a Table<u64, i64>, name: &'a str) -> Boxed<'a> {
    Box::pin(async move {
        farm.transact(async |tx| add(tx, table, name.len() as u64, 1).await)
            .await
    })
}

/// Generic over keys and values.
async fn swap<K: Key, V: Value>(farm: Farm, table: Table<K, V>, a: K, b: K) -> farm::Result<()> {
    farm.transact(async |tx| {
        if let (Some(x), Some(y)) = (table.get(tx, a).await?, table.get(tx, b).await?) {
            table.put(tx, a, y).await?;
            table.put(tx, b, x).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_of_every_kind() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let table: Table<u64, i64> = cluster.create_table("numbers", 1000)?;
    let farm = cluster.farm();
    table.put(&farm, 1, 5).await?;
    let mut tasks = Vec::new();
    for n in 0..4u64 {
        let (farm, label) = (farm.clone(), format!("task {n}"));
        let (ids, hits) = (vec![1u64, 2, 3], Arc::new(AtomicU64::new(0)));
        tasks.push(tokio::spawn(async move {
            let tries = AtomicU64::new(0);
            let sum = farm
                .transact(async |tx| {
                    tries.fetch_add(1, Ordering::Relaxed);
                    let mut sum = 0;
                    for id in &ids {
                        sum += table.get_or_default(tx, *id).await?;
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                    for (at, c) in label.chars().enumerate() {
                        table.put(tx, 1000 + at as u64, c as i64).await?;
                    }
                    Ok(sum)
                })
                .await
                .unwrap();
            assert!(sum >= 0 && tries.load(Ordering::Relaxed) > 0);
            let first = table.get(&farm, 1000).await.unwrap();
            assert_eq!(first, Some('t' as i64));
        }));
    }
    let spawn = farm.clone();
    tasks.push(tokio::spawn(async move {
        let sold = spawn
            .try_transact(async |tx| match table.get_or_default(tx, 7).await? {
                0 => Err(OrderError::OutOfStock(7)),
                left => Ok(table.put(tx, 7, left - 1).await?),
            })
            .await;
        match sold {
            Err(OrderError::OutOfStock(7)) => {}
            Err(OrderError::Farm(error)) => panic!("{error}"),
            other => panic!("{other:?}"),
        }
    }));
    let spawn = farm.clone();
    tasks.push(tokio::spawn(async move {
        transfer(&spawn, &table, [1, 2], 5).await.unwrap();
        boxed(&spawn, &table, "abc").await.unwrap();
        swap(spawn.clone(), table, 1, 2).await.unwrap();
        handler(spawn, table).await.unwrap();
    }));
    let spawn = farm.clone();
    tasks.push(tokio::spawn(async move {
        let orders: HashMap<String, (u64, i64)> =
            [("a".to_string(), (1, 2)), ("b".to_string(), (2, 3))].into();
        let names: Vec<&str> = orders.keys().map(String::as_str).collect();
        let other = &spawn;
        spawn
            .transact(async |tx| {
                for name in &names {
                    let (key, by) = orders[*name];
                    add(tx, &table, key, by).await?;
                }
                other
                    .transact(async |inner| add(inner, &table, 99, 1).await)
                    .await?;
                assert_eq!(table.get_many(tx, &[1, 2, 3]).await?.len(), 3);
                let (one, two) = tokio::join!(table.get(tx, 1), table.get(tx, 2));
                Ok((one?, two?))
            })
            .await
            .unwrap();
    }));
    for task in tasks {
        task.await.unwrap();
    }
    Ok(())
}

/// Thousands of tasks share one handle. Some are cancelled, and the sum agrees with those that were not.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_tasks() -> farm::Result<()> {
    const TASKS: u64 = 4000;
    const KEYS: u64 = 50;
    let cluster = Cluster::local(2).workers(2).start()?;
    let table: Table<u64, i64> = cluster.create_table("counts", KEYS)?;
    let farm = cluster.farm();
    let count = |n: u64| {
        let farm = farm.clone();
        tokio::spawn(async move {
            farm.transact(async |tx| add(tx, &table, n % KEYS, 1).await)
                .await
        })
    };
    let all: Vec<_> = (0..TASKS).map(count).collect();
    for task in all.iter().step_by(3) {
        task.abort();
    }
    let mut done = 0;
    for task in all {
        done += i64::from(task.await.is_ok_and(|count| count.is_ok()));
    }
    let counts = table
        .get_many(&farm, &(0..KEYS).collect::<Vec<_>>())
        .await?;
    let sum: i64 = counts.into_iter().flatten().sum();
    // A commit that had begun takes effect although its task was cancelled.
    assert!(done <= sum && sum <= TASKS as i64, "{done} {sum}");
    assert!(done >= TASKS as i64 / 2);
    Ok(())
}

/// The futures of a cluster that has stopped end with an error, in any runtime.
#[test]
fn a_cluster_that_stops_ends_all_futures() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    let table: Table<u64, u64> = cluster.create_table("t", 100)?;
    let farm = cluster.farm();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|n| {
            let farm = farm.clone();
            runtime.spawn(async move {
                farm.transact(async |tx| {
                    table.put(tx, n, n).await?;
                    std::future::pending::<farm::Result<()>>().await
                })
                .await
            })
        })
        .collect();
    let loops = runtime.spawn({
        let farm = farm.clone();
        async move {
            loop {
                if let Err(error) = table.get(&farm, 1).await {
                    return error;
                }
            }
        }
    });
    cluster.stop()?;
    runtime.block_on(async {
        let error = loops.await.unwrap();
        assert_eq!(error.kind(), Kind::Stopped, "{error}");
        for task in waiting {
            task.abort();
            // It was waiting for ever, or its transaction had not begun.
            if let Ok(ended) = task.await {
                assert_eq!(ended.unwrap_err().kind(), Kind::Stopped);
            }
        }
        let late = table.put(&farm, 1, 1).await.unwrap_err();
        assert_eq!(late.kind(), Kind::Stopped);
        let late = farm.transact(async |tx| table.get(tx, 1).await).await;
        assert_eq!(late.unwrap_err().kind(), Kind::Stopped);
        assert_eq!(
            farm.run(|_| async {}).await.unwrap_err().kind(),
            Kind::Stopped
        );
    });
    Ok(())
}

/// More lookups at a time than a worker has room for: they wait on the worker, in order.
#[test]
fn more_lookups_than_a_worker_has_room_for() -> farm::Result<()> {
    let cluster = Cluster::local(2)
        .set("worker.operations_in_flight", "4")
        .start()?;
    let table: Table<u64, u64> = cluster.create_table("many", 1000)?;
    cluster.block_on(async |farm| {
        for key in 0..500 {
            table.insert(&farm, key, key).await?;
        }
        let lookups = (0..1000).map(|key| table.get(&farm, key));
        let found = futures_util::future::try_join_all(lookups).await?;
        assert!((0..1000).all(|key| found[key as usize] == (key < 500).then_some(key)));
        // As tasks on the workers, and with lookups that are dropped while they wait.
        let here = farm.run(async move |here| {
            let mut lookups: Vec<_> = (0..300)
                .map(|key| Box::pin(table.get(&here, key)))
                .collect();
            for lookup in &mut lookups {
                let polled = futures_util::future::poll_immediate(lookup).await;
                assert!(polled.is_none());
            }
            lookups.truncate(150);
            futures_util::future::try_join_all(lookups).await
        });
        let found = here.await??;
        assert!((0..150).all(|key| found[key as usize] == Some(key)));
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

/// Hundreds of transactions change one object, and wait between their read and their commit. The worker soon runs few of them at
/// a time, also of those that it had begun: most tries commit. Once the limit held only for those that had not begun, and each
/// commit made all the others fail.
#[test]
fn transactions_that_all_conflict_wait_for_each_other() -> farm::Result<()> {
    let cluster = Cluster::local(1).start()?;
    let hot: Table<u64, u64> = cluster.create_table("hot", 10)?;
    cluster.block_on(async |farm| {
        let increment = async |_| {
            farm.transact(async |tx| {
                let before = hot.get_or_default(tx, 1).await?;
                farm.sleep(std::time::Duration::from_millis(2)).await;
                hot.put(tx, 1, before + 1).await
            })
            .await
        };
        futures_util::future::try_join_all((0..300).map(increment)).await?;
        assert_eq!(hot.get(&farm, 1).await?, Some(300));
        let counters = farm.handles()[0].with_worker(farm::farm_txn::retry::counters);
        let counters = counters.await?;
        assert!(counters.conflicts < 900, "{counters:?}");
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}
