//! SQLite: a database in shared memory with a write-ahead log, a connection for each client, and prepared statements.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farm_graph::tx::Range;
use farm_graph::{Assoc, NodeData};
use rusqlite::config::DbConfig;
use rusqlite::{
    CachedStatement, Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params,
};

use super::rows::{self, Puts, Rows};
use super::{Facts, LinkOps, LinkStore, List, TaoOps, TaoStore};
use crate::linkbench::loaded::{LinksOf, NODE_TYPE, Nodes, link_type};
use crate::taobench::edges::{Edge, EdgeType};
use crate::taobench::loaded::Loaded;
use crate::taobench::store::{Effect, RANGE_LIMIT};
use crate::taobench::stream::{Read, Write};
use crate::taobench::workload::Kind;

/// Settings of each connection. Readers and a writer do not wait for each other.
const SETTINGS: [(&str, &str); 7] = [
    ("journal_mode", "wal"),
    ("synchronous", "off"),
    ("mmap_size", "17179869184"),
    ("cache_size", "-262144"),
    ("temp_store", "memory"),
    ("wal_autocheckpoint", "10000"),
    ("page_size", "4096"),
];

/// Rows that a load writes in a transaction.
const LOADED_TOGETHER: usize = 100_000;

/// The tables of LinkBench. The index of lists contains all that lists return, as in the reference.
pub(super) const LINK_TABLES: &str = "
    CREATE TABLE node (
        id INTEGER PRIMARY KEY, type INTEGER NOT NULL, version INTEGER NOT NULL, time INTEGER NOT NULL,
        data BLOB NOT NULL);
    CREATE TABLE link (
        id1 INTEGER, link_type INTEGER, id2 INTEGER, visibility INTEGER NOT NULL, version INTEGER NOT NULL,
        time INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (id1, link_type, id2)) WITHOUT ROWID;
    CREATE TABLE count (
        id INTEGER, link_type INTEGER, count INTEGER NOT NULL, time INTEGER NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (id, link_type)) WITHOUT ROWID;";

/// The index of lists, which is created after the load.
const LINK_INDEX: &str =
    "CREATE INDEX list ON link (id1, link_type, visibility, time DESC, id2, version, data);";

/// The tables of TAOBench.
pub(super) const TAO_TABLES: &str = "
    CREATE TABLE objects (id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, value BLOB NOT NULL);
    CREATE TABLE edges (
        id1 INTEGER, id2 INTEGER, type INTEGER, timestamp INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (id1, id2, type)) WITHOUT ROWID;";

/// The index of the edges of an object by type, the newest first.
const TAO_INDEX: &str = "CREATE INDEX newest ON edges (id1, type, timestamp DESC, id2, value);";

/// A database.
pub(super) struct Sqlite {
    file: PathBuf,
}

impl Sqlite {
    /// Creates a database with tables.
    pub(super) fn create(dir: &Path, tables: &str) -> anyhow::Result<Self> {
        let own = Self {
            file: dir.join("sqlite"),
        };
        own.connect()?.execute_batch(tables)?;
        Ok(own)
    }

    fn connect(&self) -> anyhow::Result<Connection> {
        let connection = Connection::open(&self.file)?;
        // The page size is fixed when the first table is created.
        for (name, value) in SETTINGS.iter().rev() {
            connection.pragma_update(None, name, value)?;
        }
        // Otherwise a statement with a range is planned again whenever its bounds change.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.busy_handler(Some(|tries| {
            match tries {
                0..100 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
            true
        }))?;
        Ok(connection)
    }

    fn client_of(&self) -> anyhow::Result<Client> {
        Ok(Client {
            connection: self.connect()?,
        })
    }

    fn own_facts() -> Facts {
        let settings = SETTINGS
            .iter()
            .map(|(name, value)| format!("{name} = {value}"));
        let planner = "SQLITE_DBCONFIG_ENABLE_QPSG".to_owned();
        Facts {
            version: rusqlite::version().to_owned(),
            settings: settings.chain([planner]).collect(),
        }
    }
}

/// A client, with a connection of its own.
struct Client {
    connection: Connection,
}

impl Client {
    fn statement(&self, text: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(text)
    }

    /// Begins a transaction that will write. Another kind could fail when it begins to write.
    fn begin(&mut self) -> rusqlite::Result<Transaction<'_>> {
        self.connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
    }
}

fn link_of<'a>(row: &'a Row<'_>) -> rusqlite::Result<Assoc<'a>> {
    Ok(Assoc {
        id2: row.get(0)?,
        time: row.get(1)?,
        version: row.get(2)?,
        visible: row.get(3)?,
        target: None,
        data: row.get_ref(4)?.as_blob()?,
    })
}

