//! The messages of one worker: sending, matching replies to calls, and taking records off the
//! rings.

use std::collections::VecDeque;

use slab::Slab;

use super::links::Incoming;
use super::{CallError, LinkError, LinkPeer, Links, MessageId, PeerLinks, ReplyCont, Request};
use crate::fabric::Endpoint;
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::limits::MAX_WORKERS;
use crate::ring::{Header, Kind, ReplyCredits, RingError, RingSender, SendError};
use crate::time::Nanos;
use crate::{marks, mutants};

/// Maximum number of records taken from one ring before the next ring is polled.
const BURST: usize = 64;

/// Bits of a token below the calling worker: 8 bits of generation and 24 bits of call index.
const CALL_BITS: u32 = 32;
/// Where the token of a record that was handed over has the low bits of the [number](Links::numbers) of the connection over which it came: in bits
/// that a worker's id does not use.
const LINK_SHIFT: u32 = CALL_BITS + MAX_WORKERS.ilog2();
const LINK: u64 = (1 << (CALL_BITS + u16::BITS)) - (1 << LINK_SHIFT);
const _: () = assert!(MAX_WORKERS.is_power_of_two() && LINK.count_ones() == 10);

struct PendingCall {
    to: WorkerRef,
    reserved: usize,
    generation: u16,
    cont: ReplyCont,
}

struct DeferredReply {
    to: WorkerRef,
    header: Header,
    body: Vec<u8>,
}

/// The result of [`Messaging::take`].
pub(crate) enum Taken {
    /// The ring has no record, or a record that cannot be handed over yet.
    Nothing,
    /// A record for another worker of this machine was handed over.
    HandedOver,
    /// A request or one-way message. Its body is in the buffer.
    Message(MessageId, Request),
    /// The reply that ends a call. Its body is in the buffer.
    Reply(ReplyCont),
    /// A reply to a call that has ended already because its machine was lost, or a record of a process that was lost, which another worker had
    /// handed over.
    Stale,
}

/// A violation of the protocol by another machine.
#[derive(Debug)]
pub(crate) struct Garbage {
    pub(crate) machine: MachineId,
    /// What the machine did, as a clause that follows "because".
    pub(crate) why: String,
}

/// The messages of one worker.
pub(crate) struct Messaging {
    me: WorkerRef,
    links: Links,
    calls: Slab<PendingCall>,
    generation: u16,
    deferred: VecDeque<DeferredReply>,
    /// Whether, since the last poll began, a record for another worker was found that could not be
    /// handed over.
    hand_over_waits: bool,
    /// The ring that is polled first: the first one whose hand-over waited, or the next one if records of that one had been handed over,
    /// so that all rings in turn get the room of another worker's ring.
    first_ring: usize,
    /// The number of records that were handed over since the last poll began, and the ring of the last one.
    handed: (u64, usize),
    /// Time of the current poll of all rings.
    polled: Nanos,
    max_body: usize,
    pub(crate) counters: MessageCounters,
}

/// Counters of ring messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounters {
    /// Calls sent.
    pub calls: u64,
    /// One-way messages sent.
    pub one_way: u64,
    /// Replies sent.
    pub replies: u64,
    /// Records received for this worker.
    pub received: u64,
    /// Records handed over to another worker of the machine.
    pub handed_over: u64,
    /// Replies deferred until the peer reported a ring's head.
    pub deferred: u64,
    /// Calls not sent because the ring, or the reply credit, was exhausted.
    pub busy: u64,
}

impl Messaging {
    pub(crate) fn new(me: WorkerRef, links: Links, max_message: usize, calls: usize) -> Self {
        Self {
            me,
            links,
            calls: Slab::with_capacity(calls),
            generation: 0,
            deferred: VecDeque::with_capacity(64),
            hand_over_waits: false,
            first_ring: 0,
            handed: (0, 0),
            polled: Nanos::default(),
            max_body: max_message,
            counters: MessageCounters::default(),
        }
    }

    pub(crate) fn max_body(&self) -> usize {
        self.max_body
    }

    pub(crate) fn machines(&self) -> &[(MachineId, usize)] {
        &self.links.machines
    }

    fn machine_index(&self, to: WorkerRef) -> Result<usize, CallError> {
        let index = Links::index_of(&self.links.machines, to.machine);
        match index {
            Some(index) if to.worker.index() < self.links.machines[index].1 => Ok(index),
            _ => Err(CallError::NoWorker(to)),
        }
    }

