//! The order in which changes of one key are made, whatever becomes of each try.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

const INSERT: u8 = 1;
const UPSERT: u8 = 3;

/// What a try is to end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Made,
    Refused,
    Conflict,
}

/// The owner's list of changes, and what was made of it: the change and whether it was refused.
#[derive(Default)]
struct Owner {
    arrived: Vec<Arrived>,
    ended: Vec<(usize, bool)>,
}

impl Owner {
    /// A change of a key of a bucket, named by its number.
    fn arrive(&mut self, number: usize, code: u8, bucket: u32, key: u8) {
        let mut body = vec![0; HEADER_BYTES + KEY_BYTES];
        body[0] = code;
        body[8..HEADER_BYTES].copy_from_slice(&bucket.to_le_bytes());
        body[HEADER_BYTES] = key;
        self.arrived.push(Arrived {
            waiter: Waiter::Own(number),
            body,
            times: 0,
            outcome: None,
        });
    }

    /// One turn, in which tries end as `fate` says of the numbers of their changes.
    fn turn(&mut self, mut fate: impl FnMut(&[usize]) -> Fate) {
        let ended = &mut self.ended;
        make_in_order(&mut self.arrived, &mut Vec::new(), |arrived, group| {
            let group: Vec<usize> = group.iter().map(|(_, index)| *index as usize).collect();
            let numbers: Vec<usize> = group.iter().map(|at| number(&arrived[*at])).collect();
            let fate = fate(&numbers);
            // A try notes what it would do before it is known whether it does.
            for at in group {
                arrived[at].outcome = Some(Ok(Changed::Updated));
            }
            match (fate, &numbers[..]) {
                (Fate::Made, _) => ended.extend(numbers.iter().map(|number| (*number, false))),
                (Fate::Refused, [number]) => ended.push((*number, true)),
                _ => {}
            }
            match fate {
                Fate::Made => Ok(()),
                Fate::Refused => Err(KvError::Full(MachineId::new(1).unwrap())),
                Fate::Conflict => Err(KvError::Conflict),
            }
        });
        let again = |change: &Arrived| change.outcome == Some(Err(KvError::Conflict));
        self.arrived.retain(again);
    }
}

fn number(change: &Arrived) -> usize {
    match change.waiter {
        Waiter::Own(number) => number,
        Waiter::Other(_) => unreachable!("all are this worker's own"),
    }
}

/// The table is full for all three together; then somebody locks the bucket for a moment.
#[test]
fn a_change_of_a_refused_group_that_conflicts_is_not_overtaken() {
    let mut owner = Owner::default();
    (0..3).for_each(|number| owner.arrive(number, UPSERT, 7, 1));
    let mut singles = 0;
    owner.turn(|group| {
        singles += usize::from(group.len() == 1);
        match group.len() {
            1 if singles == 2 => Fate::Conflict,
            1 => Fate::Made,
            _ => Fate::Refused,
        }
    });
    owner.turn(|_| Fate::Made);
    assert_eq!(owner.ended, [(0, false), (1, false), (2, false)]);
}

/// Changes of few keys and buckets, of which any try may end in any way: all end, those of one key in the order
/// in which they came.
#[test]
fn changes_of_one_key_keep_their_order() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(17);
    for _ in 0..2_000 {
        let (mut owner, mut keys) = (Owner::default(), Vec::new());
        while keys.len() < 24 || !owner.arrived.is_empty() {
            for number in keys.len()..24.min(keys.len() + rng.random_range(0..8)) {
                let (code, key) = (rng.random_range(INSERT..=REMOVE), rng.random_range(0..4u8));
                owner.arrive(number, code, (key % 2).into(), key);
                keys.push(key);
            }
            owner.turn(|_| match rng.random_range(0..4) {
                0 => Fate::Refused,
                1 => Fate::Conflict,
                _ => Fate::Made,
            });
        }
        assert_eq!(owner.ended.len(), keys.len(), "each ends once");
        for key in 0..4 {
            let of_key = owner.ended.iter().map(|(number, _)| *number);
            let of_key: Vec<usize> = of_key.filter(|number| keys[*number] == key).collect();
            assert!(of_key.is_sorted(), "of key {key}: {of_key:?}");
        }
    }
}
