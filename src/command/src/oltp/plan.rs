//! The plan of `farm tatp` and `farm smallbank`: configuration, benchmark and tables, from the command line.

use std::time::Duration;

use farm_bench::oltp::{Benchmark, MAX_ROW_BYTES};
use farm_core::config::Config;
use farm_kv::TableSpec;
use farm_txn::BackoffConfig;

use super::settings::{Settings, SettingsError};
use crate::cli::{OltpArgs, SmallbankArgs, TatpArgs};
use crate::losing;
use crate::measure::table_spec;

const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const DEFAULT_WARMUP: Duration = Duration::from_secs(1);
/// The latency of one in this many transactions is measured.
const SAMPLED_1_IN: u32 = 4;
/// By default, one in this many accounts is hot.
const ONE_HOT_OF: u64 = 25;

/// The plan of a command.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) benchmark: Benchmark,
    pub(super) tables: Vec<TableSpec>,
    pub(super) concurrency: usize,
    /// Names of the parts of the conflict avoidance that are switched off.
    pub(super) without: Vec<String>,
    /// Whether transactions run as tasks, too.
    pub(super) tasks: bool,
    pub(super) warmup: Duration,
    pub(super) duration: Duration,
    pub(super) seed: u64,
    pub(super) sampled_1_in: u32,
    /// Number of runs, each on a new cluster.
    pub(super) repeat: u16,
    /// Whether machines are lost meanwhile.
    pub(super) loses: bool,
}

impl Plan {
    pub(super) fn of_tatp(args: &TatpArgs) -> anyhow::Result<Self> {
        let options = [
            ("--subscribers", "subscribers", &args.subscribers),
            ("--choice", "choice", &args.choice),
        ];
        let settings = settings(&args.common, &options)?;
        Self::of(Benchmark::Tatp(settings.into_value()), &args.common)
    }

    pub(super) fn of_smallbank(args: &SmallbankArgs) -> anyhow::Result<Self> {
        let options = [
            ("--accounts", "accounts", &args.accounts),
            ("--hot-accounts", "hot_accounts", &args.hot_accounts),
            ("--hot-percent", "hot_percent", &args.hot_percent),
            ("--initial-cents", "initial_cents", &args.initial_cents),
            ("--savings-rule", "savings_rule", &args.savings_rule),
        ];
        let settings = settings::<farm_bench::smallbank::Options>(&args.common, &options)?;
        let sets_hot_accounts = settings.is_set("hot_accounts");
        let mut options = settings.into_value();
        if !sets_hot_accounts {
            options.hot_accounts = (options.accounts / ONE_HOT_OF).max(2);
        }
        Self::of(Benchmark::Smallbank(options), &args.common)
    }

    fn of(benchmark: Benchmark, args: &OltpArgs) -> anyhow::Result<Self> {
        benchmark.stream()?;
        let mut config = args.configure(MAX_ROW_BYTES)?;
        losing::prepare(&mut config, &args.losing)?;
        let table = |table: &farm_bench::oltp::Table| {
            let rows = benchmark.expected_rows(table);
            table_spec(&config, u16::from(table.id), table.row_bytes, rows)
        };
        let tables: anyhow::Result<Vec<_>> = benchmark.tables().iter().map(table).collect();
        let most = config.worker.operations_in_flight as usize;
        let concurrency = args
            .concurrency
            .map_or((config.transactions.concurrency as usize).min(most), |n| {
                n as usize
            });
        if concurrency > most {
            let why = format!(
                "a worker keeps at most {most} operations in flight; lower --concurrency, or raise \
                 worker.operations_in_flight with --set"
            );
            return Err(SettingsError::new(format!("--concurrency {concurrency}"), why).into());
        }
        Ok(Self {
            tables: tables?,
            benchmark,
            concurrency,
            without: args.without.clone(),
            tasks: args.tasks,
            warmup: args.warmup.unwrap_or(DEFAULT_WARMUP),
            duration: args.duration.unwrap_or(DEFAULT_DURATION),
            seed: args.seed.unwrap_or(1),
            sampled_1_in: SAMPLED_1_IN,
            repeat: args.repeat.repeat,
            loses: args.losing.lose_machines,
            config,
        })
    }

    /// Returns the conflict avoidance of each worker.
    pub(super) fn avoidance(&self) -> BackoffConfig {
        let whole = BackoffConfig {
            concurrency: self.concurrency,
            ..BackoffConfig::default()
        };
        let without = self.without.iter();
        without.fold(whole, |config, part| config.without(part))
    }
}

/// Returns the options of the benchmark: those of the file, overridden by `-p`, then `--mix`, then the options of the
/// command line in `options` (option, key, value).
fn settings<T>(
    args: &OltpArgs,
    options: &[(&str, &str, &Option<String>)],
) -> Result<Settings<T>, SettingsError>
where
    T: Clone + Default + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut settings = Settings::load(args.property_file.as_deref())?;
    for (key, text) in &args.properties {
        settings.set("-p", key, text)?;
    }
    settings.set_mix(&args.mix)?;
    for (flag, key, text) in options {
        if let Some(text) = text {
            settings.set(flag, key, text)?;
        }
    }
    Ok(settings)
}
