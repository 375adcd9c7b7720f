//! One attempt of a transaction: it reads its rows from tables of the platform, makes its writes and commits, all
//! inside of one transaction of the platform; or it stops with a reason.
//!
//! A transaction that reads one row and writes none is a lock-free lookup.

use farm_core::alloc::AllocError;
use farm_core::ids::MachineId;
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::tx::{self, ValueRef};
use farm_kv::{Change, GetCont, KvError, TableId};
use farm_txn::{Abort, TxError, TxHandle, api};
use slab::Slab;
use smallvec::SmallVec;

pub use super::trail::{STAMP_BYTES, Seen, Stamp, Trail, name_of};
use super::{Drawn, MAX_ROW_BYTES, Names, RowBytes, RowName, Step, Table, Write};

/// Why an attempt did not commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The attempt had a conflict with another transaction, or too many operations are in flight (`None`). The caller
    /// retries the transaction.
    Conflict(Option<Abort>),
    /// A machine has no room for the writes; contains advice.
    Full(String),
    /// A machine was lost; the attempt had no effect.
    Lost(MachineId),
    /// A machine was lost; the attempt may have committed.
    InDoubt(MachineId),
    /// The machine of the attempt's worker leaves the cluster; the attempt had no effect.
    Leaving,
    /// An error that must not occur.
    Failed(String),
}

/// The continuation that receives the trail and the outcome of an attempt. It passes the trail to [`give`] for reuse.
pub type EndedCont = Cont<(Box<Trail>, Result<(), Stop>)>;

/// The value of a row in its table.
pub type Value = SmallVec<[u8; MAX_ROW_BYTES + STAMP_BYTES]>;

/// Inspects an attempt that is about to commit.
pub type Look = fn(&mut Worker, &Trail);

struct Running {
    trail: Box<Trail>,
    tx: Option<TxHandle>,
    waiting: u32,
    /// Why the attempt stops, while its reads are being validated or other replies are outstanding.
    stop: Option<Stop>,
    cont: EndedCont,
}

/// The attempts of one worker.
#[derive(Default)]
struct Attempts {
    tables: SmallVec<[(Table, TableId); 5]>,
    stamped: bool,
    look: Option<Look>,
    running: Slab<Running>,
    /// Trails of ended attempts, for reuse. They are boxed because they are large and are passed around.
    #[allow(clippy::vec_box)]
    pool: Vec<Box<Trail>>,
}

fn attempts(worker: &mut Worker) -> &mut Attempts {
    worker
        .layer()
        .expect("oltp::attempt::attach must be called for a worker before its first attempt")
}

fn entry(worker: &mut Worker, key: usize) -> &mut Running {
    &mut attempts(worker).running[key]
}

/// Attaches the benchmarks to a worker on which the tables are open.
pub fn attach(
    worker: &mut Worker,
    tables: impl IntoIterator<Item = (Table, TableId)>,
    stamped: bool,
    look: Option<Look>,
) {
    worker.put_layer(Box::new(Attempts {
        tables: tables.into_iter().collect(),
        stamped,
        look,
        running: Slab::new(),
        pool: Vec::new(),
    }));
}

/// Returns whether rows have stamps, and the function that inspects attempts that are about to commit.
pub(super) fn settings(worker: &mut Worker) -> (bool, Option<Look>) {
    let attempts = attempts(worker);
    (attempts.stamped, attempts.look)
}

/// Returns the length of a table's values, in bytes.
pub fn value_bytes(table: &Table, stamped: bool) -> usize {
    table.row_bytes + if stamped { STAMP_BYTES } else { 0 }
}

/// Returns the value of a row in its table.
pub fn value_of(row: &RowBytes, stamp: Option<Stamp>) -> Value {
    let mut value = SmallVec::from_slice(row);
    if let Some(stamp) = stamp {
        value.extend_from_slice(&stamp.to_bytes());
    }
    value
}

/// Runs one attempt of a transaction. The continuation is called from the event loop. `number` must be unique in the
/// run.
///
/// # Panics
/// If the layer is not attached.
pub fn run(worker: &mut Worker, what: Drawn, number: u64, cont: EndedCont) {
    let trail = new_trail(worker, what, number);
    let key = attempts(worker).running.insert(Running {
        trail,
        tx: None,
        waiting: 0,
        stop: None,
        cont,
    });
    worker.defer(Cont::new(step, key));
}

/// Returns the trail of an attempt that begins.
pub(super) fn new_trail(worker: &mut Worker, what: Drawn, number: u64) -> Box<Trail> {
    match attempts(worker).pool.pop() {
        Some(mut trail) => {
            trail.names.clear();
            trail.seen.clear();
            (trail.what, trail.number) = (what, number);
            (trail.decision, trail.lock_free) = (None, false);
            trail
        }
        None => Box::new(Trail {
            what,
            names: Names::new(),
            seen: SmallVec::new(),
            decision: None,
            number,
            lock_free: false,
        }),
    }
}

/// Stores the trail of an ended attempt for reuse by a later attempt.
pub fn give(worker: &mut Worker, trail: Box<Trail>) {
    attempts(worker).pool.push(trail);
}

