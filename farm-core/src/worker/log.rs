//! Logs: records that a worker writes into the memory of other machines, where workers process them later, and records
//! that other machines have written for this worker (`FaRM'15 §4`).
//!
//! A log is a ring whose records stay until the worker that polls the log frees them. The layer that
//! [registers](Worker::register_log) the handler defines the meaning of the records.

use super::token::Completed;
use super::{Cont, Context, Worker};
use crate::fabric::{Endpoint, Status};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::marks;
use crate::messaging::{CallError, IncomingLog, Links, ReplyCont, Request};
use crate::ring::{Header, Kind, LogSender, OwnLog, SendError, log_record_bytes};

/// Maximum number of records taken from one log before the next log is polled.
const BURST: usize = 32;

/// Identifies a log that this worker polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(u32);

impl LogId {
    /// Returns the log of an [index](LogId::index).
    pub fn new(index: usize) -> Self {
        Self(index as u32)
    }

    /// Returns the log's index among those that the worker polls, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Context for LogId {
    fn to_word(self) -> u64 {
        self.0.into()
    }

    fn from_word(word: u64) -> Self {
        Self(word as u32)
    }
}

/// A record of a log, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Log that holds the record.
    pub log: LogId,
    /// Worker that wrote the record.
    pub from: WorkerRef,
    /// Kind of the record, defined by the layer that handles it.
    pub kind: u16,
    /// Word that the writer attached to the record.
    pub token: u64,
    /// Position in the log just after the record; identifies the record within its log.
    pub end: u64,
    /// Number of the connection to the writer's machine.
    pub(super) link: u32,
}

impl LogRecord {
    /// Returns the request that the writer waits for, given the `token` that [`Worker::expect_reply`] returned to it.
    pub fn request(&self, token: u64) -> Request {
        Request {
            from: self.from,
            token: Some(token),
            link: self.link,
        }
    }
}

/// A handler of log records, called with a record and its body. The record stays in the log until [`Worker::free_log`].
pub type LogHandler = fn(&mut Worker, LogRecord, &[u8]);

/// A record to append to a log.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// Machine that stores the log.
    pub to: MachineId,
    /// Kind of the record.
    pub kind: u16,
    /// Word to attach to the record.
    pub token: u64,
    /// Body of the record, as parts to concatenate.
    pub body: &'a [&'a [u8]],
    /// Bytes reserved for the record, as [`crate::ring::log_record_bytes`] counts them.
    pub reserved: u32,
    /// Continuation called when the record is in the machine's memory, or when the connection broke before that was
    /// known.
    pub acknowledged: Option<Cont<Status>>,
}

/// Counts of log records. The fabric counts the same writes again, and messaging counts the replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Records appended to logs at other machines: one one-sided write each.
    pub appended: u64,
    /// Bytes of the appended records in the logs, without fillers.
    pub appended_bytes: u64,
    /// Appended records with an [`Append::acknowledged`] continuation that were acknowledged.
    pub acknowledged: u64,
    /// Records found in the logs that this worker polls, and handled.
    pub handled: u64,
    /// Reservations refused because a log was full.
    pub full: u64,
    /// Records appended to the own log.
    pub own: u64,
    /// Bytes of these records in the log, without fillers.
    pub own_bytes: u64,
}

/// Bytes of the logs between a worker and the workers of one machine, fillers included. What a worker writes to a machine, and what
/// the workers of that machine have freed of it, is equal when no record is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBytes {
    /// The machine at the other end, or the worker's own machine.
    pub machine: MachineId,
    /// Bytes that the worker has written into its log at that machine.
    pub written: u64,
    /// Bytes that the worker has freed in its logs from that machine.
    pub freed: u64,
    /// Whether the worker is connected to that machine.
    pub connected: bool,
    /// Number of connections to that machine that began or ended after the start.
    pub changes: u64,
}

