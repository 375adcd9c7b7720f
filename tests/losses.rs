//! A process is killed while all machines of a cluster run transactions: the others go on, and nothing that was reported is lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farm::farm_core::ids::Address;
use farm::farm_core::membership::configuration::Replica;
use farm::farm_core::membership::files::FileStore;
use farm::farm_core::membership::store::ConfigStore;
use farm::prelude::*;

/// The variable that makes a test the program of one machine: its number, the number of the process, how many processes begin together,
/// 0 for a process that runs nothing, and the directory of the run.
const CHILD: &str = "FARM_TEST_LOSSES_CHILD";
/// The variable with the number of times that each machine is killed and comes back, if they come back in turns.
const ROUNDS: &str = "FARM_TEST_LOSSES_ROUNDS";
/// Number of machines with memory.
const MACHINES: u16 = 3;
/// A machine without memory.
const PROGRAM: u16 = 4;
/// Number of accounts that each process creates, after those that count the transfers of its loops.
const ACCOUNTS: usize = 8;
const LOOPS: usize = 4;
/// Number of keys that each loop changes.
const KEYS: u64 = 5;
const EACH: i64 = 1000;
/// Longest time of everything.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `what` is there.
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The directory of a run: what its processes tell each other.
struct Dir(PathBuf);

impl Dir {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file that appears as a whole.
    fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("new-{name}"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok()
    }

    /// Returns the addresses that a process has created.
    fn accounts(&self, process: u16) -> Vec<Address> {
        let text = wait_for("accounts", || self.read(&format!("accounts-{process}")));
        let bits = text.lines().map(|line| line.parse().unwrap());
        bits.map(|bits| Address::from_bits(bits).unwrap()).collect()
    }

    /// Returns the file of the numbers of reported transfers of a process's loops.
    fn reported(&self, process: u16) -> PathBuf {
        self.path(&format!("reported-{process}"))
    }

    /// Returns the file of the numbers that a process has put under its keys.
    fn put(&self, process: u16) -> PathBuf {
        self.path(&format!("put-{process}"))
    }
}

fn number(payload: &[u8]) -> i64 {
    i64::from_le_bytes(payload[..8].try_into().unwrap())
}

async fn add(tx: Tx<'_>, address: Address, by: i64) -> farm::Result<i64> {
    let raw = tx.raw();
    let account = raw.read(address, 8).await?;
    let sum = number(&raw.payload(account).await?) + by;
    let change = move |payload: &mut [u8]| payload[..8].copy_from_slice(&sum.to_le_bytes());
    raw.change(account, change).await?;
    Ok(sum)
}

