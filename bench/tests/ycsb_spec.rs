//! Workload settings: which are accepted, which are refused, and the texts of the errors.

use farm_bench::properties::Properties;
use farm_bench::ycsb::spec::{Distribution, DriverHints, SpecError, builtin};
use farm_bench::ycsb::{OpKind, OperationMix, Parsed, WorkloadSpec};
use proptest::prelude::*;

fn parse(text: &str, overrides: &[&str]) -> Result<Parsed, SpecError> {
    let mut properties = Properties::new("-p");
    properties.load_bytes("my.properties", text.as_bytes())?;
    for argument in overrides {
        properties.set_override(argument)?;
    }
    WorkloadSpec::from_properties("test", &properties)
}

fn refusal(text: &str) -> String {
    let text = format!("{text}\nrecordcount=1000");
    parse(&text, &[])
        .expect_err("it should be refused")
        .to_string()
}

fn remarks(text: &str) -> Vec<String> {
    let parsed = parse(&format!("recordcount=1000\n{text}"), &[]).unwrap();
    parsed.remarks.into_iter().map(|it| it.text).collect()
}

fn mix(read: f64, update: f64, insert: f64, read_modify_write: f64) -> OperationMix {
    OperationMix {
        read,
        update,
        insert,
        read_modify_write,
    }
}

#[test]
fn the_built_in_workloads_are_those_of_ycsb() {
    let zipfian = Distribution::ZipfianScrambled { theta: 0.99 };
    let known = [
        ('a', mix(0.5, 0.5, 0.0, 0.0), zipfian),
        ('b', mix(0.95, 0.05, 0.0, 0.0), zipfian),
        ('c', mix(1.0, 0.0, 0.0, 0.0), zipfian),
        (
            'd',
            mix(0.95, 0.0, 0.05, 0.0),
            Distribution::Latest { theta: 0.99 },
        ),
        ('F', mix(0.5, 0.0, 0.0, 0.5), zipfian),
    ];
    for (letter, mix, distribution) in known {
        let parsed = WorkloadSpec::from_properties("x", &builtin(letter).unwrap()).unwrap();
        for kind in OpKind::ALL {
            let (found, share) = (parsed.spec.mix.share(kind), mix.share(kind));
            assert!((found - share).abs() < 1e-12, "{letter}: {kind:?} {found}");
        }
        assert_eq!(parsed.spec.distribution, distribution, "{letter}");
        assert_eq!(parsed.spec.value_bytes, 1000);
        assert_eq!(parsed.spec.insert_count, parsed.spec.record_count);
        assert_eq!(parsed.remarks, [], "{letter}");
    }
    assert!(
        builtin('e')
            .unwrap_err()
            .to_string()
            .contains("ordered index")
    );
    let unknown = builtin('x').unwrap_err().to_string();
    assert!(unknown.contains("a, b, c, d and f"), "{unknown}");
}

#[test]
fn settings_reach_the_spec() {
    let text = "recordcount=1000\noperationcount=50\nreadproportion=1\n\
                requestdistribution=hotspot\nhotspotdatafraction=0.1\nhotspotopnfraction=0.9\n\
                fieldcount=1\nfieldlength=32\ninsertstart=100\ninsertcount=200\n\
                dataintegrity=true\nthreadcount=4\ntarget=1000\nmaxexecutiontime=60";
    let spec = parse(text, &["operationcount=70"]).unwrap().spec;
    assert_eq!((spec.record_count, spec.operation_count), (1000, 70));
    assert_eq!((spec.insert_start, spec.insert_count), (100, 200));
    assert_eq!((spec.value_bytes, spec.data_integrity), (32, true));
    assert_eq!(spec.mix, mix(1.0, 0.0, 0.0, 0.0));
    assert_eq!(spec.distribution.to_string(), "hotspot 0.9 on 0.1");
    assert_eq!(spec.hints.threads, Some(4));
    assert_eq!(spec.hints.target_ops_per_s, Some(1000));
    assert_eq!(spec.hints.max_execution_s, Some(60));
    let unbounded = parse(
        "recordcount=1\ntarget=0\nmaxexecutiontime=0\noperationcount=0",
        &[],
    );
    let spec = unbounded.unwrap().spec;
    assert_eq!(
        (spec.operation_count, spec.hints),
        (0, DriverHints::default())
    );
}

#[test]
fn both_meanings_of_zipfian_have_names() {
    let named = |name: &str| {
        let text = format!("recordcount=9\nrequestdistribution={name}\nzipfianconstant=0.8");
        parse(&text, &[]).unwrap().spec.distribution.to_string()
    };
    assert_eq!(named("zipfian"), "zipfian-scrambled 0.8");
    assert_eq!(named("zipfian-scrambled"), "zipfian-scrambled 0.8");
    assert_eq!(named("zipfian-plain"), "zipfian-plain 0.8");
    for name in Distribution::NAMES {
        named(name);
    }
}