/// The logs of one worker.
pub(super) struct Logs {
    /// The machine of this worker.
    machine: MachineId,
    /// Logs at other machines, in the order of the cluster's machines; `None` for machines without a connection.
    pub(super) out: Vec<Option<LogSender>>,
    /// Number of connections that began or ended after the start, in the same order.
    changes: Vec<u64>,
    /// The logs that this worker polls; `None` for those of machines that have departed, when nothing in them is needed.
    pub(super) incoming: Vec<Option<IncomingLog>>,
    pub(super) own: Option<OwnLog>,
    handler: Option<LogHandler>,
    /// Whether no records are taken from logs.
    pub(super) frozen: bool,
    /// Continuations that wait for the acknowledgement of a write.
    acks: slab::Slab<Cont<Status>>,
    pub(super) counters: LogCounters,
}

impl Logs {
    pub(super) fn new(machine: MachineId, links: &mut Links, operations: usize) -> Self {
        let out = std::mem::take(&mut links.logs_out);
        Self {
            machine,
            changes: vec![0; out.len()],
            out,
            incoming: std::mem::take(&mut links.logs_in)
                .into_iter()
                .map(Some)
                .collect(),
            own: links.own_log.take(),
            handler: None,
            frozen: false,
            acks: slab::Slab::with_capacity(operations),
            counters: LogCounters::default(),
        }
    }

    /// Returns whether the worker must still report the head of a log to its writer. No event wakes the worker to send
    /// the report, so it must poll.
    pub(super) fn must_poll(&self) -> bool {
        let mut incoming = self.incoming.iter().flatten();
        incoming.any(|log| log.ring.owes_report())
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        let out = self.out.iter().flatten().map(LogSender::reserved_bytes);
        let own = self.own.iter().map(OwnLog::reserved_bytes);
        out.chain(own).map(u64::from).sum()
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.acks.len()
    }

    /// Returns the bytes appended to logs at other machines and to the own log, and the bytes freed in the logs that this worker
    /// polls and in the own log.
    pub(super) fn carried(&self) -> (u64, u64) {
        let own = self.own.as_ref().map_or((0, 0), OwnLog::carried);
        let sent: u64 = self.out.iter().flatten().map(LogSender::tail).sum();
        let incoming = self.incoming.iter().flatten();
        let freed: u64 = incoming.map(|log| log.ring.head()).sum();
        (sent + own.0, freed + own.1)
    }

    /// Returns the bytes written to the log at a machine other than the own one, by its place in the list of machines, and those
    /// freed in the logs from it.
    fn carried_with(&self, place: usize, machine: MachineId) -> (u64, u64) {
        let written = self.out.get(place).and_then(Option::as_ref);
        let incoming = self.incoming.iter().flatten();
        let incoming = incoming.filter(|log| log.from.machine == machine);
        let freed = incoming.map(|log| log.ring.head()).sum();
        (written.map_or(0, LogSender::tail), freed)
    }

    /// Adds the logs between this worker and the machine at this place.
    pub(super) fn link(&mut self, place: usize, out: LogSender, incoming: Vec<IncomingLog>) {
        self.out[place] = Some(out);
        self.changes[place] += 1;
        // Never the number of an earlier log, which layers may still use.
        self.incoming.extend(incoming.into_iter().map(Some));
    }

    /// Drops the log at the machine at this place, and takes no more records from its logs. These stay if they are still to be drained.
    pub(super) fn unlink(&mut self, place: usize, machine: MachineId, drains: bool) {
        self.out[place] = None;
        self.changes[place] += 1;
        for log in &mut self.incoming {
            if let Some(log) = log
                && log.from.machine == machine
                && !log.lost
            {
                (log.lost, log.drains) = (true, drains);
            }
            drop_if_done(log);
        }
    }

    fn incoming(&self, log: LogId) -> &IncomingLog {
        let log = self.incoming[log.index()].as_ref();
        log.expect("a log whose records are needed exists")
    }

    fn sender(&mut self, machine: usize, to: MachineId) -> Result<&mut LogSender, CallError> {
        let none = match to == self.machine {
            true => CallError::NoWorker(WorkerRef::first_of(to)),
            false => CallError::PeerLost(to),
        };
        self.out[machine].as_mut().ok_or(none)
    }
}

impl Worker {
    /// Registers the handler of all log records.
    ///
    /// # Panics
    /// If a handler is registered already.
    pub fn register_log(&mut self, handler: LogHandler) {
        let before = self.logs.handler.replace(handler);
        assert!(before.is_none(), "the log handler is registered already");
    }

    /// Returns the number of logs that this worker polls.
    pub fn logs(&self) -> usize {
        self.logs.incoming.len()
    }

