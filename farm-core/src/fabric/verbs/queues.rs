//! The queue pairs and completions of one worker, or of the workers that share them: accepts posts
//! and collects completions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::abi::*;
use super::checked::{Cells, CheckedId, CheckedRead, HEADERS_AT_ONCE, Next, ObjectReads, Phase};
use super::completions::{Completions, RECEIVE};
use super::connection::{Action, Connection, Data, Ended, Purpose};
use super::error::VerbsError;
use super::library::Library;
use super::registration::Registration;
use super::silence::{Checks, Silence};
use super::throttle::Throttle;
use crate::fabric::{Arena, Completion, Slot, Status, Token};
use crate::ids::WorkerId;
use crate::time::Nanos;

/// Number of completions taken off the completion queue in one call.
const ENDS_AT_ONCE: usize = 32;
/// Number of requests of a connection that posts must leave free, for notifications and for headers
/// that are read again.
const KEPT: usize = HEADERS_AT_ONCE + 2;
/// Divisor of a connection's number of requests: the quotient is reserved for writes.
const SHARE_OF_WRITES: usize = 4;
/// Maximum number of receive requests consumed before they are replaced; half of all receive
/// requests, if that is less.
const MOST_RECEIVES_DUE: usize = 64;

/// The completed operations of one of the workers.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) done: VecDeque<Completion>,
    /// Slots of writes without an awaited completion.
    pub(super) slots: Vec<Slot>,
    /// Number of completed atomics on this machine's own memory.
    pub(super) own_atomics: usize,
    pub(super) counters: ReadCounters,
}

/// Counters of object reads since a poll last took the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadCounters {
    pub(super) retries: u64,
    pub(super) torn: u64,
}

/// The current connection to one peer, if there is one.
#[derive(Default)]
struct Link {
    /// Number of connections to the peer that were torn down, to detect their late completions.
    generation: u16,
    /// Generation of the connection, as counted by the peer's entry in `Shared`.
    of_peer: u32,
    connection: Option<Connection>,
    silence: Silence,
}

/// Why a post was rejected.
pub(super) enum PostError {
    Full,
    Closed,
}

/// A connection that broke, and why.
pub(super) struct Broken {
    pub(super) link: usize,
    /// Generation of the connection, as counted by the peer's entry in `Shared`.
    pub(super) generation: u32,
    pub(super) why: String,
}

pub(super) struct Queues {
    links: Vec<Link>,
    /// Links with requests that are prepared and not posted.
    dirty: Vec<usize>,
    checked: Slab<CheckedRead>,
    /// Checked reads that must start again or continue when there is room.
    due: VecDeque<(CheckedId, Next)>,
    cells: Cells,
    object_reads: ObjectReads,
    throttle: Throttle,
    checks: Checks,
    receives_taken: usize,
    /// Number of consumed receive requests at which they are replaced.
    receives_due: usize,
    pub(super) outboxes: Vec<Outbox>,
    pub(super) broken: Vec<Broken>,
    /// Workers of this machine that peers notified. `poll` collects them, and the endpoint wakes
    /// all but its own worker.
    pub(super) notified: Vec<WorkerId>,
    ends: Box<[ibv_wc]>,
    // Arenas of workers that are gone. Declared after the connections, whose requests may still
    // write to them.
    kept: Vec<(Option<Registration>, Arena)>,
    // Declared after the connections, whose queue pairs use it.
    completions: Arc<Completions>,
}

