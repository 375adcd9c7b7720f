//! A cluster with the transaction layer, and transactions on its workers.

use std::ops::Deref;
use std::sync::mpsc;
use std::time::Duration;

use farm_core::alloc::{ArrayRun, ClassUsage, SizeClass};
use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::object::{Image, Incarnation, LockMode, Version, write};
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use farm_testing::TestCluster;
use farm_txn::{Handle, ObjectId, Tx, TxError, TxHandle, api, block_on};

/// A running cluster with the transaction layer on every worker, and with little memory and short rings.
pub(crate) struct Cluster(TestCluster);

impl Deref for Cluster {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.0
    }
}

pub(crate) fn cluster(name: &str, machines: u16, workers: u16) -> Cluster {
    cluster_of(name, Config::tiny_for(machines, workers))
}

pub(crate) fn cluster_of(name: &str, config: Config) -> Cluster {
    Cluster(TestCluster::start(name, config, farm_txn::attach))
}

impl Cluster {
    /// Runs a transaction over objects of a machine once, and waits for its end: see [`transact`].
    pub(crate) fn transact<T: Send + 'static>(
        &self,
        machine: usize,
        worker: usize,
        body: impl FnOnce(&mut Tx, &mut Worker) -> Result<T, TxError> + Send + 'static,
    ) -> Result<T, TxError> {
        block_on(&self.machines[machine], worker, async |farm| {
            transact(&farm, body).await
        })
        .unwrap()
    }

    /// Begins a transaction by `body`, in one turn of a worker. It stays open until [`Cluster::commit`].
    pub(crate) fn open<T: Send + 'static>(
        &self,
        machine: usize,
        worker: usize,
        body: impl FnOnce(&mut Tx, &mut Worker) -> T + Send + 'static,
    ) -> (Box<Tx>, T) {
        self.on(machine, worker, |w| {
            let mut tx = farm_txn::checkout(w);
            assert!(tx.is_empty());
            let value = body(&mut tx, w);
            (tx, value)
        })
    }

    /// Commits the transaction of a context on its worker, and waits for the outcome.
    pub(crate) fn commit(&self, machine: usize, worker: usize, tx: Box<Tx>) -> Result<(), TxError> {
        block_on(&self.machines[machine], worker, async |farm| {
            commit_context(&farm, tx).await
        })
        .unwrap()
    }

    /// Ends the transaction of a context on its worker without effect, and waits for the validation of its reads.
    pub(crate) fn validate(
        &self,
        machine: usize,
        worker: usize,
        tx: Box<Tx>,
    ) -> Result<(), TxError> {
        block_on(&self.machines[machine], worker, async |farm| {
            validate_context(&farm, tx).await
        })
        .unwrap()
    }

    /// Creates an object whose payload starts with `payload`, in a transaction of its own.
    pub(crate) fn create(&self, machine: usize, worker: usize, payload: &[u8]) -> Address {
        self.create_all(machine, worker, &[payload])[0]
    }

    /// Creates objects whose payloads start with `payloads`, in one transaction.
    pub(crate) fn create_all(
        &self,
        machine: usize,
        worker: usize,
        payloads: &[impl AsRef<[u8]>],
    ) -> Vec<Address> {
        let payloads = payloads.iter().map(|payload| payload.as_ref().to_vec());
        let payloads: Vec<_> = payloads.collect();
        let created = self.transact(machine, worker, move |tx, w| {
            let one = |payload: &Vec<u8>| {
                let object = tx.alloc(w, payload.len(), None)?;
                tx.payload_mut(object)[..payload.len()].copy_from_slice(payload);
                Ok(tx.address(object))
            };
            payloads.iter().map(one).collect()
        });
        created.unwrap()
    }

    /// Frees an object, in a transaction of its own.
    pub(crate) fn free(
        &self,
        machine: usize,
        worker: usize,
        at: Address,
        bytes: usize,
    ) -> Result<(), TxError> {
        self.transact(machine, worker, move |tx, w| {
            tx.read(w, at, bytes).map(|object| tx.free(object))
        })
    }

    /// Returns the first bytes of an object, read by a transaction of its own.
    pub(crate) fn contents(
        &self,
        machine: usize,
        worker: usize,
        at: Address,
        bytes: usize,
    ) -> Result<Vec<u8>, TxError> {
        self.transact(machine, worker, move |tx, w| {
            let object = tx.read(w, at, bytes)?;
            Ok(tx.payload(object)[..bytes].to_vec())
        })
    }

    /// Reads an object by a lock-free read, and waits for the result.
    pub(crate) fn look(
        &self,
        machine: usize,
        address: Address,
        bytes: usize,
    ) -> Result<Seen, ReadError> {
        self.machines[machine]
            .ask(0, move |worker, answer| {
                start_look(worker, address, bytes, answer)
            })
            .unwrap()
    }

    /// Starts a lock-free read. The result is sent to the receiver when the read has succeeded.
    pub(crate) fn start_look(&self, machine: usize, address: Address, bytes: usize) -> Looks {
        let (answer, answers) = mpsc::channel();
        assert!(
            self.machines[machine]
                .submit(0, move |worker| {
                    start_look(worker, address, bytes, answer);
                })
                .is_ok()
        );
        answers
    }

    /// Waits until the slab allocator and the memory of a worker agree: freed objects may still be in flight.
    pub(crate) fn settle(&self, machine: usize, worker: usize) {
        for _ in 0..2000 {
            if self.on(machine, worker, |w| w.check_slab()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.on(machine, worker, |w| w.check_slab()).unwrap();
    }

    /// As [`TestCluster::stop`].
    pub(crate) fn stop(self) {
        self.0.stop();
    }
}

pub(crate) type Looks = mpsc::Receiver<Result<Seen, ReadError>>;
type Look = mpsc::Sender<Result<Seen, ReadError>>;

/// The result of a lock-free read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) mode: LockMode,
    pub(crate) incarnation: Incarnation,
    pub(crate) payload: Vec<u8>,
}

