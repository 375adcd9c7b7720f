//! How the workers of a machine take regions into their allocators that another machine had made, which was lost (`FaRM'15 §5.5`).
//!
//! 1. When all machines have recovered in a configuration, the workers scan such regions, one each at a time, some slots after another.
//! 2. At the end of a scan, every other worker of the machine gets a message. The last one that handles it gives the region to the block
//!    allocator: what any of them was doing when the scan ended is done.
//! 3. Each worker takes the blocks that it owns.
//!
//! The regions and what is known of them are in the [store](crate::region::store).

use std::time::Duration;

use super::{Cont, Worker};
use crate::ids::{RegionId, WorkerRef};
use crate::marks;
use crate::region::store::Scan;

/// Long messages between workers of a machine: there are regions to be scanned; the scan of a region has ended; the block allocator has
/// the region.
const ADOPT: u16 = 8;
const SCANNED: u16 = 9;
const ADOPTED: u16 = 10;

/// Slots that are scanned at once, and the time between two such steps.
const SLOTS_AT_ONCE: u32 = 100;
const STEP: Duration = Duration::from_micros(100);
/// Time until a worker looks again whether the machines have recovered.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Worker {
    pub(super) fn register_adopt_handlers(&mut self) {
        self.register_own_long(ADOPT, |worker, _, _| worker.adopt_next());
        self.register_own_long(SCANNED, |worker, from, body| {
            worker.take_region((from, body), Self::on_scanned);
        });
        self.register_own_long(ADOPTED, |worker, from, body| {
            worker.take_region((from, body), Self::take_adopted_blocks);
        });
    }

    /// Handles a message that is the id of a region.
    fn take_region(&mut self, (from, body): (WorkerRef, &[u8]), work: fn(&mut Self, RegionId)) {
        let region = body.try_into().ok().map(u32::from_le_bytes);
        let region = region.and_then(RegionId::from_bits);
        match region {
            Some(region) => work(self, region),
            None => {
                let why = format!("{from} sent the id of a region that is malformed");
                self.distrust(from.machine, why);
            }
        }
    }

    /// Goes on to take regions of lost machines into the allocators, on the first worker. All machines have recovered.
    pub(super) fn adopt_regions(&mut self) {
        self.store.go_on_adopting();
        if self.store.is_adopting() {
            for worker in self.other_own_workers() {
                self.send_long(worker, ADOPT, Vec::new());
            }
            self.adopt_next();
        }
    }

    /// Begins to scan a region, unless this worker scans one.
    fn adopt_next(&mut self) {
        if self.scans.is_some() {
            return;
        }
        match self.store.begin_to_adopt(self.own_workers().count() - 1) {
            Ok(None) => {}
            Ok(Some(region)) => {
                self.scans = Some(region);
                self.scan_on((), ());
            }
            Err(damage) => self.not_adopted(&damage),
        }
    }

    fn not_adopted(&mut self, why: &dyn std::error::Error) {
        self.control.fail(format!(
            "memory in a region of a lost machine cannot be allocated: {why}"
        ));
    }

    fn scan_on(&mut self, (): (), (): ()) {
        let Some(region) = self.scans else {
            return;
        };
        match self.store.scan(region, SLOTS_AT_ONCE) {
            Ok(Scan::GoesOn) => self.set_timer(STEP, Cont::new(Self::scan_on, ())),
            Ok(Scan::Pauses) => {
                marks::mark("adopt: a scan pauses");
                self.set_timer(LOOK_AGAIN, Cont::new(Self::scan_on, ()));
            }
            Ok(Scan::Ended) => self.end_scan(region),
            Err(damage) => self.not_adopted(&damage),
        }
    }

    fn end_scan(&mut self, region: RegionId) {
        self.scans = None;
        let others = self.other_own_workers();
        if others.is_empty() {
            self.adopt_scanned(region, ());
        }
        for worker in others {
            self.send_long(worker, SCANNED, region.to_bits().to_le_bytes().into());
        }
        self.adopt_next();
    }

    fn on_scanned(&mut self, region: RegionId) {
        if self.store.turned(region) {
            self.adopt_scanned(region, ());
        }
    }

    /// Gives a region to the block allocator, after all workers have turned.
    fn adopt_scanned(&mut self, region: RegionId, (): ()) {
        match self.store.adopt(region, self.own_workers().count()) {
            Ok(true) => {}
            Ok(false) => {
                marks::mark("adopt: a scanned region waits for a recovery");
                return self.set_timer(LOOK_AGAIN, Cont::new(Self::adopt_scanned, region));
            }
            Err(why) => return self.not_adopted(&why),
        }
        marks::mark("adopt: a region");
        tracing::info!(%region, "memory in a region of a lost machine can be allocated again");
        for worker in self.other_own_workers() {
            self.send_long(worker, ADOPTED, region.to_bits().to_le_bytes().into());
        }
        self.take_adopted_blocks(region);
    }

    fn take_adopted_blocks(&mut self, region: RegionId) {
        for block in self.store.take_adopted(region, self.me.worker) {
            marks::mark("adopt: a worker takes a block");
            self.slab.take_adopted(block);
        }
    }
}
