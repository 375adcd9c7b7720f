//! Validation (`FaRM'15 §4`): what was read and not written is as it was read. One-sided, a header for
//! each object; by one message where many objects lie on one machine.

use std::ops::Range;

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::messaging::{CallError, MessageId, Request};
use farm_core::object::{LockMode, Version, write};
use farm_core::worker::{AddressError, Worker};
use smallvec::SmallVec;

use super::plan::Plan;
use super::primary::{HAS_CHANGED, LOCKED, NO_OBJECT, OTHER_CLASS, Refused, WAS_LOCKED};
use super::{is_unchanged, is_validated};
use crate::error::{Abort, TxError};
use crate::tx::{Entry, KEPT_ENTRIES, Tx, wrong_size};

/// Asks a machine whether objects are as they were read.
pub(crate) const VALIDATE: MessageId = MessageId(MessageId::TXN + 1);

/// Most objects of one machine that are validated one by one; of more, a message asks for all.
const MOST_ONE_SIDED: usize = 4;
/// Most headers that one commit reads at one time: enough to hide their latency, few enough that others of the worker
/// have slots.
const MOST_HEADERS: usize = 64;
/// An address and a version.
pub(super) const ASKED_BYTES: usize = 16;

/// How far the validation of a commit is. Each entry is looked at once, and once more if there was no room to ask for
/// it.
#[derive(Default)]
pub(super) struct Validation {
    /// Entries before this, if of this machine, are as they were read.
    pub(super) here: usize,
    /// Most objects that a message asks for.
    most_asked: usize,
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
    /// Begins anew, in the memory that it has, where a message asks for at most `most_asked` objects.
    pub(super) fn reset(&mut self, most: usize) {
        if self.grouped.capacity().max(self.again.capacity()) > KEPT_ENTRIES {
            *self = Self::default();
        }
        let Self {
            here,
            most_asked,
            planned,
            groups,
            grouped,
            sent,
            looked_at,
            again,
            headers,
        } = self;
        (*here, *planned, *sent, *looked_at, *headers) = (0, false, 0, 0, 0);
        *most_asked = most;
        groups.clear();
        grouped.clear();
        again.clear();
    }

    /// Groups the entries of the machines that are asked by messages: those of which many objects were read, if
    /// the transaction writes anything. One that only reads takes no processor of other machines.
    fn plan(&mut self, plan: &Plan, tx: &Tx) {
        self.planned = true;
        if plan.only_reads() || self.most_asked <= MOST_ONE_SIDED {
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

    /// The machine that is asked next by a message, and for which of [`Validation::entries`].
    pub(super) fn next_group(&mut self, plan: &Plan, tx: &Tx) -> Option<(MachineId, Range<usize>)> {
        if plan.reads.is_empty() {
            return None;
        }
        if !self.planned {
            self.plan(plan, tx);
        }
        let mut groups = self.groups.iter();
        let (machine, end) = *groups.find(|group| group.1 as usize > self.sent)?;
        let most = self.sent + self.most_asked;
        Some((machine, self.sent..most.min(end as usize)))
    }

    /// The entries that a message asks for.
    pub(super) fn entries<'a>(
        &'a self,
        range: Range<usize>,
        tx: &'a Tx,
    ) -> impl Iterator<Item = &'a Entry> {
        let entries = self.grouped[range].iter();
        entries.map(|index| &tx.entries[*index as usize])
    }

    /// A message asks for these entries.
    pub(super) fn were_asked(&mut self, range: Range<usize>) {
        self.sent = range.end;
    }

    /// A message could not be sent: its entries are asked for one by one.
    pub(super) fn not_asked(&mut self, range: Range<usize>) {
        self.sent = range.end;
        self.again.extend_from_slice(&self.grouped[range]);
    }

    /// A header is read.
    pub(super) fn header_asked(&mut self) {
        self.headers += 1;
    }

    /// A header came, or will not come.
    pub(super) fn header_came(&mut self) {
        self.headers -= 1;
    }

    /// The header of an entry's object is to be read later.
    pub(super) fn ask_again(&mut self, entry: u32) {
        self.again.push(entry);
    }

    /// The next entry that is asked for by itself, if another may be on its way.
    pub(super) fn next_header(&mut self, plan: &Plan, tx: &Tx) -> Option<usize> {
        if plan.reads.is_empty() || self.headers >= MOST_HEADERS {
            return None;
        }
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
