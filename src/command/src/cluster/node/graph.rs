//! Orders to open the graph store, executed by a driven node.

use std::sync::mpsc::Sender;

use farm_core::worker::{Cont, Worker};
use farm_graph::{GraphError, GraphSpec};

use super::Driven;

impl Driven<'_> {
    /// Opens the graph on every worker.
    pub(super) fn open_graph(&self, spec: &GraphSpec) -> anyhow::Result<()> {
        type Opened = Result<(), GraphError>;
        fn opened(worker: &mut Worker, (): (), opened: Opened) {
            let answer = worker.take_layer::<Sender<Opened>>();
            // Fails if the node no longer waits, because the machine is stopping.
            let _ = answer.send(opened);
        }
        let opens = self.on_all(
            |worker, machine, answer: Sender<Opened>| {
                let spec = spec.clone();
                machine.submit(worker, move |worker| {
                    worker.put_layer(Box::new(answer));
                    farm_graph::open(worker, spec, Cont::new(opened, ()));
                })
            },
            || {},
        )?;
        opens.into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }

    /// Returns the bytes of the objects on this machine.
    pub(super) fn object_bytes(&self) -> anyhow::Result<u64> {
        let bytes = self.on_all(
            |worker, machine, answer: Sender<u64>| {
                machine.submit(worker, move |worker| {
                    _ = answer.send(farm_bench::graph::object_bytes(worker));
                })
            },
            || {},
        )?;
        Ok(bytes.into_iter().sum())
    }
}
