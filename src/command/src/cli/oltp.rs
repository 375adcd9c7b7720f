//! Options of `farm tatp` and `farm smallbank`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use farm_core::config::{Config, ConfigError};
use farm_txn::BackoffConfig;

use super::{ClusterArgs, RepeatArgs, key_value, seconds, seconds_or_none};

/// Options of `farm tatp`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
What is said later counts: defaults, the file of --properties, -p, --mix, then the options. A file of
properties is TOML, or JSON if its name ends so, and has the names that -p has: subscribers, choice, and
a section mix. The shares of a mix add up to 100. --mix gives none to those that it does not name; a
section mix and -p mix.NAME leave them as they were.

A row that is not there is an outcome and no error: transactions count as executed, those that found
what they need as committed. When all have ended every subscriber's rows are looked at, and every table
is walked.

Examples:
  farm tatp
  farm tatp --subscribers 1000000 --choice uniform --duration 30 --json tatp.json
  farm tatp --mix update_location=50,get_subscriber_data=50
  farm tatp --machines 1 -p mix.get_access_data=33 -p mix.update_location=16"
)]
pub(crate) struct TatpArgs {
    #[command(flatten)]
    pub(crate) common: OltpArgs,

    /// Subscribers in all; 100000 unless given.
    #[arg(long, value_name = "N")]
    pub(crate) subscribers: Option<String>,

    /// How a transaction's subscriber is chosen: non_uniform, as TATP has it, or uniform.
    #[arg(long, value_name = "NAME")]
    pub(crate) choice: Option<String>,
}

/// Options of `farm smallbank`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
What is said later counts: defaults, the file of --properties, -p, --mix, then the options. A file of
properties is TOML, or JSON if its name ends so, and has the names that -p has: accounts, hot_accounts,
hot_percent, initial_cents, savings_rule, and a section mix. The shares of a mix add up to 100. --mix
gives none to those that it does not name; a section mix and -p mix.NAME leave them as they were.

When all transactions have ended the balances of all accounts are read, and have to be what was loaded
and what committed transactions added.

Examples:
  farm smallbank
  farm smallbank --accounts 1000000 --hot-percent 0 --duration 30 --json bank.json
  farm smallbank --mix balance=100
  farm smallbank --machines 1 --savings-rule withdraw"
)]
pub(crate) struct SmallbankArgs {
    #[command(flatten)]
    pub(crate) common: OltpArgs,

    /// Accounts in all; 100000 unless given.
    #[arg(long, value_name = "N")]
    pub(crate) accounts: Option<String>,

    /// The first accounts are hot, so many; 4 % of all unless given.
    #[arg(long, value_name = "N")]
    pub(crate) hot_accounts: Option<String>,

    /// Percent of transactions that are on hot accounts; 90 unless given.
    #[arg(long, value_name = "N")]
    pub(crate) hot_percent: Option<String>,

    /// What each savings and each checking account begins with, in cents.
    #[arg(long, value_name = "N")]
    pub(crate) initial_cents: Option<String>,

    /// What TransactSavings does: deposit, or withdraw.
    #[arg(long, value_name = "NAME")]
    pub(crate) savings_rule: Option<String>,
}

/// Options that benchmarks of transactions have in common.
#[derive(Debug, Args)]
pub(crate) struct OltpArgs {
    /// A file of the benchmark's properties, TOML or JSON.
    #[arg(short = 'P', long = "properties", value_name = "FILE")]
    pub(crate) property_file: Option<PathBuf>,

    /// A property of the benchmark; may be repeated.
    #[arg(short = 'p', long = "property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) properties: Vec<(String, String)>,

    /// The shares of the transactions, in percent; those that are not named get none.
    #[arg(long, value_name = "NAME=N,NAME=N…", value_delimiter = ',', value_parser = key_value)]
    pub(crate) mix: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Most transactions in flight on every worker, transactions.concurrency of the configuration unless given;
    /// conflicts make them fewer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,

    /// Parts of the conflict avoidance to switch off, to measure what each is worth: see docs of farm_txn's
    /// BackoffConfig.
    #[arg(long, value_name = "PART,PART…", value_delimiter = ',', value_parser = BackoffConfig::PARTS)]
    pub(crate) without: Vec<String>,

    /// How long it is measured; 10 unless given.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// How long it runs before it is measured; 1 unless given.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none)]
    pub(crate) warmup: Option<Duration>,

    /// The neighbourhood H of the tables: 2, 4, 6, 8 or 12.
    #[arg(long, value_name = "H")]
    pub(crate) neighbourhood: Option<String>,

    /// The share of slots that are full after loading, above 0 and at most 1.
    #[arg(long, value_name = "X")]
    pub(crate) occupancy: Option<String>,

    /// Seed of the population and of every choice; the same seed draws the same transactions.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// Where the results are written as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl OltpArgs {
    /// The configuration for tables whose longest rows have so many bytes, checked.
    pub(crate) fn configure(&self, row_bytes: usize) -> Result<Config, ConfigError> {
        let mut config = self.cluster.config.load()?;
        config.set_by("the benchmark", "table.value_bytes", &row_bytes.to_string())?;
        let keys = [
            (
                "--neighbourhood",
                "table.neighbourhood",
                &self.neighbourhood,
            ),
            ("--occupancy", "table.occupancy", &self.occupancy),
        ];
        self.cluster.configure(&mut config, &keys)?;
        Ok(config)
    }
}
