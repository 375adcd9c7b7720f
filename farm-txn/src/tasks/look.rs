//! Lock-free reads by tasks.

use farm_core::object::{FatPointer, Image, Incarnation, payload_capacity};
use farm_core::worker::{Cont, ReadResult, Worker};

use super::answers::{Answer, Slot};
use super::reply::{answer, with_answer};
use super::tasks;
use crate::object_run::ObjectRun;
use crate::remote::error_of_read;

/// Bytes before each payload of an answer: the incarnation, and the length of the payload.
const HEAD_BYTES: usize = 16;

/// A lock-free read under way.
pub(super) struct Look {
    objects: ObjectRun,
    pointer: Option<FatPointer>,
    slot: Slot,
}

impl Look {
    /// Returns the start of a read, by a fat pointer if there is one. The answer contains the bytes that [`payloads`]
    /// and [`payload_of`] decode.
    pub(super) fn start(
        objects: ObjectRun,
        pointer: Option<FatPointer>,
    ) -> impl FnOnce(&mut Worker, Slot) + Send + 'static {
        move |worker, slot| match objects.check(worker) {
            Ok(()) => {
                let look = Look {
                    objects,
                    pointer,
                    slot,
                };
                let key = tasks(worker).looks.insert(look);
                post(worker, key, ());
            }
            Err(error) => answer(worker, slot, |answer| answer.fail(error)),
        }
    }
}

/// Posts a read, or waits for a slot of the arena to do so.
fn post(worker: &mut Worker, key: usize, (): ()) {
    let Look {
        objects, pointer, ..
    } = tasks(worker).looks[key];
    let cont = Cont::new(came, key);
    let posted = match pointer {
        Some(pointer) => worker.read_pointer_lock_free(pointer, cont),
        None => worker.read_lock_free(objects.request(), cont),
    };
    if posted.is_err() {
        worker.when_slot(objects.request().bytes(), Cont::new(post, key));
    }
}

fn came(worker: &mut Worker, key: usize, result: ReadResult) {
    let look = tasks(worker).looks.remove(key);
    match result {
        Ok(read) => {
            let mut bytes = with_answer(worker, look.slot, |answer| {
                std::mem::take(&mut answer.bytes)
            });
            let words = worker.arena().words(&read);
            for words in look.objects.images(words) {
                encode(words, &mut bytes);
            }
            worker.arena().give(read);
            answer(worker, look.slot, |answer| answer.bytes = bytes);
        }
        Err(error) => {
            let error = error_of_read(error, look.objects.first);
            answer(worker, look.slot, |answer| answer.fail(error));
        }
    }
}

/// Appends an object. An object that is not allocated has no payload.
fn encode(words: &[u64], bytes: &mut Vec<u8>) {
    let image = Image::check(words).expect("a lock-free read returns consistent objects");
    let incarnation = image.incarnation();
    let capacity = match incarnation.is_allocated() {
        true => payload_capacity(words.len() * 8),
        false => 0,
    };
    bytes.extend_from_slice(&incarnation.0.to_le_bytes());
    bytes.extend_from_slice(&(capacity as u64).to_le_bytes());
    let at = bytes.len();
    bytes.resize(at + capacity, 0);
    if capacity > 0 {
        image.copy_payload(0, &mut bytes[at..]);
    }
}

/// Returns the incarnation and the payload of the first object in these bytes, and the bytes of the others.
fn decode(bytes: &[u8]) -> Option<(Incarnation, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let word = |at: usize| {
        let bytes = head[at..at + 8].try_into();
        u64::from_le_bytes(bytes.expect("a slice of 8 bytes has 8 bytes"))
    };
    let (payload, rest) = rest.split_at_checked(word(8) as usize)?;
    Some((Incarnation(word(0)), payload, rest))
}

/// Returns the first `payload_bytes` of each object, and `None` for each slot without an object.
pub(super) fn payloads(answer: &Answer, payload_bytes: usize) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    let mut rest = &answer.bytes[..];
    while let Some((incarnation, payload, more)) = decode(rest) {
        let found = incarnation.is_allocated();
        all.push(found.then(|| payload[..payload_bytes.min(payload.len())].to_vec()));
        rest = more;
    }
    all
}

/// Returns the payload of the object that a pointer names, if it was read.
pub(super) fn payload_of(answer: &Answer, pointer: FatPointer) -> Option<&[u8]> {
    let (incarnation, payload, _) = decode(&answer.bytes)?;
    (incarnation.is_allocated() && pointer.names(incarnation)).then_some(payload)
}
