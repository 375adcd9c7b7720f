//! A PostgreSQL server of our own, with its files in shared memory, at a Unix domain socket in the same directory.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use postgres::{Client, NoTls};
use rustix::process::{Pid, Signal, getuid, kill_process};

/// Settings of the server: nothing is forced to a disk, everything fits into its buffers, and plans are reused.
pub(super) const SETTINGS: &[&str] = &[
    "listen_addresses = ''",
    "max_connections = 200",
    "shared_buffers = 4GB",
    "huge_pages = try",
    "work_mem = 64MB",
    "maintenance_work_mem = 1GB",
    "effective_cache_size = 16GB",
    "random_page_cost = 1.0",
    "fsync = off",
    "synchronous_commit = off",
    "full_page_writes = off",
    "wal_level = minimal",
    "max_wal_senders = 0",
    "max_wal_size = 8GB",
    "checkpoint_timeout = 1h",
    "bgwriter_lru_maxpages = 0",
    "jit = off",
    "plan_cache_mode = force_generic_plan",
    "max_parallel_workers_per_gather = 0",
    "track_activities = off",
    "update_process_title = off",
    "max_pred_locks_per_transaction = 1024",
];

/// How long a server may take to answer its first client.
const START: Duration = Duration::from_secs(60);

/// A server. It stops when this is dropped, and when this process ends.
pub(super) struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts a server with an empty database in a directory.
    pub(super) fn start(dir: &Path) -> anyhow::Result<Self> {
        let programs = find_programs()?;
        let (data, log) = (dir.join("postgres"), dir.join("postgres.log"));
        std::fs::create_dir(&data)?;
        let user = user()?;
        if let Some((uid, gid)) = user {
            for path in [dir, &data] {
                chown(path, Some(uid), Some(gid))?;
            }
        }
        let create = as_user(user, &programs.join("initdb"))
            .arg("--pgdata")
            .arg(&data)
            .args([
                "--username=farm",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .current_dir(dir)
            .output()
            .context("cannot run initdb")?;
        if !create.status.success() {
            bail!(
                "initdb has failed: {}",
                String::from_utf8_lossy(&create.stderr)
            );
        }
        let mut server = as_user(user, &programs.join("postgres"));
        server
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(dir)
            .current_dir(dir);
        for setting in SETTINGS {
            server
                .arg("-c")
                .arg(setting.replace(" = ", "=").replace('\'', ""));
        }
        let log_file = std::fs::File::create(&log)?;
        server
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .stderr(log_file);
        let mut own = Self {
            process: server.spawn().context("cannot run postgres")?,
            socket: dir.to_owned(),
        };
        own.wait(&log)?;
        Ok(own)
    }

    /// Waits until the server accepts clients.
    fn wait(&mut self, log: &Path) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let error = match self.connect() {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let said = || std::fs::read_to_string(log).unwrap_or_default();
            if let Some(status) = self.process.try_wait()? {
                bail!("the server has ended with {status}: {}", said());
            }
            if began.elapsed() > START {
                bail!(
                    "the server does not answer after {START:?} ({error}): {}",
                    said()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Connects a client.
    pub(super) fn connect(&self) -> anyhow::Result<Client> {
        let client = postgres::Config::new()
            .host_path(&self.socket)
            .user("farm")
            .dbname("postgres")
            .connect(NoTls);
        client.context("cannot connect to the server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT disconnects all clients and ends the server.
        let stopped = Pid::from_child(&self.process);
        if kill_process(stopped, Signal::INT).is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Returns the directory with the programs of the newest version.
pub(super) fn find_programs() -> anyhow::Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| {
            let version = version.ok()?;
            let number = version.file_name().to_str()?.parse().ok()?;
            Some((number, version.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("postgres").exists() && bin.join("initdb").exists())
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).find(|dir| dir.join("initdb").exists());
    found.pop().map(|(_, bin)| bin).or(in_path).context(
        "PostgreSQL is not installed. Install it (on Debian: apt-get install postgresql), or leave postgres out of \
         --beside.",
    )
}

/// Returns the user and group as which the server runs, if this process is root: the server refuses root.
fn user() -> anyhow::Result<Option<(u32, u32)>> {
    if !getuid().is_root() {
        return Ok(None);
    }
    let id = |which: &str| -> anyhow::Result<u32> {
        let output = Command::new("id").args([which, "postgres"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.trim().parse();
        number.context("PostgreSQL does not run as root, and there is no user postgres")
    };
    Ok(Some((id("-u")?, id("-g")?)))
}

/// Returns the command of a program, which ends when this process does.
fn as_user(user: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "INT"]);
    if let Some((uid, gid)) = user {
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg("--clear-groups");
    }
    command.arg("--").arg(program);
    command
}
