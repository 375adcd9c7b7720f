//! Clusters, of which all machines or one machine run in this process.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::fabric::Patience;
use farm_core::ids::MachineId;
use farm_core::machine::{Machine, forget_kept, start_all};
use farm_graph::Schema;
use farm_kv::TableSpec;
use farm_txn::Transaction;

use crate::catalog::{self, Entry};
use crate::error::{Error, Kind, Result};
use crate::farm::Farm;
use crate::graph::{self, Graph};
use crate::key::Key;
use crate::layers;
use crate::sequence::Sequence;
use crate::signals::{self, Signals};
use crate::status::StatusServer;
use crate::table::{Table, Value};

/// Bytes of a region of a cluster in one process.
const LOCAL_REGION_BYTES: u64 = 64 << 20;
/// Most bytes of a machine of a cluster in one process.
const LOCAL_MACHINE_BYTES: u64 = 1 << 30;
/// Time for which a machine waits for the others of its cluster.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster, with the machines that run in this process. Dropping it stops them, as does the end of the process by a
/// signal such as Ctrl-C, and removes their files, but not the data of a cluster with `durability.mode = "memory"`, unless
/// it is [local](Cluster::local).
pub struct Cluster {
    config: Config,
    /// Whether no other process can go on with its data.
    is_local: bool,
    machines: Arc<Mutex<Vec<Machine>>>,
    farms: Vec<Farm>,
    /// Answer `farm status`. Dropped before the machines stop.
    status: Vec<StatusServer>,
    /// Stops the machines when the process ends by a signal.
    signals: Option<Signals>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({:?})", self.config.cluster.name)
    }
}

/// A cluster that has not started: see [`Cluster::local`] and [`Cluster::from_config`].
#[derive(Debug)]
#[must_use = "a cluster runs after `start`"]
pub struct Starting {
    config: Result<Config>,
    own: Own,
    is_local: bool,
    handles_signals: bool,
}

/// The machines that run in this process.
#[derive(Clone, Copy, Debug)]
enum Own {
    All,
    One(MachineId),
}