/// Transfers between accounts until the run ends, and counts that in an account of its own.
async fn transfers(
    farm: Farm,
    dir: &Dir,
    all: &[Address],
    (own, reported): (Address, (&File, u64)),
) {
    let mut seed = own.to_bits();
    let mut draw = move |below: usize| {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let mut count = 0u64;
    while !dir.path("enough").exists() {
        for _ in 0..50 {
            let (from, to, sum) = (all[draw(all.len())], all[draw(all.len())], draw(10) as i64);
            let moved = farm.transact(async |tx| {
                add(tx, from, -sum).await?;
                add(tx, to, sum).await?;
                add(tx, own, 1).await.map(|_| ())
            });
            moved.await.unwrap();
            count += 1;
            reported
                .0
                .write_all_at(&count.to_le_bytes(), reported.1 * 8)
                .unwrap();
        }
    }
}

/// Puts numbers under the keys of one loop until the run ends, each higher than the one before, and looks them up.
async fn puts(farm: Farm, dir: &Dir, table: Table<u64, u64>, (first, reported): (u64, &File)) {
    let mut count = 0;
    while !dir.path("enough").exists() {
        for _ in 0..50 {
            count += 1;
            let key = first + count % KEYS;
            // An owner that is lost may have put it or not. Putting it again has the same effect.
            while let Err(error) = table.put(&farm, key, count).await {
                assert_eq!(error.kind(), Kind::Unknown, "{error}");
            }
            reported
                .write_all_at(&count.to_le_bytes(), (key - first) * 8)
                .unwrap();
            let key = first + (count + 1) % KEYS;
            let found = table.get(&farm, key).await.unwrap();
            assert_eq!(found, count.checked_sub(KEYS - 1).filter(|put| *put > 0));
        }
    }
}

/// Not a test, unless it is started as the program of a machine by the tests below.
#[test]
fn a_machine() {
    let Ok(how) = std::env::var(CHILD) else {
        return;
    };
    let how: Vec<&str> = how.splitn(4, ':').collect();
    let number = |at: usize| how[at].parse::<u16>().unwrap();
    let (machine, id, begin, dir) = (number(0), number(1), number(2), Dir(how[3].into()));
    let log = File::create(dir.path(&format!("log-{id}"))).unwrap();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log)
        .init();
    let cluster = Cluster::join(dir.path("farm.toml"), MachineId::new(machine).unwrap());
    let cluster = cluster.start().unwrap();
    if begin == 0 {
        // It is killed.
        wait_for("the end", || dir.read("end"));
        return;
    }
    let created = cluster.block_on(async |farm| {
        let mut created = Vec::new();
        for index in 0..LOOPS + ACCOUNTS {
            let sum = if index < LOOPS { 0 } else { EACH };
            let account = farm.transact(async |tx| {
                let account = tx.raw().alloc(8, None).await?;
                let change =
                    move |payload: &mut [u8]| payload[..8].copy_from_slice(&i64::to_le_bytes(sum));
                tx.raw().change(account, change).await?;
                Ok::<_, Error>(tx.raw().address(account).await?)
            });
            created.push(account.await.unwrap());
        }
        created
    });
    let lines: String = created
        .iter()
        .map(|one| format!("{}\n", one.to_bits()))
        .collect();
    dir.write(&format!("accounts-{id}"), &lines);
    let accounts = (1..=begin).flat_map(|id| dir.accounts(id).split_off(LOOPS));
    let accounts: Vec<Address> = accounts.collect();
    let reported = File::create(dir.reported(id)).unwrap();
    let put = File::create(dir.put(id)).unwrap();
    let table = cluster.create_table::<u64, u64>("numbers", 1000).unwrap();
    std::thread::scope(|scope| {
        let put = (u64::from(id) * KEYS, &put);
        let (dir, farm) = (&dir, cluster.farm());
        scope.spawn(move || pollster::block_on(puts(farm, dir, table, put)));
        for (index, own) in created[..LOOPS].iter().enumerate() {
            let (farm, accounts, reported) = (cluster.farm(), &accounts, &reported);
            let own = (*own, (reported, index as u64));
            scope.spawn(move || pollster::block_on(transfers(farm, dir, accounts, own)));
        }
    });
    dir.write(&format!("ended-{id}"), "");
    // One of the processes that are left reads everything.
    let reader = wait_for("the reader", || dir.read("reader"));
    let (reader, processes) = reader.split_once(' ').unwrap();
    let processes: u16 = processes.parse().unwrap();
    if reader == id.to_string() {
        let all = (1..=processes).flat_map(|id| dir.accounts(id));
        let sums = cluster.block_on(async |farm| {
            let mut sums = String::new();
            for address in all {
                let sum = farm
                    .transact(async |tx| add(tx, address, 0).await)
                    .await
                    .unwrap();
                sums += &format!("{sum}\n");
            }
            sums
        });
        let pairs = cluster.block_on(async |farm| {
            let mut pairs = format!("{}\n", table.len(&farm).await.unwrap());
            for key in KEYS..KEYS * u64::from(processes + 1) {
                let found = table.get(&farm, key).await.unwrap();
                pairs += &format!("{}\n", found.unwrap_or(0));
            }
            pairs
        });
        dir.write("pairs", &pairs);
        dir.write("sums", &sums);
    }
    wait_for("the end", || dir.read("end"));
}

/// Returns the numbers in a file.
fn numbers(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

struct Machines {
    /// Name of the cluster.
    cluster: String,
    dir: Dir,
    /// The processes, by their numbers less one; `None` for those that were killed.
    children: Vec<Option<Child>>,
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
        let _ = std::fs::remove_dir_all(&self.dir.0);
    }
}

impl Machines {
    fn start(name: &str, replicas: usize) -> Self {
        Self::start_with(name, replicas, MACHINES)
    }

    /// Starts machines 1 to `machines`, of which [`PROGRAM`] is the one without memory.
    fn start_with(name: &str, replicas: usize, machines: u16) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(format!("farm-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "[cluster]\nname = \"{name}\"\n\
             [memory]\nregion_bytes = \"2MiB\"\nhuge_pages = \"off\"\nper_machine_bytes = \"8MiB\"\n\
             [rings]\nring_bytes = \"256KiB\"\nmax_message_bytes = \"16KiB\"\nlog_bytes = \"512KiB\"\n\
             [durability]\nmode = \"memory\"\nreplicas = {replicas}\ndir = \"{}\"\n\
             [[machine]]\nid = 1\n[[machine]]\nid = 2\nworkers = 2\n[[machine]]\nid = 3\n\
             [[machine]]\nid = {PROGRAM}\nmemory_bytes = 0\n",
            dir.join("store").display(),
        );
        std::fs::write(dir.join("farm.toml"), text).unwrap();
        let dir = Dir(dir);
        let children = (1..=machines).map(|id| Some(child(&dir.0, id, [id, machines])));
        let children = children.collect();
        let cluster = name;
        Self {
            cluster,
            dir,
            children,
        }
    }

    /// Starts a machine again, by another process. Returns the number of the process.
    fn start_again(&mut self, machine: u16) -> u16 {
        let others = self.children.len() as u16;
        let process = others + 1;
        self.children
            .push(Some(child(&self.dir.0, machine, [process, others])));
        process
    }

    fn processes(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.children.len() as u16
    }

    fn left(&self) -> Vec<u16> {
        let is_left = |id: &u16| self.children[usize::from(*id) - 1].is_some();
        self.processes().filter(is_left).collect()
    }

