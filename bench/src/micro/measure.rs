//! The description of measurements, and their repetition in time slices.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::recorder::histogram;

/// Callback that receives a description of the next measurement.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// A measurement: its names, and the operation that is measured.
pub(super) struct Measurement<O> {
    /// Path of the result in the JSON of a row, keys separated by dots.
    pub(super) key: String,
    /// Name of the figure in the report; that of a rate includes its unit.
    pub(super) name: String,
    /// The operation, which is repeated for the time of a slice.
    pub(super) operation: O,
}

impl<O> Measurement<O> {
    pub(super) fn new(key: impl Into<String>, name: impl Into<String>, operation: O) -> Self {
        Self {
            key: key.into(),
            name: name.into(),
            operation,
        }
    }
}

/// One slice of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Slice {
    /// Bytes of an operation.
    pub(super) bytes: usize,
    /// Number of operations in flight, if a rate is measured.
    pub(super) in_flight: usize,
    /// Time of the slice.
    pub(super) duration: Duration,
}

/// The result of one slice.
pub(super) enum Sample {
    /// The latency of each operation.
    Latencies(Histogram<u64>),
    /// Operations per second.
    Rate(f64),
}

/// Runs each variant once in each turn. Every second turn runs the variants in reverse order. Returns, for each
/// variant, the results of all turns.
pub(super) fn in_turns<V, T>(
    variants: &[V],
    turns: usize,
    mut run: impl FnMut(&V) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = variants.iter().map(|_| Vec::with_capacity(turns)).collect();
    for turn in 0..turns {
        for place in 0..variants.len() {
            let index = match turn % 2 {
                0 => place,
                _ => variants.len() - 1 - place,
            };
            results[index].push(run(&variants[index])?);
        }
    }
    Ok(results)
}

/// Times one operation after another, for the duration of a slice.
#[inline]
pub(super) fn latencies(
    duration: Duration,
    mut operation: impl FnMut() -> Result<()>,
) -> Result<Sample> {
    let mut latencies = histogram();
    let mut before = Instant::now();
    let until = before + duration;
    while before < until {
        operation()?;
        let now = Instant::now();
        let nanos = (now - before).as_nanos() as u64;
        latencies.saturating_record(nanos.max(1));
        before = now;
    }
    Ok(Sample::Latencies(latencies))
}

/// Repeats a chunk of operations for at least `duration`, and returns the operations per second. `chunk` returns the
/// number of its operations.
pub(super) fn rate_of(duration: Duration, mut chunk: impl FnMut() -> Result<u64>) -> Result<f64> {
    let began = Instant::now();
    let mut done = 0;
    loop {
        done += chunk()?;
        let elapsed = began.elapsed();
        if elapsed >= duration {
            return Ok(done as f64 / elapsed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_turn_is_in_the_reverse_order() {
        let mut order = String::new();
        let results = in_turns(&['a', 'b', 'c'], 3, |variant| {
            order.push(*variant);
            Ok(order.len())
        });
        assert_eq!(order, "abccbaabc");
        assert_eq!(results.unwrap(), [[1, 6, 7], [2, 5, 8], [3, 4, 9]]);
    }
}
