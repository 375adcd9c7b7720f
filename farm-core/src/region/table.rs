//! The regions that one worker knows: which machine stores each, and how to access it. Other code looks regions up by
//! [`RegionTable::lookup`] or [`RegionTable::find`].
//!
//! A region that the worker does not know is located by hashing its id ([`super::placement`]); its capability is
//! fetched once from the machine that the hash selects.

use crate::fabric::RemoteMemory;
use crate::ids::{MachineId, RegionId};
use crate::mem::Memory;

/// How a worker accesses a region.
#[derive(Clone, Debug)]
pub enum Access {
    /// This machine is the primary.
    Local(Memory),
    /// Another machine is the primary.
    Remote {
        /// The primary.
        machine: MachineId,
        /// Imported memory of the region.
        memory: RemoteMemory,
        /// Bytes in the region.
        bytes: u64,
    },
    /// The primary was lost: the region is [found](RegionTable::find) again when it is recorded anew.
    Lost,
}

/// Index of a known region; valid for the lifetime of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionIndex(u32);

/// The regions that a worker knows, found by id through a small open-addressed index.
#[derive(Debug)]
pub struct RegionTable {
    regions: Vec<(RegionId, Access)>,
    /// Region index + 1, or 0 if empty. The length is a power of two, and at most half of the entries are in use.
    buckets: Vec<u32>,
}

impl Default for RegionTable {
    fn default() -> Self {
        Self {
            regions: Vec::new(),
            buckets: vec![0; 64],
        }
    }
}

impl RegionTable {
    #[inline]
    fn start(&self, id: RegionId) -> usize {
        let hash = u64::from(id.to_bits()).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        hash as usize & (self.buckets.len() - 1)
    }

    /// Returns the access to a region, if the worker knows the region.
    #[inline]
    pub fn lookup(&self, id: RegionId) -> Option<&Access> {
        self.find(id).map(|index| self.at(index))
    }

    /// Returns the index of a region, if the worker knows the region.
    #[inline]
    pub fn find(&self, id: RegionId) -> Option<RegionIndex> {
        let found = self.position(id);
        found.filter(|index| !matches!(self.at(*index), Access::Lost))
    }

    #[inline]
    fn position(&self, id: RegionId) -> Option<RegionIndex> {
        let mut at = self.start(id);
        loop {
            let index = self.buckets[at].checked_sub(1)?;
            if self.regions[index as usize].0 == id {
                return Some(RegionIndex(index));
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }

    /// Returns the access to the region at an index.
    #[inline]
    pub fn at(&self, index: RegionIndex) -> &Access {
        &self.regions[index.0 as usize].1
    }

    /// Records a region, or replaces its access.
    pub fn record(&mut self, id: RegionId, access: Access) -> RegionIndex {
        if let Some(index) = self.position(id) {
            self.regions[index.0 as usize].1 = access;
            return index;
        }
        self.regions.push((id, access));
        if self.regions.len() * 2 > self.buckets.len() {
            self.buckets = vec![0; self.buckets.len() * 2];
            for index in 0..self.regions.len() {
                self.insert(index);
            }
        } else {
            self.insert(self.regions.len() - 1);
        }
        RegionIndex(self.regions.len() as u32 - 1)
    }

    fn insert(&mut self, index: usize) {
        let mut at = self.start(self.regions[index].0);
        while self.buckets[at] != 0 {
            at = (at + 1) & (self.buckets.len() - 1);
        }
        self.buckets[at] = index as u32 + 1;
    }

    /// Forgets how the regions of machines are accessed that are not members any more.
    pub fn forget(&mut self, is_member: impl Fn(MachineId) -> bool) {
        for (_, access) in &mut self.regions {
            if matches!(access, Access::Remote { machine, .. } if !is_member(*machine)) {
                *access = Access::Lost;
            }
        }
    }

    /// Returns the regions, in the order in which they were recorded.
    pub fn iter(&self) -> impl Iterator<Item = &(RegionId, Access)> {
        self.regions.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_region_is_found_and_no_other() {
        let mut table = RegionTable::default();
        let id = |n: u32| RegionId::new(n % 100, n * 7919).unwrap();
        for n in 1..500 {
            assert!(table.lookup(id(n)).is_none());
            let machine = MachineId::new(n as u16).unwrap();
            let memory = RemoteMemory::from_index(n);
            table.record(
                id(n),
                Access::Remote {
                    machine,
                    memory,
                    bytes: 64,
                },
            );
        }
        for n in 1..500 {
            let Some(Access::Remote { memory, .. }) = table.lookup(id(n)) else {
                panic!("region {n} was not found")
            };
            assert_eq!(memory.index(), n);
        }
        let before = table.find(id(3));
        assert_eq!(
            Some(table.record(id(3), Access::Local(Memory::anonymous(64)))),
            before
        );
        assert!(matches!(table.lookup(id(3)), Some(Access::Local(_))));
        table.forget(|machine| machine.get() != 7);
        assert!(table.lookup(id(7)).is_none());
        assert!(table.lookup(id(3)).is_some() && table.lookup(id(8)).is_some());
        table.record(id(7), Access::Local(Memory::anonymous(64)));
        assert!(table.lookup(id(7)).is_some());
    }
}
