//! Calls of the graph store: requests as operations alone, in transactions, and in tasks.

use farm_core::ids::Address;
use farm_core::object::{FatPointer, Incarnation};
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::{self, Place};
use farm_graph::tasks::{self, OwnedAssoc, OwnedNode};
use farm_graph::tx::Deletion;
use farm_graph::{
    Assocs, AssocsCont, Count, GraphError, NewNode, Node, NodeCont, Put, ops, tx as in_tx,
};
use farm_txn::{Handle, Transaction, TxError, TxHandle};

use super::results::{self, step};
use super::several::{self, bounds, range};
use super::state::{Got, NOW, graph_work};
use super::values::{assoc_of, node_of};
use crate::history::graph::GraphRequest;
use crate::workload::state::work;

/// What a call needs besides its request.
pub(super) struct Targets {
    /// The node.
    node: FatPointer,
    /// The other node of a new association, or the node near which a new node is created.
    other: Option<FatPointer>,
    /// Maximum number of bytes of data of an association.
    most: usize,
    /// The nodes of several reads.
    each: Vec<FatPointer>,
}

/// Returns what the call of a request needs; `None` if the client does not know its node.
pub(super) fn targets(
    worker: &mut Worker,
    client: usize,
    request: &GraphRequest,
) -> Option<Targets> {
    let most = work(worker).spec.graph.assoc_bytes;
    let state = graph_work(worker);
    let added = state.pending[client].as_ref();
    let find = |id: u64| {
        let added = added.and_then(|pending| pending.pointers.iter().find(|one| one.0 == id));
        let known = added.map(|added| &added.1).or_else(|| state.nodes.get(&id));
        known.copied()
    };
    let nowhere = FatPointer::new(Address::NULL, Incarnation(0));
    let near = |number: u64| {
        let choices = state.nodes.len() + 1;
        state.nodes.values().nth(number as usize % choices).copied()
    };
    let mut each = Vec::new();
    let (node, other) = match *request {
        GraphRequest::Find(_) | GraphRequest::AddNode(0, _) | GraphRequest::ReserveNode(0, _) => {
            (nowhere, None)
        }
        GraphRequest::AddNode(_, value) => (nowhere, near(value)),
        GraphRequest::ReserveNode(id, node_type) => (nowhere, near(id + u64::from(node_type))),
        GraphRequest::Put(id, _, id2, new) => match new.target {
            true => (find(id)?, Some(find(id2)?)),
            false => (find(id)?, None),
        },
        GraphRequest::GetNode(id)
        | GraphRequest::SetNode(id, _)
        | GraphRequest::DeleteNode(id)
        | GraphRequest::RestoreNode(id, _)
        | GraphRequest::Hide(id, ..)
        | GraphRequest::Remove(id, ..)
        | GraphRequest::ChangeType(id, ..)
        | GraphRequest::Get(id, ..)
        | GraphRequest::Count(id, _)
        | GraphRequest::Range(id, ..) => (find(id)?, None),
        GraphRequest::All(ref reads) => {
            for read in reads {
                each.push(find(read.node()?)?);
            }
            (nowhere, None)
        }
    };
    Some(Targets {
        node,
        other,
        most,
        each,
    })
}

fn place(id: u64, near: Option<FatPointer>) -> Place {
    Place {
        id: (id != 0).then_some(id),
        near: near.map(|near| near.address),
    }
}

fn deletion(request: &GraphRequest) -> Deletion {
    match request {
        GraphRequest::Hide(..) => Deletion::Hide,
        _ => Deletion::Remove,
    }
}

