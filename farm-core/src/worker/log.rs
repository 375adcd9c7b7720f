//! Logs: what a worker writes into the memory of other machines for their processors to work on later,
//! and what others have written for it (`FaRM'15 §4`).
//!
//! A log is a ring whose records stay until whoever polls it frees them. What the records say is the
//! business of the layer that [registers](Worker::register_log).

use super::{Cont, Worker};
use crate::fabric::{Endpoint, Status, Token};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::marks;
use crate::messaging::{CallError, IncomingLog, Links, ReplyCont, Request};
use crate::ring::{Header, Kind, LogSender, SendError, log_record_bytes};

/// Records taken from one log before the next has its turn.
const BURST: usize = 32;

/// Names a log that this worker polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(u32);

impl LogId {
    /// Its number, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A record of a log, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The log.
    pub log: LogId,
    /// Who wrote it.
    pub from: WorkerRef,
    /// What it is, in the words of the layer that handles it.
    pub kind: u16,
    /// A word that came with it.
    pub token: u64,
    /// The position in the log just after it, which names it.
    pub end: u64,
}

impl LogRecord {
    /// The call that its writer waits for, by the token that [`Worker::expect_reply`] gave it.
    pub fn request(&self, token: u64) -> Request {
        Request {
            from: self.from,
            token: Some(token),
        }
    }
}

/// Handles a record. It stays in the log until [`Worker::free_log`].
pub type LogHandler = fn(&mut Worker, LogRecord, &[u8]);

/// A record to be appended.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// Whose log.
    pub to: MachineId,
    /// What it is.
    pub kind: u16,
    /// A word that goes with it.
    pub token: u64,
    /// Its body, one part after the other.
    pub body: &'a [&'a [u8]],
    /// Bytes that were reserved for it, as [`crate::ring::log_record_bytes`] counts them.
    pub reserved: u32,
    /// Hears when it is in the machine's memory, or that the connection broke before it was known.
    pub acknowledged: Option<Cont<Status>>,
}

/// Records of logs counted. The fabric counts the same writes once more, and the messaging the replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Records appended to logs at other machines: one one-sided write each.
    pub appended: u64,
    /// Bytes that they take in the logs, without fillers.
    pub appended_bytes: u64,
    /// Appended records whose acknowledgement somebody waited for, and which were acknowledged.
    pub acknowledged: u64,
    /// Records found in the logs that this worker polls, and handled.
    pub handled: u64,
    /// Reservations refused because a log was full.
    pub full: u64,
}

/// The logs of one worker.
pub(super) struct Logs {
    /// In the order of the cluster's machines.
    out: Vec<Option<LogSender>>,
    incoming: Vec<IncomingLog>,
    handler: Option<LogHandler>,
    /// Who waits for the acknowledgement of a write.
    acks: slab::Slab<Cont<Status>>,
    pub(super) counters: LogCounters,
}

impl Logs {
    pub(super) fn new(links: &mut Links, operations: usize) -> Self {
        Self {
            out: std::mem::take(&mut links.logs_out),
            incoming: std::mem::take(&mut links.logs_in),
            handler: None,
            acks: slab::Slab::with_capacity(operations),
            counters: LogCounters::default(),
        }
    }

    /// Whether a report of a head is owed that nobody will remind this worker of.
    pub(super) fn must_poll(&self) -> bool {
        self.incoming.iter().any(|log| log.ring.owes_report())
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        let out = self.out.iter().flatten();
        out.map(|log| u64::from(log.reserved_bytes())).sum()
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.acks.len()
    }

    /// Bytes sent, and given back.
    pub(super) fn carried(&self) -> (u64, u64) {
        let sent = self.out.iter().flatten().map(LogSender::tail).sum();
        (sent, self.incoming.iter().map(|log| log.ring.head()).sum())
    }

    /// Nothing more is taken from the logs of a machine.
    pub(super) fn lose(&mut self, machine: MachineId) {
        let logs = self.incoming.iter_mut();
        logs.filter(|log| log.from.machine == machine)
            .for_each(|log| log.lost = true);
    }

    fn sender(&mut self, machine: usize, to: MachineId) -> Result<&mut LogSender, CallError> {
        let none = CallError::NoWorker(WorkerRef::new(to, WorkerId::FIRST));
        self.out[machine].as_mut().ok_or(none)
    }
}

impl Worker {
    /// Handles all records of logs from now on.
    ///
    /// # Panics
    /// If there is a handler already.
    pub fn register_log(&mut self, handler: LogHandler) {
        let before = self.logs.handler.replace(handler);
        assert!(before.is_none(), "logs have a handler already");
    }

    /// Logs that this worker polls.
    pub fn logs(&self) -> usize {
        self.logs.incoming.len()
    }

