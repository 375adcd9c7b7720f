//! Memory of regions that is allocated before it is needed.
//!
//! To allocate a region takes half a second for every 256 MiB, because all of its pages are created and zeroed. In a
//! worker's turn this would stop all transactions that need the worker. So a thread allocates the next region while the
//! last one fills.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::CpuSet;

use crate::fabric::Capability;
use crate::ids::RegionId;
use crate::mem::Memory;
use crate::region::store::{AllocationError, RegionMemory};

type Allocated = Result<(Memory, Capability), AllocationError>;
type Allocate = dyn Fn(usize) -> Allocated + Send + Sync;
type Keep = dyn Fn(RegionId, &Capability) -> Result<(), AllocationError> + Send + Sync;

/// Allocates the memory of regions, one of them ahead. Clones share it.
#[derive(Clone)]
pub(super) struct Spare {
    name: String,
    allocate: Arc<Allocate>,
    keep: Arc<Keep>,
    state: Arc<Mutex<State>>,
    /// The cores of the thread: those on which this value was created, and not that of a pinned worker.
    cores: Option<CpuSet>,
    /// Whether the host has given no thread.
    has_no_thread: bool,
}

enum State {
    Empty,
    /// Memory of this many bytes is being allocated, or is allocated.
    Begun(usize, JoinHandle<Allocated>),
    /// The machine ends: nothing is allocated ahead.
    Ended,
}

impl Spare {
    /// Creates an allocator. `name` is the name of its threads. `keep` [keeps](crate::kept) the memory of a region.
    pub(super) fn new(
        name: String,
        allocate: impl Fn(usize) -> Allocated + Send + Sync + 'static,
        keep: impl Fn(RegionId, &Capability) -> Result<(), AllocationError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            allocate: Arc::new(allocate),
            keep: Arc::new(keep),
            state: Arc::new(Mutex::new(State::Empty)),
            cores: rustix::thread::sched_getaffinity(None).ok(),
            has_no_thread: false,
        }
    }

    /// Allocates memory of this many bytes for a region now.
    pub(super) fn allocate_now(&self, region: RegionId, bytes: usize) -> Allocated {
        self.kept(region, (self.allocate)(bytes))
    }

    fn kept(&self, region: RegionId, allocated: Allocated) -> Allocated {
        let (memory, capability) = allocated?;
        (self.keep)(region, &capability)?;
        Ok((memory, capability))
    }

    /// Waits for the thread, if there is one. Afterwards nothing is allocated ahead.
    pub(super) fn end(&self) {
        if let State::Begun(_, thread) = self.replace(State::Ended) {
            // The machine ends. Memory that was not needed, or an error, does not matter.
            let _ = thread.join();
        }
    }

    fn replace(&self, state: State) -> State {
        let mut current = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, state)
    }
}

impl RegionMemory for Spare {
    fn allocate(&mut self, region: RegionId, bytes: usize) -> Allocated {
        let mut current = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = match &*current {
            State::Begun(begun, _) if *begun == bytes => {
                std::mem::replace(&mut *current, State::Empty)
            }
            _ => State::Empty,
        };
        drop(current);
        if let State::Begun(_, thread) = begun {
            // If it failed, the reason may be gone.
            if let Ok(Ok(allocated)) = thread.join() {
                return self.kept(region, Ok(allocated));
            }
        }
        self.allocate_now(region, bytes)
    }

    fn is_ready(&self, bytes: usize) -> bool {
        let current = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            State::Begun(begun, thread) => *begun != bytes || thread.is_finished(),
            // Without a thread nothing would change.
            State::Empty => self.has_no_thread,
            State::Ended => true,
        }
    }

    fn prepare(&mut self, bytes: usize) {
        let mut current = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*current, State::Empty) {
            return;
        }
        let (allocate, cores) = (Arc::clone(&self.allocate), self.cores);
        let thread = std::thread::Builder::new().name(self.name.clone());
        let thread = thread.spawn(move || {
            if let Some(cores) = cores {
                // Without this the thread shares a core with a worker, and is slower.
                let _ = rustix::thread::sched_setaffinity(None, &cores);
            }
            allocate(bytes)
        });
        match thread {
            Ok(thread) => *current = State::Begun(bytes, thread),
            // The memory is allocated when it is needed.
            Err(_) => self.has_no_thread = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ids::MachineId;

    fn spare(calls: &Arc<AtomicUsize>, fails: usize) -> Spare {
        let calls = Arc::clone(calls);
        Spare::new(
            "m1.region".into(),
            move |bytes| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                if call < fails {
                    return Err("the directory is full".into());
                }
                let capability = Capability {
                    machine: MachineId::new(1).unwrap(),
                    boot: 0,
                    key: call as u64,
                    bytes: bytes as u64,
                    writable: false,
                };
                Ok((Memory::anonymous(bytes), capability))
            },
            |_, _| Ok(()),
        )
    }

    fn region() -> RegionId {
        RegionId::new(1, 1).unwrap()
    }

    #[test]
    fn memory_is_allocated_once_and_ahead() {
        let calls = Arc::new(AtomicUsize::new(0));
        let mut spare = spare(&calls, 0);
        let keys: Vec<u64> = (0..3)
            .map(|_| {
                spare.prepare(4096);
                spare.prepare(4096);
                spare.allocate(region(), 4096).unwrap().1.key
            })
            .collect();
        assert_eq!(keys, [0, 1, 2]);
        assert_eq!(
            spare.allocate(region(), 4096).unwrap().1.key,
            3,
            "without announcement"
        );
        assert!(!spare.is_ready(4096));
        spare.prepare(4096);
        while !spare.is_ready(4096) {
            std::thread::yield_now();
        }
        assert_eq!(spare.allocate(region(), 4096).unwrap().1.key, 4);
        spare.prepare(4096);
        spare.end();
        spare.prepare(4096);
        spare.end();
        assert!(spare.is_ready(4096), "nothing is allocated ahead any more");
        assert_eq!(calls.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn memory_that_could_not_be_allocated_ahead_is_allocated_again() {
        let calls = Arc::new(AtomicUsize::new(0));
        let mut spare = spare(&calls, 1);
        spare.prepare(4096);
        assert_eq!(spare.allocate(region(), 4096).unwrap().1.key, 1);
        let mut spare = self::spare(&calls, usize::MAX);
        spare.prepare(4096);
        let why = spare.allocate(region(), 4096).unwrap_err();
        assert_eq!(why.to_string(), "the directory is full");
    }
}
