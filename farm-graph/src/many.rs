//! Makes several reads in a transaction at the same time: they wait for other machines together, and not one after the
//! other.
//!
//! Each read is an operation as any other ([`crate::make`]). All reads are attempted with the objects that the
//! transaction has; then the objects that they lack are read together, until every read has succeeded. A list is read
//! from its first page alone, if the page is in the worker's cache and is sufficient: while it has the incarnation that
//! the cache names, it is the first page of the list.

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_txn::{ObjectId, Tx, TxError, TxHandle, api};

use crate::GraphError;
use crate::assoc::Assoc;
use crate::batch::{Encoded, Item, Many, Results, ResultsCont};
use crate::bytes::number;
use crate::complete::{Incomplete, complete};
use crate::edit::{Edit, EditError, Missing, Work};
use crate::heads::Part;
use crate::node;
use crate::op::{Assocs, Op};
use crate::page::Page;
use crate::schema::Schema;
use crate::state::graph;
use crate::tree::Limits;
use crate::wire::Reply;

/// Begins several reads.
pub(crate) fn begin(worker: &mut Worker, tx: TxHandle, mut reads: Encoded, cont: ResultsCont) {
    let state = graph(worker);
    let mut failed = None;
    for item in &mut reads.items {
        if let Some(unknown) = item.assoc_type.and_then(|it| state.schema.assoc(it).err()) {
            failed.get_or_insert(unknown);
        }
        item.reply = state.replies.pop().unwrap_or_default();
        item.head = item
            .list
            .and_then(|list| state.heads.get(item.node, Part::List(list)));
    }
    let many = Many {
        tx,
        reads,
        work: Work::default(),
        fetching: 0,
        failed,
        cont,
    };
    let key = state.many.insert(Some(Box::new(many)));
    worker.defer(Cont::new(run, key));
}

/// Attempts the reads that have not succeeded, and reads the objects that they lack.
fn run(worker: &mut Worker, key: usize, (): ()) {
    let mut many = std::mem::take(&mut graph(worker).many[key]);
    let Some(own) = many.as_deref_mut() else {
        unreachable!("only one attempt runs at a time");
    };
    let tx = own.tx;
    let missing = match own.failed.take() {
        Some(error) => Err(error),
        None => api::with(worker, tx, |tx, worker| attempt(worker, tx, own))
            .unwrap_or_else(|error| Err(error.into())),
    };
    if let Ok(missing) = &missing {
        own.fetching = missing.len();
    }
    graph(worker).many[key] = many;
    match missing {
        Ok(missing) if !missing.is_empty() => {
            mark("graph: several reads wait for objects together");
            for (item, pointer) in missing {
                let cont = Cont::new(fetched, (key as u64) << 32 | item as u64);
                api::read_pointer(worker, tx, pointer, cont);
            }
        }
        Ok(_) => end(worker, key, Ok(())),
        Err(error) => end(worker, key, Err(error)),
    }
}

fn end(worker: &mut Worker, key: usize, result: Result<(), GraphError>) {
    let many = graph(worker).many.remove(key);
    let many = many.expect("no attempt runs");
    match &result {
        Ok(()) => many.cont.resume(worker, Ok(Results::of(&many.reads.items))),
        Err(error) => many.cont.resume(worker, Err(error)),
    }
    let replies = many.reads.items.into_iter().map(|item| item.reply);
    graph(worker).replies.extend(replies);
}

fn fetched(worker: &mut Worker, at: u64, result: Result<ObjectId, TxError>) {
    let (key, item) = ((at >> 32) as usize, at as u32 as usize);
    let many = graph(worker).many[key].as_deref_mut();
    let many = many.expect("no attempt runs while objects are read");
    many.fetching -= 1;
    match result {
        Ok(_) => {}
        // The cached page was freed. It was the only object that the read asked for.
        Err(TxError::NotAllocated(_)) if many.reads.items[item].head.is_some() => {
            mark("graph: cached page of one of several reads freed");
            many.reads.items[item].head = None;
        }
        Err(error) => _ = many.failed.get_or_insert(error.into()),
    }
    if many.fetching == 0 {
        run(worker, key, ());
    }
}

