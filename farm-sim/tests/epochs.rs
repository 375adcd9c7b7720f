//! Epochs under faults: readers hold addresses across many reads while the objects at these addresses are freed and
//! their machine reuses the memory for objects of other sizes.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::{Image, Incarnation, Version};
use farm_core::worker::{Cont, EpochGuard, ReadError, ReadRequest, ReadResult, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace, Stepped};
use farm_txn::{Tx, TxError};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const SMALL: usize = 40;
const LARGE: usize = 300;
/// Number of objects of the first machine that each reader reads while they are freed.
const WATCHED: usize = 4;

/// Version, incarnation, and first byte of the payload.
type Seen = (Version, Incarnation, u8);

/// A reader. One operation spans all of its reads.
#[derive(Default)]
struct Reader {
    targets: Vec<Address>,
    /// What the last read of each target returned.
    seen: Vec<Option<Seen>>,
    guard: Option<EpochGuard>,
    left: u32,
    wrong: Option<String>,
    /// Number of commits that have not ended.
    commits: u32,
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Reader>::default());
}

fn reader(worker: &mut Worker) -> &mut Reader {
    worker.layer().unwrap()
}

fn read(worker: &mut Worker, target: u64, (): ()) {
    let address = reader(worker).targets[target as usize];
    let request = ReadRequest::object(address, class_for_payload(SMALL).unwrap());
    if worker
        .read_lock_free(request, Cont::new(on_read, target))
        .is_err()
    {
        worker.set_timer(
            std::time::Duration::from_nanos(300),
            Cont::new(read, target),
        );
    }
}

fn on_read(worker: &mut Worker, target: u64, result: ReadResult) {
    let found = match result {
        Ok(slot) => {
            let words = worker.arena().words(&slot)[..8].to_vec();
            worker.arena().give(slot);
            let image = Image::check(&words).unwrap();
            let mut payload = [0; SMALL];
            image.copy_payload(0, &mut payload);
            Ok((image.version(), image.incarnation(), payload[0]))
        }
        Err(error) => Err(error),
    };
    judge(reader(worker), target as usize, found);
    let wait = worker.rng().random_range(1..2000);
    let state = reader(worker);
    if state.left > 0 {
        state.left -= 1;
        let next = (target + 1) % state.targets.len() as u64;
        let wait = std::time::Duration::from_nanos(wait);
        return worker.set_timer(wait, Cont::new(read, next));
    }
    if let Some(guard) = state.guard.take() {
        worker.unpin(guard);
    }
}

/// While the operation is open, an address that it holds leads to the header of the object that it knew, which was
/// freed at most once.
fn judge(state: &mut Reader, target: usize, found: Result<Seen, ReadError>) {
    let (version, incarnation, payload) = match found {
        Ok(found) => found,
        Err(error) => {
            state.wrong.get_or_insert(error.to_string());
            return;
        }
    };
    let last = state.seen[target];
    let follows = last.is_none_or(|(last_version, last, _)| {
        let freed_since = last.is_allocated() && incarnation == last.freed();
        version >= last_version && (incarnation == last || freed_since)
    });
    if incarnation.is_allocated() && payload != 7 || !follows {
        let why = format!("{found:?} after {last:?}");
        state.wrong.get_or_insert(why);
    }
    state.seen[target] = Some((version, incarnation, payload));
}

/// Starts a commit, which must succeed.
fn commit(worker: &mut Worker, tx: Box<Tx>) {
    fn committed(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
        outcome.unwrap();
        reader(worker).commits -= 1;
    }
    reader(worker).commits += 1;
    farm_txn::commit(worker, tx, Cont::new(committed, 0));
}

/// Starts the transaction that makes an object, and returns its address; `None` if there is no memory.
fn make(worker: &mut Worker, bytes: usize, mark: u8) -> Option<Address> {
    let mut tx = farm_txn::checkout(worker);
    let Ok(object) = tx.alloc(worker, bytes, None) else {
        farm_txn::checkin(worker, tx);
        return None;
    };
    tx.payload_mut(object).fill(mark);
    let address = tx.address(object);
    commit(worker, tx);
    Some(address)
}

/// Starts the transaction that frees an object.
fn free(worker: &mut Worker, address: Address) {
    let mut tx = farm_txn::checkout(worker);
    let object = tx.read(worker, address, SMALL).unwrap();
    tx.free(object);
    commit(worker, tx);
}

/// Makes objects until memory is exhausted.
fn fill(cluster: &Cluster, worker: usize) -> Vec<Address> {
    let made = cluster.on(worker, |worker| {
        std::iter::from_fn(|| make(worker, SMALL, 7)).collect()
    });
    while cluster.inspect(worker, |worker| reader(worker).commits) > 0 {
        steps(cluster, 1);
    }
    made
}

fn steps(cluster: &Cluster, steps: usize) {
    for _ in 0..steps {
        assert_ne!(cluster.step(), Stepped::Stopped, "{:?}", cluster.failures());
    }
}

