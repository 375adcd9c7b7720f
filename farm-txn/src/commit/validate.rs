//! Validation (`FaRM'15 §4`): what was read and not written is as it was read. One-sided, a header for
//! each object; by one message where many objects lie on one machine.

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{LockMode, Version, VersionWord, write};
use farm_core::worker::{AddressError, Cont, ReadError, ReadResult, Worker};
use smallvec::SmallVec;

use super::coordinator::{self, Blocked, Commit};
use super::plan::Plan;
use super::primary::{
    HAS_CHANGED, LOCKED, NO_OBJECT, OTHER_CLASS, REPLY_BYTES, Refused, WAS_LOCKED,
};
use super::{conflict, is_unchanged, is_validated};
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::tx::{Entry, KEPT_ENTRIES, Tx, wrong_size};

/// Asks a machine whether objects are as they were read.
pub(crate) const VALIDATE: MessageId = MessageId(MessageId::TXN + 1);

/// Most objects of one machine that are validated one by one; of more, a message asks for all.
const MOST_ONE_SIDED: usize = 4;
/// Most headers that one commit reads at one time: enough to hide their latency, few enough that others of the worker
/// have slots.
const MOST_HEADERS: usize = 64;
/// An address and a version.
const ASKED_BYTES: usize = 16;

/// How far the validation of a commit is. Each entry is looked at once, and once more if there was no room to ask for
/// it.
#[derive(Default)]
pub(super) struct Validation {
    /// Entries before this, if of this machine, are as they were read.
    pub(super) here: usize,
    /// It is known which machines are asked by messages.
    planned: bool,
    /// Machines that are asked by messages, ascending, and where their entries end in `grouped`.
    groups: SmallVec<[(MachineId, u32); 4]>,
    /// The entries of those machines, one machine after the other.
    grouped: SmallVec<[u32; 16]>,
    /// Entries of `grouped` before this were asked for.
    sent: usize,
    /// Entries before this were asked for, or are not to be asked for one by one.
    looked_at: usize,
    /// Entries for which there was no room, to be asked for one by one.
    again: SmallVec<[u32; 16]>,
    /// Headers on their way.
    headers: usize,
}

impl Validation {
    /// Begins anew, in the memory that it has.
    pub(super) fn reset(&mut self) {
        if self.grouped.capacity().max(self.again.capacity()) > KEPT_ENTRIES {
            *self = Self::default();
        }
        let Self {
            here,
            planned,
            groups,
            grouped,
            sent,
            looked_at,
            again,
            headers,
        } = self;
        (*here, *planned, *sent, *looked_at, *headers) = (0, false, 0, 0, 0);
        groups.clear();
        grouped.clear();
        again.clear();
    }

    /// Groups the entries of the machines that are asked by messages: those of which many objects were read, if
    /// the transaction writes anything. One that only reads takes no processor of other machines.
    fn plan(&mut self, plan: &Plan, tx: &Tx, in_message: usize) {
        self.planned = true;
        if plan.only_reads() || in_message <= MOST_ONE_SIDED {
            return;
        }
        let many = plan
            .reads
            .iter()
            .filter(|one| one.1 as usize > MOST_ONE_SIDED);
        let mut begin = 0;
        for (machine, count) in many {
            self.groups.push((*machine, begin));
            begin += count;
        }
        if self.groups.is_empty() {
            return;
        }
        self.grouped.resize(begin as usize, 0);
        // Where a group begins moves on with every entry, until it is where the group ends.
        for (index, entry) in (0..).zip(tx.entries.iter()) {
            if let Some(group) = self.group_of(entry).filter(|_| !entry.is_written()) {
                let end = &mut self.groups[group].1;
                self.grouped[*end as usize] = index;
                *end += 1;
            }
        }
    }

    /// The group of an entry's machine, if it is asked by messages.
    fn group_of(&self, entry: &Entry) -> Option<usize> {
        let machine = entry.machine.filter(|_| !self.groups.is_empty())?;
        self.groups
            .binary_search_by_key(&machine, |group| group.0)
            .ok()
    }

