//! What differs between two configurations that must agree.

use std::collections::BTreeMap;

use super::Config;

/// Maximum number of differences that are named.
const MOST_NAMED: usize = 8;

impl Config {
    /// Returns in words which keys have other values in another [canonical](Config::canonical) text, which a machine of this version
    /// or of another one has written. Values of this configuration are "here", those of the text are "there".
    pub fn differences(&self, other: &str) -> String {
        let named = differences(&self.canonical(), other);
        let more = match named.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!("{}{more}", named[..named.len().min(MOST_NAMED)].join("; "))
    }
}

/// Returns the keys of a [canonical](Config::canonical) text, with the number of the machine in those of machines.
fn keys(canonical: &str) -> BTreeMap<String, &str> {
    let mut machine = "";
    let key = |line| {
        let (key, value): (&str, &str) = str::split_once(line, " = ")?;
        let key = match key.split_once('.') {
            Some(("machine", name)) => {
                if name == "id" {
                    machine = value;
                }
                format!("machine.{machine}.{name}")
            }
            _ => key.to_owned(),
        };
        Some((key, value))
    };
    canonical.lines().filter_map(key).collect()
}

/// Returns the keys that differ, with both values.
fn differences(given: &str, other: &str) -> Vec<String> {
    let (given, other) = (keys(given), keys(other));
    let mut all: Vec<&String> = given.keys().chain(other.keys()).collect();
    all.sort();
    all.dedup();
    let is_listed = |keys: &BTreeMap<String, &str>, key: &str| {
        let id = key
            .rsplit_once('.')
            .map(|(machine, _)| format!("{machine}.id"));
        id.is_some_and(|id| keys.contains_key(&id))
    };
    // Of a machine that only one of them lists, its id suffices.
    let goes_without_saying =
        |key: &str| !key.ends_with(".id") && is_listed(&given, key) != is_listed(&other, key);
    let differ = |key: &&String| match (given.get(*key), other.get(*key)) {
        (given, other) if given == other => None,
        (Some(given), Some(other)) => Some(format!("{key} is {given} here, and {other} there")),
        _ if goes_without_saying(key) => None,
        (Some(given), None) => Some(format!("{key} = {given} is only here")),
        (None, other) => Some(format!("{key} = {} is only there", other.unwrap_or(&""))),
    };
    all.iter().filter_map(differ).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_machines_that_differ_are_named() {
        let given = Config::default_for(3, 1);
        let mut running = Config::default_for(2, 1);
        let named = |given: &Config, running: &Config| {
            differences(&given.canonical(), &running.canonical())
        };
        assert_eq!(named(&running, &running), Vec::<String>::new());
        assert_eq!(named(&given, &running), ["machine.3.id = 3 is only here"]);
        assert_eq!(named(&running, &given), ["machine.3.id = 3 is only there"]);
        running.set("durability.mode", "memory").unwrap();
        running.set("machine.2.workers", "4").unwrap();
        running.set("transactions.patience_ms", "1").unwrap();
        assert_eq!(
            named(&given, &running),
            [
                "durability.mode is \"none\" here, and \"memory\" there",
                "machine.2.workers is 1 here, and 4 there",
                "machine.3.id = 3 is only here",
            ]
        );
        let older = running
            .canonical()
            .replace("durability.dir = \"auto\"\n", "");
        assert_eq!(
            running.differences(&older),
            "durability.dir = \"auto\" is only here"
        );
        let many = Config::default_for(13, 1).differences(&running.canonical());
        assert!(
            many.ends_with("machine.4.id = 4 is only here; and 5 more"),
            "{many}"
        );
    }
}
