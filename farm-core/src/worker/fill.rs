//! Filling of new replicas (`FaRM'15 §5.4`): this machine reads a region from its primary, in pieces and at a bounded rate, while
//! commits reach the replica as they reach every other one.
//!
//! 1. When all machines have recovered in a configuration, the workers of a machine take its replicas that are not full, one after
//!    another.
//! 2. A worker reads the block table of the primary's region, then the objects, block by block, with lock-free reads. What it finds is
//!    installed where it is newer.
//! 3. It reports to the manager that the replica is full, until that is recorded, while it fills the next one.
//!
//! Whatever is committed before the configuration is at the primary, and all that is committed in it reaches the replica: so the replica
//! then has everything. If another machine becomes the primary, the worker begins anew with its block table: blocks without a committed
//! object may be others there.

use std::time::Duration;

use super::regions::{DONE, NOT_YET, REPLY_BYTES};
use super::request::{ReadError, ReadRequest, ReadResult};
use super::{Cont, Worker};
use crate::alloc::{Block, BlockTable, Taken};
use crate::ids::{Address, RegionId, WorkerRef};
use crate::marks;
use crate::mem::WORD_BYTES;
use crate::membership::configuration::{Configuration, Replica};
use crate::membership::manager::Recorded;
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::object::Image;
use crate::time::Nanos;

/// To the manager: the sender's replica of a region is full. The reply is a code.
const FILLED: MessageId = MessageId(MessageId::CORE + 11);
/// Long message to the other workers of a machine: there are replicas to be filled.
const FILL: u16 = 7;

/// Bytes of one read, unless an object is larger.
const PIECE_BYTES: usize = 8 << 10;
/// Time until a piece is read again that could not be read, or not be installed.
const PIECE_AGAIN: Duration = Duration::from_millis(1);
/// Time between two reports to the manager.
const REPORT_AGAIN: Duration = Duration::from_millis(5);
/// Shorter waits are left out, until they add up.
const LEAST_WAIT: u64 = 100_000;

/// The replica that a worker fills.
pub(super) struct Fill {
    region: RegionId,
    table: BlockTable,
    /// The configuration in which the machine became the primary from which the region is read.
    primary_since: u64,
    /// The primary's block table, as far as it was read.
    words: Vec<u64>,
    /// The runs of blocks, once the table was read.
    runs: Option<Vec<Block>>,
    /// The run and the slot from which objects are read next.
    next: (usize, u32),
    /// Largest number of objects in the next read: fewer after one of them stayed locked.
    most: u32,
    /// Bytes that were read.
    bytes: u64,
    /// The rate allows no read before.
    not_before: Nanos,
}

/// The replica that a worker fills now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillStatus {
    /// The region.
    pub region: RegionId,
    /// Bytes that were read from its primary.
    pub bytes: u64,
    /// Bytes of everything that is to be read, when that is known.
    pub of: Option<u64>,
}

/// What a worker that fills a replica does next.
enum Step {
    Read(ReadRequest),
    Report,
}

impl Fill {
    fn new(region: RegionId, table: BlockTable, primary_since: u64, now: Nanos) -> Self {
        Self {
            region,
            table,
            primary_since,
            words: Vec::new(),
            runs: None,
            next: (0, 0),
            most: u32::MAX,
            bytes: 0,
            not_before: now,
        }
    }

    fn status(&self) -> FillStatus {
        let bytes_of =
            |run: &Block| u64::from(run.slots()) * run.head().class.object_bytes() as u64;
        let of = |runs: &Vec<Block>| {
            let table = self.table.geometry().table_bytes() as u64;
            table + runs.iter().map(bytes_of).sum::<u64>()
        };
        FillStatus {
            region: self.region,
            bytes: self.bytes,
            of: self.runs.as_ref().map(of),
        }
    }

    /// Returns the next step.
    fn step(&mut self) -> Step {
        let Some(runs) = &self.runs else {
            let at = self.words.len() * WORD_BYTES;
            let left = self.table.geometry().table_bytes() - at;
            let address = Address::new(self.region, at as u32);
            return Step::Read(ReadRequest::raw(address, left.min(PIECE_BYTES)));
        };
        while let Some(run) = runs.get(self.next.0) {
            let slot = self.next.1;
            if slot < run.slots() {
                let first = run.address_of(slot);
                let class = run.head().class;
                return Step::Read(ReadRequest::objects(first, class, self.count(run)));
            }
            self.next = (self.next.0 + 1, 0);
        }
        Step::Report
    }

    /// Returns the number of objects in the next read of a run.
    fn count(&self, run: &Block) -> u32 {
        let fit = (PIECE_BYTES / run.head().class.object_bytes()).max(1) as u32;
        fit.min(self.most).min(run.slots() - self.next.1)
    }

