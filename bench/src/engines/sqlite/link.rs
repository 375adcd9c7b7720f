//! SQLite as a store of LinkBench.

use farm_graph::tx::Range;
use farm_graph::{Assoc, NodeData};
use rusqlite::{OptionalExtension, Row, Statement, Transaction, params};

use super::{Client, Sqlite};
use crate::engines::{Facts, LinkOps, LinkStore, List};
use crate::linkbench::loaded::{LinksOf, NODE_TYPE, Nodes, link_type};

/// Rows that a load writes in a transaction.
const LOADED_TOGETHER: usize = 100_000;

/// The tables of LinkBench. The index of lists contains all that lists return, as in the reference.
pub(in crate::engines) const LINK_TABLES: &str = "
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

/// Executes a statement whose parameters are the columns of a node.
fn put_node(put: &mut Statement<'_>, id: u64, node: &NodeData<'_>) -> rusqlite::Result<usize> {
    put.execute(params![
        id,
        node.node_type,
        node.version,
        node.time,
        node.data
    ])
}

/// Executes a statement whose parameters are the columns of a link.
fn put_row(
    put: &mut Statement<'_>,
    (id1, link_type): List,
    link: &Assoc<'_>,
) -> rusqlite::Result<usize> {
    put.execute(params![
        id1,
        link_type,
        link.id2,
        link.visible,
        link.version,
        link.time,
        link.data
    ])
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
            put_node(&mut put, id, &node)?;
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
                put_row(&mut put, (next.id1, link_type(next.link_type)), &link)?;
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

fn put_link(tx: &Transaction<'_>, list: List, link: &Assoc<'_>) -> rusqlite::Result<()> {
    let mut put = tx.prepare_cached("REPLACE INTO link VALUES (?, ?, ?, ?, ?, ?, ?)")?;
    put_row(&mut put, list, link)?;
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
        put_node(&mut put, id, node)?;
        Ok(())
    }

    fn update_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<bool> {
        let mut put = self.statement(
            "UPDATE node SET version = ?3, time = ?4, data = ?5 WHERE id = ?1 AND type = ?2",
        )?;
        let changed = put_node(&mut put, id, node)?;
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
