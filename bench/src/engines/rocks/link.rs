//! LinkBench on RocksDB.

use std::ops::Range as Ids;

use anyhow::Context;
use farm_graph::tx::Range;
use farm_graph::{Assoc, NodeData};

use super::{Client, Rocks, Tx, join, take, within_prefix};
use crate::engines::{Facts, LinkOps, LinkStore, List};
use crate::linkbench::loaded::{LinksOf, NODE_TYPE, Nodes, link_type};

fn list_key((id1, link_type): List) -> Vec<u8> {
    join([&id1.to_be_bytes(), &link_type.to_be_bytes()])
}

fn link_key(list: List, id2: u64) -> Vec<u8> {
    join([&list_key(list), &id2.to_be_bytes()])
}

/// The key of a visible link in its list.
fn entry_key(list: List, time: u64, id2: u64) -> Vec<u8> {
    join([&list_key(list), &(!time).to_be_bytes(), &id2.to_be_bytes()])
}

fn entry_value(link: &Assoc<'_>) -> Vec<u8> {
    join([&link.version.to_le_bytes(), link.data])
}

fn encode_link(link: &Assoc<'_>) -> Vec<u8> {
    let visible = [u8::from(link.visible)];
    join([
        &visible,
        &link.version.to_le_bytes(),
        &link.time.to_le_bytes(),
        link.data,
    ])
}

fn decode_link(id2: u64, mut bytes: &[u8]) -> anyhow::Result<Assoc<'_>> {
    let [visible] = take(&mut bytes)?;
    Ok(Assoc {
        id2,
        visible: visible == 1,
        version: u32::from_le_bytes(take(&mut bytes)?),
        time: u64::from_le_bytes(take(&mut bytes)?),
        target: None,
        data: bytes,
    })
}

fn encode_node(node: &NodeData<'_>) -> Vec<u8> {
    let numbers = [u64::from(node.node_type), node.version, node.time].map(u64::to_le_bytes);
    join([numbers.as_flattened(), node.data])
}

fn decode_node(mut bytes: &[u8]) -> anyhow::Result<NodeData<'_>> {
    let mut next = || Ok::<_, anyhow::Error>(u64::from_le_bytes(take(&mut bytes)?));
    let (node_type, version, time) = (next()? as u32, next()?, next()?);
    Ok(NodeData {
        node_type,
        version,
        time,
        data: bytes,
    })
}

/// The number of links, the time of its last change, and the number of its changes.
fn encode_count(count: u64, time: u64, version: u64) -> Vec<u8> {
    [count, time, version].map(u64::to_le_bytes).concat()
}

impl LinkStore for Rocks {
    fn facts(&self) -> anyhow::Result<Facts> {
        Ok(Self::own_facts())
    }

    fn load(&self, nodes: &mut Nodes, links: &mut LinksOf, ids: Ids<u64>) -> anyhow::Result<()> {
        self.load_by(|loader| {
            for id in ids {
                loader.put("node", &id.to_be_bytes(), &encode_node(&nodes.get(id)))?;
            }
            let mut counted: Option<(List, u64)> = None;
            while let Some(next) = links.next_link() {
                let link = links.get(&next);
                let list = (next.id1, link_type(next.link_type));
                loader.put("link", &link_key(list, link.id2), &encode_link(&link))?;
                let key = entry_key(list, link.time, link.id2);
                loader.put("list", &key, &entry_value(&link))?;
                match &mut counted {
                    Some((last, count)) if *last == list => *count += 1,
                    _ => {
                        if let Some((last, count)) = counted.replace((list, 1)) {
                            loader.put("count", &list_key(last), &encode_count(count, 0, 0))?;
                        }
                    }
                }
            }
            match counted {
                Some((last, count)) => {
                    loader.put("count", &list_key(last), &encode_count(count, 0, 0))
                }
                None => Ok(()),
            }
        })
    }

    fn client(&self) -> anyhow::Result<Box<dyn LinkOps>> {
        Ok(Box::new(self.client_of()?))
    }
}

impl Tx<'_> {
    /// Adds to the number of visible links of a list. The lock of this number is that of the whole list.
    fn count(&self, list: List, more: i64, now: u64) -> anyhow::Result<()> {
        let key = list_key(list);
        let before = self.lock("count", &key)?;
        let (mut count, mut version) = (0, 0);
        if let Some(mut before) = before.as_deref() {
            count = u64::from_le_bytes(take(&mut before)?);
            version = u64::from_le_bytes(take::<16>(&mut before)?[8..].try_into()?);
        }
        let count = count.saturating_add_signed(more);
        self.put("count", &key, &encode_count(count, now, version + 1))
    }

    /// Locks a link and returns it.
    fn link(&self, list: List, id2: u64) -> anyhow::Result<Option<Vec<u8>>> {
        self.lock("link", &link_key(list, id2))
    }

    /// Puts a visible link in the place of `before`.
    fn put_link(
        &self,
        list: List,
        link: &Assoc<'_>,
        before: Option<&[u8]>,
        now: u64,
    ) -> anyhow::Result<()> {
        let before = before
            .map(|before| decode_link(link.id2, before))
            .transpose()?;
        match before.filter(|before| before.visible) {
            Some(before) => self.delete("list", &entry_key(list, before.time, link.id2))?,
            None => self.count(list, 1, now)?,
        }
        self.put("link", &link_key(list, link.id2), &encode_link(link))?;
        self.put(
            "list",
            &entry_key(list, link.time, link.id2),
            &entry_value(link),
        )
    }

    /// Takes a visible link out of its list.
    fn unlist(&self, list: List, link: &Assoc<'_>, now: u64) -> anyhow::Result<()> {
        self.delete("list", &entry_key(list, link.time, link.id2))?;
        self.count(list, -1, now)
    }
}

