//! The results of an import and of queries.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::import::Imported;
use super::search::Searched;
use super::two_hop::TwoHopCosts;
use crate::closed_loop::Ran;
use crate::recorder::{LatencyUs, RecorderError};
use crate::report::{self, Figure, Measured, Merged, ratio, ratio_of_counts, write_latencies};
use crate::slices::SliceRates;
use crate::text::{dash, decimal, grouped, whole};

/// The part of one machine in a run of two-hop queries.
pub type MachineReport = report::MachineReport<Ran<TwoHopCosts>>;

/// Number of levels that the table shows.
const SHOWN_LEVELS: usize = 12;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The name of the file, or how the list was generated.
    pub list: String,
    /// Whether each edge has an edge back.
    pub undirected: bool,
    /// Entries of the cache of first pages on each worker.
    pub cached_heads: u64,
    /// Maximum number of reads in flight, of all workers together.
    pub in_flight: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration of the warm-up, whose queries do not count, in seconds.
    pub warmup_s: f64,
}

/// The graph that was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ImportResult {
    /// What was imported.
    #[serde(flatten)]
    pub imported: Imported,
    /// Number of lines that are not edges. They were skipped.
    pub bad_lines: u64,
    /// Seconds of the import.
    pub seconds: f64,
    /// Edges per second, without duplicates.
    pub edges_per_s: Option<f64>,
    /// Bytes of objects for each edge, with those of the nodes.
    pub bytes_per_edge: Option<f64>,
}

impl ImportResult {
    /// Creates the result of an import, with the bytes of all its objects.
    pub fn new(imported: Imported, bad_lines: u64, seconds: f64, object_bytes: u64) -> Self {
        Self {
            imported,
            bad_lines,
            seconds,
            edges_per_s: ratio(imported.edges as f64, seconds),
            bytes_per_edge: ratio_of_counts(object_bytes, imported.edges),
        }
    }
}

/// The result of a breadth-first search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// Id of the start.
    pub start: u64,
    /// Number of nodes that were reached, including the start.
    pub reached: u64,
    /// Number of nodes at each distance from the start, from 0 on.
    pub levels: Vec<u64>,
    /// Number of edges that were followed.
    pub edges: u64,
    /// Seconds of the search.
    pub seconds: f64,
    /// Edges per second.
    pub edges_per_s: Option<f64>,
    /// Objects read by one-sided reads per node.
    pub reads_per_vertex: Option<f64>,
}

impl SearchResult {
    /// Creates the result of a search from the node with the id `start`.
    pub fn new(start: u64, searched: &Searched) -> Self {
        let reached = searched.level_of.len() as u64;
        Self {
            start,
            reached,
            levels: searched.levels(),
            edges: searched.edges,
            seconds: searched.seconds,
            edges_per_s: ratio(searched.edges as f64, searched.seconds),
            reads_per_vertex: ratio_of_counts(searched.costs.range_reads, reached),
        }
    }
}

/// The result of two-hop queries.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TwoHopResult {
    /// Number of queries that ended.
    pub queries: u64,
    /// Queries per second.
    pub queries_per_s: Option<f64>,
    /// Number of nodes whose adjacency lists were read.
    pub vertices: u64,
    /// Such nodes per second, of all workers.
    pub vertices_per_s: Option<f64>,
    /// Such nodes per second of one worker.
    pub vertices_per_s_per_worker: Option<f64>,
    /// Edges read per second.
    pub edges_per_s: Option<f64>,
    /// Objects read by one-sided reads per node whose list was read; of a long list, per part that one operation reads.
    pub reads_per_vertex: Option<f64>,
    /// Share of the lists whose first page was in the cache.
    pub head_hits: Option<f64>,
    /// Nodes that a query found on average.
    pub found_per_query: Option<f64>,
    /// Latencies of the queries, in microseconds.
    pub latency_us: Option<LatencyUs>,
    /// Queries per second by time slice, if the run was long enough.
    pub slices: Option<SliceRates>,
    /// Duration of the counted part on the slowest worker, in seconds.
    pub duration_s: f64,
    /// Number of queries that failed.
    pub errors: u64,
    /// Costs of all workers.
    pub costs: TwoHopCosts,
    /// The first failure of each worker that had one.
    #[serde(skip)]
    failures: Vec<String>,
}

