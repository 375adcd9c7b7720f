//! Scenarios: the workload and the faults of a run.

use std::fmt;
use std::str::FromStr;

use farm_check::workload::Kind;

/// The faults of a run, in addition to slow fabrics and paused processors, which every run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Nothing is lost: the run must end, and return every resource.
    None,
    /// A machine is lost, a connection breaks, or the processors of a machine stop for good. There are no replicas, so
    /// the cluster ends; the history until then must be correct.
    Loss,
    /// Processes of machines are killed, and the others, which have copies of their regions, go on: the run must end, and return every
    /// resource.
    Survived,
    /// As [`Trouble::Survived`], on a fabric on which leases end by time, and nothing proves the end of a process: the network is cut, too.
    Parted,
    /// As [`Trouble::Survived`], and all processes are killed, several times. The next ones go on with what they have kept.
    Restarted,
}

impl Trouble {
    /// Returns whether the cluster goes on after losses.
    pub fn is_survived(self) -> bool {
        matches!(self, Self::Survived | Self::Parted | Self::Restarted)
    }
}

/// The workload and the faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scenario {
    /// The workload.
    pub kind: Kind,
    /// The faults.
    pub trouble: Trouble,
}

impl Scenario {
    /// Returns all scenarios.
    pub fn all() -> Vec<Scenario> {
        let kinds = |trouble| {
            Kind::ALL
                .into_iter()
                .map(move |kind| Scenario { kind, trouble })
        };
        let all = kinds(Trouble::None).chain(kinds(Trouble::Loss));
        let all = all.chain(kinds(Trouble::Survived));
        let all = all.chain(kinds(Trouble::Parted));
        all.chain(kinds(Trouble::Restarted)).collect()
    }

    /// Returns the scenario of a seed in a sweep over all scenarios. Three of eight seeds have no faults.
    pub fn of_seed(seed: u64) -> Scenario {
        let kinds = Kind::ALL;
        let kind = kinds[(seed % kinds.len() as u64) as usize];
        let trouble = match seed / kinds.len() as u64 % 8 {
            3 => Trouble::Loss,
            4 => Trouble::Parted,
            5 => Trouble::Restarted,
            6 | 7 => Trouble::Survived,
            _ => Trouble::None,
        };
        Scenario { kind, trouble }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.trouble {
            Trouble::None => write!(f, "{}", self.kind),
            Trouble::Loss => write!(f, "{}-loss", self.kind),
            Trouble::Survived => write!(f, "{}-survived", self.kind),
            Trouble::Parted => write!(f, "{}-parted", self.kind),
            Trouble::Restarted => write!(f, "{}-restarted", self.kind),
        }
    }
}

/// The error for an unknown scenario name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scenario {name:?}; the scenarios are {}", names().join(", "))]
pub struct NoScenario {
    name: String,
}

fn names() -> Vec<String> {
    Scenario::all().iter().map(Scenario::to_string).collect()
}

impl FromStr for Scenario {
    type Err = NoScenario;

    fn from_str(name: &str) -> Result<Self, NoScenario> {
        let found = Scenario::all()
            .into_iter()
            .find(|scenario| scenario.to_string() == name);
        found.ok_or_else(|| NoScenario { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_parses_from_its_name_and_is_drawn_by_some_seed() {
        for scenario in Scenario::all() {
            assert_eq!(scenario.to_string().parse(), Ok(scenario));
            assert!(
                (0..80).any(|seed| Scenario::of_seed(seed) == scenario),
                "{scenario}"
            );
        }
        let error = "bnak".parse::<Scenario>().unwrap_err().to_string();
        assert!(
            error.contains("bnak") && error.contains("bank-loss"),
            "{error}"
        );
    }
}