    /// Returns the worker of another machine that polls this worker's log there, and replies to its records.
    ///
    /// # Errors
    /// [`CallError::NoWorker`] if the machine is not in the cluster.
    pub fn log_poller(&self, machine: MachineId) -> Result<WorkerRef, CallError> {
        let (_, workers) = self.machines()[self.machine_place(machine)?];
        let poller = (self.me.worker.index() % workers) as u16;
        let poller =
            WorkerId::new(poller).expect("a machine has no more workers than there are worker ids");
        Ok(WorkerRef::new(machine, poller))
    }

    /// Returns the counts of log records so far.
    pub fn log_counters(&self) -> LogCounters {
        self.logs.counters
    }

    /// Returns the bytes of the logs between this worker and each machine of the cluster.
    pub fn log_bytes(&self) -> Vec<LogBytes> {
        let machines = self.machines().iter().enumerate();
        let of = |(place, &(machine, _)): (usize, &(MachineId, usize))| {
            let is_own = machine == self.me.machine;
            let (written, freed) = match (&self.logs.own, is_own) {
                (Some(own), true) => own.carried(),
                (None, true) => (0, 0),
                (_, false) => self.logs.carried_with(place, machine),
            };
            LogBytes {
                machine,
                written,
                freed,
                connected: is_own || self.logs.out[place].is_some(),
                changes: self.logs.changes[place],
            }
        };
        machines.map(of).collect()
    }

    /// Returns the maximum number of bytes of the body of one record in the log at another machine.
    ///
    /// # Errors
    /// [`CallError::NoWorker`] for this machine, or a machine that is not in the cluster.
    pub fn max_log_body(&mut self, machine: MachineId) -> Result<usize, CallError> {
        let place = self.machine_place(machine)?;
        Ok(self.logs.sender(place, machine)?.max_body_bytes() as usize)
    }

    /// Reserves `bytes` in the log at another machine for one or more records, as [`crate::ring::log_record_bytes`]
    /// counts them. [`Worker::append_log`] uses the reservation up; [`Worker::release_log`] returns what is not needed.
    ///
    /// # Errors
    /// [`CallError::Busy`] while the log has less room, [`CallError::TooLarge`] if it can never have that much,
    /// [`CallError::PeerLost`], and [`CallError::NoWorker`] for this machine or one that is not in the cluster.
    pub fn reserve_log(&mut self, machine: MachineId, bytes: u32) -> Result<(), CallError> {
        let place = self.machine_place(machine)?;
        let sender = self.logs.sender(place, machine)?;
        let most = sender.most_reservable();
        if bytes > most {
            let (bytes, most) = (bytes as usize, most as usize);
            return Err(CallError::TooLarge { bytes, most });
        }
        let reserved = sender.try_reserve(bytes);
        match reserved {
            Ok(true) => Ok(()),
            Ok(false) => {
                marks::mark("log: full");
                self.logs.counters.full += 1;
                Err(CallError::Busy)
            }
            Err(error) => Err(self.log_failed(machine, error)),
        }
    }

    /// Releases bytes that [`Worker::reserve_log`] reserved and that are not needed. No-op if the machine has departed meanwhile.
    ///
    /// # Panics
    /// If more is released than was reserved, or the configuration does not list the machine.
    pub fn release_log(&mut self, machine: MachineId, bytes: u32) {
        let place = self
            .machine_place(machine)
            .expect("release_log is called only for a machine of the cluster");
        if let Ok(sender) = self.logs.sender(place, machine) {
            sender.release(bytes);
        }
    }