/// Makes a request alone.
pub(super) fn alone(worker: &mut Worker, client: usize, request: &GraphRequest, targets: Targets) {
    let Targets {
        node, other, most, ..
    } = targets;
    match *request {
        GraphRequest::Find(id) => ids::find(worker, id, Cont::new(found, client)),
        GraphRequest::AddNode(id, value) => {
            let new = node_of(value);
            let cont = Cont::new(added, client);
            ops::obj_add(worker, place(id, other), new.properties(), cont);
        }
        GraphRequest::ReserveNode(id, node_type) => {
            ops::obj_reserve(
                worker,
                place(id, other),
                node_type,
                Cont::new(added, client),
            );
        }
        GraphRequest::GetNode(_) => ops::obj_get(worker, node, NodeCont::new(got_node, client)),
        GraphRequest::SetNode(..)
        | GraphRequest::DeleteNode(_)
        | GraphRequest::RestoreNode(..)
        | GraphRequest::Hide(..)
        | GraphRequest::Remove(..)
        | GraphRequest::ChangeType(..) => change_alone(worker, client, request, node),
        GraphRequest::Put(_, assoc_type, id2, new) => {
            let assoc = assoc_of(new, id2, other, most);
            let cont = Cont::new(put, client);
            ops::assoc_add(worker, node, assoc_type, assoc.as_assoc(), NOW, cont);
        }
        GraphRequest::Get(_, assoc_type, ref ids, times) => {
            let cont = AssocsCont::new(got_assocs, client);
            ops::assoc_get(worker, node, assoc_type, ids, bounds(times), cont);
        }
        GraphRequest::Count(_, assoc_type) => {
            ops::assoc_count(worker, node, assoc_type, Cont::new(counted, client));
        }
        GraphRequest::Range(_, assoc_type, times, offset, limit) => {
            let range = range(times, offset, limit);
            let cont = AssocsCont::new(got_assocs, client);
            ops::assoc_range(worker, node, assoc_type, range, cont);
        }
        GraphRequest::All(_) => unreachable!("several reads are a step of a transaction"),
    }
}

/// Makes alone a request that changes or deletes something if it exists.
fn change_alone(worker: &mut Worker, client: usize, request: &GraphRequest, node: FatPointer) {
    let cont = Cont::new(changed, client);
    match *request {
        GraphRequest::SetNode(_, value) => {
            let new = node_of(value);
            ops::obj_update(worker, node, new.properties(), cont);
        }
        GraphRequest::DeleteNode(_) => ops::obj_delete(worker, node, cont),
        GraphRequest::RestoreNode(_, value) => {
            let new = node_of(value);
            ops::obj_restore(worker, node, new.properties(), cont);
        }
        GraphRequest::Hide(_, assoc_type, id2) | GraphRequest::Remove(_, assoc_type, id2) => {
            let which = (assoc_type, id2);
            ops::assoc_delete(worker, node, which, deletion(request), NOW, cont);
        }
        GraphRequest::ChangeType(_, from, to, id2) => {
            ops::assoc_change_type(worker, node, (from, to), id2, NOW, cont);
        }
        ref other => unreachable!("{other:?} adds or reads something"),
    }
}

/// Makes a request in a transaction.
pub(super) fn in_transaction(
    worker: &mut Worker,
    tx: TxHandle,
    client: usize,
    request: &GraphRequest,
    targets: Targets,
) {
    let Targets {
        node,
        other,
        most,
        each,
    } = targets;
    match *request {
        GraphRequest::Find(id) => in_tx::obj_find(worker, tx, id, Cont::new(found, client)),
        GraphRequest::AddNode(id, value) => {
            let new = node_of(value);
            let cont = Cont::new(added, client);
            in_tx::obj_add(worker, tx, place(id, other), new.properties(), cont);
        }
        GraphRequest::ReserveNode(id, node_type) => {
            let cont = Cont::new(added, client);
            in_tx::obj_reserve(worker, tx, place(id, other), node_type, cont);
        }
        GraphRequest::GetNode(_) => {
            in_tx::obj_get(worker, tx, node, NodeCont::new(got_node, client))
        }
        GraphRequest::SetNode(..)
        | GraphRequest::DeleteNode(_)
        | GraphRequest::RestoreNode(..)
        | GraphRequest::Hide(..)
        | GraphRequest::Remove(..)
        | GraphRequest::ChangeType(..) => change_in_transaction(worker, tx, client, request, node),
        GraphRequest::Put(_, assoc_type, id2, new) => {
            let assoc = assoc_of(new, id2, other, most);
            let cont = Cont::new(put, client);
            in_tx::assoc_add(worker, tx, node, assoc_type, assoc.as_assoc(), NOW, cont);
        }
        GraphRequest::Get(_, assoc_type, ref ids, times) => {
            let cont = AssocsCont::new(got_assocs, client);
            in_tx::assoc_get(worker, tx, node, assoc_type, ids, bounds(times), cont);
        }
        GraphRequest::Count(_, assoc_type) => {
            in_tx::assoc_count(worker, tx, node, assoc_type, Cont::new(counted, client));
        }
        GraphRequest::Range(_, assoc_type, times, offset, limit) => {
            let range = range(times, offset, limit);
            let cont = AssocsCont::new(got_assocs, client);
            in_tx::assoc_range(worker, tx, node, assoc_type, range, cont);
        }
        GraphRequest::All(ref reads) => several::in_transaction(worker, tx, client, reads, &each),
    }
}

