//! Tables by name, on the machines of a cluster.

use farm::prelude::*;

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Pair {
    a: u64,
    b: u32,
    c: u32,
}

#[test]
fn operations_agree_on_every_machine_alone_in_transactions_and_in_tasks() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let pairs: Table<(u16, u64), Pair> = cluster.create_table("pairs", 1000)?;
    let value = |n: u64| Pair {
        a: n,
        b: 1,
        c: n as u32,
    };
    for (machine, farm) in cluster.farms().iter().enumerate() {
        pollster::block_on(async {
            let machine = machine as u16;
            for n in 0..100 {
                assert!(pairs.insert(farm, (machine, n), value(n)).await?);
                assert!(!pairs.insert(farm, (machine, n), value(0)).await?);
            }
            assert!(!pairs.put(farm, (machine, 1), value(11)).await?);
            assert!(pairs.put(farm, (machine, 100), value(12)).await?);
            assert!(pairs.replace(farm, (machine, 2), value(13)).await?);
            assert!(!pairs.replace(farm, (machine, 200), value(14)).await?);
            assert!(pairs.remove(farm, (machine, 3)).await?);
            assert!(!pairs.remove(farm, (machine, 3)).await?);
            Ok::<_, Error>(())
        })?;
    }
    // From every machine, alone, in a transaction, and by tasks of workers.
    for farm in cluster.farms() {
        pollster::block_on(async {
            for machine in 0..3u16 {
                let expected = |n: u64| match n {
                    1 => Some(value(11)),
                    2 => Some(value(13)),
                    3 => None,
                    100 => Some(value(12)),
                    n => (n < 100).then(|| value(n)),
                };
                let keys: Vec<_> = (0..102).map(|n| (machine, n)).collect();
                let all: Vec<_> = (0..102).map(expected).collect();
                assert_eq!(pairs.get_many(farm, &keys).await?, all);
                let found = farm.transact(async |tx| pairs.get_many(tx, &keys).await);
                assert_eq!(found.await?, all);
                let here = farm.run(async move |here| {
                    let found = pairs.get_many(&here, &keys).await?;
                    let one = pairs.get_or_default(&here, (machine, 3)).await?;
                    assert_eq!(one, Pair::default());
                    here.transact(async |tx| pairs.get(tx, keys[1]).await)
                        .await
                        .map(|one| assert_eq!(one, found[1]))?;
                    Ok::<_, Error>(found)
                });
                assert_eq!(here.await??, all);
            }
            Ok::<_, Error>(())
        })?;
    }
    cluster.stop()
}

