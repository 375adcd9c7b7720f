//! Reports the files that killed machines left on this host.

use std::path::Path;

use farm_core::config::{Config, RunDir};
use farm_core::fabric::shm::StaleFiles;

use super::{Finding, Level};
use crate::clean::Group;
use crate::files::{counted, quoted};
use crate::scratch::Abandoned;

/// Most clusters that are named.
const MOST_NAMED: usize = 5;

/// Returns the finding about the files that killed machines and commands left, with the command that removes them.
pub(super) fn finding(
    stale_files: &[StaleFiles],
    directories: &[Abandoned],
    config: &Config,
) -> Finding {
    let groups = Group::of(stale_files);
    let of = |groups: &[&Group<'_>]| {
        let files = groups.iter().map(|group| group.files()).sum();
        let bytes = groups.iter().map(|group| group.bytes()).sum();
        let mut clusters: Vec<&str> = groups.iter().map(|group| group.cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        let more = clusters.len().saturating_sub(MOST_NAMED);
        clusters.truncate(MOST_NAMED);
        let mut named = clusters.join(", ");
        if more > 0 {
            named.push_str(&format!(" and {more} more"));
        }
        (counted(files, bytes), named)
    };
    let (unknown, removable): (Vec<&Group<'_>>, Vec<&Group<'_>>) =
        groups.iter().partition(|group| group.is_unknown);
    if !removable.is_empty() {
        let (what, clusters) = of(&removable);
        let fact = format!("killed machines of cluster(s) {clusters} left {what}");
        let advice = "remove the files; the next start of a machine with this memory.dir also removes them, but \
                      only those of shared memory";
        return Finding::new(Level::Advice, "leftovers", fact)
            .advice(advice)
            .command(format!("farm clean{}", settings(config)));
    }
    if !directories.is_empty() {
        let files = directories.iter().map(|it| it.files).sum();
        let bytes = directories.iter().map(|it| it.bytes).sum();
        let fact = format!("killed commands left {}", counted(files, bytes));
        return Finding::new(Level::Advice, "leftovers", fact)
            .advice("remove the files")
            .command(format!("farm clean{}", settings(config)));
    }
    if !unknown.is_empty() {
        let (what, clusters) = of(&unknown);
        let fact = format!("{what} of cluster(s) {clusters} may belong to killed machines");
        return Finding::new(Level::Note, "leftovers", fact)
            .advice("farm cannot find out whether these machines run; list the files and decide")
            .command(format!("farm clean --dry-run{}", settings(config)));
    }
    Finding::new(Level::Ok, "leftovers", "no files of killed machines")
}

/// Returns the options that select the directories of a configuration for `farm clean`.
fn settings(config: &Config) -> String {
    let mut settings = String::new();
    let dir = &config.memory.dir;
    if dir != Path::new("/dev/shm") {
        settings.push_str(&format!(" --set memory.dir={}", quoted(dir)));
    }
    if let RunDir::Path(path) = &config.cluster.run_dir {
        settings.push_str(&format!(" --set cluster.run_dir={}", quoted(path)));
    }
    settings
}
