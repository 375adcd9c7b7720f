//! The results of kills.

use std::fmt;
use std::time::Duration;

use farm_core::config::Config;
use farm_core::ids::MachineId;
use serde::Serialize;

use super::LossOptions;
use super::curve::{Curve, Latency, Pause};
use crate::report::{Figure, Measured};
use crate::text::grouped;

/// The part of a curve that is in results, in milliseconds from the signal. If machines are stopped, a lease longer.
const SHOWN_MS: [i64; 2] = [-100, 400];

/// What was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Killed {
    /// A machine with memory that does not manage the configuration.
    Machine,
    /// The manager of the configuration.
    Manager,
    /// A machine without memory.
    Program,
}

impl Killed {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Machine, Self::Manager, Self::Program];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "a machine",
            Self::Manager => "the manager",
            Self::Program => "a program without memory",
        }
    }
}

/// One kill.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kill {
    /// The machine.
    pub machine: u16,
    /// What it was.
    pub killed: Killed,
    /// Milliseconds from the signal until the others commit 80 % of their later rate.
    pub without_service_ms: f64,
    /// Longest time in milliseconds without any commit after the signal.
    pub without_commit_ms: f64,
    /// Commits per second of the machines that are left, before the signal.
    pub before_per_s: f64,
    /// Their commits per second in the second half of the observed time.
    pub after_per_s: f64,
    /// Their commits per second in each millisecond, by milliseconds from the signal.
    pub per_s: Vec<(i64, f64)>,
    /// How it came back, if it has memory.
    pub returned: Option<Returned>,
}

/// The return of a machine with memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Returned {
    /// Milliseconds from its start until it was a member.
    pub joined_ms: f64,
    /// Milliseconds from then until all copies were full.
    pub filled_ms: f64,
    /// Bytes of the further objects that it has copied meanwhile, those of all machines.
    pub bytes: u64,
    /// Commits per second of the others meanwhile.
    pub per_s: f64,
    /// Longest time in milliseconds without any commit of the others, from its start until all copies were full.
    pub without_commit_ms: f64,
    /// How long transactions of the others took before the signal, and while copies were filled.
    pub latency: [Latency; 2],
}

impl Returned {
    pub(super) fn new(
        bytes: u64,
        [started, joined, full]: [Duration; 3],
        latency: [Latency; 2],
        curve: &Curve,
    ) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (_, gap) = curve.between(started, full);
        Self {
            joined_ms: ms(joined - started),
            filled_ms: ms(full - joined),
            bytes,
            per_s: curve.between(joined, full).0,
            without_commit_ms: ms(gap),
            latency,
        }
    }
}

impl Kill {
    pub(super) fn new(
        machine: MachineId,
        killed: Killed,
        (pause, returned): (&Pause, Option<Returned>),
        (curve, stopped_lease_ms): (&Curve, Option<u32>),
    ) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let [from, to] = SHOWN_MS;
        let lease = stopped_lease_ms.map_or(0, i64::from);
        Self {
            machine: machine.get(),
            killed,
            without_service_ms: ms(pause.without_service),
            without_commit_ms: ms(pause.without_commit),
            before_per_s: pause.before_per_s,
            after_per_s: pause.after_per_s,
            per_s: curve.around_signal(from, to + lease),
            returned,
        }
    }
}

/// Percentiles of times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The median.
    pub p50: f64,
    /// 90 of 100 are not longer.
    pub p90: f64,
    /// 99 of 100 are not longer.
    pub p99: f64,
    /// The longest.
    pub most: f64,
}

impl Times {
    /// Returns the percentiles; `None` of no times.
    pub fn of(times: impl Iterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        let rank = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
        (!times.is_empty()).then(|| Self {
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            most: rank(100),
        })
    }
}

/// The result of kills of one configuration.
#[derive(Clone, Debug, Serialize)]
pub struct LossReport {
    /// Number of machines.
    pub machines: usize,
    /// Number of copies of each region.
    pub copies: usize,
    /// Number of transactions in flight on each worker.
    pub in_flight: usize,
    /// The time of a lease in milliseconds, if machines were stopped, not killed.
    pub stopped_lease_ms: Option<u32>,
    /// Seconds that were observed after each signal.
    pub after_s: f64,
    /// Time without service after kills of each kind that there was.
    pub without_service: Vec<(Killed, Times)>,
    /// All kills, in their order.
    pub kills: Vec<Kill>,
}

impl LossReport {
    pub(super) fn new(config: &Config, options: &LossOptions, kills: Vec<Kill>) -> Self {
        let times = |killed: Killed| {
            let kills = kills.iter().filter(|kill| kill.killed == killed);
            let times = Times::of(kills.map(|kill| kill.without_service_ms))?;
            Some((killed, times))
        };
        Self {
            machines: config.machines.len(),
            copies: config.replicas(),
            in_flight: options.in_flight,
            stopped_lease_ms: options.stopped_lease_ms(config),
            after_s: options.after.as_secs_f64(),
            without_service: Killed::ALL.into_iter().filter_map(times).collect(),
            kills,
        }
    }

