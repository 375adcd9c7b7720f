//! Options of `farm tatp` and `farm smallbank`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use farm_core::config::{Config, ConfigError};
use farm_txn::BackoffConfig;

use super::{ClusterArgs, LosingArgs, RepeatArgs, key_value, seconds, seconds_or_none};

/// Options of `farm tatp`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Precedence, lowest first: defaults, the file of --properties, -p, --mix, the other options. The file is
JSON if its name ends in .json, otherwise TOML. Its keys are those of -p: subscribers, choice, and a
section mix. The shares of the mix must add up to 100. --mix sets the shares of transactions that it does
not name to 0; a section mix and -p mix.NAME leave them unchanged.

A missing row is a normal outcome, not an error: the transaction counts as executed, but not as
committed. After the run, the command checks the rows of the subscribers (above 100,000 subscribers: all
rows of a sample, and two rows of each other one) and walks every table.

Examples:
  farm tatp
  farm tatp --subscribers 1000000 --choice uniform --duration 30 --json tatp.json
  farm tatp --mix update_location=50,get_subscriber_data=50
  farm tatp --machines 1 -p mix.get_access_data=33 -p mix.update_location=16"
)]
pub(crate) struct TatpArgs {
    #[command(flatten)]
    pub(crate) common: OltpArgs,

    /// Number of subscribers; 100000 by default.
    #[arg(long, value_name = "N")]
    pub(crate) subscribers: Option<String>,

    /// Distribution of the subscribers of transactions: non_uniform, as TATP specifies, or uniform.
    #[arg(long, value_name = "NAME")]
    pub(crate) choice: Option<String>,
}

/// Options of `farm smallbank`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Precedence, lowest first: defaults, the file of --properties, -p, --mix, the other options. The file is
JSON if its name ends in .json, otherwise TOML. Its keys are those of -p: accounts, hot_accounts,
hot_percent, initial_cents, savings_rule, and a section mix. The shares of the mix must add up to 100.
--mix sets the shares of transactions that it does not name to 0; a section mix and -p mix.NAME leave
them unchanged.

After the run, the command reads the balances of all accounts and checks that their sum is what was loaded
plus what committed transactions added.

Examples:
  farm smallbank
  farm smallbank --accounts 1000000 --hot-percent 0 --duration 30 --json bank.json
  farm smallbank --mix balance=100
  farm smallbank --machines 1 --savings-rule withdraw"
)]
pub(crate) struct SmallbankArgs {
    #[command(flatten)]
    pub(crate) common: OltpArgs,

    /// Number of accounts; 100000 by default.
    #[arg(long, value_name = "N")]
    pub(crate) accounts: Option<String>,

    /// Number of hot accounts, which are the first ones; 4 % of all accounts by default, at least 2.
    #[arg(long, value_name = "N")]
    pub(crate) hot_accounts: Option<String>,

    /// Percentage of transactions on hot accounts; 90 by default.
    #[arg(long, value_name = "N")]
    pub(crate) hot_percent: Option<String>,

    /// Initial balance of each savings and each checking account, in cents.
    #[arg(long, value_name = "N")]
    pub(crate) initial_cents: Option<String>,

    /// What a TransactSavings transaction does: deposit or withdraw.
    #[arg(long, value_name = "NAME")]
    pub(crate) savings_rule: Option<String>,
}

/// The common options of `farm tatp` and `farm smallbank`.
#[derive(Debug, Args)]
pub(crate) struct OltpArgs {
    /// A file of properties of the benchmark, TOML or JSON.
    #[arg(short = 'P', long = "properties", value_name = "FILE")]
    pub(crate) property_file: Option<PathBuf>,

    /// A property of the benchmark; may be repeated.
    #[arg(short = 'p', long = "property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) properties: Vec<(String, String)>,

    /// Shares of the transactions, in percent; transactions that are not named get 0.
    #[arg(long, value_name = "NAME=N,NAME=N…", value_delimiter = ',', value_parser = key_value)]
    pub(crate) mix: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) losing: LosingArgs,

    /// Maximum number of transactions in flight on every worker; transactions.concurrency of the configuration by
    /// default. A worker with many conflicts runs fewer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,

    /// Parts of the conflict avoidance to switch off, to measure the benefit of each part; the documentation of
    /// farm_txn::BackoffConfig describes them.
    #[arg(long, value_name = "PART,PART…", value_delimiter = ',', value_parser = BackoffConfig::PARTS)]
    pub(crate) without: Vec<String>,

    /// Then run the same transactions as tasks, that is by async functions, on the same tables for the same time, and report
    /// their rate and its share of the rate by continuations.
    #[arg(long)]
    pub(crate) tasks: bool,

    /// Seconds that the benchmark is measured; 10 by default.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// Seconds that the benchmark runs before it is measured; 1 by default.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none)]
    pub(crate) warmup: Option<Duration>,

    /// The neighbourhood H of the tables: 2, 4, 6, 8 or 12.
    #[arg(long, value_name = "H")]
    pub(crate) neighbourhood: Option<String>,

    /// The share of slots that are full after the load, above 0 and at most 1.
    #[arg(long, value_name = "X")]
    pub(crate) occupancy: Option<String>,

    /// Seed of the population and of every random choice; the same seed gives the same transactions; 1 by default.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl OltpArgs {
    /// Returns the validated configuration for tables whose longest rows have `row_bytes` bytes.
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
        self.cluster
            .configure(&mut config, &keys, self.losing.mode())?;
        Ok(config)
    }
}
