//! Opens the graph on a worker.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use farm_core::machine::Machine;
use farm_core::worker::{Cont, Worker};
use farm_kv::{KvError, TableId};

use crate::GraphError;
use crate::ship;
use crate::state::{Graph, GraphSpec, ID_VALUE_BYTES};

/// Sizes of pages that a graph can have.
const PAGE_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=256 << 10;

/// An opening in progress.
struct Opening {
    spec: GraphSpec,
    cont: Cont<Result<(), GraphError>>,
}

/// Attaches the graph store to a worker, on top of [`farm_txn::attach`] and [`farm_kv::attach`].
pub fn attach(worker: &mut Worker) {
    worker.register(ship::OPERATION, ship::handle);
}

/// Opens the graph of the cluster on a worker to which it is [attached](attach). Every worker of
/// the cluster must open it, with the same specification. The continuation is called from the event loop, when this
/// worker can use the graph. A cluster has one graph.
///
/// The continuation receives [`GraphError::Spec`], or the error of the table of ids.
pub fn open(worker: &mut Worker, spec: GraphSpec, cont: Cont<Result<(), GraphError>>) {
    let ids = spec.ids;
    let possible = check(&spec);
    worker.put_layer(Box::new(Opening { spec, cont }));
    match possible {
        Ok(()) => farm_kv::open(worker, ids, Cont::new(opened, ())),
        Err(_) => worker.defer(Cont::new(refuse, ())),
    }
}

fn check(spec: &GraphSpec) -> Result<(), GraphError> {
    if !PAGE_BYTES.contains(&spec.page_bytes) {
        let (page, least, most) = (spec.page_bytes, PAGE_BYTES.start(), PAGE_BYTES.end());
        return Err(GraphError::Spec(format!(
            "page_bytes is {page}, but pages have between {least} and {most} bytes"
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

fn refuse(worker: &mut Worker, (): (), (): ()) {
    let Opening { spec, cont } = *worker.take_layer::<Opening>();
    cont.resume(worker, check(&spec));
}

fn opened(worker: &mut Worker, (): (), ids: Result<TableId, KvError>) {
    let Opening { spec, cont } = *worker.take_layer::<Opening>();
    let opened = ids.map_err(GraphError::from).map(|ids| {
        let schema = Arc::new(spec.schema.clone());
        worker.put_layer(Box::new(Graph::new(schema, &spec, ids)));
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
    struct Waiting(Sender<Result<(), GraphError>>);
    fn tell(worker: &mut Worker, (): (), result: Result<(), GraphError>) {
        // The thread that waited has returned if another worker has failed.
        let _ = worker.take_layer::<Waiting>().0.send(result);
    }
    let stopped = |error: farm_core::machine::MachineError| GraphError::Refused(error.to_string());
    let mut answers = Vec::new();
    for machine in machines {
        for index in 0..machine.workers() {
            let (send, answer) = channel();
            let spec = spec.clone();
            machine
                .submit(index, move |worker| {
                    worker.put_layer(Box::new(Waiting(send)));
                    open(worker, spec, Cont::new(tell, ()));
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
