//! A machine without memory of its own: it stores nothing, runs everything, and leaves while the others continue.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use farm::farm_graph::ids::Place;
use farm::farm_graph::{NodeData, NodeType, Schema};
use farm::prelude::*;
use farm::status::machine_status;

/// A configuration of three machines, of which the third stores nothing. The file is removed at the end.
struct Written(PathBuf);

impl Written {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(format!("farm-{name}.toml"));
        let text = format!(
            "[cluster]\nname = \"{name}\"\n\
             [memory]\nregion_bytes = \"8MiB\"\nhuge_pages = \"off\"\nper_machine_bytes = \"32MiB\"\n\
             [durability]\nmode = \"none\"\n\
             [rings]\nring_bytes = \"256KiB\"\nmax_message_bytes = \"16KiB\"\nlog_bytes = \"512KiB\"\n\
             [[machine]]\nid = 1\n[[machine]]\nid = 2\nworkers = 2\n\
             [[machine]]\nid = 3\nworkers = 2\nmemory_bytes = 0\n"
        );
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    /// Starts the machines, each as if it were in a program of its own.
    fn start(&self) -> [Cluster; 3] {
        let start = |id| {
            let path = self.0.clone();
            std::thread::spawn(move || join(path, id).unwrap())
        };
        [1, 2, 3].map(start).map(|started| started.join().unwrap())
    }

    /// Returns the number of files of shared memory of the cluster.
    fn memory_files(&self) -> usize {
        let name = self.0.file_stem().unwrap().to_str().unwrap();
        let name = name.strip_prefix("farm-").unwrap();
        let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let files = files.filter(|file| file.file_name().to_string_lossy().ends_with(name));
        files.count()
    }
}

fn join(path: PathBuf, id: u16) -> farm::Result<Cluster> {
    Cluster::join(path, MachineId::new(id).unwrap()).start()
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the bytes of regions of a machine.
fn region_bytes(cluster: &Cluster) -> u64 {
    let machine = cluster.farm().machine();
    let status = machine_status(cluster.config(), machine).unwrap();
    status.expect("the machine runs").memory.regions
}

#[test]
fn a_machine_without_memory_runs_everything_and_stores_nothing() {
    let written = Written::new("nothing-stored");
    let clusters = written.start();
    let [first, _, last] = &clusters;
    let pairs: Table<u64, [u64; 4]> = last.create_table("pairs", 1000).unwrap();
    let numbers = last.create_sequence("numbers", 7).unwrap();
    let user = NodeType {
        id: 1,
        name: "user".into(),
        lists: 1,
    };
    let schema = Schema::new(vec![user], vec![]).unwrap();
    let graph = last.create_graph("social", schema, 100).unwrap();
    let pointer = last
        .block_on(async |farm| {
            for key in 0..500 {
                assert!(pairs.insert(&farm, key, [key; 4]).await?);
            }
            assert_eq!(pairs.len(&farm).await?, 500);
            let keys: Vec<u64> = (0..500).collect();
            let found = pairs.get_many(&farm, &keys).await?;
            assert!(
                found
                    .iter()
                    .zip(&keys)
                    .all(|(pair, key)| *pair == Some([*key; 4]))
            );
            assert_eq!(numbers.next(&farm).await?, 7);
            let made = async |tx: Tx<'_>| {
                let pointer = tx.alloc([3u64; 9]).await?;
                let raw = tx.raw();
                let array = raw.alloc_array(40, 5, None).await?;
                raw.change(array[4], |payload| payload[0] = 1).await?;
                pairs.put(tx, 9, [1; 4]).await?;
                let data = NodeData {
                    node_type: 1,
                    version: 0,
                    time: 0,
                    data: b"someone",
                };
                let node = graph.obj_add(tx, Place::default(), data).await?;
                Ok((pointer, node.node))
            };
            let (pointer, node) = farm.transact(made).await?;
            assert_eq!(farm.get(pointer).await?, [3; 9]);
            assert_eq!(pairs.get(&farm, 9).await?, Some([1; 4]));
            assert!(graph.obj_get(&farm, node).await?.is_some());
            Ok::<_, Error>(pointer)
        })
        .unwrap();
    first
        .block_on(async |farm| {
            assert_eq!(farm.get(pointer).await?, [3; 9]);
            assert_eq!(pairs.get(&farm, 9).await?, Some([1; 4]));
            Ok::<_, Error>(())
        })
        .unwrap();
    // It is open only on the machines of the program that has opened it.
    first.block_on(async |farm| {
        let error = graph.obj_find(&farm, 1).await.unwrap_err();
        assert!(
            error.to_string().contains("not open on worker m1.w0"),
            "{error}"
        );
        let within = farm.transact(async |tx| graph.obj_find(tx, 1).await);
        assert_eq!(within.await.unwrap_err().kind(), Kind::Invalid);
        assert_eq!(pairs.len(&farm).await.unwrap(), 500);
    });
    let same = first.graph("social").unwrap();
    assert!(
        first
            .block_on(async |farm| same.obj_find(&farm, 1).await)
            .is_ok()
    );
    assert_eq!(region_bytes(last), 0);
    assert!(region_bytes(first) > 0);
    clusters.into_iter().for_each(|one| one.stop().unwrap());
}

