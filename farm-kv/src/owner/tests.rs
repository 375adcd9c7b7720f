//! The order in which changes of one key are made, whatever becomes of each transaction.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::queue::ChangeQueue;
use super::*;
use crate::KEY_BYTES;
use crate::change::HEADER_BYTES;

const INSERT: u8 = 1;
const UPSERT: u8 = 3;

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    Refused,
    Conflict,
}

/// A queue, the batches in flight without those that wait for others, and the changes that have ended: their numbers, and whether
/// they were refused.
#[derive(Default)]
struct Owner {
    queue: ChangeQueue,
    in_flight: Vec<BatchId>,
    ended: Vec<(usize, bool)>,
}

impl Owner {
    /// Queues a change of a key in a bucket, with this number.
    fn push(&mut self, number: usize, code: u8, bucket: u32, key: u8) {
        let mut body = vec![0; HEADER_BYTES + KEY_BYTES];
        body[0] = code;
        body[1] = KEY_BYTES as u8 - 1;
        body[8..HEADER_BYTES].copy_from_slice(&bucket.to_le_bytes());
        body[HEADER_BYTES] = key;
        // The value is the number.
        body.extend_from_slice(&number.to_le_bytes());
        let unused = Waiter::Own(Cont::new(|_, _, _| (), ()));
        self.queue.push(QueuedChange::new(unused, body));
    }

    /// Begins all transactions that are ready.
    fn begin(&mut self) {
        while let Some(id) = self.queue.next_ready() {
            self.in_flight.push(id);
        }
    }

    fn numbers(&mut self, id: BatchId) -> Vec<usize> {
        let list = self.queue.batch(id).changes;
        let mut numbers = Vec::new();
        let each = |change: &mut QueuedChange| {
            numbers.push(number(change));
            Ok::<_, ()>(())
        };
        self.queue.changes.try_for_each(list, each).unwrap();
        numbers
    }

    /// Ends a transaction. One that met a conflict stays in flight, or waits for another one.
    fn end(&mut self, place: usize, fate: Fate) {
        let id = self.in_flight[place];
        let ends = match fate {
            Fate::Conflict => match self.queue.on_conflict(id, MAX_CONFLICTS) {
                Retry::AtOnce => return,
                Retry::AfterAdjacent => {
                    self.in_flight.swap_remove(place);
                    return;
                }
                other => panic!("after few conflicts: {other:?}"),
            },
            Fate::Committed => true,
            Fate::Refused => self.queue.split(id),
        };
        self.in_flight.swap_remove(place);
        if ends {
            while let Some(change) = self.queue.next_ended(id) {
                self.ended.push((number(&change), fate == Fate::Refused));
            }
            self.queue.finish(id);
        }
    }
}

fn number(change: &QueuedChange) -> usize {
    usize::from_le_bytes(*change.body.last_chunk().expect("a value"))
}

#[test]
fn changes_of_a_key_are_combined_and_wait_while_their_bucket_is_in_flight() {
    let mut owner = Owner::default();
    (0..3).for_each(|number| owner.push(number, UPSERT, 7, 1));
    owner.push(3, UPSERT, 7, 2);
    owner.push(4, UPSERT, 8, 1);
    owner.begin();
    let batches: Vec<_> = owner.in_flight.clone();
    let numbers: Vec<_> = batches.into_iter().map(|id| owner.numbers(id)).collect();
    assert_eq!(numbers, [vec![0, 1, 2], vec![4]]);
    // These wait: the key's transaction has begun, and another key of the bucket came before.
    owner.push(5, UPSERT, 7, 2);
    owner.push(6, REMOVE, 7, 2);
    owner.push(7, UPSERT, 7, 2);
    owner.begin();
    assert_eq!(owner.in_flight.len(), 2);
    owner.end(0, Fate::Committed);
    owner.begin();
    let next = owner.in_flight[1];
    assert_eq!(owner.numbers(next), [3, 5], "a remove ends the batch");
    owner.end(1, Fate::Committed);
    owner.begin();
    owner.end(1, Fate::Committed);
    owner.begin();
    owner.end(1, Fate::Committed);
    owner.end(0, Fate::Committed);
    let ended: Vec<_> = owner.ended.iter().map(|one| one.0).collect();
    assert_eq!(ended, [0, 1, 2, 3, 5, 6, 7, 4]);
    assert_eq!((owner.queue.len(), owner.queue.has_ready()), (0, false));
}

