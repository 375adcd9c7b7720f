//! Memory that was used for objects of one size, and is then used for others: earlier pointers refer to no object in
//! it.
//!
//! Regression: reclaimed blocks were zeroed and counted incarnations from 0 again, so that an earlier fat pointer
//! referred to the first new object in its place.

use std::sync::Arc;
use std::time::Instant;

use farm_core::config::Config;
use farm_core::object::FatPointer;
use farm_txn::{Abort, Handle, Tx, TxError};

use crate::cluster::{Cluster, cluster_of, transact};
use crate::tasks::{PATIENCE, task, wait_for_rest};

const BLOCKS: usize = 16;
const LINE: usize = 64;

/// Starts two machines with one region each, of a few small blocks.
fn cluster(name: &str) -> Cluster {
    let mut config = Config::tiny_for(2, 1);
    config.memory.region_bytes = (BLOCKS * 4096) as u64;
    config.memory.per_machine_bytes = (BLOCKS * 4096) as u64;
    cluster_of(name, config)
}

/// Allocates one object, if there is memory for it.
async fn make(farm: &Handle, bytes: usize, fill: &Arc<[u8]>) -> Option<FatPointer> {
    let fill = Arc::clone(fill);
    let made = transact(farm, move |tx, worker| {
        let object = tx.alloc(worker, bytes, None)?;
        let payload = tx.payload_mut(object);
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte = fill[at % fill.len()];
        }
        Ok(tx.pointer(object))
    });
    made.await.ok()
}

/// Fills the memory of machine 0 with objects; waits until the memory of other sizes is available again.
fn fill(cluster: &Cluster, bytes: usize, with: impl Fn(&[u8]) -> Vec<u8>) -> Vec<FatPointer> {
    let late = Instant::now() + PATIENCE;
    let fill: Arc<[u8]> = with(&[]).into();
    let mut made = vec![];
    loop {
        let fill = Arc::clone(&fill);
        let more = task(cluster, 0, move |farm| async move {
            let mut more = vec![];
            while let Some(pointer) = make(&farm, bytes, &fill).await {
                more.push(pointer);
            }
            more
        });
        let done = more.is_empty() && !made.is_empty();
        made.extend(more);
        // Vacant blocks may still be in transit.
        let usage = cluster.on(0, 0, |w| w.store().usage().unwrap());
        if done && usage.vacant_bytes == 0 {
            return made;
        }
        assert!(Instant::now() < late, "{} objects, {usage:?}", made.len());
        std::thread::yield_now();
    }
}

fn free(cluster: &Cluster, objects: &[FatPointer], bytes: usize) {
    for pointer in objects {
        cluster.free(0, 0, pointer.address, bytes).unwrap();
    }
}

/// Follows pointers, by a lock-free read and by a transaction that writes. Returns the pointers that were not rejected
/// as pointers to freed objects, with the result of each.
async fn followed(farm: Handle, pointers: Vec<FatPointer>) -> Vec<(FatPointer, String)> {
    let mut taken = vec![];
    for pointer in pointers {
        let gone =
            |error: &TxError| matches!(error, TxError::NotAllocated(at) if *at == pointer.address);
        match farm.read_pointer_lock_free(pointer).await {
            Err(error) if gone(&error) => {}
            Err(error) => taken.push((pointer, format!("a lock-free read: {error}"))),
            Ok(payload) => taken.push((pointer, format!("lock-free: {payload:?}"))),
        }
        let tx = farm.begin().await.unwrap();
        match tx.read_pointer(pointer).await {
            Err(error) if gone(&error) => {}
            Err(error) => taken.push((pointer, format!("a transaction: {error}"))),
            Ok(object) => {
                tx.change(object, move |payload| payload[0] ^= 1)
                    .await
                    .unwrap();
                let outcome = tx.commit().await;
                taken.push((pointer, format!("overwritten: {outcome:?}")));
            }
        }
    }
    taken
}

/// The test keeps pointers to every line of memory while the memory is reused for objects of other sizes, and of the
/// same size again. A line is then the start of a smaller or of a larger object, or inside of one, or behind the last
/// one of a block. Objects contain several kinds of bytes, among them the pointers themselves.
#[test]
fn earlier_pointers_into_reused_memory_refer_to_no_object() {
    let cluster = cluster("reused");
    let sizes = [8, 100, 8, 170, 8, 1000, 100, 8, 3000, 170, 3000, 8, 100];
    let mut stale: Vec<FatPointer> = vec![];
    for (generation, bytes) in sizes.into_iter().enumerate() {
        let words = |word: u64| word.to_le_bytes().to_vec();
        // A stored pointer to one of the earlier objects, as in an application.
        let stored = stale.pop().map_or(vec![3], |pointer| {
            let all = pointer.to_words().into_iter().flat_map(u64::to_le_bytes);
            all.collect()
        });
        let made = fill(&cluster, bytes, |_| match generation % 4 {
            0 => vec![0],
            1 => stored.clone(),
            2 => words(u64::MAX),
            _ => (0..=255).collect(),
        });
        if generation == 0 {
            let lines = BLOCKS * 4096 / LINE;
            assert!(made.len() > lines * 9 / 10, "{} of {lines}", made.len());
        }
        for machine in [0, 1] {
            let pointers = stale.clone();
            let taken = task(&cluster, machine, |farm| followed(farm, pointers));
            assert!(
                taken.is_empty(),
                "generation {generation}, of {bytes} bytes: machine {machine} followed {} of {} pointers, first {:?}, \
                 last {:?}",
                taken.len(),
                stale.len() * 2,
                taken[0],
                taken.last(),
            );
            // Pointers to live objects must still work.
            let found = made[made.len() / 2];
            let read = task(&cluster, machine, move |farm| async move {
                farm.read_pointer_lock_free(found).await
            });
            assert!(read.is_ok(), "{read:?}");
        }
        free(&cluster, &made, bytes);
        wait_for_rest(&cluster);
        stale.extend(made);
    }
    cluster.stop();
}

/// A transaction reads an object, and then its memory is reused for another one of the same size and version. Contexts
/// of a worker's pool keep their memory from reuse; this context does not belong to a pool.
#[test]
fn a_late_commit_does_not_overwrite_a_later_object() {
    let cluster = cluster("reused-write");
    let first = fill(&cluster, 100, |_| vec![1]);
    let at = first[0].address;
    let tx = cluster.on(0, 0, move |w| {
        let mut tx = Box::new(Tx::new());
        let object = tx.read(w, at, 100).unwrap();
        tx.payload_mut(object).fill(9);
        tx
    });
    free(&cluster, &first, 100);
    let other = fill(&cluster, 8, |_| vec![2]);
    free(&cluster, &other, 8);
    let second = fill(&cluster, 100, |_| vec![3]);
    assert!(second.iter().any(|pointer| pointer.address == at));
    let outcome = cluster.commit(0, 0, tx);
    let now = cluster.contents(0, 0, at, 100).unwrap();
    assert_eq!(now[0], 3, "the later object was overwritten: {outcome:?}");
    assert!(
        matches!(outcome, Err(TxError::Abort(Abort::Changed(_)))),
        "{outcome:?}"
    );
    free(&cluster, &second, 100);
    wait_for_rest(&cluster);
    cluster.stop();
}
