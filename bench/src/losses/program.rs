//! The program of one machine: it moves money between accounts of all machines, and counts commits by time.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farm::{Cluster, Farm, LocalFarm, Ptr};
use farm_core::ids::MachineId;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::curve::{BIN, now_ns};
use crate::recorder::{histogram, pairs};

/// Environment variable of the program of a machine: its task, as JSON. See [`child_main`].
pub const CHILD_VARIABLE: &str = "FARM_BENCH_LOSSES";

/// Number of accounts that each machine creates.
const ACCOUNTS: usize = 1000;
/// Contents of each account at first.
pub(super) const EACH: i64 = 1000;

/// The task of a machine.
#[derive(Serialize, Deserialize)]
pub(super) struct Task {
    /// The file of the configuration.
    pub(super) config: PathBuf,
    pub(super) machine: u16,
    pub(super) part: Part,
}

/// What a machine does.
#[derive(Serialize, Deserialize)]
pub(super) enum Part {
    /// It creates accounts, and moves money when it is told to.
    Load {
        /// Number of transactions in flight on each worker.
        in_flight: usize,
        /// Bytes of further objects that it creates.
        ballast: u64,
    },
    /// It was killed before, and takes part again without load.
    Return,
    /// All machines were killed: it uses an account as soon as it can.
    Resume(Account),
}

/// An order to a machine: a line of JSON on its standard input.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// Begin, with the accounts of all machines.
    Begin {
        accounts: Vec<Account>,
        /// The begin of the first bin, on the clock of [`now_ns`].
        origin_ns: u64,
        /// Longest time until [`Order::End`].
        most: Duration,
    },
    /// End all transactions.
    End,
    /// Report how long the transactions took that ended in this time, since the origin.
    Latency { from: Duration, to: Duration },
    /// Add up these accounts.
    Sum { accounts: Vec<Account> },
}

/// An answer of a machine: a line of JSON on its standard output.
#[derive(Serialize, Deserialize)]
pub(super) enum News {
    /// It is a member again.
    Joined,
    /// It has read an account, and committed a transaction on it, at these moments of [`now_ns`].
    Used {
        read_ns: u64,
        committed_ns: u64,
    },
    Created {
        accounts: Vec<Account>,
    },
    /// The number of commits that were reported in each bin.
    Committed {
        bins: Vec<u64>,
    },
    /// Nanoseconds that transactions took.
    Latency {
        #[serde(with = "pairs")]
        taken: Histogram<u64>,
    },
    Sum {
        sum: i64,
    },
}

/// A transaction that was committed.
#[derive(Clone, Copy)]
struct Sample {
    /// When it ended, since the origin.
    ended_ns: u64,
    took_ns: u64,
}

/// The words of a pointer to an account.
pub(super) type Account = [u64; 2];

fn pointer(account: Account) -> Ptr<i64> {
    Ptr::from_words(account)
}

/// Performs the task in [`CHILD_VARIABLE`] until standard input ends. If this variable is set, `main` must call this function
/// before anything else.
pub fn child_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("a machine of the bench failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let task = std::env::var(CHILD_VARIABLE).context(CHILD_VARIABLE)?;
    let task: Task = serde_json::from_str(&task).context(CHILD_VARIABLE)?;
    let machine = MachineId::new(task.machine).context("the task has no machine")?;
    let cluster = Cluster::join(&task.config, machine).start()?;
    let (in_flight, ballast) = match task.part {
        Part::Load { in_flight, ballast } => (in_flight, ballast),
        Part::Return => {
            tell(&News::Joined)?;
            return answer(&cluster, &[]);
        }
        Part::Resume(account) => {
            tell(&cluster.block_on(|farm| use_once(farm, account))?)?;
            return answer(&cluster, &[]);
        }
    };
    let accounts = cluster.block_on(create)?;
    cluster.block_on(async |farm| add_ballast(farm, ballast).await)?;
    tell(&News::Created { accounts })?;
    let Some(Order::Begin {
        accounts,
        origin_ns,
        most,
    }) = hear()?
    else {
        return Ok(());
    };
    let load = Arc::new(Load {
        accounts: accounts.into_iter().map(pointer).collect(),
        origin_ns,
        bins: (0..most.as_nanos() / BIN.as_nanos())
            .map(|_| AtomicU64::new(0))
            .collect(),
        ends: AtomicBool::new(false),
    });
    let samples = load.run(&cluster.farm(), in_flight)?;
    let bins = load.bins.iter();
    let bins = bins.map(|bin| bin.load(Ordering::Relaxed)).collect();
    tell(&News::Committed { bins })?;
    answer(&cluster, &samples)
}