    /// Takes what was read. Returns false if another worker of this machine changes one of the objects in the replica now.
    ///
    /// # Errors
    /// What no primary of the region can have.
    fn take(&mut self, words: &[u64]) -> Result<bool, String> {
        let Some(runs) = &self.runs else {
            let left = self.table.geometry().table_bytes() / WORD_BYTES - self.words.len();
            let piece = &words[..left.min(PIECE_BYTES / WORD_BYTES)];
            self.words.extend_from_slice(piece);
            self.bytes += (piece.len() * WORD_BYTES) as u64;
            if piece.len() == left {
                let runs = self.table.primary_runs(&self.words);
                self.runs = Some(runs.map_err(|error| error.to_string())?);
            }
            return Ok(true);
        };
        let run = &runs[self.next.0];
        let count = self.count(run);
        let stride = run.head().class.object_bytes() / WORD_BYTES;
        let mut payload = Vec::new();
        let objects = words.chunks_exact(stride).take(count as usize);
        for (slot, object) in (self.next.1..).zip(objects) {
            let image = Image::check(object).map_err(|why| format!("a read returned {why:?}"))?;
            let taken = run.take(slot, &image, &mut payload);
            if taken.map_err(|error| error.to_string())? == Taken::Waits {
                return Ok(false);
            }
        }
        self.next.1 += count;
        self.most = u32::MAX;
        self.bytes += u64::from(count) * (stride * WORD_BYTES) as u64;
        Ok(true)
    }

    /// Handles that an object of the last read stayed locked. Returns whether fewer objects are read next.
    fn halve(&mut self) -> bool {
        let run = self.runs.as_ref().and_then(|runs| runs.get(self.next.0));
        let count = run.map_or(1, |run| self.count(run));
        self.most = (count / 2).max(1);
        count > 1
    }
}

impl Worker {
    pub(super) fn register_fill_handlers(&mut self) {
        self.register(FILLED, Self::handle_filled);
        self.register_own_long(FILL, |worker, _, _| worker.go_on_filling());
    }

    /// Begins to fill the replicas of this machine that are not full, on the first worker. All machines have recovered in the
    /// configuration.
    pub(super) fn fill_replicas(&mut self, configuration: &Configuration) {
        let me = self.me.machine;
        let is_own = |one: &Replica| one.machine == me && !one.is_full();
        let regions = configuration.regions.iter();
        let own = regions.filter(|region| region.replicas.iter().any(is_own));
        self.store.fill_later(own.map(|region| region.region));
        for worker in self.other_own_workers() {
            self.send_long(worker, FILL, Vec::new());
        }
        self.go_on_filling();
    }

    /// Returns what this worker fills now.
    pub fn fill_status(&self) -> Option<FillStatus> {
        self.fill.as_ref().map(|fill| fill.status())
    }

    /// Changes no copy until all machines have recovered: recovery takes over the locks of objects, and must be the only writer.
    pub(super) fn pause_filling(&mut self) {
        self.fill_pauses = true;
    }

    fn go_on_filling(&mut self) {
        self.fill_pauses = false;
        self.fill_next();
    }

    /// Begins to fill the next replica, unless this worker fills one.
    fn fill_next(&mut self) {
        if self.fill.is_some() {
            return;
        }
        let Some(region) = self.store.take_to_fill() else {
            // A machine that has come back has no region of its own, and others will soon ask it for memory.
            return self.store.prepare_first_region();
        };
        match self.backup_table(region).cloned() {
            Ok(table) => {
                let since = self.store.primary_since(region);
                let fill = Fill::new(region, table, since, self.now);
                self.fill = Some(Box::new(fill));
                self.fill_on((), ());
            }
            Err(error) => self.control.fail(format!(
                "this machine has no memory for its copy of region {region}: {error}"
            )),
        }
    }

    /// Returns whether filling stands still: the machines recover, or this worker is still to apply a configuration that its machine
    /// knows, so that its reads may go to the primary before.
    fn fill_waits(&self) -> bool {
        let applied = self.store.applied();
        let number = self.membership.configuration();
        self.fill_pauses || applied.is_some_and(|applied| applied.version.id != number)
    }

    fn fill_on(&mut self, (): (), (): ()) {
        if self.fill_waits() {
            return self.fill_after(PIECE_AGAIN);
        }
        let Some(mut fill) = self.fill.take() else {
            return;
        };
        let since = self.store.primary_since(fill.region);
        if since != fill.primary_since {
            marks::mark("fill: begins anew with the next primary");
            *fill = Fill::new(fill.region, fill.table, since, self.now);
        }
        let fill = self.fill.insert(fill);
        match fill.step() {
            Step::Report => self.end_fill(),
            Step::Read(request) => {
                let cont = Cont::new(Self::on_piece, ());
                if let Err(ReadError::Busy) = self.read_lock_free(request, cont) {
                    self.when_slot(request.bytes(), Cont::new(Self::fill_on, ()));
                }
            }
        }
    }

