//! Reads of nodes and lists without a transaction: by one-sided reads, without the processor of the node's machine
//! (`FaRM'14 §4.4`).
//!
//! | operation | reads |
//! |---|---|
//! | a node | the node; or the object with its data, if the node does not contain it; both, if that object is not in the cache |
//! | the number of associations | the node |
//! | the newest associations | the first page of the list; the node before it, if the page is not in the cache |
//!
//! Each read is a consistent image of one object at one moment. An operation that needs more than these objects runs in
//! a transaction of its own ([`crate::solo`]).

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::object::{FatPointer, Image};
use farm_core::worker::{Cont, ReadError, ReadResult, Worker};
use farm_txn::{Abort, TxError};

use crate::GraphError;
use crate::heads::Part;
use crate::node::{Header, list_in, spill, spilled_node};
use crate::op::{Assocs, Count, Node, Op, Outcome, RangeOp};
use crate::page::Page;
use crate::pending::{AnyCont, AssocsCont, Goal, Reading, Step};
use crate::solo;
use crate::state::{Graph, graph};

/// Number of times that an operation begins again because an object that it had found was freed.
const MAX_RESTARTS: u32 = 1000;

impl Goal {
    fn op(self) -> Op<'static> {
        match self {
            Goal::Node => Op::GetNode,
            Goal::Count(assoc_type) => Op::Count { assoc_type },
            Goal::Range(range) => Op::Range(range),
        }
    }
}

/// What follows from the bytes that were read.
enum Next<'a> {
    End(Outcome<'a>),
    Read(Step),
    /// The operation needs a transaction.
    Solo,
}

/// Begins an operation.
pub(crate) fn begin(worker: &mut Worker, node: FatPointer, goal: Goal, cont: AnyCont) {
    let heads = &mut graph(worker).heads;
    let cached = match goal {
        Goal::Node => {
            let data = heads.get(node, Part::Data);
            data.map(|data| Step::Data(None, data))
        }
        Goal::Count(_) => None,
        Goal::Range(range) => {
            let head = heads.get(node, Part::List(range.assoc_type));
            head.map(Step::Head)
        }
    };
    begin_from(worker, node, goal, cached, cont);
}

/// Begins to read the same range of several lists. Looks up all lists in the cache before it begins the first read, so that
/// the processor loads the entries of the cache at the same time.
pub(crate) fn begin_ranges(
    worker: &mut Worker,
    range: RangeOp,
    lists: &[(FatPointer, AssocsCont)],
) {
    let state = graph(worker);
    let part = Part::List(range.assoc_type);
    let mut cached = std::mem::take(&mut state.cached_heads);
    cached.extend(lists.iter().map(|(node, _)| state.heads.get(*node, part)));
    for ((node, cont), head) in lists.iter().zip(cached.drain(..)) {
        let (goal, cont) = (Goal::Range(range), AnyCont::Assocs(*cont));
        begin_from(worker, *node, goal, head.map(Step::Head), cont);
    }
    graph(worker).cached_heads = cached;
}

/// Begins an operation whose first object is in the cache, or with the node.
fn begin_from(
    worker: &mut Worker,
    node: FatPointer,
    goal: Goal,
    cached: Option<Step>,
    cont: AnyCont,
) {
    let state = graph(worker);
    let reading = Reading {
        node,
        goal,
        step: cached.unwrap_or(Step::Node),
        restarts: 0,
        cached: cached.is_some(),
        cont,
    };
    state.read_counters.of(goal).operations += 1;
    let key = state.readings.insert(reading);
    post(worker, key, ());
}

/// Posts the next read of an operation.
fn post(worker: &mut Worker, key: usize, (): ()) {
    let reading = &graph(worker).readings[key];
    let (pointer, goal) = (reading.pointer(), reading.goal);
    match worker.read_pointer_lock_free(pointer, Cont::new(came, key)) {
        Ok(_) => graph(worker).read_counters.of(goal).reads += 1,
        Err(_) => worker.when_slot(pointer.class().object_bytes(), Cont::new(post, key)),
    }
}

impl Reading {
    /// Returns the object that the operation reads next.
    fn pointer(&self) -> FatPointer {
        match self.step {
            Step::Node => self.node,
            Step::Data(_, pointer) | Step::Head(pointer) => pointer,
        }
    }

    /// Returns whether the object is taken for that of the pointer without a check, by a deliberate bug.
    fn is_trusted(&self) -> bool {
        let bug = match self.step {
            Step::Data(..) => "incarnation of cached data of a node not checked",
            _ => "incarnation of a cached first page not checked",
        };
        self.cached && mutants::is_on(bug)
    }
}

fn came(worker: &mut Worker, key: usize, result: ReadResult) {
    let pointer = graph(worker).readings[key].pointer();
    let slot = match result {
        Ok(slot) => slot,
        Err(ReadError::Gone(_)) => return gone(worker, key),
        Err(error) => return end(worker, key, Err(read_error(error))),
    };
    let (state, arena) = worker.layer_and_arena::<Graph>();
    let words = &arena.words(&slot)[..pointer.class().object_bytes() / 8];
    let image = Image::check(words).expect("the worker checks the images that it returns");
    let incarnation = image.incarnation();
    let mut payload = std::mem::take(&mut state.payload);
    payload.resize(image.payload_len(), 0);
    image.copy_payload(0, &mut payload);
    arena.give(slot);
    if pointer.names(incarnation) || graph(worker).readings[key].is_trusted() {
        interpret(worker, key, &payload);
    } else if pointer.is_stale(incarnation) {
        gone(worker, key);
    } else {
        // The commit that makes the pointer valid is not installed yet.
        again(worker, key);
    }
    graph(worker).payload = payload;
}

