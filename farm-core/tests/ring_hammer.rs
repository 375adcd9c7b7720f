//! A ring between two processes: this test runs itself again as the sender, over one mapped file.
//!
//! It covers what loom cannot: real stores, real caches, rings of real size, and many laps. The
//! contents of every record follow from a seed that both processes have.
#![allow(
    clippy::disallowed_methods,
    reason = "the harness of a real process, not protocol code"
)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farm_core as api;
use farm_core::fabric::Endpoint;
use farm_core::ids::WorkerId;
use farm_core::mem::{Access, LINE_BYTES, Mapping, Memory};
use farm_core::ring::{Capacity, Header, Kind, Record, RingReceiver, RingSender, SendError};
use farm_core::time::Nanos;
use rand::{Rng, RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

// This test uses only the part of the fake fabric in which writes land at once.
#[allow(dead_code, unreachable_pub)]
#[path = "../src/ring/testing.rs"]
mod testing;

const SENDER: &str = "FARM_RING_HAMMER_SENDER";
const INLINE_BYTES: usize = 256;
/// Longest wait of either process: longer than any run takes.
const PATIENCE: Duration = Duration::from_secs(100);

/// The generated sequence of a run's records.
struct Script {
    rng: Xoshiro256PlusPlus,
    most: usize,
    token: u64,
    body: Vec<u8>,
}

impl Script {
    fn new(seed: u64, most: usize) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self {
            rng,
            most,
            token: 0,
            body: Vec::with_capacity(most),
        }
    }

    /// Generates the next record: mostly short ones, sometimes the longest.
    fn next(&mut self) -> Header {
        let most = match self.rng.random_range(0..20) {
            0 => self.most,
            1..5 => self.most.min(1024),
            _ => self.most.min(100),
        };
        let bytes = self.rng.random_range(0..=most);
        self.body.resize(bytes, 0);
        self.rng.fill_bytes(&mut self.body);
        self.token += 1;
        let kind = [Kind::OneWay, Kind::Request, Kind::Reply][self.token as usize % 3];
        let to_worker = WorkerId::new(self.token as u16 % 64).expect("a valid worker id");
        Header {
            kind,
            to_worker,
            message_id: self.token as u16,
            token: self.token,
        }
    }
}

/// Returns the parts of the file: the ring, then the head copy in a separate cache line.
fn parts(memory: &Memory, capacity: Capacity) -> (Memory, Memory) {
    let bytes = capacity.bytes() as usize;
    (memory.window(0, bytes), memory.window(bytes, LINE_BYTES))
}

/// Runs in the child process: sends the script until its end, or forever.
fn send_all(path: &Path, capacity: Capacity, seed: u64, records: u64) {
    let bytes = capacity.bytes() as usize + LINE_BYTES;
    let memory =
        Memory::of(Mapping::open(path, bytes, Access::ReadWrite).expect("open the shared file"));
    let (buffer, head_copy) = parts(&memory, capacity);
    let mut endpoint = testing::Wire::new(vec![buffer]).endpoint(INLINE_BYTES);
    let config = testing::sender_config(capacity, head_copy);
    let mut sender = RingSender::new(config, &mut endpoint).expect("create the sender");
    let mut script = Script::new(seed, sender.max_body_bytes() as usize);
    let start = Instant::now();
    for _ in 0..records {
        let header = script.next();
        let (front, back) = script.body.split_at(script.body.len() / 3);
        loop {
            match sender.try_send(&mut endpoint, header, &[front, back]) {
                Ok(()) => break,
                Err(SendError::Full) => std::thread::yield_now(),
                Err(error) => panic!("record {}: {error}", header.token),
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the receiver did not free space in time"
            );
        }
    }
}

/// Runs as the sender if the environment variable is set; otherwise passes.
#[test]
fn sender() {
    let Ok(job) = std::env::var(SENDER) else {
        return;
    };
    let mut words = job.splitn(4, ' ');
    let mut number = || {
        words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a number in the sender's job")
    };
    let (bytes, seed, records) = (number(), number(), number());
    let capacity = Capacity::new(bytes).expect("a valid ring size");
    send_all(
        Path::new(words.next().expect("a path in the sender's job")),
        capacity,
        seed,
        records,
    );
}

