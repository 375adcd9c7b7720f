//! Machines in one process, through the same shared memory, sockets and rings as machines in
//! separate processes.

#![allow(clippy::disallowed_methods)] // Tests may wait.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use farm_core::alloc::class_for_payload;
use farm_core::config::{Config, Durability, IdlePolicy};
use farm_core::fabric::shm::find_kept_memory;
use farm_core::fabric::{Departed, Departure};
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::machine::{
    Attach, Machine, MachineError, find_journals, forget_kept, newest_configuration, start_all,
};
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::{Image, write};
use farm_core::worker::{Cont, ReadRequest, ReadResult, Worker};
use farm_testing::{TestCluster, on, receive};

const ECHO: MessageId = MessageId(MessageId::APPLICATION);

fn cluster(
    name: &str,
    machines: u16,
    workers: u16,
    attach: impl Fn(&mut Worker) + Send + Sync + 'static,
) -> TestCluster {
    TestCluster::start(name, Config::tiny_for(machines, workers), attach)
}

fn echo(worker: &mut Worker, request: Request, body: &[u8]) {
    let me = worker.me().to_bits().to_le_bytes();
    worker.reply(request, &[&me, body]);
}

fn with_echo(worker: &mut Worker) {
    worker.register(ECHO, echo);
}

/// Regression test: a machine that stopped because of a failure sent a goodbye like one that
/// leaves, and its peers stopped without an error.
#[test]
fn a_failure_of_one_machine_fails_the_others_and_leaving_does_not() {
    for fails in [true, false] {
        let mut cluster = cluster("farewell", 2, 1, with_echo);
        let machines = &mut cluster.machines;
        let (second, first) = (machines.pop().unwrap(), machines.pop().unwrap());
        assert_eq!(first.departed(), []);
        match fails {
            true => second.stop_because("the disk is full\nand more"),
            false => second.stop().unwrap(),
        }
        let patience = Instant::now() + Duration::from_secs(20);
        while !first.control().is_stopping() {
            assert!(Instant::now() < patience, "the departure was not noticed");
            std::thread::yield_now();
        }
        let departed = Departed {
            machine: MachineId::new(2).unwrap(),
            how: if fails {
                Departure::Lost
            } else {
                Departure::Left
            },
            why: fails.then(|| "the disk is full".to_owned()),
        };
        assert_eq!(first.departed(), [departed]);
        let report = first.departed()[0].to_string();
        match fails {
            true => assert!(report.ends_with("m2 stopped because of a failure: the disk is full")),
            false => assert!(report.ends_with("m2 left the cluster")),
        }
        let outcome = first.join();
        assert_eq!(outcome.is_err(), fails, "{outcome:?}");
    }
}

struct Answer(mpsc::Sender<Vec<u8>>);

fn answered(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
    let answer = worker.take_layer::<Answer>();
    answer.0.send(reply.unwrap().to_vec()).unwrap();
}

/// Every worker calls every worker of every machine, including its own machine and itself.
#[test]
fn every_worker_reaches_every_worker() {
    let cluster = cluster("reach", 3, 3, with_echo);
    let machines = &cluster.machines;
    let everyone: Vec<WorkerRef> = machines
        .iter()
        .flat_map(|m| (0..3).map(|w| WorkerRef::new(m.id(), WorkerId::new(w).unwrap())))
        .collect();
    for (index, machine) in machines.iter().enumerate() {
        for worker in 0..3 {
            for to in everyone.clone() {
                let body = format!("from {index}.{worker} to {to}");
                let sent = body.clone();
                let answer = machine
                    .ask(worker, move |worker, answer| {
                        worker.put_layer(Box::new(Answer(answer)));
                        let cont = ReplyCont::new(answered, 0);
                        worker
                            .call(to, ECHO, &[sent.as_bytes()], 100, cont)
                            .unwrap();
                    })
                    .unwrap();
                assert_eq!(
                    WorkerRef::from_bits(u32::from_le_bytes(answer[..4].try_into().unwrap())),
                    Some(to)
                );
                assert_eq!(&answer[4..], body.as_bytes());
            }
        }
    }
    cluster.stop();
}

struct ReadAnswer(mpsc::Sender<(u64, Vec<u8>)>);

fn read_done(worker: &mut Worker, _: u64, result: ReadResult) {
    let slot = result.unwrap();
    let mut payload = vec![0; 100];
    let image = Image::check(&worker.arena().words(&slot)[..16]).unwrap();
    image.copy_payload(0, &mut payload);
    let version = image.version().get();
    worker.arena().give(slot);
    worker
        .take_layer::<ReadAnswer>()
        .0
        .send((version, payload))
        .unwrap();
}

