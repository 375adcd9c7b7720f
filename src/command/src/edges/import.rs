//! Reads an edge list, and sends its edges in batches to the machines, which write them.
//!
//! A batch goes to the machine with the fewest batches. Each machine has at most [`BATCHES`], so that the memory for edges on
//! their way does not depend on the length of the list.

use std::time::Instant;

use anyhow::bail;
use farm_bench::edges::generate::Generated;
use farm_bench::edges::import::{Batch, Imported};
use farm_bench::graph::edge_list::{EdgeError, EdgeFile};
use indicatif::ProgressBar;

use super::plan::{List, Plan};
use crate::cluster::Cluster;
use crate::cluster::protocol::{EdgesOrder, News, Order};
use crate::measure::bar;

/// Number of lines of a batch.
const BATCH_LINES: usize = 1 << 15;
/// Maximum number of batches of a machine at a time: one that it writes, and the next one.
const BATCHES: usize = 2;
/// Number of lines that are not edges that are printed.
const PRINTED_ERRORS: u64 = 20;

/// What was read and imported.
pub(super) struct Import {
    pub(super) imported: Imported,
    pub(super) bad_lines: u64,
    pub(super) seconds: f64,
}

/// Reads and imports the list of a plan. If `strict`, ends at the first line that is not an edge.
pub(super) fn import(cluster: &mut Cluster, plan: &Plan, strict: bool) -> anyhow::Result<Import> {
    let began = Instant::now();
    let mut reader = Reader::new(plan, strict)?;
    let bar = reader.bar(plan);
    let mut imported = Imported::default();
    let mut loads = vec![0; cluster.len()];
    loop {
        let least = (0..loads.len()).min_by_key(|machine| loads[*machine]);
        let machine = least.expect("a cluster has at least one machine");
        if loads[machine] == BATCHES || reader.ended {
            if loads.iter().all(|load| *load == 0) {
                break;
            }
            if let Some((machine, News::Imported(batch))) = cluster.receive()? {
                loads[machine] -= 1;
                imported += batch;
            }
            bar.set_message(format!("importing, {} edges so far", imported.edges));
            continue;
        }
        cluster.check_interrupted()?;
        let batch = reader.batch()?;
        bar.set_position(reader.position());
        if !batch.edges.is_empty() {
            let order = Order::Edges(EdgesOrder::Import(batch));
            cluster.order_one(machine, &order)?;
            loads[machine] += 1;
        }
    }
    bar.finish_and_clear();
    reader.report_end();
    Ok(Import {
        imported,
        bad_lines: reader.bad_lines,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// The edges of a list.
enum Edges {
    File(EdgeFile),
    Generated(Generated),
}

impl Iterator for Edges {
    type Item = Result<(u64, u64), EdgeError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Edges::File(file) => file.next(),
            Edges::Generated(list) => list.next().map(Ok),
        }
    }
}

/// Reads a list, and reports the lines that are not edges.
struct Reader {
    /// Name of the list.
    name: String,
    edges: Edges,
    strict: bool,
    /// Number of edges that were read.
    read: u64,
    bad_lines: u64,
    ended: bool,
}

impl Reader {
    fn new(plan: &Plan, strict: bool) -> anyhow::Result<Self> {
        let edges = match &plan.list {
            List::File(path) => Edges::File(EdgeFile::open(path)?),
            List::Generated(list) => Edges::Generated(list.clone()),
        };
        Ok(Self {
            name: plan.name.clone(),
            edges,
            strict,
            read: 0,
            bad_lines: 0,
            ended: false,
        })
    }

    /// Returns the bar that shows the progress: in bytes of a file, or in edges.
    fn bar(&self, plan: &Plan) -> ProgressBar {
        match &self.edges {
            Edges::File(file) => bar(
                file.len(),
                "importing",
                "{msg} {wide_bar} {bytes} of {total_bytes}, {eta} left",
            ),
            Edges::Generated(_) => bar(
                plan.sizes.edges,
                "importing",
                "{msg} {wide_bar} {human_pos} of about {human_len}, {eta} left",
            ),
        }
    }

    /// Returns the position for [`Reader::bar`].
    fn position(&self) -> u64 {
        match &self.edges {
            Edges::File(file) => file.position(),
            Edges::Generated(_) => self.read,
        }
    }

    /// Reads the next lines. Reports each line that is not an edge.
    fn batch(&mut self) -> anyhow::Result<Batch> {
        let first = self.read + 1;
        let mut edges = Vec::with_capacity(BATCH_LINES);
        for _ in 0..BATCH_LINES {
            match self.edges.next() {
                Some(Ok(edge)) => edges.push(edge),
                Some(Err(error @ EdgeError::Line(_))) if !self.strict => self.report(&error),
                Some(Err(error)) => bail!(error),
                None => {
                    self.ended = true;
                    break;
                }
            }
        }
        self.read += edges.len() as u64;
        Ok(Batch { first, edges })
    }

    /// Reports a line that is not an edge, unless many were reported.
    fn report(&mut self, error: &EdgeError) {
        self.bad_lines += 1;
        if self.bad_lines <= PRINTED_ERRORS {
            crate::write_stderr(format_args!("farm: error: {error}"));
        }
    }

    /// Reports how many lines are not edges.
    fn report_end(&self) {
        if self.bad_lines > 0 {
            let printed = self.bad_lines.min(PRINTED_ERRORS);
            crate::write_stderr(format_args!(
                "farm: error: {}: lines that are not edges and were skipped: {}; printed: the first {printed}",
                self.name, self.bad_lines
            ));
        }
    }
}
