//! The result of the platform beside those of other engines, which performed the same requests on the same host.

use std::fmt;

use serde::Serialize;

use super::repeats::{Figure, Measured};
use crate::recorder::kinds;
use crate::text::{decimal, whole};

kinds! {
    /// An engine that performs the requests of a benchmark, too.
    pub enum Engine {
        /// SQLite, in the process of the command.
        Sqlite = "sqlite",
        /// RocksDB, in the process of the command.
        Rocksdb = "rocksdb",
        /// A PostgreSQL server, which the command starts.
        Postgres = "postgres",
    }
}

/// The result of another engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside<R> {
    /// The engine.
    pub engine: Engine,
    /// Its version.
    pub version: String,
    /// The settings that are not its defaults.
    pub settings: Vec<String>,
    /// Number of client threads, each with one request at a time.
    pub threads: u64,
    /// The result.
    pub run: R,
}

/// The result of the platform, and those of other engines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared<R> {
    /// The result of the platform.
    #[serde(flatten)]
    pub run: R,
    /// The results of other engines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Beside<R>>,
    /// Why engines have no result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside_failures: Vec<String>,
}

impl<R: Measured> Measured for Compared<R> {
    fn what(&self) -> String {
        self.run.what()
    }

    fn figures(&self) -> Vec<Figure> {
        self.run.figures()
    }
}

impl<R: Measured + fmt::Display> fmt::Display for Compared<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(out)?;
        if self.beside.is_empty() {
            return Ok(());
        }
        self.write_figures(out)?;
        for it in &self.beside {
            let (engine, version, threads) = (it.engine.name(), &it.version, it.threads);
            writeln!(out, "\n  {engine} {version}, {threads} client threads:")?;
            for setting in &it.settings {
                writeln!(out, "    {setting}")?;
            }
        }
        Ok(())
    }
}

impl<R: Measured> Compared<R> {
    /// Writes a table of the figures of all engines, and how many times the throughput of each the platform has.
    fn write_figures(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "\n  {:<28} {:>12}", "side by side", "farm")?;
        for it in &self.beside {
            write!(out, " {:>12}", it.engine.name())?;
        }
        let of_others: Vec<Vec<Figure>> = self.beside.iter().map(|it| it.run.figures()).collect();
        let value = |figures: &[Figure], name: &str| {
            let found = figures.iter().find(|figure| figure.name == name);
            found.and_then(|figure| figure.value)
        };
        let mut first = true;
        for Figure {
            name, value: ours, ..
        } in self.run.figures()
        {
            let theirs = of_others.iter().map(|figures| value(figures, &name));
            let theirs: Vec<Option<f64>> = theirs.collect();
            if theirs.iter().all(Option::is_none) {
                continue;
            }
            let number = |value: Option<f64>| match value {
                Some(large) if large >= 1000.0 => whole(large),
                value => decimal(value, 2),
            };
            write!(out, "\n  {name:<28} {:>12}", number(ours))?;
            for theirs in &theirs {
                write!(out, " {:>12}", number(*theirs))?;
            }
            if std::mem::take(&mut first) {
                write!(out, "\n  {:<28} {:>12}", "farm / engine", "")?;
                for theirs in &theirs {
                    let times = ours
                        .zip(*theirs)
                        .and_then(|(ours, it)| super::ratio(ours, it));
                    write!(out, " {:>12}", decimal(times, 2))?;
                }
            }
        }
        writeln!(
            out,
            "\n  Workers of farm have many requests in flight, which their latencies include; client threads of the engines \
             have one."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Run(f64, Option<f64>);

    impl Measured for Run {
        fn what(&self) -> String {
            "reads".to_owned()
        }

        fn figures(&self) -> Vec<Figure> {
            let own = Figure::new("own", 1.0);
            let all = [
                Figure::new("ops/s", self.0),
                Figure::new("GET p50, us", self.1),
            ];
            all.into_iter()
                .chain((self.0 > 1e6).then_some(own))
                .collect()
        }
    }

    impl fmt::Display for Run {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            writeln!(out, "{} /s", self.0)
        }
    }

    #[test]
    fn figures_that_other_engines_have_are_side_by_side() {
        let mut all = Compared {
            run: Run(2e6, Some(3.5)),
            beside: Vec::new(),
            beside_failures: Vec::new(),
        };
        assert_eq!(all.to_string(), "2000000 /s\n");
        for (engine, rate) in [(Engine::Sqlite, 5e5), (Engine::Postgres, 40_000.0)] {
            all.beside.push(Beside {
                engine,
                version: "3.4".to_owned(),
                settings: vec!["fsync = off".to_owned()],
                threads: 2,
                run: Run(rate, (engine == Engine::Sqlite).then_some(7.25)),
            });
        }
        let text = all.to_string();
        let lines: Vec<&str> = text.lines().skip(2).map(str::trim).collect();
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(
            words(0),
            ["side", "by", "side", "farm", "sqlite", "postgres"]
        );
        assert_eq!(words(1), ["ops/s", "2,000,000", "500,000", "40,000"]);
        assert_eq!(words(2), ["farm", "/", "engine", "4.00", "50.00"]);
        assert_eq!(words(3), ["GET", "p50,", "us", "3.50", "7.25", "-"]);
        assert_eq!(lines[6], "sqlite 3.4, 2 client threads:");
        assert_eq!(lines[7], "fsync = off");
    }
}