impl Cluster {
    /// Describes a cluster of `machines` machines, with one worker each, all of which run in this process. They have the
    /// same shared memory and message rings as in processes of their own. Each of them has up to 1 GiB of memory, which it
    /// takes in parts of 64 MiB when it needs it.
    pub fn local(machines: u16) -> Starting {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let most = farm_core::limits::MAX_MACHINES;
        if machines == 0 || usize::from(machines) > most {
            let text = format!(
                "a cluster of {machines} machines is not possible: it has between 1 and {most}"
            );
            return Starting::new(Err(Error::new(Kind::Invalid, text)), Own::All);
        }
        let mut config = farm_graph::config::default_for(machines, 1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        config.cluster.name = format!("local-{}-{number}", std::process::id());
        config.memory.region_bytes = LOCAL_REGION_BYTES;
        config.memory.per_machine_bytes = LOCAL_MACHINE_BYTES;
        Starting {
            is_local: true,
            ..Self::from_config(config)
        }
    }

    /// Describes the cluster of a configuration, all of whose machines run in this process.
    pub fn from_config(config: Config) -> Starting {
        Starting::new(Ok(config), Own::All)
    }

    /// As [`Cluster::from_config`], with the configuration in a file.
    pub fn from_file(path: impl AsRef<Path>) -> Starting {
        Starting::new(load(path.as_ref()), Own::All)
    }

    /// Describes one machine, of the cluster of a configuration in a file, that runs in this process. The others run
    /// elsewhere: in other programs, or as `farm node`. They wait for each other: for 30 s here, and 60 s in `farm node`.
    ///
    /// When the machine stops in order and has memory, the others stop, too; the next start of all of them goes on with their data. If it
    /// has none (`memory_bytes = 0` in its section), they continue, and it can join again. If it fails or its process is killed, the
    /// others go on without it, unless `durability.mode` is `"none"`, and it can join again.
    pub fn join(path: impl AsRef<Path>, machine: MachineId) -> Starting {
        Starting::new(load(path.as_ref()), Own::One(machine))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the access to the cluster through the first machine of this process.
    pub fn farm(&self) -> Farm {
        self.farms[0].clone()
    }

    /// Returns the access to the cluster through each machine of this process.
    pub fn farms(&self) -> &[Farm] {
        &self.farms
    }

    /// Calls `body` with the access to the cluster, and runs its future on this thread until it completes. The future
    /// need not be `Send`, and may borrow from the caller.
    pub fn block_on<R, Fut: Future<Output = R>>(&self, body: impl FnOnce(Farm) -> Fut) -> R {
        pollster::block_on(body(self.farm()))
    }

    /// Creates a table for about `pairs` pairs, in the memory of all machines, or opens it if it exists. More pairs fit,
    /// but lookups get slower.
    ///
    /// # Errors
    /// [`Kind::Exists`] if there is a table of this name for another number of pairs, or with keys or values of other
    /// sizes; [`Kind::Invalid`] if the name is empty or longer than 64 bytes, or if no such table is possible;
    /// [`Kind::Full`].
    pub fn create_table<K: Key, V: Value>(&self, name: &str, pairs: u64) -> Result<Table<K, V>> {
        let wanted = self.specification::<K, V>(name, pairs)?;
        let farm = self.farm();
        pollster::block_on(async {
            let worker = farm.worker();
            let (spec, is_new) = catalog::create_table(worker, name, wanted).await?;
            if let Err(error) = open(&self.farms, name, spec).await {
                // So that a table of this name can be created for fewer pairs. What it has taken of the memory stays taken.
                if is_new {
                    catalog::remove(worker, name, &spec).await?;
                }
                return Err(error);
            }
            Table::of(name, spec)
        })
    }

    /// Finds a table by its name.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`] if its keys or values have other sizes than `K` and `V`.
    pub fn open_table<K: Key, V: Value>(&self, name: &str) -> Result<Table<K, V>> {
        let farm = self.farm();
        pollster::block_on(async {
            let found = catalog::find(farm.worker(), name).await?;
            let found = found.ok_or_else(|| Error::not_found(format!("table {name:?}")))?;
            let spec = catalog::table(name, &found, Kind::Invalid)?;
            let table = Table::of(name, spec)?;
            open(&self.farms, name, spec).await?;
            Ok(table)
        })
    }

    /// Creates a sequence of numbers that begins with `first`, or opens it if it exists.
    ///
    /// # Errors
    /// [`Kind::Exists`] if something else has the name; [`Kind::Invalid`] for an impossible name; [`Kind::Full`].
    pub fn create_sequence(&self, name: &str, first: u64) -> Result<Sequence> {
        let farm = self.farm();
        let create = async |tx: Transaction<'_>, _| {
            let object = tx.alloc(size_of::<u64>(), None).await?;
            tx.write(object, &first.to_le_bytes()).await?;
            Ok(Entry::Sequence(tx.pointer(object).await?))
        };
        let found = catalog::find_or_create(farm.worker(), name, create);
        match pollster::block_on(found)?.0 {
            Entry::Sequence(object) => Ok(Sequence::new(object)),
            other => Err(catalog::is_other(name, &other, "a sequence", Kind::Exists)),
        }
    }

    /// Creates the graph of the cluster, with ids for about `nodes` nodes, or opens it if it exists. More nodes fit, but are
    /// found more slowly by their ids. A cluster has one graph.
    ///
    /// # Errors
    /// [`Kind::Exists`] if something else, or a graph with another schema, has the name; [`Kind::Refused`] if the cluster has
    /// a graph of another name; [`Kind::Invalid`] for an impossible name; [`Kind::TooLarge`] for a schema of more than
    /// 960 KiB; [`Kind::Full`].
    pub fn create_graph(&self, name: &str, schema: Schema, nodes: u64) -> Result<Graph> {
        let created = graph::create(&self.farms, &self.config, name, &schema, nodes);
        pollster::block_on(created)
    }

    /// Finds the graph of the cluster by its name.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`] if something else has the name.
    pub fn graph(&self, name: &str) -> Result<Graph> {
        pollster::block_on(graph::find(&self.farms, &self.config, name))
    }

    /// Returns the specification of a new table, except its number.
    fn specification<K: Key, V: Value>(&self, name: &str, pairs: u64) -> Result<TableSpec> {
        let sizes = (K::BYTES, size_of::<V>());
        let spec = farm_kv::spec_for(&self.config, 0, sizes, pairs.max(1));
        let spec = spec.and_then(|spec| {
            farm_kv::check_memory(&self.config, &spec)?;
            Ok(spec)
        });
        spec.map_err(|error| {
            Error::from(error).during(format_args!("cannot create the table {name:?}"))
        })
    }

    /// Stops the machines of this process, and returns why they have stopped if it was not for this.
    ///
    /// # Errors
    /// [`Kind::Stopped`]: the first machine's reason.
    pub fn stop(mut self) -> Result<()> {
        self.status.clear();
        let stopped = stop(&self.machines);
        self.forget();
        self.wait_for_signal();
        stopped
    }

    /// Removes the data of a local cluster.
    fn forget(&self) {
        if self.is_local
            && self.config.keeps_memory()
            && let Err(error) = forget_kept(&self.config)
        {
            tracing::warn!(%error, "cannot remove the memory of the cluster");
        }
    }

    /// If a signal has stopped the machines, waits until it has ended the process.
    fn wait_for_signal(&self) {
        if self.signals.is_some() {
            signals::wait_if_ending();
        }
    }
}

fn load(path: &Path) -> Result<Config> {
    Ok(farm_graph::config::load(path)?)
}

/// Opens a table on all workers of this process, so that no operation has to do it first.
async fn open(farms: &[Farm], name: &str, spec: TableSpec) -> Result<()> {
    let handles = farms.iter().flat_map(|farm| farm.handles());
    let opened = handles.map(|handle| farm_kv::tasks::open(handle, spec));
    let opened = futures_util::future::try_join_all(opened).await;
    let during = |error| Error::from(error).during(format_args!("cannot open the table {name:?}"));
    opened.map(drop).map_err(during)
}

/// Stops the machines. If another thread stops them already, waits for it.
fn stop(machines: &Mutex<Vec<Machine>>) -> Result<()> {
    let mut machines = machines.lock().unwrap_or_else(PoisonError::into_inner);
    // All of them stop before the first is waited for, so that none reports the loss of another.
    for machine in &*machines {
        machine.begin_stop();
    }
    let stopped = machines.drain(..).map(Machine::stop);
    // Each is waited for, whatever the others report.
    let stopped: Vec<_> = stopped.collect();
    stopped
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(Error::from)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.status.clear();
        if let Err(error) = stop(&self.machines) {
            tracing::warn!(%error, "a machine of the cluster had failed");
        }
        self.forget();
        self.wait_for_signal();
    }
}

