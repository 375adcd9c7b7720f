//! LinkBench on PostgreSQL.

use std::ops::Range as Ids;
use std::sync::Arc;

use farm_graph::tx::Range;
use farm_graph::{Assoc, NodeData};
use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::Type;
use postgres::{Client, Row, Statement};

use super::server::Server;
use super::{Postgres, retry, unsigned};
use crate::engines::{Facts, LinkOps, LinkStore, List};
use crate::linkbench::loaded::{LinksOf, NODE_TYPE, Nodes, link_type};

/// The tables, and functions for the operations that write links. An operation is one call.
pub(in crate::engines) const TABLES: &str = "
CREATE TABLE node (
    id bigint NOT NULL, type int NOT NULL, version bigint NOT NULL, time int NOT NULL, data bytea NOT NULL);
CREATE TABLE link (
    id1 bigint NOT NULL, link_type int NOT NULL, id2 bigint NOT NULL, visibility bool NOT NULL, version int NOT NULL,
    time bigint NOT NULL, data bytea NOT NULL);
CREATE TABLE count (
    id bigint NOT NULL, link_type int NOT NULL, count bigint NOT NULL, time bigint NOT NULL, version bigint NOT NULL);

CREATE FUNCTION add_count(a bigint, t int, more bigint, now bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO count VALUES (a, t, greatest(more, 0), now, 0) ON CONFLICT (id, link_type) DO UPDATE
    SET count = greatest(count.count + more, 0), time = now, version = count.version + 1;
$$;

CREATE FUNCTION add_link(a bigint, t int, b bigint, v int, at bigint, bytes bytea, now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE was_visible bool;
BEGIN
    LOOP
        SELECT visibility INTO was_visible FROM link WHERE id1 = a AND link_type = t AND id2 = b FOR UPDATE;
        IF FOUND THEN
            UPDATE link SET visibility = true, version = v, time = at, data = bytes
            WHERE id1 = a AND link_type = t AND id2 = b;
            EXIT;
        END IF;
        was_visible := false;
        INSERT INTO link VALUES (a, t, b, true, v, at, bytes) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
    IF NOT was_visible THEN
        PERFORM add_count(a, t, 1, now);
    END IF;
END $$;

CREATE FUNCTION delete_link(a bigint, t int, b bigint, now bigint) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    UPDATE link SET visibility = false WHERE id1 = a AND link_type = t AND id2 = b AND visibility;
    IF FOUND THEN
        PERFORM add_count(a, t, -1, now);
        RETURN true;
    END IF;
    RETURN false;
END $$;

CREATE FUNCTION change_type(a bigint, t int, into_t int, b bigint, now bigint) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE old link%ROWTYPE;
BEGIN
    DELETE FROM link WHERE id1 = a AND link_type = t AND id2 = b AND visibility RETURNING * INTO old;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM add_count(a, t, -1, now);
    PERFORM add_link(a, into_t, b, old.version, old.time, old.data, now);
    RETURN true;
END $$;
";

/// The indices, which are created after the load. The one of lists contains all that lists return, as in the reference.
const INDICES: &str = "
ALTER TABLE node ADD PRIMARY KEY (id);
ALTER TABLE link ADD PRIMARY KEY (id1, link_type, id2);
INSERT INTO count SELECT id1, link_type, count(*), max(time), 0 FROM link GROUP BY id1, link_type;
ALTER TABLE count ADD PRIMARY KEY (id, link_type);
CREATE INDEX list ON link (id1, link_type, time DESC, id2) INCLUDE (version, data) WHERE visibility;
";

struct LinkClient {
    client: Client,
    statements: Statements,
    _server: Arc<Server>,
}

struct Statements {
    add_link: Statement,
    delete_link: Statement,
    change_type: Statement,
    count: Statement,
    multiget: Statement,
    list: Statement,
    add_node: Statement,
    update_node: Statement,
    delete_node: Statement,
    get_node: Statement,
}

impl Statements {
    fn prepare(client: &mut Client) -> Result<Self, postgres::Error> {
        Ok(Self {
            add_link: client.prepare("SELECT add_link($1, $2, $3, $4, $5, $6, $7)")?,
            delete_link: client.prepare("SELECT delete_link($1, $2, $3, $4)")?,
            change_type: client.prepare("SELECT change_type($1, $2, $3, $4, $5)")?,
            count: client.prepare("SELECT count FROM count WHERE id = $1 AND link_type = $2")?,
            multiget: client.prepare(
                "SELECT id2, time, version, visibility, data FROM link
                 WHERE id1 = $1 AND link_type = $2 AND id2 = ANY($3)",
            )?,
            list: client.prepare(
                "SELECT id2, time, version, visibility, data FROM link
                 WHERE id1 = $1 AND link_type = $2 AND visibility AND time BETWEEN $3 AND $4
                 ORDER BY time DESC, id2 OFFSET $5 LIMIT $6",
            )?,
            add_node: client.prepare("INSERT INTO node VALUES ($1, $2, $3, $4, $5)")?,
            update_node: client.prepare(
                "UPDATE node SET version = $3, time = $4, data = $5 WHERE id = $1 AND type = $2",
            )?,
            delete_node: client.prepare("DELETE FROM node WHERE id = $1 AND type = $2")?,
            get_node: client.prepare(
                "SELECT type, version, time, data FROM node WHERE id = $1 AND type = $2",
            )?,
        })
    }
}

impl LinkStore for Postgres {
    fn facts(&self) -> anyhow::Result<Facts> {
        self.own_facts()
    }

    fn load(&self, nodes: &mut Nodes, links: &mut LinksOf, ids: Ids<u64>) -> anyhow::Result<()> {
        const NODE: [Type; 5] = [Type::INT8, Type::INT4, Type::INT8, Type::INT4, Type::BYTEA];
        const LINK: [Type; 7] = [
            Type::INT8,
            Type::INT4,
            Type::INT8,
            Type::BOOL,
            Type::INT4,
            Type::INT8,
            Type::BYTEA,
        ];
        let mut client = self.server.connect()?;
        let mut rows =
            BinaryCopyInWriter::new(client.copy_in("COPY node FROM STDIN BINARY")?, &NODE);
        for id in ids {
            let node = nodes.get(id);
            let (kind, version, time) =
                (node.node_type as i32, node.version as i64, node.time as i32);
            rows.write(&[&(id as i64), &kind, &version, &time, &node.data])?;
        }
        rows.finish()?;
        let mut rows =
            BinaryCopyInWriter::new(client.copy_in("COPY link FROM STDIN BINARY")?, &LINK);
        while let Some(next) = links.next_link() {
            let link = links.get(&next);
            let (kind, version) = (link_type(next.link_type) as i32, link.version as i32);
            let (id1, id2, time) = (next.id1 as i64, link.id2 as i64, link.time as i64);
            rows.write(&[
                &id1,
                &kind,
                &id2,
                &link.visible,
                &version,
                &time,
                &link.data,
            ])?;
        }
        rows.finish()?;
        client.batch_execute(INDICES)?;
        Self::settle(&mut client)
    }

    fn client(&self) -> anyhow::Result<Box<dyn LinkOps>> {
        let mut client = self.server.connect()?;
        Ok(Box::new(LinkClient {
            statements: Statements::prepare(&mut client)?,
            client,
            _server: Arc::clone(&self.server),
        }))
    }
}

fn each_link(rows: Vec<Row>, each: &mut dyn FnMut(Assoc<'_>)) -> anyhow::Result<()> {
    for row in rows {
        each(Assoc {
            id2: unsigned(&row, 0)?,
            time: unsigned(&row, 1)?,
            version: row.try_get::<_, i32>(2)? as u32,
            visible: row.try_get(3)?,
            target: None,
            data: row.try_get(4)?,
        });
    }
    Ok(())
}

impl LinkOps for LinkClient {
    fn add_link(&mut self, list: List, link: &Assoc<'_>, now: u64) -> anyhow::Result<()> {
        let Self {
            client, statements, ..
        } = self;
        let (id1, kind, id2) = (list.0 as i64, list.1 as i32, link.id2 as i64);
        let (version, time, now) = (link.version as i32, link.time as i64, now as i64);
        retry(|| {
            let arguments: [&(dyn postgres::types::ToSql + Sync); 7] =
                [&id1, &kind, &id2, &version, &time, &link.data, &now];
            client.query_one(&statements.add_link, &arguments)
        })?;
        Ok(())
    }

    fn delete_link(&mut self, list: List, id2: u64, now: u64) -> anyhow::Result<bool> {
        let Self {
            client, statements, ..
        } = self;
        let (id1, kind) = (list.0 as i64, list.1 as i32);
        let row = retry(|| {
            client.query_one(
                &statements.delete_link,
                &[&id1, &kind, &(id2 as i64), &(now as i64)],
            )
        })?;
        Ok(row.try_get(0)?)
    }

    fn change_type(&mut self, list: List, to: u32, id2: u64, now: u64) -> anyhow::Result<bool> {
        let Self {
            client, statements, ..
        } = self;
        let (id1, kind, to) = (list.0 as i64, list.1 as i32, to as i32);
        let row = retry(|| {
            let arguments: [&(dyn postgres::types::ToSql + Sync); 5] =
                [&id1, &kind, &to, &(id2 as i64), &(now as i64)];
            client.query_one(&statements.change_type, &arguments)
        })?;
        Ok(row.try_get(0)?)
    }

    fn count_links(&mut self, (id1, kind): List) -> anyhow::Result<u64> {
        let row = self
            .client
            .query_opt(&self.statements.count, &[&(id1 as i64), &(kind as i32)])?;
        row.map_or(Ok(0), |row| unsigned(&row, 0))
    }

    fn multiget(
        &mut self,
        (id1, kind): List,
        ids: &[u64],
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()> {
        let ids: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
        let arguments: [&(dyn postgres::types::ToSql + Sync); 3] =
            [&(id1 as i64), &(kind as i32), &ids];
        each_link(
            self.client.query(&self.statements.multiget, &arguments)?,
            each,
        )
    }

    fn list(
        &mut self,
        (id1, kind): List,
        range: &Range,
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()> {
        let max = range.bounds.max.min(i64::MAX as u64) as i64;
        let (min, offset, limit) = (
            range.bounds.min as i64,
            range.offset as i64,
            range.limit as i64,
        );
        let arguments: [&(dyn postgres::types::ToSql + Sync); 6] =
            [&(id1 as i64), &(kind as i32), &min, &max, &offset, &limit];
        each_link(self.client.query(&self.statements.list, &arguments)?, each)
    }

    fn add_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<()> {
        let (kind, version, time) = (node.node_type as i32, node.version as i64, node.time as i32);
        let arguments: [&(dyn postgres::types::ToSql + Sync); 5] =
            [&(id as i64), &kind, &version, &time, &node.data];
        self.client.execute(&self.statements.add_node, &arguments)?;
        Ok(())
    }

    fn update_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<bool> {
        let (kind, version, time) = (node.node_type as i32, node.version as i64, node.time as i32);
        let arguments: [&(dyn postgres::types::ToSql + Sync); 5] =
            [&(id as i64), &kind, &version, &time, &node.data];
        Ok(self
            .client
            .execute(&self.statements.update_node, &arguments)?
            > 0)
    }

    fn delete_node(&mut self, id: u64) -> anyhow::Result<bool> {
        let key = (id as i64, NODE_TYPE as i32);
        Ok(self
            .client
            .execute(&self.statements.delete_node, &[&key.0, &key.1])?
            > 0)
    }

    fn get_node(&mut self, id: u64, each: &mut dyn FnMut(NodeData<'_>)) -> anyhow::Result<bool> {
        let key = (id as i64, NODE_TYPE as i32);
        let row = self
            .client
            .query_opt(&self.statements.get_node, &[&key.0, &key.1])?;
        let Some(row) = row else {
            return Ok(false);
        };
        each(NodeData {
            node_type: row.try_get::<_, i32>(0)? as u32,
            version: unsigned(&row, 1)?,
            time: row.try_get::<_, i32>(2)? as u64,
            data: row.try_get(3)?,
        });
        Ok(true)
    }
}
