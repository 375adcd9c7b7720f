//! The report of a comparison, for people and as JSON.

use std::io::Write;

use farm_bench::text;
use serde::Serialize;

use super::compare::{Comparison, Difference, MachineTotals};

#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    cluster: &'a str,
    equal: bool,
    regions: usize,
    machines: &'a [MachineTotals],
    /// The machines that should store regions, and are lost.
    lost: &'a [String],
    /// Number of blocks and replicas that differ from their primaries.
    different: u64,
    /// The first differences.
    differences: &'a [Difference],
}

/// Prints the result.
pub(super) fn print(cluster: &str, compared: &Comparison, as_json: bool) -> anyhow::Result<()> {
    let mut out = crate::Output;
    let report = Report {
        schema_version: 1,
        cluster,
        equal: compared.is_equal(),
        regions: compared.regions,
        machines: &compared.machines,
        lost: &compared.lost,
        different: compared.different,
        differences: &compared.differences,
    };
    match as_json {
        true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        false => writeln!(out, "{}", in_words(&report))?,
    }
    out.flush()?;
    Ok(())
}

fn in_words(report: &Report<'_>) -> String {
    let verdict = match report.different {
        0 => "all replicas are equal".to_owned(),
        different => format!("{different} block(s) or replicas differ from their primaries"),
    };
    let (cluster, regions) = (report.cluster, report.regions);
    let mut lines = vec![
        format!("cluster {cluster:?}: {regions} region(s); {verdict}"),
        text::table(&machine_lines(report.machines), [0; 2])
            .trim_end()
            .to_owned(),
    ];
    if !report.lost.is_empty() {
        lines.push(format!(
            "the others have gone on without machine(s) {}, which have no copies now",
            report.lost.join(", ")
        ));
    }
    if !report.differences.is_empty() {
        lines.push(format!(
            "the first {} difference(s):",
            report.differences.len()
        ));
    }
    for difference in report.differences {
        lines.push(line_of(difference));
    }
    lines.join("\n")
}

fn machine_lines(machines: &[MachineTotals]) -> Vec<Vec<String>> {
    let heading = [
        "machine",
        "replicas",
        "primary of",
        "blocks",
        "objects",
        "differ",
    ];
    let heading = heading.map(str::to_owned).to_vec();
    let lines = machines.iter().map(|one| {
        let numbers = [
            one.replicas,
            one.primaries,
            one.blocks,
            one.objects,
            one.different,
        ];
        let numbers = numbers.iter().map(u64::to_string);
        [one.machine.clone()].into_iter().chain(numbers).collect()
    });
    [heading].into_iter().chain(lines).collect()
}

pub(super) fn line_of(difference: &Difference) -> String {
    let Difference {
        machine,
        primary,
        region,
        has,
        primary_has,
        ..
    } = difference;
    let what = difference.differs.join(" and ");
    let place = match (&difference.address, difference.block) {
        (Some(address), _) => format!("object {address}"),
        (None, Some(block)) => format!("block {block} of region {region}"),
        (None, None) => {
            return format!("  region {region}: the replica of {machine} is unusable: {has}");
        }
    };
    format!(
        "  {place}: {what} on {machine} differs from the primary {primary}\n    {machine}: {has}\n    {primary}: {primary_has}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_reported_with_their_place_and_machines() {
        let mut difference = Difference {
            machine: "m2".into(),
            primary: "m1".into(),
            region: "r3.7".into(),
            block: Some(4),
            address: Some("r3.7+0x4000".into()),
            differs: vec!["version".into()],
            has: "version 0x1".into(),
            primary_has: "version 0x2".into(),
        };
        let object = line_of(&difference);
        assert!(
            object.contains("object r3.7+0x4000: version on m2 differs from the primary m1"),
            "{object}"
        );
        assert!(object.contains("m2: version 0x1\n") && object.ends_with("m1: version 0x2"));
        difference.address = None;
        difference.differs = vec!["block".into()];
        let block = line_of(&difference);
        assert!(
            block.contains("block 4 of region r3.7: block on m2"),
            "{block}"
        );
        difference.block = None;
        difference.has = "its table is damaged".into();
        let replica = line_of(&difference);
        assert_eq!(
            replica,
            "  region r3.7: the replica of m2 is unusable: its table is damaged"
        );
    }
}
