//! Commits by time, and what they say about a loss.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The length of a bin.
pub(super) const BIN: Duration = Duration::from_micros(500);
/// Number of bins of the window in which commits are counted to find out whether service is back.
const WINDOW: usize = 20;
/// Service is back at the first window whose rate is at least this share of the later rate.
const IS_BACK: f64 = 0.8;

/// Returns the time of a clock that all processes of this host share, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The commits of the machines that are left, by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// Number of commits that were reported in each bin.
    pub(super) bins: Vec<u64>,
    /// When the signal was sent, since the begin of the first bin.
    pub(super) signal: Duration,
    /// When the killed machine was started again, when it was a member, and when all copies were full, if it was.
    pub(super) returned: Option<[Duration; 3]>,
    /// How long transactions took before the signal, and while copies were filled.
    pub(super) latency: [Latency; 2],
}

/// How long transactions took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The median, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 were not longer, in microseconds.
    pub p99_us: f64,
}

/// What a curve says about a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pause {
    /// Commits per second before the signal.
    pub(super) before_per_s: f64,
    /// Commits per second in the second half of the time after the signal.
    pub(super) after_per_s: f64,
    /// From the signal until the rate is 80 % of the later one.
    pub(super) without_service: Duration,
    /// Longest time without any commit after the signal.
    pub(super) without_commit: Duration,
}

impl Curve {
    /// Adds the commits of a machine.
    pub(super) fn add(&mut self, bins: &[u64]) {
        self.bins.resize(self.bins.len().max(bins.len()), 0);
        for (sum, more) in self.bins.iter_mut().zip(bins) {
            *sum += more;
        }
    }

    /// Returns the bin of a time.
    fn bin(at: Duration) -> usize {
        (at.as_nanos() / BIN.as_nanos()) as usize
    }

    /// Evaluates the part of the curve from its begin to `after` after the signal; `None` if service does not come back, or if the curve is
    /// shorter.
    pub(super) fn pause(&self, after: Duration) -> Option<Pause> {
        let signal = Self::bin(self.signal);
        let bins = self.bins.get(..Self::bin(self.signal + after))?;
        let (before, since) = bins.split_at(signal);
        // The first bins are those of the start.
        let before_per_s = per_s(&before[before.len() / 2..]);
        let after_per_s = per_s(&since[since.len() / 2..]);
        if after_per_s == 0.0 {
            return None;
        }
        let enough = (after_per_s * (BIN * WINDOW as u32).as_secs_f64() * IS_BACK).max(1.0);
        let is_back = |window: &[u64]| window.iter().sum::<u64>() as f64 >= enough;
        let back = since.windows(WINDOW).position(is_back)?;
        let back = BIN * (signal + back) as u32;
        Some(Pause {
            before_per_s,
            after_per_s,
            without_service: back.saturating_sub(self.signal),
            without_commit: longest_gap(since),
        })
    }

    /// Returns commits per second in a part of the curve, and the longest time in it without any commit.
    pub(super) fn between(&self, from: Duration, to: Duration) -> (f64, Duration) {
        let bins = self
            .bins
            .get(Self::bin(from)..Self::bin(to).max(Self::bin(from) + 1));
        let bins = bins.unwrap_or_default();
        (per_s(bins), longest_gap(bins))
    }

    /// Returns commits per second by milliseconds from the signal, in steps of one millisecond.
    pub(super) fn around_signal(&self, from_ms: i64, to_ms: i64) -> Vec<(i64, f64)> {
        const STEP: i64 = 2;
        let signal = Self::bin(self.signal) as i64;
        let rate = |ms: i64| {
            let first = usize::try_from(signal + ms * STEP).ok()?;
            let bins = self.bins.get(first..first + STEP as usize)?;
            Some((ms, per_s(bins)))
        };
        (from_ms..to_ms).filter_map(rate).collect()
    }
}

fn per_s(bins: &[u64]) -> f64 {
    let time = BIN.as_secs_f64() * bins.len().max(1) as f64;
    bins.iter().sum::<u64>() as f64 / time
}

/// Returns the longest time without any commit.
fn longest_gap(bins: &[u64]) -> Duration {
    let gaps = bins.split(|commits| *commits > 0);
    BIN * gaps.map(<[u64]>::len).max().unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a curve with the signal after 100 bins, and then `rest`.
    fn curve(rest: &[(usize, u64)]) -> Curve {
        let mut bins = vec![30; 100];
        for (count, commits) in rest {
            bins.extend(vec![*commits; *count]);
        }
        Curve {
            bins,
            signal: BIN * 100,
            ..Curve::default()
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_pause_ends_when_most_of_the_rate_is_back() {
        // 30 ms of nothing, 20 ms of a tenth, then all.
        let pause = curve(&[(60, 0), (40, 2), (1900, 20)]);
        let pause = pause.pause(ms(1000)).unwrap();
        assert_eq!(pause.before_per_s, 60_000.0);
        assert_eq!(pause.after_per_s, 40_000.0);
        assert_eq!(pause.without_commit, ms(30));
        // 16 bins of 20 and 4 of 2 are 80 % of 400; 15 and 5 are not.
        assert_eq!(pause.without_service, ms(50) - BIN * 4);
    }

    #[test]
    fn commits_in_flight_at_the_signal_are_not_the_end_of_the_pause() {
        let pause = curve(&[(2, 20), (98, 0), (1900, 20)]);
        let pause = pause.pause(ms(1000)).unwrap();
        assert_eq!(pause.without_service, ms(50) - BIN * 4);
    }

    #[test]
    fn without_a_pause_there_is_none() {
        let pause = curve(&[(2000, 20)]).pause(ms(1000)).unwrap();
        assert_eq!(pause.without_service, Duration::ZERO);
        assert_eq!(pause.without_commit, Duration::ZERO);
    }

    #[test]
    fn service_that_does_not_come_back_is_no_pause() {
        assert_eq!(curve(&[(2000, 0)]).pause(ms(1000)), None);
        assert_eq!(curve(&[(1000, 20)]).pause(ms(1000)), None, "it ends before");
        // Commits that were in flight end, and then there is nothing.
        assert_eq!(curve(&[(3, 20), (1997, 0)]).pause(ms(1000)), None);
    }

    #[test]
    fn a_part_has_a_rate_and_a_gap() {
        let curve = curve(&[(10, 0), (10, 20)]);
        let (per_s, gap) = curve.between(BIN * 100, BIN * 120);
        assert_eq!((per_s, gap), (20_000.0, BIN * 10));
        assert_eq!(curve.between(BIN * 500, BIN * 600).0, 0.0);
    }

    #[test]
    fn rates_are_given_from_the_signal() {
        let mut curve = curve(&[(4, 0)]);
        curve.add(&[1]);
        assert_eq!(curve.bins[..2], [31, 30]);
        let expected = [(-1, 60_000.0), (0, 0.0), (1, 0.0)];
        assert_eq!(curve.around_signal(-1, 10), expected);
    }
}