    fn send(
        &mut self,
        endpoint: &mut Endpoint,
        index: usize,
        to: WorkerRef,
        header: Header,
        body: &[&[u8]],
    ) -> Result<(), CallError> {
        let ring = match &mut self.links.out[index] {
            Some(ring) => ring,
            None if to.machine == self.me.machine => &mut self.links.within[to.worker.index()],
            None => return Err(CallError::PeerLost(to.machine)),
        };
        match ring.try_send(endpoint, header, body) {
            Ok(()) => Ok(()),
            Err(SendError::Full) => Err(CallError::Busy),
            Err(SendError::TooLarge {
                body_bytes,
                max_body_bytes,
            }) => Err(CallError::TooLarge {
                bytes: body_bytes,
                most: max_body_bytes as usize,
            }),
            Err(SendError::Closed) => Err(CallError::PeerLost(to.machine)),
            Err(error @ (SendError::Refused { .. } | SendError::BadHead(_))) => {
                tracing::error!(%to, %error, "cannot send to the worker: the memory or the head of its ring is invalid; closing the connection");
                endpoint.close(to.machine);
                Err(CallError::PeerLost(to.machine))
            }
        }
    }

    /// Sends a one-way message.
    pub(crate) fn send_one_way(
        &mut self,
        endpoint: &mut Endpoint,
        to: WorkerRef,
        id: MessageId,
        body: &[&[u8]],
    ) -> Result<(), CallError> {
        let index = self.machine_index(to)?;
        let header = self.header(Kind::OneWay, to.worker, id, self.token(0, 0));
        self.send(endpoint, index, to, header, body)?;
        self.counters.one_way += 1;
        Ok(())
    }

    /// Registers a pending call, and reserves room for a reply of at most `most_reply` bytes. The
    /// caller writes the request, as a message or by other means. Returns the token that the reply
    /// must contain.
    pub(crate) fn expect_reply(
        &mut self,
        to: WorkerRef,
        most_reply: usize,
        prompt: bool,
        cont: ReplyCont,
    ) -> Result<u64, CallError> {
        let index = self.machine_index(to)?;
        let credits = self.links.credits[index].get_mut(to.worker.index());
        let credits = credits.ok_or(CallError::PeerLost(to.machine))?;
        let most = self.max_body.min(credits.max_body_bytes() as usize);
        if most_reply > most {
            return Err(CallError::TooLarge {
                bytes: most_reply,
                most,
            });
        }
        if !credits.try_take(most_reply, prompt) {
            marks::mark("message: reply credits exhausted");
            self.counters.busy += 1;
            return Err(CallError::Busy);
        }
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let call = self.calls.insert(PendingCall {
            to,
            reserved: most_reply,
            generation,
            cont,
        });
        Ok(self.token(call, generation))
    }

    /// Cancels [`Messaging::expect_reply`] and returns its credit.
    pub(crate) fn forget_reply(&mut self, token: u64) {
        let call = self.calls.remove(call_index(token));
        let index = self.machine_index(call.to);
        let index = index.expect("the worker of a pending call exists");
        self.give_credit(index, call.to.worker, call.reserved);
    }

    fn give_credit(&mut self, index: usize, worker: WorkerId, bytes: usize) {
        if let Some(credits) = self.links.credits[index].get_mut(worker.index()) {
            credits.give(bytes);
        }
    }

    /// Sends a request and reserves room for a reply of `most_reply` bytes.
    pub(crate) fn call(
        &mut self,
        endpoint: &mut Endpoint,
        to: WorkerRef,
        id: MessageId,
        body: &[&[u8]],
        most_reply: usize,
        cont: ReplyCont,
    ) -> Result<(), CallError> {
        let token = self.expect_reply(to, most_reply, id.is_prompt(), cont)?;
        let header = self.header(Kind::Request, to.worker, id, token);
        let index = self.machine_index(to)?;
        let sent = self.send(endpoint, index, to, header, body);
        match sent {
            Ok(()) => self.counters.calls += 1,
            Err(_) => {
                self.forget_reply(token);
                self.counters.busy += u64::from(sent == Err(CallError::Busy));
            }
        }
        sent
    }

