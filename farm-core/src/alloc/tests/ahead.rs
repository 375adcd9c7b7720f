//! The next region: when it is announced, and when it is made ahead.

use std::sync::{Arc, Mutex};

use super::TINY;
use crate::alloc::{
    AllocError, Block, BlockAllocator, BlockSource, Growth, Place, RegionSource, SizeClass,
};
use crate::ids::{RegionId, WorkerId};
use crate::mem::Memory;

const WORKER: WorkerId = WorkerId::FIRST;

/// Regions of 16 blocks, which records how often one was announced before each.
#[derive(Default)]
struct Announced(Arc<Mutex<Vec<u32>>>);

impl RegionSource for Announced {
    fn new_region(&mut self, _near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError> {
        let mut announced = self.0.lock().unwrap();
        announced.push(0);
        let id = RegionId::new(1, announced.len() as u32).unwrap();
        Ok((id, Memory::anonymous(TINY.region_bytes)))
    }

    fn prepare(&mut self) {
        *self.0.lock().unwrap().last_mut().unwrap() += 1;
    }
}

#[test]
fn the_next_region_is_announced_once_when_few_blocks_are_free() {
    let source = Announced::default();
    let announced = Arc::clone(&source.0);
    let mut allocator = BlockAllocator::new(TINY, source);
    let mut seen = Vec::new();
    while let Ok(block) = allocator.acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere) {
        block.expect("anywhere is an error without room");
        seen.push(announced.lock().unwrap().clone());
    }
    assert_eq!(seen.len(), 4 * 16);
    assert_eq!((&seen[7][..], &seen[8][..]), (&[0][..], &[1][..]));
    assert_eq!(seen[16], [1, 0]);
    // The last one is not followed by another, because of the machine's limit.
    assert_eq!(seen.last().unwrap()[..], [1, 1, 1, 0]);
}

/// Regions of 16 blocks on ring 1 or on that of the region they are to be near, whose memory others make.
#[derive(Default)]
struct Slow(Arc<Mutex<SlowState>>);

#[derive(Default)]
struct SlowState {
    made: Vec<RegionId>,
    announced: u32,
    is_ready: bool,
    is_full: bool,
}

