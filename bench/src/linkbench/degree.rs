//! The number of links of each node.
//!
//! The out-degree of a node depends on its rank alone: the node of rank 0 has the most links. The distribution is that
//! of Facebook's graph as LinkBench publishes it: a table in this file, or the whole one of a `Distribution.dat`.

use std::path::Path;

use super::LinkSpec;
use super::shuffle::Shuffler;
use crate::data::{self, DataError};

/// Seed of the permutation that maps ranks of out-degrees to ids.
pub const LINKS_SEED: i64 = 20_343_988_438_726_021;

/// Percent of all nodes with at most this many links. Between two lines the logarithm of the number depends linearly on
/// the logarithm of the percentage above. This gives 4.94 links per node for a million nodes; the whole distribution
/// has 4.98.
const BUILT_IN: &[(f64, u64)] = &[
    (45.3316, 0),
    (77.4626, 1),
    (86.9581, 2),
    (91.9931, 3),
    (94.4508, 4),
    (95.8281, 5),
    (96.7225, 6),
    (97.7614, 8),
    (98.3280, 10),
    (99.0269, 15),
    (99.3270, 20),
    (99.5569, 30),
    (99.7216, 50),
    (99.8314, 100),
    (99.8851, 200),
    (99.9275, 500),
    (99.9507, 1000),
    (99.9694, 2000),
    (99.9875, 5000),
    (99.99, 6051),
    (99.995, 10000),
    (99.999, 24000),
    (99.9999, 64914),
    (100.0, 961_963),
];

/// The percentage above the last number: of the node with the most links, there is one in 10^11.
const ABOVE_LAST: f64 = 1e-9;

/// The sections of a `Distribution.dat`, in their order. Only the first one is used.
pub const SECTIONS: [&str; 5] = [
    "nlinks",
    "link_nreads",
    "link_nwrites",
    "node_nreads",
    "node_nwrites",
];

/// The distribution of out-degrees.
#[derive(Clone, Debug, PartialEq)]
pub struct Degrees {
    /// Percentages in ascending order, with the number of links that this share of all nodes does not exceed.
    points: Vec<(f64, u64)>,
    /// Whether numbers between two points occur.
    interpolated: bool,
}

impl Default for Degrees {
    /// Returns the distribution of the table in this file.
    fn default() -> Self {
        Self {
            points: BUILT_IN.to_vec(),
            interpolated: true,
        }
    }
}

impl Degrees {
    /// Reads a `Distribution.dat` of LinkBench.
    ///
    /// # Errors
    /// [`DataError`] with the name and the line if the file cannot be read, is incomplete or has invalid lines.
    pub fn load(path: &Path) -> Result<Self, DataError> {
        Self::parse(&path.display().to_string(), &data::read(path)?)
    }

    /// Parses the text of a `Distribution.dat`. `name` is its name in messages.
    ///
    /// # Errors
    /// As [`Degrees::load`].
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, DataError> {
        let text = data::text(name, text, "the Distribution.dat of LinkBench")?;
        let mut sections: Vec<Vec<(f64, u64)>> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let (line, refuse) = (line.trim(), |why: String| {
                Err(DataError(format!("{name}:{}: {why}", at + 1)))
            });
            if line.is_empty() {
                continue;
            }
            let parts: Vec<&str> = line.split_whitespace().collect();
            if let [section] = parts[..] {
                let wanted = SECTIONS.get(sections.len());
                if wanted != Some(&section) {
                    let wanted = wanted.map_or("the end of the file", |wanted| wanted);
                    return refuse(format!(
                        "{section:?} is not the next section of a Distribution.dat of LinkBench, which is {wanted}"
                    ));
                }
                if let Err(why) = ends(&sections) {
                    return refuse(why);
                }
                sections.push(Vec::new());
                continue;
            }
            let point = match parts[..] {
                [value, percent] => value.parse::<u64>().ok().zip(percent.parse::<f64>().ok()),
                _ => None,
            };
            let (Some((value, percent)), Some(points)) = (point, sections.last_mut()) else {
                return refuse(format!(
                    "{line:?} is not a line of a Distribution.dat of LinkBench: a section, or a number of links \
                     and the percentage of nodes with at most that number"
                ));
            };
            let (last_percent, last) = points.last().copied().unwrap_or((0.0, 0));
            let ascends = percent >= last_percent && (points.is_empty() || value > last);
            if !ascends || !(0.0..=100.0 + 1e-6).contains(&percent) {
                return refuse(format!(
                    "{value} and {percent} do not follow {last} and {last_percent}: the numbers and their percentages \
                     must ascend, up to 100"
                ));
            }
            points.push((percent.min(100.0), value));
        }
        let lines = text.lines().count();
        let truncated = |why: &str| Err(DataError(format!("{name}:{lines}: {why}")));
        if let Err(why) = ends(&sections) {
            return truncated(&why);
        }
        if sections.len() < SECTIONS.len() {
            let missing = SECTIONS[sections.len()];
            return truncated(&format!(
                "the file ends without the section {missing}: it is truncated, or not the Distribution.dat of LinkBench"
            ));
        }
        Ok(Self {
            points: sections.swap_remove(0),
            interpolated: false,
        })
    }

    /// Returns the number of links of the node of rank `rank` of `n` nodes.
    pub fn of(&self, rank: u64, n: u64) -> u64 {
        let percent = 100.0 * (1.0 - rank as f64 / n as f64);
        let after = self.points.partition_point(|point| point.0 < percent);
        let (end, most) = self.points[after.min(self.points.len() - 1)];
        match after.checked_sub(1).map(|before| self.points[before]) {
            Some((start, least)) if self.interpolated && most - least > 1 => {
                let above = |percent: f64| (100.0 - percent).max(ABOVE_LAST).ln();
                let share = (above(start) - above(percent)) / (above(start) - above(end));
                let [low, high] = [least, most].map(|links| (links as f64).ln());
                let links = (low + (high - low) * share).exp().ceil() as u64;
                links.clamp(least + 1, most)
            }
            _ => most,
        }
    }
}

