//! The results of a bench at each size, as JSON and as tables.

use std::cmp::Reverse;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::figures::{Latency, Rate, Spread};
use super::measure::{Measurement, Sample};
use crate::recorder::histogram;
use crate::report::{Figure, Measured};
use crate::text;

/// The result of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    /// Path in the JSON of a row, keys separated by dots.
    key: String,
    /// Name of the measurement.
    name: String,
    json: Value,
    /// Heading of the table that shows the result, with the unit; empty if no table shows it.
    heading: &'static str,
    text: String,
    /// The figure that is compared between repeated runs, and the suffix that the figure's name adds to the name of the
    /// measurement.
    figure: Option<(f64, &'static str)>,
    /// Operations per second of the slowest and of the fastest slice, if the result is a rate.
    rates: Option<[f64; 2]>,
}

impl Cell {
    /// Creates a cell that only JSON contains, and no table.
    pub(super) fn value(key: &str, value: impl Into<Value>) -> Self {
        Self {
            key: key.to_owned(),
            name: String::new(),
            json: value.into(),
            heading: "",
            text: String::new(),
            figure: None,
            rates: None,
        }
    }

    fn latency(key: &str, name: &str, it: Latency) -> Self {
        let [p50, p99] = [it.p50_ns, it.p99_ns].map(text::micros);
        Self {
            name: name.to_owned(),
            heading: "latencies, us: median / 99th percentile",
            text: format!("{p50} / {p99}"),
            figure: Some((it.p50_ns as f64, " p50, ns")),
            ..Self::value(key, json!(it))
        }
    }

    fn rate(key: &str, name: &str, it: Rate) -> Self {
        Self {
            name: name.to_owned(),
            heading: "rates, million/s",
            text: text::millions(it.per_s),
            figure: Some((it.per_s, "")),
            rates: Some([it.least, it.most]),
            ..Self::value(key, json!(it))
        }
    }

    /// Creates a cell of gigabytes (10⁹ bytes) per second.
    pub(super) fn gb_per_s(key: &str, name: &str, gb_per_s: f64) -> Self {
        Self {
            name: name.to_owned(),
            heading: "GB/s",
            text: text::significant(gb_per_s),
            figure: Some((gb_per_s, ", GB/s")),
            ..Self::value(key, gb_per_s)
        }
    }

    /// Creates a cell of figures of several turns.
    pub(super) fn turns(key: &str, name: &str, unit: Unit, turns: Vec<f64>) -> Self {
        let it = Spread::of(turns);
        let show = |figure| match unit {
            Unit::Nanos => text::significant(figure / 1e3),
            Unit::PerSecond => format!("{figure:.0}"),
            Unit::Ratio => format!("{figure:.3}"),
        };
        let [median, least, most] = [it.median, it.least, it.most].map(show);
        let (heading, suffix) = match unit {
            Unit::Nanos => ("latencies, us: median (least to most)", ", ns"),
            Unit::PerSecond => ("rates, per second: median (least to most)", ""),
            Unit::Ratio => ("ratios: median (least to most)", ""),
        };
        Self {
            name: name.to_owned(),
            heading,
            text: format!("{median} ({least} to {most})"),
            figure: Some((it.median, suffix)),
            rates: (unit == Unit::PerSecond).then_some([it.least, it.most]),
            ..Self::value(key, json!(it))
        }
    }

    /// Creates a cell of the results of all time slices of one measurement.
    fn slices(key: &str, name: &str, slices: Vec<Sample>) -> Self {
        let (mut latencies, mut rates) = (histogram(), Vec::new());
        for slice in slices {
            match slice {
                Sample::Latencies(more) => latencies
                    .add(more)
                    .expect("all histograms of latencies have the same bounds"),
                Sample::Rate(rate) => rates.push(rate),
            }
        }
        match rates.is_empty() {
            true => Self::latency(key, name, Latency::of(&latencies)),
            false => Self::rate(key, name, Rate::of(rates)),
        }
    }
}

