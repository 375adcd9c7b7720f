//! What the commands that measure have in common.

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::Context;
use farm_core::config::Config;
use farm_kv::TableSpec;
use farm_kv::layout::Layout;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The commit this program was built from, if the build could tell.
pub(crate) const COMMIT: Option<&str> = option_env!("FARM_COMMIT");

/// Finds out before anything is measured whether the results can be written.
pub(crate) fn try_writing(path: &Path) -> anyhow::Result<()> {
    let is_new = !path.exists();
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write the results to {} (--json)", path.display()))?;
    if is_new {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// A progress bar, drawn only where a person sees it.
pub(crate) fn bar(len: u64, message: &str, template: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(len), target)
        .with_style(style)
        .with_message(message.to_owned())
}

/// A table for so many pairs: as many shards as the workers own, more where a shard would not fit a
/// region.
pub(crate) fn table_spec(
    config: &Config,
    id: u16,
    value_bytes: usize,
    pairs: u64,
) -> anyhow::Result<TableSpec> {
    let table = &config.table;
    let h = table.neighbourhood;
    let layout = Layout::new(h, value_bytes)?;
    let owners = config.total_workers() as u32;
    let region = config.memory.region_bytes - config.memory.block_bytes;
    let mut shards = owners * table.shards_per_worker;
    loop {
        let spec = TableSpec::sized(id, h, value_bytes, shards, pairs, table.occupancy)?;
        let bytes = (u64::from(spec.buckets) + 1) * layout.bucket_bytes() as u64;
        if bytes <= region {
            return Ok(spec);
        }
        shards += owners;
    }
}
