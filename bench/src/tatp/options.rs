//! The options of a run of TATP.

use serde::{Deserialize, Serialize};

use super::transaction::Mix;
use crate::oltp::{OptionsError, check_mix, check_option};

/// The choice of the subscriber of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The distribution of TATP, which prefers some subscribers.
    #[default]
    NonUniform,
    /// A uniform distribution, as in BenchBase and H-Store.
    Uniform,
}

/// A run of TATP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Number of subscribers, P: `s_id` is 1 to P.
    pub subscribers: u32,
    /// Distribution of the subscribers.
    pub choice: Choice,
    /// Shares of the transactions.
    pub mix: Mix,
}

impl Default for Options {
    /// 100,000 subscribers, as in FORD, Smart, and BenchBase at scale 1. FaSST has a million per machine, Motor two
    /// million in total.
    fn default() -> Self {
        Self {
            subscribers: 100_000,
            choice: Choice::default(),
            mix: Mix::default(),
        }
    }
}

impl Options {
    /// Checks that a run with these options is possible.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let wanted = format!("1 to {}", u32::MAX);
        let advice = "give the number of subscribers, 100000 for example";
        let subscribers = self.subscribers;
        check_option(
            subscribers > 0,
            "tatp.subscribers",
            subscribers,
            &wanted,
            advice,
        )?;
        check_mix("tatp.mix", &self.mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_checked() {
        let options: Options =
            serde_json::from_str(r#"{"subscribers": 5, "choice": "uniform"}"#).unwrap();
        assert_eq!(options.mix, Mix::default());
        assert_eq!(options.choice, Choice::Uniform);
        assert_eq!(options.validate(), Ok(()));
        assert_eq!(Options::default().validate(), Ok(()));
        assert!(serde_json::from_str::<Options>(r#"{"subscriber": 5}"#).is_err());

        let none = Options {
            subscribers: 0,
            ..options.clone()
        };
        assert_eq!(
            none.validate().unwrap_err().to_string(),
            "tatp.subscribers = 0 is not 1 to 4294967295; give the number of subscribers, 100000 \
             for example"
        );
        let mut skewed = options;
        skewed.mix.update_location = 15;
        let error = skewed.validate().unwrap_err().to_string();
        assert!(error.contains("not 100 percent in all, but 101"), "{error}");
    }
}
