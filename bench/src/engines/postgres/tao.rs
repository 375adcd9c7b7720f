//! TAOBench on PostgreSQL. Reads are one statement, and so of one moment; writes are one call of a function, in a
//! serializable transaction.

use std::sync::Arc;

use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::{ToSql, Type};
use postgres::{Client, Statement};

use super::server::Server;
use super::{Postgres, retry};
use crate::engines::rows::{Puts, load};
use crate::engines::tao::NO_NAME;
use crate::engines::{Facts, TaoOps, TaoStore};
use crate::taobench::edges::{Edge, EdgeType, Owner, value};
use crate::taobench::loaded::Loaded;
use crate::taobench::rules::{Forbidden, forbidden};
use crate::taobench::store::{Effect, RANGE_LIMIT};
use crate::taobench::stream::{Read, Write};
use crate::taobench::workload::Kind;

/// The tables, and the function that makes writes.
pub(in crate::engines) const TABLES: &str = "
CREATE TABLE objects (id bigint NOT NULL, timestamp bigint NOT NULL, value bytea NOT NULL);
CREATE TABLE edges (
    id1 bigint NOT NULL, id2 bigint NOT NULL, type int NOT NULL, timestamp bigint NOT NULL, value bytea NOT NULL);
";

const INDICES: &str = "
ALTER TABLE objects ADD PRIMARY KEY (id);
ALTER TABLE edges ADD PRIMARY KEY (id1, id2, type);
CREATE INDEX newest ON edges (id1, type, timestamp DESC) INCLUDE (value);
";

/// The kinds of writes, as numbers for the function. The effects are 0 for done, 1 for not found, 2 for declined.
const WRITES: &str = "
CREATE FUNCTION write(kind int, a bigint, b bigint, t int, at bigint, bytes bytea) RETURNS int LANGUAGE plpgsql AS $$
DECLARE stored bigint;
BEGIN
    IF kind = 0 THEN
        INSERT INTO objects VALUES (a, at, bytes) ON CONFLICT DO NOTHING;
        RETURN CASE WHEN FOUND THEN 0 ELSE 2 END;
    ELSIF kind <= 2 THEN
        SELECT timestamp INTO stored FROM objects WHERE id = a;
    ELSIF kind = 3 THEN
        IF contradicts(a, b, t) OR has_inverse(t) AND contradicts(b, a, t) THEN
            RETURN 2;
        END IF;
        INSERT INTO edges VALUES (a, b, t, at, bytes);
        IF has_inverse(t) THEN
            INSERT INTO edges VALUES (b, a, t, at, bytes) ON CONFLICT DO NOTHING;
        END IF;
        RETURN 0;
    ELSE
        SELECT timestamp INTO stored FROM edges WHERE id1 = a AND id2 = b AND type = t;
    END IF;
    IF NOT FOUND THEN
        RETURN 1;
    ELSIF stored >= at THEN
        RETURN 2;
    ELSIF kind = 1 THEN
        UPDATE objects SET timestamp = at, value = bytes WHERE id = a;
    ELSIF kind = 2 THEN
        DELETE FROM objects WHERE id = a;
    ELSIF kind = 4 THEN
        UPDATE edges SET timestamp = at, value = bytes WHERE id1 = a AND id2 = b AND type = t;
        IF has_inverse(t) THEN
            UPDATE edges SET timestamp = at, value = bytes WHERE id1 = b AND id2 = a AND type = t;
        END IF;
    ELSE
        DELETE FROM edges WHERE id1 = a AND id2 = b AND type = t;
        IF has_inverse(t) THEN
            DELETE FROM edges WHERE id1 = b AND id2 = a AND type = t;
        END IF;
    END IF;
    RETURN 0;
END $$;

CREATE FUNCTION write_all(kinds int[], a bigint[], b bigint[], t int[], at bigint[], bytes bytea[])
RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE effects int[] := '{}'; effect int;
BEGIN
    FOR i IN 1..cardinality(kinds) LOOP
        effect := write(kinds[i], a[i], b[i], t[i], at[i], bytes[i]);
        IF effect = 2 AND kinds[i] IN (0, 3) THEN
            RAISE EXCEPTION USING ERRCODE = 'FA001', MESSAGE = 'a rule refuses a write';
        END IF;
        effects := effects || effect;
    END LOOP;
    RETURN effects;
END $$;
";

