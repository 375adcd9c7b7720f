//! Copies that this machine keeps of regions whose primary is another machine (`FaRM'15 §3`).
//!
//! A copy begins like the primary's region: zero, with a block table that has the same bases. One that is made later than the region is
//! [filled](crate::worker). Commits
//! change it ([`crate::worker::Worker::backup_table`]); no reads use it while the primary lives. When the primary is lost, one of the
//! copies becomes the region.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::alloc::{BlockConfig, BlockTable, table_bases};
use crate::fabric::Capability;
use crate::ids::RegionId;
use crate::mem::Memory;

/// The memory of a copy, and its capability.
type Copied = (Memory, Capability);
type Allocated = Result<(Memory, Capability), Box<dyn std::error::Error + Send + Sync>>;
/// Allocates zeroed memory of this many bytes for a copy of a region. If regions are [kept](crate::kept), it is.
pub type AllocateBackup = Arc<dyn Fn(RegionId, usize) -> Allocated + Send + Sync>;

/// How far the memory of a copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    Yes,
    /// Ask again.
    NotYet,
    /// There is no memory, for this reason. The next request tries again.
    No(String),
}

enum State {
    Making(JoinHandle<Result<Copied, String>>),
    Ready(Copied),
}

/// The copies of a machine.
pub struct Backups {
    allocate: AllocateBackup,
    /// Whether memory is made by threads, because it takes long.
    by_threads: bool,
    regions: Mutex<BTreeMap<RegionId, State>>,
}

impl Backups {
    /// Creates the copies of a machine that has none.
    pub fn new(allocate: AllocateBackup, by_threads: bool) -> Self {
        Self {
            allocate,
            by_threads,
            regions: Mutex::default(),
        }
    }

    /// Has the memory of a copy made, if it is not. Its block table has the bases of the primary's, whose seed is the same.
    pub(crate) fn prepare(&self, region: RegionId, config: &BlockConfig) -> Prepared {
        let mut regions = self.lock();
        match regions.remove(&region) {
            Some(State::Ready(memory)) => {
                regions.insert(region, State::Ready(memory));
                Prepared::Yes
            }
            Some(State::Making(thread)) if !thread.is_finished() => {
                regions.insert(region, State::Making(thread));
                Prepared::NotYet
            }
            Some(State::Making(thread)) => {
                let made = thread.join();
                let made = made.unwrap_or_else(|_| Err("the thread that made it panicked".into()));
                made.map_or_else(Prepared::No, |memory| {
                    regions.insert(region, State::Ready(memory));
                    Prepared::Yes
                })
            }
            None => {
                let (allocate, config) = (Arc::clone(&self.allocate), *config);
                // In simulations, others run while memory is written.
                drop(regions);
                self.begin(region, move || make(&allocate, region, &config))
            }
        }
    }

    /// Makes the memory of a copy now.
    ///
    /// # Errors
    /// Why the memory could not be made.
    pub(crate) fn make(&self, region: RegionId, config: &BlockConfig) -> Result<(), String> {
        let made = make(&self.allocate, region, config)?;
        self.add(region, made);
        Ok(())
    }

    fn begin(
        &self,
        region: RegionId,
        make: impl FnOnce() -> Result<Copied, String> + Send + 'static,
    ) -> Prepared {
        let state = match self.by_threads {
            false => make().map(State::Ready),
            true => std::thread::Builder::new()
                .name("backup-region".into())
                .spawn(make)
                .map(State::Making)
                .map_err(|error| error.to_string()),
        };
        match state {
            Ok(state) => {
                self.lock().insert(region, state);
                Prepared::NotYet
            }
            Err(why) => Prepared::No(why),
        }
    }

    /// Returns the memory of a copy.
    pub fn memory(&self, region: RegionId) -> Option<Memory> {
        match self.lock().get(&region) {
            Some(State::Ready((memory, _))) => Some(memory.clone()),
            _ => None,
        }
    }

    /// Adds a copy that an earlier process of this machine has made.
    pub(crate) fn add(&self, region: RegionId, copy: (Memory, Capability)) {
        self.lock().insert(region, State::Ready(copy));
    }

    /// Takes a copy out, because this machine has become the primary of its region.
    pub(crate) fn take(&self, region: RegionId) -> Option<(Memory, Capability)> {
        let mut regions = self.lock();
        match regions.remove(&region)? {
            State::Ready(copy) => Some(copy),
            // It had no data.
            making @ State::Making(_) => {
                regions.insert(region, making);
                None
            }
        }
    }

    /// Returns the number of bytes of all copies.
    pub fn bytes(&self) -> u64 {
        let regions = self.lock();
        let bytes = regions.values().map(|state| match state {
            State::Ready((memory, _)) => memory.len() as u64,
            State::Making(_) => 0,
        });
        bytes.sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RegionId, State>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the memory of a copy.
fn make(
    allocate: &AllocateBackup,
    region: RegionId,
    config: &BlockConfig,
) -> Result<Copied, String> {
    let BlockConfig {
        region_bytes,
        block_bytes,
        seed,
        ..
    } = *config;
    let allocated = allocate(region, region_bytes);
    let (memory, capability) = allocated.map_err(|error| error.to_string())?;
    let memory = memory.window(0, region_bytes);
    let bases = &mut table_bases(seed, region);
    let table = BlockTable::format(memory.clone(), region, block_bytes, bases);
    table
        .map(|_| (memory, capability))
        .map_err(|error| error.to_string())
}

impl Drop for Backups {
    fn drop(&mut self) {
        // A thread must not make files after the machine has removed its own.
        for (_, state) in std::mem::take(&mut *self.lock()) {
            if let State::Making(thread) = state {
                // The copy is not needed any more, nor is the reason why there is none.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ids::MachineId;

    fn backups(by_threads: bool, fails: usize) -> Backups {
        let calls = AtomicUsize::new(0);
        let allocate = move |_, bytes| {
            if calls.fetch_add(1, Ordering::Relaxed) < fails {
                return Err("the directory is full".into());
            }
            let capability = Capability {
                machine: MachineId::new(1).unwrap(),
                boot: 0,
                key: 0,
                bytes: bytes as u64,
                writable: false,
            };
            Ok((Memory::anonymous(bytes), capability))
        };
        Backups::new(Arc::new(allocate), by_threads)
    }

    #[test]
    fn a_copy_is_made_once_and_after_a_failure_again() {
        let region = RegionId::new(3, 9).unwrap();
        let config = BlockConfig {
            block_bytes: 4096,
            region_bytes: 1 << 16,
            per_machine_bytes: 0,
            seed: 7,
        };
        for by_threads in [false, true] {
            let backups = backups(by_threads, 1);
            let ask = || loop {
                match backups.prepare(region, &config) {
                    Prepared::NotYet => std::thread::yield_now(),
                    end => return end,
                }
            };
            assert_eq!(ask(), Prepared::No("the directory is full".into()));
            assert!(backups.memory(region).is_none());
            assert_eq!(ask(), Prepared::Yes);
            assert_eq!(ask(), Prepared::Yes);
            assert_eq!(backups.bytes(), 1 << 16);
            let memory = backups.memory(region).unwrap();
            // The table is that of a primary with the same seed.
            let primary = Memory::anonymous(1 << 16);
            let bases = &mut table_bases(7, region);
            BlockTable::format(primary.clone(), region, 4096, bases).unwrap();
            for at in (0..1 << 16).step_by(8) {
                let words = [&memory, &primary].map(|one| one.load(at, Ordering::Relaxed));
                assert_eq!(words[0], words[1], "at {at}");
            }
        }
    }
}
