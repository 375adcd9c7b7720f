//! The interface of the paper (`FaRM'14` figure 6), call by call: an object on one machine, which all machines change, read
//! and free, by functions that take a continuation. docs/CONTINUATIONS.md explains it.

use farm::prelude::*;

/// Bytes of the object: a number.
const BYTES: usize = 8;
/// A message to the machine that stores the object. Programs use the ids from [`MessageId::APPLICATION`] on.
const WHO_STORES: MessageId = MessageId(MessageId::APPLICATION);

/// The result of a chain of continuations, for which the program waits.
type Done<T> = Promise<Result<T, TxError>>;

/// What the continuations of a transaction need.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct State {
    counter: Ptr<u64>,
    tx: u64,
    table: TableId,
    _unused: [u16; 3],
}

impl State {
    fn new(counter: Ptr<u64>, table: TableId) -> Self {
        let (tx, _unused) = (0, [0; 3]);
        Self {
            counter,
            tx,
            table,
            _unused,
        }
    }

    fn tx(&self) -> TxHandle {
        TxHandle::from_context(self.tx)
    }
}

fn main() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let increments: Table<u64, u64> = cluster.create_table("increments", 100)?;
    let table = increments.spec().table();
    cluster.block_on(async |farm| {
        let counter = farm.call(create).await??;
        for farm in cluster.farms() {
            for _ in 0..10 {
                let state = State::new(counter, table);
                farm.call(move |worker, done| run(worker, done, state))
                    .await??;
            }
            let value = farm
                .call(move |worker, done| look(worker, done, counter))
                .await??;
            println!("{} reads {value}", farm.machine());
        }
        assert_eq!(farm.get(counter).await?, 30);
        assert_eq!(increments.get(&farm, 0).await?, Some(30));

        for farm in cluster.farms() {
            farm.call(register).await?;
        }
        let machine = farm
            .call(move |worker, done| ask(worker, done, counter))
            .await??;
        println!("{machine} stores the object");

        farm.call(move |worker, done| free(worker, done, State::new(counter, table)))
            .await??;
        let gone = farm.get(counter).await.unwrap_err();
        assert_eq!(gone.kind(), Kind::NotFound);
        Ok::<_, Error>(())
    })?;
    cluster.stop()
}

fn fat(pointer: Ptr<u64>) -> FatPointer {
    FatPointer::from_words(pointer.to_words()).expect("the pointer is that of an object")
}

fn number(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..BYTES].try_into().expect("there are 8 bytes"))
}

// txCreate, txAlloc, txWrite, txCommit.

fn create(worker: &mut Worker, done: Done<Ptr<u64>>) {
    let tx = txn::begin(worker);
    done.keep(worker, tx.to_context());
    txn::alloc(worker, tx, BYTES, None, Cont::new(allocated, done));
}

fn allocated(worker: &mut Worker, done: Done<Ptr<u64>>, object: Result<ObjectId, TxError>) {
    let tx = TxHandle::from_context(done.kept(worker));
    let written = object.and_then(|object| {
        txn::payload_mut(worker, tx, object)?[..BYTES].fill(0);
        txn::with(worker, tx, |tx, _| tx.pointer(object))
    });
    match written {
        Ok(pointer) => {
            done.keep(worker, Ptr::<u64>::from(pointer));
            txn::commit(worker, tx, Cont::new(created, done));
        }
        Err(error) => {
            txn::abort(worker, tx);
            done.complete(worker, Err(error));
        }
    }
}

fn created(worker: &mut Worker, done: Done<Ptr<u64>>, committed: Result<(), TxError>) {
    let pointer = done.kept(worker);
    done.complete(worker, committed.map(|()| pointer));
}

// txRead and txWrite of an object on any machine, and a change of a table in the same transaction. After a conflict,
// `retry` begins again.

fn run(worker: &mut Worker, done: Done<()>, state: State) {
    done.keep(worker, state);
    retry::run(worker, Cont::new(attempt, done), done.cont());
}

fn attempt(worker: &mut Worker, done: Done<()>, tx: TxHandle) {
    let mut state: State = done.kept(worker);
    state.tx = tx.to_context();
    done.keep(worker, state);
    txn::read_pointer(worker, tx, fat(state.counter), Cont::new(was_read, done));
}