    /// The worker of another machine that polls this worker's log there, and answers what it says.
    ///
    /// # Errors
    /// [`CallError::NoWorker`] for a machine that is not of the cluster.
    pub fn log_poller(&self, machine: MachineId) -> Result<WorkerRef, CallError> {
        let (_, workers) = self.machines()[self.machine_place(machine)?];
        let poller = (self.me.worker.index() % workers) as u16;
        let poller =
            WorkerId::new(poller).expect("a machine has no more workers than there are ids");
        Ok(WorkerRef::new(machine, poller))
    }

    /// Records of logs so far.
    pub fn log_counters(&self) -> LogCounters {
        self.logs.counters
    }

    /// Most bytes of the body of one record in the log at another machine.
    ///
    /// # Errors
    /// [`CallError::NoWorker`] for this machine, or one that is not of the cluster.
    pub fn max_log_body(&mut self, machine: MachineId) -> Result<usize, CallError> {
        let place = self.machine_place(machine)?;
        Ok(self.logs.sender(place, machine)?.max_body_bytes() as usize)
    }

    /// Reserves room in the log at another machine for records of so many bytes together, as
    /// [`crate::ring::log_record_bytes`] counts them. What is appended uses it up, or
    /// [`Worker::release_log`].
    ///
    /// # Errors
    /// [`CallError::Busy`] while there is not so much, [`CallError::TooLarge`] when there never will
    /// be, [`CallError::PeerLost`].
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

    /// Gives back what [`Worker::reserve_log`] reserved and is not needed.
    ///
    /// # Panics
    /// When more comes back than was reserved, or there is no such log.
    pub fn release_log(&mut self, machine: MachineId, bytes: u32) {
        let place = self
            .machine_place(machine)
            .expect("a machine that has a log");
        let sender = self.logs.sender(place, machine);
        sender.expect("a machine that has a log").release(bytes);
    }

    /// Appends a record to the log at another machine.
    ///
    /// # Errors
    /// [`CallError::Busy`] when the endpoint has no room: to be tried again, and what was reserved
    /// still is. [`CallError::PeerLost`].
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
        let signal = ack.map(|ack| Token(ack as u64 + 1));
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
                tracing::error!(%machine, %error, "the log of a machine is of no use");
                self.endpoint.close(machine);
                CallError::PeerLost(machine)
            }
        }
    }

    fn machine_place(&self, machine: MachineId) -> Result<usize, CallError> {
        let machines = self.machines();
        machines
            .binary_search_by_key(&machine, |entry| entry.0)
            .map_err(|_| CallError::NoWorker(WorkerRef::new(machine, WorkerId::FIRST)))
    }

    /// Waits for an answer to what was written to another worker by other means than a message, and
    /// which it gives at once: the token is what it answers to. Room for the answer is reserved as by
    /// [`Worker::call`].
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

    /// Takes [`Worker::expect_reply`] back: nothing was written.
    pub fn forget_reply(&mut self, token: u64) {
        self.messaging.forget_reply(token);
    }

    /// Copies the body of a record that is still in a log out once more, as whole words. The log is its
    /// writer's to change: what is found is to be checked again.
    ///
    /// # Panics
    /// When there is no such record in the log.
    pub fn read_log(&self, log: LogId, end: u64, body_bytes: usize, out: &mut Vec<u64>) {
        self.logs.incoming[log.index()]
            .ring
            .read_again(end, body_bytes, out);
    }

    /// Gives everything in a log before a position back to its writer.
    ///
    /// # Panics
    /// When the position is beyond what was read.
    pub fn free_log(&mut self, log: LogId, end: u64) {
        let log = &mut self.logs.incoming[log.index()];
        log.ring.free(end, &mut self.endpoint);
    }

    /// Cuts a machine off whose record no correct sender writes.
    pub fn distrust(&mut self, machine: MachineId, why: String) {
        self.cut_off(machine, why);
    }

    pub(super) fn poll_logs(&mut self) -> bool {
        let Some(handler) = self.logs.handler else {
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

    #[inline]
    fn take_record(&mut self, index: usize, body: &mut Vec<u8>) -> Option<LogRecord> {
        let log = &mut self.logs.incoming[index];
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
        })
    }

    /// A write whose acknowledgement somebody waits for has ended.
    #[inline]
    pub(super) fn acknowledged(&mut self, token: Token, status: Status) {
        let cont = self.logs.acks.remove(token.0 as usize - 1);
        self.logs.counters.acknowledged += u64::from(status == Status::Ok);
        cont.resume(self, status);
    }
}

/// Gives the slot of an acknowledged write back.
pub(super) fn give_back(endpoint: &mut Endpoint, slot: Option<crate::fabric::Slot>) {
    if let Some(slot) = slot {
        endpoint.arena().give(slot);
    }
}