    /// Replies to a request. The requester reserved the room in the ring. If the report that frees this room has not
    /// arrived yet, or the endpoint has no room, the reply is deferred and sent later.
    ///
    /// # Errors
    /// [`Garbage`] if the requester's machine causes more deferred replies than a correct one can.
    pub(crate) fn reply(
        &mut self,
        endpoint: &mut Endpoint,
        request: Request,
        body: &[&[u8]],
    ) -> Result<(), Garbage> {
        let Some(token) = request.token else {
            return Ok(());
        };
        if self.counters.replies % 16 == 9 && mutants::is_on("reply lost") {
            self.counters.replies += 1;
            return Ok(());
        }
        let to = request.from;
        if request.link != self.number_of(to.machine) {
            marks::mark("message: requester has been started again");
            return Ok(());
        }
        let header = self.header(Kind::Reply, to.worker, MessageId(0), token);
        let Ok(index) = self.machine_index(to) else {
            return Ok(());
        };
        match self.send(endpoint, index, to, header, body) {
            Ok(()) => self.counters.replies += 1,
            Err(CallError::Busy) if self.deferred_bytes(to.machine) > self.most_deferred(index) => {
                return Err(Garbage {
                    machine: to.machine,
                    why: format!("{to} sends requests, but does not free space for their replies"),
                });
            }
            Err(CallError::Busy) => {
                marks::mark("message: reply deferred");
                self.counters.deferred += 1;
                self.deferred.push_back(DeferredReply {
                    to,
                    header,
                    body: body.concat(),
                });
            }
            // The requester's machine is lost: there is no recipient.
            Err(CallError::PeerLost(_)) => {}
            Err(error) => panic!("sending a reply failed: {error}"),
        }
        Ok(())
    }

    /// Returns the bytes of the deferred replies to a machine.
    fn deferred_bytes(&self, machine: MachineId) -> usize {
        let waiting = self.deferred.iter();
        let to = waiting.filter(|reply| reply.to.machine == machine);
        to.map(|reply| size_of::<DeferredReply>() + reply.body.len())
            .sum()
    }

    /// Returns the most bytes of deferred replies that a correct machine can cause: the space that
    /// it can reserve.
    fn most_deferred(&self, index: usize) -> usize {
        let ring = self.links.out[index].as_ref();
        ring.map_or(usize::MAX, |ring| ring.capacity_bytes() as usize)
    }

    /// Sends deferred replies.
    pub(crate) fn send_deferred(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut sent = false;
        for _ in 0..self.deferred.len() {
            let Some(reply) = self.deferred.pop_front() else {
                break;
            };
            let Ok(index) = self.machine_index(reply.to) else {
                continue;
            };
            match self.send(endpoint, index, reply.to, reply.header, &[&reply.body]) {
                Err(CallError::Busy) => self.deferred.push_back(reply),
                _ => {
                    self.counters.replies += 1;
                    sent = true;
                }
            }
        }
        sent
    }

    /// Begins a poll of all rings at the time `now`. Returns the rings in the order in which to poll them.
    #[inline]
    pub(crate) fn begin_poll(&mut self, now: Nanos) -> impl Iterator<Item = usize> + use<> {
        self.polled = now;
        self.hand_over_waits = false;
        self.handed = (0, 0);
        let rings = self.links.incoming.len();
        // It may be after the last one, and there are fewer after a machine was lost.
        let first = self.first_ring.min(rings);
        (first..rings).chain(0..first)
    }

    /// Returns whether this worker must keep polling: it waits for an event for which no
    /// notification arrives.
    pub(crate) fn must_poll(&self) -> bool {
        let mut rings = self.links.incoming.iter();
        self.is_waiting()
            || self.hand_over_waits
            || rings.any(|incoming| incoming.ring.owes_report())
    }

    /// Returns how many records were handed over to other workers since the last poll began, if one had to wait.
    pub(crate) fn handed_over_until_full(&self) -> Option<u64> {
        self.hand_over_waits.then_some(self.handed.0)
    }

    /// Returns the number of messages that were sent, but for replies.
    pub(crate) fn sent(&self) -> u64 {
        self.counters.calls + self.counters.one_way
    }

    /// Returns the most records to take from one ring before the next ring is polled.
    pub(crate) fn burst(&self) -> usize {
        BURST
    }

