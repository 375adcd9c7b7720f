//! The report as a table, and its figures.

use std::fmt;

use super::CommitReport;
use crate::micro::text::{micros, significant};
use crate::report::{Figure, Measured, SlicedRate};

impl fmt::Display for CommitReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.conditions)?;
        writeln!(
            out,
            "  each transaction reads and writes its objects; \"own\": no two transactions in flight have an object in \
             common; \"shared\": all transactions have the same objects, and are retried until they commit, with \
             the waits of the conflict avoidance"
        )?;
        writeln!(
            out,
            "  machines objects        coordinators in flight     commits/s  transaction µs p50/p99  \
             commit µs p50/p99  aborts locked/changed/timed out  reads  records  messages"
        )?;
        for row in &self.rows {
            let objects = if row.hot { "shared" } else { "own" };
            writeln!(
                out,
                "  {:>8} {:>7} {objects:<6} {:>12} {:>9} {:>13.0}  {:>10} / {:>9}  {:>8} / {:>7}  \
                 {:>12} / {:>6} / {:>6}  {:>10}  {:>7}  {:>8}",
                row.machines,
                row.objects,
                row.coordinators,
                row.in_flight,
                row.commits.per_s,
                micros(row.transaction.p50_ns),
                micros(row.transaction.p99_ns),
                micros(row.commit.p50_ns),
                micros(row.commit.p99_ns),
                significant(row.locked_per_commit),
                significant(row.changed_per_commit),
                significant(row.timed_out_per_commit),
                significant(row.reads_per_commit),
                significant(row.writes_per_commit),
                significant(row.messages_per_commit),
            )?;
        }
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
            let name = row.name();
            [
                Figure::new(format!("{name}: commits/s"), row.commits.per_s),
                Figure::new(format!("{name}: p50, ns"), row.commit.p50_ns as f64),
            ]
        });
        let bracket = Figure::new("time to begin and end an operation, ns", self.bracket_ns);
        rows.chain([bracket]).collect()
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        let rows = self.rows.iter();
        rows.map(|row| SlicedRate::of(format!("{}: commits/s", row.name()), &row.commits))
            .collect()
    }
}
