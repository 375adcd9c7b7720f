//! Random programs of two interleaved transactions on one worker, compared with a map.

use std::collections::BTreeMap;

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::object::{Incarnation, payload_capacity};
use farm_core::worker::Worker;
use farm_txn::{Abort, Handle, ObjectId, Tx, TxError, block_on};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

use crate::cluster::{cluster, commit_context, transact, usage};

/// Payload sizes of allocated objects, in bytes: one line, two lines, and many.
const SIZES: [usize; 4] = [1, 48, 110, 1000];

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc { size: usize, fill: u8 },
    Read { pick: usize },
    Write { pick: usize, fill: u8 },
    Free { pick: usize },
    Increment { pick: usize },
    Commit,
    Abort,
}

fn ops() -> impl Strategy<Value = Vec<(usize, Op)>> {
    let op = prop_oneof![
        2 => (0..SIZES.len(), any::<u8>()).prop_map(|(size, fill)| Op::Alloc { size, fill }),
        4 => any::<usize>().prop_map(|pick| Op::Read { pick }),
        3 => (any::<usize>(), any::<u8>()).prop_map(|(pick, fill)| Op::Write { pick, fill }),
        1 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        1 => any::<usize>().prop_map(|pick| Op::Increment { pick }),
        2 => Just(Op::Commit),
        1 => Just(Op::Abort),
    ];
    prop::collection::vec((0..2usize, op), 1..60)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    Read,
    /// The object did not exist.
    Absent,
    Write,
    Alloc,
    Free,
}

/// An object in the read or write set of one transaction.
struct Held {
    address: Address,
    /// `None` for an absent object.
    object: Option<ObjectId>,
    /// Number of changes of the object at the time of the read.
    changes: u64,
    payload: Vec<u8>,
    incarnation: Incarnation,
    intent: Intent,
    incremented: bool,
}

impl Held {
    fn is_only_read(&self) -> bool {
        matches!(self.intent, Intent::Read | Intent::Absent)
    }

    fn is_gone(&self) -> bool {
        matches!(self.intent, Intent::Free | Intent::Absent)
    }

    fn incarnation_after(&self) -> Incarnation {
        match self.intent {
            Intent::Free => self.incarnation.freed(),
            Intent::Alloc | Intent::Read | Intent::Absent | Intent::Write => {
                let kept = self.incarnation.allocated();
                if self.incremented {
                    kept.incremented()
                } else {
                    kept
                }
            }
        }
    }
}

/// A slot that was allocated at least once.
#[derive(Default)]
struct Slot {
    payload_bytes: usize,
    changes: u64,
    incarnation: Incarnation,
    /// Payload, if the slot is allocated.
    payload: Option<Vec<u8>>,
}

#[derive(Default)]
struct Model {
    slots: BTreeMap<Address, Slot>,
    open: [Vec<Held>; 2],
}

impl Model {
    /// Returns the address of the conflict that a commit must report, if any.
    fn conflict(&self, tx: usize) -> Option<Address> {
        let held = &self.open[tx];
        let changed = |held: &&Held| self.slots[&held.address].changes != held.changes;
        let written = held
            .iter()
            .filter(|held| !held.is_only_read())
            .find(changed);
        let read = || {
            held.iter()
                .filter(|held| held.is_only_read() && self.open[tx].len() > 1)
                .find(changed)
        };
        written.or_else(read).map(|held| held.address)
    }

    fn commit(&mut self, tx: usize) {
        for held in std::mem::take(&mut self.open[tx]) {
            if held.is_only_read() && !held.incremented {
                continue;
            }
            let slot = self.slots.get_mut(&held.address).unwrap();
            slot.changes += 1;
            slot.incarnation = held.incarnation_after();
            slot.payload = (held.intent != Intent::Free).then_some(held.payload);
        }
    }

