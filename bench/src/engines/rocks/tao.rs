//! TAOBench on RocksDB.

use super::{Client, Loader, Rocks, Tx, join, take, within_prefix};
use crate::engines::rows::{self, Puts, Rows};
use crate::engines::{Facts, TaoOps, TaoStore};
use crate::taobench::edges::{Edge, EdgeType};
use crate::taobench::loaded::Loaded;
use crate::taobench::store::{Effect, RANGE_LIMIT};
use crate::taobench::stream::{Read, Write};
use crate::taobench::workload::Kind;

fn list_key(id1: u64, edge_type: EdgeType) -> Vec<u8> {
    join([&id1.to_be_bytes(), &edge_type.number().to_be_bytes()])
}

fn edge_key(edge: Edge) -> Vec<u8> {
    join([&list_key(edge.id1, edge.edge_type), &edge.id2.to_be_bytes()])
}

/// The key of an edge in the list of its type.
fn entry_key(edge: Edge, time: u64) -> Vec<u8> {
    let list = list_key(edge.id1, edge.edge_type);
    join([&list, &(!time).to_be_bytes(), &edge.id2.to_be_bytes()])
}

fn with_time(time: u64, value: &[u8]) -> Vec<u8> {
    join([&time.to_le_bytes(), value])
}

fn time_of(stored: Option<Vec<u8>>) -> anyhow::Result<Option<u64>> {
    let time = stored.map(|stored| take(&mut &stored[..]).map(u64::from_le_bytes));
    time.transpose()
}

impl TaoStore for Rocks {
    fn facts(&self) -> anyhow::Result<Facts> {
        Ok(Self::own_facts())
    }

    fn load(&self, loaded: &Loaded) -> anyhow::Result<()> {
        self.load_by(|loader| rows::load(loader, loaded))
    }

    fn client(&self) -> anyhow::Result<Box<dyn TaoOps>> {
        Ok(Box::new(self.client_of()?))
    }
}

impl Puts for Loader<'_> {
    fn put_object(&mut self, id: u64, time: u64, value: &[u8]) -> anyhow::Result<()> {
        self.put("object", &id.to_be_bytes(), &with_time(time, value))
    }

    fn put_edge(
        &mut self,
        edge: Edge,
        _before: Option<u64>,
        time: u64,
        value: &[u8],
    ) -> anyhow::Result<()> {
        self.put("edge", &edge_key(edge), &with_time(time, value))?;
        self.put("newest", &entry_key(edge, time), value)
    }
}

impl Puts for &Tx<'_> {
    fn put_object(&mut self, id: u64, time: u64, value: &[u8]) -> anyhow::Result<()> {
        self.put("object", &id.to_be_bytes(), &with_time(time, value))
    }

    fn put_edge(
        &mut self,
        edge: Edge,
        before: Option<u64>,
        time: u64,
        value: &[u8],
    ) -> anyhow::Result<()> {
        match before {
            Some(before) => self.delete("newest", &entry_key(edge, before))?,
            // The lock of an object is that of its edges: none appears while another transaction has it.
            None => _ = self.lock("object", &edge.id1.to_be_bytes())?,
        }
        self.put("edge", &edge_key(edge), &with_time(time, value))?;
        self.put("newest", &entry_key(edge, time), value)
    }
}

impl Rows for &Tx<'_> {
    fn object_time(&self, id: u64) -> anyhow::Result<Option<u64>> {
        time_of(self.lock("object", &id.to_be_bytes())?)
    }

    fn delete_object(&self, id: u64) -> anyhow::Result<()> {
        self.delete("object", &id.to_be_bytes())
    }

    fn edge_time(&self, edge: Edge) -> anyhow::Result<Option<u64>> {
        time_of(self.lock("edge", &edge_key(edge))?)
    }

    fn has_any(&self, id1: u64, edge_type: EdgeType) -> anyhow::Result<bool> {
        self.lock("object", &id1.to_be_bytes())?;
        let newest = self.client.family("newest");
        let mut entries = self.tx.raw_iterator_cf_opt(newest, within_prefix());
        entries.seek(list_key(id1, edge_type));
        entries.status()?;
        Ok(entries.valid())
    }

    fn delete_edge(&self, edge: Edge, before: u64) -> anyhow::Result<()> {
        self.delete("edge", &edge_key(edge))?;
        self.delete("newest", &entry_key(edge, before))
    }
}

impl Client {
    /// Reads the edges of an object of one type, the newest first. Calls `each` with at most `limit` of the values, and
    /// returns their number.
    fn newest(&self, edge: Edge, limit: u64, each: &mut dyn FnMut(&[u8])) -> anyhow::Result<u64> {
        let newest = self.family("newest");
        let mut entries = self.db.raw_iterator_cf_opt(newest, within_prefix());
        entries.seek(list_key(edge.id1, edge.edge_type));
        let mut found = 0;
        while found < limit
            && let Some(value) = entries.value()
        {
            each(value);
            found += 1;
            entries.next();
        }
        entries.status()?;
        Ok(found)
    }
}

impl TaoOps for Client {
    fn read(&mut self, reads: &[Read], each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        if let [read] = reads {
            let edge = read.known.edge;
            match read.kind {
                Kind::EdgeCount => {
                    let count = self.newest(edge, u64::MAX, &mut |_| ())?;
                    if count > 0 {
                        each(&count.to_le_bytes());
                    }
                    return Ok(());
                }
                Kind::EdgeRange | Kind::EdgeTime => {
                    self.newest(edge, RANGE_LIMIT, each)?;
                    return Ok(());
                }
                _ => {}
            }
        }
        // A call reads all keys at one moment. The transactions of the workloads read objects and single edges.
        let keys = reads.iter().map(|read| {
            let edge = read.known.edge;
            match read.kind {
                Kind::ObjRead => (self.family("object"), edge.id1.to_be_bytes().to_vec()),
                _ => (self.family("edge"), edge_key(edge)),
            }
        });
        for found in self.db.multi_get_cf(keys) {
            if let Some(found) = found? {
                let mut value = &found[..];
                take::<8>(&mut value)?;
                each(value);
            }
        }
        Ok(())
    }

    fn write(&mut self, writes: &[Write]) -> anyhow::Result<Option<Vec<Effect>>> {
        self.transact(|mut tx| rows::write_all(&mut tx, writes))
    }
}
