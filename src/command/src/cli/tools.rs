//! Options of `farm doctor`, `farm status`, `farm verify`, `farm clean` and `farm destroy`.

use std::time::Duration;

use clap::Args;

use super::{ConfigArgs, seconds_or_none};

/// Options of `farm doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Levels of findings: ok; note (a fact to know); advice (something to improve); problem (the configuration
cannot run on this host). Exit status: 1 if there is a problem, otherwise 0.

Examples:
  farm doctor
  farm doctor --config config/local.toml --set memory.per_machine_bytes=8GiB
  farm doctor --json | jq '.findings[] | select(.level == \"problem\")'")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Print the host, the configuration and the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `farm status`.
#[derive(Debug, Args)]
#[command(after_help = "\
The machines are those of the configuration, and are found by cluster.name and cluster.run_dir. They run on
this host, in any process of this user: `farm node`, or a program with Cluster::local, from_file or join. Nothing is
stopped. Rates are those of one interval. Tables have their numbers, not their names.

Exit status: 0 if all machines run, 1 if one does not.

Examples:
  farm status --config my.toml
  farm status --config my.toml --watch
  farm status --config my.toml --json | jq '.machines[].per_second.committed'")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Report again after each interval, until interrupted.
    #[arg(long)]
    pub(crate) watch: bool,

    /// Print JSON, one line for each report.
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds over which rates are measured.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: f64,
}

/// Options of `farm verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
A cluster with durability.mode = \"memory\" stores every region on durability.replicas machines: a primary, and
backups, which apply commits later, from their logs. This command compares them: the allocated objects with
versions, incarnations and bytes, the freed objects without their bytes, and the blocks with size classes, lengths
and bases. Each machine computes digests of its replicas; only these are compared, and the objects of blocks whose
digests differ. Memory that transactions reserved and never committed may differ.

The machines are those of the configuration, found as `farm status` finds them: on this host, in any process of
this user. All that store regions must run, except those without which the others have gone on, which are named. Programs
may read, but must not write meanwhile: the command waits until all log records are applied, and compares again if there
were new ones.

Exit status: 0 if all replicas are equal; 1 if some differ: the output names the objects and machines; 3 if they
could not be compared, because a machine does not answer, the cluster is not idle, or there is one replica only;
2 if the command line or the configuration is wrong.

Examples:
  farm verify --config my.toml
  farm verify --config my.toml --wait 60
  farm verify --config my.toml --json | jq '.differences[] | [.machine, .address, .differs]'")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds to wait for the cluster to become idle.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_or_none)]
    pub(crate) wait: Duration,
}

/// Parses a number of seconds.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds between 0.05 and 3600".to_owned()),
    }
}

/// Options of `farm clean`.
#[derive(Debug, Args)]
#[command(after_help = "\
A killed process (kill -9, or the out-of-memory killer) leaves its shared memory in memory.dir, and its
lock and socket in cluster.run_dir. This command removes such files of all clusters that used these two
directories. The next start of a machine with the same memory.dir removes the shared memory, too.
A running machine holds locks on its files. The command never removes locked files or files of other users.

A cluster with durability.mode = \"memory\" and copies keeps its data when it ends, for the next start. This command only
reports that; farm destroy removes it.

Examples:
  farm clean --dry-run
  farm clean
  farm clean --set memory.dir=/mnt/farm-huge --set cluster.run_dir=/tmp/farm-0")]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Only list what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Options of `farm destroy`.
#[derive(Debug, Args)]
#[command(after_help = "\
A cluster with durability.mode = \"memory\" and copies keeps its data when all of its processes have ended: its configuration in
durability.dir, the memory of its machines in memory.dir, and journals in cluster.run_dir. The next start goes on with them.
This command says what there is of the cluster of --config and --set, and with --yes it removes all of it. It refuses if a
machine of that cluster runs, and if durability.dir has something else: another cluster's configuration, a damaged one, or one
of a newer program. It refuses, too, if the configuration names memory that is not in these directories: then that cluster had
other ones, which are to be named, or the memory is lost.

Examples:
  farm destroy --config my.toml
  farm destroy --yes --config my.toml
  farm destroy --yes --memory-is-gone --config my.toml    # the host was switched off")]
pub(crate) struct DestroyArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Remove it, after saying what it is.
    #[arg(long)]
    pub(crate) yes: bool,

    /// Remove the rest, although memory that the configuration names is not there.
    #[arg(long)]
    pub(crate) memory_is_gone: bool,
}
