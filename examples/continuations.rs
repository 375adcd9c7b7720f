//! Three machines in one process: put, get, and a transaction with continuations.

use std::sync::mpsc::Sender;

use farm::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Three machines of one worker each. The name must be unique among the clusters of this host.
    let mut config = Config::default_for(3, 1);
    config.cluster.name = format!("embedded-{}", std::process::id());
    config.memory.region_bytes = 64 << 20;
    config.memory.per_machine_bytes = 128 << 20;
    let machines = start_all(&config, &layers())?;

    // A table for 10,000 pairs at 90 % occupancy, H = 6, in three shards.
    let table = blocking::open(&machines, TableSpec::sized(1, 6, 32, 3, 10_000, 0.9)?)?;
    let key = *b"sixteen byte key";
    blocking::change(
        &machines[0],
        0,
        table,
        key,
        blocking::OwnedChange::Upsert(vec![7; 32]),
    )?;
    assert_eq!(
        blocking::get(&machines[2], 0, table, key)?,
        Some(vec![7; 32])
    );

    // A transaction with continuations: allocate an object, write it, commit, read it back.
    let read_back: Vec<u8> = machines[1].ask(0, |worker, answer| {
        worker.put_layer(Box::new(answer));
        let tx = txn::begin(worker);
        txn::alloc(worker, tx, 5, None, Cont::new(allocated, tx.to_context()));
    })?;
    assert_eq!(read_back, b"hello");

    for machine in machines {
        machine.stop()?;
    }
    Ok(())
}

fn allocated(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let tx = TxHandle::from_context(tx);
    let object = object.expect("there is memory for an object");
    txn::payload_mut(worker, tx, object).expect("the transaction is open")[..5]
        .copy_from_slice(b"hello");
    let address =
        txn::with(worker, tx, |tx, _| tx.address(object)).expect("the transaction is open");
    txn::commit(worker, tx, Cont::new(committed, address.to_bits()));
}

fn committed(worker: &mut Worker, address: u64, outcome: Result<(), TxError>) {
    outcome.expect("no other transaction knows the object");
    let address = Address::from_bits(address).expect("the context holds a valid address");
    let tx = txn::begin(worker);
    txn::read(worker, tx, address, 5, Cont::new(read, tx.to_context()));
}

fn read(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let tx = TxHandle::from_context(tx);
    let object = object.expect("the transaction that allocated the object has committed");
    let payload = txn::payload(worker, tx, object).expect("the transaction is open")[..5].to_vec();
    txn::abort(worker, tx);
    let answer = worker.take_layer::<Sender<Vec<u8>>>();
    answer
        .send(payload)
        .expect("the main thread waits for the answer");
}