impl LinkStore for Sqlite {
    fn facts(&self) -> anyhow::Result<Facts> {
        Ok(Self::own_facts())
    }

    fn load(
        &self,
        nodes: &mut Nodes,
        links: &mut LinksOf,
        ids: std::ops::Range<u64>,
    ) -> anyhow::Result<()> {
        let mut connection = self.connect()?;
        let tx = connection.transaction()?;
        let mut put = tx.prepare("INSERT INTO node VALUES (?, ?, ?, ?, ?)")?;
        for id in ids {
            let node = nodes.get(id);
            put.execute(params![
                id,
                node.node_type,
                node.version,
                node.time,
                node.data
            ])?;
        }
        drop(put);
        tx.commit()?;
        let mut ended = false;
        while !ended {
            let tx = connection.transaction()?;
            let mut put = tx.prepare("INSERT INTO link VALUES (?, ?, ?, ?, ?, ?, ?)")?;
            for _ in 0..LOADED_TOGETHER {
                let Some(next) = links.next_link() else {
                    ended = true;
                    break;
                };
                let link = links.get(&next);
                put.execute(params![
                    next.id1,
                    link_type(next.link_type),
                    link.id2,
                    link.visible,
                    link.version,
                    link.time,
                    link.data
                ])?;
            }
            drop(put);
            tx.commit()?;
        }
        connection.execute_batch(
            "INSERT INTO count SELECT id1, link_type, count(*), max(time), 0 FROM link GROUP BY id1, link_type;",
        )?;
        connection.execute_batch(LINK_INDEX)?;
        connection.execute_batch("ANALYZE; PRAGMA wal_checkpoint(TRUNCATE);")?;
        Ok(())
    }

    fn client(&self) -> anyhow::Result<Box<dyn LinkOps>> {
        Ok(Box::new(self.client_of()?))
    }
}

/// Adds to the number of visible links of a list.
fn count(
    tx: &Transaction<'_>,
    (id1, link_type): List,
    more: i64,
    now: u64,
) -> rusqlite::Result<()> {
    let mut add = tx.prepare_cached(
        "INSERT INTO count VALUES (?1, ?2, max(?3, 0), ?4, 0) ON CONFLICT DO UPDATE
         SET count = max(count + ?3, 0), time = ?4, version = version + 1",
    )?;
    add.execute(params![id1, link_type, more, now])?;
    Ok(())
}

/// Returns whether a link is visible; `None` if there is none.
fn visible(
    tx: &Transaction<'_>,
    (id1, link_type): List,
    id2: u64,
) -> rusqlite::Result<Option<bool>> {
    let mut get = tx.prepare_cached(
        "SELECT visibility FROM link WHERE id1 = ? AND link_type = ? AND id2 = ?",
    )?;
    get.query_row(params![id1, link_type, id2], |row| row.get(0))
        .optional()
}

fn put_link(
    tx: &Transaction<'_>,
    (id1, link_type): List,
    link: &Assoc<'_>,
) -> rusqlite::Result<()> {
    let mut put = tx.prepare_cached("REPLACE INTO link VALUES (?, ?, ?, ?, ?, ?, ?)")?;
    put.execute(params![
        id1,
        link_type,
        link.id2,
        link.visible,
        link.version,
        link.time,
        link.data
    ])?;
    Ok(())
}

/// Hides a link, and subtracts it from the number of links.
fn hide(tx: &Transaction<'_>, list: List, id2: u64, now: u64) -> rusqlite::Result<bool> {
    let is_visible = visible(tx, list, id2)? == Some(true);
    if is_visible {
        let mut hide = tx.prepare_cached(
            "UPDATE link SET visibility = 0 WHERE id1 = ? AND link_type = ? AND id2 = ?",
        )?;
        hide.execute(params![list.0, list.1, id2])?;
        count(tx, list, -1, now)?;
    }
    Ok(is_visible)
}

impl LinkOps for Client {
    fn add_link(&mut self, list: List, link: &Assoc<'_>, now: u64) -> anyhow::Result<()> {
        let tx = self.begin()?;
        let was_visible = visible(&tx, list, link.id2)?;
        put_link(&tx, list, link)?;
        if was_visible != Some(true) {
            count(&tx, list, 1, now)?;
        }
        Ok(tx.commit()?)
    }

    fn delete_link(&mut self, list: List, id2: u64, now: u64) -> anyhow::Result<bool> {
        let tx = self.begin()?;
        let hidden = hide(&tx, list, id2, now)?;
        tx.commit()?;
        Ok(hidden)
    }

