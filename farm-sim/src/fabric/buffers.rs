//! The store buffers of simulated processors.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use farm_core::ids::MachineId;
use farm_core::mem::WORD_BYTES;
use rand::Rng;
use send_wrapper::SendWrapper;

use super::connection::Location;

/// A function of the scheduler that lets other workers run between two accesses of a turn.
pub(super) type Others = Arc<SendWrapper<Box<dyn Fn()>>>;

/// A store that other processors do not see yet.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) at: Location,
    pub(super) value: u64,
    /// The store becomes visible after every store of a lower group.
    pub(super) group: u64,
}

/// The buffered stores of one worker's processor.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub(super) stores: Vec<Store>,
    /// Least group of the next store. A fence raises it above the groups of all buffered stores.
    pub(super) group: u64,
    /// The set of the locations of all buffered stores: see [`bit`].
    places: u64,
}

/// Returns the bit of a location in a set of 64. If the set does not have it, it does not have the location.
pub(super) fn bit(at: Location) -> u64 {
    1 << ((at.offset / WORD_BYTES + at.export) % 64)
}

/// What most loads need, kept outside the lock of the state because loads are about a thousand times as
/// frequent as all other operations. One thread at a time runs a fabric, so relaxed accesses suffice.
#[derive(Debug, Default)]
pub(super) struct FastPath {
    /// Accesses left until the next interruption of the turn.
    pub(super) until_others: AtomicU32,
    /// Whether a turn is running.
    pub(super) in_turn: AtomicBool,
    /// The set of the locations for which the worker whose turn is running has buffered stores: see [`bit`].
    pub(super) own_stores: AtomicU64,
}

/// The processors of a fabric.
pub(super) struct Processors {
    /// Whether processors are simulated. If not, every store and every remote write is visible at once.
    pub(super) simulated: bool,
    /// Store buffers, indexed by port.
    pub(super) buffers: Vec<Buffer>,
    /// Number of stores in all buffers.
    pub(super) waiting: usize,
    /// The port of the worker whose turn is running.
    pub(super) running: Option<usize>,
    /// Remotely written words that the machine's processors do not see yet, oldest first.
    pub(super) arriving: BTreeMap<MachineId, VecDeque<(Location, u64)>>,
    pub(super) fast_path: Arc<FastPath>,
    pub(super) others: Option<Others>,
}

impl Processors {
    pub(super) fn new(simulated: bool) -> Self {
        Self {
            simulated,
            buffers: Vec::new(),
            waiting: 0,
            running: None,
            arriving: BTreeMap::new(),
            fast_path: Arc::new(FastPath {
                until_others: AtomicU32::new(1),
                in_turn: AtomicBool::new(false),
                own_stores: AtomicU64::new(0),
            }),
            others: None,
        }
    }

    /// Publishes whether a turn is running, and which stores its worker has buffered.
    pub(super) fn publish_own_stores(&self) {
        let own = self.running.map(|port| self.buffers[port].places);
        let fast_path = &self.fast_path;
        fast_path.in_turn.store(own.is_some(), Ordering::Relaxed);
        fast_path
            .own_stores
            .store(own.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn add(&mut self) {
        self.buffers.push(Buffer::default());
    }

    pub(super) fn has_pending(&self) -> bool {
        self.waiting > 0 || !self.arriving.is_empty()
    }
}

impl Buffer {
    pub(super) fn add(&mut self, at: Location, value: u64, order: Ordering) {
        let release = matches!(
            order,
            Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
        );
        let mut group = self.group;
        for store in &self.stores {
            if release {
                group = group.max(store.group + 1);
            } else if store.at == at {
                group = group.max(store.group);
            }
        }
        self.stores.push(Store { at, value, group });
        self.places |= bit(at);
    }

    /// Removes all stores, and returns them in the order in which they were made.
    pub(super) fn drain(&mut self) -> std::vec::Drain<'_, Store> {
        self.places = 0;
        self.stores.drain(..)
    }

    pub(super) fn newest(&self, at: Location) -> Option<u64> {
        let mut stores = self.stores.iter().rev();
        stores.find(|store| store.at == at).map(|store| store.value)
    }

    pub(super) fn fence(&mut self) {
        let last = self.stores.iter().map(|store| store.group).max();
        self.group = self.group.max(last.map_or(0, |last| last + 1));
    }

    /// Removes and returns the store that becomes visible next. Draws a store from the lowest group, and takes the
    /// oldest store of that group to the same location.
    pub(super) fn take(&mut self, rng: &mut impl Rng) -> Option<Store> {
        let lowest = self.stores.iter().map(|store| store.group).min()?;
        let ready = self.stores.iter().filter(|store| store.group == lowest);
        let picked = rng.random_range(0..ready.clone().count());
        let at = ready.clone().nth(picked).map(|store| store.at)?;
        let first = self
            .stores
            .iter()
            .position(|store| store.group == lowest && store.at == at)?;
        let taken = self.stores.remove(first);
        let left = self.stores.iter();
        self.places = left.fold(0, |places, store| places | bit(store.at));
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn at(offset: usize) -> Location {
        Location { export: 0, offset }
    }

    /// Returns every order in which the buffer's stores become visible, over many seeds.
    fn orders(fill: impl Fn(&mut Buffer)) -> std::collections::BTreeSet<Vec<u64>> {
        let order = |seed| {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut buffer = Buffer::default();
            fill(&mut buffer);
            std::iter::from_fn(|| buffer.take(&mut rng).map(|store| store.value)).collect()
        };
        (0..300).map(order).collect()
    }

    #[test]
    fn stores_between_fences_retire_in_any_order_and_no_store_passes_a_fence() {
        let seen = orders(|buffer| {
            buffer.add(at(0), 1, Ordering::Relaxed);
            buffer.add(at(8), 2, Ordering::Relaxed);
            buffer.fence();
            buffer.add(at(16), 3, Ordering::Relaxed);
            buffer.add(at(24), 4, Ordering::Relaxed);
        });
        let all = [[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4], [2, 1, 4, 3]];
        assert_eq!(seen, all.map(|order| order.to_vec()).into());
    }

    #[test]
    fn a_release_store_retires_after_all_earlier_stores_and_each_location_keeps_its_order() {
        let seen = orders(|buffer| {
            buffer.add(at(0), 1, Ordering::Relaxed);
            buffer.add(at(8), 2, Ordering::Release);
            buffer.add(at(8), 3, Ordering::Relaxed);
            buffer.add(at(16), 4, Ordering::Relaxed);
            buffer.add(at(0), 5, Ordering::Relaxed);
        });
        assert!(seen.len() > 1);
        for order in seen {
            let place = |value| order.iter().position(|seen| *seen == value).unwrap();
            assert!(
                place(1) < place(2) && place(2) < place(3) && place(1) < place(5),
                "{order:?}"
            );
        }
    }
}