/// Continues an operation with the payload that was read.
fn interpret(worker: &mut Worker, key: usize, payload: &[u8]) {
    let state = graph(worker);
    let reading = &mut state.readings[key];
    match reading.next(payload) {
        Ok(Next::Read(step)) => {
            match (reading.goal, step) {
                (Goal::Range(range), Step::Head(head)) => {
                    state.heads.counters.misses += 1;
                    let part = Part::List(range.assoc_type);
                    state.heads.put(reading.node, part, head);
                }
                (_, Step::Data(None, data)) => state.heads.put(reading.node, Part::Data, data),
                _ => {}
            }
            reading.step = step;
            post(worker, key, ());
        }
        Ok(Next::End(outcome)) => {
            if let Step::Head(_) = reading.step {
                state.heads.counters.hits += u64::from(reading.cached);
            }
            end(worker, key, Ok(outcome));
        }
        Ok(Next::Solo) => {
            mark("graph: read needs a transaction");
            let reading = state.readings.remove(key);
            state.read_counters.of(reading.goal).transactions += 1;
            let mut body = Vec::new();
            reading.goal.op().encode(&mut body);
            solo::begin_read(worker, reading.node, body, reading.cont);
        }
        Err(error) => end(worker, key, Err(error)),
    }
}

impl Reading {
    fn next<'a>(&self, payload: &'a [u8]) -> Result<Next<'a>, GraphError> {
        if let Step::Data(bare, _) = self.step {
            let node = match bare {
                Some(header) => {
                    let data = payload.get(..header.bytes());
                    let short = || GraphError::Damaged("a node's data is too short".to_owned());
                    Node::of(&header, data.ok_or_else(short)?)
                }
                None => {
                    let (id, data) = spilled_node(payload)?;
                    Node { id, data }
                }
            };
            return Ok(Next::End(Outcome::Node(Some(node))));
        }
        if let (Step::Head(_), Goal::Range(range)) = (self.step, self.goal) {
            let found = Assocs::of_first_page(Page::new(payload)?, &range)?;
            return Ok(found.map_or(Next::Solo, |found| Next::End(Outcome::Assocs(found))));
        }
        let header = Header::decode(payload)?;
        Ok(match self.goal {
            Goal::Node if !header.exists() && !mutants::is_on("deleted node still read") => {
                Next::End(Outcome::Node(None))
            }
            Goal::Node => match spill(payload, &header)? {
                Some(data) => Next::Read(Step::Data(header.is_bare().then_some(header), data)),
                None => {
                    let data = header.inline(payload)?;
                    Next::End(Outcome::Node(Some(Node::of(&header, data))))
                }
            },
            Goal::Count(_) | Goal::Range(_) if header.is_in_tree() => Next::Solo,
            Goal::Count(assoc_type) => {
                let list = list_in(payload, &header, assoc_type)?.unwrap_or_default();
                Next::End(Outcome::Count(Count::of(&list)))
            }
            Goal::Range(range) => {
                let list = list_in(payload, &header, range.assoc_type)?.unwrap_or_default();
                match list.head() {
                    Some(head) => Next::Read(Step::Head(head)),
                    None => Next::End(Outcome::Assocs(Assocs::EMPTY)),
                }
            }
        })
    }
}

/// Handles that the object was freed.
fn gone(worker: &mut Worker, key: usize) {
    let state = graph(worker);
    let reading = &mut state.readings[key];
    if let Step::Node = reading.step {
        let outcome = match reading.goal {
            Goal::Node => Outcome::Node(None),
            Goal::Count(_) => Outcome::Count(Count::default()),
            Goal::Range(_) => Outcome::Assocs(Assocs::EMPTY),
        };
        return end(worker, key, Ok(outcome));
    }
    match reading.cached {
        true => mark("graph: cached first page freed"),
        false => mark("graph: page or data freed during a read"),
    }
    if reading.cached {
        let part = match reading.goal {
            Goal::Range(range) => {
                state.heads.counters.stale += 1;
                Part::List(range.assoc_type)
            }
            _ => Part::Data,
        };
        state.heads.forget(reading.node, part);
    }
    (reading.step, reading.cached) = (Step::Node, false);
    again(worker, key);
}

/// Repeats a read, or begins again with the node.
fn again(worker: &mut Worker, key: usize) {
    let reading = &mut graph(worker).readings[key];
    reading.restarts += 1;
    match reading.restarts > MAX_RESTARTS {
        true => end(worker, key, Err(GraphError::Conflict)),
        false => post(worker, key, ()),
    }
}

fn end(worker: &mut Worker, key: usize, result: Result<Outcome<'_>, GraphError>) {
    let reading = graph(worker).readings.remove(key);
    reading.cont.resume(worker, result);
}

fn read_error(error: ReadError) -> GraphError {
    match error {
        ReadError::PeerLost(machine) => TxError::from(Abort::Lost(machine)).into(),
        ReadError::StaysLocked(address) => TxError::from(Abort::TimedOut(address)).into(),
        other => GraphError::Damaged(other.to_string()),
    }
}