/// Unit of figures of several turns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Nanos,
    /// Operations per second.
    PerSecond,
    Ratio,
}

/// The results at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Bytes of an operation.
    pub bytes: usize,
    pub(super) cells: Vec<Cell>,
}

impl Row {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            cells: Vec::new(),
        }
    }

    /// Adds the results of measurements. `samples` contains the results of the time slices of each measurement.
    pub(super) fn add<O>(&mut self, measurements: &[Measurement<O>], samples: Vec<Vec<Sample>>) {
        let measured = measurements.iter().zip(samples);
        let cells = measured.map(|(it, slices)| Cell::slices(&it.key, &it.name, slices));
        self.cells.extend(cells);
    }

    /// Returns the figure of a measurement by its key in JSON. It is a median; that of latencies is in nanoseconds.
    pub fn figure(&self, key: &str) -> Option<f64> {
        let cell = self.cells.iter().find(|cell| cell.key == key)?;
        cell.figure.map(|(value, _)| value)
    }

    /// Returns the figures that are compared between repeated runs.
    fn figures(&self) -> impl Iterator<Item = Figure> {
        self.cells.iter().filter_map(|cell| {
            let (value, suffix) = cell.figure?;
            let name = format!("{} B {}{suffix}", self.bytes, cell.name);
            Some(Figure::rate(name, value, cell.rates))
        })
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut row = json!({ "bytes": self.bytes });
        for Cell { key, json, .. } in &self.cells {
            let place: &mut Value = key.split('.').fold(&mut row, |at, key| &mut at[key]);
            place.clone_from(json);
        }
        row.serialize(to)
    }
}

/// The results of a bench.
#[derive(Clone, Debug, Serialize)]
pub struct MicroReport {
    /// Name of the bench, which is the same for every repeat.
    #[serde(skip)]
    pub(crate) what: &'static str,
    /// The lines that precede the tables.
    #[serde(skip)]
    pub(super) heading: String,
    /// Conditions and options of the measurements.
    #[serde(flatten)]
    pub(super) setup: Value,
    /// A row for each size, or for each size and measure.
    pub rows: Vec<Row>,
}

impl Measured for MicroReport {
    fn what(&self) -> String {
        self.what.to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        self.rows.iter().flat_map(Row::figures).collect()
    }
}

impl MicroReport {
    /// Returns the table of the results under one heading: a line for each measurement, a column for each size.
    fn table(&self, heading: &str) -> Vec<Vec<String>> {
        let sizes = distinct(self.rows.iter().map(|row| row.bytes));
        // The rows with the most measurements determine the order of the lines, because other rows lack some
        // measurements.
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| Reverse(row.cells.len()));
        let cells = rows.into_iter().flat_map(|row| {
            let cells = row.cells.iter().filter(|cell| cell.heading == heading);
            cells.map(|cell| (row.bytes, cell))
        });
        let cells: Vec<(usize, &Cell)> = cells.collect();
        let mut lines = vec![vec!["bytes".to_owned()]];
        lines[0].extend(sizes.iter().map(usize::to_string));
        for name in distinct(cells.iter().map(|(_, cell)| &cell.name)) {
            let mut line = vec![name.clone()];
            for size in &sizes {
                let found = cells.iter().find(|it| it.0 == *size && it.1.name == *name);
                line.push(found.map_or("-".to_owned(), |it| it.1.text.clone()));
            }
            lines.push(line);
        }
        lines
    }
}

/// Returns the items without repetitions, in the order in which they first occur.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

impl fmt::Display for MicroReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.heading)?;
        let cells = self.rows.iter().flat_map(|row| &row.cells);
        let headings = distinct(cells.map(|cell| cell.heading)).into_iter();
        for heading in headings.filter(|heading| !heading.is_empty()) {
            let table = text::table(&self.table(heading), [0; 2]);
            write!(out, "\n  {heading}\n{table}")?;
        }
        Ok(())
    }
}
