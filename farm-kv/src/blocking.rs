//! Tables for threads outside the workers: each call submits its work to a worker and waits for the result.
//!
//! For tools, tests and programs that embed a cluster; code that runs on workers uses [`crate::get`] and
//! [`crate::change`].

use std::sync::mpsc::{Sender, channel};

use farm_core::machine::{Machine, MachineError};
use farm_core::worker::{Cont, Worker};

use crate::shard::Changed;
use crate::{Change, GetCont, KvError, TableId, TableSpec};

/// Why a call from a thread outside failed.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// The machine has stopped.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The operation failed.
    #[error(transparent)]
    Table(#[from] KvError),
}

/// A change that owns its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedChange {
    /// See [`Change::Insert`].
    Insert(Vec<u8>),
    /// See [`Change::Update`].
    Update(Vec<u8>),
    /// See [`Change::Upsert`].
    Upsert(Vec<u8>),
    /// See [`Change::Remove`].
    Remove,
}

impl From<Change<'_>> for OwnedChange {
    fn from(change: Change<'_>) -> Self {
        match change {
            Change::Insert(value) => OwnedChange::Insert(value.into()),
            Change::Update(value) => OwnedChange::Update(value.into()),
            Change::Upsert(value) => OwnedChange::Upsert(value.into()),
            Change::Remove => OwnedChange::Remove,
        }
    }
}

impl OwnedChange {
    /// Returns the change, which borrows the value.
    pub fn as_change(&self) -> Change<'_> {
        match self {
            OwnedChange::Insert(value) => Change::Insert(value),
            OwnedChange::Update(value) => Change::Update(value),
            OwnedChange::Upsert(value) => Change::Upsert(value),
            OwnedChange::Remove => Change::Remove,
        }
    }
}

/// The channel to the thread that waits for an answer.
struct Answer<T>(Sender<T>);

fn context<T>(answer: Sender<T>, pending: &mut Answers<T>) -> u64 {
    pending.0.insert(Answer(answer)) as u64
}

/// The threads that wait for answers of one type from one worker.
struct Answers<T>(slab::Slab<Answer<T>>);

fn with_answers<T: Send + 'static, R>(
    worker: &mut Worker,
    work: impl FnOnce(&mut Answers<T>) -> R,
) -> R {
    if worker.layer::<Answers<T>>().is_none() {
        worker.put_layer(Box::new(Answers::<T>(slab::Slab::new())));
    }
    work(
        worker
            .layer()
            .expect("`with_answers` attaches the layer of answers if the worker does not have it"),
    )
}

fn answer<T: Send + 'static>(worker: &mut Worker, context: u64, answer: T) {
    let waiting = with_answers::<T, _>(worker, |answers| answers.0.remove(context as usize));
    // A thread that no longer waits has returned because the machine stopped.
    let _ = waiting.0.send(answer);
}

type Opened = Result<TableId, KvError>;
type Got = Result<Option<Vec<u8>>, KvError>;
type Done = Result<Changed, KvError>;

/// Opens a table on every worker of `machines`, which run in this process: all machines of the cluster, or some of
/// them. Workers of other machines that own shards open it when they get the first message for it.
///
/// # Errors
/// [`BlockingError`]: the first error.
pub fn open<'a>(
    machines: impl IntoIterator<Item = &'a Machine>,
    spec: TableSpec,
) -> Result<TableId, BlockingError> {
    let mut opening = Vec::new();
    for machine in machines {
        for index in 0..machine.workers() {
            let (send, receive) = channel::<Opened>();
            machine.submit(index, move |worker| {
                let context = with_answers(worker, |answers| context(send, answers));
                crate::open(worker, spec, Cont::new(answer, context));
            })?;
            opening.push((machine, receive));
        }
    }
    let mut table = Err(KvError::Spec(
        "the list of machines on which to open the table is empty".into(),
    ));
    for (machine, receive) in opening {
        table = Ok(machine.wait_for(&receive)??);
    }
    Ok(table?)
}

/// Gets a value, through a worker of a machine.
///
/// # Errors
/// [`BlockingError`].
///
/// # Panics
/// If the machine has no such worker.
pub fn get(
    machine: &Machine,
    worker: usize,
    table: TableId,
    key: impl AsRef<[u8]>,
) -> Result<Option<Vec<u8>>, BlockingError> {
    let key = key.as_ref().to_vec();
    let got: Got = machine.ask(worker, move |worker, send| {
        let context = with_answers(worker, |answers| context(send, answers));
        if let Err(error) = crate::get(worker, table, &key, GetCont::new(tell_value, context)) {
            answer::<Got>(worker, context, Err(error));
        }
    })?;
    Ok(got?)
}

fn tell_value(worker: &mut Worker, context: u64, value: Result<Option<&[u8]>, &KvError>) {
    answer::<Got>(
        worker,
        context,
        value
            .map(|value| value.map(<[u8]>::to_vec))
            .map_err(KvError::clone),
    );
}

/// Changes the table, through a worker of a machine.
///
/// # Errors
/// [`BlockingError`].
///
/// # Panics
/// If the machine has no such worker.
pub fn change(
    machine: &Machine,
    worker: usize,
    table: TableId,
    key: impl AsRef<[u8]>,
    change: OwnedChange,
) -> Result<Changed, BlockingError> {
    let key = key.as_ref().to_vec();
    let done: Done = machine.ask(worker, move |worker, send| {
        let context = with_answers(worker, |answers| context(send, answers));
        let cont = Cont::new(answer::<Done>, context);
        if let Err(error) = crate::change(worker, table, &key, change.as_change(), cont) {
            answer::<Done>(worker, context, Err(error));
        }
    })?;
    Ok(done?)
}
