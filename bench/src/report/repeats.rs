//! Figures of repeated runs: their median and spread, and which measurements were uneven.

use std::fmt;

use serde::Serialize;

use crate::micro::Spread;
use crate::recorder::LatencyUs;
use crate::slices::is_uneven;
use crate::text::{significant, whole};

/// Maximum number of measurements that the warning about uneven slices names.
const NAMED: usize = 5;

/// A figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Name of the figure with its unit, as in `committed/s`.
    pub name: String,
    /// Value of the figure; `None` if repeated runs are not compared by it.
    pub value: Option<f64>,
    /// Throughput of the slowest and of the fastest time slice, per second, if it was measured in slices.
    pub slices: Option<[f64; 2]>,
}

impl Figure {
    /// Creates a figure of this name that was not measured in slices.
    pub fn new(name: impl Into<String>, value: impl Into<Option<f64>>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            slices: None,
        }
    }

    /// Creates a throughput that was measured in slices.
    pub(crate) fn rate(
        name: impl Into<String>,
        value: impl Into<Option<f64>>,
        slices: Option<[f64; 2]>,
    ) -> Self {
        Self {
            slices,
            ..Self::new(name, value)
        }
    }

    /// Creates the figures of the latency of a kind of operation.
    pub(crate) fn latencies(kind: &str, latency: Option<LatencyUs>) -> [Self; 2] {
        [
            Self::new(format!("{kind} p50, us"), latency.map(|it| it.p50)),
            Self::new(format!("{kind} p99, us"), latency.map(|it| it.p99)),
        ]
    }
}

/// The result of a run, whose figures can be compared with those of a repetition.
pub trait Measured {
    /// Returns what was measured. The text is the same for every repeat of a run, and different for every other run.
    fn what(&self) -> String;

    /// Returns the figures in a fixed order. The most important figure is the first one with a value.
    fn figures(&self) -> Vec<Figure>;
}

/// One run that was repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repeated {
    /// What was measured.
    pub what: String,
    /// Number of runs.
    pub repeats: usize,
    /// Index in the report's runs of the run whose first figure is the median. Of an even number of runs, it is the run
    /// with the lower of the two figures in the middle.
    pub median_run: usize,
    /// Figures that every repeat has.
    pub figures: Vec<SpreadFigure>,
}

/// The spread of a figure over several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpreadFigure {
    /// Name of the figure, with its unit.
    pub name: String,
    /// Median, least and greatest of the figure.
    #[serde(flatten)]
    pub spread: Spread,
}

/// A measurement whose slices differ by more than [`crate::slices::UNEVEN`] times in throughput.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uneven {
    /// Index of the run in the report.
    pub run: usize,
    /// What was measured.
    pub what: String,
    /// The slowest slice, per second.
    pub least: f64,
    /// The fastest slice, per second.
    pub most: f64,
}

/// Returns the runs that were repeated, in the order in which they first occur.
pub(super) fn repeated<R: Measured>(runs: &[R]) -> Vec<Repeated> {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let what = run.what();
        match groups.iter_mut().find(|group| group.0 == what) {
            Some(group) => group.1.push(index),
            None => groups.push((what, vec![index])),
        }
    }
    let several = groups.into_iter().filter(|group| group.1.len() > 1);
    several
        .map(|(what, indices)| spread(what, &indices, runs))
        .collect()
}

fn spread<R: Measured>(what: String, indices: &[usize], runs: &[R]) -> Repeated {
    let all: Vec<Vec<Figure>> = indices.iter().map(|index| runs[*index].figures()).collect();
    let first = |index: usize| all[index].iter().find_map(|figure| figure.value);
    let first = |index: usize| first(index).unwrap_or(0.0);
    let mut order: Vec<usize> = (0..indices.len()).collect();
    order.sort_by(|a, b| first(*a).total_cmp(&first(*b)));
    let names = all[0].iter().map(|figure| &figure.name);
    let figures = names.filter_map(|name| {
        let of = |figures: &Vec<Figure>| {
            let found = figures.iter().find(|figure| figure.name == *name);
            found.and_then(|figure| figure.value)
        };
        // A kind of operation that one of the runs did not sample has no spread.
        let values: Option<Vec<f64>> = all.iter().map(of).collect();
        Some(SpreadFigure {
            name: name.clone(),
            spread: Spread::of(values?),
        })
    });
    Repeated {
        what,
        repeats: indices.len(),
        median_run: indices[order[(order.len() - 1) / 2]],
        figures: figures.collect(),
    }
}

/// Returns the measurements that were uneven.
pub(super) fn uneven<R: Measured>(runs: &[R]) -> Vec<Uneven> {
    let mut uneven = Vec::new();
    for (run, measured) in runs.iter().enumerate() {
        for figure in measured.figures() {
            let Some([least, most]) = figure.slices.filter(|it| is_uneven(it[0], it[1])) else {
                continue;
            };
            let what = format!("{}: {}", measured.what(), figure.name);
            uneven.push(Uneven {
                run,
                what,
                least,
                most,
            });
        }
    }
    uneven
}

impl fmt::Display for Repeated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{}, {} runs: median (least to most)",
            self.what, self.repeats
        )?;
        for figure in &self.figures {
            let spread = figure.spread;
            let [median, least, most] = [spread.median, spread.least, spread.most].map(shown);
            writeln!(out, "  {:<40} {median} ({least} to {most})", figure.name)?;
        }
        Ok(())
    }
}

/// Formats a figure with about three digits. From 1000 on, as a whole number with commas between its thousands.
fn shown(figure: f64) -> String {
    match figure {
        n if n >= 1000.0 => whole(n),
        n => significant(n),
    }
}

/// Writes a warning that names uneven measurements, if there are any.
pub(super) fn write_uneven(out: &mut fmt::Formatter<'_>, uneven: &[Uneven]) -> fmt::Result {
    if uneven.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nwarning: {} measurement(s) were uneven: the throughput of their time slices differs by more \
         than 2x, so that one figure for the whole run says little",
        uneven.len()
    )?;
    for it in uneven.iter().take(NAMED) {
        let [least, most] = [it.least, it.most].map(shown);
        let (number, what) = (it.run + 1, &it.what);
        writeln!(out, "  run {number}, {what}: {least} to {most} per second")?;
    }
    match uneven.len().saturating_sub(NAMED) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more, which --json lists"),
    }
}