    fn step(
        &mut self,
        worker: &mut Worker,
        contexts: &mut [Box<Tx>; 2],
        tx: usize,
        op: Op,
    ) -> Result<(), TestCaseError> {
        let context = &mut contexts[tx];
        match op {
            Op::Alloc { size, fill } => {
                let bytes = SIZES[size];
                let object = context.alloc(worker, bytes, None).unwrap();
                let address = context.address(object);
                // A transaction may still have an object that another one freed; its commit will then fail.
                let reserved =
                    |held: &Held| held.address == address && held.intent == Intent::Alloc;
                let taken = self.open.iter().flatten().any(reserved);
                let capacity = payload_capacity(class_for_payload(bytes).unwrap().object_bytes());
                // A slot that is new to this program may have been used by an earlier program.
                let (memory, at) = worker.local_memory(address).unwrap();
                let incarnation = farm_core::object::write::load_incarnation(memory, at);
                let slot = self.slots.entry(address).or_insert(Slot {
                    incarnation,
                    ..Slot::default()
                });
                slot.payload_bytes = capacity;
                prop_assert!(!taken && slot.payload.is_none(), "{address} is in use");
                prop_assert_eq!(context.payload(object), &vec![0; capacity][..]);
                context.payload_mut(object).fill(fill);
                let (changes, incarnation) = (slot.changes, slot.incarnation);
                let payload = vec![fill; capacity];
                let absent =
                    |held: &&mut Held| held.address == address && held.intent == Intent::Absent;
                if let Some(held) = self.open[tx].iter_mut().find(absent) {
                    held.object = Some(object);
                    held.payload = payload;
                    held.intent = Intent::Alloc;
                    return Ok(());
                }
                let held = Held {
                    address,
                    object: Some(object),
                    changes,
                    payload,
                    incarnation,
                    intent: Intent::Alloc,
                    incremented: false,
                };
                self.open[tx].push(held);
            }
            Op::Read { pick } => {
                let Some((&address, slot)) = self.slots.iter().nth(pick % self.slots.len().max(1))
                else {
                    return Ok(());
                };
                let read = context.read(worker, address, slot.payload_bytes);
                let held = self.open[tx].iter().find(|held| held.address == address);
                match (held, &slot.payload) {
                    (Some(held), _) if held.is_gone() => {
                        prop_assert!(
                            matches!(read, Err(TxError::NotAllocated(at)) if at == address)
                        );
                    }
                    (Some(held), _) => {
                        let object = read.unwrap();
                        prop_assert_eq!(Some(object), held.object);
                        prop_assert_eq!(context.payload(object), &held.payload[..]);
                    }
                    (None, None) => {
                        prop_assert!(
                            matches!(read, Err(TxError::NotAllocated(at)) if at == address)
                        );
                        self.open[tx].push(Held {
                            address,
                            object: None,
                            changes: slot.changes,
                            payload: Vec::new(),
                            incarnation: slot.incarnation,
                            intent: Intent::Absent,
                            incremented: false,
                        });
                    }
                    (None, Some(payload)) => {
                        let object = read.unwrap();
                        prop_assert_eq!(context.payload(object), &payload[..]);
                        prop_assert_eq!(context.incarnation(object), slot.incarnation);
                        let (changes, payload, incarnation) =
                            (slot.changes, payload.clone(), slot.incarnation);
                        let intent = Intent::Read;
                        self.open[tx].push(Held {
                            address,
                            object: Some(object),
                            changes,
                            payload,
                            incarnation,
                            intent,
                            incremented: false,
                        });
                    }
                }
            }
            Op::Write { pick, fill } => {
                let Some(held) = pick_mut(&mut self.open[tx], pick) else {
                    return Ok(());
                };
                let bytes = pick % held.payload.len();
                context.payload_mut(held.object.unwrap())[..bytes].fill(fill);
                held.payload[..bytes].fill(fill);
                if held.intent == Intent::Read {
                    held.intent = Intent::Write;
                }
            }
            Op::Free { pick } => {
                let Some(held) = pick_mut(&mut self.open[tx], pick) else {
                    return Ok(());
                };
                context.free(held.object.unwrap());
                held.intent = Intent::Free;
            }
            Op::Increment { pick } => {
                let Some(held) = pick_mut(&mut self.open[tx], pick) else {
                    return Ok(());
                };
                context.increment_incarnation(held.object.unwrap());
                held.incremented = true;
                if held.intent == Intent::Read {
                    held.intent = Intent::Write;
                }
                prop_assert_eq!(
                    context.incarnation(held.object.unwrap()),
                    held.incarnation_after()
                );
            }
            Op::Commit => unreachable!("`Model::committed` follows a commit"),
            Op::Abort => {
                context.abort(worker);
                self.open[tx].clear();
            }
        }
        Ok(())
    }

    /// Checks the outcome of a commit.
    fn committed(&mut self, tx: usize, outcome: Result<(), TxError>) -> Result<(), TestCaseError> {
        match self.conflict(tx) {
            Some(at) => {
                prop_assert!(
                    matches!(outcome, Err(TxError::Abort(Abort::Changed(found))) if found == at),
                    "{outcome:?} although {at} has changed"
                );
                self.open[tx].clear();
            }
            None => {
                prop_assert!(outcome.is_ok(), "{outcome:?}");
                self.commit(tx);
            }
        }
        Ok(())
    }

