//! The progress of step 2 of a commit, validation (`FaRM'15 §4`), as a value: which object is validated next, and how.
//!
//! Objects of other machines are validated by one-sided reads of their headers, or by one message if more than
//! [`MOST_ONE_SIDED`] of one machine were read.

use std::ops::Range;

use farm_core::ids::MachineId;
use smallvec::SmallVec;

use super::is_validated;
use super::plan::Plan;
use crate::tx::{Entry, KEPT_ENTRIES, Tx};

/// Maximum number of objects of one machine that are validated by reads of headers.
const MOST_ONE_SIDED: usize = 4;
/// Maximum number of headers that one commit reads at the same time: enough to hide the latency of the reads, and few
/// enough to leave slots for other transactions of the worker.
const MOST_HEADERS: usize = 64;

/// The progress of one validation. Each entry is visited once, and once more if there was no room for its request.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Validation {
    /// Maximum number of objects in one message.
    most_asked: usize,
    /// Whether `groups` and `grouped` are filled.
    planned: bool,
    /// Machines that get messages, ascending, and the end of their entries in `grouped`.
    groups: SmallVec<[(MachineId, u32); 4]>,
    /// The entries of the machines in `groups`, grouped by machine.
    grouped: SmallVec<[u32; 16]>,
    /// Number of entries of `grouped` that were sent, or added to `again`.
    sent: usize,
    /// Entries before this index were requested, or need no read of their header.
    visited: usize,
    /// Entries whose headers are still to be read, because there was no room for their message or read.
    again: SmallVec<[u32; 16]>,
    /// Header reads in flight.
    headers: usize,
}

impl Validation {
    /// Starts a validation, and reuses the allocated memory. A message names at most `most` objects.
    pub(super) fn reset(&mut self, most: usize) {
        if self.grouped.capacity().max(self.again.capacity()) > KEPT_ENTRIES {
            *self = Self::default();
        }
        let Self {
            most_asked,
            planned,
            groups,
            grouped,
            sent,
            visited,
            again,
            headers,
        } = self;
        (*planned, *sent, *visited, *headers) = (false, 0, 0, 0);
        *most_asked = most;
        groups.clear();
        grouped.clear();
        again.clear();
    }

    /// Groups the entries of the machines that get messages, which are the machines with many objects that were read. A
    /// transaction that writes nothing sends no messages, and so takes no processor time of other machines.
    fn plan(&mut self, plan: &Plan, tx: &Tx) {
        self.planned = true;
        if plan.regions.is_empty() || self.most_asked <= MOST_ONE_SIDED {
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
        // The number of each group is first the begin of its entries. It advances with every entry, and so becomes
        // their end.
        for (index, entry) in (0..).zip(tx.entries.iter()) {
            if let Some(group) = self.group_of(entry).filter(|_| !entry.is_written()) {
                let end = &mut self.groups[group].1;
                self.grouped[*end as usize] = index;
                *end += 1;
            }
        }
    }

    /// Returns the group of an entry's machine, if that machine gets messages.
    fn group_of(&self, entry: &Entry) -> Option<usize> {
        let machine = entry.machine.filter(|_| !self.groups.is_empty())?;
        self.groups
            .binary_search_by_key(&machine, |group| group.0)
            .ok()
    }

    /// Returns the next message to send: its machine, and the range of [`Validation::entries`].
    pub(super) fn next_group(&mut self, plan: &Plan, tx: &Tx) -> Option<(MachineId, Range<usize>)> {
        if !self.planned {
            self.plan(plan, tx);
        }
        let mut groups = self.groups.iter();
        let (machine, end) = *groups.find(|group| group.1 as usize > self.sent)?;
        let most = self.sent + self.most_asked;
        Some((machine, self.sent..most.min(end as usize)))
    }

    /// Returns the entries of a message.
    pub(super) fn entries<'a>(
        &'a self,
        range: Range<usize>,
        tx: &'a Tx,
    ) -> impl Iterator<Item = &'a Entry> {
        let entries = self.grouped[range].iter();
        entries.map(|index| &tx.entries[*index as usize])
    }

    /// Records that the message for these entries was sent.
    pub(super) fn on_sent(&mut self, range: Range<usize>) {
        self.sent = range.end;
    }

    /// Records that the message for these entries was not sent. Their headers are read instead.
    pub(super) fn on_not_sent(&mut self, range: Range<usize>) {
        self.sent = range.end;
        self.again.extend_from_slice(&self.grouped[range]);
    }

    /// Counts a header read that was posted.
    pub(super) fn on_header_posted(&mut self) {
        self.headers += 1;
    }

    /// Counts a header read that has ended.
    pub(super) fn on_header(&mut self) {
        self.headers -= 1;
    }

    /// Queues an entry whose header must be read later.
    pub(super) fn retry_header(&mut self, entry: u32) {
        self.again.push(entry);
    }

    /// Returns the next entry whose header is to be read, if another read may be in flight.
    pub(super) fn next_header(&mut self, tx: &Tx) -> Option<usize> {
        if self.headers >= MOST_HEADERS {
            return None;
        }
        if let Some(again) = self.again.pop() {
            return Some(again as usize);
        }
        while self.visited < tx.entries.len() {
            let at = self.visited;
            self.visited += 1;
            let entry = &tx.entries[at];
            if entry.machine.is_some() && is_validated(entry) && self.group_of(entry).is_none() {
                return Some(at);
            }
        }
        None
    }
}
