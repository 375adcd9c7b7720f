//! Streams of operations: they repeat for a seed, have the specified mix, and never read records before their inserts
//! are acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;

use farm_bench::ycsb::inserts::{InsertTracker, WorkerSpan};
use farm_bench::ycsb::spec::builtin;
use farm_bench::ycsb::stream::worker_rng;
use farm_bench::ycsb::{Op, OpKind, OpStream, WorkloadSpec};

fn spec(letter: char, settings: &[&str]) -> WorkloadSpec {
    let mut properties = builtin(letter).unwrap();
    for setting in settings {
        properties.set_override(setting).unwrap();
    }
    WorkloadSpec::from_properties("test", &properties)
        .unwrap()
        .spec
}

fn operations(spec: &WorkloadSpec, seed: u64, worker: u64, count: usize) -> Vec<Op> {
    let tracker = InsertTracker::new(spec.record_count, WorkerSpan::single_process(2));
    let mut stream = OpStream::new(spec, Arc::new(tracker), worker);
    let mut rng = worker_rng(seed, worker);
    (0..count).map(|_| stream.next_op(&mut rng)).collect()
}

#[test]
fn a_seed_repeats_a_stream_and_workers_differ() {
    let spec = spec('a', &["recordcount=5000"]);
    let first = operations(&spec, 1, 0, 1000);
    assert_eq!(first, operations(&spec, 1, 0, 1000));
    assert_ne!(first, operations(&spec, 2, 0, 1000));
    assert_ne!(first, operations(&spec, 1, 1, 1000));
    assert_ne!(operations(&spec, 0, 1, 1000), operations(&spec, 1, 0, 1000));
    let reads = first.iter().filter(|op| op.kind == OpKind::Read).count();
    assert!((450..550).contains(&reads), "{reads} reads");
}

/// In two processes of two workers each, a stream reads only loaded records and records whose inserts were acknowledged
/// in its process. No record is inserted twice.
#[test]
fn reads_never_run_ahead_of_inserts() {
    let spec = spec(
        'd',
        &[
            "recordcount=100",
            "readproportion=0.5",
            "insertproportion=0.5",
        ],
    );
    let mut inserted = BTreeSet::new();
    for process in 0..2 {
        let span = WorkerSpan {
            first: process * 2,
            local: 2,
            total: 4,
        };
        let tracker = Arc::new(InsertTracker::new(100, span));
        let mut streams: Vec<_> = (0..2)
            .map(|worker| {
                let stream = OpStream::new(&spec, Arc::clone(&tracker), worker);
                (stream, worker_rng(7, worker), Vec::new())
            })
            .collect();
        let mut acknowledged = BTreeSet::new();
        let mut newest_read = 0;
        for turn in 0..4000 {
            let (stream, rng, open) = &mut streams[turn % 2];
            let op = stream.next_op(rng);
            match op.kind {
                OpKind::Insert => {
                    assert!(op.keynum >= 100 && inserted.insert(op.keynum), "{op:?}");
                    open.push(op.keynum);
                }
                _ => {
                    assert!(
                        op.keynum < 100 || acknowledged.contains(&op.keynum),
                        "{op:?}"
                    );
                    newest_read = newest_read.max(op.keynum);
                }
            }
            if open.len() > 3 {
                let key = open.remove((turn / 2) % open.len());
                stream.acknowledge(key);
                acknowledged.insert(key);
            }
        }
        assert!(
            newest_read > 3000,
            "the reads did not follow the inserts: {newest_read}"
        );
    }
    assert!(inserted.len() > 3500);
}

#[test]
fn keys_are_chosen_as_the_workload_specifies() {
    let uniform = spec('c', &["recordcount=10", "requestdistribution=uniform"]);
    let keys: BTreeSet<u64> = operations(&uniform, 3, 0, 500)
        .iter()
        .map(|op| op.keynum)
        .collect();
    assert!(keys.into_iter().eq(0..10));
    let part = [
        "recordcount=100",
        "insertstart=40",
        "insertcount=20",
        "requestdistribution=uniform",
    ];
    let part = operations(&spec('c', &part), 3, 0, 500);
    assert!(part.iter().all(|op| (40..60).contains(&op.keynum)));
}