#[test]
fn proportions_have_the_defaults_of_the_reference_client_if_none_is_set() {
    let of = |text: &str| {
        parse(&format!("recordcount=9\n{text}"), &[])
            .unwrap()
            .spec
            .mix
    };
    assert_eq!(of(""), mix(0.95, 0.05, 0.0, 0.0));
    assert_eq!(of("readproportion=1"), mix(1.0, 0.0, 0.0, 0.0));
    let scaled = parse(
        "recordcount=9\nreadproportion=0.3\nupdateproportion=0.1",
        &[],
    )
    .unwrap();
    assert!((scaled.spec.mix.read - 0.75).abs() < 1e-12);
    assert!(scaled.remarks[0].is_warning);
    let text = &scaled.remarks[0].text;
    assert_eq!(text, "the proportions add up to 0.4 and are scaled to 1");
}

/// Settings on the first lines of a file, divided by semicolons, and how their refusal begins.
const REFUSALS: &str = "\
fieldcount=ten => fieldcount = 'ten' (my.properties:1) is not a whole number from 0 on
;operationcount=-5 => operationcount = '-5' (my.properties:2) is not a whole number from 0 on
readproportion=1.5 => readproportion = '1.5' (my.properties:1) is not a number from 0 to 1, such as 0.5
readproportion=NaN => readproportion = 'NaN' (my.properties:1) is not a number
readproportion=0.9;updateproportion=0.2 => the proportions add up to 1.1 (readproportion 0.9 at my.properties:1, updateproportion 0.2 at my.properties:2); they have to add up to 1
readproportion=0 => the proportions add up to 0 (
scanproportion=0.95 => scanproportion = 0.95 (my.properties:1) needs an ordered index, which this hashtable does not have; workload E is not supported
requestdistribution=zipf => requestdistribution = 'zipf' (my.properties:1) is unknown; the distributions are uniform, zipfian, zipfian-scrambled, zipfian-plain, latest, hotspot, exponential, sequential
hotspotdatafraction=1.01 => hotspotdatafraction = '1.01' (my.properties:1)
zipfianconstant=1 => zipfianconstant = '1' (my.properties:1) is not a number from 0
exponential.percentile=100 => exponential.percentile = '100'
exponential.frac=inf => exponential.frac = 'inf'
insertorder=sorted => insertorder = 'sorted' (my.properties:1) is not hashed or ordered
dataintegrity=yes => dataintegrity = 'yes' (my.properties:1) is not false or true
fieldlength=0 => fieldcount 10 x fieldlength 0 gives a value outside 1 to 983040 bytes
fieldlength=99999999999999999999 => fieldlength = '99999999999999999999'
fieldlength=9999999999999999999 => fieldcount 10 x fieldlength 9999999999999999999
insertstart=900;insertcount=101 => insertstart 900 + insertcount 101 is more than
insertstart=1000 => insertstart 1000 + insertcount 0
insertcount=0 => insertcount = '0'
threadcount=0 => threadcount = '0' (my.properties:1) is not a whole number from 1 on
dotransactions=false => dotransactions = 'false' (my.properties:1) is not true
workload=site.ycsb.workloads.TimeSeriesWorkload => workload = 'site.ycsb.workloads.TimeSeriesWorkload' (my.properties:1) is not site.ycsb.workloads.CoreWorkload, the only supported class";

#[test]
fn refusals_say_what_and_where_and_what_to_do() {
    for case in REFUSALS.lines() {
        let (settings, message) = case.split_once(" => ").unwrap();
        let found = refusal(&settings.replace(';', "\n"));
        assert!(found.starts_with(message), "{found}\n  expected {message}");
    }
    let overridden = parse("", &["recordcount=0"]).unwrap_err().to_string();
    assert!(overridden.starts_with("recordcount = '0' (-p) is not a whole number from 1 to"));
    assert!(parse("", &["recordcount=2147483648"]).is_err());
    assert!(parse("", &["recordcount=2147483647"]).is_ok());
    let missing = parse("", &[]).unwrap_err().to_string();
    assert!(missing.starts_with("recordcount is not set; "), "{missing}");
}

#[test]
fn settings_without_effect_cause_remarks() {
    assert_eq!(
        remarks("recordcuont=5"),
        ["unknown property 'recordcuont' (my.properties:2); did you mean 'recordcount'?"]
    );
    assert_eq!(
        remarks("redis.host=localhost"),
        ["unknown property 'redis.host' (my.properties:2)"]
    );
    // Settings that request the actual behaviour cause no remark.
    assert_eq!(
        remarks(
            "table=usertable\nworkload=site.ycsb.workloads.CoreWorkload\ndotransactions=true\n\
                 measurementtype=hdrhistogram\nreadallfields=true\ninsertorder=hashed"
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        remarks(
            "maxscanlength=100\nwriteallfields=false\ninsertorder=ordered\nzipfianconstant=0.5"
        ),
        [
            "insertorder=ordered (my.properties:4) has no effect: \
             the table places records by the hash of their keys, so the order of the keys does not matter",
            "maxscanlength=100 (my.properties:2) has no effect: \
             there are no scans in a hashtable",
            "writeallfields=false (my.properties:3) has no effect: \
             an update replaces the whole value",
            "zipfianconstant=0.5 (my.properties:5) has no effect: requestdistribution is uniform",
        ]
    );
    // Settings for parts of the reference client that do not exist here cause a remark.
    for (setting, reason) in [
        ("table=t", "there is one table"),
        ("db=site.ycsb.BasicDB", "the cluster that is started"),
        ("exportfile=out.txt", "--json FILE"),
        ("hdrhistogram.percentiles=95", "three digits"),
        ("measurement.interval=both", "three digits"),
        ("status.interval=1", "on a terminal"),
        ("basicdb.verbose=true", "the cluster that is started"),
    ] {
        let remarks = remarks(setting);
        let is_expected = remarks.len() == 1
            && remarks[0].contains("has no effect")
            && remarks[0].contains(reason);
        assert!(is_expected, "{setting}: {remarks:?}");
    }
    let parsed = parse("recordcount=1\nmaxscanlength=1\ntabel=t", &[]).unwrap();
    let warnings: Vec<bool> = parsed.remarks.iter().map(|it| it.is_warning).collect();
    assert_eq!(warnings, [false, true]);
}

#[test]
fn the_load_is_divided_without_gaps() {
    let spec = parse("recordcount=1003\ninsertstart=2\ninsertcount=1000", &[])
        .unwrap()
        .spec;
    for workers in [1, 3, 7, 64, 2000] {
        let keys = (0..workers).flat_map(|worker| spec.load_range(worker, workers));
        assert!(keys.eq(2..1002), "{workers} workers");
    }
    let sizes = (0..7).map(|worker| spec.load_range(worker, 7).count());
    assert!(sizes.into_iter().all(|size| size == 142 || size == 143));
}

/// Regression: the property parser panicked on a byte order mark followed by random bytes.
#[test]
fn a_byte_order_mark_is_refused_or_skipped() {
    for mark in [[0xFE, 0xFF], [0xFF, 0xFE]] {
        let mut noise = mark.to_vec();
        noise.extend((0..200u32).map(|i| (i * 89) as u8));
        let refused = Properties::new("-p").load_bytes("x", &noise).unwrap_err();
        assert!(refused.to_string().contains("UTF-16"), "{refused}");
    }
    let mut properties = Properties::new("-p");
    let text = b"\xEF\xBB\xBFrecordcount=7\n";
    properties.load_bytes("x", text).unwrap();
    assert_eq!(properties.get("recordcount").unwrap().value, "7");
    let mut twice = Properties::new("-p");
    let text = b"\xEF\xBB\xBF\xFE\xFF\x01\xD8a\n".repeat(9);
    assert!(twice.load_bytes("x", &text).is_ok());
    let binary = twice.load_bytes("x", b"a = 1\nb\x00").unwrap_err();
    assert!(
        binary
            .to_string()
            .starts_with("x:2: the file has a zero byte"),
        "{binary}"
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut properties = Properties::new("-p");
        if properties.load_bytes("x", &bytes).is_ok() {
            let _ = WorkloadSpec::from_properties("x", &properties);
        }
    }

    #[test]
    fn no_setting_makes_the_parser_panic(
        settings in prop::collection::vec(
            ("(recordcount|insertstart|insertcount|operationcount|fieldlength|readproportion|\
               insertproportion|requestdistribution|zipfianconstant|hotspotdatafraction|[a-z]{0,9})",
             "[ =:#!\\\\]{1,2}",
             "(-?[0-9]{1,22}|0\\.[0-9]|1e-?[0-9]{1,3}|zipfian|latest|exponential|nan|inf|\\PC{0,5})"),
            0..12,
        ),
    ) {
        let text: Vec<String> = settings.iter().map(|(k, s, v)| format!("{k}{s}{v}")).collect();
        if let Ok(parsed) = parse(&text.join("\n"), &[]) {
            let spec = parsed.spec;
            let sum: f64 = OpKind::ALL.iter().map(|kind| spec.mix.share(*kind)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9);
            prop_assert!(spec.insert_count > 0);
            prop_assert!(spec.insert_start + spec.insert_count <= spec.record_count);
        }
    }

    #[test]
    fn line_numbers_count_comments_and_blank_lines(
        lines in prop::collection::vec("(#[^\r\n\x00]{0,20}|! \\\\u|[a-z]{1,5}|[a-z]=\\\\\\\\|)", 0..20),
    ) {
        let mut properties = Properties::new("-p");
        let text = format!("{}\nthe.key = v", lines.join("\n"));
        properties.load_bytes("x", text.as_bytes()).unwrap();
        let place = properties.get("the.key").unwrap().origin.to_string();
        prop_assert_eq!(place, format!("x:{}", text.split('\n').count()));
    }
}
