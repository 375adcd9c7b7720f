//! The processes of a run, and what is judged at its end.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use farm::farm_core::limits::DEFAULT_LEASE_MS;
use farm::farm_core::membership::files::FileStore;
use farm::farm_core::membership::store::ConfigStore;

use crate::run::{ACCOUNTS, CHILD, Dir, EACH, KEYS, LOOPS, MACHINES, PROGRAM, wait_for};

/// Returns the numbers in a file.
pub(crate) fn numbers(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

pub(crate) struct Machines {
    /// Name of the cluster.
    cluster: String,
    pub(crate) dir: Dir,
    /// The processes, by their numbers less one; `None` for those that were killed.
    pub(crate) children: Vec<Option<Child>>,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for id in self.processes() {
                let log = self.dir.read(&format!("log-{id}")).unwrap_or_default();
                eprintln!("log of process {id}:\n{log}");
            }
        }
        // What they have kept.
        for file in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            if file.file_name().to_string_lossy().ends_with(&self.cluster) {
                let _ = std::fs::remove_file(file.path());
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir.0);
    }
}

impl Machines {
    /// Returns the number of regions for which processes of a machine have kept memory.
    pub(crate) fn kept_regions(&self, machine: u16) -> usize {
        let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let files = files.filter(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            let what = self.kept_of(machine, &name);
            what.is_some_and(|what| what.starts_with('r'))
        });
        let places = files.filter_map(|file| Some(file.metadata().ok()?.ino()));
        places.collect::<BTreeSet<u64>>().len()
    }

    /// Returns what the file of this name has, if a machine keeps it: `r…` for a region, `l…` for logs.
    fn kept_of<'a>(&self, machine: u16, name: &'a str) -> Option<&'a str> {
        let is_of_cluster = name.starts_with("farmd-") && name.ends_with(&self.cluster);
        let (_, start) = name.split_once(&format!("-m{machine}-"))?;
        // After the number of the start.
        let what = start.split('-').nth(1)?;
        is_of_cluster.then_some(what)
    }

    pub(crate) fn start(name: &str, replicas: usize) -> Self {
        Self::start_with(name, replicas, MACHINES)
    }

    /// Starts machines 1 to `machines`. Machine [`PROGRAM`] has no memory.
    pub(crate) fn start_with(name: &str, replicas: usize, machines: u16) -> Self {
        Self::start_with_leases(name, replicas, machines, DEFAULT_LEASE_MS)
    }

    /// As [`Machines::start_with`], with leases of this many milliseconds.
    pub(crate) fn start_with_leases(
        name: &str,
        replicas: usize,
        machines: u16,
        lease_ms: u32,
    ) -> Self {
        let mut all = Self::prepare(name, replicas, lease_ms);
        all.begin(machines);
        all
    }

    /// Writes the configuration of machines that are to begin.
    pub(crate) fn prepare(name: &str, replicas: usize, lease_ms: u32) -> Self {
        Self::prepare_at(name, replicas, lease_ms, |_| String::new())
    }

    /// As [`Machines::prepare`]. `place` returns the keys that say where a machine is.
    pub(crate) fn prepare_at(
        name: &str,
        replicas: usize,
        lease_ms: u32,
        place: impl Fn(u16) -> String,
    ) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(format!("farm-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "[cluster]\nname = \"{name}\"\nrun_dir = \"{}\"\n\
             [memory]\nregion_bytes = \"2MiB\"\nhuge_pages = \"off\"\nper_machine_bytes = \"8MiB\"\n\
             [rings]\nring_bytes = \"256KiB\"\nmax_message_bytes = \"16KiB\"\nlog_bytes = \"512KiB\"\n\
             [durability]\nmode = \"memory\"\nreplicas = {replicas}\ndir = \"{}\"\nlease_ms = {lease_ms}\n\
             [[machine]]\nid = 1\n{}[[machine]]\nid = 2\nworkers = 2\n{}[[machine]]\nid = 3\n{}\
             [[machine]]\nid = {PROGRAM}\nmemory_bytes = 0\n{}",
            dir.join("run").display(),
            dir.join("store").display(),
            place(1),
            place(2),
            place(3),
            place(PROGRAM),
        );
        std::fs::write(dir.join("farm.toml"), text).unwrap();
        Self {
            cluster: name,
            dir: Dir(dir),
            children: Vec::new(),
        }
    }

    /// Starts machines 1 to `machines`.
    pub(crate) fn begin(&mut self, machines: u16) {
        let started = (1..=machines).map(|id| Some(child(&self.dir.0, id, [id, machines])));
        self.children = started.collect();
    }

    /// Starts a machine again, by another process. Returns the number of the process.
    pub(crate) fn start_again(&mut self, machine: u16) -> u16 {
        let others = self.children.len() as u16;
        let process = others + 1;
        self.children
            .push(Some(child(&self.dir.0, machine, [process, others])));
        process
    }

    /// Starts machines 1 to `machines` again, by other processes, and waits until each has reported a transfer.
    pub(crate) fn start_all_again(&mut self, machines: u16) {
        let started = (1..=machines).map(|machine| self.start_again(machine));
        for process in started.collect::<Vec<_>>() {
            self.wait_for_first(process);
        }
    }

    pub(crate) fn processes(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.children.len() as u16
    }

    pub(crate) fn left(&self) -> Vec<u16> {
        let is_left = |id: &u16| self.children[usize::from(*id) - 1].is_some();
        self.processes().filter(is_left).collect()
    }

    pub(crate) fn reported(&self, process: u16) -> Vec<u64> {
        numbers(&self.dir.reported(process))
    }

    pub(crate) fn reported_by(&self, processes: &[u16]) -> u64 {
        let sum = |id: &u16| self.reported(*id).iter().sum::<u64>();
        processes.iter().map(sum).sum()
    }

    /// Waits until a process has reported a transfer.
    pub(crate) fn wait_for_first(&self, process: u16) {
        wait_for("the first transfer", || {
            self.reported(process)
                .iter()
                .any(|count| *count > 0)
                .then_some(())
        });
    }

    /// Waits until the processes that are left have reported this number of further transfers.
    pub(crate) fn wait_for_transfers(&self, count: u64) {
        self.wait_for_transfers_of(&self.left(), count);
    }

    /// As [`Machines::wait_for_transfers`], for these processes.
    pub(crate) fn wait_for_transfers_of(&self, processes: &[u16], count: u64) {
        let before = self.reported_by(processes);
        wait_for("transfers", || {
            (self.reported_by(processes) >= before + count).then_some(())
        });
    }

    /// Waits until all machines with memory are members, and all regions have this number of full copies.
    pub(crate) fn wait_until_full(&self, replicas: usize) {
        wait_for("full copies", || self.is_full(replicas).then_some(()));
    }

    /// Returns whether all machines with memory are members, and all regions have this number of full copies.
    pub(crate) fn is_full(&self, replicas: usize) -> bool {
        let mut store = FileStore::at(&self.dir.path("store"), &self.cluster);
        store.read().unwrap().is_some_and(|newest| {
            let storing = newest.running().filter(|member| member.stores).count();
            storing == usize::from(MACHINES) && newest.has_full_copies(replicas)
        })
    }

    pub(crate) fn kill(&mut self, process: u16) {
        let mut child = self.children[usize::from(process) - 1].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Kills all processes that are left, at once.
    pub(crate) fn kill_all(&mut self) {
        for child in self.children.iter_mut().flatten() {
            child.kill().unwrap();
        }
        for child in &mut self.children {
            if let Some(mut child) = child.take() {
                child.wait().unwrap();
            }
        }
    }

    /// Removes what a machine has kept, as if its memory had been on a host that was switched off. Its process has ended.
    pub(crate) fn lose_memory(&self, machine: u16) {
        self.lose_files(machine, |_| true);
    }

    /// Removes the logs that a machine has kept, of these writers. Its process has ended.
    pub(crate) fn lose_logs(&self, machine: u16, writers: &[u16]) {
        self.lose_files(machine, |what| {
            let mut writers = writers.iter();
            writers.any(|writer| what.starts_with(&format!("l{writer}.")))
        });
    }

    /// Removes what a machine has kept of a kind.
    fn lose_files(&self, machine: u16, is_of: impl Fn(&str) -> bool) {
        let (files, mut removed) = (std::fs::read_dir("/dev/shm").unwrap().flatten(), 0);
        for file in files {
            let name = file.file_name().into_string().unwrap();
            if self.kept_of(machine, &name).is_some_and(&is_of) {
                std::fs::remove_file(file.path()).unwrap();
                removed += 1;
            }
        }
        assert!(removed > 0);
    }

    /// Ends the transfers, and compares what is there with what was reported.
    pub(crate) fn judge(&mut self) {
        self.dir.write("enough", "");
        let (left, processes) = (self.left(), self.processes());
        for id in &left {
            wait_for("the end of the transfers", || {
                self.dir.read(&format!("ended-{id}"))
            });
        }
        let reader = format!("{} {}", left[0], processes.end());
        self.dir.write("reader", &reader);
        let sums = wait_for("the sums", || self.dir.read("sums"));
        let sums: Vec<i64> = sums.lines().map(|line| line.parse().unwrap()).collect();
        let mut total = 0;
        for (id, of_process) in processes.clone().zip(sums.chunks(LOOPS + ACCOUNTS)) {
            total += of_process[LOOPS..].iter().sum::<i64>();
            let may_be_one_more = u64::from(!left.contains(&id));
            for (reported, found) in self.reported(id).into_iter().zip(of_process) {
                let may_be = reported..=reported + may_be_one_more;
                let found = *found as u64;
                assert!(
                    may_be.contains(&found),
                    "process {id}: {reported} reported, {found} found"
                );
            }
        }
        assert_eq!(total, EACH * (ACCOUNTS * self.children.len()) as i64);
        let pairs = self.dir.read("pairs").unwrap();
        let mut pairs = pairs.lines().map(|line| line.parse::<u64>().unwrap());
        let (len, mut stored) = (pairs.next().unwrap(), 0);
        for id in processes {
            let mut put = numbers(&self.dir.put(id));
            put.resize(KEYS as usize, 0);
            let highest = put.iter().max().unwrap() + 1;
            for (reported, found) in put.into_iter().zip(&mut pairs) {
                let is_next = found == highest && !left.contains(&id);
                assert!(
                    found == reported || is_next,
                    "process {id}: {reported} reported, {found} found"
                );
                stored += u64::from(found > 0);
            }
        }
        assert_eq!(len, stored);
        self.dir.write("end", "");
        for child in &mut self.children {
            if let Some(mut child) = child.take() {
                assert!(child.wait().unwrap().success());
            }
        }
    }
}

pub(crate) fn child(dir: &Path, machine: u16, [process, begin]: [u16; 2]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "program::a_machine", "--nocapture"])
        .env(
            CHILD,
            format!("{machine}:{process}:{begin}:{}", dir.display()),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