/// The table is full for all three together. Then another transaction locks the bucket for a moment.
#[test]
fn a_change_of_a_refused_batch_that_conflicts_is_not_overtaken() {
    let mut owner = Owner::default();
    (0..3).for_each(|number| owner.push(number, UPSERT, 7, 1));
    owner.begin();
    owner.end(0, Fate::Refused);
    for fates in [&[Fate::Committed][..], &[Fate::Conflict, Fate::Committed]] {
        owner.begin();
        let alone = owner.in_flight[0];
        assert_eq!(owner.numbers(alone).len(), 1);
        fates.iter().for_each(|fate| owner.end(0, *fate));
    }
    owner.begin();
    owner.end(0, Fate::Committed);
    assert_eq!(owner.ended, [(0, false), (1, false), (2, false)]);
}

#[test]
fn a_batch_that_meets_conflicts_waits_longer_and_fails_in_the_end() {
    let mut owner = Owner::default();
    owner.push(0, INSERT, 7, 1);
    owner.begin();
    let mut retries = Vec::new();
    while retries.last() != Some(&Retry::Never) {
        retries.push(owner.queue.on_conflict(owner.in_flight[0], MAX_CONFLICTS));
    }
    let count = |retry| retries.iter().filter(|one| **one == retry).count();
    assert_eq!((count(Retry::AtOnce), retries.len()), (20, 20_000));
}

/// Regression test: with copies a commit takes several turns. A batch that wrote the same bucket as those of a hot key failed again in
/// each of them, wrote records for it, and waited for milliseconds because the next batch of the hot key always came first.
#[test]
fn a_batch_that_conflicts_with_one_of_an_adjacent_bucket_is_next() {
    let mut owner = Owner::default();
    owner.push(0, UPSERT, 8, 1);
    owner.push(1, UPSERT, 7, 2);
    owner.begin();
    owner.push(2, UPSERT, 8, 1);
    owner.end(1, Fate::Conflict);
    owner.begin();
    assert_eq!(owner.in_flight.len(), 1, "the second batch waits");
    owner.end(0, Fate::Committed);
    owner.begin();
    let [second, third] = owner.in_flight[..] else {
        panic!("two batches are in flight: {:?}", owner.in_flight);
    };
    assert_eq!(
        (owner.numbers(second), owner.numbers(third)),
        (vec![1], vec![2])
    );
    // Both met a conflict with a transaction of another worker. Only one waits for the other.
    owner.end(0, Fate::Conflict);
    owner.end(0, Fate::Conflict);
    assert_eq!(owner.in_flight.len(), 1);
    owner.end(0, Fate::Committed);
    owner.begin();
    owner.end(0, Fate::Committed);
    assert_eq!((owner.ended.len(), owner.queue.len()), (3, 0));
}

/// Changes of few keys and buckets, of which any transaction may end in any way at any time: all end, those of one key
/// in the order in which they arrived.
#[test]
fn changes_of_one_key_keep_their_order() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(17);
    for _ in 0..2_000 {
        let (mut owner, mut keys) = (Owner::default(), Vec::new());
        while keys.len() < 24 || owner.queue.len() > 0 {
            for number in keys.len()..24.min(keys.len() + rng.random_range(0..8)) {
                let (code, key) = (rng.random_range(INSERT..=REMOVE), rng.random_range(0..4u8));
                owner.push(number, code, (key % 2).into(), key);
                keys.push(key);
            }
            owner.begin();
            if owner.in_flight.is_empty() {
                continue;
            }
            let place = rng.random_range(0..owner.in_flight.len());
            let fate = match rng.random_range(0..4) {
                0 => Fate::Refused,
                1 => Fate::Conflict,
                _ => Fate::Committed,
            };
            owner.end(place, fate);
        }
        assert_eq!(owner.ended.len(), keys.len(), "each ends once");
        for key in 0..4 {
            let of_key = owner.ended.iter().map(|(number, _)| *number);
            let of_key: Vec<usize> = of_key.filter(|number| keys[*number] == key).collect();
            assert!(of_key.is_sorted(), "of key {key}: {of_key:?}");
        }
    }
}
