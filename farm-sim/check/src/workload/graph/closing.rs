//! The end of the workload: when the clients of all workers have ended, each worker reads a part of the final state by
//! the same operations as its clients.

use farm_core::ids::WorkerRef;
use farm_core::messaging::{CallError, ReplyCont, Request};
use farm_core::worker::{Cont, Worker};
use farm_graph::MAX_TIME;

use super::running::begin;
use super::state::{Closing, GraphWork, Via, graph_work};
use crate::history::graph::GraphRequest;
use crate::workload::clients::{ASK_AGAIN, end_all, give_up};
use crate::workload::message::{ASK_FINISHED, FINISHED, WHERE};
use crate::workload::state::{id, place, work, workers};
use crate::workload::{is_done, is_started};

/// Continues the closing of the workload when the last client of this worker has ended, or its last reads. Returns false if
/// nothing is left to do.
pub(in crate::workload) fn close(worker: &mut Worker) -> bool {
    let closing = graph_work(worker).closing;
    graph_work(worker).closing = match closing {
        Closing::Open => {
            ask_all(worker);
            Closing::Finds
        }
        Closing::Finds => {
            let reads = last_reads(worker);
            make(worker, reads);
            Closing::Reads
        }
        Closing::Reads => return false,
    };
    true
}

fn ask_all(worker: &mut Worker) {
    let me = worker.me();
    for machine in 0..worker.machines().len() {
        let at = worker.machines()[machine].0;
        let all = (0..workers(worker, machine)).map(|index| WorkerRef::new(at, id(index)));
        let others: Vec<_> = all.filter(|other| *other != me).collect();
        graph_work(worker).to_ask.extend(others);
    }
    worker.defer(Cont::new(ask, ()));
}

/// Lets the first client make requests, each alone.
fn make(worker: &mut Worker, requests: Vec<GraphRequest>) {
    let work = work(worker);
    (work.clients_left, work.clients[0].left) = (1, requests.len() as u64);
    graph_work(worker).last_reads = requests.into();
    worker.defer(Cont::new(next, ()));
}

fn next(worker: &mut Worker, (): (), (): ()) {
    if let Some(next) = work(worker).next {
        next(worker, 0);
    }
}

/// Begins the next of the last requests. Returns false if there is none.
pub(super) fn begin_last(worker: &mut Worker, client: usize) -> bool {
    let Some(request) = graph_work(worker).last_reads.pop_front() else {
        return false;
    };
    begin(worker, client, Via::Alone, vec![request]);
    true
}

/// Returns this worker's part of the reads of the final state.
fn last_reads(worker: &mut Worker) -> Vec<GraphRequest> {
    let mine = place(worker);
    let total: usize = worker.machines().iter().map(|machine| machine.1).sum();
    let shape = work(worker).spec.graph;
    let nodes: Vec<u64> = graph_work(worker).nodes.keys().copied().collect();
    let all = (0, MAX_TIME);
    let mut ids: Vec<u64> = (1..=shape.ids).collect();
    ids.extend(nodes.iter().filter(|id| **id > shape.ids));
    let mut reads = Vec::new();
    for (at, node) in nodes.into_iter().enumerate() {
        if at % total == mine {
            reads.push(GraphRequest::GetNode(node));
        }
        for assoc_type in 1..=shape.assoc_types {
            let at = at + assoc_type as usize;
            if at % total == mine {
                reads.push(GraphRequest::Range(node, assoc_type, all, 0, 1 << 20));
                reads.push(GraphRequest::Get(node, assoc_type, ids.clone(), all));
            }
            if (at + 1) % total == mine {
                reads.push(GraphRequest::Count(node, assoc_type));
            }
        }
    }
    reads
}

/// Asks the next worker whether its clients have ended.
fn ask(worker: &mut Worker, (): (), (): ()) {
    let Some(to) = graph_work(worker).to_ask.last().copied() else {
        let shape = work(worker).spec.graph;
        let spares = shape.nodes + 1..=shape.nodes + shape.spare_nodes;
        return make(worker, spares.map(GraphRequest::Find).collect());
    };
    let cont = ReplyCont::new(answered, 0);
    match worker.call(to, WHERE, &[&ASK_FINISHED], 1, cont) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, ())),
        Err(error @ CallError::PeerLost(_)) => answered(worker, 0, Err(error)),
        Err(error) => give_up(
            worker,
            format!("cannot ask worker {to} whether its clients have ended: {error}"),
        ),
    }
}

fn answered(worker: &mut Worker, _: usize, reply: Result<&[u8], CallError>) {
    match reply {
        Ok([]) => worker.set_timer(ASK_AGAIN, Cont::new(ask, ())),
        Ok(reply) if reply == FINISHED => {
            graph_work(worker).to_ask.pop();
            ask(worker, (), ());
        }
        // Its clients have ended, or continue when it is started again.
        Err(CallError::PeerLost(machine))
            if worker.survives() || !worker.store().placement().contains(machine) =>
        {
            graph_work(worker).to_ask.pop();
            ask(worker, (), ());
        }
        _ => end_all(worker),
    }
}

/// Replies whether the clients of this worker have ended.
pub(in crate::workload) fn answer(worker: &mut Worker, request: Request) {
    let state = worker.layer::<GraphWork>();
    let closes = state.is_some_and(|state| state.closing != Closing::Open);
    // It may have come back, and have met another loss before its clients began.
    let finished = closes || is_started(worker) && is_done(worker);
    let reply = if finished { FINISHED } else { &[] };
    worker.reply(request, &[reply]);
}