    /// The machine that is asked next by a message, and the entries of it that are left.
    fn next_group(&self) -> Option<(MachineId, &[u32])> {
        let (machine, end) = *self
            .groups
            .iter()
            .find(|group| group.1 as usize > self.sent)?;
        Some((machine, &self.grouped[self.sent..end as usize]))
    }

    /// The next entry that is asked for by itself.
    fn next(&mut self, tx: &Tx) -> Option<usize> {
        if let Some(again) = self.again.pop() {
            return Some(again as usize);
        }
        while self.looked_at < tx.entries.len() {
            let at = self.looked_at;
            self.looked_at += 1;
            let entry = &tx.entries[at];
            if entry.machine.is_some() && is_validated(entry) && self.group_of(entry).is_none() {
                return Some(at);
            }
        }
        None
    }
}

/// Asks for what was not asked for yet of the objects of other machines, as much as may be on its way at one time.
pub(super) fn ask(worker: &mut Worker, key: usize, commit: &mut Commit) -> Result<(), Blocked> {
    if commit.plan.reads.is_empty() {
        return Ok(());
    }
    let in_message = worker.max_message_body() / ASKED_BYTES;
    if !commit.validation.planned {
        let Commit {
            validation,
            plan,
            tx,
            ..
        } = commit;
        validation.plan(plan, tx, in_message);
    }
    while !commit.stops() && commit.validation.sent < commit.validation.grouped.len() {
        ask_many(worker, key, commit, in_message);
    }
    while !commit.stops()
        && commit.validation.headers < MOST_HEADERS
        && let Some(at) = commit.validation.next(&commit.tx)
    {
        read_header(worker, key, commit, at)?;
    }
    Ok(())
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
            commit.validation.headers += 1;
            commit.waiting += 1;
            transactions(worker).counters.header_reads += 1;
            Ok(())
        }
        Err(_) => {
            commit.validation.again.push(at as u32);
            Err(Blocked::HeaderSlot)
        }
    }
}

fn header_came(worker: &mut Worker, context: u64, result: ReadResult) {
    let (key, at) = coordinator::of_context(context);
    let mut commit = coordinator::take(worker, key);
    commit.waiting -= 1;
    commit.validation.headers -= 1;
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
        Err(ReadError::Busy) => commit.validation.again.push(at as u32),
        Err(ReadError::PeerLost(machine)) => commit.stop(Abort::Lost(machine).into()),
        Err(_) => commit.stop(Abort::Changed(address).into()),
    }
    coordinator::go_on(worker, key, commit);
}

/// Asks the next machine for as many of its objects as fit a message. When there is no room for it now they are asked
/// for one by one: whoever waits for the room could wait for the locks that this transaction holds.
fn ask_many(worker: &mut Worker, key: usize, commit: &mut Commit, most: usize) {
    let Commit { validation, tx, .. } = commit;
    let Some((machine, left)) = validation.next_group() else {
        return;
    };
    let asked = &left[..left.len().min(most)];
    let mut body = std::mem::take(&mut transactions(worker).asks);
    body.clear();
    for index in asked {
        let entry = &tx.entries[*index as usize];
        body.extend_from_slice(&entry.address.to_bits().to_le_bytes());
        body.extend_from_slice(&entry.version.get().to_le_bytes());
    }
    let cont = ReplyCont::new(answered, coordinator::context(key, 0));
    let to = worker.log_poller(machine);
    let called = to.and_then(|to| worker.call(to, VALIDATE, &[&body], REPLY_BYTES, cont));
    transactions(worker).asks = body;
    match called {
        Ok(()) => {
            commit.validation.sent += asked.len();
            commit.waiting += 1;
            marks::mark("validate: by message");
            transactions(worker).counters.validates += 1;
        }
        Err(CallError::PeerLost(machine)) => commit.stop(Abort::Lost(machine).into()),
        Err(_) => {
            let asked = asked.len();
            let Validation {
                again,
                grouped,
                sent,
                ..
            } = &mut commit.validation;
            again.extend_from_slice(&grouped[*sent..][..asked]);
            *sent += asked;
        }
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
