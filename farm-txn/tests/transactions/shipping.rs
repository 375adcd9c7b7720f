//! Function shipping: transactions that run on the machine that receives a message.

use std::sync::mpsc;

use farm_core::ids::Address;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::worker::Worker;

use crate::cluster::cluster;
use crate::tasks::{add_one, wait_for_rest};

/// Requests a worker to increment an object of its machine, and an object of another machine.
const ADD_TO_BOTH: MessageId = MessageId(MessageId::APPLICATION);

fn add_to_both(worker: &mut Worker, request: Request, body: &[u8]) {
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
    let both = [word(0), word(8)].map(|bits| Address::from_bits(bits).unwrap());
    farm_txn::spawn(worker, move |farm| async move {
        let sums = farm
            .transact(async |tx| Ok([add_one(tx, both[0]).await?, add_one(tx, both[1]).await?]));
        let sums = sums.await.unwrap();
        let reply = move |worker: &mut Worker| {
            let sums = sums.map(u64::to_le_bytes).concat();
            worker.reply(request, &[&sums]);
        };
        farm.with_worker(reply).await.unwrap();
    });
}

fn added(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
    let answer = worker.take_layer::<mpsc::Sender<Vec<u8>>>();
    answer.send(reply.unwrap().to_vec()).unwrap();
}

#[test]
fn a_shipped_transaction_may_have_objects_of_other_machines() {
    let cluster = cluster("shipped", 3, 1);
    let zero = 0u64.to_le_bytes();
    let [mine, theirs] = [0, 1].map(|machine| cluster.create(machine, 0, &zero));
    cluster.on(1, 0, |w| w.register(ADD_TO_BOTH, add_to_both));
    for round in 1..=3u64 {
        let sums: Vec<u8> = cluster.machines[0]
            .ask(0, move |w, answer: mpsc::Sender<Vec<u8>>| {
                w.put_layer(Box::new(answer));
                let body = [theirs, mine].map(|at| at.to_bits().to_le_bytes()).concat();
                let to = w.worker_at(theirs).unwrap();
                let cont = ReplyCont::new(added, 0);
                w.call(to, ADD_TO_BOTH, &[&body], 16, cont).unwrap();
            })
            .unwrap();
        assert_eq!(sums, [round; 2].map(u64::to_le_bytes).concat());
    }
    wait_for_rest(&cluster);
    cluster.stop();
}