/// Every machine reads an object created on one machine, with a single one-sided read once the
/// region is known.
#[test]
fn an_object_is_read_from_every_machine_by_one_read() {
    let cluster = cluster("read", 3, 1, |_| {});
    let machines = &cluster.machines;
    let (address, version) = make(&machines[1]);
    for (index, machine) in machines.iter().enumerate() {
        for round in 0..3 {
            let (before, after) = (reads(machine), read(machine, address));
            assert_eq!(after, (version, vec![42; 100]));
            let posted = reads(machine) - before;
            assert_eq!(
                posted,
                u64::from(index != 1),
                "round {round} of machine {index}"
            );
        }
    }
    cluster.stop();
}

/// Creates an object of 100 bytes of value 42. Returns its address and version.
fn make(machine: &Machine) -> (farm_core::ids::Address, u64) {
    on(machine, 0, |worker| {
        let class = class_for_payload(100).unwrap();
        let (reserved, room) = worker.reserve_object(class, None).unwrap();
        let (memory, at) = worker.local_memory(reserved.address).unwrap();
        let (version, born) = (room.version.next(), room.incarnation.allocated());
        let bytes = class.object_bytes();
        write::install_new(memory, at, bytes, version, born, &[42; 100]);
        (reserved.address, version.get())
    })
}

fn reads(machine: &Machine) -> u64 {
    on(machine, 0, |worker| worker.fabric_counters().reads)
}

fn read(machine: &Machine, address: farm_core::ids::Address) -> (u64, Vec<u8>) {
    machine
        .ask(0, move |worker, answer| begin_read(worker, address, answer))
        .unwrap()
}

fn begin_read(
    worker: &mut Worker,
    address: farm_core::ids::Address,
    answer: mpsc::Sender<(u64, Vec<u8>)>,
) {
    worker.put_layer(Box::new(ReadAnswer(answer)));
    let request = ReadRequest::object(address, class_for_payload(100).unwrap());
    worker
        .read_lock_free(request, Cont::new(read_done, 0))
        .unwrap();
}

/// Regression test: each worker called for the capability of each region, and all called the first
/// worker of the region's machine.
#[test]
fn the_workers_of_a_machine_fetch_a_capability_once() {
    let cluster = cluster("capability", 2, 4, |_| {});
    let machines = &cluster.machines;
    // The first machine makes calls of its own, as the manager.
    let (address, version) = make(&machines[0]);
    for _ in 0..3 {
        let (answer, answers) = mpsc::channel();
        for worker in 0..4 {
            let answer = answer.clone();
            machines[1]
                .submit(worker, move |worker| begin_read(worker, address, answer))
                .unwrap();
        }
        for _ in 0..4 {
            let read = machines[1].wait_for(&answers).unwrap();
            assert_eq!(read, (version, vec![42; 100]));
        }
    }
    let calls = |worker| cluster.on(1, worker, |worker| worker.message_counters().calls);
    let calls: u64 = (0..4).map(calls).sum();
    assert_eq!(calls, 1, "one call for the whole machine");
    cluster.stop();
}

/// A machine that leaves stops the others without a failure.
#[test]
fn when_a_machine_leaves_the_others_stop() {
    let mut cluster = cluster("leave", 3, 1, |_| {});
    cluster.machines.remove(1).stop().unwrap();
    for machine in cluster.machines {
        machine.join().unwrap();
    }
}