fn step(worker: &mut Worker, key: usize, (): ()) {
    let trail = &mut entry(worker, key).trail;
    match trail.next_step() {
        Ok(Step::Read(names)) => read(worker, key, &names),
        Ok(Step::End(decision)) => {
            trail.decision = Some(decision);
            write(worker, key);
        }
        Err(error) => stop(worker, key, Stop::Failed(error.to_string())),
    }
}

/// Returns the table of a row.
pub fn table_of(worker: &mut Worker, name: &RowName) -> TableId {
    let tables = &attempts(worker).tables;
    let found = tables.iter().find(|(table, _)| *table == name.table);
    found
        .expect("all tables of the benchmark were passed to oltp::attempt::attach")
        .1
}

fn read(worker: &mut Worker, key: usize, names: &Names) {
    let running = entry(worker, key);
    let first = running.trail.begin_read(names);
    if running.trail.lock_free {
        return look_up(worker, key, ());
    }
    running.waiting = names.len() as u32;
    let tx = match running.tx {
        Some(tx) => tx,
        None => {
            let tx = api::begin(worker);
            entry(worker, key).tx = Some(tx);
            tx
        }
    };
    for (row, name) in (first..).zip(names) {
        let table = table_of(worker, name);
        let found = Cont::new(found, (key as u32, row as u32));
        tx::get(worker, tx, table, &name.table_key(), found);
    }
}

/// Looks up the row without a transaction.
fn look_up(worker: &mut Worker, key: usize, (): ()) {
    let name = entry(worker, key).trail.names[0];
    let table = table_of(worker, &name);
    let got = GetCont::new(looked_up, key);
    match farm_kv::get(worker, table, &name.table_key(), got) {
        Ok(()) => {}
        Err(KvError::Busy) => farm_kv::when_slot(worker, table, Cont::new(look_up, key)),
        Err(error) => stop(worker, key, of_table(error)),
    }
}

fn looked_up(worker: &mut Worker, key: usize, value: Result<Option<&[u8]>, &KvError>) {
    match value {
        Ok(value) => match take_in(worker, key, 0, value) {
            Ok(()) => step(worker, key, ()),
            Err(why) => stop(worker, key, Stop::Failed(why)),
        },
        Err(KvError::Busy) => worker.when_room(Cont::new(look_up, key)),
        Err(error) => stop(worker, key, of_table(error.clone())),
    }
}

/// Stores a row that was read.
fn take_in(
    worker: &mut Worker,
    key: usize,
    row: usize,
    value: Option<&[u8]>,
) -> Result<(), String> {
    let state = attempts(worker);
    let trail = &mut state.running[key].trail;
    trail.seen[row] = Seen::of(&trail.names[row], value, state.stamped)?;
    Ok(())
}

fn found(worker: &mut Worker, (key, row): (u32, u32), result: Result<Option<ValueRef>, TxError>) {
    let (key, row) = (key as usize, row as usize);
    let tx = entry(worker, key).tx;
    let tx = tx.expect("an attempt has a transaction while its rows are read");
    let kept = result.map_err(Stop::from).and_then(|found| {
        let Some(found) = found else {
            return Ok(());
        };
        let mut copy: SmallVec<[u8; MAX_ROW_BYTES + STAMP_BYTES]> = SmallVec::new();
        copy.extend_from_slice(tx::value(worker, tx, found).map_err(Stop::from)?);
        take_in(worker, key, row, Some(&copy)).map_err(Stop::Failed)
    });
    arrived(worker, key, kept, step);
}

/// Stores one of several outstanding results. After the last one, calls `next`, or stops the attempt if one of them was
/// an error.
fn arrived(
    worker: &mut Worker,
    key: usize,
    result: Result<(), Stop>,
    next: fn(&mut Worker, usize, ()),
) {
    let running = entry(worker, key);
    running.waiting -= 1;
    if let Err(why) = result {
        running.stop.get_or_insert(why);
    }
    if running.waiting > 0 {
        return;
    }
    match running.stop.take() {
        Some(why) => stop(worker, key, why),
        None => next(worker, key, ()),
    }
}

fn write(worker: &mut Worker, key: usize) {
    let stamped = attempts(worker).stamped;
    let running = entry(worker, key);
    let writes = running.trail.decision().writes.clone();
    let Some(tx) = running.tx else {
        return end(worker, key, Ok(()));
    };
    running.waiting = writes.len() as u32;
    if writes.is_empty() {
        return commit(worker, key, ());
    }
    for (index, write) in writes.iter().enumerate() {
        let name = name_of(write);
        let table = table_of(worker, &name);
        let value = new_value(&entry(worker, key).trail, index, stamped);
        let change = change_of(write, &value);
        let done = Cont::new(changed, (key as u32, index as u32));
        if let Err(error) = tx::change(worker, tx, table, &name.table_key(), change, done) {
            // The other results must arrive before the attempt can end.
            arrived(worker, key, Err(of_table(error)), commit);
        }
    }
}

