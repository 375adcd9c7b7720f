//! Ids without gaps for new nodes, as the reference's databases give them: a node of the graph counts them, so that all
//! machines give the next number in the same transaction that adds a node.

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::Place;
use farm_graph::{AddedCont, GraphError, NewNode, Node, NodeCont, NodeData, ops, tx};
use farm_txn::{TxError, TxHandle, retry};
use slab::Slab;

use super::load::NODE_TYPE;

/// Id of the node that counts.
pub const SEQUENCE_ID: u64 = (1 << 63) - 1;

/// The addition of a node.
struct Adding {
    sequence: FatPointer,
    tx: Option<TxHandle>,
    time: u64,
    /// Id that the node gets in this attempt.
    id: u64,
    data: Vec<u8>,
    new: Option<NewNode>,
    cont: AddedCont,
}

/// The additions in progress on a worker.
#[derive(Default)]
struct Addings(Slab<Adding>);

fn addings(worker: &mut Worker) -> &mut Slab<Adding> {
    if worker.layer::<Addings>().is_none() {
        worker.put_layer(Box::<Addings>::default());
    }
    let addings = worker.layer::<Addings>();
    &mut addings.expect("the layer is attached above").0
}

/// Adds the node that counts, whose next id is `next`.
pub fn create(worker: &mut Worker, next: u64, cont: AddedCont) {
    let place = Place {
        id: Some(SEQUENCE_ID),
        near: None,
    };
    ops::obj_add(worker, place, counter(next), cont);
}

fn counter(next: u64) -> NodeData<'static> {
    NodeData {
        node_type: NODE_TYPE,
        version: next,
        time: 0,
        data: &[],
    }
}

/// Adds a node, whose id is the next one of the node `sequence`.
pub fn add_node(worker: &mut Worker, sequence: FatPointer, new: NodeData<'_>, cont: AddedCont) {
    let key = addings(worker).insert(Adding {
        sequence,
        tx: None,
        time: new.time,
        id: 0,
        data: new.data.to_vec(),
        new: None,
        cont,
    });
    retry::run(worker, Cont::new(attempt, key), Cont::new(done, key));
}

fn attempt(worker: &mut Worker, key: usize, handle: TxHandle) {
    let adding = &mut addings(worker)[key];
    adding.tx = Some(handle);
    let sequence = adding.sequence;
    tx::obj_get(worker, handle, sequence, NodeCont::new(read, key));
}

/// Ends an attempt with an error.
fn fail(worker: &mut Worker, key: usize, error: GraphError) {
    if let Some(handle) = addings(worker)[key].tx {
        retry::fail(worker, handle, error.into());
    }
}

fn read(worker: &mut Worker, key: usize, node: Result<Option<Node<'_>>, &GraphError>) {
    let next = match node {
        Ok(Some(node)) => node.data.version,
        Ok(None) => return fail(worker, key, GraphError::NoNode),
        Err(error) => return fail(worker, key, error.clone()),
    };
    let adding = &mut addings(worker)[key];
    adding.id = next;
    if let (Some(handle), sequence) = (adding.tx, adding.sequence) {
        let counted = Cont::new(counted, key);
        tx::obj_update(worker, handle, sequence, counter(next + 1), counted);
    }
}

fn counted(worker: &mut Worker, key: usize, changed: Result<bool, GraphError>) {
    if let Err(error) = changed {
        return fail(worker, key, error);
    }
    let adding = &mut addings(worker)[key];
    let data = std::mem::take(&mut adding.data);
    let new = NodeData {
        node_type: NODE_TYPE,
        version: 1,
        time: adding.time,
        data: &data,
    };
    let place = Place {
        id: Some(adding.id),
        near: None,
    };
    if let Some(handle) = adding.tx {
        tx::obj_add(worker, handle, place, new, Cont::new(added, key));
    }
    addings(worker)[key].data = data;
}

fn added(worker: &mut Worker, key: usize, added: Result<NewNode, GraphError>) {
    match added {
        Ok(new) => {
            let adding = &mut addings(worker)[key];
            adding.new = Some(new);
            if let Some(handle) = adding.tx {
                retry::commit(worker, handle);
            }
        }
        Err(error) => fail(worker, key, error),
    }
}

fn done(worker: &mut Worker, key: usize, result: Result<(), TxError>) {
    let adding = addings(worker).remove(key);
    let added = match (result, adding.new) {
        (Ok(()), Some(new)) => Ok(new),
        (Ok(()), None) => Err(GraphError::NoNode),
        (Err(error), _) => Err(error.into()),
    };
    adding.cont.resume(worker, added);
}