    fn fill_after(&mut self, wait: Duration) {
        let again = Cont::new(Self::fill_on, ());
        match wait.is_zero() {
            true => self.defer(again),
            false => self.set_timer(wait, again),
        }
    }

    fn on_piece(&mut self, (): (), read: ReadResult) {
        let Some(mut fill) = self.fill.take() else {
            return;
        };
        let before = fill.bytes;
        let since = self.store.primary_since(fill.region);
        let is_void = self.fill_waits() || since != fill.primary_since;
        let taken = match read {
            Ok(slot) => {
                let arena = self.endpoint.arena();
                let taken = match is_void {
                    true => Ok(false),
                    false => fill.take(arena.words(&slot)),
                };
                arena.give(slot);
                taken
            }
            Err(_) if is_void => Ok(false),
            Err(ReadError::StaysLocked(_)) => Ok(fill.halve()),
            // The region has no primary now.
            Err(ReadError::PeerLost(_) | ReadError::NoRegion(_)) => Ok(false),
            Err(error) => Err(error.to_string()),
        };
        let wait = match taken {
            Ok(true) => self.pace(&mut fill.not_before, fill.bytes - before),
            Ok(false) => {
                marks::mark("fill: a piece is read again");
                PIECE_AGAIN
            }
            Err(why) => {
                let region = fill.region;
                return self.control.fail(format!(
                    "the copy of region {region} on this machine cannot be filled: {why}"
                ));
            }
        };
        self.fill = Some(fill);
        self.fill_after(wait);
    }

    /// Returns how long to wait after a read, so that this worker has its share of the machine's rate.
    fn pace(&self, not_before: &mut Nanos, bytes: u64) -> Duration {
        let share = (self.fill_rate / self.own_workers().count() as u64).max(1);
        let takes = bytes.saturating_mul(1_000_000_000) / share;
        *not_before = Nanos(self.now.0.max(not_before.0) + takes);
        match not_before.0 - self.now.0 {
            wait @ LEAST_WAIT.. => Duration::from_nanos(wait),
            _ => Duration::ZERO,
        }
    }

    /// Has the manager record that the replica is full, and begins to fill the next one.
    fn end_fill(&mut self) {
        if let Some(fill) = self.fill.take() {
            let (region, bytes) = (fill.region, fill.bytes);
            tracing::info!(%region, bytes, "this machine has copied a region");
            self.filled += 1;
            self.report_filled(region, ());
        }
        self.fill_next();
    }

    fn report_filled(&mut self, region: RegionId, (): ()) {
        let manager = WorkerRef::first_of(self.membership.manager());
        let cont = ReplyCont::new(Self::on_filled, region);
        let body = region.to_bits().to_le_bytes();
        match self.call(manager, FILLED, &[&body], REPLY_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::report_filled, region)),
            Err(_) => self.report_again(region),
        }
    }

    fn report_again(&mut self, region: RegionId) {
        self.set_timer(REPORT_AGAIN, Cont::new(Self::report_filled, region));
    }

    fn on_filled(&mut self, region: RegionId, reply: Result<&[u8], CallError>) {
        if reply != Ok(&[DONE]) {
            return self.report_again(region);
        }
        marks::mark("fill: a replica is full");
        self.filled -= 1;
    }

    fn handle_filled(&mut self, request: Request, body: &[u8]) {
        let from = request.from.machine;
        let region = body.try_into().ok().map(u32::from_le_bytes);
        let Some(region) = region.and_then(RegionId::from_bits) else {
            let why = format!("{} sent a FILLED that is malformed", request.from);
            return self.distrust(from, why);
        };
        if request.link != self.messaging.number_of(from) {
            // An earlier process of the machine has sent it.
            return;
        }
        let manager = self.recorder.manager.as_mut();
        let code = match manager.map(|manager| manager.record_full(region, from)) {
            Some(Recorded::Yes) => DONE,
            // Another machine manages the configuration, or will.
            None | Some(Recorded::NotYet) => NOT_YET,
            Some(Recorded::No(why)) => {
                // The sender was evicted, or has applied a later configuration.
                tracing::debug!(%region, why, "a copy that is not in the configuration");
                NOT_YET
            }
        };
        self.reply(request, &[&[code]]);
        self.manage();
    }
}