/// Returns functions with the rules for new edges, and with the types that have inverse edges.
fn rules() -> String {
    let list = |edge_type: EdgeType, pick: fn(&Forbidden) -> Option<EdgeType>| {
        let types = forbidden(edge_type).iter().filter_map(pick);
        let types: Vec<String> = types.map(|it| it.number().to_string()).collect();
        format!("'{{{}}}'::int[]", types.join(","))
    };
    let case = |pick: fn(&Forbidden) -> Option<EdgeType>| {
        let cases = EdgeType::ALL.map(|it| format!("WHEN {} THEN {}", it.number(), list(it, pick)));
        format!("(CASE t {} END)", cases.join(" "))
    };
    let any = case(|rule| match rule {
        Forbidden::Any(it) => Some(*it),
        _ => None,
    });
    let same = case(|rule| match rule {
        Forbidden::Same(it) => Some(*it),
        _ => None,
    });
    let inverse = case(|rule| match rule {
        Forbidden::Inverse(it) => Some(*it),
        _ => None,
    });
    let inverses = EdgeType::ALL.into_iter().filter(|it| it.has_inverse());
    let inverses: Vec<String> = inverses.map(|it| it.number().to_string()).collect();
    let inverses = inverses.join(", ");
    format!(
        "CREATE FUNCTION has_inverse(t int) RETURNS bool LANGUAGE sql IMMUTABLE AS $$ SELECT t IN ({inverses}) $$;
         CREATE FUNCTION contradicts(a bigint, b bigint, t int) RETURNS bool LANGUAGE plpgsql AS $$
         BEGIN
             RETURN EXISTS (SELECT FROM edges WHERE id1 = a AND type = ANY {any})
                 OR EXISTS (SELECT FROM edges WHERE id1 = a AND id2 = b AND type = ANY {same})
                 OR EXISTS (SELECT FROM edges WHERE id1 = b AND id2 = a AND type = ANY {inverse});
         END $$;"
    )
}

/// Collects rows of one table, which a copy then writes.
struct Copied<'a> {
    rows: BinaryCopyInWriter<'a>,
    objects: bool,
}

impl Puts for Copied<'_> {
    fn put_object(&mut self, id: u64, time: u64, value: &[u8]) -> anyhow::Result<()> {
        if self.objects {
            self.rows.write(&[&(id as i64), &(time as i64), &value])?;
        }
        Ok(())
    }

    fn put_edge(
        &mut self,
        edge: Edge,
        _before: Option<u64>,
        time: u64,
        value: &[u8],
    ) -> anyhow::Result<()> {
        if !self.objects {
            let (id1, id2, number) = key(edge);
            self.rows
                .write(&[&id1, &id2, &number, &(time as i64), &value])?;
        }
        Ok(())
    }
}

fn key(edge: Edge) -> (i64, i64, i32) {
    (
        edge.id1 as i64,
        edge.id2 as i64,
        edge.edge_type.number() as i32,
    )
}

impl TaoStore for Postgres {
    fn facts(&self) -> anyhow::Result<Facts> {
        let mut facts = self.own_facts()?;
        let writes = "default_transaction_isolation = serializable (writes)";
        facts.settings.push(writes.to_owned());
        Ok(facts)
    }

    fn load(&self, loaded: &Loaded) -> anyhow::Result<()> {
        const OBJECT: &[Type] = &[Type::INT8, Type::INT8, Type::BYTEA];
        const EDGE: &[Type] = &[Type::INT8, Type::INT8, Type::INT4, Type::INT8, Type::BYTEA];
        let mut client = self.server.connect()?;
        for (objects, copy, types) in [
            (true, "COPY objects FROM STDIN BINARY", OBJECT),
            (false, "COPY edges FROM STDIN BINARY", EDGE),
        ] {
            let rows = BinaryCopyInWriter::new(client.copy_in(copy)?, types);
            let mut copied = Copied { rows, objects };
            load(&mut copied, loaded)?;
            copied.rows.finish()?;
        }
        client.batch_execute(INDICES)?;
        client.batch_execute(&rules())?;
        client.batch_execute(WRITES)?;
        Self::settle(&mut client)
    }

    fn client(&self) -> anyhow::Result<Box<dyn TaoOps>> {
        let [mut reads, mut writes] = [self.server.connect()?, self.server.connect()?];
        writes.batch_execute("SET default_transaction_isolation = serializable")?;
        Ok(Box::new(TaoClient {
            object: reads.prepare("SELECT value FROM objects WHERE id = $1")?,
            edge: reads
                .prepare("SELECT value FROM edges WHERE id1 = $1 AND id2 = $2 AND type = $3")?,
            count: reads.prepare("SELECT count(*) FROM edges WHERE id1 = $1 AND type = $2")?,
            range: reads.prepare(
                "SELECT value FROM edges WHERE id1 = $1 AND type = $2 ORDER BY timestamp DESC LIMIT $3",
            )?,
            all: reads.prepare(
                "SELECT value FROM unnest($1::bigint[]) AS k(id) JOIN objects USING (id) UNION ALL
                 SELECT value FROM unnest($2::bigint[], $3::bigint[], $4::int[]) AS k(id1, id2, type)
                 JOIN edges USING (id1, id2, type)",
            )?,
            write: writes.prepare("SELECT write($1, $2, $3, $4, $5, $6)")?,
            write_all: writes.prepare("SELECT write_all($1, $2, $3, $4, $5, $6)")?,
            reads,
            writes,
            _server: Arc::clone(&self.server),
        }))
    }
}

