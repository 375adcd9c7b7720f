//! The encoding of operations and of their results. Numbers are little-endian.

use farm_core::object::FatPointer;

use crate::GraphError;
use crate::assoc::{Assoc, MAX_TIME};
use crate::bytes::{POINTER_BYTES, number, pointer, pointer_bytes};
use crate::list::{Put, TimeBounds};
use crate::node::NodeData;
use crate::op::{Assocs, ChangeOp, Count, NewNode, Node, Op, Outcome, PutOp, RangeOp};
use crate::page::{self, Page};

/// Bytes of a message before the operation: the node, and the maximum length of the reply.
pub(crate) const MESSAGE_HEADER_BYTES: usize = POINTER_BYTES + 4;

// The first byte of an operation.
const GET_NODE: u8 = 1;
const SET_NODE: u8 = 2;
const DELETE_NODE: u8 = 3;
const PUT: u8 = 4;
const HIDE: u8 = 5;
const REMOVE: u8 = 6;
const CHANGE_TYPE: u8 = 7;
const GET: u8 = 8;
const COUNT: u8 = 9;
const RANGE: u8 = 10;
const ADD_NODE: u8 = 11;
const RESERVE_NODE: u8 = 12;
const RESTORE_NODE: u8 = 13;

// The first byte of a result.
const NODE: u8 = 1;
const NO_NODE: u8 = 2;
const WAS_PUT: u8 = 3;
const CHANGED: u8 = 4;
const COUNTED: u8 = 5;
const ASSOCS: u8 = 6;
const REFUSED: u8 = 7;
const ADDED: u8 = 8;

// The second byte of a refusal.
const ABSENT: u8 = 1;
const NOT_UNIQUE: u8 = 2;
const OTHER: u8 = 3;
const CONFLICT: u8 = 4;

/// The bytes of a message that are not decoded yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(number(self.take(bytes)?, 0, bytes))
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn word(&mut self) -> Option<u64> {
        self.number(8)
    }

    fn assoc_type(&mut self) -> Option<u32> {
        Some(self.number(4)? as u32)
    }

    fn bounds(&mut self) -> Option<TimeBounds> {
        let [min, max] = [self.word()?, self.word()?];
        (max <= MAX_TIME).then_some(TimeBounds { min, max })
    }

    /// Returns all bytes that are left.
    fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn node(&mut self) -> Option<NodeData<'a>> {
        Some(NodeData {
            node_type: self.assoc_type()?,
            version: self.word()?,
            time: self.word()?,
            data: self.all(),
        })
    }
}

fn put_node(node: &NodeData<'_>, to: &mut Vec<u8>) {
    to.extend_from_slice(&node.node_type.to_le_bytes());
    to.extend_from_slice(&node.version.to_le_bytes());
    to.extend_from_slice(&node.time.to_le_bytes());
    to.extend_from_slice(node.data);
}