fn changed(worker: &mut Worker, (key, index): (u32, u32), result: Result<Changed, TxError>) {
    let (key, index) = (key as usize, index as usize);
    let trail = &entry(worker, key).trail;
    let result = expect(&trail.decision().writes[index], result);
    arrived(worker, key, result, commit);
}

/// Returns the value that a write of an attempt stores.
pub(super) fn new_value(trail: &Trail, write: usize, stamped: bool) -> Value {
    let stamp = stamped.then(|| trail.stamp_of(write));
    match &trail.decision().writes[write] {
        Write::Insert(_, row) | Write::Update(_, row) => value_of(row, stamp),
        Write::Remove(_) => SmallVec::new(),
    }
}

/// Returns the change that a write makes.
pub(super) fn change_of<'v>(write: &Write, value: &'v [u8]) -> Change<'v> {
    match write {
        Write::Insert(..) => Change::Insert(value),
        Write::Update(..) => Change::Update(value),
        Write::Remove(_) => Change::Remove,
    }
}

/// Checks that a write had the result that the rows which the transaction has read imply.
pub(super) fn expect(write: &Write, result: Result<Changed, TxError>) -> Result<(), Stop> {
    let wanted = match write {
        Write::Insert(..) => Changed::Inserted,
        Write::Update(..) => Changed::Updated,
        Write::Remove(_) => Changed::Removed,
    };
    match result? {
        changed if changed == wanted => Ok(()),
        changed => {
            let name = name_of(write);
            let why = format!(
                "the write of row {name} had the result {changed:?} instead of {wanted:?}, although the \
                 transaction had read the row"
            );
            Err(Stop::Failed(why))
        }
    }
}

fn commit(worker: &mut Worker, key: usize, (): ()) {
    let state = attempts(worker);
    let look = state.look;
    let running = &state.running[key];
    let tx = running
        .tx
        .expect("only an attempt with a transaction commits");
    if let Some(look) = look {
        let trail = running.trail.clone();
        look(worker, &trail);
    }
    entry(worker, key).tx = None;
    api::commit(worker, tx, Cont::new(committed, key));
}

fn committed(worker: &mut Worker, key: usize, result: Result<(), TxError>) {
    end(worker, key, result.map_err(Stop::from));
}

/// Ends an attempt that does not commit. A failure is reported only if the reads are mutually consistent.
fn stop(worker: &mut Worker, key: usize, why: Stop) {
    let running = entry(worker, key);
    let tx = running.tx.take();
    match (tx, &why) {
        (Some(tx), Stop::Failed(_) | Stop::Full(_)) => {
            running.stop = Some(why);
            api::validate(worker, tx, Cont::new(validated, key));
        }
        (Some(tx), Stop::Conflict(_) | Stop::Lost(_) | Stop::InDoubt(_) | Stop::Leaving) => {
            api::abort(worker, tx);
            end(worker, key, Err(why));
        }
        (None, _) => end(worker, key, Err(why)),
    }
}

fn validated(worker: &mut Worker, key: usize, result: Result<(), TxError>) {
    let running = entry(worker, key);
    let why = running
        .stop
        .take()
        .expect("an attempt stores the reason to stop before its reads are validated");
    let why = result.err().map_or(why, Stop::from);
    end(worker, key, Err(why));
}

fn end(worker: &mut Worker, key: usize, result: Result<(), Stop>) {
    let Running { trail, cont, .. } = attempts(worker).running.remove(key);
    cont.resume(worker, (trail, result));
}

impl Stop {
    fn no_memory() -> Self {
        let why = "a machine has no memory for the inserted rows: raise \
                   memory.per_machine_bytes, or lower --occupancy";
        Self::Full(why.to_owned())
    }
}

impl From<TxError> for Stop {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Abort(Abort::Lost(machine)) => Stop::Lost(machine),
            TxError::Abort(abort) => Stop::Conflict(Some(abort)),
            TxError::Busy => Stop::Conflict(None),
            TxError::InDoubt(machine) => Stop::InDoubt(machine),
            TxError::Stopped(None) => Stop::Leaving,
            TxError::NoMemory(_)
            | TxError::Alloc(AllocError::OutOfMemory { .. } | AllocError::NoRegion(_)) => {
                Stop::no_memory()
            }
            // This error is not a bug. Only rare transactions need so much space in a log: those that move pairs of a
            // table or change a chain.
            error @ TxError::TooLargeForLog { .. } => Stop::Full(error.to_string()),
            TxError::Layer(inner) => match inner.downcast_ref::<KvError>() {
                Some(error) => of_table(error.clone()),
                None => Stop::Failed(inner.to_string()),
            },
            error => Stop::Failed(error.to_string()),
        }
    }
}

fn of_table(error: KvError) -> Stop {
    match error {
        KvError::Busy | KvError::Conflict => Stop::Conflict(None),
        KvError::Full(_) | KvError::Crowded(_) => Stop::no_memory(),
        KvError::PeerLost(machine) => Stop::Lost(machine),
        KvError::InDoubt(machine) => Stop::InDoubt(machine),
        error => Stop::Failed(error.to_string()),
    }
}