    /// Checks that every slot matches the map, and that the allocator agrees.
    fn check(&self, worker: &mut Worker) -> Result<(), TestCaseError> {
        for (address, slot) in &self.slots {
            let mut tx = Tx::new();
            match (tx.read(worker, *address, slot.payload_bytes), &slot.payload) {
                (Ok(object), Some(payload)) => {
                    prop_assert_eq!(tx.payload(object), &payload[..]);
                    prop_assert_eq!(tx.incarnation(object), slot.incarnation);
                    prop_assert!(tx.pointer(object).names(slot.incarnation));
                }
                (Err(TxError::NotAllocated(_)), None) => {}
                (found, expected) => {
                    prop_assert!(false, "{address}: {found:?} instead of {expected:?}")
                }
            }
        }
        let live: u64 = usage(worker).iter().map(|(_, usage)| usage.live).sum();
        prop_assert_eq!(
            live,
            self.slots
                .values()
                .filter(|slot| slot.payload.is_some())
                .count() as u64
        );
        prop_assert_eq!(worker.check_slab(), Ok(()));
        Ok(())
    }
}

/// Returns one of the objects that the transaction has and has not freed.
fn pick_mut(held: &mut [Held], pick: usize) -> Option<&mut Held> {
    let count = held.iter().filter(|held| !held.is_gone()).count();
    held.iter_mut()
        .filter(|held| !held.is_gone())
        .nth(pick % count.max(1))
}

/// The transactions of a program, and the model of their objects.
struct Run {
    model: Model,
    contexts: [Box<Tx>; 2],
}

impl Run {
    /// Performs the operations of a program up to the first one that fails.
    async fn steps(
        mut self,
        farm: &Handle,
        program: Vec<(usize, Op)>,
    ) -> (Self, Result<(), TestCaseError>) {
        for (tx, op) in program {
            let stepped;
            (self, stepped) = match op {
                Op::Commit => self.commit(farm, tx).await,
                op => {
                    self.on_worker(farm, move |run, w| run.step(w, tx, op))
                        .await
                }
            };
            if stepped.is_err() {
                return (self, stepped);
            }
        }
        (self, Ok(()))
    }

    fn step(&mut self, worker: &mut Worker, tx: usize, op: Op) -> Result<(), TestCaseError> {
        self.model.step(worker, &mut self.contexts, tx, op)
    }

    /// Commits a transaction, and begins another one in its place.
    async fn commit(self, farm: &Handle, tx: usize) -> (Self, Result<(), TestCaseError>) {
        let (mut run, context) = self
            .on_worker(farm, move |run, w| {
                let next = farm_txn::checkout(w);
                assert!(next.is_empty());
                std::mem::replace(&mut run.contexts[tx], next)
            })
            .await;
        let outcome = commit_context(farm, context).await;
        let committed = run.model.committed(tx, outcome);
        (run, committed)
    }

    async fn on_worker<T: Send + 'static>(
        mut self,
        farm: &Handle,
        work: impl FnOnce(&mut Self, &mut Worker) -> T + Send + 'static,
    ) -> (Self, T) {
        let worked = farm.with_worker(move |w| {
            let value = work(&mut self, w);
            (self, value)
        });
        worked.await.unwrap()
    }
}

async fn run(farm: Handle, program: Vec<(usize, Op)>) -> Result<(), TestCaseError> {
    let contexts = |w: &mut Worker| [farm_txn::checkout(w), farm_txn::checkout(w)];
    let run = Run {
        model: Model::default(),
        contexts: farm.with_worker(contexts).await.unwrap(),
    };
    let (run, stepped) = run.steps(&farm, program).await;
    let finish = |w: &mut Worker| {
        for context in run.contexts {
            farm_txn::checkin(w, context);
        }
        (stepped.and_then(|()| run.model.check(w)), run.model.slots)
    };
    let (outcome, slots) = farm.with_worker(finish).await.unwrap();
    for (address, slot) in slots {
        let freed = transact(&farm, move |tx, w| {
            if let Ok(object) = tx.read(w, address, slot.payload_bytes) {
                tx.free(object);
            }
            Ok(())
        });
        freed.await.unwrap();
    }
    outcome
}

#[test]
fn random_programs_agree_with_a_map() {
    let cluster = cluster("model", 1, 1);
    let config = ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&ops(), |program| {
            block_on(&cluster.machines[0], 0, |farm| run(farm, program)).unwrap()
        })
        .unwrap();
    cluster.stop();
}
