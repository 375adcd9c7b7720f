//! Each bench once, quickly: that it measures what it says, not how fast it is.

use super::fabric::FabricRun;
use super::limit::{LimitOptions, LimitRun, ReadShape};
use super::ring::RingRun;
use super::*;

const MIB: u64 = 1 << 20;
const QUICK: Duration = Duration::from_millis(1);

/// A place of its own in a directory that goes with it.
fn place(name: &str) -> (Place, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place {
        cluster: format!("{name}-{}", std::process::id()),
        run_dir: dir.path().join("run"),
        memory_dir: dir.path().to_owned(),
        huge_pages: false,
        checksums: false,
    };
    (place, dir)
}

/// What is left of a place but directories, the machines' locks and logs.
fn stale_files(dir: &tempfile::TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect()
}

/// Not a test: the other process of the tests below, which start this program with this name.
#[test]
fn child() {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        assert_eq!(child_main(), std::process::ExitCode::SUCCESS);
    }
}

fn launcher() -> Launcher {
    let arguments = [
        "--exact",
        "micro::tests::child",
        "--nocapture",
        "--test-threads=1",
    ];
    let arguments = arguments.map(Into::into).to_vec();
    Launcher {
        arguments,
        ..Launcher::this_program().unwrap()
    }
}

#[test]
fn limit_measures_every_variant_at_every_size() {
    let (place, dir) = place("limit");
    let run = LimitRun {
        place,
        bytes: 2 * MIB,
        shapes: [384, 64, 16].map(ReadShape::of_bytes).to_vec(),
        options: LimitOptions::quick(),
    };
    let mut told = Vec::new();
    let report = limit::run(&run, &mut |what| told.push(what.to_owned())).unwrap();
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!(stale_files(&dir), Vec::<PathBuf>::new());
    assert_eq!(report.limits.len(), 3);
    for limit in &report.limits {
        let batched = |name: &str| {
            let of = |rate: &&limit::ReadRate| rate.access == "batch" && rate.variant == name;
            limit.rates.iter().filter(of).count()
        };
        assert_eq!((batched("memcpy"), batched("words")), (4, 4));
        assert!(
            limit
                .rates
                .iter()
                .all(|rate| rate.least > 0.0 && rate.least <= rate.most)
        );
        assert!(limit.best.reads_per_s >= limit.best_batched.reads_per_s);
        assert_eq!(
            (limit.best_batched.access.as_str(), limit.dependent.batch),
            ("batch", 1)
        );
        assert_eq!(limit.best_checked.is_some(), limit.bytes_per_read != 16);
        let shares = limit.best.gb_per_s * 1e9 / limit.best.reads_per_s;
        assert_eq!(shares.round() as usize, limit.bytes_per_read);
    }
    assert_eq!(
        (report.limits[0].bytes_per_read, report.limits[0].stride),
        (384, 192)
    );
    assert_eq!(report.limits[2].stride, 64);
    round_trips_as_json(&report);
    let table = report.to_string();
    assert!(
        table.contains("checked words") && table.contains("memcpy"),
        "{table}"
    );
}

#[test]
fn limit_refuses_what_cannot_be() {
    let memory = [farm_core::mem::Memory::anonymous(MIB as usize)];
    let quick = LimitOptions::quick;
    let batches = LimitOptions {
        batches: vec![0],
        ..quick()
    };
    let repeats = LimitOptions {
        repeats: 0,
        ..quick()
    };
    for (stride, bytes, options) in [
        (64, 7, quick()),
        (100, 64, quick()),
        (64, 64, batches),
        (64, 64, repeats),
    ] {
        let refused = limit::raw_limit(&memory, stride, bytes, &options).unwrap_err();
        assert!(matches!(refused, MicroError::BadOption { .. }), "{refused}");
    }
    let (place, _dir) = place("nospace");
    let run = LimitRun {
        bytes: 1 << 52,
        ..LimitRun::new(place)
    };
    let refused = limit::run(&run, &mut |_| {}).unwrap_err();
    assert!(
        matches!(refused, MicroError::Mapping(MappingError::NoSpace { .. })),
        "{refused}"
    );
}

