//! The report as a table.

use std::fmt;

use super::CommitReport;
use crate::micro::text::{micros, significant};

impl fmt::Display for CommitReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.conditions)?;
        writeln!(
            out,
            "  each transaction reads and writes its objects; \"own\": no two in flight have one in common, \
             \"shared\": all have the same, and are tried until they commit, with the waits of the conflict \
             avoidance"
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
            "  begin and end of an operation, which every lock-free read pays: {} ns",
            significant(self.bracket_ns)
        )
    }
}
