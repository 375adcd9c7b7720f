//! A graph as plain maps: the effect that each operation must have.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::history::graph::{GraphRequest, GraphResult, NewAssoc, SeenAssoc, assoc_kind};

/// The associations of one type of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct List {
    /// By the id of the other node.
    assocs: BTreeMap<u64, Stored>,
    /// Number of changes of the number of visible associations.
    changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Stored {
    new: NewAssoc,
    visible: bool,
}

/// The contents of a graph. Copies share their lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// The value of each node that was added or reserved; `None` if the node does not exist.
    nodes: BTreeMap<u64, Option<u64>>,
    /// By node and type.
    lists: BTreeMap<(u64, u32), Rc<List>>,
    /// XOR of the hashes of all parts.
    hash: u64,
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Model {}

impl PartialOrd for Model {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Model {
    fn cmp(&self, other: &Self) -> Ordering {
        // Different models mostly have different hashes.
        let hashes = self.hash.cmp(&other.hash);
        let nodes = hashes.then_with(|| self.nodes.cmp(&other.nodes));
        nodes.then_with(|| self.lists.cmp(&other.lists))
    }
}

/// A hash function, the same in every process.
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

fn hash_of(part: impl Hash) -> u64 {
    let mut hasher = Mixer(0x1234_5678_9ABC_DEF1);
    part.hash(&mut hasher);
    hasher.finish()
}

/// Why an operation is refused. It has changed nothing.
type Refused = GraphResult;

impl Model {
    /// Makes an operation, and returns its result.
    pub(super) fn make(&mut self, request: &GraphRequest) -> GraphResult {
        match self.try_make(request) {
            Ok(result) | Err(result) => result,
        }
    }

    fn try_make(&mut self, request: &GraphRequest) -> Result<GraphResult, Refused> {
        Ok(match *request {
            GraphRequest::Find(id) => GraphResult::Found(self.nodes.contains_key(&id)),
            GraphRequest::AddNode(id, value) => self.add(id, Some(value))?,
            GraphRequest::ReserveNode(id, _) => self.add(id, None)?,
            GraphRequest::GetNode(id) => GraphResult::Node(self.nodes.get(&id).copied().flatten()),
            GraphRequest::SetNode(id, value) => self.replace(id, true, Some(value)),
            GraphRequest::DeleteNode(id) => self.replace(id, true, None),
            GraphRequest::RestoreNode(id, value) => self.replace(id, false, Some(value)),
            GraphRequest::Put(id, assoc_type, id2, new) => {
                let checked = !assoc_kind(assoc_type).dangling;
                self.put((id, assoc_type, id2), new, checked)?
            }
            GraphRequest::Hide(id, assoc_type, id2) => self.delete((id, assoc_type, id2), false),
            GraphRequest::Remove(id, assoc_type, id2) => self.delete((id, assoc_type, id2), true),
            GraphRequest::ChangeType(id, from, to, id2) => self.change_type(id, (from, to), id2)?,
            GraphRequest::Get(id, assoc_type, ref ids, bounds) => {
                let found = ids.iter().filter_map(|id2| {
                    let stored = self.stored((id, assoc_type, *id2))?;
                    within(bounds, stored.new.time).then(|| stored.seen(*id2))
                });
                GraphResult::Assocs(found.collect())
            }
            GraphRequest::Count(id, assoc_type) => {
                let list = self.lists.get(&(id, assoc_type));
                let count = |list: &Rc<List>| (list.visible().count() as u64, list.changes);
                let (count, changes) = list.map_or((0, 0), count);
                GraphResult::Count(count, changes)
            }
            GraphRequest::Range(id, assoc_type, bounds, offset, limit) => {
                let list = self.lists.get(&(id, assoc_type));
                let visible = list.into_iter().flat_map(|list| list.visible());
                let mut found: Vec<SeenAssoc> =
                    visible.filter(|it| within(bounds, it.time)).collect();
                found.sort_by_key(|it| (Reverse(it.time), it.id2));
                let page = found.into_iter().skip(offset as usize);
                GraphResult::Assocs(page.take(limit as usize).collect())
            }
            GraphRequest::All(ref reads) => {
                GraphResult::All(reads.iter().map(|read| self.make(read)).collect())
            }
        })
    }

    /// Adds a node.
    fn add(&mut self, id: u64, value: Option<u64>) -> Result<GraphResult, Refused> {
        if self.nodes.contains_key(&id) {
            return Err(GraphResult::IdTaken);
        }
        self.set_node(id, value);
        Ok(GraphResult::Added)
    }

    /// Sets the value of a node if it was added, and exists or not as expected.
    fn replace(&mut self, id: u64, should_exist: bool, value: Option<u64>) -> GraphResult {
        let changes = self
            .nodes
            .get(&id)
            .is_some_and(|old| old.is_some() == should_exist);
        if changes {
            self.set_node(id, value);
        }
        GraphResult::Changed(changes)
    }