/// Attempts the reads that have not succeeded. Returns the objects that they lack, with the numbers of the reads.
fn attempt(
    worker: &mut Worker,
    tx: &mut Tx,
    many: &mut Many,
) -> Result<Vec<(usize, FatPointer)>, GraphError> {
    let state = graph(worker);
    let types = (state.schema.clone(), state.limits);
    let mut missing = Vec::new();
    let Encoded { items, bodies } = &mut many.reads;
    for (number, item) in items.iter_mut().enumerate() {
        if item.done {
            continue;
        }
        let op = Op::decode(&bodies[item.body.clone()]);
        let op = op.expect("the operation was encoded by this worker");
        let types = (&*types.0, types.1);
        match attempt_one(worker, tx, &mut many.work, item, (&op, types)) {
            Ok(()) => item.done = true,
            Err(Incomplete {
                missing: Some(Missing::Objects(pointers)),
                ..
            }) => missing.extend(pointers.into_iter().map(|pointer| (number, pointer))),
            Err(Incomplete { error, .. }) => return Err(error),
        }
    }
    Ok(missing)
}

/// Attempts a read: first with the first page of its list, if that is known.
fn attempt_one(
    worker: &mut Worker,
    tx: &mut Tx,
    work: &mut Work,
    item: &mut Item,
    (op, types): (&Op<'_>, (&Schema, Limits)),
) -> Result<(), Incomplete> {
    let (node, reply) = (item.node, &mut item.reply);
    if let Some(head) = item.head {
        let found = complete(worker, tx, work, node.address, |edit| {
            from_head(edit, head, op, reply)
        });
        match found {
            Ok(true) => {
                if mutants::is_on("cached page of several reads not validated")
                    && let Some(page) = tx.find(head.address)
                {
                    // The deliberate bug in `farm_txn` does not validate such an object.
                    tx.forget_payload(page);
                }
                return Ok(());
            }
            Err(incomplete) if incomplete.missing.is_some() => return Err(incomplete),
            // The page is not sufficient, or was freed on this machine.
            Ok(false) | Err(_) => item.head = None,
        }
    }
    let head = complete(worker, tx, work, node.address, |edit| {
        op.make(edit, types, node, reply)?;
        match item.list {
            Some(list) => Ok(node::list(edit, node, list)?.head()),
            None => Ok(None),
        }
    })?;
    if let (Some(list), Some(head)) = (item.list, head)
        && (!is_written(tx, node) || mutants::is_on("first page of an open transaction cached"))
    {
        graph(worker).heads.put(node, Part::List(list), head);
    }
    Ok(())
}

/// Returns whether the transaction has changed a node. Then the first pages of its lists must not be cached: if the
/// transaction aborts, they are not the first pages, and the next object in the memory of a new page has the incarnation
/// that the page would have had.
fn is_written(tx: &Tx, node: FatPointer) -> bool {
    tx.find(node.address)
        .is_some_and(|object| tx.is_written(object))
}

/// Makes a read of a list with its first page alone. Returns whether the page is sufficient.
fn from_head(
    edit: &Edit<'_>,
    head: FatPointer,
    op: &Op<'_>,
    reply: &mut Reply,
) -> Result<bool, EditError> {
    let page = Page::new(edit.read(head)?)?;
    reply.begin_assocs();
    match *op {
        Op::Range(range) => {
            let Some(found) = Assocs::of_first_page(page, &range)? else {
                return Ok(false);
            };
            found.iter().for_each(|assoc| reply.assoc(&assoc));
        }
        Op::Get { bounds, ids, .. } => {
            let whole = mutants::is_on("several reads take a first page for the whole list");
            for id2 in ids.chunks_exact(8) {
                match find(page, number(id2, 0, 8))? {
                    Some(assoc) if bounds.contains(assoc.time) => reply.assoc(&assoc),
                    None if page.has_more() && !whole => return Ok(false),
                    _ => {}
                }
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the association with an id in a page of a list.
fn find(page: Page<'_>, id2: u64) -> Result<Option<Assoc<'_>>, GraphError> {
    for record in page.records() {
        let assoc = Assoc::decode(&record?)?;
        if assoc.id2 == id2 {
            return Ok(Some(assoc));
        }
    }
    Ok(None)
}