    /// Returns what was done to the machines.
    pub(super) fn done(&self) -> &'static str {
        match self.stopped_lease_ms {
            Some(_) => "stopped",
            None => "killed",
        }
    }

    /// Returns the kills of a kind, by their times without service.
    pub(super) fn sorted(&self, killed: Killed) -> Vec<&Kill> {
        let kills = self.kills.iter().filter(|kill| kill.killed == killed);
        let mut kills: Vec<&Kill> = kills.collect();
        kills.sort_by(|one, other| one.without_service_ms.total_cmp(&other.without_service_ms));
        kills
    }

    /// Shows how the machines with memory came back, if any did.
    fn show_returned(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let returned = self.kills.iter().filter_map(|kill| {
            let returned = kill.returned?;
            Some((returned, kill.after_per_s))
        });
        let returned: Vec<(Returned, f64)> = returned.collect();
        let times = |time: fn(&Returned) -> f64| Times::of(returned.iter().map(|one| time(&one.0)));
        let (Some(joined), Some(filled)) = (times(|one| one.joined_ms), times(|one| one.filled_ms))
        else {
            return Ok(());
        };
        let mean = |figure: &dyn Fn(&(Returned, f64)) -> f64| {
            returned.iter().map(figure).sum::<f64>() / returned.len() as f64
        };
        writeln!(
            f,
            "  came back: a member after {:.0} ms (median; most {:.0}), all copies full {:.0} ms later (most {:.0})",
            joined.p50, joined.most, filled.p50, filled.most
        )?;
        let rate = mean(&|one| one.0.bytes as f64 / one.0.filled_ms / 1e3);
        let share = mean(&|one| one.0.per_s / one.1.max(1.0)) * 100.0;
        let gap = returned.iter().map(|one| one.0.without_commit_ms);
        writeln!(
            f,
            "    copied {rate:.0} MB/s; the others committed {share:.0} % of their rate meanwhile; longest time without any commit: {:.1} ms",
            gap.fold(0.0, f64::max)
        )?;
        let median = |of: &dyn Fn(&Returned) -> f64| {
            let times = Times::of(returned.iter().map(|one| of(&one.0)));
            times.map_or(0.0, |times| times.p50)
        };
        let [before, filling] = [0, 1].map(|at| {
            let p50 = median(&|one| one.latency[at].p50_us);
            (p50, median(&|one| one.latency[at].p99_us))
        });
        writeln!(
            f,
            "    a transaction of the others took {:.0} us meanwhile (median), 99 % at most {:.0} us; before the signal {:.0} and {:.0} us",
            filling.0, filling.1, before.0, before.1
        )
    }

    /// Returns the mean of a figure of all kills.
    fn mean(&self, figure: impl Fn(&Kill) -> f64) -> u64 {
        let sum: f64 = self.kills.iter().map(figure).sum();
        (sum / self.kills.len().max(1) as f64).round() as u64
    }
}

impl Measured for LossReport {
    fn what(&self) -> String {
        "losses".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let of = |(killed, times): &(Killed, Times)| {
            let figure = |what: &str, ms: f64| {
                Figure::new(format!("{} {}, {what} ms", killed.name(), self.done()), ms)
            };
            [figure("p50", times.p50), figure("p99", times.p99)]
        };
        self.without_service.iter().flat_map(of).collect()
    }
}

impl fmt::Display for LossReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {} machines, {} copies, {} transactions in flight on each worker; {} {}, {} s observed after each",
            self.machines,
            self.copies,
            self.in_flight,
            self.kills.len(),
            self.done(),
            self.after_s
        )?;
        if let Some(lease) = self.stopped_lease_ms {
            writeln!(
                f,
                "  machines are stopped (SIGSTOP), not killed; a lease is {lease} ms"
            )?;
        }
        writeln!(
            f,
            "  time without service, ms     number   median     90 %     99 %     most"
        )?;
        for (killed, times) in &self.without_service {
            let (kills, who) = (self.sorted(*killed).len(), killed.name());
            let Times {
                p50,
                p90,
                p99,
                most,
            } = times;
            writeln!(
                f,
                "    {who:<25} {kills:>7} {p50:>8.1} {p90:>8.1} {p99:>8.1} {most:>8.1}"
            )?;
        }
        writeln!(
            f,
            "    FaRM'15, 90 machines, leases of 10 ms: median 50, all under 200; the manager about 110"
        )?;
        let longest = self.kills.iter().map(|kill| kill.without_commit_ms);
        writeln!(
            f,
            "  longest time without any commit: {:.1} ms",
            longest.fold(0.0, f64::max)
        )?;
        self.show_returned(f)?;
        write!(
            f,
            "  commits of the machines that are left: {}/s before, {}/s later; no money is missing",
            grouped(self.mean(|kill| kill.before_per_s)),
            grouped(self.mean(|kill| kill.after_per_s))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        assert_eq!(Times::of([].into_iter()), None);
        let times = Times::of((1..=100).rev().map(f64::from)).unwrap();
        let expected = Times {
            p50: 50.0,
            p90: 90.0,
            p99: 99.0,
            most: 100.0,
        };
        assert_eq!(times, expected);
        let one = Times::of([7.0].into_iter()).unwrap();
        assert_eq!((one.p50, one.most), (7.0, 7.0));
    }
}