    fn exists(&self, id: u64) -> bool {
        self.nodes.get(&id).is_some_and(Option::is_some)
    }

    fn set_node(&mut self, id: u64, value: Option<u64>) {
        if let Some(old) = self.nodes.insert(id, value) {
            self.hash ^= hash_of((id, old));
        }
        self.hash ^= hash_of((id, value));
    }

    fn stored(&self, (id, assoc_type, id2): Place) -> Option<Stored> {
        self.lists.get(&(id, assoc_type))?.assocs.get(&id2).copied()
    }

    /// Stores an association, or removes it.
    fn set(&mut self, (id, assoc_type, id2): Place, new: Option<Stored>) {
        let list = self.lists.entry((id, assoc_type)).or_default();
        let list = Rc::make_mut(list);
        let old = match new {
            Some(new) => list.assocs.insert(id2, new),
            None => list.assocs.remove(&id2),
        };
        let [was, is] = [old, new].map(|one| one.is_some_and(|one| one.visible));
        for stored in [old, new].into_iter().flatten() {
            self.hash ^= hash_of((id, assoc_type, id2, stored));
        }
        if was != is {
            self.hash ^= hash_of((id, assoc_type, list.changes));
            list.changes += 1;
            self.hash ^= hash_of((id, assoc_type, list.changes));
        }
    }

    /// Adds or replaces an association and its inverse. `checked`: whether the nodes must exist.
    fn put(&mut self, place: Place, new: NewAssoc, checked: bool) -> Result<GraphResult, Refused> {
        let inverse = inverse_of(place);
        // The inverse of an association may be the association itself.
        for place in inverse.into_iter().chain([place]) {
            self.check_put(place, checked)?;
        }
        let stored = Stored { new, visible: true };
        let old = self.stored(place);
        if let Some(inverse) = inverse.filter(|inverse| *inverse != place) {
            self.set(inverse, Some(stored));
        }
        self.set(place, Some(stored));
        Ok(match old {
            None => GraphResult::PutNew,
            Some(old) if old.visible => GraphResult::PutUpdated,
            Some(_) => GraphResult::PutShown,
        })
    }

    fn check_put(&self, (id, assoc_type, id2): Place, checked: bool) -> Result<(), Refused> {
        if checked && !self.exists(id) {
            return Err(GraphResult::NoNode);
        }
        let list = self.lists.get(&(id, assoc_type));
        let has_other = list.is_some_and(|list| list.visible().any(|it| it.id2 != id2));
        match assoc_kind(assoc_type).unique && has_other {
            true => Err(GraphResult::NotUnique),
            false => Ok(()),
        }
    }

    fn delete(&mut self, place: Place, removes: bool) -> GraphResult {
        let Some(stored) = self.stored(place) else {
            return GraphResult::Changed(false);
        };
        let hidden = Stored {
            visible: false,
            ..stored
        };
        let new = (!removes).then_some(hidden);
        if let Some(inverse) = inverse_of(place).filter(|inverse| *inverse != place) {
            self.set(inverse, new);
        }
        self.set(place, new);
        GraphResult::Changed(removes || stored.visible)
    }

    fn change_type(
        &mut self,
        id: u64,
        (from, to): (u32, u32),
        id2: u64,
    ) -> Result<GraphResult, Refused> {
        let Some(stored) = self.stored((id, from, id2)).filter(|it| it.visible) else {
            return Ok(GraphResult::Changed(false));
        };
        let before = self.clone();
        self.delete((id, from, id2), true);
        if let Err(refused) = self.put((id, to, id2), stored.new, false) {
            *self = before;
            return Err(refused);
        }
        Ok(GraphResult::Changed(true))
    }
}

/// A node, a type, and the id of the other node.
type Place = (u64, u32, u64);

/// Returns the place of the inverse association.
pub(super) fn inverse_of((id, assoc_type, id2): Place) -> Option<Place> {
    let inverse = assoc_kind(assoc_type).inverse?;
    Some((id2, inverse, id))
}

fn within((min, max): (u64, u64), time: u64) -> bool {
    (min..=max).contains(&time)
}

impl List {
    fn visible(&self) -> impl Iterator<Item = SeenAssoc> {
        let visible = self.assocs.iter().filter(|(_, stored)| stored.visible);
        visible.map(|(id2, stored)| stored.seen(*id2))
    }
}

impl Stored {
    fn seen(&self, id2: u64) -> SeenAssoc {
        let NewAssoc {
            time,
            value,
            target,
        } = self.new;
        SeenAssoc {
            id2,
            time,
            value,
            visible: self.visible,
            target,
        }
    }
}