    /// Takes the next record of a ring and stores its body in `body`.
    pub(crate) fn take(
        &mut self,
        ring: usize,
        endpoint: &mut Endpoint,
        body: &mut Vec<u8>,
    ) -> Result<Taken, Garbage> {
        let incoming = &mut self.links.incoming[ring];
        let (machine, sender) = (incoming.machine, incoming.sender);
        let garbage = |why: String| Garbage { machine, why };
        let record = match incoming.ring.peek(endpoint, self.polled) {
            Ok(None) => return Ok(Taken::Nothing),
            Ok(Some(record)) => record,
            Err(error) => return Err(garbage(ring_error(machine, sender, &error))),
        };
        let header = Header {
            kind: record.kind,
            to_worker: record.to_worker,
            message_id: record.message_id,
            token: record.token,
        };
        if header.to_worker != self.me.worker {
            let Some(next) = self.links.within.get_mut(header.to_worker.index()) else {
                return Err(garbage(format!(
                    "{machine}.{sender} sent a message to worker {}, which does not exist",
                    header.to_worker
                )));
            };
            if header.token & LINK != 0 {
                return Err(garbage(format!(
                    "{machine}.{sender} sent a message that names no worker"
                )));
            }
            // Its connection is the current one: rings are removed with theirs.
            let number = Links::index_of(&self.links.machines, machine)
                .map_or(0, |index| self.links.numbers[index]);
            let header = Header {
                token: header.token | link_bits(number),
                ..header
            };
            return match next.try_send(endpoint, header, &[record.body]) {
                Ok(()) => {
                    incoming.ring.consume(endpoint);
                    // Mark only the first handed-over record of a worker, because their number is
                    // unbounded.
                    if self.counters.handed_over == 0 {
                        marks::mark("message: handed over");
                    }
                    self.counters.handed_over += 1;
                    self.handed = (self.handed.0 + 1, ring);
                    Ok(Taken::HandedOver)
                }
                // The record stays in its ring until the destination worker has made room.
                Err(_) => {
                    marks::mark("message: hand-over waits");
                    if !self.hand_over_waits {
                        self.hand_over_waits = true;
                        self.first_ring =
                            ring + usize::from(self.handed.0 > 0 && self.handed.1 == ring);
                    }
                    Ok(Taken::Nothing)
                }
            };
        }
        body.clear();
        body.extend_from_slice(record.body);
        if self.counters.received % 16 != 9 || !mutants::is_on("ring record taken twice") {
            incoming.ring.consume(endpoint);
        }
        self.counters.received += 1;
        self.accept(machine, header)
    }

    /// Accepts a record from a ring of this machine, for which `machine` is the own one, or of another machine.
    fn accept(&mut self, machine: MachineId, mut header: Header) -> Result<Taken, Garbage> {
        let within = machine == self.me.machine;
        let link = header.token & LINK;
        if within {
            header.token &= !LINK;
        }
        let garbage = |what: &str| Garbage {
            machine,
            why: format!("{machine} sent {what}"),
        };
        match header.kind {
            Kind::OneWay | Kind::Request => {
                let from = WorkerRef::from_bits(origin(header.token))
                    .ok_or_else(|| garbage("a message that does not contain a valid sender"))?;
                if !within && from.machine != machine {
                    return Err(garbage(
                        "a message that names another machine as its sender",
                    ));
                }
                let current = self.number_of(from.machine);
                if within && link != link_bits(current) {
                    marks::mark("message: requester has been started again");
                    return Ok(Taken::Stale);
                }
                let token = (header.kind == Kind::Request).then_some(header.token);
                Ok(Taken::Message(
                    MessageId(header.message_id),
                    Request {
                        from,
                        token,
                        link: current,
                    },
                ))
            }
            Kind::Reply => {
                let call = call_index(header.token);
                let generation = (header.token >> 24) as u8;
                let pending = self.calls.get(call);
                match pending.filter(|pending| pending.generation as u8 == generation) {
                    // A record that another worker of this machine handed over may come from any
                    // machine.
                    Some(pending) if !within && pending.to.machine != machine => Err(garbage(
                        "a reply to a call that was sent to another machine",
                    )),
                    Some(pending)
                        if within && link != link_bits(self.number_of(pending.to.machine)) =>
                    {
                        marks::mark("message: stale reply");
                        Ok(Taken::Stale)
                    }
                    Some(_) => {
                        let PendingCall {
                            to, reserved, cont, ..
                        } = self.calls.remove(call);
                        let index = self
                            .machine_index(to)
                            .expect("the worker of a pending call exists");
                        if !mutants::is_on("reply credit not given back") {
                            self.give_credit(index, to.worker, reserved);
                        }
                        Ok(Taken::Reply(cont))
                    }
                    None => {
                        marks::mark("message: stale reply");
                        Ok(Taken::Stale)
                    }
                }
            }
        }
    }