struct Receiving {
    sender: Child,
    ring: RingReceiver,
    endpoint: Endpoint,
    buffer: Memory,
    script: Script,
    _dir: tempfile::TempDir,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        // Both calls may fail because the sender has ended already.
        let _ = self.sender.kill();
        let _ = self.sender.wait();
    }
}

fn start(capacity: Capacity, seed: u64, records: u64) -> Receiving {
    let dir = tempfile::tempdir().expect("create a temporary directory");
    let path = dir.path().join("ring");
    let bytes = capacity.bytes() as usize + LINE_BYTES;
    let memory = Memory::of(Mapping::create(&path, bytes, false).expect("create the shared file"));
    let (buffer, head_copy) = parts(&memory, capacity);
    let endpoint = testing::Wire::new(vec![head_copy]).endpoint(INLINE_BYTES);
    let config = testing::receiver_config(buffer.clone());
    let ring = RingReceiver::new(config, &endpoint).expect("create the receiver");
    let most = capacity.max_body_bytes() as usize;
    let job = format!("{} {seed} {records} {}", capacity.bytes(), path.display());
    let sender = Command::new(std::env::current_exe().expect("the path of this test"))
        .args(["--exact", "sender", "--test-threads=1"])
        .env(SENDER, job)
        .stdout(Stdio::null())
        .spawn()
        .expect("start the sender");
    let script = Script::new(seed, most);
    Receiving {
        sender,
        ring,
        endpoint,
        buffer,
        script,
        _dir: dir,
    }
}

fn check(record: &Record<'_>, script: &mut Script) {
    let sent = script.next();
    let (to_worker, message_id) = (record.to_worker, record.message_id);
    let header = Header {
        kind: record.kind,
        to_worker,
        message_id,
        token: record.token,
    };
    assert_eq!(header, sent);
    assert!(
        record.body == script.body,
        "record {} was received with another body",
        sent.token
    );
}

impl Receiving {
    /// Takes the next record, if it is complete. Returns whether it was.
    fn take(&mut self) -> bool {
        let Some(record) = self
            .ring
            .peek(&mut self.endpoint, Nanos::default())
            .expect("a valid ring")
        else {
            return false;
        };
        check(&record, &mut self.script);
        self.ring.consume(&mut self.endpoint);
        true
    }

    fn take_many(&mut self, records: u64) {
        let start = Instant::now();
        for taken in 0..records {
            while !self.take() {
                std::thread::yield_now();
                assert!(
                    start.elapsed() < PATIENCE,
                    "only {taken} of {records} records arrived in time"
                );
            }
        }
    }

    fn words(&self) -> Vec<u64> {
        let mut words = vec![0; self.buffer.len() / 8];
        self.buffer.read_words(0, &mut words);
        words
    }
}

fn hammer(bytes: u64, records: u64) {
    let mut receiving = start(
        Capacity::new(bytes).expect("a valid ring size"),
        bytes,
        records,
    );
    receiving.take_many(records);
    assert!(
        receiving
            .sender
            .wait()
            .expect("wait for the sender")
            .success()
    );
    assert!(!receiving.take());
    assert!(receiving.words().iter().all(|word| *word == 0));
}

#[test]
fn three_hundred_thousand_records_through_64_kib() {
    hammer(64 << 10, 300_000);
}

#[test]
fn small_rings_wrap_continually() {
    hammer(1 << 10, 200_000);
}

/// A sender that is killed at any point, probably in the middle of a record, leaves a ring whose
/// complete records can be read. Its last, incomplete record is never returned.
#[test]
fn a_killed_sender_leaves_whole_records_only() {
    for seed in 0..20 {
        let mut receiving = start(
            Capacity::new(1 << 20).expect("a valid ring size"),
            seed,
            u64::MAX,
        );
        receiving.take_many(50 + seed * 97);
        receiving.sender.kill().expect("kill the running sender");
        receiving.sender.wait().expect("wait for the sender");
        while receiving.take() {}
        assert!(!receiving.take());
    }
}
