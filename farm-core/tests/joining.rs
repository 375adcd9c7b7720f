//! Machines without memory that are started again in a cluster that runs: what goes wrong with one of them does not harm the others,
//! and nothing of its earlier start reaches the next one.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use farm_core::config::Config;
use farm_core::config::host::run_dir;
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::machine::{Attach, Machine, MachineError};
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::worker::Worker;

const ECHO: MessageId = MessageId(MessageId::APPLICATION);
const KEEP: MessageId = MessageId(MessageId::APPLICATION + 1);

/// Longest wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time after which a start gives up that cannot succeed.
const SOON: Duration = Duration::from_millis(300);

type Answers = mpsc::Receiver<Result<Vec<u8>, CallError>>;

/// Requests that wait for their replies.
static KEPT: Mutex<Vec<Request>> = Mutex::new(Vec::new());

fn attach() -> Attach {
    Arc::new(|worker: &mut Worker| {
        worker.register(ECHO, |worker, request, body| worker.reply(request, &[body]));
        worker.register(KEEP, |_, request, _| KEPT.lock().unwrap().push(request));
    })
}

fn id(number: u16) -> MachineId {
    MachineId::new(number).unwrap()
}

/// Returns the configuration of `machines` machines. The first two store regions, the others store nothing.
fn configuration(name: &str, machines: u16, workers: u16) -> Config {
    let mut config = Config::tiny_for(machines, workers);
    config.cluster.name = format!("joining-{name}-{}", std::process::id());
    config.memory.per_machine_bytes = 64 << 20;
    for machine in &mut config.machines[2..] {
        machine.memory_bytes = Some(0);
    }
    config
}

/// Starts all machines of a configuration.
fn start(name: &str, machines: u16, workers: u16) -> (Config, Vec<Machine>) {
    let config = configuration(name, machines, workers);
    let started = farm_core::machine::start_all(&config, &attach()).unwrap();
    (config, started)
}

fn start_one(config: &Config, number: u16, patience: Duration) -> Result<Machine, MachineError> {
    Machine::start(config, id(number), attach(), patience)
}

/// Makes a region on the second machine, and waits until it is recorded.
fn record_a_region(machines: &[Machine]) {
    let class = farm_core::alloc::class_for_payload(100).unwrap();
    let reserved = machines[1].ask(0, move |worker, answer| {
        answer
            .send(worker.reserve_array(class, 6000, None).is_ok())
            .unwrap();
    });
    assert!(reserved.unwrap(), "there is memory for a region");
    while machines[1].store().map().is_recording() {
        assert_eq!(machines[1].control().failure(), None);
        std::thread::yield_now();
    }
}

fn call(
    machine: &Machine,
    worker: usize,
    to: WorkerRef,
    kind: MessageId,
    body: &'static str,
) -> Answers {
    struct Waits(mpsc::Sender<Result<Vec<u8>, CallError>>);
    fn answered(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
        let waits = worker.take_layer::<Waits>();
        // The test may have given up.
        let _ = waits.0.send(reply.map(<[u8]>::to_vec));
    }
    let (answer, answers) = mpsc::channel();
    let begin = move |worker: &mut Worker| {
        worker.put_layer(Box::new(Waits(answer)));
        let cont = ReplyCont::new(answered, 0);
        worker
            .call(to, kind, &[body.as_bytes()], 100, cont)
            .unwrap();
    };
    machine.submit(worker, begin).unwrap();
    answers
}

/// Regression test: the machine was connected before it had met all others. While it waited for one that does not answer, no region
/// was recorded, and when it gave up, the others took it for lost and stopped.
#[test]
fn the_cluster_continues_after_a_start_that_fails() {
    let (config, mut machines) = start("fails", 4, 1);
    for _ in 0..2 {
        machines.pop().unwrap().stop().unwrap();
    }
    record_a_region(&machines);
    // Machine 3 listens, and never answers.
    let socket = run_dir(&config).join(&config.cluster.name).join("m3.sock");
    let silent = UnixListener::bind(&socket).unwrap();
    let error = std::thread::scope(|scope| {
        let fourth = scope.spawn(|| start_one(&config, 4, 3 * SOON).map(drop));
        while !fourth.is_finished() {
            record_a_region(&machines);
            std::thread::park_timeout(Duration::from_millis(100));
        }
        fourth.join().unwrap().unwrap_err()
    });
    assert!(error.to_string().contains("m3"), "{error}");
    record_a_region(&machines);
    drop(silent);
    std::fs::remove_file(&socket).unwrap();
    // Each is connected to all others, whichever of the two starts first.
    machines.extend(start_both(&config));
    check_all_connected(&machines);
    while let Some(last) = machines.pop() {
        last.stop().unwrap();
    }
}

/// Starts machines 3 and 4 at the same time.
fn start_both(config: &Config) -> [Machine; 2] {
    std::thread::scope(|scope| {
        let starts = [3, 4].map(|number| scope.spawn(move || start_one(config, number, PATIENCE)));
        starts.map(|start| start.join().unwrap().unwrap())
    })
}

