//! The report as a table, and its figures.

use std::fmt;

use super::CommitReport;
use crate::micro::Latency;
use crate::report::{Figure, Measured};
use crate::text::{cells, headings, micros, significant, table};

impl fmt::Display for CommitReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.conditions)?;
        writeln!(
            out,
            "  each transaction reads and writes its objects; \"own\": no two transactions in flight have an object in \
             common; \"shared\": all transactions have the same objects, and are retried until they commit, with \
             the waits of the conflict avoidance"
        )?;
        let mut lines = vec![headings(
            "machines|objects|coordinators|in flight|commits/s|transaction µs p50 / p99|commit µs p50 / p99|\
             aborts locked / changed / timed out|reads|records|messages|log bytes, others' / own",
        )];
        lines.extend(self.rows.iter().map(|row| {
            let kind = &row.kind;
            let whose = if kind.hot { "shared" } else { "own" };
            let latency = |it: Latency| format!("{} / {}", micros(it.p50_ns), micros(it.p99_ns));
            let aborts = [
                row.locked_per_commit,
                row.changed_per_commit,
                row.timed_out_per_commit,
            ];
            cells![
                kind.machines,
                format!("{} {whose}", kind.objects),
                kind.coordinators,
                kind.in_flight,
                format!("{:.0}", row.commits.per_s),
                latency(row.transaction),
                latency(row.commit),
                aborts.map(significant).join(" / "),
                significant(row.reads_per_commit),
                significant(row.writes_per_commit),
                significant(row.messages_per_commit),
                row.log_bytes_per_commit.map(significant).join(" / ")
            ]
        }));
        out.write_str(&table(&lines, [0; 2]))?;
        write!(
            out,
            "  time to begin and end an operation, which every lock-free read includes: {} ns",
            significant(self.bracket_ns)
        )
    }
}

impl Measured for CommitReport {
    fn what(&self) -> String {
        "commit".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let rows = self.rows.iter().flat_map(|row| {
            let (kind, commits) = (row.kind, &row.commits);
            let slices = Some([commits.least, commits.most]);
            [
                Figure::rate(format!("{kind}: commits/s"), commits.per_s, slices),
                Figure::new(format!("{kind}: p50, ns"), row.commit.p50_ns as f64),
            ]
        });
        let bracket = Figure::new("time to begin and end an operation, ns", self.bracket_ns);
        rows.chain([bracket]).collect()
    }
}