    fn reported(&self, process: u16) -> Vec<u64> {
        numbers(&self.dir.reported(process))
    }

    fn all_reported(&self) -> u64 {
        let left = self.left().into_iter();
        left.map(|id| self.reported(id).iter().sum::<u64>()).sum()
    }

    /// Waits until a process has reported a transfer.
    fn wait_for_first(&self, process: u16) {
        wait_for("the first transfer", || {
            self.reported(process)
                .iter()
                .any(|count| *count > 0)
                .then_some(())
        });
    }

    /// Waits until the processes that are left have reported this number of further transfers.
    fn wait_for_transfers(&self, count: u64) {
        let before = self.all_reported();
        wait_for("transfers", || {
            (self.all_reported() >= before + count).then_some(())
        });
    }

    /// Waits until all machines with memory are members, and all regions have this number of full copies.
    fn wait_until_full(&self, replicas: usize) {
        let mut store = FileStore::at(&self.dir.path("store"), &self.cluster);
        wait_for("full copies", || {
            let newest = store.read().unwrap()?;
            let storing = newest.running().filter(|member| member.stores).count();
            let all_full = newest.regions.iter().all(|region| {
                region.replicas.len() == replicas && region.replicas.iter().all(Replica::is_full)
            });
            (storing == usize::from(MACHINES) && all_full).then_some(())
        });
    }

    fn kill(&mut self, process: u16) {
        let mut child = self.children[usize::from(process) - 1].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the transfers, and compares what is there with what was reported.
    fn judge(&mut self) {
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

fn child(dir: &Path, machine: u16, [process, begin]: [u16; 2]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_machine", "--nocapture"])
        .env(
            CHILD,
            format!("{machine}:{process}:{begin}:{}", dir.display()),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn the_others_go_on_when_a_machine_is_killed() {
    for killed in 1..=MACHINES {
        let mut machines = Machines::start(&format!("loses-{killed}"), 2);
        machines.wait_for_transfers(500);
        machines.kill(killed);
        machines.wait_for_transfers(500);
        machines.judge();
    }
}

#[test]
fn the_last_machine_goes_on_when_two_are_killed_at_once() {
    for last in 1..=MACHINES {
        let mut machines = Machines::start(&format!("left-{last}"), 3);
        machines.wait_for_transfers(500);
        let killed = (1..=MACHINES).filter(|machine| *machine != last);
        killed.for_each(|machine| machines.kill(machine));
        machines.wait_for_transfers(500);
        machines.judge();
    }
}

/// A program without memory is killed and comes back while the others recover, while the manager is lost, and when a machine is no
/// member any more.
#[test]
fn programs_without_memory_are_killed_and_come_back() {
    let mut machines = Machines::start_with("programs", 2, PROGRAM);
    machines.wait_for_transfers(500);
    // It comes back at once, while the others recover.
    machines.kill(PROGRAM);
    let second = machines.start_again(PROGRAM);
    machines.wait_for_first(second);
    machines.wait_for_transfers(500);
    // The next one finds a manager that is lost, or another one.
    machines.kill(second);
    let third = machines.start_again(PROGRAM);
    machines.kill(1);
    machines.wait_for_first(third);
    machines.wait_for_transfers(500);
    machines.kill(third);
    let fourth = machines.start_again(PROGRAM);
    machines.wait_for_first(fourth);
    machines.judge();
}

/// Each machine in turn is killed and comes back. When it has full copies again, the next one is killed: of the processes that began, none
/// is left in the end. [`ROUNDS`] sets how often each machine is killed.
#[test]
fn machines_with_memory_come_back() {
    let rounds = std::env::var(ROUNDS).map_or(2, |rounds| rounds.parse().unwrap());
    for replicas in [2, 3] {
        let mut machines = Machines::start(&format!("returns-{replicas}"), replicas);
        machines.wait_for_transfers(200);
        let mut last = [1, 2, 3];
        for round in 0..rounds {
            for machine in 1..=MACHINES {
                let at = usize::from(machine) - 1;
                machines.kill(last[at]);
                if round % 2 == 1 {
                    machines.wait_for_transfers(200);
                }
                last[at] = machines.start_again(machine);
                machines.wait_for_first(last[at]);
                machines.wait_until_full(replicas);
            }
        }
        machines.wait_for_transfers(200);
        machines.judge();
    }
}

/// The machine that comes back is killed again at many moments: while it connects, joins and is filled.
#[test]
fn a_machine_that_comes_back_is_killed_again() {
    let mut machines = Machines::start("again", 3);
    machines.wait_for_transfers(200);
    machines.kill(2);
    for number in 0..20 {
        let mut idle = child(&machines.dir.0, 2, [1000 + number, 0]);
        std::thread::sleep(Duration::from_millis(5 * u64::from(number)));
        idle.kill().unwrap();
        idle.wait().unwrap();
    }
    machines.wait_for_transfers(200);
    let last = machines.start_again(2);
    machines.wait_for_first(last);
    machines.wait_until_full(3);
    machines.kill(1);
    machines.wait_for_transfers(200);
    machines.judge();
}