#[test]
fn ring_measures_rings_workers_and_sockets() {
    let (place, dir) = place("ring");
    let run = RingRun {
        launcher: launcher(),
        sizes: vec![16, 24, 4096],
        repeats: 2,
        slice: QUICK,
        ..RingRun::new(place).unwrap()
    };
    let report = ring::run(&run, &mut |_| {}).unwrap();
    assert_eq!(
        report.rows.iter().map(|row| row.bytes).collect::<Vec<_>>(),
        run.sizes
    );
    for row in &report.rows {
        for latency in [&row.ring_rtt, &row.call_rtt, &row.unix_rtt, &row.tcp_rtt] {
            assert!(latency.samples >= 2 && latency.p50_ns > 0, "{row:?}");
            assert!(latency.p50_ns <= latency.p99_ns, "{row:?}");
        }
        for rate in [&row.stream_msgs, &row.ring_calls, &row.calls] {
            assert!(rate.least > 0.0 && rate.least <= rate.per_s && rate.per_s <= rate.most);
        }
    }
    assert_eq!(
        report.conditions.pinned.is_empty(),
        report.conditions.not_pinned.is_some()
    );
    assert_eq!(stale_files(&dir), Vec::<PathBuf>::new());
    round_trips_as_json(&report);
    assert!(report.to_string().contains("Unix socket"));
}

#[test]
fn ring_tells_when_its_peer_cannot_run() {
    let (place, _dir) = place("nopeer");
    let gone = Launcher {
        program: "/no/such/program".into(),
        arguments: Vec::new(),
    };
    let run = RingRun {
        launcher: gone,
        ..RingRun::new(place.clone()).unwrap()
    };
    let refused = ring::run(&run, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, MicroError::Os { .. }), "{refused}");
    let run = RingRun {
        sizes: vec![1 << 20],
        ..RingRun::new(place).unwrap()
    };
    assert!(matches!(
        ring::run(&run, &mut |_| {}).unwrap_err(),
        MicroError::BadOption { .. }
    ));
}

#[test]
fn fabric_measures_reads_and_writes() {
    let (place, dir) = place("fabric");
    let run = FabricRun {
        bytes: MIB,
        sizes: vec![16, 64, 4096],
        repeats: 2,
        slice: QUICK,
        ..FabricRun::new(place)
    };
    let report = fabric::run(&run, &mut |_| {}).unwrap();
    assert_eq!(
        report.rows.iter().map(|row| row.bytes).collect::<Vec<_>>(),
        run.sizes
    );
    for row in &report.rows {
        assert_eq!(row.read_object.is_some(), row.bytes != 16);
        for it in [Some(row.read_raw), row.read_object, Some(row.write)]
            .into_iter()
            .flatten()
        {
            assert!(it.latency.samples > 0 && it.latency.p50_ns <= it.latency.p99_ns);
            assert!(
                [it.one, it.of_32, it.of_256]
                    .iter()
                    .all(|rate| rate.least > 0.0)
            );
        }
        assert!(row.memcpy_of_32.least > 0.0 && row.memcpy_one.least > 0.0);
    }
    assert_eq!(stale_files(&dir), Vec::<PathBuf>::new());
    round_trips_as_json(&report);
    assert!(report.to_string().contains("read object"));
}

#[test]
fn fabric_refuses_sizes_that_it_cannot_carry() {
    let (place, _dir) = place("sizes");
    for (bytes, sizes) in [
        (MIB, vec![0]),
        (MIB, vec![12]),
        (4096, vec![8192]),
        (100, vec![64]),
    ] {
        let run = FabricRun {
            bytes,
            sizes,
            ..FabricRun::new(place.clone())
        };
        let refused = fabric::run(&run, &mut |_| {}).unwrap_err();
        assert!(matches!(refused, MicroError::BadOption { .. }), "{refused}");
    }
}

#[test]
fn the_place_is_beside_the_cluster_it_is_for() {
    let mut config = Config::default_for(1, 1);
    config.cluster.name = "a".repeat(40);
    let place = Place::of(&config);
    assert_eq!(place.cluster.len(), 38, "names have at most 40 characters");
    assert_eq!(place.memory_dir, config.memory.dir);
}

#[test]
fn rates_are_medians() {
    let rate = Rate::of(vec![3.0, 1.0, 2.0]);
    assert_eq!((rate.per_s, rate.least, rate.most), (2.0, 1.0, 3.0));
    assert_eq!(Rate::of(Vec::new()), Rate::default());
    assert_eq!(rate.gb_per_s(500_000_000), 1.0);
}

fn round_trips_as_json<T>(report: &T)
where
    T: Serialize + for<'de> Deserialize<'de>,
{
    let json = serde_json::to_value(report).unwrap();
    let back: T = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(back).unwrap(), json);
}