impl LinkOps for Client {
    fn add_link(&mut self, list: List, link: &Assoc<'_>, now: u64) -> anyhow::Result<()> {
        self.transact(|tx| {
            let before = tx.link(list, link.id2)?;
            tx.put_link(list, link, before.as_deref(), now).map(Some)
        })?;
        Ok(())
    }

    fn delete_link(&mut self, list: List, id2: u64, now: u64) -> anyhow::Result<bool> {
        let hidden = self.transact(|tx| {
            let Some(stored) = tx.link(list, id2)? else {
                return Ok(None);
            };
            let mut link = decode_link(id2, &stored)?;
            if !link.visible {
                return Ok(None);
            }
            tx.unlist(list, &link, now)?;
            link.visible = false;
            tx.put("link", &link_key(list, id2), &encode_link(&link))
                .map(Some)
        })?;
        Ok(hidden.is_some())
    }

    fn change_type(&mut self, list: List, to: u32, id2: u64, now: u64) -> anyhow::Result<bool> {
        let moved = self.transact(|tx| {
            let Some(stored) = tx.link(list, id2)? else {
                return Ok(None);
            };
            let link = decode_link(id2, &stored)?;
            if !link.visible {
                return Ok(None);
            }
            tx.unlist(list, &link, now)?;
            tx.delete("link", &link_key(list, id2))?;
            let to = (list.0, to);
            let before = tx.link(to, id2)?;
            tx.put_link(to, &link, before.as_deref(), now).map(Some)
        })?;
        Ok(moved.is_some())
    }

    fn count_links(&mut self, list: List) -> anyhow::Result<u64> {
        let found = self
            .db
            .get_pinned_cf(self.family("count"), list_key(list))?;
        found.map_or(Ok(0), |found| {
            Ok(u64::from_le_bytes(take(&mut &found[..])?))
        })
    }

    fn multiget(
        &mut self,
        list: List,
        ids: &[u64],
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()> {
        let family = self.family("link");
        let keys = ids.iter().map(|id2| (family, link_key(list, *id2)));
        // A call reads all keys at one moment.
        let found = self.db.multi_get_cf(keys);
        for (id2, found) in ids.iter().zip(found) {
            if let Some(found) = found? {
                each(decode_link(*id2, &found)?);
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        list: List,
        range: &Range,
        each: &mut dyn FnMut(Assoc<'_>),
    ) -> anyhow::Result<()> {
        let family = self.family("list");
        let mut entries = self.db.raw_iterator_cf_opt(family, within_prefix());
        entries.seek(entry_key(list, range.bounds.max, 0));
        let (mut skip, mut left) = (range.offset, range.limit);
        while left > 0
            && let Some((key, mut value)) = entries.item()
        {
            let mut rest = key.get(12..).context("a key of a list is too short")?;
            let time = !u64::from_be_bytes(take(&mut rest)?);
            if time < range.bounds.min {
                break;
            }
            if skip > 0 {
                skip -= 1;
            } else {
                left -= 1;
                each(Assoc {
                    id2: u64::from_be_bytes(take(&mut rest)?),
                    time,
                    version: u32::from_le_bytes(take(&mut value)?),
                    visible: true,
                    target: None,
                    data: value,
                });
            }
            entries.next();
        }
        Ok(entries.status()?)
    }

    fn add_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<()> {
        self.transact(|tx| {
            tx.put("node", &id.to_be_bytes(), &encode_node(node))
                .map(Some)
        })?;
        Ok(())
    }

    fn update_node(&mut self, id: u64, node: &NodeData<'_>) -> anyhow::Result<bool> {
        let key = id.to_be_bytes();
        let changed = self.transact(|tx| match tx.lock("node", &key)? {
            Some(_) => tx.put("node", &key, &encode_node(node)).map(Some),
            None => Ok(None),
        })?;
        Ok(changed.is_some())
    }

    fn delete_node(&mut self, id: u64) -> anyhow::Result<bool> {
        let key = id.to_be_bytes();
        let deleted = self.transact(|tx| match tx.lock("node", &key)? {
            Some(_) => tx.delete("node", &key).map(Some),
            None => Ok(None),
        })?;
        Ok(deleted.is_some())
    }

    fn get_node(&mut self, id: u64, each: &mut dyn FnMut(NodeData<'_>)) -> anyhow::Result<bool> {
        let found = self
            .db
            .get_pinned_cf(self.family("node"), id.to_be_bytes())?;
        let Some(found) = found else {
            return Ok(false);
        };
        let node = decode_node(&found)?;
        let is_wanted = node.node_type == NODE_TYPE;
        if is_wanted {
            each(node);
        }
        Ok(is_wanted)
    }
}
