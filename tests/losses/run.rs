//! What the processes of a run tell each other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use farm::farm_core::ids::Address;

/// The variable that makes a test the program of one machine: its number, the number of the process, how many processes begin together,
/// 0 for a process that runs nothing, and the directory of the run.
pub(crate) const CHILD: &str = "FARM_TEST_LOSSES_CHILD";
/// The variable with the number of times that each machine is killed and comes back, if they come back in turns.
pub(crate) const ROUNDS: &str = "FARM_TEST_LOSSES_ROUNDS";
/// Number of machines with memory.
pub(crate) const MACHINES: u16 = 3;
/// A machine without memory.
pub(crate) const PROGRAM: u16 = 4;
/// Number of accounts that each process creates, after those that count the transfers of its loops.
pub(crate) const ACCOUNTS: usize = 8;
pub(crate) const LOOPS: usize = 4;
/// Number of keys that each loop changes.
pub(crate) const KEYS: u64 = 5;
pub(crate) const EACH: i64 = 1000;
/// The variable with the longest time of everything in seconds, [`DEADLINE`] by default. The guest with RDMA devices is slow.
const SECONDS: &str = "FARM_TEST_LOSSES_SECONDS";
const DEADLINE: u64 = 60;

/// Waits until `what` is there.
pub(crate) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let seconds = std::env::var(SECONDS).map_or(DEADLINE, |seconds| seconds.parse().unwrap());
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(seconds),
            "waited too long for {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The directory of a run: what its processes tell each other.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file that appears as a whole.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("new-{name}"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok()
    }

    /// Returns the addresses that a process has created.
    pub(crate) fn accounts(&self, process: u16) -> Vec<Address> {
        let text = wait_for("accounts", || self.read(&format!("accounts-{process}")));
        let bits = text.lines().map(|line| line.parse().unwrap());
        bits.map(|bits| Address::from_bits(bits).unwrap()).collect()
    }

    /// Returns the file of the numbers of reported transfers of a process's loops.
    pub(crate) fn reported(&self, process: u16) -> PathBuf {
        self.path(&format!("reported-{process}"))
    }

    /// Returns the file of the numbers that a process has put under its keys.
    pub(crate) fn put(&self, process: u16) -> PathBuf {
        self.path(&format!("put-{process}"))
    }
}
