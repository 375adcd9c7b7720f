//! SQLite as a store of TAOBench.

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::{Client, Sqlite};
use crate::engines::rows::{self, Puts, Rows};
use crate::engines::{Facts, TaoOps, TaoStore};
use crate::taobench::edges::{Edge, EdgeType};
use crate::taobench::loaded::Loaded;
use crate::taobench::store::{Effect, RANGE_LIMIT};
use crate::taobench::stream::{Read, Write};
use crate::taobench::workload::Kind;

/// The tables of TAOBench.
pub(in crate::engines) const TAO_TABLES: &str = "
    CREATE TABLE objects (id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, value BLOB NOT NULL);
    CREATE TABLE edges (
        id1 INTEGER, id2 INTEGER, type INTEGER, timestamp INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (id1, id2, type)) WITHOUT ROWID;";

/// The index of the edges of an object by type, the newest first.
const TAO_INDEX: &str = "CREATE INDEX newest ON edges (id1, type, timestamp DESC, id2, value);";

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
