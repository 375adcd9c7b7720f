//! Tests of the command line: accepted options, refused options, and their effect on the configuration.

use super::*;
use clap::CommandFactory;
use clap::error::ErrorKind;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

fn ycsb(line: &str) -> YcsbArgs {
    match parse(&format!("farm ycsb {line}")).expect(line).command {
        Command::Ycsb(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// The help of `farm node` claimed that machines with different files refuse each other, whatever the difference.
#[test]
fn the_help_of_a_node_lists_exactly_the_keys_that_may_differ() {
    let mut cli = Cli::command();
    cli.build();
    let node = cli.find_subcommand_mut("node").expect("a subcommand");
    let help = node.render_long_help().to_string();
    let (_, list) = help.split_once("Keys that may differ:\n").expect("a list");
    let (list, _) = list.split_once("\n\n").expect("an end of the list");
    let words: Vec<&str> = list.split([' ', ',', '\n', '(']).collect();
    let config = ConfigArgs::default().load().expect("the built-in file");
    let own = config.own_keys();
    let is_listed = |key: &str| match key.split_once('.') {
        Some(("machine", name)) => words.contains(&name),
        Some(("rdma", _)) => words.contains(&"rdma.*"),
        _ => words.contains(&key),
    };
    for key in &own {
        assert!(is_listed(key), "{key} is not listed in\n{list}");
    }
    for line in config.canonical().lines() {
        let (key, _) = line.split_once(" = ").expect("a key and a value");
        assert!(!is_listed(key), "{key} is listed, and must be the same");
    }
}

#[test]
fn every_subcommand_has_a_summary_and_an_example() {
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands_mut() {
        if command.get_name() == "help" {
            continue;
        }
        let help = command.render_long_help().to_string();
        assert!(
            help.contains("Example"),
            "{} shows no example",
            command.get_name()
        );
        assert!(command.get_about().is_some());
    }
}

#[test]
fn the_options_of_scripts_are_parsed() {
    let args = ycsb(
        "-P a -P b -p recordcount=5 -p x=y=z --config F --machines 2 --workers 3 \
         --records 1_000 --duration 1.5 --warmup 0 --neighbourhood 8 --occupancy 0.8 \
         --value-bytes 1KiB --workload a,B,c --distribution uniform --seed 7 --verify \
         --json out.json",
    );
    assert_eq!(
        args.property_files,
        [PathBuf::from("a"), PathBuf::from("b")]
    );
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        args.properties,
        [pair("recordcount", "5"), pair("x", "y=z")]
    );
    assert_eq!(args.cluster.config.config, Some(PathBuf::from("F")));
    assert_eq!(
        (args.cluster.machines, args.cluster.workers, args.records),
        (Some(2), Some(3), Some(1000))
    );
    assert_eq!(args.duration, Some(Duration::from_millis(1500)));
    assert_eq!(args.warmup, Some(Duration::ZERO));
    assert_eq!(args.workload, [Workload::A, Workload::B, Workload::C]);
    assert_eq!(args.distribution.as_deref(), Some("uniform"));
    assert_eq!((args.seed, args.verify), (Some(7), true));
    assert_eq!(args.json, Some(PathBuf::from("out.json")));
}

#[test]
fn options_reach_the_configuration_after_the_file() {
    let args = ycsb(
        "--set table.neighbourhood=4 --machines 4 --workers 2 --neighbourhood 8 \
         --occupancy 0.8 --value-bytes 1KiB",
    );
    let mut config = args.cluster.config.load().expect("the built-in file");
    args.configure(&mut config).expect("all fits");
    assert_eq!((config.machines.len(), config.total_workers()), (4, 8));
    let table = farm_kv::config::TableConfig::of(&config);
    assert_eq!((table.neighbourhood, table.value_bytes), (8, 1024));
    assert_eq!(table.occupancy, 0.8);
}

#[test]
fn errors_in_options_name_the_option() {
    for (line, words) in [
        (
            "--neighbourhood 7",
            "--neighbourhood: table.neighbourhood: no layout of buckets exists for the neighbourhood 7",
        ),
        (
            "--occupancy 2",
            "--occupancy: table.occupancy: 2 is not a possible share",
        ),
        ("--value-bytes 2M", "did you mean MiB?"),
        (
            "--set table.neighborhood=8",
            "did you mean \"table.neighbourhood\"?",
        ),
    ] {
        let args = ycsb(line);
        let mut config = args.cluster.config.load().expect("the built-in file");
        let text = args.configure(&mut config).expect_err(line).to_string();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn invalid_options_are_refused() {
    for line in [
        "farm ycsb --machines 0",
        "farm ycsb --machines 1024",
        "farm ycsb --workers 65",
        "farm ycsb --records 0",
        "farm ycsb --duration 0",
        "farm ycsb --duration=-1",
        "farm ycsb --duration nan",
        "farm ycsb --warmup 1e300",
        "farm ycsb --workload g",
        "farm ycsb -p novalue",
        "farm ycsb -p =5",
        "farm tatp --machines 0",
        "farm tatp --duration 0",
        "farm tatp --concurrency 0",
        "farm smallbank --mix balance",
        "farm smallbank --workers 65",
        "farm node --machine 0",
        "farm bench limit --bytes lots",
        "farm bench ring --cores 1,2,3,x",
    ] {
        let kind = parse(line).expect_err(line).kind();
        let expected = [ErrorKind::ValueValidation, ErrorKind::InvalidValue];
        assert!(expected.contains(&kind), "{line}: {kind:?}");
    }
    let kind = parse("farm").expect_err("no command").kind();
    assert_eq!(kind, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
}

#[test]
fn the_built_in_file_is_the_default() {
    let args = ConfigArgs::default();
    assert_eq!(args.resolve().expect("the built-in file").machines.len(), 3);
    assert_eq!(args.name(), "config/local.toml (built in)");
    let args = ConfigArgs {
        config: Some("no/such.toml".into()),
        ..ConfigArgs::default()
    };
    assert!(matches!(args.resolve(), Err(ConfigError::Read { .. })));
}
