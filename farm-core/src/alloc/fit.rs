//! Finds blocks in one region: the run for a request, and its position (`FaRM'14 §3.3`).

use std::collections::BTreeMap;

use crate::ids::WorkerId;

use super::bitmap::FreeSlots;
use super::reclassify::Vacancy;
use super::{Block, BlockHead, BlockKind, BlockState, BlockTable, Geometry, SizeClass, TableError};

/// A region of the machine, and the state that its table does not store.
pub(super) struct RegionBlocks {
    pub(super) table: BlockTable,
    /// Block before which no block is free.
    pub(super) lowest_free: u32,
    /// Number of blocks that are in no run.
    pub(super) free: u32,
    /// Vacant runs, by class. Not performance-critical: a worker looks here once per block.
    pub(super) vacant: BTreeMap<SizeClass, Vec<Vacancy>>,
    /// The objects of each array that are not released yet, by the index of the array's block.
    pub(super) arrays: BTreeMap<u32, FreeSlots>,
}

/// The purpose of a run, which determines its length.
#[derive(Clone, Copy)]
pub(super) enum Demand {
    /// Objects of a class, for a slab.
    Slab(SizeClass),
    /// This number of adjacent objects.
    Array(SizeClass, u32),
}

/// How the length of a slab's run is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The smallest run that wastes little after its last object.
    Snug,
    /// The shortest run in which one object fits: the last resort before a request fails.
    Tight,
}

impl Demand {
    fn class(self) -> SizeClass {
        match self {
            Demand::Slab(class) | Demand::Array(class, _) => class,
        }
    }

    /// Returns the number of objects that must fit.
    fn least(self) -> u32 {
        match self {
            Demand::Slab(_) => 1,
            Demand::Array(_, count) => count,
        }
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.least()) * self.class().object_bytes() as u64
    }

    /// Returns the number of blocks that the demand needs at `block`.
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
    /// Takes a block from this region: a vacant run, else free blocks with [`Fit::Snug`], else free blocks with
    /// [`Fit::Tight`].
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

    /// Takes a vacant run of the class, the shortest that is large enough. Of several runs with that length, takes the
    /// run that was retired last, because the others may be about to be freed for any class.
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

    /// Takes free blocks, first fit.
    pub(super) fn take_free(
        &mut self,
        demand: Demand,
        fit: Fit,
        owner: WorkerId,
    ) -> Result<Option<Block>, TableError> {
        let geometry = self.table.geometry();
        let first = geometry.first_block();
        // The table shortens the first block. Runs that start at any other block have the same length.
        let at_first = demand.run(fit, geometry, first);
        let elsewhere = demand.run(fit, geometry, first + 1);
        let skip_first = fit == Fit::Snug && at_first > elsewhere.saturating_add(1);
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

    /// Returns the start and end of the next range of free blocks at `from` or after it.
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
