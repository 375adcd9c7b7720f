//! Room in logs is reserved in the order in which commits request it. So a commit over many machines is not starved by
//! an endless sequence of commits over one machine each.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_txn::{Handle, TxError};

use crate::cluster::{Cluster, cluster_of};
use crate::tasks::{PATIENCE, wait_for_rest};

/// Machines whose logs the commits write; the coordinator is an additional machine.
const OTHERS: usize = 3;
/// Commits over all of these machines, and the tasks that make them.
const WIDE: usize = 50;
const WIDE_TASKS: usize = 10;
/// Bytes of the object that a wide commit writes on each machine: nearly the longest record of a log.
const WIDE_BYTES: usize = 3600;
/// Writers per machine; together they need more room than its log has.
const NARROW_TASKS: usize = 16;
const NARROW_BYTES: usize = 1000;
/// Commits of the narrow writers after which the wide ones count as starved.
const STARVED: usize = 3_000;

/// Commits so far.
#[derive(Default)]
struct Counts {
    wide: AtomicUsize,
    narrow: AtomicUsize,
}

impl Counts {
    fn now(&self) -> (usize, usize) {
        let [wide, narrow] = [&self.wide, &self.narrow].map(|count| count.load(Ordering::Relaxed));
        (wide, narrow)
    }

    fn is_over(&self) -> bool {
        let (wide, narrow) = self.now();
        wide == WIDE || narrow >= STARVED
    }
}

/// Starts machines with small logs, and with slots and reply room for all commits at the same time.
fn small_logs(name: &str) -> Cluster {
    let mut config = Config::tiny_for(1 + OTHERS as u16, 1);
    config.rings.ring_bytes = 64 << 10;
    config.worker.operations_in_flight = 128;
    cluster_of(name, config)
}

/// Creates one object on each of the machines.
fn objects(cluster: &Cluster, machines: RangeInclusive<usize>, bytes: usize) -> Vec<Address> {
    let one = |machine| cluster.create(machine, 0, &vec![0; bytes]);
    machines.map(one).collect()
}

async fn write_all(farm: &Handle, objects: &[Address], bytes: usize) -> Result<(), TxError> {
    let tx = farm.begin().await.unwrap();
    for at in objects {
        let object = tx.read(*at, bytes).await?;
        tx.change(object, move |payload| payload.fill(1)).await?;
    }
    tx.commit().await
}

/// Tasks of one worker that write their objects repeatedly: wide tasks with an object on each of the other machines,
/// and narrow tasks. All of them begin in one turn, so that the logs have no room for them.
struct Load {
    cluster: Cluster,
    tasks: Vec<Task>,
}

/// Objects of `bytes` bytes each, and the number of times that they are written.
struct Task {
    objects: Vec<Address>,
    bytes: usize,
    times: usize,
}

impl Task {
    /// Writes the objects until the load is over, and counts each commit.
    async fn run(self, farm: Handle, counts: Arc<Counts>) {
        let count = match self.objects.len() {
            1 => &counts.narrow,
            _ => &counts.wide,
        };
        for _ in 0..self.times {
            if counts.is_over() {
                break;
            }
            match write_all(&farm, &self.objects, self.bytes).await {
                Ok(()) => _ = count.fetch_add(1, Ordering::Relaxed),
                Err(TxError::TooLargeForLog { .. }) if self.objects.len() > OTHERS => {}
                Err(error) => {
                    panic!("the commit failed although no other task writes its objects: {error}")
                }
            }
        }
    }
}

impl Load {
    fn new(name: &str) -> Self {
        let mut load = Self {
            cluster: small_logs(name),
            tasks: Vec::new(),
        };
        for machine in (1..=OTHERS).cycle().take(NARROW_TASKS * OTHERS) {
            load.add(machine..=machine, NARROW_BYTES, usize::MAX);
        }
        for _ in 0..WIDE_TASKS {
            load.add(1..=OTHERS, WIDE_BYTES, WIDE / WIDE_TASKS);
        }
        load
    }

    fn add(&mut self, machines: RangeInclusive<usize>, bytes: usize, times: usize) {
        let objects = objects(&self.cluster, machines, bytes);
        self.tasks.push(Task {
            objects,
            bytes,
            times,
        });
    }

    /// Runs all tasks to their ends, and checks the counts.
    fn run(self) {
        let Self { cluster, tasks } = self;
        let counts = Arc::new(Counts::default());
        let (running, ended) = mpsc::channel::<()>();
        let counted = counts.clone();
        cluster.on(0, 0, move |w| {
            for task in tasks {
                let (counts, running) = (counted.clone(), running.clone());
                farm_txn::spawn(w, |farm| async move {
                    task.run(farm, counts).await;
                    drop(running);
                });
            }
        });
        let over = ended.recv_timeout(PATIENCE);
        assert_eq!(
            over,
            Err(RecvTimeoutError::Disconnected),
            "not all tasks ended in time"
        );
        let (wide, narrow) = counts.now();
        let (full, overtaken) = cluster.on(0, 0, |w| {
            (w.log_counters().full, farm_txn::most_overtaken(w))
        });
        println!("{wide} commits over {OTHERS} machines, {narrow} over one, {full} refusals");
        assert_eq!(
            wide, WIDE,
            "not all wide commits were made, beside {narrow} commits over one machine"
        );
        assert_eq!(overtaken, 0, "commits overtook a waiting one");
        assert!(
            full > 0,
            "the logs had room for all commits, so the test proves nothing"
        );
        wait_for_rest(&cluster);
        cluster.stop();
    }
}

#[test]
fn commits_over_many_machines_are_not_overtaken() {
    Load::new("room").run();
}

/// A commit that can never have room leaves its queues, and the commits behind it continue.
#[test]
fn a_commit_that_ends_by_an_error_leaves_its_queues() {
    const TOO_MANY: usize = 5;
    let mut load = Load::new("room-errors");
    for _ in 0..WIDE_TASKS {
        load.add(1..=OTHERS, NARROW_BYTES, usize::MAX);
        for _ in 1..TOO_MANY {
            let more = objects(&load.cluster, 2..=2, NARROW_BYTES);
            load.tasks.last_mut().unwrap().objects.extend(more);
        }
    }
    load.run();
}
