//! Validation (`FaRM'15 §4`): what was read and not written is as it was read. One-sided, a header for
//! each object; by one message where many objects lie on one machine.

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{LockMode, Version, VersionWord, write};
use farm_core::worker::{AddressError, Cont, ReadError, ReadResult, Worker};

use super::coordinator::{self, Blocked, Commit};
use super::primary::{
    HAS_CHANGED, LOCKED, NO_OBJECT, OTHER_CLASS, REPLY_BYTES, Refused, WAS_LOCKED,
};
use super::{conflict, is_unchanged};
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::tx::{Entry, Tx, wrong_size};

/// Asks a machine whether objects are as they were read.
pub(crate) const VALIDATE: MessageId = MessageId(MessageId::TXN + 1);

/// Most objects of one machine that are validated one by one; of more, a message asks for all.
const MOST_ONE_SIDED: usize = 4;
/// An address and a version.
const ASKED_BYTES: usize = 16;

impl Entry {
    fn is_validated(&self) -> bool {
        !self.is_written()
    }
}

/// Asks for what was not asked for yet of the objects of other machines.
pub(super) fn ask(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    let writes = commit.tx.entries.iter().any(Entry::is_written);
    while let Some(at) = next_to_ask(&commit.tx) {
        let machine = commit.tx.entries[at].machine.expect("of another machine");
        let of_machine = commit.tx.entries.iter();
        let asked = |entry: &&Entry| entry.machine == Some(machine) && entry.is_validated();
        let many = of_machine.filter(asked).count() > MOST_ONE_SIDED;
        let in_message = worker.max_message_body() / ASKED_BYTES;
        // A transaction that only reads takes no processor of others.
        let by_message = many && writes && in_message > MOST_ONE_SIDED;
        if !by_message || !ask_many(worker, key, commit, machine, in_message) {
            read_header(worker, key, commit, at)?;
        }
    }
    Ok(())
}

fn next_to_ask(tx: &Tx) -> Option<usize> {
    let open = |entry: &Entry| entry.machine.is_some() && entry.is_validated() && !entry.asked;
    tx.entries.iter().position(open)
}

fn read_header(
    worker: &mut Worker,
    key: usize,
    commit: &mut Commit,
    at: usize,
) -> Result<(), Blocked> {
    let context = coordinator::context(key, at);
    let address = commit.tx.entries[at].address;
    match worker.read_header(address, Cont::new(header_came, context)) {
        Ok(()) => {
            commit.tx.entries[at].asked = true;
            commit.waiting += 1;
            transactions(worker).counters.header_reads += 1;
            Ok(())
        }
        Err(_) => Err(Blocked::HeaderSlot),
    }
}

fn header_came(worker: &mut Worker, context: u64, result: ReadResult) {
    let (key, at) = coordinator::of_context(context);
    let mut commit = coordinator::take(worker, key);
    commit.waiting -= 1;
    let (address, read) = {
        let entry = &commit.tx.entries[at];
        (entry.address, entry.version)
    };
    match result {
        Ok(slot) => {
            let now = VersionWord(worker.arena().words(&slot)[0]);
            worker.arena().give(slot);
            if !is_unchanged(now, read) {
                marks::mark("validate: a header failed");
                commit.stop(conflict(now, read, address).into());
            }
        }
        // It was refused for want of room.
        Err(ReadError::Busy) => commit.tx.entries[at].asked = false,
        Err(ReadError::PeerLost(machine)) => commit.stop(Abort::Lost(machine).into()),
        Err(_) => commit.stop(Abort::Changed(address).into()),
    }
    coordinator::go_on(worker, key, commit);
}

/// Asks a machine for as many of its objects as fit a message. False when there is no room for one now:
/// whoever waits for the room could wait for the locks that this transaction holds.
fn ask_many(
    worker: &mut Worker,
    key: usize,
    commit: &mut Commit,
    machine: MachineId,
    most: usize,
) -> bool {
    let open =
        |entry: &&mut Entry| entry.machine == Some(machine) && entry.is_validated() && !entry.asked;
    let mut body = Vec::with_capacity(most * ASKED_BYTES);
    for entry in commit.tx.entries.iter_mut().filter(open).take(most) {
        body.extend_from_slice(&entry.address.to_bits().to_le_bytes());
        body.extend_from_slice(&entry.version.get().to_le_bytes());
    }
    let cont = ReplyCont::new(answered, coordinator::context(key, 0));
    let to = worker.log_poller(machine);
    match to.and_then(|to| worker.call(to, VALIDATE, &[&body], REPLY_BYTES, cont)) {
        Ok(()) => {
            let asked = commit.tx.entries.iter_mut().filter(open).take(most);
            asked.for_each(|entry| entry.asked = true);
            commit.waiting += 1;
            marks::mark("validate: by message");
            transactions(worker).counters.validates += 1;
            true
        }
        Err(CallError::PeerLost(machine)) => {
            commit.stop(Abort::Lost(machine).into());
            let asked = commit.tx.entries.iter_mut().filter(open);
            asked.for_each(|entry| entry.asked = true);
            true
        }
        Err(_) => false,
    }
}

fn answered(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (key, _) = coordinator::of_context(context);
    let mut commit = coordinator::take(worker, key);
    commit.waiting -= 1;
    if let Err(error) = verdict(&commit.tx, reply) {
        commit.stop(error);
    }
    coordinator::go_on(worker, key, commit);
}

/// What LOCK-REPLY says, and the answer to VALIDATE.
pub(super) fn verdict(tx: &Tx, reply: Result<&[u8], CallError>) -> Result<(), TxError> {
    if let Err(CallError::PeerLost(machine)) = reply {
        return Err(Abort::Lost(machine).into());
    }
    let reply = reply.ok().and_then(|reply| reply.try_into().ok());
    let Some(Refused {
        code,
        address,
        class,
    }) = reply.map(Refused::decode)
    else {
        return Err(Abort::Locked(Address::NULL).into());
    };
    Err(match code {
        LOCKED => return Ok(()),
        HAS_CHANGED => Abort::Changed(address).into(),
        NO_OBJECT => AddressError::Nowhere(address).into(),
        OTHER_CLASS => {
            let is = SizeClass::new(class);
            let asked = tx.find(address).map_or(is, |object| tx.class(object));
            wrong_size(address, asked, is)
        }
        _ => Abort::Locked(address).into(),
    })
}

/// Answers whether objects are as they were read.
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let mut failed = Refused::NOTHING;
    for asked in body.chunks(ASKED_BYTES) {
        let Some((address, read)) = decode(worker, request.from, asked) else {
            return;
        };
        let now = match worker.local_memory(address) {
            Ok((memory, at)) => write::load_version(memory, at),
            Err(error) => return worker.distrust(request.from.machine, error.to_string()),
        };
        if !is_unchanged(now, read) {
            let same = now.version() == read && now.mode() != LockMode::Unlocked;
            let code = if same { WAS_LOCKED } else { HAS_CHANGED };
            failed = Refused::conflict(code, address);
            break;
        }
    }
    worker.reply(request, &[&failed.encode()]);
}

fn decode(worker: &mut Worker, from: WorkerRef, asked: &[u8]) -> Option<(Address, Version)> {
    let words = <&[u8; ASKED_BYTES]>::try_from(asked).ok();
    let word = |at: usize| {
        let bytes = words?[at..at + 8].try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let address = word(0).and_then(Address::from_bits);
    let address = address.filter(|at| !at.is_null() && at.is_line_aligned());
    let found = address.zip(word(8).and_then(Version::checked));
    if found.is_none() {
        worker.distrust(from.machine, "it validates what is no object".into());
    }
    found
}
