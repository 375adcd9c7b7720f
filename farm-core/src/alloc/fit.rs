//! Finding blocks in one region: which run a request gets, and where (`FaRM'14 §3.3`).

use std::collections::BTreeMap;

use crate::ids::WorkerId;

use super::bitmap::FreeSlots;
use super::retire::Vacancy;
use super::{Block, BlockHead, BlockKind, BlockState, BlockTable, Geometry, SizeClass, TableError};

/// A region of the machine's, and what there is to know beside its table.
pub(super) struct RegionBlocks {
    pub(super) table: BlockTable,
    /// No block before this one is free.
    pub(super) lowest_free: u32,
    /// Blocks that are in no run.
    pub(super) free: u32,
    /// Vacant runs. Cold: a worker comes here once per block.
    pub(super) vacant: BTreeMap<SizeClass, Vec<Vacancy>>,
    /// Of the array in each block, by the block's number, the objects that have not come back.
    pub(super) arrays: BTreeMap<u32, FreeSlots>,
}

/// What a run is for, and so how long it must be.
#[derive(Clone, Copy)]
pub(super) enum Demand {
    /// Objects of a class, for a slab.
    Slab(SizeClass),
    /// So many adjacent objects.
    Array(SizeClass, u32),
}

/// How a slab's run is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// So that little is lost behind the last object.
    Snug,
    /// So that one object fits: before a request fails.
    Tight,
}

impl Demand {
    fn class(self) -> SizeClass {
        match self {
            Demand::Slab(class) | Demand::Array(class, _) => class,
        }
    }

    /// Objects that must fit.
    fn least(self) -> u32 {
        match self {
            Demand::Slab(_) => 1,
            Demand::Array(_, count) => count,
        }
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.least()) * self.class().object_bytes() as u64
    }

    /// Blocks wanted at `block`.
    pub(super) fn run(self, fit: Fit, geometry: Geometry, block: u32) -> u32 {
        match (self, fit) {
            (Demand::Slab(class), Fit::Snug) => geometry.snug_run(block, class),
            _ => geometry.run_for(block, self.class(), self.least()),
        }
    }

    fn head(self, owner: WorkerId, run: u32) -> BlockHead {
        let kind = match self {
            Demand::Slab(_) => BlockKind::Slab,
            Demand::Array(..) => BlockKind::Array,
        };
        BlockHead {
            kind,
            class: self.class(),
            owner,
            run,
        }
    }
}

impl RegionBlocks {
    /// A block from this region by whatever means.
    pub(super) fn take(
        &mut self,
        demand: Demand,
        owner: WorkerId,
    ) -> Result<Option<Block>, TableError> {
        if let Some(block) = self.take_vacant(demand, owner)? {
            return Ok(Some(block));
        }
        if let Some(block) = self.take_free(demand, Fit::Snug, owner)? {
            return Ok(Some(block));
        }
        self.take_free(demand, Fit::Tight, owner)
    }

    /// A vacant block of the class, the smallest that will do; of equals the one retired last, as the
    /// others may be about to be freed for any class.
    pub(super) fn take_vacant(
        &mut self,
        demand: Demand,
        owner: WorkerId,
    ) -> Result<Option<Block>, TableError> {
        let Some(vacancies) = self.vacant.get_mut(&demand.class()) else {
            return Ok(None);
        };
        let mut best: Option<(usize, Vacancy, u32)> = None;
        for (at, vacancy) in vacancies.iter().enumerate() {
            let head = self.table.head(vacancy.index)?;
            let slots = self
                .table
                .geometry()
                .slots(vacancy.index, head.run, head.class);
            let better = best.is_none_or(|(_, other, run)| {
                head.run < run || head.run == run && vacancy.since > other.since
            });
            if slots >= demand.least() && better {
                best = Some((at, *vacancy, head.run));
            }
        }
        let Some((at, Vacancy { index, .. }, run)) = best else {
            return Ok(None);
        };
        vacancies.swap_remove(at);
        let head = demand.head(owner, run);
        self.table.rewrite_head(index, head);
        self.table.block(index, head).map(Some)
    }

    /// Free blocks, first fit.
    pub(super) fn take_free(
        &mut self,
        demand: Demand,
        fit: Fit,
        owner: WorkerId,
    ) -> Result<Option<Block>, TableError> {
        let geometry = self.table.geometry();
        let first = geometry.first_block();
        // The first block has less room than any other; runs that start elsewhere are all alike.
        let at_first = demand.run(fit, geometry, first);
        let elsewhere = demand.run(fit, geometry, first + 1);
        let skip_first = fit == Fit::Snug && at_first > elsewhere + 1;
        let mut from = self.lowest_free;
        let mut lowest = None;
        while let Some((start, end)) = self.next_free(from)? {
            lowest.get_or_insert(start);
            let places = [(start, at_first), (start + 1, elsewhere)];
            let fitting = if start == first {
                let places = if skip_first {
                    &places[1..]
                } else {
                    &places[..]
                };
                places
                    .iter()
                    .find(|(at, run)| *at < end && *run <= end - at)
                    .copied()
            } else {
                (elsewhere <= end - start).then_some((start, elsewhere))
            };
            if let Some((index, run)) = fitting {
                let head = demand.head(owner, run);
                let block = self.table.write_run(index, head)?;
                self.free -= run;
                if lowest == Some(index) {
                    lowest = Some(index + run);
                }
                self.lowest_free = lowest.unwrap_or(self.lowest_free);
                return Ok(Some(block));
            }
            from = end;
        }
        self.lowest_free = lowest.unwrap_or(geometry.blocks());
        Ok(None)
    }

    /// The next stretch of free blocks at `from` or after it, as long as it goes.
    fn next_free(&self, from: u32) -> Result<Option<(u32, u32)>, TableError> {
        let blocks = self.table.geometry().blocks();
        let mut start = from;
        while start < blocks {
            match self.table.state(start)? {
                BlockState::Free => break,
                BlockState::Head(head) => start = start.saturating_add(head.run),
                BlockState::Rest { .. } | BlockState::Table => start += 1,
            }
        }
        let mut end = start;
        while end < blocks && self.table.state(end)? == BlockState::Free {
            end += 1;
        }
        Ok((start < end).then_some((start, end)))
    }
}
