//! Opens the graph on a worker.

use std::sync::mpsc::{Sender, channel};

use farm_core::machine::Machine;
use farm_core::worker::{Cont, Worker};
use farm_kv::{KvError, TableId};
use slab::Slab;

use crate::GraphError;
use crate::config::{MAX_CACHED_HEADS, PAGE_BYTES};
use crate::ids::first_count;
use crate::ship;
use crate::state::{Graph, GraphSpec, ID_VALUE_BYTES};

/// An opening in progress.
struct Opening {
    spec: GraphSpec,
    cont: Cont<Result<(), GraphError>>,
}

/// All openings in progress on a worker.
struct Openings(Slab<Opening>);

/// The threads that wait until a worker has opened the graph.
struct Waiting(Slab<Sender<Result<(), GraphError>>>);

/// Attaches the graph store to a worker, on top of [`farm_txn::attach`] and [`farm_kv::attach`].
pub fn attach(worker: &mut Worker) {
    worker.put_layer(Box::new(Openings(Slab::new())));
    worker.put_layer(Box::new(Waiting(Slab::new())));
    worker.register(ship::OPERATION, ship::handle);
}

/// Opens the graph of the cluster on a worker to which it is [attached](attach). Every worker of the cluster must open it,
/// with the same specification. The continuation is called from the event loop, when this worker can use the graph. A
/// cluster has one graph: if it is open already, it is not opened again.
///
/// The continuation receives [`GraphError::Spec`] if no such graph is possible, or if the graph is open with another
/// specification; or the error of the table of ids.
///
/// # Panics
/// If the graph store is not attached to the worker.
pub fn open(worker: &mut Worker, spec: GraphSpec, cont: Cont<Result<(), GraphError>>) {
    let (ids, possible) = (spec.ids, check(&spec).is_ok());
    let openings = worker.layer::<Openings>();
    let openings = openings.expect("attach the graph store to the worker before you open it");
    let key = openings.0.insert(Opening { spec, cont });
    match possible {
        true => farm_kv::open(worker, ids, Cont::new(opened, key)),
        false => worker.defer(Cont::new(refuse, key)),
    }
}

fn check(spec: &GraphSpec) -> Result<(), GraphError> {
    if !PAGE_BYTES.contains(&(spec.page_bytes as u64)) {
        let (page, least, most) = (spec.page_bytes, PAGE_BYTES.start(), PAGE_BYTES.end());
        return Err(GraphError::Spec(format!(
            "page_bytes is {page}, but pages have between {least} and {most} bytes"
        )));
    }
    if spec.cached_heads as u64 > MAX_CACHED_HEADS {
        return Err(GraphError::Spec(format!(
            "cached_heads is {}, but a worker caches at most {MAX_CACHED_HEADS} lists",
            spec.cached_heads
        )));
    }
    if spec.ids.value_bytes != ID_VALUE_BYTES {
        return Err(GraphError::Spec(format!(
            "the table of ids has values of {} bytes, but the pointer of a node has {ID_VALUE_BYTES}",
            spec.ids.value_bytes
        )));
    }
    Ok(())
}

fn take(worker: &mut Worker, key: usize) -> Opening {
    let openings = worker.layer::<Openings>();
    openings.expect("`open` has found the layer").0.remove(key)
}

fn refuse(worker: &mut Worker, key: usize, (): ()) {
    let Opening { spec, cont } = take(worker, key);
    cont.resume(worker, check(&spec));
}

fn opened(worker: &mut Worker, key: usize, ids: Result<TableId, KvError>) {
    let Opening { spec, cont } = take(worker, key);
    let opened = ids
        .map_err(GraphError::from)
        .and_then(|ids| match worker.layer::<Graph>() {
            None => {
                let first = first_count(worker);
                worker.put_layer(Box::new(Graph::new(spec, ids, first)));
                Ok(())
            }
            Some(open) if open.spec == spec => Ok(()),
            Some(_) => {
                let why = "the graph is open on this worker with another specification".to_owned();
                Err(GraphError::Spec(why))
            }
        });
    cont.resume(worker, opened);
}

/// Opens the graph on every worker of `machines`, which run in this process, and waits for it.
///
/// # Errors
/// The first error of a worker. [`GraphError::Refused`] if a machine stops.
pub fn open_all<'a>(
    machines: impl IntoIterator<Item = &'a Machine>,
    spec: &GraphSpec,
) -> Result<(), GraphError> {
    fn waiting(worker: &mut Worker) -> &mut Waiting {
        let waiting = worker.layer::<Waiting>();
        waiting.expect("attach the graph store to the worker before you open it")
    }
    fn report(worker: &mut Worker, key: usize, result: Result<(), GraphError>) {
        // The thread that waited has returned if another worker has failed.
        let _ = waiting(worker).0.remove(key).send(result);
    }
    let stopped = |error: farm_core::machine::MachineError| GraphError::Refused(error.to_string());
    let mut answers = Vec::new();
    for machine in machines {
        for index in 0..machine.workers() {
            let (send, answer) = channel();
            let spec = spec.clone();
            machine
                .submit(index, move |worker| {
                    let key = waiting(worker).0.insert(send);
                    open(worker, spec, Cont::new(report, key));
                })
                .map_err(stopped)?;
            answers.push((machine, answer));
        }
    }
    for (machine, answer) in answers {
        machine.wait_for(&answer).map_err(stopped)??;
    }
    Ok(())
}