    fn change_type(&mut self, list: List, to: u32, id2: u64, now: u64) -> anyhow::Result<bool> {
        let tx = self.begin()?;
        let mut get = tx.prepare_cached(
            "SELECT id2, time, version, visibility, data FROM link
             WHERE id1 = ? AND link_type = ? AND id2 = ? AND visibility = 1",
        )?;
        let mut rows = get.query(params![list.0, list.1, id2])?;
        let Some(row) = rows.next()? else {
            return Ok(false);
        };
        let mut link = link_of(row)?;
        let data = link.data.to_vec();
        link.data = &data;
        let mut remove =
            tx.prepare_cached("DELETE FROM link WHERE id1 = ? AND link_type = ? AND id2 = ?")?;
        remove.execute(params![list.0, list.1, id2])?;
        count(&tx, list, -1, now)?;
        let to = (list.0, to);
        if visible(&tx, to, id2)? != Some(true) {
            count(&tx, to, 1, now)?;
        }
        put_link(&tx, to, &link)?;
        drop(rows);
        drop((get, remove));
        tx.commit()?;
        Ok(true)
    }

    fn count_links(&mut self, (id1, link_type): List) -> anyhow::Result<u64> {
        let mut get = self.statement("SELECT count FROM count WHERE id = ? AND link_type = ?")?;
        let found = get
            .query_row(params![id1, link_type], |row| row.get(0))
            .optional()?;
        Ok(found.unwrap_or(0))
    }