impl Queues {
    /// Creates the queues of `members` workers, each with at most `most` reads and atomics
    /// outstanding.
    pub(super) fn new(
        completions: Arc<Completions>,
        members: usize,
        most: usize,
        object_reads: ObjectReads,
        throttle: Throttle,
        checks: Checks,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            links: Vec::new(),
            dirty: Vec::new(),
            checked: Slab::with_capacity(most * members),
            due: VecDeque::new(),
            cells: Cells::new(Arc::clone(&completions.domain), most * members)?,
            object_reads,
            throttle,
            checks,
            receives_taken: 0,
            receives_due: (completions.receive_count / 2).clamp(1, MOST_RECEIVES_DUE),
            outboxes: (0..members).map(|_| Outbox::default()).collect(),
            broken: Vec::new(),
            notified: Vec::new(),
            ends: vec![ibv_wc::default(); ENDS_AT_ONCE].into(),
            kept: Vec::new(),
            completions,
        })
    }

    /// Keeps the arena of a worker that is gone until the connections are dropped, because their
    /// requests may still use the arena.
    pub(super) fn keep(&mut self, registration: Option<Registration>, arena: Arena) {
        self.kept.push((registration, arena));
    }

    pub(super) fn completions(&self) -> &Arc<Completions> {
        &self.completions
    }

    /// Advances the throttle's time, and marks connections as broken whose device ends no more requests.
    pub(super) fn tick(&mut self, now: Nanos) {
        self.throttle.tick(now);
        if let Some(passed) = self.checks.due(now) {
            self.check_silence(passed);
        }
    }

    #[cold]
    fn check_silence(&mut self, passed: Duration) {
        let limit = self.checks.limit();
        for link in 0..self.links.len() {
            let place = &mut self.links[link];
            let Some(connection) = &place.connection else {
                continue;
            };
            let ended = connection.ended_before_outstanding();
            if place.silence.check(passed, ended) > limit {
                let limit = limit.as_secs();
                self.break_link(link, || {
                    format!("the device has ended no work request for {limit} s")
                });
            }
        }
    }

    /// Stores a connection in its link, unless another worker has stored a later one. Ends the
    /// operations of the previous connection.
    pub(super) fn adopt(&mut self, link: usize, of_peer: u32, connection: Connection) {
        if self.links.len() <= link {
            self.links.resize_with(link + 1, Link::default);
        }
        if self.links[link].of_peer >= of_peer {
            return;
        }
        self.tear_down(link, of_peer);
        let place = &mut self.links[link];
        (place.of_peer, place.connection) = (of_peer, Some(connection));
        place.silence = Silence::default();
    }

    /// Tears a connection down, unless it is later than `of_peer`: each of its operations ends as
    /// broken.
    pub(super) fn tear_down(&mut self, link: usize, of_peer: u32) {
        let Some(place) = self.links.get_mut(link) else {
            return;
        };
        if place.of_peer > of_peer {
            return;
        }
        if place.connection.is_none() {
            return;
        }
        // When a queue pair is destroyed, some drivers discard its pending completions. Take them
        // first: some may be notifications, whose receive requests must be replaced.
        self.take_ends();
        let place = &mut self.links[link];
        let Some(connection) = place.connection.take() else {
            return;
        };
        place.generation = place.generation.wrapping_add(1);
        let mut ended = Vec::new();
        let returned = connection.tear_down(&mut |one| ended.push(one));
        self.throttle.give(returned);
        for one in ended {
            self.settle(one, Status::Broken);
        }
        // A checked read that waits for room has no request, so the connection did not end it.
        for _ in 0..self.due.len() {
            let Some((id, next)) = self.due.pop_front() else {
                break;
            };
            match self.checked[id.0 as usize].link == link {
                true => self.end_checked(id, Status::Broken),
                false => self.due.push_back((id, next)),
            }
        }
    }

    fn tag(&self, link: usize) -> u64 {
        (link as u64) << 48 | u64::from(self.links[link].generation) << 32
    }

    /// Returns the number of requests of a connection that reads and atomics leave free for writes:
    /// for messages, log records and reports of heads, which lead to the release of locks.
    fn kept_for_writes(&self, link: usize) -> usize {
        let connection = self
            .links
            .get(link)
            .and_then(|link| link.connection.as_ref());
        connection.map_or(0, |connection| connection.depth() / SHARE_OF_WRITES)
    }

    /// Returns a connection with room for `requests` requests, and marks it for the next flush.
    #[inline]
    fn with_room(&mut self, link: usize, requests: usize) -> Result<&mut Connection, PostError> {
        let place = self.links.get_mut(link);
        let connection = place.and_then(|place| place.connection.as_mut());
        let connection = connection.filter(|connection| !connection.is_dead());
        let connection = connection.ok_or(PostError::Closed)?;
        if connection.room() < requests {
            return Err(PostError::Full);
        }
        if !connection.has_prepared() {
            self.dirty.push(link);
        }
        Ok(connection)
    }

    /// Returns whether checked reads of a connection are in progress.
    fn has_checked(&self, link: usize) -> bool {
        self.checked.iter().any(|(_, read)| read.link == link)
    }

    /// Accepts a request. Returns its purpose if it is rejected.
    ///
    /// The device itself performs a request with a fence after all earlier reads. But the requests
    /// of a checked read may be posted again later. Therefore a request with a fence is rejected as
    /// full until all checked reads of the connection are done.
    #[inline]
    pub(super) fn post(
        &mut self,
        link: usize,
        (action, data, fence): (Action, Data<'_>, bool),
        member: u16,
        purpose: Purpose,
    ) -> Result<(), (PostError, Purpose)> {
        if fence && self.has_checked(link) {
            return Err((PostError::Full, purpose));
        }
        let kept = match action {
            Action::Write { .. } | Action::Notify { .. } => KEPT,
            _ => KEPT + self.kept_for_writes(link),
        };
        match self.with_room(link, 1 + kept) {
            Ok(connection) => {
                connection.prepare(&action, &data, fence, member, purpose);
                Ok(())
            }
            Err(why) => Err((why, purpose)),
        }
    }

    /// Accepts a notification, for which room is reserved.
    pub(super) fn notify(&mut self, link: usize, worker: WorkerId) -> Result<(), PostError> {
        let connection = self.with_room(link, 1)?;
        let action = Action::Notify {
            worker: worker.index() as u16,
        };
        connection.prepare(&action, &Data::None, false, 0, Purpose::Nothing);
        Ok(())
    }

    /// Accepts an atomic.
    pub(super) fn post_atomic(
        &mut self,
        link: usize,
        action: Action,
        fence: bool,
        (member, token, is_own): (u16, Token, bool),
    ) -> Result<(), PostError> {
        let cell = self.cells.take().ok_or(PostError::Full)?;
        let (address, key) = self.cells.place(cell, 0);
        let data = Data::Registered {
            address,
            bytes: 8,
            key,
        };
        let purpose = Purpose::Atomic {
            token,
            cell,
            is_own,
        };
        self.post(link, (action, data, fence), member, purpose)
            .map_err(|(why, _)| {
                self.cells.give(cell);
                why
            })
    }

    /// Accepts a read of objects whose headers are read again. Returns its slot if it is rejected.
    pub(super) fn post_checked(&mut self, mut read: CheckedRead) -> Result<(), (PostError, Slot)> {
        let kept = KEPT + self.kept_for_writes(read.link);
        if let Err(why) = self.with_room(read.link, read.requests() + kept) {
            return Err((why, read.slot));
        }
        if read.fence && self.has_checked(read.link) {
            return Err((PostError::Full, read.slot));
        }
        let Some(cell) = self.cells.take() else {
            return Err((PostError::Full, read.slot));
        };
        read.cell = cell;
        if self.object_reads == ObjectReads::HeadersAround {
            read.phase = Phase::Before;
        }
        let id = CheckedId(self.checked.insert(read) as u32);
        self.begin(id);
        Ok(())
    }

    fn begin(&mut self, id: CheckedId) {
        match self.checked[id.0 as usize].phase {
            Phase::Before => self.prepare_headers(id),
            Phase::Objects | Phase::After => self.prepare_objects(id),
        }
    }

    /// Prepares the read of the objects, together with the read of the first headers if the phase
    /// permits.
    fn prepare_objects(&mut self, id: CheckedId) {
        let read = &self.checked[id.0 as usize];
        let (at, key) = read.from;
        let data = Data::Registered {
            address: read.into.0,
            bytes: read.bytes,
            key: read.into.1,
        };
        let with_headers = read.phase == Phase::After;
        let purpose = match with_headers {
            true => Purpose::Nothing,
            false => Purpose::Objects(id),
        };
        let (fence, member, link) = (read.fence, read.member, read.link);
        let connection = self.links[link].connection.as_mut();
        let connection = connection
            .expect("a read in progress whose line versions are checked has a connection");
        connection.prepare(&Action::Read { at, key }, &data, fence, member, purpose);
        if with_headers {
            self.prepare_headers(id);
        }
    }

    fn prepare_headers(&mut self, id: CheckedId) {
        let read = &self.checked[id.0 as usize];
        let connection = self.links[read.link].connection.as_mut();
        let connection = connection
            .expect("a read in progress whose line versions are checked has a connection");
        let mut headers = read.next_headers().enumerate().peekable();
        while let Some((index, at)) = headers.next() {
            let (address, key) = self.cells.place(read.cell, index);
            let data = Data::Registered {
                address,
                bytes: crate::object::HEADER_BYTES as u32,
                key,
            };
            let purpose = match headers.peek() {
                Some(_) => Purpose::Nothing,
                None => Purpose::Headers(id),
            };
            let action = Action::Read {
                at,
                key: read.from.1,
            };
            connection.prepare(&action, &data, false, read.member, purpose);
        }
    }

    /// Continues checked reads as far as there is room.
    fn continue_due(&mut self) {
        for _ in 0..self.due.len() {
            let Some((id, next)) = self.due.pop_front() else {
                return;
            };
            let read = &self.checked[id.0 as usize];
            let (link, requests) = (read.link, read.requests());
            // The connection has no room now, or is dead and `tear_down` will end the read. Other
            // connections may have room.
            if self.with_room(link, requests).is_err() {
                self.due.push_back((id, next));
                continue;
            }
            match next {
                Next::Headers => self.prepare_headers(id),
                Next::Objects => self.prepare_objects(id),
                _ => self.begin(id),
            }
        }
    }

    /// Rings the doorbells for all prepared requests, as far as the throttle permits.
    #[inline]
    pub(super) fn flush(&mut self) {
        for _ in 0..self.dirty.len() {
            let Some(link) = self.dirty.pop() else {
                return;
            };
            let tag = self.tag(link);
            let Some(connection) = self.links[link].connection.as_mut() else {
                continue;
            };
            let flushed = connection.flush(tag, self.throttle.credit());
            if connection.has_prepared() {
                self.dirty.insert(0, link);
            }
            if let Err(code) = flushed {
                let why = std::io::Error::from_raw_os_error(code.abs());
                self.break_link(link, || format!("the device rejected work requests: {why}"));
            }
        }
    }

    /// Takes completions off the completion queue, settles their operations, and posts requests
    /// that waited for them.
    #[inline]
    pub(super) fn poll(&mut self) {
        self.take_ends();
        if !self.due.is_empty() {
            self.continue_due();
        }
        self.flush();
    }

    #[inline]
    fn take_ends(&mut self) {
        loop {
            let Some(count) = self.completions.poll(&mut self.ends) else {
                self.break_all("the device's completion queue failed");
                return;
            };
            for index in 0..count {
                let end = self.ends[index];
                if end.wr_id == RECEIVE {
                    self.received(&end);
                } else {
                    self.ended(&end);
                }
            }
            if count < self.ends.len() {
                return;
            }
        }
    }

    /// Marks all connections as broken, because the device failed.
    #[cold]
    fn break_all(&mut self, why: &str) {
        for link in 0..self.links.len() {
            if self.links[link].connection.is_some() {
                self.break_link(link, || why.to_owned());
            }
        }
    }

    /// Marks a connection as broken, unless it is marked already.
    #[cold]
    fn break_link(&mut self, link: usize, why: impl FnOnce() -> String) {
        if self.broken.iter().all(|broken| broken.link != link) {
            self.broken.push(Broken {
                link,
                generation: self.links[link].of_peer,
                why: why(),
            });
        }
    }

    fn received(&mut self, end: &ibv_wc) {
        self.receives_taken += 1;
        let worker = u32::from_be(end.imm_data);
        if end.status == IBV_WC_SUCCESS
            && let Some(worker) = u16::try_from(worker).ok().and_then(WorkerId::new)
            && !self.notified.contains(&worker)
        {
            self.notified.push(worker);
        }
        if self.receives_taken >= self.receives_due {
            // Fails only if the device is gone. Then the connections break, too.
            let _ = self.completions.post_receives(self.receives_taken);
            self.receives_taken = 0;
        }
    }

    fn ended(&mut self, end: &ibv_wc) {
        let link = (end.wr_id >> 48) as usize;
        let generation = (end.wr_id >> 32) as u16;
        let Some(place) = self.links.get_mut(link) else {
            return;
        };
        if place.generation != generation {
            return;
        }
        if end.status != IBV_WC_SUCCESS {
            let library = self.completions.domain.opened.library;
            return self.break_link(link, || reason(library, end));
        }
        while let Some(ended) = self.next_end(link, end.wr_id as u32) {
            self.throttle.give(1);
            self.settle(ended, Status::Ok);
        }
    }

    #[inline]
    fn next_end(&mut self, link: usize, number: u32) -> Option<Ended> {
        self.links[link].connection.as_mut()?.next_end(number)
    }

    fn settle(&mut self, Ended { member, purpose }: Ended, status: Status) {
        let outbox = &mut self.outboxes[usize::from(member)];
        let (token, slot, value) = match purpose {
            Purpose::Nothing => return,
            Purpose::Read { token, slot } => (token, Some(slot), 0),
            Purpose::Write { token, slot } => match token {
                Some(token) => (token, slot, 0),
                None => return outbox.slots.extend(slot),
            },
            Purpose::Atomic {
                token,
                cell,
                is_own,
            } => {
                outbox.own_atomics += usize::from(is_own);
                let value = self.cells.words(cell)[0];
                self.cells.give(cell);
                (token, None, value)
            }
            Purpose::Objects(id) if status == Status::Ok => {
                self.checked[id.0 as usize].handle_objects();
                return self.due.push_back((id, Next::Headers));
            }
            Purpose::Headers(id) if status == Status::Ok => return self.judge(id),
            Purpose::Objects(id) | Purpose::Headers(id) => return self.end_checked(id, status),
        };
        outbox.done.push_back(Completion {
            token,
            status,
            slot,
            value,
        });
    }

    fn judge(&mut self, id: CheckedId) {
        let read = &mut self.checked[id.0 as usize];
        let next = read.handle_headers(self.cells.words(read.cell));
        match next {
            Next::Done => self.end_checked(id, Status::Ok),
            Next::Torn => self.end_checked(id, Status::Torn),
            Next::Headers | Next::Objects | Next::Again => {
                if next == Next::Again {
                    self.outboxes[usize::from(read.member)].counters.retries += 1;
                }
                self.due.push_back((id, next));
            }
        }
    }

    fn end_checked(&mut self, id: CheckedId, status: Status) {
        let read = self.checked.remove(id.0 as usize);
        self.cells.give(read.cell);
        let outbox = &mut self.outboxes[usize::from(read.member)];
        outbox.counters.torn += u64::from(status == Status::Torn);
        outbox.done.push_back(Completion {
            token: read.token,
            status,
            slot: Some(read.slot),
            value: 0,
        });
    }
}

/// Returns the library's description of why a request failed.
fn reason(library: &Library, end: &ibv_wc) -> String {
    // SAFETY: the library returns for any status a string that lives as long as the library.
    let text = unsafe { std::ffi::CStr::from_ptr((library.ibv_wc_status_str)(end.status)) };
    format!(
        "{} (vendor error {:#x})",
        text.to_string_lossy(),
        end.vendor_err
    )
}