/// Waits until all machines have joined, and checks that each can call each other one.
fn check_all_connected(machines: &[Machine]) {
    for machine in machines {
        while !machine.store().map().is_complete() {
            assert_eq!(machine.control().failure(), None);
            std::thread::yield_now();
        }
    }
    for (from, to) in machines
        .iter()
        .flat_map(|from| machines.iter().map(move |to| (from, to)))
    {
        if from.id() != to.id() {
            let worker = WorkerRef::new(to.id(), WorkerId::FIRST);
            let echo = call(from, 0, worker, ECHO, "here").recv_timeout(PATIENCE);
            assert_eq!(echo.unwrap().unwrap(), b"here");
        }
    }
}

/// Regression test: machines that store regions waited for those that store nothing.
#[test]
fn machines_that_store_nothing_need_not_be_present_at_a_start() {
    let config = configuration("absent", 4, 1);
    let mut machines: Vec<Machine> = std::thread::scope(|scope| {
        let config = &config;
        let starts = [1, 2].map(|number| scope.spawn(move || start_one(config, number, PATIENCE)));
        starts.map(|start| start.join().unwrap().unwrap()).into()
    });
    record_a_region(&machines);
    check_all_connected(&machines);
    for number in [4, 3] {
        machines.push(start_one(&config, number, PATIENCE).unwrap());
        check_all_connected(&machines);
        record_a_region(&machines);
    }
    while let Some(last) = machines.pop() {
        last.stop().unwrap();
    }
}

/// Regression test: a machine that was welcome at one that was leaving took that one for lost, and its failure stopped the cluster.
#[test]
fn machines_that_leave_while_others_join_do_not_stop_the_cluster() {
    let (config, mut machines) = start("churn", 4, 1);
    let guests = machines.split_off(2);
    std::thread::scope(|scope| {
        for mut guest in guests {
            let config = &config;
            scope.spawn(move || {
                let number = guest.id().get();
                for _ in 0..60 {
                    guest.stop().unwrap();
                    guest = start_one(config, number, PATIENCE).unwrap();
                }
                guest.stop().unwrap();
            });
        }
    });
    record_a_region(&machines);
    while let Some(last) = machines.pop() {
        last.stop().unwrap();
    }
}

/// Of two machines that join at the same time, one must call the other, at whichever moment it begins to run.
#[test]
fn machines_that_join_at_the_same_time_are_connected() {
    let (config, mut machines) = start("both", 4, 1);
    for _ in 0..20 {
        check_all_connected(&machines);
        for _ in 0..2 {
            machines.pop().unwrap().stop().unwrap();
        }
        machines.extend(start_both(&config));
    }
    check_all_connected(&machines);
    while let Some(last) = machines.pop() {
        last.stop().unwrap();
    }
}

/// Regression test: a request that was handed over to a worker that was not connected yet was never answered.
#[test]
fn a_machine_begins_when_all_workers_are_connected_to_it() {
    let (config, mut machines) = start("partial", 3, 2);
    machines.pop().unwrap().stop().unwrap();
    let (release, released) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel::<()>();
    let wait = move |_: &mut Worker| {
        begin.send(()).unwrap();
        let _ = released.recv();
    };
    machines[1].submit(1, wait).unwrap();
    // Otherwise it may be connected before.
    begun.recv().unwrap();
    let third = start_one(&config, 3, PATIENCE).unwrap();
    let second = WorkerRef::new(id(2), WorkerId::new(1).unwrap());
    // The first worker of machine 2 hands the request over to the second.
    let answers = call(&third, 0, second, ECHO, "hello");
    assert!(
        answers.recv_timeout(SOON).is_err(),
        "a worker is not connected"
    );
    assert!(!third.store().map().is_complete());
    drop(release);
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().unwrap(), b"hello");
    third.stop().unwrap();
    machines
        .into_iter()
        .for_each(|machine| machine.stop().unwrap());
}

/// Regression test: tokens of calls begin anew with each start, so a late reply to an earlier start ended a call of the next.
#[test]
fn a_late_reply_does_not_reach_the_next_start() {
    let (config, mut machines) = start("late", 3, 2);
    let third = machines.pop().unwrap();
    let to = WorkerRef::new(id(2), WorkerId::new(1).unwrap());
    let _first = call(&third, 1, to, KEEP, "first");
    let wait_for = |count: usize| {
        while KEPT.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    };
    wait_for(1);
    third.stop().unwrap();
    let third = start_one(&config, 3, PATIENCE).unwrap();
    let second = call(&third, 1, to, KEEP, "second");
    wait_for(2);
    let kept: Vec<Request> = KEPT.lock().unwrap().clone();
    let reply = move |worker: &mut Worker| {
        worker.reply(kept[0], &[b"to the first"]);
        worker.reply(kept[1], &[b"to the second"]);
    };
    machines[1].submit(1, reply).unwrap();
    let answer = second.recv_timeout(PATIENCE).unwrap();
    assert_eq!(answer.unwrap(), b"to the second");
    third.stop().unwrap();
    machines
        .into_iter()
        .for_each(|machine| machine.stop().unwrap());
}
