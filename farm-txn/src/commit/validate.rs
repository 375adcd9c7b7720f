//! Step 2 of a commit: objects that were read and not written are unchanged and unlocked (`FaRM'15 §4`).
//!
//! Objects of this machine are checked in its memory. Objects of other machines are checked by one-sided reads of
//! headers ([`drive`](super::drive)), or by a VALIDATE message if many objects of one machine were read.

use std::ops::Range;
use std::sync::atomic::Ordering;

use farm_core::ids::MachineId;
use farm_core::ids::{Address, WorkerRef};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{LockMode, Version, write};
use farm_core::worker::Worker;

use super::coordinator::Coordinator;
use super::reply::{REPLY_BYTES, Verdict};
use super::{conflict, is_unchanged, is_validated, local};
use crate::error::Abort;
use crate::layer::transactions;
use crate::tx::{Entry, Tx};

/// Message id of the request to check that objects are unchanged and unlocked.
pub(crate) const VALIDATE: MessageId = MessageId(MessageId::TXN + 1);

/// Bytes of one object in VALIDATE: its address and the version that was read.
pub(super) const VALIDATE_BYTES: usize = 16;

/// Issues a sequentially consistent fence between the locks of this machine's objects and the validation of objects on
/// any machine. Of two transactions that each write an object that the other transaction reads, at least one then sees
/// the other's lock. A commit that locks nothing on this machine, or validates nothing, needs no fence.
pub(super) fn fence(worker: &mut Worker, tx: &Tx) {
    let (mut reads, mut here) = (false, None);
    for entry in tx.entries.iter() {
        reads |= !entry.is_written();
        if entry.machine.is_none() {
            here = here.or(Some(entry.address));
        }
        if let (true, Some(address)) = (reads, here) {
            return local(worker, address).0.fence(Ordering::SeqCst);
        }
    }
}

/// Validates the entries of a range whose objects are on this machine. [`fence`] must be called before.
///
/// # Errors
/// The object that has changed, or is locked.
pub(super) fn validate_local(
    worker: &mut Worker,
    tx: &Tx,
    range: Range<usize>,
) -> Result<(), Abort> {
    let here = |entry: &&Entry| entry.machine.is_none() && is_validated(entry);
    for entry in tx.entries.range(range).filter(here) {
        let (memory, at) = local(worker, entry.address);
        let now = write::load_version(memory, at);
        if !is_unchanged(now, entry.version) {
            marks::mark("tx: validation failed");
            return Err(conflict(now, entry.version, entry.address));
        }
    }
    Ok(())
}

/// Sends VALIDATE for the entries of a range to a machine.
pub(super) fn send_validate(
    worker: &mut Worker,
    commit: &Coordinator,
    machine: MachineId,
    range: Range<usize>,
    cont: ReplyCont,
) -> Result<(), CallError> {
    let mut body = std::mem::take(&mut transactions(worker).validate_body);
    body.clear();
    for entry in commit.validation.entries(range, &commit.tx) {
        body.extend_from_slice(&entry.address.to_bits().to_le_bytes());
        body.extend_from_slice(&entry.version.get().to_le_bytes());
    }
    let to = worker.log_poller(machine);
    let asked = to.and_then(|to| worker.call(to, VALIDATE, &[&body], REPLY_BYTES, cont));
    let state = transactions(worker);
    state.validate_body = body;
    if asked.is_ok() {
        marks::mark("validate: by message");
        state.counters.validates += 1;
    }
    asked
}

/// Handles [`VALIDATE`]: replies whether the objects that it names are unchanged and unlocked.
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let mut verdict = Verdict::Granted;
    for asked in body.chunks(VALIDATE_BYTES) {
        let Some((address, read)) = decode(worker, request.from, asked) else {
            return;
        };
        let now = match worker.local_memory(address) {
            Ok((memory, at)) => write::load_version(memory, at),
            Err(error) => return worker.distrust(request.from.machine, error.to_string()),
        };
        if !is_unchanged(now, read) {
            let same = now.version() == read && now.mode() != LockMode::Unlocked;
            verdict = match same {
                true => Verdict::Locked(address),
                false => Verdict::Changed(address),
            };
            break;
        }
    }
    worker.reply(request, &[&verdict.encode()]);
}

fn decode(worker: &mut Worker, from: WorkerRef, asked: &[u8]) -> Option<(Address, Version)> {
    let words = <&[u8; VALIDATE_BYTES]>::try_from(asked).ok();
    let word = |at: usize| {
        let bytes = words?[at..at + 8].try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let address = word(0).and_then(Address::from_bits);
    let address = address.filter(|at| !at.is_null() && at.is_line_aligned());
    let found = address.zip(word(8).and_then(Version::checked));
    if found.is_none() {
        worker.distrust(
            from.machine,
            format!("{from} sent a VALIDATE with an address or a version that no object can have"),
        );
    }
    found
}
