//! The machines to which a region belongs: consistent hashing over k = 100 virtual rings (`FaRM'14 §3.3`, figure 7).
//!
//! Each machine has one point on each ring. A region id names a ring and a position. The region's replicas, the primary
//! first, are the machines at the position or following it. Every machine computes the same placement from the set of
//! machines alone. The placement only *chooses* machines: a worker's [`RegionTable`](super::table::RegionTable) records
//! where the regions that the worker knows are stored.
//!
//! With many rings, the regions of a lost machine move to many other machines, and each machine has a nearly equal
//! share of positions. The tests below compare hashes with fixed values, because a change of the hash would make every
//! existing region unreachable.

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{MachineId, RegionId};
use crate::limits::{POSITION_BITS, VIRTUAL_RINGS};
use crate::membership::configuration::Domain;

const POSITIONS: u32 = 1 << POSITION_BITS;

/// The machines of a configuration, on their rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The points of all rings, ring after ring. The points of a ring are sorted by position, then by machine.
    points: Vec<(u32, MachineId)>,
    /// Number of machines, which is the number of points on each ring.
    machines: usize,
}

/// The positions of one ring that make one machine the primary: a range that may wrap around the end of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    first: u32,
    len: u32,
}

impl Segment {
    /// Returns the number of positions, at least one.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a segment always has at least one position"
    )]
    pub fn len(self) -> u32 {
        self.len
    }

    /// Returns the position at `index`, in the ring's direction.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn position(self, index: u32) -> u32 {
        assert!(
            index < self.len,
            "index {index} is out of range: the segment has {} positions",
            self.len
        );
        (self.first + index) % POSITIONS
    }

    /// Returns the index of the position that is closest to `position`, or of `position` itself if it is inside.
    pub fn closest_index(self, position: u32) -> u32 {
        let index = position.wrapping_sub(self.first) % POSITIONS;
        if index < self.len {
            return index;
        }
        let (beyond_last, before_first) = (index - (self.len - 1), POSITIONS - index);
        if beyond_last <= before_first {
            self.len - 1
        } else {
            0
        }
    }
}

impl Placement {
    /// Creates the placement of regions on these machines; order and duplicates do not matter.
    ///
    /// # Panics
    /// If there is no machine.
    pub fn new(machines: &[MachineId]) -> Placement {
        assert!(
            !machines.is_empty(),
            "a placement needs at least one machine"
        );
        let mut machines = machines.to_vec();
        machines.sort_unstable();
        machines.dedup();
        let mut points = Vec::with_capacity(machines.len() * VIRTUAL_RINGS as usize);
        for ring in 0..VIRTUAL_RINGS {
            let start = points.len();
            points.extend(
                machines
                    .iter()
                    .map(|machine| (point(ring, *machine), *machine)),
            );
            points[start..].sort_unstable();
        }
        Placement {
            points,
            machines: machines.len(),
        }
    }

    /// Returns the number of machines.
    pub fn machines(&self) -> usize {
        self.machines
    }

    /// Returns the machines, in an order that is the same on all machines.
    pub fn members(&self) -> impl ExactSizeIterator<Item = MachineId> + '_ {
        self.ring(0).iter().map(|(_, machine)| *machine)
    }

    /// Returns whether regions are placed on a machine.
    pub fn contains(&self, machine: MachineId) -> bool {
        self.members().any(|member| member == machine)
    }

    /// Returns the machine to which the region's primary copy belongs.
    pub fn primary(&self, region: RegionId) -> MachineId {
        self.ring(region.ring())[self.following(region)].1
    }

    /// Returns the `count` machines to which the region's replicas belong, the primary first; fewer if there are fewer
    /// machines.
    pub fn replicas(
        &self,
        region: RegionId,
        count: usize,
    ) -> impl ExactSizeIterator<Item = MachineId> + '_ {
        let (ring, first) = (self.ring(region.ring()), self.following(region));
        (0..count.min(self.machines)).map(move |step| ring[(first + step) % ring.len()].1)
    }

    /// Returns the positions of a ring that make `machine` the primary. Returns `None` if there are none: the machine
    /// is not in the placement, or a machine with a smaller id has the same point.
    pub fn segment(&self, ring: u32, machine: MachineId) -> Option<Segment> {
        let points = self.ring(ring);
        let at = points.iter().position(|(_, owner)| *owner == machine)?;
        let (position, _) = points[at];
        if at > 0 && points[at - 1].0 == position {
            return None;
        }
        // If the ring has one point, this is the point itself: the whole ring is its segment.
        let (before, _) = points[(at + points.len() - 1) % points.len()];
        let len = match position.wrapping_sub(before) % POSITIONS {
            0 => POSITIONS,
            len => len,
        };
        Some(Segment {
            first: (before + 1) % POSITIONS,
            len,
        })
    }

    /// Returns the index on its ring of the first point at the region's position or after it.
    fn following(&self, region: RegionId) -> usize {
        let ring = self.ring(region.ring());
        ring.partition_point(|(position, _)| *position < region.position()) % ring.len()
    }

    fn ring(&self, ring: u32) -> &[(u32, MachineId)] {
        &self.points[ring as usize * self.machines..][..self.machines]
    }
}

