//! What needs RDMA devices. There are none on most hosts: `./x test-rdma` runs this in a guest that has two.
#![allow(clippy::disallowed_methods)] // Tests may wait.

use std::time::{Duration, Instant};

use farm_core::fabric::verbs::ObjectReads;
use farm_sim::conformance::host::{Fabric, Processes, Threads, Variant, be_child_if_asked};
use farm_sim::conformance::{Cluster, Hammered, Harness, accepted_and_torn};
use farm_sim::conformance_suite;

/// Not a test: by this the other tests' child processes are this binary again.
#[test]
fn conformance_child() {
    be_child_if_asked();
}

const DEFAULT: Fabric = Fabric::Verbs(Variant::DEFAULT);
/// Everything that is not by default, and room for few requests.
const OTHER_WAYS: Fabric = Fabric::Verbs(Variant {
    object_reads: Some(ObjectReads::HeadersAround),
    adaptive_throttle: true,
    workers_per_queue: 2,
    send_depth: 64,
});

conformance_suite!(processes, &Processes(DEFAULT));
conformance_suite!(threads, &Threads(DEFAULT));
conformance_suite!(other_ways, &Threads(OTHER_WAYS));

/// An object of one line, which no line version guards, written all the time, but for rests in which a
/// read and its headers have room.
const SHORT: Hammered = Hammered {
    objects: 1,
    lines: 1,
    longest_rest: 512,
};

const fn reading(object_reads: ObjectReads) -> Threads {
    Threads(Fabric::Verbs(Variant {
        object_reads: Some(object_reads),
        ..Variant::DEFAULT
    }))
}

/// The software device does not read whole lines: the read that is enough for devices that do accepts a
/// mixture of two versions under a writer that never rests.
#[test]
fn a_plain_read_of_objects_is_torn() {
    reading(ObjectReads::WholeLines).run(|cluster: &mut dyn Cluster| {
        let until = Instant::now() + Duration::from_secs(120);
        let (accepted, torn) =
            accepted_and_torn(cluster, SHORT, |_, torn| torn > 0 || Instant::now() > until);
        println!("plain: {torn} of {accepted} accepted images were torn");
        assert!(
            torn > 0,
            "no torn image among {accepted}: is the device another?"
        );
    });
}

#[test]
fn a_read_of_objects_with_their_headers_after_is_whole() {
    reading(ObjectReads::HeaderAfter).run(no_torn_read);
}

#[test]
fn a_read_of_objects_with_their_headers_around_is_whole() {
    reading(ObjectReads::HeadersAround).run(no_torn_read);
}

fn no_torn_read(cluster: &mut dyn Cluster) {
    let until = Instant::now() + Duration::from_secs(10);
    let (accepted, torn) = accepted_and_torn(cluster, SHORT, |_, _| Instant::now() > until);
    println!("checked: {torn} of {accepted} accepted images were torn");
    assert!(accepted > 50, "only {accepted} images were accepted");
    assert_eq!(torn, 0);
}
