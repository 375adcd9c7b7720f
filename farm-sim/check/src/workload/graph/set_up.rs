//! The beginning of the workload: each worker opens the graph, adds its part of the nodes, and finds all of them.

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::{self, Place};
use farm_graph::{GraphError, NewNode, ops};

use super::running::stepped;
use super::state::{Failure, GraphWork, graph_work, refusal};
use super::values::node_of;
use crate::history::graph::{GraphOperation, GraphRequest, GraphResult};
use crate::workload::clients::{ASK_AGAIN, begin_all, end_all, give_up};
use crate::workload::state::{first_client, moment, place, work};

/// Opens the graph, adds and finds the nodes, and then begins the clients.
pub(in crate::workload) fn set_up(worker: &mut Worker) {
    let mine = place(worker);
    let total: usize = worker.machines().iter().map(|machine| machine.1).sum();
    let spec = work(worker).spec.clone();
    let mut state = GraphWork::new(stepped, spec.clients);
    let ids = 1..=spec.graph.nodes;
    if work(worker).starts == 0 {
        let mine = |id: &u64| *id as usize % total == mine;
        state.to_add = ids.clone().filter(mine).collect();
    }
    state.to_find = ids.collect();
    worker.put_layer(Box::new(state));
    farm_graph::open(worker, spec.graph(), Cont::new(opened, ()));
}

fn opened(worker: &mut Worker, (): (), result: Result<(), GraphError>) {
    match result {
        Ok(()) => {
            graph_work(worker).is_open = true;
            add(worker, (), ());
        }
        // The table of ids is not opened again.
        Err(error) => match refusal(error) {
            Err(Failure::Lost | Failure::Leaving) => end_all(worker),
            other => give_up(worker, format!("cannot open the graph: {other:?}")),
        },
    }
}

/// Handles an error: calls `again` later, or ends the clients.
fn fail(
    worker: &mut Worker,
    error: GraphError,
    again: impl Fn(&mut Worker, (), ()) + Copy + Send + 'static,
) {
    match refusal(error) {
        Err(Failure::Conflict) => worker.set_timer(ASK_AGAIN, Cont::new(again, ())),
        Err(Failure::Lost) if worker.survives() => {
            worker.set_timer(ASK_AGAIN, Cont::new(again, ()))
        }
        Err(Failure::Lost | Failure::InDoubt | Failure::Leaving) => end_all(worker),
        other => give_up(worker, format!("cannot set up the graph: {other:?}")),
    }
}

/// Adds the next node of this worker.
fn add(worker: &mut Worker, (): (), (): ()) {
    let now = moment(worker);
    let state = graph_work(worker);
    state.begun = now;
    let Some(id) = state.to_add.last().copied() else {
        return find(worker, (), ());
    };
    let place = Place {
        id: Some(id),
        near: None,
    };
    let new = node_of(id);
    ops::obj_add(worker, place, new.properties(), Cont::new(added, id));
}

fn added(worker: &mut Worker, id: u64, result: Result<NewNode, GraphError>) {
    let client = first_client(worker) as u32;
    let now = moment(worker);
    let ended = match &result {
        Ok(_) => Some(now),
        Err(GraphError::Tx(farm_txn::TxError::InDoubt(_))) => None,
        Err(error) => return fail(worker, error.clone(), add),
    };
    let begun = graph_work(worker).begun;
    work(worker).log.end_graph(GraphOperation {
        client,
        begun,
        ended,
        steps: vec![(
            GraphRequest::AddNode(id, id),
            ended.map(|_| GraphResult::Added),
        )],
    });
    match result {
        Ok(_) => {
            graph_work(worker).to_add.pop();
            add(worker, (), ());
        }
        Err(error) => fail(worker, error, add),
    }
}

/// Finds the next node.
fn find(worker: &mut Worker, (): (), (): ()) {
    let Some(id) = graph_work(worker).to_find.last().copied() else {
        return begin_all(worker);
    };
    ids::find(worker, id, Cont::new(found, id));
}

fn found(worker: &mut Worker, id: u64, result: Result<Option<FatPointer>, GraphError>) {
    match result {
        // Another worker has not added it yet.
        Ok(None) => worker.set_timer(ASK_AGAIN, Cont::new(find, ())),
        Ok(Some(node)) => {
            let state = graph_work(worker);
            state.to_find.pop();
            state.nodes.insert(id, node);
            find(worker, (), ());
        }
        Err(error) => fail(worker, error, find),
    }
}
