//! Promises that a program uses wrongly.

use std::time::Duration;

use farm::prelude::*;

/// A continuation completed its promise twice. The second completion answered the call that had got the first one's entry.
#[test]
fn a_promise_that_is_completed_twice_answers_one_call() -> farm::Result<()> {
    let cluster = Cluster::local(1).start()?;
    cluster.block_on(async |farm| {
        let first = farm.call(|worker, promise: Promise<u64>| {
            promise.complete(worker, 1);
            promise.complete(worker, 2);
            // Again when the call has been answered, and its entry has become that of the next call.
            worker.set_timer(Duration::from_millis(5), Cont::new(again, promise));
        });
        assert_eq!(first.await?, 1);
        let second = farm.call(|worker, promise: Promise<u64>| {
            promise.keep(worker, 3_u64);
            worker.set_timer(Duration::from_millis(10), Cont::new(later, promise));
        });
        assert_eq!(second.await?, 3);
        Ok::<_, Error>(())
    })?;
    return cluster.stop();

    fn again(worker: &mut Worker, promise: Promise<u64>, (): ()) {
        promise.keep(worker, 7_u32);
        promise.complete(worker, 4);
    }

    fn later(worker: &mut Worker, promise: Promise<u64>, (): ()) {
        let kept = promise.kept(worker);
        promise.complete(worker, kept);
    }
}

/// The size of the state used to be found wrong while the answer was locked, which aborted the process.
#[test]
fn a_state_of_another_size_stops_the_machine() -> farm::Result<()> {
    let cluster = Cluster::local(1).start()?;
    let asked = cluster.block_on(async |farm| {
        farm.call(|worker, promise: Promise<u32>| {
            promise.keep(worker, 3_u64);
            let kept: u32 = promise.kept(worker);
            promise.complete(worker, kept);
        })
        .await
    });
    let error = asked.unwrap_err();
    assert_eq!(error.kind(), Kind::Stopped);
    assert!(
        error.to_string().contains("worker m1.w0 panicked"),
        "{error}"
    );
    assert!(cluster.stop().is_err());
    Ok(())
}

/// Programs used to see that their machine had stopped, and not why.
#[test]
fn errors_say_why_the_machine_has_stopped() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    let table: Table<u64, u64> = cluster.create_table("pairs", 100)?;
    cluster.block_on(async |farm| {
        let failed =
            farm.call(|worker, _: Promise<()>| worker.control().fail("a test stops it".to_owned()));
        assert!(
            failed
                .await
                .unwrap_err()
                .to_string()
                .contains("a test stops it")
        );
        let error = table.put(&farm, 1, 1).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Stopped);
        assert!(error.to_string().contains("a test stops it"), "{error}");
        let run = farm.run(async |_| ()).await.unwrap_err();
        assert!(run.to_string().contains("a test stops it"), "{run}");
        Ok::<_, Error>(())
    })?;
    assert!(cluster.stop().is_err());
    Ok(())
}
