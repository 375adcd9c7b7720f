//! The plan of `farm ycsb` and `farm demo`: configuration, table and workloads. The command line overrides property
//! files, and these override the configuration file.

use std::path::Path;
use std::time::Duration;

use farm_bench::properties::{Origin, Properties};
use farm_bench::ycsb::spec::{SpecError, WorkloadSpec, builtin};
use farm_core::config::{Config, Durability};
use farm_kv::TableSpec;
use farm_kv::config::TableConfig;

use crate::cli::{DemoArgs, Workload, YcsbArgs};
use crate::losing::{self, check_bounds, loading_workers};

const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const DEFAULT_WARMUP: Duration = Duration::from_secs(1);
/// Number of records if neither a file nor an option sets it.
const DEFAULT_RECORDS: u64 = 1_000_000;
/// The latency of one in this many operations is measured.
const SAMPLED_1_IN: u32 = 64;
/// Id of the only table of a run.
const TABLE: u16 = 1;

/// A workload, and the properties from which it was parsed.
pub(super) struct Planned {
    pub(super) spec: WorkloadSpec,
    properties: Properties,
    /// Longest time of the measurement, if it is bounded.
    pub(super) duration: Option<Duration>,
    /// Number of measured operations, if it is bounded.
    pub(super) operations: Option<u64>,
}

impl Planned {
    /// Returns the keys and values of the properties.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        self.properties
            .iter()
            .map(|(key, setting)| (key.to_owned(), setting.value.clone()))
            .collect()
    }

    /// Returns an error if the run is bounded otherwise than by time.
    fn check_bounds(&self) -> anyhow::Result<()> {
        let hints = &self.spec.hints;
        check_bounds(&[
            ("operationcount", self.operations.is_some()),
            ("target", hints.target_ops_per_s.is_some()),
            ("threadcount", hints.threads.is_some()),
        ])
    }

    /// Returns an error if `threadcount` exceeds the operations that all workers of `config` can keep in flight.
    fn check_threads(&self, config: &Config) -> Result<(), SpecError> {
        let workers = config.total_workers() as u64;
        let each = u64::from(config.worker.operations_in_flight);
        match (self.spec.hints.threads, self.properties.get("threadcount")) {
            (Some(threads), Some(setting)) if threads > workers * each => {
                Err(SpecError::too_many_threads(setting, workers, each))
            }
            _ => Ok(()),
        }
    }
}

/// The plan of a command.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) workloads: Vec<Planned>,
    pub(super) warmup: Duration,
    pub(super) seed: u64,
    pub(super) verify: bool,
    /// Whether commits lock exclusively from the start.
    pub(super) exclusive_locks: bool,
    pub(super) sampled_1_in: u32,
    /// Number of runs of all workloads, each on a new cluster.
    pub(super) repeat: u16,
    /// Whether machines are lost while workloads run.
    pub(super) loses: bool,
}

impl Plan {
    pub(super) fn of_ycsb(args: &YcsbArgs) -> anyhow::Result<Self> {
        let mut config = args.cluster.config.load()?;
        let mut workloads = Vec::new();
        let named: Vec<Workload> = match (args.workload.is_empty(), args.property_files.is_empty())
        {
            (true, true) => vec![Workload::C],
            _ => args.workload.clone(),
        };
        for workload in &named {
            let letter = workload.letter();
            let mut properties = builtin(letter)?;
            // The built-in files set `recordcount` only because the format requires it.
            properties.set_override(&format!("recordcount={DEFAULT_RECORDS}"))?;
            workloads.push(planned(&letter.to_string(), properties, args, &config)?);
        }
        if !args.property_files.is_empty() {
            let mut properties = Properties::new("-p");
            for file in &args.property_files {
                properties.load_file(file)?;
            }
            let name = args
                .property_files
                .last()
                .map_or("", |path| file_name(path));
            workloads.push(planned(name, properties, args, &config)?);
        }
        let in_file = TableConfig::of(&config).value_bytes;
        let first = workloads[0].spec.value_bytes;
        config.set_by("the workload", "table.value_bytes", &first.to_string())?;
        args.configure(&mut config)?;
        losing::prepare(&mut config, &args.losing)?;
        // All workloads run on one table. The command line may have set the length of its values.
        let bytes = TableConfig::of(&config).value_bytes;
        let usual = TableConfig::default().value_bytes;
        if args.value_bytes.is_none() && ![bytes, usual].contains(&in_file) {
            crate::write_stderr(format_args!(
                "farm: note: values have {bytes} bytes; table.value_bytes = {in_file} of the configuration file is \
                 overridden; use --value-bytes to set the length"
            ));
        }
        for planned in &mut workloads {
            let specified = planned.spec.value_bytes;
            if specified != first {
                let name = &planned.spec.name;
                crate::write_stderr(format_args!(
                    "farm: warning: workload {name} specifies values of {specified} bytes, but runs with values of \
                     {bytes} bytes: all workloads run on the table of the first one"
                ));
            }
            planned.spec.value_bytes = bytes as usize;
        }
        if args.losing.lose_machines {
            workloads.iter().try_for_each(Planned::check_bounds)?;
        }
        workloads
            .iter()
            .try_for_each(|planned| planned.check_threads(&config))?;
        Ok(Self {
            config,
            workloads,
            warmup: args.warmup.unwrap_or(DEFAULT_WARMUP),
            seed: args.seed.unwrap_or(1),
            verify: args.verify,
            exclusive_locks: args.exclusive_locks,
            sampled_1_in: SAMPLED_1_IN,
            repeat: args.repeat.repeat,
            loses: args.losing.lose_machines,
        })
    }