    /// Wires the rings between this worker and the machine at this index, which has connected. The connection is counted also if that fails, so
    /// that all workers of this machine give it the same number.
    pub(crate) fn wire(
        &mut self,
        endpoint: &mut Endpoint,
        (index, peer): (usize, &LinkPeer),
    ) -> Result<PeerLinks, LinkError> {
        self.links.numbers[index] = self.links.numbers[index].wrapping_add(1);
        self.links.peer(endpoint, peer)
    }

    /// Adds the rings of the machine at this index, which has none.
    pub(crate) fn link(
        &mut self,
        (index, boot): (usize, u64),
        out: RingSender,
        credits: Vec<ReplyCredits>,
        incoming: Vec<Incoming>,
    ) {
        self.links.boots[index] = boot;
        self.links.out[index] = Some(out);
        self.links.credits[index] = credits;
        self.links.incoming.extend(incoming);
    }

    /// Returns the number of a machine's start to which there is, or was last, a connection.
    pub(crate) fn boot_of(&self, machine: MachineId) -> u64 {
        let index = Links::index_of(&self.links.machines, machine);
        index.map_or(0, |index| self.links.boots[index])
    }

    /// Returns the number of the current connection to a machine.
    pub(crate) fn number_of(&self, machine: MachineId) -> u32 {
        let index = Links::index_of(&self.links.machines, machine);
        index.map_or(0, |index| self.links.numbers[index])
    }

    /// Returns whether this worker has rings to the machine at this index.
    pub(crate) fn is_linked(&self, index: usize) -> bool {
        self.links.out[index].is_some()
    }

    /// Removes the calls, deferred replies and rings of a machine whose connection has ended. Appends the continuations of the
    /// calls to `lost`.
    pub(crate) fn unlink(&mut self, machine: MachineId, lost: &mut Vec<ReplyCont>) {
        self.calls.retain(|_, call| {
            let keep = call.to.machine != machine;
            if !keep {
                lost.push(call.cont);
            }
            keep
        });
        self.deferred.retain(|reply| reply.to.machine != machine);
        let links = &mut self.links;
        links.incoming.retain(|ring| ring.machine != machine);
        if let Some(index) = Links::index_of(&links.machines, machine) {
            links.out[index] = None;
            links.credits[index].clear();
        }
    }

    /// Returns whether a deferred reply is not sent yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the bytes reserved for replies: zero when no call is in flight, unless a machine was
    /// lost.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let credits = self.links.credits.iter().flatten();
        credits
            .map(|credits| u64::from(credits.taken_bytes()))
            .sum()
    }

    /// Returns the bytes that this worker has sent and received through rings so far. Summed over an
    /// idle cluster, both are equal.
    pub(crate) fn carried(&self) -> (u64, u64) {
        let senders = self.links.out.iter().flatten().chain(&self.links.within);
        let receivers = self.links.incoming.iter();
        let sent = senders.map(|sender| sender.tail()).sum();
        (sent, receivers.map(|incoming| incoming.ring.head()).sum())
    }

    /// Returns the number of calls without a reply.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }

    fn header(&self, kind: Kind, to_worker: WorkerId, id: MessageId, token: u64) -> Header {
        Header {
            kind,
            to_worker,
            message_id: id.0,
            token,
        }
    }

    fn token(&self, call: usize, generation: u16) -> u64 {
        debug_assert!(call < 1 << 24, "{call} calls");
        u64::from(self.me.to_bits()) << CALL_BITS | u64::from(generation as u8) << 24 | call as u64
    }
}

fn call_index(token: u64) -> usize {
    (token & u64::from(u32::MAX >> 8)) as usize
}

/// Returns the bits of a token that the number of a connection takes.
fn link_bits(number: u32) -> u64 {
    (u64::from(number) << LINK_SHIFT) & LINK
}

fn origin(token: u64) -> u32 {
    (token >> CALL_BITS) as u32
}

fn ring_error(machine: MachineId, sender: WorkerId, error: &RingError) -> String {
    format!("the ring of {machine}.{sender} holds garbage: {error}")
}
