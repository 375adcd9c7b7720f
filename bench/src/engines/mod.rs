//! Other engines, for comparison on the same host: the requests of LinkBench and TAOBench, from the same generators, on
//! SQLite and RocksDB inside this process, and on a PostgreSQL server that this process starts.
//!
//! All of them have their files in shared memory, and neither log nor data are forced to a disk, as the platform's are
//! not; the results state their settings. Each client is a thread with blocking calls, as many as the cluster has workers.
//! Each request is one transaction, as atomic as the platform's. The programs find objects by their ids, which is all
//! that these engines offer. The engines are there if this crate is built with the feature `engines`.

// Without the feature there is no store.
#![cfg_attr(not(feature = "engines"), allow(dead_code, unused_variables))]

pub mod link;
#[cfg(feature = "engines")]
mod postgres;
#[cfg(feature = "engines")]
mod rocks;
#[cfg(feature = "engines")]
mod rows;
#[cfg(feature = "engines")]
mod sqlite;
pub mod tao;
mod threads;

use std::path::Path;

use farm_graph::tx::Range;
use farm_graph::{Assoc, NodeData};

use crate::linkbench::loaded::{LinksOf, Nodes};
use crate::report::{Beside, Engine};
use crate::taobench::loaded::Loaded;
use crate::taobench::store::Effect;
use crate::taobench::stream::{Read, Write};

pub use threads::Extent;

/// Whether this crate was built with the engines.
const AVAILABLE: bool = cfg!(feature = "engines");

/// Checks that an engine can be started.
///
/// # Errors
/// If this crate was built without the engines, or the programs of a server are not installed.
pub fn check(engine: Engine) -> anyhow::Result<()> {
    if !AVAILABLE {
        anyhow::bail!(
            "this program was built without the other engines; build it by ./x engines, or by cargo build --release \
             --package farm-command --features engines"
        );
    }
    #[cfg(feature = "engines")]
    if engine == Engine::Postgres {
        postgres::check()?;
    }
    Ok(())
}

/// Starts an engine with an empty store in a directory, and lays out the tables of LinkBench.
fn link_store(engine: Engine, dir: &Path) -> anyhow::Result<Box<dyn LinkStore>> {
    #[cfg(feature = "engines")]
    return Ok(match engine {
        Engine::Sqlite => Box::new(sqlite::Sqlite::create(dir, sqlite::LINK_TABLES)?),
        Engine::Rocksdb => Box::new(rocks::Rocks::create(dir, rocks::LINK_FAMILIES)),
        Engine::Postgres => Box::new(postgres::Postgres::create(dir, postgres::LINK_TABLES)?),
    });
    #[cfg(not(feature = "engines"))]
    anyhow::bail!("this program was built without the feature `engines`")
}

/// As [`link_store`], with the tables of TAOBench.
fn tao_store(engine: Engine, dir: &Path) -> anyhow::Result<Box<dyn TaoStore>> {
    #[cfg(feature = "engines")]
    return Ok(match engine {
        Engine::Sqlite => Box::new(sqlite::Sqlite::create(dir, sqlite::TAO_TABLES)?),
        Engine::Rocksdb => Box::new(rocks::Rocks::create(dir, rocks::TAO_FAMILIES)),
        Engine::Postgres => Box::new(postgres::Postgres::create(dir, postgres::TAO_TABLES)?),
    });
    #[cfg(not(feature = "engines"))]
    anyhow::bail!("this program was built without the feature `engines`")
}

/// What a result says of an engine: its version, and the settings that are not its defaults.
struct Facts {
    version: String,
    settings: Vec<String>,
}

impl Facts {
    /// Returns the result of a run.
    fn beside<R>(self, engine: Engine, threads: u64, run: R) -> Beside<R> {
        Beside {
            engine,
            version: self.version,
            settings: self.settings,
            threads,
            run,
        }
    }
}

/// A store with the tables of LinkBench.
trait LinkStore: Send + Sync {
    /// Returns its version and settings.
    fn facts(&self) -> anyhow::Result<Facts>;

    /// Writes the nodes with these ids, their links, and the numbers of links.
    fn load(
        &self,
        nodes: &mut Nodes,
        links: &mut LinksOf,
        ids: std::ops::Range<u64>,
    ) -> anyhow::Result<()>;

    /// Connects a client.
    fn client(&self) -> anyhow::Result<Box<dyn LinkOps>>;
}

/// A type of links and a node.
type List = (u64, u32);

/// The operations of LinkBench, each in a transaction of its own. `now` is the time in milliseconds.
trait LinkOps: Send {
    /// Adds a visible link, or replaces it.
    fn add_link(&mut self, list: List, link: &Assoc<'_>, now: u64) -> anyhow::Result<()>;

    /// Hides a link. Returns whether it was visible.
    fn delete_link(&mut self, list: List, id2: u64, now: u64) -> anyhow::Result<bool>;

    /// Moves a link to another type. Returns whether it was visible.
    fn change_type(&mut self, list: List, to: u32, id2: u64, now: u64) -> anyhow::Result<bool>;

    /// Returns the number of visible links.
    fn count_links(&mut self, list: List) -> anyhow::Result<u64>;

    /// Calls `each` with the links to these nodes, including hidden ones.
    fn multiget(
        &mut self,
        list: List,
        ids: &[u64],
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()>;

    /// Calls `each` with visible links, the newest first.
    fn list(
        &mut self,
        list: List,
        range: &Range,
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()>;

    /// Adds a node with a new id.
    fn add_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<()>;

    /// Replaces a node. Returns whether it exists.
    fn update_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<bool>;

    /// Deletes a node. Returns whether it existed.
    fn delete_node(&mut self, id: u64) -> anyhow::Result<bool>;

    /// Calls `each` with a node, if it exists. Returns whether it does.
    fn get_node(&mut self, id: u64, each: &mut dyn FnMut(NodeData<'_>)) -> anyhow::Result<bool>;
}

/// A store with the tables of TAOBench.
trait TaoStore: Send + Sync {
    /// Returns its version and settings.
    fn facts(&self) -> anyhow::Result<Facts>;

    /// Writes all edges, their inverse edges, and their objects.
    fn load(&self, loaded: &Loaded) -> anyhow::Result<()>;

    /// Connects a client.
    fn client(&self) -> anyhow::Result<Box<dyn TaoOps>>;
}

/// The operations of TAOBench.
trait TaoOps: Send {
    /// Makes reads at one moment. Calls `each` with the value of each object or edge that exists; for the number of
    /// edges, if there are any, with the number.
    fn read(&mut self, reads: &[Read], each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()>;

    /// Makes writes in one transaction: all or none. Returns their effects; `None` if there are several and a rule
    /// refuses an edge or an object that they add, so that none has an effect.
    fn write(&mut self, writes: &[Write]) -> anyhow::Result<Option<Vec<Effect>>>;
}

#[cfg(all(test, feature = "engines"))]
mod tests;
