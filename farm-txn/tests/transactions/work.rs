//! The work of a transaction, counted in accesses to entries of its read and write sets: it must grow linearly with the
//! number of objects. Regression: validation was quadratic. A commit of 1,000 objects took 7.6 ms on the event loop.

use std::sync::mpsc;

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_txn::{ObjectId, TxError, TxHandle, api, entries_looked_at};

use crate::cluster::{Cluster, cluster_of};

const BYTES: usize = 8;
/// Maximum number of accesses to an entry by a commit, over all of its steps.
const LOOKS: u64 = 24;

/// The objects of a transaction on each machine. It runs on the first machine.
#[derive(Clone, Copy, Debug)]
struct Mix {
    name: &'static str,
    /// Written objects among each eight objects of a machine.
    written: [usize; 3],
    /// Machines that store its objects.
    machines: &'static [usize],
}

const MIXES: [Mix; 6] = [
    Mix {
        name: "read elsewhere",
        written: [0, 0, 0],
        machines: &[1, 2],
    },
    Mix {
        name: "read here",
        written: [0, 0, 0],
        machines: &[0],
    },
    Mix {
        name: "read elsewhere and written here",
        written: [1, 0, 0],
        machines: &[0, 1, 2],
    },
    Mix {
        name: "read and written elsewhere",
        written: [0, 1, 1],
        machines: &[0, 1, 2],
    },
    Mix {
        name: "written here",
        written: [8, 0, 0],
        machines: &[0],
    },
    Mix {
        name: "written everywhere",
        written: [8, 8, 8],
        machines: &[0, 1, 2],
    },
];

/// A transaction that reads its objects one by one, writes some of them, and commits.
struct Reader {
    objects: Vec<(Address, bool)>,
    next: usize,
    tx: TxHandle,
    /// Entry accesses before the commit.
    before: u64,
    done: mpsc::Sender<(u64, Result<(), TxError>)>,
}

fn read(worker: &mut Worker, _: u64, (): ()) {
    let reader = worker.layer::<Reader>().unwrap();
    let tx = reader.tx;
    match reader.objects.get(reader.next).copied() {
        Some((at, _)) => api::read(worker, tx, at, BYTES, Cont::new(read_done, 0)),
        None => {
            reader.before = entries_looked_at();
            api::commit(worker, tx, Cont::new(committed, 0));
        }
    }
}

fn read_done(worker: &mut Worker, _: u64, object: Result<ObjectId, TxError>) {
    let reader = worker.layer::<Reader>().unwrap();
    let (tx, (_, written)) = (reader.tx, reader.objects[reader.next]);
    reader.next += 1;
    let object = object.unwrap();
    if written {
        api::payload_mut(worker, tx, object).unwrap()[0] += 1;
    }
    read(worker, 0, ());
}

fn committed(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
    let reader = worker.take_layer::<Reader>();
    let looked_at = entries_looked_at() - reader.before;
    reader.done.send((looked_at, outcome)).unwrap();
}

/// Creates objects on a machine.
fn objects(cluster: &Cluster, machine: usize, count: usize) -> Vec<Address> {
    cluster.create_all(machine, 0, &vec![[0; BYTES]; count])
}

/// Returns the entry accesses of the commit of a transaction over `count` objects.
fn looked_at(cluster: &Cluster, mix: Mix, count: usize) -> u64 {
    let each = count / mix.machines.len();
    let mut all = Vec::new();
    for machine in mix.machines {
        let made = objects(cluster, *machine, each).into_iter().enumerate();
        all.extend(made.map(|(at, address)| (address, at % 8 < mix.written[*machine])));
    }
    // Alternate between the machines, as an application would.
    let (machines, total) = (mix.machines.len(), all.len());
    let turns = (0..total).map(|at| all[at % machines * each + at / machines]);
    let objects = turns.collect();
    let (done, ended) = mpsc::channel();
    cluster.on(0, 0, move |w| {
        let tx = api::begin(w);
        w.put_layer(Box::new(Reader {
            objects,
            next: 0,
            tx,
            before: 0,
            done,
        }));
        read(w, 0, ());
    });
    let (looked_at, outcome) = cluster.machines[0].wait_for(&ended).unwrap();
    outcome.unwrap_or_else(|error| panic!("{mix:?} of {count}: {error}"));
    looked_at
}

#[test]
fn the_work_of_a_commit_is_linear_in_its_entries() {
    let mut config = Config::tiny_for(3, 1);
    config.rings.log_bytes = 1 << 20;
    let cluster = cluster_of("linear", config);
    let mut beyond = Vec::new();
    for mix in MIXES {
        for count in [96, 384, 960] {
            let looked_at = looked_at(&cluster, mix, count);
            println!("{}: {looked_at} for {count} objects", mix.name);
            if looked_at > LOOKS * count as u64 {
                beyond.push(format!("{}: {looked_at} for {count} objects", mix.name));
            }
        }
    }
    assert_eq!(beyond, Vec::<String>::new());
    cluster.stop();
}
