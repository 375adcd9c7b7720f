//! The region allocator's choice of ids: a region's id determines which machines store it and its replicas (`FaRM'14
//! §3.3`).
//!
//! "It picks an identifier for the region by selecting a ring at random and a position in the ring that ensures the
//! local node stores the primary copy." An id near another region is on that region's ring, at the closest position
//! that still makes the local machine the primary. All positions between two neighbouring machines of a ring have the
//! same replicas, so such regions stay together.

use rand::Rng;

use crate::ids::{MachineId, RegionId};
use crate::limits::{POSITION_BITS, VIRTUAL_RINGS};
use crate::region::placement::{Placement, Segment};

const POSITIONS: u32 = 1 << POSITION_BITS;

/// Returns the shorter distance between the positions of two regions on one ring, or `None` if their rings differ.
pub(crate) fn ring_distance(a: RegionId, b: RegionId) -> Option<u32> {
    let forward = a.position().wrapping_sub(b.position()) % POSITIONS;
    (a.ring() == b.ring()).then(|| forward.min((POSITIONS - forward) % POSITIONS))
}

/// Picks the id of a new region whose primary is `local`: on the ring of `near` and as close to it as possible, else on
/// a random ring at a random position. `taken` returns whether the cluster already has a region with an id; such an id
/// is never picked.
///
/// Returns `None` if no free position makes `local` a primary, for instance because `local` is not in the placement.
///
/// ```
/// use farm_core::alloc::choose_region_id;
/// use farm_core::ids::MachineId;
/// use farm_core::region::placement::Placement;
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
///
/// let machines: Vec<_> = (1..=3).map(|id| MachineId::new(id).unwrap()).collect();
/// let placement = Placement::new(&machines);
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
/// let first = choose_region_id(&placement, machines[0], None, |_| false, &mut rng).unwrap();
/// let near = choose_region_id(&placement, machines[0], Some(first), |id| id == first, &mut rng);
/// assert_eq!(near, Some(first.successor()));
/// assert_eq!(placement.primary(first), machines[0]);
/// ```
pub fn choose_region_id(
    placement: &Placement,
    local: MachineId,
    near: Option<RegionId>,
    taken: impl Fn(RegionId) -> bool,
    rng: &mut impl Rng,
) -> Option<RegionId> {
    if let Some(near) = near
        && let Some(segment) = placement.segment(near.ring(), local)
        && let Some(found) = closest_free(near.ring(), segment, near.position(), &taken)
    {
        return Some(found);
    }
    let first = rng.random_range(0..VIRTUAL_RINGS);
    (0..VIRTUAL_RINGS).find_map(|step| {
        let ring = (first + step) % VIRTUAL_RINGS;
        let segment = placement.segment(ring, local)?;
        let position = segment.position(rng.random_range(0..segment.len()));
        closest_free(ring, segment, position, &taken)
    })
}

/// Returns the region of the segment that is closest to `position` and not taken.
fn closest_free(
    ring: u32,
    segment: Segment,
    position: u32,
    taken: &impl Fn(RegionId) -> bool,
) -> Option<RegionId> {
    let free = |index: u32| RegionId::new(ring, segment.position(index)).filter(|id| !taken(*id));
    let start = segment.closest_index(position);
    (0..segment.len()).find_map(|distance| {
        let after = start
            .checked_add(distance)
            .filter(|index| *index < segment.len());
        let before = start.checked_sub(distance);
        after.and_then(free).or_else(|| before.and_then(free))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::SeedableRng;
    use std::collections::BTreeSet;

    fn machines(count: u16) -> Vec<MachineId> {
        (1..=count).map(|id| MachineId::new(id).unwrap()).collect()
    }

    #[test]
    fn distance_is_the_shorter_way_around_one_ring() {
        let region = |ring, position| RegionId::new(ring, position).unwrap();
        assert_eq!(ring_distance(region(3, 5), region(3, 9)), Some(4));
        assert_eq!(ring_distance(region(3, 9), region(3, 5)), Some(4));
        assert_eq!(
            ring_distance(region(3, 1), region(3, RegionId::MAX_POSITION)),
            Some(2)
        );
        assert_eq!(ring_distance(region(3, 1), region(3, 1)), Some(0));
        assert_eq!(ring_distance(region(3, 5), region(4, 5)), None);
    }

    #[test]
    fn a_machine_outside_the_placement_gets_no_region() {
        let placement = Placement::new(&machines(3));
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let outsider = MachineId::new(9).unwrap();
        assert_eq!(
            choose_region_id(&placement, outsider, None, |_| false, &mut rng),
            None
        );
    }

    #[test]
    fn at_the_end_of_the_segment_the_search_goes_backwards() {
        let (placement, local) = (Placement::new(&machines(3)), machines(3)[0]);
        let segment = placement.segment(8, local).unwrap();
        let region = |index| RegionId::new(8, segment.position(index)).unwrap();
        let (last, mut rng) = (segment.len() - 1, Xoshiro256PlusPlus::seed_from_u64(1));
        let mut near =
            |hint, taken| choose_region_id(&placement, local, Some(hint), taken, &mut rng);
        let one: fn(RegionId) -> bool = |_| false;
        assert_eq!(near(region(last), one), Some(region(last)));
        // A region that was placed by a machine that is lost now: the closest position of the local machine.
        assert_eq!(near(region(last).successor(), one), Some(region(last)));
        let mut made = vec![region(last)];
        for back in 1..5 {
            let taken = |id: RegionId| made.contains(&id);
            let id = choose_region_id(&placement, local, Some(made[0]), taken, &mut rng);
            assert_eq!(id, Some(region(last - back)));
            made.extend(id);
        }
    }

    #[test]
    fn random_regions_spread_over_the_rings() {
        let placement = Placement::new(&machines(3));
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let rings: BTreeSet<u32> = (0..500)
            .filter_map(|_| choose_region_id(&placement, machines(3)[1], None, |_| false, &mut rng))
            .map(RegionId::ring)
            .collect();
        assert!(rings.len() > 90, "{} rings", rings.len());
    }

    proptest! {
        #[test]
        fn every_region_is_new_and_local_and_near_the_hint(
            count in 1u16..12,
            seed: u64,
            hints in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..60),
        ) {
            let machines = machines(count);
            let placement = Placement::new(&machines);
            let local = machines[(seed % u64::from(count)) as usize];
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut made: Vec<RegionId> = Vec::new();
            for hint in hints {
                let near = hint.filter(|_| !made.is_empty()).map(|at| *at.get(&made));
                let taken = |id: RegionId| made.contains(&id);
                let id = choose_region_id(&placement, local, near, taken, &mut rng).unwrap();
                prop_assert!(!made.contains(&id));
                prop_assert_eq!(placement.primary(id), local);
                if let Some(near) = near {
                    let distance = ring_distance(id, near).expect("on the same ring");
                    prop_assert!(distance <= made.len() as u32, "{} is not near {}", id, near);
                    prop_assert!(placement.replicas(id, 3).eq(placement.replicas(near, 3)));
                }
                made.push(id);
            }
        }
    }
}