    fn multiget(
        &mut self,
        (id1, link_type): List,
        ids: &[u64],
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()> {
        // One transaction, so that all links are of one moment.
        let tx = self.connection.transaction()?;
        let mut get = tx.prepare_cached(
            "SELECT id2, time, version, visibility, data FROM link
             WHERE id1 = ? AND link_type = ? AND id2 = ?",
        )?;
        for id2 in ids {
            if let Some(row) = get.query(params![id1, link_type, id2])?.next()? {
                each(link_of(row)?);
            }
        }
        drop(get);
        Ok(tx.commit()?)
    }

    fn list(
        &mut self,
        (id1, link_type): List,
        range: &Range,
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()> {
        let mut get = self.statement(
            "SELECT id2, time, version, visibility, data FROM link
             WHERE id1 = ? AND link_type = ? AND visibility = 1 AND time BETWEEN ? AND ?
             ORDER BY time DESC, id2 LIMIT ? OFFSET ?",
        )?;
        let max = range.bounds.max.min(i64::MAX as u64);
        let bounds = params![
            id1,
            link_type,
            range.bounds.min,
            max,
            range.limit,
            range.offset
        ];
        let mut rows = get.query(bounds)?;
        while let Some(row) = rows.next()? {
            each(link_of(row)?);
        }
        Ok(())
    }

    fn add_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<()> {
        let mut put = self.statement("INSERT INTO node VALUES (?, ?, ?, ?, ?)")?;
        put.execute(params![
            id,
            node.node_type,
            node.version,
            node.time,
            node.data
        ])?;
        Ok(())
    }

    fn update_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<bool> {
        let mut put = self.statement(
            "UPDATE node SET version = ?3, time = ?4, data = ?5 WHERE id = ?1 AND type = ?2",
        )?;
        let changed = put.execute(params![
            id,
            node.node_type,
            node.version,
            node.time,
            node.data
        ])?;
        Ok(changed > 0)
    }

    fn delete_node(&mut self, id: u64) -> anyhow::Result<bool> {
        let mut remove = self.statement("DELETE FROM node WHERE id = ? AND type = ?")?;
        Ok(remove.execute(params![id, NODE_TYPE])? > 0)
    }

    fn get_node(&mut self, id: u64, each: &mut dyn FnMut(NodeData<'_>)) -> anyhow::Result<bool> {
        let mut get =
            self.statement("SELECT type, version, time, data FROM node WHERE id = ? AND type = ?")?;
        let mut rows = get.query(params![id, NODE_TYPE])?;
        let Some(row) = rows.next()? else {
            return Ok(false);
        };
        each(NodeData {
            node_type: row.get(0)?,
            version: row.get(1)?,
            time: row.get(2)?,
            data: row.get_ref(3)?.as_blob()?,
        });
        Ok(true)
    }
}

impl TaoStore for Sqlite {
    fn facts(&self) -> anyhow::Result<Facts> {
        Ok(Self::own_facts())
    }

    fn load(&self, loaded: &Loaded) -> anyhow::Result<()> {
        let mut connection = self.connect()?;
        let tx = connection.transaction()?;
        rows::load(&mut TaoTx(&tx), loaded)?;
        tx.commit()?;
        connection.execute_batch(TAO_INDEX)?;
        connection.execute_batch("ANALYZE; PRAGMA wal_checkpoint(TRUNCATE);")?;
        Ok(())
    }

    fn client(&self) -> anyhow::Result<Box<dyn TaoOps>> {
        Ok(Box::new(self.client_of()?))
    }
}

/// The rows of TAOBench in a transaction.
struct TaoTx<'a>(&'a Transaction<'a>);

impl Rows for TaoTx<'_> {
    fn object_time(&self, id: u64) -> anyhow::Result<Option<u64>> {
        let mut get = self
            .0
            .prepare_cached("SELECT timestamp FROM objects WHERE id = ?")?;
        Ok(get.query_row(params![id], |row| row.get(0)).optional()?)
    }

    fn delete_object(&self, id: u64) -> anyhow::Result<()> {
        let mut remove = self.0.prepare_cached("DELETE FROM objects WHERE id = ?")?;
        remove.execute(params![id])?;
        Ok(())
    }

    fn edge_time(&self, edge: Edge) -> anyhow::Result<Option<u64>> {
        let mut get = self
            .0
            .prepare_cached("SELECT timestamp FROM edges WHERE id1 = ? AND id2 = ? AND type = ?")?;
        let key = params![edge.id1, edge.id2, edge.edge_type.number()];
        Ok(get.query_row(key, |row| row.get(0)).optional()?)
    }

    fn has_any(&self, id1: u64, edge_type: EdgeType) -> anyhow::Result<bool> {
        let mut get = self
            .0
            .prepare_cached("SELECT 1 FROM edges WHERE id1 = ? AND type = ? LIMIT 1")?;
        Ok(get.exists(params![id1, edge_type.number()])?)
    }

    fn delete_edge(&self, edge: Edge, _before: u64) -> anyhow::Result<()> {
        let mut remove = self
            .0
            .prepare_cached("DELETE FROM edges WHERE id1 = ? AND id2 = ? AND type = ?")?;
        remove.execute(params![edge.id1, edge.id2, edge.edge_type.number()])?;
        Ok(())
    }
}

impl Puts for TaoTx<'_> {
    fn put_object(&mut self, id: u64, time: u64, value: &[u8]) -> anyhow::Result<()> {
        let mut put = self
            .0
            .prepare_cached("REPLACE INTO objects VALUES (?, ?, ?)")?;
        put.execute(params![id, time, value])?;
        Ok(())
    }

    fn put_edge(
        &mut self,
        edge: Edge,
        _before: Option<u64>,
        time: u64,
        value: &[u8],
    ) -> anyhow::Result<()> {
        let mut put = self
            .0
            .prepare_cached("REPLACE INTO edges VALUES (?, ?, ?, ?, ?)")?;
        put.execute(params![
            edge.id1,
            edge.id2,
            edge.edge_type.number(),
            time,
            value
        ])?;
        Ok(())
    }
}

/// Performs a read on a connection, inside or outside of a transaction.
fn tao_read(
    connection: &Connection,
    read: &Read,
    each: &mut dyn FnMut(&[u8]),
) -> rusqlite::Result<()> {
    let edge = read.known.edge;
    let edge_type = edge.edge_type.number();
    let mut one = |text: &str, key: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<()> {
        let mut get = connection.prepare_cached(text)?;
        let mut rows = get.query(key)?;
        while let Some(row) = rows.next()? {
            each(row.get_ref(0)?.as_blob()?);
        }
        Ok(())
    };
    match read.kind {
        Kind::ObjRead => one("SELECT value FROM objects WHERE id = ?", &[&edge.id1]),
        Kind::EdgePoint => one(
            "SELECT value FROM edges WHERE id1 = ? AND id2 = ? AND type = ?",
            &[&edge.id1, &edge.id2, &edge_type],
        ),
        Kind::EdgeCount => {
            let mut get = connection
                .prepare_cached("SELECT count(*) FROM edges WHERE id1 = ? AND type = ?")?;
            let count: u64 = get.query_row(params![edge.id1, edge_type], |row| row.get(0))?;
            if count > 0 {
                each(&count.to_le_bytes());
            }
            Ok(())
        }
        _ => one(
            "SELECT value, timestamp, id2 FROM edges WHERE id1 = ? AND type = ?
             ORDER BY timestamp DESC LIMIT ?",
            &[&edge.id1, &edge_type, &RANGE_LIMIT],
        ),
    }
}

impl TaoOps for Client {
    fn read(&mut self, reads: &[Read], each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        if let [read] = reads {
            return Ok(tao_read(&self.connection, read, each)?);
        }
        let tx = self.connection.transaction()?;
        for read in reads {
            tao_read(&tx, read, each)?;
        }
        Ok(tx.commit()?)
    }

    fn write(&mut self, writes: &[Write]) -> anyhow::Result<Option<Vec<Effect>>> {
        let tx = self.begin()?;
        let effects = rows::write_all(&mut TaoTx(&tx), writes)?;
        if effects.is_some() {
            tx.commit()?;
        }
        Ok(effects)
    }
}