/// Checks that the last section ends at 100 percent.
fn ends(sections: &[Vec<(f64, u64)>]) -> Result<(), String> {
    let Some((section, points)) = SECTIONS.iter().zip(sections).next_back() else {
        return Ok(());
    };
    match points.last() {
        Some((percent, _)) if *percent > 99.9999 => Ok(()),
        last => {
            let percent = last.map_or(0.0, |last| last.0);
            Err(format!(
                "the section {section} ends at {percent} percent, and not at 100: the file is truncated"
            ))
        }
    }
}

/// The numbers of links that are loaded, by node and type.
#[derive(Clone, Debug)]
pub struct Links {
    first: u64,
    n: u64,
    types: u64,
    compat: bool,
    degrees: Degrees,
    shuffler: Shuffler,
}

impl Links {
    /// Creates the numbers of the links of a graph.
    pub fn new(spec: &LinkSpec, degrees: Degrees) -> Self {
        let n = spec.nodes();
        Self {
            first: spec.first_id,
            n,
            types: spec.link_types,
            compat: spec.compat,
            degrees,
            shuffler: Shuffler::new(LINKS_SEED, n),
        }
    }

    /// Returns the permutation of ranks of out-degrees to ids, counted from the first id.
    pub fn shuffler(&self) -> &Shuffler {
        &self.shuffler
    }

    /// Returns the number of links of a node.
    pub fn degree(&self, id1: u64) -> u64 {
        self.degrees
            .of(self.shuffler.invert(id1 - self.first), self.n)
    }

    /// Returns the number of links of a node that have type number `link_type`. The reference gives the types too many:
    /// its remainder is the degree minus the quotient. With `compat` this function does, too.
    pub fn of(&self, id1: u64, link_type: u64) -> u64 {
        self.split(self.degree(id1), link_type)
    }

    /// Returns the number of links of a node, of all types.
    pub fn total(&self, id1: u64) -> u64 {
        let degree = self.degree(id1);
        let of_types = (0..self.types).map(|link_type| self.split(degree, link_type));
        of_types.sum()
    }

    fn split(&self, degree: u64, link_type: u64) -> u64 {
        let each = degree / self.types;
        let rest = if self.compat {
            degree - each
        } else {
            degree % self.types
        };
        each + u64::from(link_type < rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file() -> Option<Degrees> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../shared/linkbench/Distribution.dat"
        );
        let path = Path::new(path);
        path.exists().then(|| Degrees::load(path).unwrap())
    }

    fn links(nodes: u64, compat: bool, degrees: Degrees) -> Links {
        let spec = LinkSpec {
            first_id: 1,
            end_id: 1 + nodes,
            compat,
            ..LinkSpec::default()
        };
        Links::new(&spec, degrees)
    }