/// Makes in a transaction a request that changes or deletes something if it exists.
fn change_in_transaction(
    worker: &mut Worker,
    tx: TxHandle,
    client: usize,
    request: &GraphRequest,
    node: FatPointer,
) {
    let cont = Cont::new(changed, client);
    match *request {
        GraphRequest::SetNode(_, value) => {
            let new = node_of(value);
            in_tx::obj_update(worker, tx, node, new.properties(), cont);
        }
        GraphRequest::DeleteNode(_) => in_tx::obj_delete(worker, tx, node, cont),
        GraphRequest::RestoreNode(_, value) => {
            let new = node_of(value);
            in_tx::obj_restore(worker, tx, node, new.properties(), cont);
        }
        GraphRequest::Hide(_, assoc_type, id2) | GraphRequest::Remove(_, assoc_type, id2) => {
            let which = (assoc_type, id2);
            in_tx::assoc_delete(worker, tx, node, which, deletion(request), NOW, cont);
        }
        GraphRequest::ChangeType(_, from, to, id2) => {
            in_tx::assoc_change_type(worker, tx, node, (from, to), id2, NOW, cont);
        }
        ref other => unreachable!("{other:?} adds or reads something"),
    }
}

fn found(worker: &mut Worker, client: usize, result: Result<Option<FatPointer>, GraphError>) {
    let got = results::found(worker, client, result);
    step(worker, client, got);
}

fn added(worker: &mut Worker, client: usize, result: Result<NewNode, GraphError>) {
    let got = results::added(worker, client, result);
    step(worker, client, got);
}

fn got_node(worker: &mut Worker, client: usize, result: Result<Option<Node<'_>>, &GraphError>) {
    let result = result.map(|node| node.map(OwnedNode::from));
    let got = results::node(worker, client, result.map_err(Clone::clone));
    step(worker, client, got);
}

fn got_assocs(worker: &mut Worker, client: usize, result: Result<Assocs<'_>, &GraphError>) {
    let result = result.map(|found| found.iter().map(OwnedAssoc::from).collect());
    let got = results::assocs(worker, result.map_err(Clone::clone));
    step(worker, client, got);
}

fn changed(worker: &mut Worker, client: usize, result: Result<bool, GraphError>) {
    step(worker, client, results::changed(result));
}

fn put(worker: &mut Worker, client: usize, result: Result<Put, GraphError>) {
    step(worker, client, results::put(result));
}

fn counted(worker: &mut Worker, client: usize, result: Result<Count, GraphError>) {
    step(worker, client, results::count(result));
}