/// Answers questions until the input ends, when everything ends. `samples` are the transactions that this machine has made.
fn answer(cluster: &Cluster, samples: &[Sample]) -> Result<()> {
    while let Some(order) = hear()? {
        match order {
            Order::Latency { from, to } => tell(&News::Latency {
                taken: latencies(samples, from, to),
            })?,
            Order::Sum { accounts } => {
                let sum = cluster.block_on(|farm| sum(farm, accounts))?;
                tell(&News::Sum { sum })?;
            }
            Order::Begin { .. } | Order::End => bail!("the load has ended"),
        }
    }
    Ok(())
}

/// Returns the latencies, in nanoseconds, of the transactions that ended in a part of the time.
fn latencies(samples: &[Sample], from: Duration, to: Duration) -> Histogram<u64> {
    let counted = from.as_nanos()..to.as_nanos();
    let mut taken = histogram();
    for sample in samples {
        if counted.contains(&u128::from(sample.ended_ns)) {
            taken.saturating_record(sample.took_ns);
        }
    }
    taken
}

fn tell(news: &News) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, news)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Returns the next order; `None` at the end of the input.
fn hear() -> Result<Option<Order>> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match line.is_empty() {
        true => Ok(None),
        false => Ok(Some(serde_json::from_str(&line)?)),
    }
}

async fn create(farm: Farm) -> Result<Vec<Account>> {
    let create = || farm.transact(async |tx| tx.alloc(EACH).await);
    let created = try_join_all((0..ACCOUNTS).map(|_| create())).await?;
    Ok(created.into_iter().map(Ptr::to_words).collect())
}

/// Creates objects of this many bytes in all.
async fn add_ballast(farm: Farm, bytes: u64) -> Result<()> {
    const WORDS: usize = 512;
    let mut left = bytes / (WORDS as u64 * 8);
    while left > 0 {
        let count = left.min(16);
        let added = farm.transact(async |tx| {
            for number in 0..count {
                tx.alloc([number; WORDS]).await?;
            }
            Ok(())
        });
        added.await?;
        left -= count;
    }
    Ok(())
}

/// Reads an account, and writes it.
async fn use_once(farm: Farm, account: Account) -> Result<News> {
    let account = pointer(account);
    farm.get(account).await?;
    let read_ns = now_ns();
    farm.transact(async |tx| tx.update(account, |_| {}).await)
        .await?;
    Ok(News::Used {
        read_ns,
        committed_ns: now_ns(),
    })
}

async fn sum(farm: Farm, accounts: Vec<Account>) -> Result<i64> {
    let mut sum = 0;
    for account in accounts {
        sum += farm.get(pointer(account)).await?;
    }
    Ok(sum)
}

/// The load of a machine.
struct Load {
    accounts: Vec<Ptr<i64>>,
    origin_ns: u64,
    bins: Vec<AtomicU64>,
    ends: AtomicBool,
}

impl Load {
    /// Runs transactions until the order to end.
    fn run(self: &Arc<Self>, farm: &Farm, in_flight: usize) -> Result<Vec<Sample>> {
        std::thread::scope(|scope| {
            let running = scope.spawn(move || {
                let load = Arc::clone(self);
                let ended = farm.run_on_all(move |local| load.on_worker(local, in_flight));
                let ended = pollster::block_on(ended)?.into_iter();
                ended.collect::<farm::Result<Vec<Vec<Sample>>>>()
            });
            // Also at the end of the input, or after an order that is not valid.
            let ordered = hear();
            self.ends.store(true, Ordering::Relaxed);
            let ran = running.join();
            let samples = ran.expect("the thread that waits for the load does not panic")?;
            ordered?;
            Ok(samples.into_iter().flatten().collect())
        })
    }

    async fn on_worker(
        self: Arc<Self>,
        farm: LocalFarm,
        in_flight: usize,
    ) -> farm::Result<Vec<Sample>> {
        let transfers = (0..in_flight).map(|number| self.transfers(&farm, number as u64));
        let samples = try_join_all(transfers).await?;
        Ok(samples.into_iter().flatten().collect())
    }

    /// Moves money, in one transaction after another.
    async fn transfers(&self, farm: &LocalFarm, number: u64) -> farm::Result<Vec<Sample>> {
        let mut samples = Vec::new();
        let me = farm.me();
        let seed = u64::from(me.machine.get()) << 32 | u64::from(me.worker.get()) << 16 | number;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        while !self.ends.load(Ordering::Relaxed) {
            let mut draw = || self.accounts[random.random_range(..self.accounts.len())];
            let (from, to) = (draw(), draw());
            let begun = now_ns();
            let moved = farm.transact(async |tx| {
                tx.update(from, |sum| *sum -= 1).await?;
                tx.update(to, |sum| *sum += 1).await
            });
            moved.await?;
            let now = now_ns();
            let ended = now.saturating_sub(self.origin_ns);
            if let Some(bin) = self.bins.get((ended / BIN.as_nanos() as u64) as usize) {
                bin.fetch_add(1, Ordering::Relaxed);
            }
            samples.push(Sample {
                ended_ns: ended,
                took_ns: now - begun,
            });
        }
        Ok(samples)
    }
}