/// Orders the machines of a ring for the copies of a region, the first one first. Each further one is the first that stands in
/// another rack than all before, or else on another host, or else the first that is left.
pub(crate) fn spread<'d>(
    ring: &[MachineId],
    domain_of: impl Fn(MachineId) -> Option<&'d Domain>,
) -> Vec<MachineId> {
    let mut chosen: Vec<MachineId> = ring.iter().copied().take(1).collect();
    let apart = |one: MachineId, other: MachineId, hosts: bool| {
        let (Some(one), Some(other)) = (domain_of(one), domain_of(other)) else {
            return true;
        };
        one.rack != other.rack || hosts && one.host != other.host
    };
    while chosen.len() < ring.len() {
        let left = || ring.iter().copied().filter(|id| !chosen.contains(id));
        let farthest = |hosts| left().find(|id| chosen.iter().all(|one| apart(*one, *id, hosts)));
        let next = farthest(false)
            .or_else(|| farthest(true))
            .or_else(|| left().next());
        chosen.extend(next);
    }
    chosen
}

/// Returns a machine's point on a ring.
fn point(ring: u32, machine: MachineId) -> u32 {
    let key = u64::from(ring) << 32 | u64::from(machine.get());
    (xxh3_64(&key.to_le_bytes()) >> (64 - POSITION_BITS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn machine(id: u16) -> MachineId {
        MachineId::new(id).unwrap()
    }

    fn machines(count: u16) -> Vec<MachineId> {
        (1..=count).map(machine).collect()
    }

    fn region(ring: u32, position: u32) -> RegionId {
        RegionId::new(ring, position).unwrap()
    }

    /// Returns the share of all positions that make each machine the primary.
    fn shares(placement: &Placement, machines: &[MachineId]) -> Vec<f64> {
        let positions = f64::from(VIRTUAL_RINGS) * f64::from(POSITIONS);
        let len = |ring, machine| {
            placement
                .segment(ring, machine)
                .map_or(0.0, |s| f64::from(s.len()))
        };
        machines
            .iter()
            .map(|machine| (0..VIRTUAL_RINGS).map(|r| len(r, *machine)).sum::<f64>() / positions)
            .collect()
    }

    #[test]
    fn copies_stand_in_different_racks_and_hosts_where_there_are_enough() {
        let domain = |host: &str, rack: &str| Domain {
            host: host.into(),
            rack: rack.into(),
        };
        let domains = BTreeMap::from([
            (machine(1), domain("a", "one")),
            (machine(2), domain("a", "one")),
            (machine(3), domain("b", "one")),
            (machine(4), domain("c", "two")),
            (machine(5), domain("c", "two")),
        ]);
        let chosen = |ring: &[u16], count| -> Vec<u16> {
            let ring: Vec<MachineId> = ring.iter().map(|id| machine(*id)).collect();
            let spread = spread(&ring, |id| domains.get(&id));
            spread.iter().take(count).map(|id| id.get()).collect()
        };
        assert_eq!(chosen(&[1, 2, 3, 4, 5], 2), [1, 4], "another rack");
        assert_eq!(chosen(&[1, 2, 3, 4, 5], 3), [1, 4, 3], "then another host");
        assert_eq!(chosen(&[1, 2, 3, 4, 5], 5), [1, 4, 3, 2, 5]);
        assert_eq!(chosen(&[2, 1], 3), [2, 1], "fewer machines than copies");
        assert_eq!(
            chosen(&[3, 6, 1], 2),
            [3, 6],
            "an unknown place is another one"
        );
    }

    /// Values that must never change: existing regions are stored where they say.
    #[test]
    fn golden_points_and_replicas() {
        let points: Vec<u32> = [(0, 1), (0, 2), (1, 1), (99, 1023)]
            .map(|(ring, id)| point(ring, machine(id)))
            .into();
        assert_eq!(points, [6256818, 4263308, 11450128, 15181482]);
        let placement = Placement::new(&machines(5));
        let replicas = |ring, position| -> Vec<u16> {
            placement
                .replicas(region(ring, position), 5)
                .map(MachineId::get)
                .collect()
        };
        assert_eq!(replicas(0, 1), [2, 1, 3, 5, 4]);
        assert_eq!(replicas(42, 12_345_678), [4, 3, 1, 5, 2]);
        assert_eq!(replicas(99, RegionId::MAX_POSITION), [1, 5, 4, 2, 3]);
    }

    #[test]
    fn shares_are_about_equal_and_sum_to_one() {
        for count in [1, 2, 3, 5, 9, 20] {
            let machines = machines(count);
            let shares = shares(&Placement::new(&machines), &machines);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            for share in &shares {
                let relative = share * f64::from(count);
                assert!((0.65..1.35).contains(&relative), "of {count}: {shares:?}");
            }
        }
    }

    #[test]
    fn the_regions_of_a_lost_machine_move_to_many_machines() {
        let all = machines(9);
        let (before, after) = (Placement::new(&all), Placement::new(&all[1..]));
        let mut heirs: BTreeMap<MachineId, u32> = BTreeMap::new();
        for ring in 0..VIRTUAL_RINGS {
            let lost = before.segment(ring, all[0]).unwrap();
            *heirs
                .entry(after.primary(region(ring, lost.position(0))))
                .or_default() += 1;
        }
        assert_eq!(heirs.len(), 8, "{heirs:?}");
        assert!(heirs.values().all(|rings| *rings <= 25), "{heirs:?}");
    }

    #[test]
    fn if_two_machines_share_a_point_the_smaller_id_is_primary() {
        let (a, b, c) = (machine(1), machine(2), machine(3));
        let placement = Placement {
            points: vec![(50, a), (50, b), (90, c)],
            machines: 3,
        };
        assert_eq!(placement.segment(0, b), None);
        assert_eq!(
            placement.segment(0, c),
            Some(Segment { first: 51, len: 40 })
        );
        assert_eq!(
            placement.segment(0, a),
            Some(Segment {
                first: 91,
                len: POSITIONS - 40
            })
        );
        assert!(placement.replicas(region(0, 50), 2).eq([a, b]));
        assert!(placement.replicas(region(0, 51), 2).eq([c, a]));
        assert!(placement.replicas(region(0, 91), 3).eq([a, b, c]));
    }

    #[test]
    fn positions_outside_a_segment_map_to_its_closer_end() {
        let segment = Segment {
            first: 100,
            len: 10,
        };
        for (position, index) in [(99, 0), (0, 0), (104, 4), (109, 9), (110, 9), (120, 9)] {
            assert_eq!(segment.closest_index(position), index, "{position}");
        }
        let round_the_end = Segment {
            first: POSITIONS - 2,
            len: 4,
        };
        for (position, index) in [
            (POSITIONS - 3, 0),
            (POSITIONS - 1, 1),
            (0, 2),
            (2, 3),
            (9, 3),
        ] {
            assert_eq!(round_the_end.closest_index(position), index, "{position}");
        }
    }

    #[test]
    #[should_panic(expected = "a placement needs at least one machine")]
    fn a_placement_without_machines_panics() {
        let _ = Placement::new(&[]);
    }

    proptest! {
        #[test]
        fn replicas_are_the_machines_that_follow_the_position(
            ids in prop::collection::btree_set(1u16..1024, 1..20),
            ring in 0..VIRTUAL_RINGS,
            position in 1..POSITIONS,
            count in 0usize..6,
        ) {
            let machines: Vec<_> = ids.iter().copied().map(machine).collect();
            let placement = Placement::new(&machines);
            let region = region(ring, position);
            // By definition: all machines, in the order in which their points follow the position.
            let mut met: Vec<_> = machines.iter().map(|m| {
                ((point(ring, *m).wrapping_sub(position)) % POSITIONS, *m)
            }).collect();
            met.sort_unstable();
            let expected: Vec<_> = met.iter().map(|(_, m)| *m).take(count).collect();
            prop_assert_eq!(placement.replicas(region, count).collect::<Vec<_>>(), expected);
            prop_assert_eq!(placement.primary(region), met[0].1);

            let mut shuffled = machines.clone();
            shuffled.reverse();
            shuffled.extend(&machines);
            prop_assert_eq!(Placement::new(&shuffled), placement);
        }

        #[test]
        fn only_regions_of_the_lost_machine_move(
            ids in prop::collection::btree_set(1u16..1024, 2..20),
            lost in any::<prop::sample::Index>(),
            ring in 0..VIRTUAL_RINGS,
            position in 1..POSITIONS,
        ) {
            let machines: Vec<_> = ids.iter().copied().map(machine).collect();
            let lost = *lost.get(&machines);
            let left: Vec<_> = machines.iter().copied().filter(|m| *m != lost).collect();
            let (before, after) = (Placement::new(&machines), Placement::new(&left));
            let region = region(ring, position);
            let expected: Vec<_> =
                before.replicas(region, machines.len()).filter(|m| *m != lost).collect();
            prop_assert_eq!(after.replicas(region, left.len()).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn segments_are_the_positions_of_their_primary(
            ids in prop::collection::btree_set(1u16..1024, 1..20),
            ring in 1..VIRTUAL_RINGS,
            position in 0..POSITIONS,
        ) {
            let machines: Vec<_> = ids.iter().copied().map(machine).collect();
            let placement = Placement::new(&machines);
            let mut holders = BTreeSet::new();
            for machine in machines {
                let Some(segment) = placement.segment(ring, machine) else { continue };
                for index in [0, segment.len() / 2, segment.len() - 1] {
                    let inside = segment.position(index);
                    prop_assert_eq!(placement.primary(region(ring, inside)), machine);
                    prop_assert_eq!(segment.closest_index(inside), index);
                }
                let closest = segment.position(segment.closest_index(position));
                if closest == position {
                    holders.insert(machine);
                }
            }
            prop_assert_eq!(
                holders.into_iter().collect::<Vec<_>>(),
                vec![placement.primary(region(ring, position))]
            );
        }
    }
}