impl RegionSource for Slow {
    fn new_region(&mut self, near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError> {
        let mut state = self.0.lock().unwrap();
        if state.is_full {
            return Err(AllocError::NoRegion("the directory is full".into()));
        }
        let position = state.made.len() as u32 + 1;
        let id = RegionId::new(near.map_or(1, RegionId::ring), position).unwrap();
        state.made.push(id);
        state.is_ready = false;
        Ok((id, Memory::anonymous(TINY.region_bytes)))
    }

    fn prepare(&mut self) {
        self.0.lock().unwrap().announced += 1;
    }

    fn is_ready(&self) -> bool {
        self.0.lock().unwrap().is_ready
    }
}

/// Returns an allocator that makes regions ahead, and the state of their source.
fn slow() -> (Arc<Mutex<SlowState>>, BlockAllocator) {
    let source = Slow::default();
    let state = Arc::clone(&source.0);
    let mut allocator = BlockAllocator::new(TINY, source);
    allocator.make_ahead();
    (state, allocator)
}

#[test]
fn a_region_is_made_ahead_when_its_memory_is_there() {
    let (state, mut allocator) = slow();
    let mut acquire = |place| allocator.acquire(SizeClass::SMALLEST, WORKER, place);
    for _ in 0..9 {
        acquire(Place::Anywhere).unwrap();
    }
    let seen = || {
        let state = state.lock().unwrap();
        (state.announced, state.made.len())
    };
    assert_eq!(seen(), (1, 1));
    let first = state.lock().unwrap().made[0];
    acquire(Place::Near(first)).unwrap();
    assert_eq!(seen(), (1, 1), "the memory is not there");
    state.lock().unwrap().is_ready = true;
    let block = acquire(Place::Anywhere).unwrap().unwrap();
    assert_eq!(seen(), (1, 2));
    let next = state.lock().unwrap().made[1];
    assert_eq!((block.table().region(), next.ring()), (first, first.ring()));
    // Enough is free now, although memory is there.
    state.lock().unwrap().is_ready = true;
    acquire(Place::Anywhere).unwrap();
    assert_eq!(seen(), (1, 2));
    // A place without room makes none, and an earlier region comes first, although the new one is nearer.
    assert!(
        acquire(Place::In(RegionId::new(1, 7).unwrap()))
            .unwrap()
            .is_none()
    );
    let block = acquire(Place::Near(RegionId::new(1, 5).unwrap()));
    assert_eq!(block.unwrap().unwrap().table().region(), first);
    assert_eq!(seen(), (1, 2));
}

#[test]
fn nobody_waits_for_memory_near_another_region_while_there_is_room_elsewhere() {
    let (state, mut allocator) = slow();
    let changes = allocator.changes();
    let far = RegionId::new(2, 9).unwrap();
    let mut acquire = |place| allocator.acquire(SizeClass::SMALLEST, WORKER, place);
    let ring = |block: Result<Option<Block>, AllocError>| {
        block.unwrap().map(|one| one.table().region().ring())
    };
    assert_eq!(ring(acquire(Place::Anywhere)), Some(1));
    assert_eq!(ring(acquire(Place::Near(far))), None);
    assert_eq!(ring(acquire(Place::Near(far))), None);
    let before = changes.count();
    state.lock().unwrap().is_ready = true;
    // The next request makes the region, wherever it gets its block, and allocators ask again.
    assert_eq!(ring(acquire(Place::Anywhere)), Some(1));
    assert!(changes.count() > before);
    assert_eq!(ring(acquire(Place::Near(far))), Some(2));
    // If there is no room elsewhere, it is waited for.
    for _ in 0..29 {
        acquire(Place::Anywhere).unwrap();
    }
    let farther = RegionId::new(3, 9).unwrap();
    assert_eq!(ring(acquire(Place::Near(farther))), Some(3));
    assert_eq!(state.lock().unwrap().made.len(), 3);
    // At the limit of the machine nothing is announced.
    for _ in 0..16 {
        acquire(Place::Anywhere).unwrap();
    }
    let announced = state.lock().unwrap().announced;
    assert_eq!(ring(acquire(Place::Near(far))), None);
    assert_eq!(state.lock().unwrap().announced, announced);
    assert_eq!(state.lock().unwrap().made.len(), 4);
}

#[test]
fn no_region_is_made_ahead_while_regions_of_a_lost_machine_are_scanned() {
    let (state, mut allocator) = slow();
    let mut acquire =
        |growth| allocator.acquire_by(SizeClass::SMALLEST, WORKER, Place::Anywhere, growth);
    for _ in 0..9 {
        acquire(Growth::default()).unwrap();
    }
    state.lock().unwrap().is_ready = true;
    let scans = Growth {
        near: false,
        waits: true,
    };
    acquire(scans).unwrap();
    assert_eq!(state.lock().unwrap().made.len(), 1);
    acquire(Growth::default()).unwrap();
    assert_eq!(state.lock().unwrap().made.len(), 2);
}

#[test]
fn a_region_that_cannot_be_made_ahead_is_made_when_it_is_needed() {
    let (state, mut allocator) = slow();
    let mut acquire = || allocator.acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere);
    acquire().unwrap();
    {
        let mut state = state.lock().unwrap();
        (state.is_ready, state.is_full) = (true, true);
    }
    for _ in 0..15 {
        acquire().unwrap();
    }
    assert_eq!(
        state.lock().unwrap().announced,
        1,
        "it is not tried again until it is needed"
    );
    let error = acquire().unwrap_err();
    assert!(
        error.to_string().contains("the directory is full"),
        "{error}"
    );
    state.lock().unwrap().is_full = false;
    acquire().unwrap();
    assert_eq!(state.lock().unwrap().made.len(), 2);
}