fn was_read(worker: &mut Worker, done: Done<()>, object: Result<ObjectId, TxError>) {
    let state: State = done.kept(worker);
    let tx = state.tx();
    let written = object.and_then(|object| {
        let payload = txn::payload_mut(worker, tx, object)?;
        let value = number(payload) + 1;
        payload[..BYTES].copy_from_slice(&value.to_le_bytes());
        Ok(value)
    });
    let changed = written.and_then(|value| {
        let (key, value) = (0u64.to_bytes(), value.to_le_bytes());
        let change = Change::Upsert(&value);
        let cont = Cont::new(was_changed, done);
        Ok(kv::tx::change(worker, tx, state.table, &key, change, cont)?)
    });
    if let Err(error) = changed {
        retry::fail(worker, tx, error);
    }
}

fn was_changed(worker: &mut Worker, done: Done<()>, changed: Result<Changed, TxError>) {
    let tx = done.kept::<State>(worker).tx();
    match changed {
        Ok(_) => retry::commit(worker, tx),
        Err(error) => retry::fail(worker, tx, error),
    }
}

// lockFreeStart, lockFreeRead, lockFreeEnd: one one-sided read, without a transaction.

fn look(worker: &mut Worker, done: Done<u64>, counter: Ptr<u64>) {
    done.keep(worker, counter);
    let begun = worker.read_pointer_lock_free(fat(counter), Cont::new(looked, done));
    begun.expect("there is room for one read");
}

fn looked(worker: &mut Worker, done: Done<u64>, read: ReadResult) {
    let counter = fat(done.kept(worker));
    let gone = TxError::NotAllocated(counter.address);
    let value = read.map_err(|_| gone.clone()).and_then(|slot| {
        let words = &worker.arena().words(&slot)[..counter.class().object_bytes() / 8];
        let image = Image::check(words).expect("a read returns whole objects");
        let mut payload = [0; BYTES];
        image.copy_payload(0, &mut payload);
        let is_it = counter.names(image.incarnation());
        worker.arena().give(slot);
        is_it.then(|| number(&payload)).ok_or(gone)
    });
    done.complete(worker, value);
}

// msgRegisterHandler, and msgSend to the machine of an address.

fn register(worker: &mut Worker, done: Promise<()>) {
    worker.register(WHO_STORES, |worker, request, _| {
        let machine = worker.me().machine.get().to_le_bytes();
        worker.reply(request, &[&machine]);
    });
    done.complete(worker, ());
}

fn ask(worker: &mut Worker, done: Promise<Result<u16, CallError>>, counter: Ptr<u64>) {
    let asked = worker
        .worker_at(fat(counter).address)
        .and_then(|owner| worker.call(owner, WHO_STORES, &[], 2, ReplyCont::new(answered, done)));
    if let Err(error) = asked {
        done.complete(worker, Err(error));
    }
}

fn answered(
    worker: &mut Worker,
    done: Promise<Result<u16, CallError>>,
    reply: Result<&[u8], CallError>,
) {
    let machine = reply.map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    done.complete(worker, machine);
}

// objGetIncarnation, txFree.

fn free(worker: &mut Worker, done: Done<()>, mut state: State) {
    let tx = txn::begin(worker);
    state.tx = tx.to_context();
    done.keep(worker, state);
    txn::read_pointer(worker, tx, fat(state.counter), Cont::new(free_it, done));
}

fn free_it(worker: &mut Worker, done: Done<()>, object: Result<ObjectId, TxError>) {
    let state: State = done.kept(worker);
    let tx = state.tx();
    let freed = object.and_then(|object| {
        let incarnation = txn::with(worker, tx, |tx, _| tx.incarnation(object))?;
        assert!(
            fat(state.counter).names(incarnation),
            "the pointer names this object"
        );
        txn::free(worker, tx, object)
    });
    match freed {
        Ok(()) => txn::commit(worker, tx, done.cont()),
        Err(error) => {
            txn::abort(worker, tx);
            done.complete(worker, Err(error));
        }
    }
}
