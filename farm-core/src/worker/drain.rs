//! What logs contain when a configuration ends (`FaRM'15 §5.3`).
//!
//! From the moment at which a machine applies a configuration, its workers append no record of an earlier one, and take no more
//! records from their logs. When all machines have applied it, each worker drains its logs: it takes all records of earlier
//! configurations, those that it has handled, too, and frees them. The logs go on with the records of the new configuration, which
//! may be there already. A record of an earlier configuration that lands after the drain has no effect.

use super::Worker;
use super::log::{LogId, LogRecord, Logs};
use crate::fabric::Endpoint;
use crate::ids::WorkerRef;
use crate::messaging::IncomingLog;
use crate::ring::{KeptRecords, Record};
use crate::time::Nanos;

/// What a drain finds in a log.
#[derive(Debug)]
pub enum Drained<'a> {
    /// A record, and how far this worker has come with it.
    Record(&'a Record<'a>, Handled),
    /// The last word that was stored [beside the log](Worker::free_log), before all records of the log.
    Note(u64),
}

/// How far a worker has come with a record that it drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// It has handled the record.
    Yes,
    /// It has not handled the record, whose writer may wait for a reply to it.
    No(LogRecord),
    /// It has not handled the record, whose writer is lost.
    Never,
}

/// Gets what a drain finds.
pub trait Drainer {
    /// Takes what a drain has found in the log of a worker.
    fn take(&mut self, writer: WorkerRef, found: Drained<'_>);

    /// Handles that everything was taken, and will be freed.
    ///
    /// # Errors
    /// Why it must not be freed.
    fn end(&mut self) -> Result<(), String>;
}

impl Worker {
    /// Takes no more records from logs, until they are [thawed](Worker::thaw_logs), and gives up all reservations of room in logs.
    /// They must not be released or used later.
    pub fn freeze_logs(&mut self) {
        self.logs.frozen = true;
        self.logs.drop_reservations();
    }

    /// Returns whether the logs are frozen.
    pub fn logs_are_frozen(&self) -> bool {
        self.logs.frozen
    }

    /// Takes all records of earlier configurations from the logs that this worker polls, and from its own log, and frees them. `is_old`
    /// tells by the body of a record whether it is such a record. Logs of machines that have departed are removed.
    ///
    /// # Errors
    /// Why a log cannot be read: its writer, or this worker, does not follow the protocol.
    ///
    /// # Panics
    /// Unless the logs are frozen.
    pub fn drain_logs(
        &mut self,
        is_old: &dyn Fn(&[u8]) -> bool,
        drainer: &mut impl Drainer,
    ) -> Result<(), String> {
        assert!(self.logs.frozen, "only frozen logs are drained");
        let (logs, now) = (&self.logs, self.now);
        let mut ends = Vec::with_capacity(logs.incoming.len());
        for (index, log) in logs.incoming.iter().enumerate() {
            let Some(log) = log else { continue };
            let from = log.from;
            let link = self.messaging.number_of(from.machine);
            let (is_lost, handled) = (log.lost, log.ring.position());
            let unread = |record: &Record<'_>, end: u64| LogRecord {
                log: LogId::new(index),
                from,
                kind: record.message_id,
                token: record.token,
                end,
                link,
            };
            drainer.take(from, Drained::Note(log.ring.note()));
            let mut take = |end: u64, record: &Record<'_>| {
                let handled = match (end > handled, is_lost) {
                    (false, _) => Handled::Yes,
                    (true, false) => Handled::No(unread(record, end)),
                    (true, true) => Handled::Never,
                };
                drainer.take(from, Drained::Record(record, handled));
            };
            let records = log.ring.records().map_err(|error| error.to_string());
            let end = records.and_then(|records| each(records, is_old, &mut take));
            ends.push((index, end.map_err(|why| not_drained(from, &why))?));
        }
        let mut own_end = 0;
        if let Some(own) = &logs.own {
            let me = self.me;
            drainer.take(me, Drained::Note(own.note()));
            let mut take =
                |_, record: &Record<'_>| drainer.take(me, Drained::Record(record, Handled::Yes));
            let records = own.records().map_err(|error| error.to_string());
            let end = records.and_then(|records| each(records, is_old, &mut take));
            own_end = end.map_err(|why| not_drained(me, &why))?;
        }
        drainer.end()?;
        for (index, end) in ends {
            let incoming = &mut self.logs.incoming[index];
            if let Some(log) = incoming {
                let freed = free(log, end, &mut self.endpoint, now);
                freed.map_err(|why| not_drained(log.from, &why))?;
            }
            incoming.take_if(|log| log.lost);
        }
        if let Some(own) = &mut self.logs.own {
            own.free(own_end, 0);
        }
        Ok(())
    }

    /// Takes records from logs again.
    pub fn thaw_logs(&mut self) {
        self.logs.frozen = false;
        self.reply_to_leavers();
    }
}

impl Logs {
    fn drop_reservations(&mut self) {
        for out in self.out.iter_mut().flatten() {
            out.release(out.reserved_bytes());
        }
        if let Some(own) = &mut self.own {
            own.release(own.reserved_bytes());
        }
    }
}

fn not_drained(writer: WorkerRef, why: &str) -> String {
    format!("the log of {writer} cannot be drained: {why}")
}

/// Frees everything before the position `end`.
fn free(
    log: &mut IncomingLog,
    end: u64,
    endpoint: &mut Endpoint,
    now: Nanos,
) -> Result<(), String> {
    while log.ring.position() < end {
        match log.ring.peek(endpoint, now) {
            Ok(Some(_)) => _ = log.ring.keep(),
            Ok(None) => return Err("a record that was there is gone".into()),
            Err(error) => return Err(error.to_string()),
        }
    }
    log.ring.free_noting(end, Some(0), endpoint);
    Ok(())
}

/// Passes all old records to `take`, with the positions after them. Returns the last of these.
fn each(
    mut records: KeptRecords,
    is_old: &dyn Fn(&[u8]) -> bool,
    take: &mut dyn FnMut(u64, &Record<'_>),
) -> Result<u64, String> {
    let mut end = records.position();
    while let Some((record, after)) = records.next_before().map_err(|error| error.to_string())? {
        if !is_old(record.body) {
            break;
        }
        end = after;
        take(end, &record);
    }
    Ok(end)
}