impl TwoHopResult {
    /// Merges the reports of the machines.
    ///
    /// # Errors
    /// If the machines sampled latencies at different rates.
    pub fn new(machines: &[MachineReport]) -> Result<Self, RecorderError> {
        let merged = Merged::of(1, machines)?;
        let costs = merged.recorder.counters;
        let queries = merged.recorder.executed();
        let ran = machines.iter().flat_map(|machine| &machine.workers);
        let vertices_per_s = merged.per_s(costs.vertices);
        let heads = costs.graph.head_hits + costs.graph.head_misses;
        Ok(Self {
            queries,
            queries_per_s: merged.per_s(queries),
            vertices: costs.vertices,
            vertices_per_s,
            vertices_per_s_per_worker: vertices_per_s
                .and_then(|rate| ratio(rate, ran.clone().count() as f64)),
            edges_per_s: merged.per_s(costs.edges),
            reads_per_vertex: ratio_of_counts(costs.graph.range_reads, costs.graph.ranges),
            head_hits: ratio_of_counts(costs.graph.head_hits, heads),
            found_per_query: ratio_of_counts(costs.found, queries),
            latency_us: merged.recorder.latency_us(0),
            slices: merged.slices.rates(),
            duration_s: merged.duration_s,
            errors: costs.errors,
            costs,
            failures: ran.filter_map(|ran| ran.failure.clone()).collect(),
        })
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunResult {
    /// The settings.
    #[serde(flatten)]
    pub setup: Setup,
    /// The import.
    pub import: ImportResult,
    /// The breadth-first search, if there was one.
    pub bfs: Option<SearchResult>,
    /// The two-hop queries, if there were any.
    pub two_hop: Option<TwoHopResult>,
    /// What failed.
    pub failures: Vec<String>,
}

impl RunResult {
    /// Creates a result. `failures` are those besides failures of two-hop queries.
    pub fn new(
        setup: Setup,
        import: ImportResult,
        bfs: Option<SearchResult>,
        two_hop: Option<TwoHopResult>,
        mut failures: Vec<String>,
    ) -> Self {
        failures.extend(two_hop.iter().flat_map(|it| it.failures.clone()));
        Self {
            setup,
            import,
            bfs,
            two_hop,
            failures,
        }
    }

    /// Returns whether every line was an edge, and nothing failed.
    pub fn succeeded(&self) -> bool {
        self.import.bad_lines == 0 && self.failures.is_empty()
    }
}

impl Measured for RunResult {
    fn what(&self) -> String {
        let kind = match self.setup.undirected {
            true => "undirected",
            false => "directed",
        };
        format!("{}, {kind}", self.setup.list)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        if let Some(it) = &self.two_hop {
            figures.push(Figure::new("vertex reads/s", it.vertices_per_s));
            let slices = it.slices.as_ref().map(SliceRates::range);
            figures.push(Figure::rate("two-hop queries/s", it.queries_per_s, slices));
            figures.extend(Figure::latencies("two-hop query", it.latency_us));
        }
        if let Some(it) = &self.bfs {
            figures.push(Figure::new("breadth-first search, edges/s", it.edges_per_s));
        }
        figures.push(Figure::new("import, edges/s", self.import.edges_per_s));
        figures
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}\n", self.what())?;
        write_import(out, &self.import)?;
        if let Some(bfs) = &self.bfs {
            writeln!(out)?;
            write_search(out, bfs)?;
        }
        if let Some(two_hop) = &self.two_hop {
            writeln!(out)?;
            write_two_hop(out, &self.setup, two_hop)?;
        }
        Ok(())
    }
}

/// Writes a line with a name and a text.
fn line(out: &mut fmt::Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    writeln!(out, "  {name:<18} {text}")
}

fn write_import(out: &mut fmt::Formatter<'_>, import: &ImportResult) -> fmt::Result {
    let Imported {
        nodes,
        edges,
        duplicates,
        self_loops,
    } = import.imported;
    let [nodes, edges] = [nodes, edges].map(grouped);
    line(out, "graph", &format!("{nodes} nodes, {edges} edges"))?;
    let text = format!(
        "{:.1} s, {} edges per second; {} bytes per edge with the nodes",
        import.seconds,
        import.edges_per_s.map_or_else(dash, whole),
        decimal(import.bytes_per_edge, 1)
    );
    line(out, "import", &text)?;
    let [duplicates, loops, bad] = [duplicates, self_loops, import.bad_lines].map(grouped);
    let text = format!("{duplicates} duplicates, {loops} self loops, {bad} not edges (skipped)");
    line(out, "lines", &text)
}

fn write_search(out: &mut fmt::Formatter<'_>, bfs: &SearchResult) -> fmt::Result {
    let text = format!(
        "from {}: {} nodes reached over {} edges in {:.3} s",
        bfs.start,
        grouped(bfs.reached),
        grouped(bfs.edges),
        bfs.seconds
    );
    line(out, "bfs", &text)?;
    let shown = bfs.levels.iter().take(SHOWN_LEVELS);
    let shown: Vec<String> = shown.map(|count| grouped(*count)).collect();
    let more = match bfs.levels.len().saturating_sub(SHOWN_LEVELS) {
        0 => String::new(),
        more => format!(" and {more} more levels"),
    };
    line(out, "nodes by level", &format!("{}{more}", shown.join(" ")))?;
    let text = bfs.edges_per_s.map_or_else(dash, whole);
    line(out, "edges/s", &format!("{text} on one worker"))?;
    let text = decimal(bfs.reads_per_vertex, 4);
    line(out, "one-sided reads", &format!("{text} of a node"))
}

fn write_two_hop(out: &mut fmt::Formatter<'_>, setup: &Setup, it: &TwoHopResult) -> fmt::Result {
    let text = format!(
        "{} for {:.1} s, {} per second; at most {} reads in flight; seed {}; warm-up {:.1} s",
        grouped(it.queries),
        it.duration_s,
        it.queries_per_s.map_or_else(dash, whole),
        grouped(setup.in_flight),
        setup.seed,
        setup.warmup_s
    );
    line(out, "two-hop queries", &text)?;
    let all = it.vertices_per_s.map_or_else(dash, whole);
    let each = it.vertices_per_s_per_worker.map_or_else(dash, whole);
    line(
        out,
        "vertex reads/s",
        &format!("{all} in all, {each} per worker"),
    )?;
    let edges = it.edges_per_s.map_or_else(dash, whole);
    line(out, "edges read/s", &edges)?;
    let text = format!(
        "{} of a vertex; the first page of {} of the lists is in the cache",
        decimal(it.reads_per_vertex, 4),
        it.head_hits.map_or_else(dash, crate::text::percent)
    );
    line(out, "one-sided reads", &text)?;
    let text = format!("{} nodes on average", decimal(it.found_per_query, 1));
    line(out, "found by a query", &text)?;
    if let Some(slices) = &it.slices {
        line(out, "slices", &slices.to_string())?;
    }
    line(out, "errors", &grouped(it.errors))?;
    let latency = it.latency_us.map(|latency| ("two-hop query", latency));
    write_latencies(out, 18, latency.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(bad_lines: u64, failures: &[&str]) -> RunResult {
        let imported = Imported {
            nodes: 1000,
            edges: 2000,
            duplicates: 3,
            self_loops: 4,
        };
        let setup = Setup {
            list: "x.txt".to_owned(),
            undirected: true,
            cached_heads: 64,
            in_flight: 256,
            seed: 1,
            warmup_s: 0.5,
        };
        let bfs = SearchResult {
            start: 7,
            reached: 20,
            levels: (1..=14).collect(),
            edges: 50,
            seconds: 0.5,
            edges_per_s: Some(100.0),
            reads_per_vertex: Some(1.5),
        };
        let failures = failures.iter().map(|why| (*why).to_owned()).collect();
        let import = ImportResult::new(imported, bad_lines, 4.0, 200_000);
        let two_hop = TwoHopResult::new(&[]).unwrap();
        RunResult::new(setup, import, Some(bfs), Some(two_hop), failures)
    }

    #[test]
    fn the_table_has_the_counts() {
        let text = result(5, &[]).to_string();
        for line in [
            "x.txt, undirected",
            "graph              1,000 nodes, 2,000 edges",
            "4.0 s, 500 edges per second; 100.0 bytes per edge with the nodes",
            "3 duplicates, 4 self loops, 5 not edges (skipped)",
            "from 7: 20 nodes reached over 50 edges in 0.500 s",
            "1 2 3 4 5 6 7 8 9 10 11 12 and 2 more levels",
            "vertex reads/s     - in all, - per worker",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }

    #[test]
    fn bad_lines_and_failures_are_no_success() {
        assert!(result(0, &[]).succeeded());
        assert!(!result(1, &[]).succeeded());
        assert!(!result(0, &["x"]).succeeded());
    }

    #[test]
    fn the_json_fields_are_pinned() {
        let json = serde_json::to_value(result(0, &[])).unwrap();
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys.join(" ")
        };
        assert_eq!(
            keys(&json),
            "bfs cached_heads failures import in_flight list seed two_hop undirected warmup_s"
        );
        assert_eq!(
            keys(&json["import"]),
            "bad_lines bytes_per_edge duplicates edges edges_per_s nodes seconds self_loops"
        );
        assert_eq!(
            keys(&json["bfs"]),
            "edges edges_per_s levels reached reads_per_vertex seconds start"
        );
        assert_eq!(
            keys(&json["two_hop"]),
            "costs duration_s edges_per_s errors found_per_query head_hits latency_us queries queries_per_s \
             reads_per_vertex slices vertices vertices_per_s vertices_per_s_per_worker"
        );
    }
}
