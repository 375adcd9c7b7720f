//! Any text is either a configuration, which then survives being written out and read back, or
//! refused with at least one problem, each of which has a place in the text and can be told.
#![no_main]

use farm_core::config::{Config, Place};
use farm_kv::config::{default_for, from_str};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match from_str(text, "fuzz.toml") {
        Ok(config) => accepted(&config),
        Err(error) => {
            assert!(!error.problems().is_empty(), "refused without a reason");
            let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
            for problem in error.problems() {
                assert!(
                    matches!(&problem.place, Place::File { line, .. } if *line <= lines),
                    "{problem:?} is nowhere in {lines} lines"
                );
                assert!(
                    !problem.expected.is_empty() && !problem.advice.is_empty(),
                    "{problem:?}"
                );
            }
            assert!(!error.to_string().is_empty());
        }
    }
    // The same text as a flag's: the first line the key, the rest the value.
    if let Some((key, value)) = text.split_once('\n') {
        let mut config = default_for(2, 1);
        if config.set(key, value).is_ok() && config.validate().is_ok() {
            accepted(&config);
        }
    }
});

fn accepted(config: &Config) {
    config.validate().expect("what was accepted is valid");
    let text = config.to_toml();
    let again = from_str(&text, "again.toml").expect("what was accepted reads back");
    assert_eq!(&again, config);
    assert_eq!(again.digest(), config.digest());
}