#[test]
fn tables_are_found_by_name_from_every_machine() -> farm::Result<()> {
    let cluster = Cluster::local(3).workers(2).start()?;
    let missing = cluster.open_table::<u64, u64>("stock").unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    assert_eq!(missing.to_string(), "table \"stock\" not found");
    let stock: Table<u64, u64> = cluster.create_table("stock", 500)?;
    let other: Table<u32, [u8; 5]> = cluster.create_table("other", 10)?;
    assert_ne!(stock.spec().id, other.spec().id);
    // Creating a table again finds it, unless it is another one.
    let again: Table<u64, u64> = cluster.create_table("stock", 500)?;
    assert_eq!(again.spec(), stock.spec());
    let bigger = cluster
        .create_table::<u64, u64>("stock", 50_000)
        .unwrap_err();
    assert_eq!(bigger.kind(), Kind::Exists, "{bigger}");
    let wrong = cluster.open_table::<u64, u32>("stock").unwrap_err();
    assert_eq!(wrong.kind(), Kind::Invalid);
    assert!(wrong.to_string().contains("values of 8 bytes"), "{wrong}");
    for name in ["", "a\nb", &"x".repeat(65)] {
        let error = cluster.create_table::<u64, u64>(name, 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    let huge = cluster
        .create_table::<u64, [u8; 1 << 20]>("huge", 1)
        .unwrap_err();
    assert_eq!(huge.kind(), Kind::Invalid, "{huge}");
    let large = cluster.create_table::<u64, [u8; 4096]>("large", 10_000_000);
    assert_eq!(large.unwrap_err().kind(), Kind::Full);
    // After all that, the tables work.
    let found: Table<u64, u64> = cluster.open_table("stock")?;
    cluster.block_on(async |farm| {
        stock.put(&farm, 1, 2).await?;
        assert_eq!(found.get(&farm, 1).await?, Some(2));
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

/// Machines create the same table at the same time: one does, and all get the same.
#[test]
fn concurrent_creations_of_a_table_agree() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let tables: Vec<farm::Result<Table<u64, u64>>> = std::thread::scope(|scope| {
        let creating: Vec<_> = (0..8)
            .map(|n| {
                let name = ["a", "b"][n % 2];
                let cluster = &cluster;
                scope.spawn(move || cluster.create_table(name, 100))
            })
            .collect();
        creating
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect()
    });
    let ids: Vec<u16> = tables
        .into_iter()
        .map(|table| Ok(table?.spec().id))
        .collect::<farm::Result<_>>()?;
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(*id, ids[n % 2]);
    }
    assert_ne!(ids[0], ids[1]);
    cluster.stop()
}

#[test]
fn impossible_clusters_are_refused() {
    for starting in [
        Cluster::local(0),
        Cluster::local(u16::MAX),
        Cluster::local(1).set("memory.nothing", "1"),
        Cluster::local(1).set("memory.per_machine_bytes", "many"),
        Cluster::local(1).workers(0),
        Cluster::from_file("/nowhere/farm.toml"),
    ] {
        let error = starting.start().unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
}

#[test]
fn objects_are_typed() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    cluster.block_on(async |farm| {
        let [first, second] = farm
            .transact(async |tx| {
                let first = tx.alloc(7u64).await?;
                let second = tx.alloc_near(first, Pair { a: 1, b: 2, c: 3 }).await?;
                tx.update(first, |value| *value += 1).await?;
                Ok([first, second.cast()])
            })
            .await?;
        assert_eq!(farm.get(first).await?, 8);
        assert_eq!(farm.get(second.cast::<Pair>()).await?.c, 3);
        let wrong = farm.get(first.cast::<[u8; 4096]>()).await.unwrap_err();
        assert_eq!(wrong.kind(), Kind::Invalid, "{wrong}");
        let null = farm.get(Ptr::<u64>::null()).await.unwrap_err();
        assert_eq!(null.kind(), Kind::NotFound);
        farm.transact(async |tx| {
            tx.set(first, 9).await?;
            assert_eq!(tx.get(first).await?, 9);
            tx.free(second).await
        })
        .await?;
        assert_eq!(farm.get(first).await?, 9);
        let gone = farm.get(second).await.unwrap_err();
        assert_eq!(gone.kind(), Kind::NotFound, "{gone}");
        let gone = farm.transact(async |tx| tx.get(second).await).await;
        assert_eq!(gone.unwrap_err().kind(), Kind::NotFound);
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

#[test]
fn a_task_on_each_worker() -> farm::Result<()> {
    let cluster = Cluster::local(1).workers(3).start()?;
    let sums: Table<u16, u64> = cluster.create_table("sums", 10)?;
    cluster.block_on(async |farm| {
        let workers = farm
            .run_on_all(async move |here| {
                // The state of a task need not be `Send`.
                let worker = std::rc::Rc::new(here.me().worker.get());
                sums.insert(&here, *worker, 10 * u64::from(*worker)).await?;
                Ok::<_, Error>(*worker)
            })
            .await?;
        let workers: Vec<u16> = workers.into_iter().collect::<farm::Result<_>>()?;
        assert_eq!(workers, [0, 1, 2]);
        assert_eq!(sums.get(&farm, 2).await?, Some(20));
        let panicked = farm.run(|_| async { panic!("on purpose") }).await;
        let panicked: farm::Result<()> = panicked;
        assert_eq!(panicked.unwrap_err().kind(), Kind::Stopped);
        assert_eq!(sums.get(&farm, 1).await?, Some(10));
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

/// The first table takes most of the memory. The second one is possible by its size alone, and fails when its shards are made:
/// then its name is free again.
#[test]
fn a_table_that_cannot_be_opened_leaves_its_name_free() -> farm::Result<()> {
    let cluster = Cluster::local(2)
        .set("memory.per_machine_bytes", "128MiB")
        .start()?;
    let large: Table<u64, [u8; 1000]> = cluster.create_table("large", 150_000)?;
    let error = cluster
        .create_table::<u64, [u8; 1000]>("second", 100_000)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Full, "{error}");
    let said = error.to_string();
    assert!(said.contains("cannot open the table \"second\""), "{said}");
    assert!(said.contains("memory.per_machine_bytes"), "{said}");
    let missing = cluster.open_table::<u64, [u8; 1000]>("second").unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound, "{missing}");
    let small: Table<u64, u64> = cluster.create_table("second", 100)?;
    cluster.block_on(async |farm| {
        small.insert(&farm, 1, 2).await?;
        large.insert(&farm, 1, [7; 1000]).await?;
        assert_eq!(small.get(&farm, 1).await?, Some(2));
        assert_eq!(large.get(&farm, 1).await?, Some([7; 1000]));
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

/// A lookup of many keys in a transaction meets conflicts, and is repeated. Once, the calls that were dropped after the first
/// conflict ended the transaction for good.
#[test]
fn many_lookups_in_a_transaction_are_repeated_after_conflicts() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    let table: Table<u64, i64> = cluster.create_table("accounts", 100)?;
    let keys: Vec<u64> = (0..20).collect();
    let keys = &keys;
    cluster.block_on(async |farm| {
        for key in 0..20 {
            table.insert(&farm, key, 10).await?;
        }
        let transfers = async |farm: &Farm, task: u64| {
            for n in 0..150 {
                let (from, to) = ((n * 7 + task) % 20, (n * 3 + task + 1) % 20);
                farm.transact(async |tx| {
                    let left = table.get_or_default(tx, from).await? - 1;
                    table.put(tx, from, left).await?;
                    let right = table.get_or_default(tx, to).await? + 1;
                    table.put(tx, to, right).await
                })
                .await?;
            }
            Ok::<_, Error>(())
        };
        let sums = async |farm: &Farm, joined: bool| {
            for _ in 0..60 {
                let sum = farm.transact(async |tx| {
                    let all = match joined {
                        // The first conflict ends all of the others.
                        true => {
                            let lookups = keys.iter().map(|key| table.get(tx, *key));
                            futures_util::future::try_join_all(lookups).await?
                        }
                        false => table.get_many(tx, keys).await?,
                    };
                    Ok(all.into_iter().flatten().sum::<i64>())
                });
                assert_eq!(sum.await?, 200);
            }
            Ok::<_, Error>(())
        };
        let (one, other) = (&cluster.farms()[0], &cluster.farms()[1]);
        let tasks = (0..6).map(|task| transfers(if task % 2 == 0 { one } else { other }, task));
        let all = futures_util::future::try_join_all(tasks);
        let (transfers, many, joined) =
            futures_util::future::join3(all, sums(one, false), sums(other, true)).await;
        transfers?;
        many?;
        joined
    })?;
    cluster.stop()
}