fn machines(seed: u64) -> (Cluster, ClusterLimits) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let drawn = ClusterLimits::drawn(&mut rng);
    let limits = ClusterLimits {
        block_bytes: 4096,
        region_bytes: 4096 * 4,
        per_machine_bytes: 4096 * 4,
        ..drawn
    };
    let pace = Pace::drawn(&mut rng);
    let config = limits.fabric(seed);
    (Cluster::new(config, &limits, pace, attach), limits)
}

/// Returns the first error of a run, and the bytes of blocks that epoch changes of the first machine freed for other
/// size classes.
fn run(seed: u64) -> (Result<(), String>, u64) {
    let (cluster, limits) = machines(seed);
    let own = limits.workers;
    let mut objects: Vec<Vec<Address>> = (0..own).map(|worker| fill(&cluster, worker)).collect();
    let all: Vec<Address> = objects.iter().flatten().copied().collect();
    cluster.fabric().drain();
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            let spread = all.len() / WATCHED;
            let targets: Vec<_> = (0..WATCHED)
                .map(|target| all[(target * spread + index) % all.len()])
                .collect();
            let guard = Some(worker.pin());
            *reader(worker) = Reader {
                seen: vec![None; targets.len()],
                targets,
                guard,
                left: 10 << (seed % 5),
                ..Reader::default()
            };
            read(worker, 0, ());
        });
    }
    steps(&cluster, 50);
    for (index, objects) in objects.iter_mut().enumerate() {
        for address in objects.drain(..) {
            cluster.on(index, |worker| free(worker, address));
        }
    }
    let mut made = 0;
    for _ in 0..4000 {
        let by = made % own;
        while cluster.on(by, |worker| make(worker, LARGE, 9).is_some()) {
            made += 1;
        }
        if made > 20 {
            break;
        }
        steps(&cluster, 200);
    }
    let outcome = outcome(&cluster, seed, made);
    let freed = cluster.inspect(0, |worker| worker.epoch_counters().bytes);
    (outcome, freed)
}

fn outcome(cluster: &Cluster, seed: u64, made: usize) -> Result<(), String> {
    for index in 0..cluster.workers() {
        if let Some(wrong) = cluster.inspect(index, |worker| reader(worker).wrong.take()) {
            return Err(format!("seed {seed}, reader {index}: {wrong}"));
        }
    }
    if made == 0 {
        return Err(format!(
            "seed {seed}: no large object could be made: freed memory was not reused"
        ));
    }
    cluster
        .come_to_rest()
        .map_err(|why| format!("seed {seed}: {why}"))?;
    for index in 0..cluster.workers() {
        cluster
            .inspect(index, |worker| worker.check_slab())
            .map_err(|why| format!("seed {seed}: {why}"))?;
    }
    Ok(())
}

#[test]
fn addresses_held_by_an_operation_lead_to_the_objects_that_it_knew() {
    let (mut freed, seeds) = (0, 0..300);
    for seed in seeds {
        let (outcome, bytes) = run(seed);
        outcome.unwrap();
        assert!(bytes >= 4096, "seed {seed}: {bytes} bytes were freed");
        freed += bytes;
    }
    println!("{freed} bytes changed their size class");
}

/// A lost machine cannot report the operations that it has in flight, so nothing is freed.
#[test]
fn a_lost_machine_ends_the_change_and_frees_nothing() {
    let mut abandoned = 0;
    for seed in 0..50 {
        let (cluster, _) = machines(seed);
        let objects = fill(&cluster, 0);
        for address in objects {
            cluster.on(0, |worker| free(worker, address));
        }
        // The third machine never responds: its processors are paused.
        cluster.pause(2, u64::MAX);
        while cluster.inspect(0, |worker| worker.epoch_counters().begun) == 0 {
            assert!(cluster.on(0, |worker| make(worker, LARGE, 9).is_none()));
            steps(&cluster, 100);
        }
        steps(&cluster, 500);
        cluster.kill(2);
        while cluster.is_running(0) {
            cluster.step();
        }
        let counters = cluster.inspect(0, |worker| worker.epoch_counters());
        assert_eq!((counters.ended, counters.bytes), (0, 0), "seed {seed}");
        // Zero if another machine noticed the loss first and stopped this one.
        abandoned += counters.abandoned;
    }
    assert!(abandoned > 10, "{abandoned} changes abandoned");
}

/// The readers find each of these mutants.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_that_reuse_memory_too_early_are_found() {
    for mutant in [
        "block reused before the epoch ended",
        "epoch answered before old operations ended",
    ] {
        farm_core::mutants::switch(Some(mutant));
        let found = (0..300).find(|seed| run(*seed).0.is_err());
        farm_core::mutants::switch(None);
        let seed = found.unwrap_or_else(|| panic!("no seed found the mutant {mutant:?}"));
        println!("{mutant}: found at seed {seed}");
    }
}

#[test]
fn small_and_large_objects_have_different_classes() {
    let class = |bytes| class_for_payload(bytes).unwrap();
    assert_eq!(class(SMALL), SizeClass::SMALLEST);
    assert!(class(LARGE).object_bytes() > class(SMALL).object_bytes());
}