    /// Appends a record to the log at another machine.
    ///
    /// # Errors
    /// [`CallError::Busy`] when the endpoint has no room: the reservation remains, and the caller can try again.
    /// [`CallError::TooLarge`]. [`CallError::PeerLost`]. [`CallError::NoWorker`] for this machine or one that is not in
    /// the cluster.
    #[inline]
    pub fn append_log(&mut self, append: Append<'_>) -> Result<(), CallError> {
        let place = self.machine_place(append.to)?;
        let poller = self.log_poller(append.to)?;
        let header = Header {
            kind: Kind::OneWay,
            to_worker: poller.worker,
            message_id: append.kind,
            token: append.token,
        };
        let acks = &mut self.logs.acks;
        let ack = append.acknowledged.map(|cont| acks.insert(cont));
        let signal = ack.map(|ack| Completed::LogWrite(ack).token());
        let (endpoint, reserved) = (&mut self.endpoint, append.reserved);
        let sent = self
            .logs
            .sender(place, append.to)
            .map_err(Ok)
            .and_then(|sender| {
                sender
                    .try_append(endpoint, header, append.body, reserved, signal)
                    .map(|()| log_record_bytes(append.body.iter().map(|part| part.len()).sum()))
                    .map_err(Err)
            });
        let logs = &mut self.logs;
        match (&sent, ack) {
            (Ok(bytes), _) => {
                logs.counters.appended += 1;
                logs.counters.appended_bytes += u64::from(*bytes);
            }
            (Err(_), Some(ack)) => _ = logs.acks.remove(ack),
            (Err(_), None) => {}
        }
        sent.map(|_| ()).map_err(|error| match error {
            Ok(error) => error,
            Err(error) => self.log_failed(append.to, error),
        })
    }

    #[cold]
    fn log_failed(&mut self, machine: MachineId, error: SendError) -> CallError {
        match error {
            SendError::Full => {
                marks::mark("log: endpoint full");
                CallError::Busy
            }
            SendError::TooLarge {
                body_bytes,
                max_body_bytes,
            } => CallError::TooLarge {
                bytes: body_bytes,
                most: max_body_bytes as usize,
            },
            SendError::Closed => CallError::PeerLost(machine),
            SendError::Refused { .. } | SendError::BadHead(_) => {
                tracing::error!(%machine, %error, "log append failed; closing the connection to the machine");
                self.endpoint.close(machine);
                CallError::PeerLost(machine)
            }
        }
    }

    pub(super) fn machine_place(&self, machine: MachineId) -> Result<usize, CallError> {
        let machines = self.machines();
        machines
            .binary_search_by_key(&machine, |entry| entry.0)
            .map_err(|_| CallError::NoWorker(WorkerRef::first_of(machine)))
    }

    /// Registers a continuation for the reply of worker `from` to something other than a message, such as a log record.
    /// That worker must reply at once. Returns the token that the reply must name. Reserves room for the reply as
    /// [`Worker::call`] does.
    ///
    /// # Errors
    /// As [`Worker::call`].
    pub fn expect_reply(
        &mut self,
        from: WorkerRef,
        most_reply: usize,
        cont: ReplyCont,
    ) -> Result<u64, CallError> {
        self.messaging.expect_reply(from, most_reply, true, cont)
    }

    /// Cancels [`Worker::expect_reply`]: nothing was written, so no reply will arrive.
    pub fn forget_reply(&mut self, token: u64) {
        self.messaging.forget_reply(token);
    }

    /// Copies the body of a record that is still in a log to `out` again, as whole words. The writer can change the log
    /// at any time: the caller must validate the copy again.
    ///
    /// # Panics
    /// If the log holds no such record.
    pub fn read_log(&self, log: LogId, end: u64, body_bytes: usize, out: &mut Vec<u64>) {
        let log = self.logs.incoming(log);
        log.ring.read_again(end, body_bytes, out);
    }

    /// Returns the worker that writes a log that this worker polls.
    pub fn log_writer(&self, log: LogId) -> WorkerRef {
        self.logs.incoming(log).from
    }

    /// As [`Worker::log_writer`]; `None` for a log that is gone.
    pub fn find_log_writer(&self, log: LogId) -> Option<WorkerRef> {
        let log = self.logs.incoming.get(log.index())?.as_ref();
        log.map(|log| log.from)
    }

    /// Frees everything in a log before position `end`, so that its writer can use the room again. Stores `note` beside the log,
    /// as long as the log exists: what must be known of the records that are gone.
    ///
    /// # Panics
    /// If the position is beyond what was read.
    pub fn free_log(&mut self, log: LogId, end: u64, note: u64) {
        let log = &mut self.logs.incoming[log.index()];
        if let Some(log) = log {
            log.ring.free_noting(end, Some(note), &mut self.endpoint);
        }
        drop_if_done(log);
    }

