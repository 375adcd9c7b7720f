//! Warm commits allocate no memory on the threads of workers, neither on the coordinator nor on other machines.

mod counting;

use std::sync::mpsc;

use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::machine::Machine;
use farm_core::worker::{Cont, Worker};
use farm_testing::{TestCluster, on};
use farm_txn::{ObjectId, Transaction, TxError, TxHandle, api, block_on, retry};

const MACHINES: u16 = 3;
const PAYLOAD: usize = 40;
/// Concurrent transactions of the coordinator while allocations are counted, each with its own set of objects.
const DEPTH: usize = 16;
/// Concurrent transactions during the warm-up. The lengths of queues depend on the scheduling of threads, and no queue
/// may become longer while allocations are counted.
const WARM_DEPTH: usize = 64;
/// Objects of one machine per transaction: more than are validated one by one.
const OF_MACHINE: usize = 6;
const WARM: usize = 5_000;
const COUNTED: usize = 2_000;

/// The accesses of a transaction.
#[derive(Clone, Copy, Debug)]
enum What {
    /// Writes the first object of each machine, and reads the others.
    ReadSome,
    /// Writes all objects.
    WriteAll,
    ReadAll,
}

struct Client {
    sets: Vec<Vec<Address>>,
    /// The current attempt of each set, and the objects that it has read.
    tries: [Option<TxHandle>; WARM_DEPTH],
    objects: Vec<Vec<ObjectId>>,
    what: What,
    left: usize,
    under_way: usize,
    done: mpsc::Sender<()>,
}

fn client(worker: &mut Worker) -> &mut Client {
    worker.layer().unwrap()
}

fn begin(worker: &mut Worker, set: u64, outcome: Result<(), TxError>) {
    outcome.unwrap();
    let this = client(worker);
    if this.left == 0 {
        this.under_way -= 1;
        if this.under_way == 0 {
            // The receiver is another thread, and waking it allocates. That is not part of a transaction.
            let counts = counting::count(false);
            this.done.send(()).unwrap();
            counting::count(counts);
        }
        return;
    }
    this.left -= 1;
    retry::run(worker, Cont::new(attempt, set), Cont::new(begin, set));
}

fn attempt(worker: &mut Worker, set: u64, tx: TxHandle) {
    let this = client(worker);
    this.tries[set as usize] = Some(tx);
    this.objects[set as usize].clear();
    for at in 0..this.sets[set as usize].len() {
        let address = client(worker).sets[set as usize][at];
        api::read(worker, tx, address, PAYLOAD, Cont::new(read_done, set));
    }
}

fn read_done(worker: &mut Worker, set: u64, object: Result<ObjectId, TxError>) {
    let set = set as usize;
    let this = client(worker);
    let tx = this.tries[set].unwrap();
    this.objects[set].push(object.unwrap());
    if this.objects[set].len() < this.sets[set].len() {
        return;
    }
    let what = this.what;
    let objects = std::mem::take(&mut this.objects[set]);
    for (place, object) in objects.iter().enumerate() {
        let writes = match what {
            What::ReadSome => place % OF_MACHINE == 0,
            What::WriteAll => true,
            What::ReadAll => false,
        };
        if writes {
            api::payload_mut(worker, tx, *object).unwrap()[0] ^= 1;
        }
    }
    client(worker).objects[set] = objects;
    retry::commit(worker, tx);
}

fn create(machine: &Machine, count: usize) -> Vec<Address> {
    let made = block_on(machine, 0, async move |farm| {
        farm.transact(async |tx: Transaction<'_>| {
            let mut all = vec![];
            for _ in 0..count {
                let object = tx.alloc(PAYLOAD, None).await?;
                all.push(tx.address(object).await?);
            }
            Ok::<_, TxError>(all)
        })
        .await
    });
    made.unwrap().unwrap()
}

#[test]
fn warm_commits_allocate_nothing() {
    let mut config = Config::tiny_for(MACHINES, 1);
    config.rings.ring_bytes = 64 << 10;
    config.rings.log_bytes = 256 << 10;
    config.worker.operations_in_flight = 256;
    let cluster = TestCluster::start("txn-allocations", config, farm_txn::attach);
    let machines = &cluster.machines;
    let sets: Vec<Vec<Address>> = (0..WARM_DEPTH)
        .map(|_| {
            let of_each = machines.iter().map(|machine| create(machine, OF_MACHINE));
            of_each.flatten().collect()
        })
        .collect();
    let work = |what: What, depth: usize, transactions: usize| {
        let (done, all_done) = mpsc::channel();
        for machine in &machines[1..] {
            let count = |_: &mut Worker, answer: mpsc::Sender<()>| {
                // Sending the answer allocates.
                answer.send(()).unwrap();
                counting::count(true);
            };
            machine.ask(0, count).unwrap();
        }
        let client = Client {
            tries: [None; WARM_DEPTH],
            objects: sets
                .iter()
                .map(|set| Vec::with_capacity(set.len()))
                .collect(),
            sets: sets.clone(),
            what,
            left: transactions,
            under_way: depth,
            done,
        };
        let start = move |worker: &mut Worker| {
            worker.put_layer(Box::new(client));
            counting::count(true);
            (0..depth as u64).for_each(|set| begin(worker, set, Ok(())));
        };
        machines[0].submit(0, start).unwrap();
        machines[0].wait_for(&all_done).expect("a worker failed");
        let counted = machines.iter().map(|machine| {
            on(machine, 0, |_| {
                counting::count(false);
                counting::take().times
            })
        });
        counted.collect::<Vec<u64>>()
    };
    let all = [What::ReadSome, What::WriteAll, What::ReadAll];
    for what in all {
        let allocated = work(what, WARM_DEPTH, WARM);
        println!("while it got warm, {what:?}: {allocated:?}");
    }
    for what in all {
        assert_eq!(
            work(what, DEPTH, COUNTED),
            [0; MACHINES as usize],
            "{what:?}"
        );
    }
    cluster.stop();
}
