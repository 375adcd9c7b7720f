//! Clusters with a graph.

use std::sync::mpsc::Sender;

use farm_core::config::Config;
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::Place;
use farm_graph::tasks::{self, OwnedAssoc, OwnedNode};
use farm_graph::{
    Assoc, AssocType, Assocs, AssocsCont, GraphError, GraphSpec, Node, NodeCont, NodeData,
    NodeType, Schema, open_all,
};
use farm_kv::TableSpec;
use farm_testing::TestCluster;
use farm_txn::{Handle, TxError, block_on};

/// Types of associations: without an inverse; each other's inverses; its own inverse; at most one of a node.
pub(crate) const PLAIN: u32 = 1;
pub(crate) const PARENT: u32 = 2;
pub(crate) const CHILD: u32 = 3;
pub(crate) const FRIEND: u32 = 4;
pub(crate) const SPOUSE: u32 = 5;
/// A type without an inverse, whose associations may begin at nodes that do not exist.
pub(crate) const LINK: u32 = 6;
/// The type of nodes.
pub(crate) const PERSON: u32 = 7;

pub(crate) fn schema() -> Schema {
    let assoc = |id, name: &str, inverse, unique| AssocType {
        id,
        name: name.to_owned(),
        inverse,
        unique,
        dangling: id == LINK,
    };
    let person = NodeType {
        id: PERSON,
        name: "person".to_owned(),
        lists: 2,
    };
    let assocs = vec![
        assoc(PLAIN, "plain", None, false),
        assoc(PARENT, "parent", Some(CHILD), false),
        assoc(CHILD, "child", Some(PARENT), false),
        assoc(FRIEND, "friend", Some(FRIEND), false),
        assoc(SPOUSE, "spouse", None, true),
        assoc(LINK, "link", None, false),
    ];
    Schema::new(vec![person], assocs).unwrap()
}

pub(crate) fn spec(page_bytes: usize) -> GraphSpec {
    GraphSpec {
        schema: schema(),
        ids: TableSpec {
            id: 9,
            neighbourhood: 4,
            key_bytes: farm_kv::KEY_BYTES,
            value_bytes: farm_graph::ID_VALUE_BYTES,
            shards: 4,
            buckets: 64,
        },
        page_bytes,
        cached_heads: 64,
    }
}

/// Starts machines of one worker each with the default limits of messages and records, with an open graph.
pub(crate) fn cluster_with_defaults(name: &str, machines: u16) -> TestCluster {
    let mut config = Config::default_for(machines, 1);
    (config.memory.region_bytes, config.memory.per_machine_bytes) = (32 << 20, 64 << 20);
    config
        .machines
        .iter_mut()
        .for_each(|machine| machine.cores.clear());
    start(name, config, 8192)
}

/// Starts machines of one worker each, with an open graph.
pub(crate) fn cluster(name: &str, machines: u16, page_bytes: usize) -> TestCluster {
    let mut config = Config::tiny_for(machines, 1);
    // One transaction of a test writes many pages.
    config.rings.log_bytes = 1 << 20;
    config.rings.ring_bytes = 64 << 10;
    start(name, config, page_bytes)
}

/// Starts the machines of a configuration, with an open graph.
pub(crate) fn start(name: &str, config: Config, page_bytes: usize) -> TestCluster {
    let cluster = TestCluster::start(name, config, |worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
    });
    open_all(&cluster.machines, &spec(page_bytes)).unwrap();
    cluster
}

/// Begins an operation on a worker, and waits for its result.
pub(crate) fn ask<T: Send + 'static>(
    cluster: &TestCluster,
    (machine, worker): (usize, usize),
    begin: impl FnOnce(&mut Worker, Cont<Result<T, GraphError>>) + Send + 'static,
) -> Result<T, GraphError> {
    struct Answer<T>(Sender<Result<T, GraphError>>);
    fn tell<T: Send + 'static>(worker: &mut Worker, (): (), result: Result<T, GraphError>) {
        let answer = worker.take_layer::<Answer<T>>();
        answer.0.send(result).unwrap();
    }
    let answered = cluster.machines[machine].ask(worker, |worker, answer| {
        worker.put_layer(Box::new(Answer(answer)));
        begin(worker, Cont::new(tell::<T>, ()));
    });
    answered.unwrap()
}

/// The continuations of tests, for results that are valid only during the call.
struct Copying<T>(Cont<Result<T, GraphError>>);

/// Returns a continuation that passes a copy of a node to `cont`.
pub(crate) fn node_cont(
    worker: &mut Worker,
    cont: Cont<Result<Option<OwnedNode>, GraphError>>,
) -> NodeCont {
    worker.put_layer(Box::new(Copying(cont)));
    let copy = |worker: &mut Worker, (): (), found: Result<Option<Node<'_>>, &GraphError>| {
        let cont = worker.take_layer::<Copying<Option<OwnedNode>>>().0;
        let found = found.map(|node| node.map(OwnedNode::from));
        cont.resume(worker, found.map_err(GraphError::clone));
    };
    NodeCont::new(copy, ())
}

/// Returns a continuation that passes copies of associations to `cont`.
pub(crate) fn assocs_cont(
    worker: &mut Worker,
    cont: Cont<Result<Vec<OwnedAssoc>, GraphError>>,
) -> AssocsCont {
    worker.put_layer(Box::new(Copying(cont)));
    let copy = |worker: &mut Worker, (): (), found: Result<Assocs<'_>, &GraphError>| {
        let cont = worker.take_layer::<Copying<Vec<OwnedAssoc>>>().0;
        let found = found.map(|found| found.iter().map(OwnedAssoc::from).collect());
        cont.resume(worker, found.map_err(GraphError::clone));
    };
    AssocsCont::new(copy, ())
}

/// Returns the properties of a person.
pub(crate) fn person(data: &[u8]) -> NodeData<'_> {
    NodeData {
        node_type: PERSON,
        version: 1,
        time: 2,
        data,
    }
}

/// Returns a visible association.
pub(crate) fn assoc(id2: u64, time: u64, target: Option<FatPointer>, data: &[u8]) -> Assoc<'_> {
    Assoc {
        id2,
        time,
        version: 4,
        visible: true,
        target,
        data,
    }
}

/// Creates nodes on all machines in turn.
pub(crate) fn people(cluster: &TestCluster, count: u64) -> Vec<(u64, FatPointer)> {
    let machines = cluster.machines.len();
    let added = (0..count).map(|number| {
        let machine = &cluster.machines[number as usize % machines];
        let added = block_on(machine, 0, async move |farm: Handle| {
            let tx = farm.begin().await.unwrap();
            let place = Place {
                id: Some(100 + number),
                near: None,
            };
            let added = tasks::obj_add(*tx, place, person(b"")).await?;
            tx.commit().await?;
            Ok::<_, TxError>((added.id, added.node))
        });
        added.unwrap().unwrap()
    });
    added.collect()
}