fn start_look(worker: &mut Worker, address: Address, bytes: usize, answer: Look) {
    worker.put_layer(Box::new(answer));
    let class = SizeClass::for_object_bytes(bytes).unwrap();
    let request = ReadRequest::object(address, class);
    worker
        .read_lock_free(request, Cont::new(looked, bytes as u64))
        .unwrap();
}

fn looked(worker: &mut Worker, bytes: u64, result: ReadResult) {
    let seen = result.map(|slot| {
        let words = worker.arena().words(&slot);
        let image = Image::check(&words[..bytes as usize / 8]).unwrap();
        let mut payload = vec![0; image.payload_len()];
        image.copy_payload(0, &mut payload);
        let word = image.version_word();
        let seen = Seen {
            version: word.version(),
            mode: word.mode(),
            incarnation: image.incarnation(),
            payload,
        };
        worker.arena().give(slot);
        seen
    });
    worker.take_layer::<Look>().send(seen).unwrap();
}

/// Writes an object into an array, and returns its first version.
pub(crate) fn put_in_array(
    worker: &mut Worker,
    array: &ArrayRun,
    index: u32,
    payload: &[u8],
) -> Version {
    let room = array.begin(index);
    let (version, born) = (room.version.next(), room.incarnation.allocated());
    let (memory, at) = worker.local_memory(array.address(index).unwrap()).unwrap();
    write::install_new(
        memory,
        at,
        array.class().object_bytes(),
        version,
        born,
        payload,
    );
    version
}

/// Runs a transaction over objects of the worker's machine once: returns what `body` returned, committed, or why the
/// transaction did not commit. An error of `body` that is no conflict is returned only if its reads are of one moment.
pub(crate) async fn transact<T: Send + 'static>(
    farm: &Handle,
    body: impl FnOnce(&mut Tx, &mut Worker) -> Result<T, TxError> + Send + 'static,
) -> Result<T, TxError> {
    let run = |w: &mut Worker| {
        let mut tx = farm_txn::checkout(w);
        match body(&mut tx, w) {
            Err(error @ TxError::Abort(_)) => {
                farm_txn::checkin(w, tx);
                Err(error)
            }
            ended => Ok((tx, ended)),
        }
    };
    match farm.with_worker(run).await?? {
        (tx, Ok(value)) => commit_context(farm, tx).await.map(|()| value),
        (tx, Err(error)) => validate_context(farm, tx).await.and(Err(error)),
    }
}

/// Commits the transaction of a context of the task's worker.
pub(crate) async fn commit_context(farm: &Handle, tx: Box<Tx>) -> Result<(), TxError> {
    let commit = |w: &mut Worker, _, cont| farm_txn::commit(w, tx, cont);
    farm.begin().await.unwrap().operation(commit).await
}

/// Ends the transaction of a context of the task's worker without effect, and validates its reads.
async fn validate_context(farm: &Handle, tx: Box<Tx>) -> Result<(), TxError> {
    let validate = |w: &mut Worker, _, cont| farm_txn::validate(w, tx, cont);
    farm.begin().await.unwrap().operation(validate).await
}

type CommitAnswer = mpsc::Sender<Result<(), TxError>>;

fn has_ended(worker: &mut Worker, _: u64, result: Result<(), TxError>) {
    worker.take_layer::<CommitAnswer>().send(result).unwrap();
}

/// Commits a transaction of worker 0 of machine 0, and waits for the outcome.
pub(crate) fn commit(cluster: &Cluster, tx: TxHandle) -> Result<(), TxError> {
    let ended = cluster.machines[0].ask(0, move |w, answer: CommitAnswer| {
        w.put_layer(Box::new(answer));
        api::commit(w, tx, Cont::new(has_ended, 0));
    });
    ended.unwrap()
}

/// Reads an object in a transaction, and overwrites the start of its payload.
pub(crate) fn overwrite(
    tx: &mut Tx,
    worker: &mut Worker,
    at: Address,
    bytes: &[u8],
) -> Result<ObjectId, TxError> {
    let object = tx.read(worker, at, bytes.len())?;
    tx.payload_mut(object)[..bytes.len()].copy_from_slice(bytes);
    Ok(object)
}

/// Changes the lock of an object directly, as another worker's commit would.
pub(crate) fn lock(worker: &mut Worker, at: Address, mode: LockMode) {
    let (memory, at) = worker.local_memory(at).unwrap();
    let version = write::load_version(memory, at).version();
    if mode == LockMode::Unlocked {
        write::unlock(memory, at, version);
    } else {
        assert!(
            write::try_lock(memory, at, version, mode),
            "the object is locked already"
        );
    }
}

/// Returns the lock mode of an object.
pub(crate) fn mode(worker: &mut Worker, at: Address) -> LockMode {
    let (memory, at) = worker.local_memory(at).unwrap();
    write::load_version(memory, at).mode()
}

/// Returns the usage of every class that has blocks.
pub(crate) fn usage(worker: &mut Worker) -> Vec<(u8, ClassUsage)> {
    let all = SizeClass::all().map(|class| (class.get(), worker.slab_usage(class)));
    all.filter(|(_, usage)| usage.blocks > 0).collect()
}