impl Starting {
    fn new(config: Result<Config>, own: Own) -> Self {
        Self {
            config,
            own,
            is_local: false,
            handles_signals: true,
        }
    }

    /// Sets whether SIGINT, SIGTERM and SIGHUP stop the machines and remove their files before they end the process, which
    /// is the default. A program that ends by itself after such a signal, for example with `tokio::signal`, switches this
    /// off, and stops or drops the cluster.
    pub fn handle_signals(mut self, handles_signals: bool) -> Self {
        self.handles_signals = handles_signals;
        self
    }

    /// Sets the number of workers of each machine.
    pub fn workers(mut self, workers: u16) -> Self {
        if let Ok(config) = &mut self.config {
            config.set_workers(workers);
        }
        self
    }

    /// Sets the value of a key of the configuration, such as `memory.per_machine_bytes` to `4GiB`.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        if let Ok(config) = &mut self.config
            && let Err(error) = config.set(key, value)
        {
            self.config = Err(error.into());
        }
        self
    }

    /// Starts the machines of this process, and waits until they are connected with all others of the cluster.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a configuration that is not possible; [`Kind::Start`] if the name is in use, memory or a
    /// device is missing, or the other machines did not appear.
    pub fn start(self) -> Result<Cluster> {
        let (config, is_local) = (self.config?, self.is_local);
        // The lock is held until the machines run, so that a signal waits for that, or for the end of the attempt.
        let running = Arc::new(Mutex::new(Vec::new()));
        let cancelled = Arc::new(AtomicBool::new(false));
        let (stopped, cancel) = (Arc::clone(&running), Arc::clone(&cancelled));
        let mut machines = running.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = || {
            Signals::watch(move || {
                cancel.store(true, Ordering::Relaxed);
                _ = stop(&stopped);
            })
        };
        let signals = self.handles_signals.then(watch);
        let patience = Patience {
            most: PATIENCE,
            cancelled: Some(&cancelled),
        };
        let started = match self.own {
            Own::All => start_all(&config, &layers()),
            Own::One(id) => Machine::start(&config, id, layers(), patience).map(|one| vec![one]),
        };
        match started {
            Ok(started) => *machines = started,
            Err(error) => {
                drop(machines);
                if signals.is_some() {
                    signals::wait_if_ending();
                }
                return Err(error.into());
            }
        }
        let farms = machines.iter().map(Farm::of);
        let farms = farms.collect::<Result<Vec<Farm>>>()?;
        let status = machines.iter();
        let status = status.filter_map(|machine| StatusServer::start_or_warn(&config, machine));
        let status = status.collect();
        drop(machines);
        Ok(Cluster {
            config,
            is_local,
            machines: running,
            farms,
            status,
            signals,
        })
    }
}