    /// Returns the numbers of links, and of pairs of a node and a type that have links.
    fn totals(links: &Links) -> (u64, u64) {
        let mut totals = (0, 0);
        for id1 in links.first..links.first + links.n {
            let degree = links.degree(id1);
            let of_types = [0, 1].map(|link_type| links.split(degree, link_type));
            totals.0 += of_types.iter().sum::<u64>();
            totals.1 += of_types.iter().filter(|count| **count > 0).count() as u64;
        }
        totals
    }

    #[test]
    fn the_loads_are_those_of_the_reference() {
        let Some(degrees) = of_file() else {
            return;
        };
        let million = links(1_000_000, true, degrees.clone());
        assert_eq!(totals(&million), (5_249_370, 772_059));
        for (rank, id1, degree) in [
            (0, 389_121, 961_963),
            (1, 512_002, 64_914),
            (2, 686_083, 48_203),
            (9, 728_074, 25_243),
            (99, 542_820, 6_104),
            (999, 574_440, 265),
        ] {
            assert_eq!(1 + million.shuffler().permute(rank), id1);
            assert_eq!(million.degree(id1), degree);
        }
        assert_eq!(million.of(389_121, 0), 480_982);
        for (id1, degree, of_types) in [
            (1, 0, [0, 0]),
            (2, 1, [1, 0]),
            (500_000, 3, [2, 2]),
            (763_881, 264, [133, 133]),
        ] {
            assert_eq!(million.degree(id1), degree);
            assert_eq!([0, 1].map(|link_type| million.of(id1, link_type)), of_types);
        }
        // Every link has one type if the degree is divided as the benchmark describes it.
        let described = totals(&links(1_000_000, false, degrees));
        assert_eq!(described, (4_975_697, 772_059));
    }

    #[test]
    fn the_table_of_this_file_is_close_to_the_whole_distribution() {
        let (links, counts) = totals(&links(1_000_000, false, Degrees::default()));
        assert_eq!((links, counts), (4_938_479, 772_060));
        let degrees = Degrees::default();
        for (percent, wanted) in [(45.0, 0), (77.0, 1), (90.0, 3), (97.0, 7), (99.8, 77)] {
            let rank = ((100.0 - percent) * 10_000.0) as u64;
            let found = degrees.of(rank, 1_000_000);
            assert!(
                found.abs_diff(wanted) <= wanted / 10,
                "{percent}: {found}, not {wanted}"
            );
        }
        assert_eq!(degrees.of(0, 10), 961_963);
    }

    #[test]
    fn other_files_are_refused_with_name_and_line() {
        let good = SECTIONS.map(|section| format!("{section}\n0 40.5\n3 99.0\n7 100.0\n"));
        let good = good.concat();
        let parsed = Degrees::parse("x", good.as_bytes()).unwrap();
        assert_eq!(
            (parsed.of(0, 10), parsed.of(5, 10), parsed.of(9, 10)),
            (7, 3, 0)
        );
        let why = |text: &[u8]| Degrees::parse("x", text).unwrap_err().to_string();
        for (from, to, words) in [
            ("3 99.0", "3 39.0", "x:3: 3 and 39 do not follow 0 and 40.5"),
            ("3 99.0", "0 99.0", "x:3: 0 and 99 do not follow"),
            ("7 100.0", "7 101.0", "x:4: 7 and 101"),
            (
                "7 100.0\n",
                "",
                "x:4: the section nlinks ends at 99 percent",
            ),
            ("3 99.0", "3 nan", "x:3: 3 and NaN"),
            ("3 99.0", "3,99.0 x", "x:3: \"3,99.0 x\" is not a line"),
            ("nlinks", "reads", "x:1: \"reads\" is not the next section"),
            ("nlinks\n", "", "x:1: \"0 40.5\" is not a line"),
            (
                "node_nwrites\n0 40.5\n3 99.0\n7 100.0\n",
                "",
                "x:16: the file ends without the section node_nwrites",
            ),
        ] {
            let text = good.replacen(from, to, 1);
            assert!(
                why(text.as_bytes()).starts_with(words),
                "{}",
                why(text.as_bytes())
            );
        }
        assert!(why(b"").contains("without the section nlinks"));
        assert!(why(b"nlinks\n\xff\xfe").starts_with("x:2: the file is not text"));
        let more = format!("{good}more\n");
        assert!(why(more.as_bytes()).contains("the end of the file"));
        let absent = Degrees::load(Path::new("/no/such"))
            .unwrap_err()
            .to_string();
        assert!(absent.contains("cannot read /no/such"), "{absent}");
    }
}