impl<'a> Op<'a> {
    /// Appends the encoded operation.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        let words = |to: &mut Vec<u8>, code: u8, assoc_type: u32, words: &[u64]| {
            to.push(code);
            to.extend_from_slice(&assoc_type.to_le_bytes());
            to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        match *self {
            Op::GetNode => to.push(GET_NODE),
            Op::AddNode { id, lists, new } => {
                to.push(if new.is_some() {
                    ADD_NODE
                } else {
                    RESERVE_NODE
                });
                to.extend_from_slice(&id.to_le_bytes());
                to.push(lists);
                if let Some(new) = new {
                    put_node(&new, to);
                }
            }
            Op::SetNode(new) => {
                to.push(SET_NODE);
                put_node(&new, to);
            }
            Op::RestoreNode(new) => {
                to.push(RESTORE_NODE);
                put_node(&new, to);
            }
            Op::DeleteNode => to.push(DELETE_NODE),
            Op::Put(put) => {
                words(to, PUT, put.assoc_type, &[put.now]);
                to.push(u8::from(put.unique) | u8::from(put.dangling) << 1);
                let key = put.assoc.key();
                to.extend([key.0, key.1].iter().flat_map(|word| word.to_le_bytes()));
                put.assoc.encode(to);
            }
            Op::Delete {
                assoc_type,
                id2,
                now,
                removes,
            } => {
                let code = if removes { REMOVE } else { HIDE };
                words(to, code, assoc_type, &[id2, now]);
            }
            Op::ChangeType(ChangeOp {
                from,
                to: new,
                id2,
                now,
                unique,
            }) => words(
                to,
                CHANGE_TYPE,
                from,
                &[new.into(), id2, now, unique.into()],
            ),
            Op::Get {
                assoc_type,
                bounds,
                ids,
            } => {
                words(to, GET, assoc_type, &[bounds.min, bounds.max]);
                to.extend_from_slice(ids);
            }
            Op::Count { assoc_type } => words(to, COUNT, assoc_type, &[]),
            Op::Range(RangeOp {
                assoc_type,
                bounds,
                offset,
                limit,
            }) => {
                let all = [bounds.min, bounds.max, offset, limit];
                words(to, RANGE, assoc_type, &all);
            }
        }
    }

    /// Decodes an operation, which may come from another machine. Returns `None` if the bytes are not one.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let op = match rest.byte()? {
            GET_NODE => Op::GetNode,
            code @ (ADD_NODE | RESERVE_NODE) => Op::AddNode {
                id: rest.word()?,
                lists: rest.byte()?,
                new: match code {
                    ADD_NODE => Some(rest.node()?),
                    _ => None,
                },
            },
            SET_NODE => Op::SetNode(rest.node()?),
            RESTORE_NODE => Op::RestoreNode(rest.node()?),
            DELETE_NODE => Op::DeleteNode,
            PUT => Op::Put(rest.put()?),
            code @ (HIDE | REMOVE) => Op::Delete {
                assoc_type: rest.assoc_type()?,
                id2: rest.word()?,
                now: rest.word()?,
                removes: code == REMOVE,
            },
            CHANGE_TYPE => Op::ChangeType(ChangeOp {
                from: rest.assoc_type()?,
                to: u32::try_from(rest.word()?).ok()?,
                id2: rest.word()?,
                now: rest.word()?,
                unique: Some(rest.word()?).filter(|flag| *flag < 2)? != 0,
            }),
            GET => Op::Get {
                assoc_type: rest.assoc_type()?,
                bounds: rest.bounds()?,
                ids: Some(rest.all()).filter(|ids| ids.len().is_multiple_of(8))?,
            },
            COUNT => Op::Count {
                assoc_type: rest.assoc_type()?,
            },
            RANGE => Op::Range(RangeOp {
                assoc_type: rest.assoc_type()?,
                bounds: rest.bounds()?,
                offset: rest.word()?,
                limit: rest.word()?,
            }),
            _ => return None,
        };
        rest.0.is_empty().then_some(op)
    }
}

impl<'a> Rest<'a> {
    fn put(&mut self) -> Option<PutOp<'a>> {
        let (assoc_type, now, flags) = (self.assoc_type()?, self.word()?, self.byte()?);
        let key = (self.word()?, self.word()?);
        let body = self.all();
        let assoc = Assoc::decode(&page::Record { at: 0, key, body }).ok()?;
        (flags < 4).then_some(PutOp {
            assoc_type,
            assoc,
            now,
            unique: flags & 1 != 0,
            dangling: flags & 2 != 0,
        })
    }
}

/// Returns the maximum length of the reply to a message.
pub(crate) fn most_reply(body: &[u8]) -> usize {
    number(body, POINTER_BYTES, 4) as usize
}

/// Returns the node of a message.
pub(crate) fn node_of(body: &[u8]) -> Option<FatPointer> {
    pointer(body.get(..POINTER_BYTES)?).ok()
}

/// Returns the operation of a message.
pub(crate) fn op_of(body: &[u8]) -> Option<Op<'_>> {
    Op::decode(body.get(MESSAGE_HEADER_BYTES..)?)
}