/// Makes a request in the transaction of a task.
pub(super) async fn in_task(
    farm: &Handle,
    tx: Transaction<'_>,
    client: usize,
    request: &GraphRequest,
    targets: Targets,
) -> Result<Got, TxError> {
    let Targets {
        node,
        other,
        most,
        each,
    } = targets;
    let got = match *request {
        GraphRequest::Find(id) => {
            let result = of_task(tasks::obj_find(tx, id).await)?;
            farm.with_worker(move |worker| results::found(worker, client, result))
                .await?
        }
        GraphRequest::AddNode(id, value) => {
            let new = node_of(value);
            let result = tasks::obj_add(tx, place(id, other), new.properties()).await;
            let result = of_task(result)?;
            farm.with_worker(move |worker| results::added(worker, client, result))
                .await?
        }
        GraphRequest::ReserveNode(id, node_type) => {
            let result = tasks::obj_reserve(tx, place(id, other), node_type).await;
            let result = of_task(result)?;
            farm.with_worker(move |worker| results::added(worker, client, result))
                .await?
        }
        GraphRequest::GetNode(_) => {
            let result = of_task(tasks::obj_get(tx, node).await)?;
            farm.with_worker(move |worker| results::node(worker, client, result))
                .await?
        }
        GraphRequest::SetNode(..)
        | GraphRequest::DeleteNode(_)
        | GraphRequest::RestoreNode(..)
        | GraphRequest::Hide(..)
        | GraphRequest::Remove(..)
        | GraphRequest::ChangeType(..) => {
            results::changed(of_task(change_in_task(tx, request, node).await)?)
        }
        GraphRequest::Put(_, assoc_type, id2, new) => {
            let assoc = assoc_of(new, id2, other, most);
            let put = tasks::assoc_add(tx, node, assoc_type, assoc.as_assoc(), NOW);
            results::put(of_task(put.await)?)
        }
        GraphRequest::Get(_, assoc_type, ref ids, times) => {
            let found = tasks::assoc_get(tx, node, assoc_type, ids, bounds(times)).await;
            let found = of_task(found)?;
            farm.with_worker(move |worker| results::assocs(worker, found))
                .await?
        }
        GraphRequest::Count(_, assoc_type) => {
            results::count(of_task(tasks::assoc_count(tx, node, assoc_type).await)?)
        }
        GraphRequest::Range(_, assoc_type, times, offset, limit) => {
            let range = range(times, offset, limit);
            let found = of_task(tasks::assoc_range(tx, node, assoc_type, range).await)?;
            farm.with_worker(move |worker| results::assocs(worker, found))
                .await?
        }
        GraphRequest::All(ref reads) => {
            let found = of_task(several::in_task(tx, reads, &each).await)?;
            farm.with_worker(move |worker| results::all(worker, client, found))
                .await?
        }
    };
    Ok(got)
}

/// Makes in the transaction of a task a request that changes or deletes something if it exists.
async fn change_in_task(
    tx: Transaction<'_>,
    request: &GraphRequest,
    node: FatPointer,
) -> Result<bool, TxError> {
    match *request {
        GraphRequest::SetNode(_, value) => {
            tasks::obj_update(tx, node, node_of(value).properties()).await
        }
        GraphRequest::DeleteNode(_) => tasks::obj_delete(tx, node).await,
        GraphRequest::RestoreNode(_, value) => {
            tasks::obj_restore(tx, node, node_of(value).properties()).await
        }
        GraphRequest::Hide(_, assoc_type, id2) | GraphRequest::Remove(_, assoc_type, id2) => {
            let which = (assoc_type, id2);
            tasks::assoc_delete(tx, node, which, deletion(request), NOW).await
        }
        GraphRequest::ChangeType(_, from, to, id2) => {
            tasks::assoc_change_type(tx, node, (from, to), id2, NOW).await
        }
        ref other => unreachable!("{other:?} adds or reads something"),
    }
}

/// Returns the result of an operation in a task; an error if the worker has stopped.
fn of_task<T>(result: Result<T, TxError>) -> Result<Result<T, GraphError>, TxError> {
    match result {
        Err(TxError::Ended) => Err(TxError::Ended),
        result => Ok(result.map_err(GraphError::from)),
    }
}