    pub(super) fn of_demo(args: &DemoArgs) -> anyhow::Result<Self> {
        let config = args.config.resolve_temporary(Durability::None)?;
        let mut workloads = Vec::new();
        for letter in ['c', 'b'] {
            let mut properties = builtin(letter)?;
            properties.set_override(&format!("recordcount={}", args.records))?;
            let mut spec = WorkloadSpec::from_properties(&letter.to_string(), &properties)?.spec;
            spec.value_bytes = TableConfig::of(&config).value_bytes as usize;
            workloads.push(Planned {
                spec,
                properties,
                duration: Some(args.duration),
                operations: None,
            });
        }
        Ok(Self {
            config,
            workloads,
            warmup: DEFAULT_WARMUP,
            seed: 1,
            verify: false,
            exclusive_locks: false,
            sampled_1_in: SAMPLED_1_IN,
            repeat: 1,
            loses: false,
        })
    }

    /// Returns the number of records to load.
    pub(super) fn records(&self) -> u64 {
        self.workloads
            .first()
            .map_or(0, |planned| planned.spec.insert_count)
    }

    /// Returns the number of operations that all workers together keep in flight, unless a workload sets `threadcount`.
    pub(super) fn most_in_flight(&self) -> u64 {
        loading_workers(&self.config, self.loses)
            * u64::from(self.config.worker.operations_in_flight)
    }

    /// Returns the specification of the table.
    pub(super) fn table(&self) -> anyhow::Result<TableSpec> {
        let table = TableConfig::of(&self.config);
        crate::measure::table_spec(
            &self.config,
            TABLE,
            table.value_bytes as usize,
            self.records(),
        )
    }
}

impl Workload {
    fn letter(self) -> char {
        match self {
            Workload::A => 'a',
            Workload::B => 'b',
            Workload::C => 'c',
            Workload::D => 'd',
            Workload::E => 'e',
            Workload::F => 'f',
        }
    }
}

/// Applies the overrides of the command line to `properties`, and parses the workload. Prints remarks about unknown
/// properties and properties without effect.
fn planned(
    name: &str,
    mut properties: Properties,
    args: &YcsbArgs,
    config: &Config,
) -> anyhow::Result<Planned> {
    for (key, value) in &args.properties {
        properties.set_override(&format!("{key}={value}"))?;
    }
    if let Some(records) = args.records {
        properties.set_override(&format!("recordcount={records}"))?;
    }
    if let Some(distribution) = &args.distribution {
        properties.set_override(&format!("requestdistribution={distribution}"))?;
    }
    let parsed = WorkloadSpec::from_properties(name, &properties)?;
    for remark in &parsed.remarks {
        let level = if remark.is_warning { "warning" } else { "note" };
        crate::write_stderr(format_args!(
            "farm: {level}: workload {name}: {}",
            remark.text
        ));
    }
    let mut spec = parsed.spec;
    // A workload without `fieldcount` and `fieldlength` has values of the length that the configuration sets.
    let sets_fields = ["fieldcount", "fieldlength"]
        .iter()
        .any(|key| properties.get(key).is_some());
    if args.value_bytes.is_some() || !sets_fields {
        let usual = TableConfig::of(config).value_bytes;
        spec.value_bytes = match &args.value_bytes {
            // An invalid size is reported later, with all problems of the configuration.
            Some(text) => farm_core::config::parse_size(text).unwrap_or(usual) as usize,
            None => usual as usize,
        };
    }
    let (duration, operations) = bounds(name, &spec, &properties, args.duration);
    Ok(Planned {
        spec,
        properties,
        duration,
        operations,
    })
}

/// Returns the maximum time and the number of operations that bound a workload. `requested` is `--duration`: it
/// overrides an `operationcount` of a file. With an `operationcount` of `-p`, both bounds apply.
fn bounds(
    name: &str,
    spec: &WorkloadSpec,
    properties: &Properties,
    requested: Option<Duration>,
) -> (Option<Duration>, Option<u64>) {
    let mut operations = Some(spec.operation_count).filter(|count| *count > 0);
    let setting = properties.get("operationcount");
    if let (Some(requested), Some(setting), Some(count)) = (requested, setting, operations)
        && matches!(setting.origin, Origin::File { .. })
    {
        crate::write_stderr(format_args!(
            "farm: note: workload {name}: operationcount={count} ({}) is overridden by --duration {}; \
             add -p operationcount={count} to apply both bounds",
            setting.origin,
            requested.as_secs_f64()
        ));
        operations = None;
    }
    let hinted = spec.hints.max_execution_s.map(Duration::from_secs);
    let usual = operations.is_none().then_some(DEFAULT_DURATION);
    (requested.or(hinted).or(usual), operations)
}

fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("file")
}
