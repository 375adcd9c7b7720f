//! Orders to open the graph store, executed by a driven node.

use std::sync::mpsc::Sender;

use farm_bench::graph::names::{self, IdOf};
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::{GraphError, GraphSpec};

use super::{Driven, send_news};
use crate::cluster::protocol::News;

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

    /// Looks up the names of nodes. `part` returns for each worker the number of ids that it looks up, and a function that
    /// returns them. The names are in the order of the workers and of their ids.
    pub(super) fn find_names(
        &self,
        part: impl Fn(usize) -> (usize, IdOf),
    ) -> anyhow::Result<Vec<FatPointer>> {
        type Found = (usize, anyhow::Result<Vec<FatPointer>>);
        let mut found: Vec<Found> = self.on_all(
            |worker, machine, answer: Sender<Found>| {
                let (part, in_flight) = (part(worker), self.in_flight());
                let done = Box::new(move |found| drop(answer.send((worker, found))));
                machine.submit(worker, move |worker| {
                    names::find(worker, part, in_flight, done)
                })
            },
            || {},
        )?;
        found.sort_by_key(|(worker, _)| *worker);
        let found = found.into_iter().map(|(_, found)| found);
        let found: anyhow::Result<Vec<Vec<FatPointer>>> = found.collect();
        Ok(found?.concat())
    }

    /// Sends the launcher the bytes of the objects on this machine.
    pub(super) fn send_object_bytes(&self) -> anyhow::Result<()> {
        let bytes = self.object_bytes()?;
        send_news(&News::ObjectBytes { bytes });
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
