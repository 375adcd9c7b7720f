//! Fuzzes the parser of configurations. A text is either accepted or refused. An accepted configuration is the same
//! after it was written and read back. A refused text has at least one problem, and each problem has a line of the
//! text, the expected value and advice.
#![no_main]

use farm_core::config::{Config, Place};
use farm_graph::config::{default_for, from_str};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match from_str(text, "fuzz.toml") {
        Ok(config) => accepted(&config),
        Err(error) => {
            assert!(
                !error.problems().is_empty(),
                "the text is refused without a problem"
            );
            let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
            for problem in error.problems() {
                assert!(
                    matches!(&problem.place, Place::File { line, .. } if *line <= lines),
                    "{problem:?} has no line of the text, which has {lines} lines"
                );
                assert!(
                    !problem.expected.is_empty() && !problem.advice.is_empty(),
                    "{problem:?} has no expected value or no advice"
                );
            }
            assert!(!error.to_string().is_empty());
        }
    }
    // Use the same text for `Config::set`: its first line is the key, the rest is the value.
    if let Some((key, value)) = text.split_once('\n') {
        let mut config = default_for(2, 1);
        if config.set(key, value).is_ok() && config.validate().is_ok() {
            accepted(&config);
        }
    }
});

fn accepted(config: &Config) {
    config
        .validate()
        .expect("an accepted configuration is valid");
    let text = config.to_toml();
    let again = from_str(&text, "again.toml").expect("a written configuration can be read back");
    assert_eq!(&again, config);
    assert_eq!(again.digest(), config.digest());
}