struct TaoClient {
    reads: Client,
    writes: Client,
    object: Statement,
    edge: Statement,
    count: Statement,
    range: Statement,
    all: Statement,
    write: Statement,
    write_all: Statement,
    _server: Arc<Server>,
}

/// What the function takes for a write.
fn arguments(write: &Write) -> (i32, i64, i64, i32, i64, Vec<u8>) {
    let (kind, owner) = match write.kind {
        Kind::ObjAdd => (0, Owner::Object(write.edge.id1)),
        Kind::ObjUpdate => (1, Owner::Object(write.edge.id1)),
        Kind::ObjDelete => (2, Owner::Object(write.edge.id1)),
        Kind::EdgeAdd => (3, Owner::Edge(write.edge)),
        Kind::EdgeUpdate => (4, Owner::Edge(write.edge)),
        _ => (5, Owner::Edge(write.edge)),
    };
    let (id1, id2, number) = key(write.edge);
    let bytes = value(owner, write.time).to_vec();
    (kind, id1, id2, number, write.time as i64, bytes)
}

fn effect(number: i32) -> Effect {
    match number {
        0 => Effect::Done { node: NO_NAME },
        1 => Effect::NotFound,
        _ => Effect::Declined,
    }
}

impl TaoOps for TaoClient {
    fn read(&mut self, reads: &[Read], each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        let rows = if let [read] = reads {
            let (id1, id2, number) = key(read.known.edge);
            match read.kind {
                Kind::ObjRead => self.reads.query(&self.object, &[&id1])?,
                Kind::EdgePoint => self.reads.query(&self.edge, &[&id1, &id2, &number])?,
                Kind::EdgeCount => {
                    let row = self.reads.query_one(&self.count, &[&id1, &number])?;
                    let count: i64 = row.try_get(0)?;
                    if count > 0 {
                        each(&count.to_le_bytes());
                    }
                    return Ok(());
                }
                _ => self
                    .reads
                    .query(&self.range, &[&id1, &number, &(RANGE_LIMIT as i64)])?,
            }
        } else {
            let (mut objects, mut ids1, mut ids2, mut types) = (vec![], vec![], vec![], vec![]);
            for read in reads {
                let (id1, id2, number) = key(read.known.edge);
                if read.kind == Kind::ObjRead {
                    objects.push(id1);
                } else {
                    ids1.push(id1);
                    ids2.push(id2);
                    types.push(number);
                }
            }
            self.reads
                .query(&self.all, &[&objects, &ids1, &ids2, &types])?
        };
        for row in &rows {
            each(row.try_get(0)?);
        }
        Ok(())
    }

    fn write(&mut self, writes: &[Write]) -> anyhow::Result<Option<Vec<Effect>>> {
        let Self {
            writes: client,
            write,
            write_all,
            ..
        } = self;
        if let [one] = writes {
            let (kind, id1, id2, number, time, bytes) = arguments(one);
            let arguments: [&(dyn ToSql + Sync); 6] = [&kind, &id1, &id2, &number, &time, &bytes];
            let row = retry(|| client.query_one(write, &arguments))?;
            return Ok(Some(vec![effect(row.try_get(0)?)]));
        }
        let all: Vec<_> = writes.iter().map(arguments).collect();
        let kinds: Vec<i32> = all.iter().map(|it| it.0).collect();
        let ids1: Vec<i64> = all.iter().map(|it| it.1).collect();
        let ids2: Vec<i64> = all.iter().map(|it| it.2).collect();
        let types: Vec<i32> = all.iter().map(|it| it.3).collect();
        let times: Vec<i64> = all.iter().map(|it| it.4).collect();
        let values: Vec<&[u8]> = all.iter().map(|it| &it.5[..]).collect();
        let arguments: [&(dyn ToSql + Sync); 6] = [&kinds, &ids1, &ids2, &types, &times, &values];
        match retry(|| client.query_one(write_all, &arguments)) {
            Ok(row) => {
                let effects: Vec<i32> = row.try_get(0)?;
                Ok(Some(effects.into_iter().map(effect).collect()))
            }
            Err(error) if error.code().is_some_and(|code| code.code() == "FA001") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