    /// Returns the log of this worker in the memory of its own machine, if commits are logged.
    #[inline]
    pub fn own_log(&mut self) -> Option<&mut OwnLog> {
        self.logs.own.as_mut()
    }

    /// Appends a record to the own log, where its bytes are reserved. Returns the position after it.
    ///
    /// # Panics
    /// If commits are not logged, the record is too large, or its bytes were not reserved.
    pub fn append_own(&mut self, kind: u16, token: u64, body: &[&[u8]]) -> u64 {
        let header = Header {
            kind: Kind::OneWay,
            to_worker: self.me.worker,
            message_id: kind,
            token,
        };
        let logs = &mut self.logs;
        let bytes = log_record_bytes(body.iter().map(|part| part.len()).sum());
        logs.counters.own += 1;
        logs.counters.own_bytes += u64::from(bytes);
        let own = logs.own.as_mut();
        own.expect("a worker whose commits are logged has a log of its own")
            .append(header, body)
    }

    /// Closes the connection to a machine that sent something invalid, and stops the local machine with the reason
    /// `why`.
    pub fn distrust(&mut self, machine: MachineId, why: String) {
        self.cut_off(machine, why);
    }

    pub(super) fn poll_logs(&mut self) -> bool {
        let handler = self.logs.handler.filter(|_| !self.logs.frozen);
        let Some(handler) = handler else {
            return false;
        };
        let mut busy = false;
        let mut body = std::mem::take(&mut self.message_body);
        for index in 0..self.logs.incoming.len() {
            for _ in 0..BURST {
                let Some(record) = self.take_record(index, &mut body) else {
                    break;
                };
                handler(self, record, &body);
                busy = true;
            }
        }
        self.message_body = body;
        busy
    }

    /// Handles all records in the log of a worker of another machine, if this worker polls it. Returns whether all are freed.
    pub(super) fn handle_log_of(&mut self, from: WorkerRef) -> bool {
        let mut logs = self.logs.incoming.iter();
        let is_its = |log: &Option<IncomingLog>| {
            log.as_ref()
                .is_some_and(|log| log.from == from && !log.lost)
        };
        let log = logs.position(is_its);
        let (Some(index), Some(handler)) = (log, self.logs.handler) else {
            return true;
        };
        let mut body = Vec::new();
        while let Some(record) = self.take_record(index, &mut body) {
            handler(self, record, &body);
        }
        let log = self.logs.incoming[index].as_ref();
        log.is_none_or(|log| log.ring.head() == log.ring.position())
    }

    #[inline]
    fn take_record(&mut self, index: usize, body: &mut Vec<u8>) -> Option<LogRecord> {
        let log = self.logs.incoming[index].as_mut()?;
        if log.lost {
            return None;
        }
        let from = log.from;
        let found = match log.ring.peek(&mut self.endpoint, self.now) {
            Ok(None) => return None,
            Ok(Some(record)) => record,
            Err(error) => {
                let why = format!("the log of {from} holds garbage: {error}");
                self.cut_off(from.machine, why);
                return None;
            }
        };
        body.clear();
        body.extend_from_slice(found.body);
        let (kind, token) = (found.message_id, found.token);
        let end = log.ring.keep();
        self.logs.counters.handled += 1;
        Some(LogRecord {
            log: LogId(index as u32),
            from,
            kind,
            token,
            end,
            link: self.messaging.number_of(from.machine),
        })
    }

    /// Handles the completion of a write with an [`Append::acknowledged`] continuation.
    #[inline]
    pub(super) fn acknowledged(&mut self, ack: usize, status: Status) {
        let cont = self.logs.acks.remove(ack);
        self.logs.counters.acknowledged += u64::from(status == Status::Ok);
        cont.resume(self, status);
    }
}

/// Drops a log of a machine that has departed, if nothing in it is needed, and with it the memory of its ring. What was not taken from
/// it may still be to be drained.
fn drop_if_done(log: &mut Option<IncomingLog>) {
    log.take_if(|log| log.lost && !log.drains && log.ring.head() == log.ring.position());
}

/// Returns the slot of an acknowledged write to the arena.
pub(super) fn return_slot(endpoint: &mut Endpoint, slot: Option<crate::fabric::Slot>) {
    if let Some(slot) = slot {
        endpoint.arena().give(slot);
    }
}