/// The result of an operation, encoded. Reused.
#[derive(Debug, Default)]
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    fn begin(&mut self, code: u8) {
        self.0.clear();
        self.0.push(code);
    }

    pub(crate) fn node(&mut self, node: Option<&Node<'_>>) {
        let Some(node) = node else {
            return self.begin(NO_NODE);
        };
        self.begin(NODE);
        self.0.extend_from_slice(&node.id.to_le_bytes());
        put_node(&node.data, &mut self.0);
    }

    pub(crate) fn added(&mut self, new: &NewNode) {
        self.begin(ADDED);
        self.0.extend_from_slice(&new.id.to_le_bytes());
        self.0.extend_from_slice(&pointer_bytes(new.node));
    }

    pub(crate) fn put(&mut self, put: Put) {
        self.begin(WAS_PUT);
        self.0.push(put as u8);
    }

    pub(crate) fn changed(&mut self, changed: bool) {
        self.begin(CHANGED);
        self.0.push(changed.into());
    }

    pub(crate) fn count(&mut self, count: &Count) {
        self.begin(COUNTED);
        self.0.extend_from_slice(&count.count.to_le_bytes());
        self.0.extend_from_slice(&count.time.to_le_bytes());
        self.0.extend_from_slice(&count.version.to_le_bytes());
    }

    /// Begins an empty list of associations.
    pub(crate) fn begin_assocs(&mut self) {
        self.begin(ASSOCS);
        self.0.extend_from_slice(&[0; page::HEADER_BYTES]);
    }

    /// Appends an association to the list.
    pub(crate) fn assoc(&mut self, assoc: &Assoc<'_>) {
        page::push(&mut self.0, 1, assoc.key(), |body| assoc.encode(body));
    }

    /// Stores why the operation was refused.
    pub(crate) fn refused(&mut self, error: &GraphError) {
        self.begin(REFUSED);
        match error {
            GraphError::NoNode => self.0.push(ABSENT),
            GraphError::NotUnique(assoc_type) => {
                self.0.push(NOT_UNIQUE);
                self.0.extend_from_slice(&assoc_type.to_le_bytes());
            }
            GraphError::Conflict => self.0.push(CONFLICT),
            other => {
                self.0.push(OTHER);
                self.0.extend_from_slice(other.to_string().as_bytes());
            }
        }
    }

    /// Stores that the requester must make the operation itself.
    pub(crate) fn leave_to_requester(&mut self) {
        self.0.clear();
    }

    /// Returns the encoded result; empty if the requester must make the operation itself.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> Outcome<'a> {
    /// Decodes a result, which may come from another machine.
    ///
    /// # Errors
    /// Why the operation was refused; [`GraphError::Damaged`] if the bytes are not a result.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, GraphError> {
        let mut rest = Rest(bytes);
        let outcome = match rest.byte() {
            Some(NODE) => rest.word().zip(rest.node()).map(|(id, data)| {
                let node = Node { id, data };
                Outcome::Node(Some(node))
            }),
            Some(NO_NODE) => Some(Outcome::Node(None)),
            Some(ADDED) => rest.added().map(Outcome::Added),
            Some(WAS_PUT) => rest.byte().and_then(|code| {
                let all = [Put::Added, Put::Shown, Put::Updated];
                all.into_iter()
                    .find(|put| *put as u8 == code)
                    .map(Outcome::Put)
            }),
            Some(CHANGED) => rest.byte().map(|changed| Outcome::Changed(changed != 0)),
            Some(COUNTED) => rest.count().map(Outcome::Count),
            Some(ASSOCS) => rest.assocs().map(Outcome::Assocs),
            Some(REFUSED) => return Err(rest.refusal().unwrap_or_else(damaged)),
            _ => None,
        };
        outcome.filter(|_| rest.0.is_empty()).ok_or_else(damaged)
    }
}

impl<'a> Rest<'a> {
    fn added(&mut self) -> Option<NewNode> {
        Some(NewNode {
            id: self.word()?,
            node: pointer(self.take(POINTER_BYTES)?).ok()?,
        })
    }

    fn count(&mut self) -> Option<Count> {
        Some(Count {
            count: self.number(4)? as u32,
            time: self.word()?,
            version: self.word()?,
        })
    }

    fn assocs(&mut self) -> Option<Assocs<'a>> {
        let page = Page::new(self.all()).ok()?;
        Assocs::of_page(page).ok()
    }

    fn refusal(&mut self) -> Option<GraphError> {
        Some(match self.byte()? {
            ABSENT => GraphError::NoNode,
            NOT_UNIQUE => GraphError::NotUnique(self.assoc_type()?),
            CONFLICT => GraphError::Conflict,
            OTHER => {
                let text = std::str::from_utf8(self.all()).ok()?;
                GraphError::Refused(text.to_owned())
            }
            _ => return None,
        })
    }
}

#[cold]
fn damaged() -> GraphError {
    GraphError::Damaged("the result of an operation is not valid".to_owned())
}

#[cfg(test)]
mod tests;