/// A machine with memory leaves: the others stop, and say why. Operations once failed without the reason.
#[test]
fn operations_fail_with_the_machine_whose_leaving_ended_the_cluster() {
    let written = Written::new("ended");
    let [first, second, last] = written.start();
    let table: Table<u64, u64> = last.create_table("t", 100).unwrap();
    first.stop().unwrap();
    let error = last.block_on(async |farm| {
        loop {
            if let Err(error) = table.insert(&farm, 1, 1).await {
                return error;
            }
        }
    });
    assert_eq!(error.kind(), Kind::Stopped, "{error}");
    assert!(error.to_string().contains("machine m1 left"), "{error}");
    let error = last.create_table::<u64, u64>("u", 100).unwrap_err();
    assert!(error.to_string().contains("machine m1 left"), "{error}");
    second.stop().unwrap();
    last.stop().unwrap();
}

/// The machine leaves in the middle of its transactions. It leaves no lock, and the others continue, reuse memory of freed
/// objects after it has gone, and stop in order.
#[test]
fn a_machine_without_memory_leaves_and_the_others_continue() {
    let written = Written::new("leaves");
    let [first, second, last] = written.start();
    let accounts: Table<u64, i64> = first.create_table("accounts", 100).unwrap();
    let same: Table<u64, i64> = last.open_table("accounts").unwrap();
    first
        .block_on(async |farm| {
            for key in 0..100 {
                accounts.insert(&farm, key, 10).await?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    let moved = |table: Table<u64, i64>| {
        async move |farm: &Farm, n: u64| {
            farm.transact(async |tx| {
                let (from, to) = (n % 100, (n * 7 + 1) % 100);
                let one = table.get_or_default(tx, from).await? - 1;
                table.put(tx, from, one).await?;
                let other = table.get_or_default(tx, to).await? + 1;
                table.put(tx, to, other).await?;
                Ok(())
            })
            .await
        }
    };
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let farm = last.farm();
        let (same, begun) = (&same, &begun);
        let tasks = scope.spawn(move || {
            let transfer = moved(*same);
            let tasks = (0..16).map(|task| {
                let (farm, transfer) = (&farm, &transfer);
                async move {
                    let mut n = task;
                    let error = loop {
                        match transfer(farm, n).await {
                            Ok(()) => n += 16,
                            Err(error) => break error,
                        }
                        begun.store(true, Ordering::Relaxed);
                    };
                    assert_eq!(error.kind(), Kind::Stopped, "{error}");
                }
            });
            pollster::block_on(futures_util::future::join_all(tasks));
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        last.stop().unwrap();
        tasks.join().unwrap();
    });
    for cluster in [&first, &second] {
        cluster
            .block_on(async |farm| {
                let transfer = moved(accounts);
                for n in 0..300 {
                    transfer(&farm, n).await?;
                }
                let sum = farm.transact(async |tx| {
                    let mut sum = 0;
                    for key in 0..100 {
                        sum += accounts.get_or_default(tx, key).await?;
                    }
                    Ok(sum)
                });
                assert_eq!(sum.await?, 1000);
                // More than the memory of a machine, in objects of two sizes: epochs end without the machine that left.
                for round in 0..3 {
                    let large = round % 2 == 0;
                    let mut small = Vec::new();
                    for _ in 0..220 {
                        small.push(farm.transact(async |tx| alloc(tx, large).await).await?);
                    }
                    for pointers in small {
                        let free = async |tx: Tx<'_>| {
                            for pointer in &pointers {
                                let object = tx.raw().read_pointer(*pointer).await?;
                                tx.raw().free(object).await?;
                            }
                            Ok(())
                        };
                        farm.transact(free).await?;
                    }
                }
                Ok::<_, Error>(())
            })
            .unwrap();
    }
    first.stop().unwrap();
    second.stop().unwrap();
}

/// The machine is started again after it has left, several times. It finds what was stored before and meanwhile, changes it, and
/// the others find its changes. A start leaves no memory behind.
#[test]
fn a_machine_without_memory_comes_back() {
    let written = Written::new("comes-back");
    let [first, second, last] = written.start();
    let counts: Table<u64, u64> = first.create_table("counts", 100).unwrap();
    last.stop().unwrap();
    for round in 1..=4u64 {
        // Meanwhile the first machine allocates regions that the third does not know, and an epoch ends.
        first
            .block_on(async |farm| {
                let pointers = farm.transact(async |tx| alloc(tx, true).await).await?;
                let large: Table<u64, [u64; 4]> =
                    first.create_table(&format!("large-{round}"), 20_000)?;
                large.insert(&farm, round, [round; 4]).await?;
                farm.transact(async |tx| {
                    for pointer in &pointers {
                        let object = tx.raw().read_pointer(*pointer).await?;
                        tx.raw().free(object).await?;
                    }
                    Ok(())
                })
                .await?;
                counts.put(&farm, 0, round).await
            })
            .unwrap();
        let last = join(written.0.clone(), 3).unwrap();
        let same: Table<u64, u64> = last.open_table("counts").unwrap();
        last.block_on(async |farm| {
            for earlier in 1..=round {
                let large: Table<u64, [u64; 4]> = last.open_table(&format!("large-{earlier}"))?;
                assert_eq!(large.get(&farm, earlier).await?, Some([earlier; 4]));
            }
            assert_eq!(same.get(&farm, 0).await?, Some(round));
            let add = async |tx: Tx<'_>| {
                for key in 1..50 {
                    let before = same.get_or_default(tx, key).await?;
                    same.put(tx, key, before + 1).await?;
                }
                Ok(())
            };
            farm.transact(add).await
        })
        .unwrap();
        second
            .block_on(async |farm| {
                let same: Table<u64, u64> = second.open_table("counts")?;
                for key in 1..50 {
                    assert_eq!(same.get(&farm, key).await?, Some(round));
                }
                Ok::<_, Error>(())
            })
            .unwrap();
        last.stop().unwrap();
    }
    let files = written.memory_files();
    for _ in 0..3 {
        join(written.0.clone(), 3).unwrap().stop().unwrap();
        assert_eq!(written.memory_files(), files, "a start left memory behind");
    }
    first.stop().unwrap();
    second.stop().unwrap();
}

/// Allocates about 100 KiB.
async fn alloc(tx: Tx<'_>, large: bool) -> farm::Result<Vec<FatPointer>> {
    let (bytes, count) = if large { (12_000, 8) } else { (5_000, 20) };
    let mut pointers = Vec::new();
    for _ in 0..count {
        let object = tx.raw().alloc(bytes, None).await?;
        pointers.push(tx.raw().pointer(object).await?);
    }
    Ok(pointers)
}