/// Thousands of calls at a time, in both directions, through small rings: every call gets its
/// reply.
#[test]
fn every_call_of_a_flood_between_all_workers_is_answered() {
    const CALLS: u64 = 5000;
    struct Flood {
        left: u64,
        back: u64,
        to: Vec<WorkerRef>,
        done: mpsc::Sender<u64>,
    }
    fn pump(worker: &mut Worker, _: u64, (): ()) {
        let mut flood = worker.take_layer::<Flood>();
        while flood.left > 0 {
            let to = flood.to[flood.left as usize % flood.to.len()];
            let body = [flood.left as u8; 100];
            let length = flood.left as usize % 100;
            match worker.call(
                to,
                ECHO,
                &[&body[..length]],
                104,
                ReplyCont::new(back, flood.left),
            ) {
                Ok(()) => flood.left -= 1,
                Err(CallError::Busy) => {
                    worker.when_room(Cont::new(pump, 0));
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        worker.put_layer(flood);
    }
    fn back(worker: &mut Worker, number: u64, reply: Result<&[u8], CallError>) {
        let reply = reply.unwrap();
        assert_eq!(reply.len(), 4 + number as usize % 100);
        assert!(reply[4..].iter().all(|byte| *byte == number as u8));
        let flood = worker.layer::<Flood>().unwrap();
        flood.back += 1;
        if flood.back == CALLS {
            flood.done.send(flood.back).unwrap();
        }
    }
    let cluster = cluster("flood", 2, 2, with_echo);
    let machines = &cluster.machines;
    let to: Vec<WorkerRef> = machines
        .iter()
        .flat_map(|m| (0..2).map(|w| WorkerRef::new(m.id(), WorkerId::new(w).unwrap())))
        .collect();
    let (done, all_done) = mpsc::channel();
    for machine in machines {
        for worker in 0..2 {
            let flood = Flood {
                left: CALLS,
                back: 0,
                to: to.clone(),
                done: done.clone(),
            };
            machine
                .submit(worker, move |worker| {
                    worker.put_layer(Box::new(flood));
                    pump(worker, 0, ());
                })
                .unwrap();
        }
    }
    for _ in 0..4 {
        assert_eq!(receive(&all_done), CALLS);
    }
    cluster.stop();
}

#[test]
fn a_missing_machine_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::tiny_for(2, 1);
    config.cluster.name = "alone".into();
    config.cluster.run_dir = dir.path().to_path_buf().into();
    let id = MachineId::new(1).unwrap();
    let attach = Arc::new(|_: &mut Worker| {});
    let refused = Machine::start(&config, id, attach, Duration::from_millis(50))
        .err()
        .unwrap();
    assert!(refused.to_string().contains("m2"), "{refused}");
}

const COUNT: MessageId = MessageId(MessageId::APPLICATION + 1);

/// Number of messages received by a worker.
#[derive(Default)]
struct Counted(u64);

/// A worker that finds messages for another worker, whose ring is full, gets no notification when
/// the ring has room. It must keep polling and must not sleep.
#[test]
fn a_worker_with_a_record_to_hand_over_does_not_sleep() {
    let attach = |worker: &mut Worker| {
        worker.put_layer(Box::<Counted>::default());
        worker.register(COUNT, |worker, _, _| {
            worker.layer::<Counted>().unwrap().0 += 1
        });
    };
    let mut config = Config::tiny_for(2, 2);
    config.worker.idle = IdlePolicy::Park;
    (config.worker.spin_us, config.worker.yield_us) = (0, 0);
    let cluster = TestCluster::start("hand-over", config, attach);
    let machines = &cluster.machines;
    let mut handed_over = 0;
    for busy in [0, 1] {
        let to = WorkerRef::new(machines[1].id(), WorkerId::new(busy as u16).unwrap());
        let (release, released) = mpsc::channel::<()>();
        machines[1]
            .submit(busy, move |_| released.recv().unwrap())
            .unwrap();
        // Fills both rings, that to the machine and that to the busy worker, until sending fails
        // many times.
        let (mut sent, mut refused) = (0, 0);
        while refused < 1_000 {
            let full = cluster.on(0, 0, move |worker| {
                worker.send(to, COUNT, &[&[0; 64]]).is_err()
            });
            (sent, refused) = (sent + u64::from(!full), refused + u64::from(full));
        }
        let (handed, must_poll) = cluster.on(1, 1 - busy, |worker| {
            let handed = worker.message_counters().handed_over;
            (handed, worker.must_poll())
        });
        assert!(must_poll || handed == 0, "{handed} handed over to {busy}");
        handed_over += handed;
        release.send(()).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            let count = cluster.on(1, busy, |worker| worker.layer::<Counted>().unwrap().0);
            if count == sent {
                break;
            }
            assert!(
                Instant::now() < late,
                "only {count} of {sent} messages arrived"
            );
            std::thread::yield_now();
        }
    }
    assert!(handed_over > 0, "one worker receives the messages for both");
    cluster.stop();
}

/// The request that a machine received and does not answer.
static KEPT: Mutex<Option<Request>> = Mutex::new(None);

struct Outcome(mpsc::Sender<Option<Vec<u8>>>);

fn ended(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
    let outcome = worker.take_layer::<Outcome>();
    outcome.0.send(reply.ok().map(<[u8]>::to_vec)).unwrap();
}

/// Regression test: a machine that guessed the number of a call could answer in place of the called
/// machine.
#[test]
fn a_reply_of_a_machine_that_was_not_called_is_garbage() {
    let keep = |worker: &mut Worker| {
        worker.register(ECHO, |_, request, _| *KEPT.lock().unwrap() = Some(request));
    };
    let cluster = cluster("forged", 3, 1, keep);
    let machines = &cluster.machines;
    let asked = WorkerRef::new(machines[1].id(), WorkerId::new(0).unwrap());
    let (outcome, outcomes) = mpsc::channel();
    machines[0]
        .submit(0, move |worker| {
            worker.put_layer(Box::new(Outcome(outcome)));
            let cont = ReplyCont::new(ended, 0);
            worker.call(asked, ECHO, &[b"?"], 100, cont).unwrap();
        })
        .unwrap();
    let request = loop {
        match KEPT.lock().unwrap().take() {
            Some(request) => break request,
            None => std::thread::yield_now(),
        }
    };
    machines[2]
        .submit(0, move |worker| worker.reply(request, &[b"forged"]))
        .unwrap();
    let mut machines = cluster.machines.into_iter();
    let why = machines.next().unwrap().join().unwrap_err().to_string();
    assert!(
        why.contains("a call that was sent to another machine"),
        "{why}"
    );
    assert!(outcomes.recv().ok().flatten().is_none());
    // The other machines may report the loss as an error.
    machines.for_each(|machine| drop(machine.stop()));
}

#[test]
fn an_invalid_configuration_starts_no_machine() {
    let mut config = Config::tiny_for(2, 1);
    config.memory.region_bytes = 1000;
    let started = start_all(&config, &(Arc::new(with_echo) as _));
    let why = started
        .err()
        .expect("the configuration is rejected")
        .to_string();
    assert!(why.contains("memory.region_bytes"), "{why}");
}

#[test]
fn ask_reports_why_there_is_no_answer() {
    let mut cluster = cluster("no-answer", 1, 1, with_echo);
    let machine = Arc::new(cluster.machines.remove(0));
    let dropped = machine.ask(0, |_, answer: mpsc::Sender<()>| drop(answer));
    assert!(
        dropped
            .unwrap_err()
            .to_string()
            .contains("without sending its answer")
    );
    let own = Arc::clone(&machine);
    let itself = machine.ask(0, move |_, answer: mpsc::Sender<String>| {
        let asked = own.ask(0, |_, answer: mpsc::Sender<()>| answer.send(()).unwrap());
        answer.send(asked.unwrap_err().to_string()).unwrap();
    });
    assert!(itself.unwrap().contains("an answer of its own"));
    let panics = machine.ask(0, |_, answer: mpsc::Sender<()>| {
        let _answer = answer;
        panic!("on purpose");
    });
    let why = panics.unwrap_err().to_string();
    assert!(why.contains("worker m1.w0 panicked"), "{why}");
}

/// Regression test: if a machine of a process with several machines died, the others noticed only
/// when its `Machine` was dropped. Their users waited for them, and never dropped it.
#[test]
fn a_dead_machine_is_noticed_by_the_others_of_its_process() {
    let cluster = cluster("dies", 2, 2, with_echo);
    let machines = &cluster.machines;
    let (answer, answered) = mpsc::channel::<()>();
    machines[0]
        .submit(1, |_| panic!("on purpose"))
        .expect("the machine runs");
    // Returns although the answer could still arrive.
    let why = machines[1].wait_for(&answered).unwrap_err().to_string();
    drop(answer);
    assert!(why.contains("machine m1 is lost"), "{why}");
    let reported = machines[1]
        .departed()
        .remove(0)
        .why
        .expect("a reported reason");
    assert!(reported.contains("worker m1.w1 panicked"), "{reported}");
}

/// Regression test: `submit` dropped 3,292 of 5,000 closures silently while 1,024 were waiting.
#[test]
fn every_work_item_that_is_submitted_runs() {
    const ITEMS: usize = 5_000;
    let cluster = Arc::new(cluster("submit", 1, 2, with_echo));
    let machine = &cluster.machines[0];
    let (release, released) = mpsc::channel::<()>();
    machine
        .submit(0, move |_| released.recv().unwrap())
        .unwrap();
    let (ran, runs) = mpsc::channel();
    let submitter = std::thread::spawn({
        let cluster = Arc::clone(&cluster);
        move || {
            for number in 0..ITEMS {
                let ran = ran.clone();
                cluster.machines[0]
                    .submit(0, move |_| ran.send(number).unwrap())
                    .unwrap();
            }
        }
    });
    // The worker is busy. Another worker, which must not block, gets an error once the inbox is
    // full.
    let (tried, full) = mpsc::channel();
    let asked = Arc::clone(&cluster);
    machine
        .submit(1, move |_| {
            let refused = (0..2 * ITEMS).find_map(|_| asked.machines[0].submit(0, |_| ()).err());
            tried.send(refused).unwrap();
        })
        .unwrap();
    match full.recv().unwrap() {
        Some(MachineError::Full { worker, .. }) => assert_eq!(worker.worker, WorkerId::FIRST),
        other => panic!("{other:?}"),
    }
    release.send(()).unwrap();
    submitter.join().unwrap();
    assert!(
        runs.iter().take(ITEMS).eq(0..ITEMS),
        "every item runs once, in order"
    );
    machine.control().stop();
    let refused = machine.submit(0, |_| ()).unwrap_err();
    assert!(matches!(refused, MachineError::Failed(_)), "{refused}");
}

/// All machines have ended: the next start goes on with their configuration, and refuses if memory that it names is gone.
#[test]
fn a_cluster_that_finds_its_own_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::tiny_for(2, 1);
    config.cluster.name = "again".into();
    config.cluster.run_dir = dir.path().to_path_buf().into();
    config.durability.mode = Some(Durability::Memory);
    let store = dir.path().join("store");
    config.durability.dir = Some(store.clone());
    config.memory.dir = dir.path().join("memory");
    std::fs::create_dir(&config.memory.dir).unwrap();
    let attach: Attach = Arc::new(|_: &mut Worker| {});
    let run = || {
        for machine in start_all(&config, &attach).unwrap() {
            machine.stop().unwrap();
        }
        let newest = newest_configuration(&config).unwrap().unwrap();
        newest.version.id
    };
    assert_eq!([run(), run(), run()], [1, 2, 3]);
    let kept = find_kept_memory(&config.memory.dir).unwrap();
    assert_eq!(
        kept.len(),
        2,
        "those of earlier processes are removed: {kept:?}"
    );
    for journal in find_journals(&config).unwrap() {
        std::fs::remove_file(journal).unwrap();
    }
    // Nothing that is named by the configuration was lost, because there are no regions.
    assert_eq!(run(), 4);
}

