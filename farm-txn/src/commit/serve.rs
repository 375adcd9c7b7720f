//! Serves the records that coordinators write into the logs of this machine: performs the actions of [`LogState`]
//! with the worker.

use farm_core::ids::Address;
use farm_core::marks;
use farm_core::worker::{Cont, LogId, LogRecord, Worker};

use super::abort::abort_record;
use super::backup::apply_record;
use super::install::install_record;
use super::lock::{Rejected, read_again};
use super::primary::{Action, LogState, RecordAt};
use super::reply::Verdict;
use super::steps::{CommitSteps, Steps};
use crate::layer::transactions;
use crate::note;
use crate::record::{self, Kind, Lock, Record, TxId};

/// Handles a record. A record that breaks the protocol closes the connection to its coordinator.
pub(crate) fn handle(worker: &mut Worker, at: LogRecord, body: &[u8]) {
    if let Err(why) = serve(worker, at, body) {
        let (from, number) = (at.from, at.token);
        let why = format!("a log record of transaction {number} from {from} was rejected: {why}");
        worker.distrust(from.machine, why);
    }
}

fn serve(worker: &mut Worker, at: LogRecord, body: &[u8]) -> Result<(), Rejected> {
    let configuration = transactions(worker).configuration;
    let of = record::configuration(body).unwrap_or(configuration);
    let id = TxId {
        configuration: of.min(configuration),
        coordinator: at.from,
        sequence: at.token,
    };
    let record = Record::decode(at.kind, id, body)?;
    let place = RecordAt {
        end: at.end,
        bytes: body.len(),
    };
    if of < configuration {
        marks::mark("log: a record of an earlier configuration");
        log(worker, at.log).on_old(place);
        refuse(worker, at, &record);
        return apply_backups(worker, at.log);
    }
    match log(worker, at.log).on_record(&record, at.token, place)? {
        Action::Nothing => {}
        Action::Lock => lock(worker, at, &record.lock()?)?,
        Action::Install(lock) => {
            read_again(worker, at.log, (Kind::Lock, lock), install_record)?;
        }
        Action::Abort { lock, locked } => {
            read_again(worker, at.log, (Kind::Lock, lock), |worker, lock| {
                abort_record(worker, lock, locked)
            })?;
        }
    }
    apply_backups(worker, at.log)
}

/// Replies to LOCK of an earlier configuration. The coordinator, which has suspended the commit, only waits for the reply to end.
pub(super) fn refuse(worker: &mut Worker, at: LogRecord, record: &Record<'_>) {
    if let (Kind::Lock, Ok(lock)) = (record.kind, record.lock()) {
        let verdict = Verdict::Locked(Address::NULL);
        worker.reply(at.request(lock.reply), &[&verdict.encode()]);
    }
}

/// Changes the copies of truncated transactions, and frees their records.
fn apply_backups(worker: &mut Worker, id: LogId) -> Result<(), Rejected> {
    loop {
        if let Some((end, low)) = log(worker, id).take_free() {
            let note = note::encode(transactions(worker).logs_since, low);
            worker.free_log(id, end, note);
        }
        let Some(at) = log(worker, id).next_to_apply() else {
            return Ok(());
        };
        if !read_again(worker, id, (Kind::CommitBackup, at), apply_record)? {
            worker.defer(Cont::new(apply_later, id));
            return Ok(());
        }
        log(worker, id).on_applied();
    }
}

fn apply_later(worker: &mut Worker, id: LogId, (): ()) {
    if let Err(why) = apply_backups(worker, id) {
        let from = worker.log_writer(id);
        let why = format!("a COMMIT-BACKUP record from {from} cannot be applied: {why}");
        worker.distrust(from.machine, why);
    }
}

fn log(worker: &mut Worker, id: LogId) -> &mut LogState {
    transactions(worker).primary.log(id)
}

fn lock(worker: &mut Worker, at: LogRecord, lock: &Lock<'_>) -> Result<(), Rejected> {
    transactions(worker).lent.on_lock(lock);
    let verdict = Steps::lock(worker, at, lock)?;
    if verdict == Verdict::Granted {
        log(worker, at.log).on_locked(at.token);
    }
    worker.reply(at.request(lock.reply), &[&verdict.encode()]);
    Ok(())
}
