//! Messages of any length, in parts. Those between two workers arrive whole, and in order.

use std::collections::{BTreeMap, VecDeque};

use super::{Cont, Worker};
use crate::ids::{MachineId, WorkerRef};
use crate::messaging::{CallError, MessageId, Request};

/// A part of a long message: the id, whether it is the last part, and bytes. One-way.
const PART: MessageId = MessageId(MessageId::CORE + 9);
/// Bytes of a part before its share of the message.
const HEAD_BYTES: usize = 3;
/// The longest message. Only a machine that does not follow the protocol sends a longer one.
const MOST_BYTES: usize = 1 << 30;

/// Handles a long message of a worker.
pub type LongHandler = fn(&mut Worker, WorkerRef, &[u8]);

/// The long messages of a worker.
#[derive(Default)]
pub(super) struct LongMessages {
    handlers: BTreeMap<u16, Handler>,
    /// What is not sent yet, by receiver.
    out: BTreeMap<WorkerRef, VecDeque<Unsent>>,
    /// What has arrived of messages that are not complete, by sender.
    arriving: BTreeMap<WorkerRef, Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Handler {
    handle: LongHandler,
    /// Whether only workers of the same machine send such messages.
    is_own: bool,
}

struct Unsent {
    id: u16,
    body: Vec<u8>,
    /// Number of bytes that are sent.
    sent: usize,
}

impl LongMessages {
    /// Drops what is under way between this worker and a machine whose connection has ended.
    pub(super) fn unlink(&mut self, machine: MachineId) {
        self.out.retain(|to, _| to.machine != machine);
        self.arriving.retain(|from, _| from.machine != machine);
    }

    /// Returns the number of messages that are not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.out.values().map(VecDeque::len).sum()
    }
}

impl Worker {
    pub(super) fn register_long_handlers(&mut self) {
        self.register(PART, Self::handle_part);
    }

    /// Registers the handler of all long messages with this id, which have ids of their own.
    ///
    /// # Panics
    /// If the id already has a handler.
    pub fn register_long(&mut self, id: u16, handle: LongHandler) {
        self.register_handler(id, handle, false);
    }

    /// As [`Worker::register_long`], for messages that only workers of this machine send.
    ///
    /// # Panics
    /// If the id already has a handler.
    pub fn register_own_long(&mut self, id: u16, handle: LongHandler) {
        self.register_handler(id, handle, true);
    }

    fn register_handler(&mut self, id: u16, handle: LongHandler, is_own: bool) {
        let before = self.long.handlers.insert(id, Handler { handle, is_own });
        assert!(before.is_none(), "long message {id} already has a handler");
    }

    /// Sends a one-way message of any length to a worker. It is lost if the connection ends.
    pub fn send_long(&mut self, to: WorkerRef, id: u16, body: Vec<u8>) {
        let unsent = self.long.out.entry(to).or_default();
        unsent.push_back(Unsent { id, body, sent: 0 });
        // If others wait, the continuation that sends them sends this one, too.
        if unsent.len() == 1 {
            self.send_parts(to.to_bits().into(), ());
        }
    }

    fn send_parts(&mut self, context: u64, (): ()) {
        let to = WorkerRef::from_bits(context as u32);
        let to = to.expect("the context of this continuation names a worker");
        let most = self.max_message_body() - HEAD_BYTES;
        while let Some(mut unsent) = self.long.out.get_mut(&to).and_then(VecDeque::pop_front) {
            let end = unsent.body.len().min(unsent.sent + most);
            let is_last = end == unsent.body.len();
            let [low, high] = unsent.id.to_le_bytes();
            let head = [low, high, u8::from(is_last)];
            let part = &unsent.body[unsent.sent..end];
            match self.send(to, PART, &[&head, part]) {
                Ok(()) if is_last => continue,
                Ok(()) => unsent.sent = end,
                Err(CallError::Busy) => {
                    self.when_room(Cont::new(Self::send_parts, context));
                    self.unsent(to, unsent);
                    return;
                }
                // The connection has ended, or ends soon.
                Err(_) => {
                    self.long.out.remove(&to);
                    return;
                }
            }
            self.unsent(to, unsent);
        }
    }

    fn unsent(&mut self, to: WorkerRef, unsent: Unsent) {
        let queue = self.long.out.entry(to).or_default();
        queue.push_front(unsent);
    }

    fn handle_part(&mut self, request: Request, body: &[u8]) {
        let from = request.from;
        let arrived = self.long.arriving.remove(&from).unwrap_or_default();
        let parsed = body.split_first_chunk::<HEAD_BYTES>();
        let parsed = parsed.filter(|(_, part)| arrived.len() + part.len() <= MOST_BYTES);
        let handler = parsed.and_then(|(head, _)| {
            let id = u16::from_le_bytes([head[0], head[1]]);
            let handler = self.long.handlers.get(&id).copied();
            handler.filter(|handler| !handler.is_own || from.machine == self.me.machine)
        });
        let (Some((head, part)), Some(handler)) = (parsed, handler) else {
            let why = format!(
                "{from} sent a part of a long message that is malformed, or that only workers of the receiver's machine send"
            );
            return self.distrust(from.machine, why);
        };
        let mut whole = arrived;
        whole.extend_from_slice(part);
        match head[2] {
            0 => _ = self.long.arriving.insert(from, whole),
            _ => (handler.handle)(self, from, &whole),
        }
    }
}