/// A start that does not find the configuration of an ended cluster keeps the memory of that cluster. It once removed it.
#[test]
fn memory_is_kept_while_its_configuration_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::tiny_for(2, 1);
    config.cluster.name = "away".into();
    config.cluster.run_dir = dir.path().to_path_buf().into();
    config.durability.mode = Some(Durability::Memory);
    config.durability.dir = Some(dir.path().join("store"));
    config.memory.dir = dir.path().join("memory");
    std::fs::create_dir(&config.memory.dir).unwrap();
    let attach: Attach = Arc::new(|_: &mut Worker| {});
    let run = |config: &Config| -> Result<u64, MachineError> {
        for machine in start_all(config, &attach)? {
            machine.stop().unwrap();
        }
        let newest = newest_configuration(config).unwrap().unwrap();
        Ok(newest.version.id)
    };
    let kept = || {
        let listed = std::fs::read_dir(&config.memory.dir).unwrap();
        let names = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("farmd-")).collect();
        names.sort();
        names
    };
    assert_eq!(run(&config).unwrap(), 1);
    let before = kept();
    assert!(before.len() >= 6, "{before:?}");

    // The directory of the configuration is on a file system that is not mounted.
    let (store, away) = (dir.path().join("store"), dir.path().join("unmounted"));
    std::fs::rename(&store, &away).unwrap();
    let refused = run(&config).unwrap_err();
    assert!(
        matches!(refused, MachineError::ConfigurationGone { .. }),
        "{refused}"
    );
    assert_eq!(kept(), before);
    std::fs::rename(&away, &store).unwrap();

    // Another directory was configured by mistake.
    let mut other = config.clone();
    other.durability.dir = Some(dir.path().join("other"));
    let refused = run(&other).unwrap_err();
    assert!(
        matches!(refused, MachineError::KeptElsewhere { .. }),
        "{refused}"
    );
    assert_eq!(kept(), before);

    assert_eq!(run(&config).unwrap(), 2);
    let after = kept();
    assert!(after.iter().all(|name| !before.contains(name)));

    // What another store decides about stays.
    forget_kept(&other).unwrap();
    assert_eq!(kept(), after);
    forget_kept(&config).unwrap();
    assert_eq!(kept(), [] as [String; 0]);
    std::fs::remove_dir_all(&store).unwrap();
    assert_eq!(run(&config).unwrap(), 1);
    forget_kept(&config).unwrap();
}
