//! Options of a benchmark, from a file and from the command line. Errors name the file or the option.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An option has an invalid key or value.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {why}")]
pub(crate) struct SettingsError {
    /// The file, or the option of the command line.
    origin: String,
    /// The reason and the remedy.
    why: String,
}

impl SettingsError {
    pub(super) fn new(origin: String, why: String) -> Self {
        Self { origin, why }
    }
}

/// The options of a benchmark, and the keys that were set.
#[derive(Debug, Default)]
pub(super) struct Settings<T> {
    value: T,
    /// Keys that the file or the command line set, as in `mix.balance`.
    set: BTreeSet<String>,
}

impl<T: Clone + Default + Serialize + DeserializeOwned> Settings<T> {
    /// Reads the options from a file. Absent keys, or all keys without a file, have their defaults.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, SettingsError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let refused = |why: String| SettingsError {
            origin: format!("{} (--properties)", path.display()),
            why,
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| refused(format!("cannot read the file: {error}")))?;
        let is_json = path.extension().is_some_and(|end| end == "json");
        let (value, present) = match is_json {
            true => from_json(&text).map_err(refused)?,
            false => from_toml(&text).map_err(refused)?,
        };
        let mut set = BTreeSet::new();
        collect_keys("", &present, &mut set);
        Ok(Self { value, set })
    }

    /// Sets the option with the key `key`, as in `mix.balance`. `flag` is the command-line option, which errors name.
    pub(super) fn set(&mut self, flag: &str, key: &str, text: &str) -> Result<(), SettingsError> {
        let key = normal(key);
        let mut all = serde_json::to_value(&self.value).unwrap_or(Value::Null);
        let mut keys = BTreeSet::new();
        collect_keys("", &all, &mut keys);
        let refused = |why: String| SettingsError {
            origin: match flag {
                "-p" => format!("-p {key}={text}"),
                "--mix" => format!("--mix {}={text}", key.trim_start_matches("mix.")),
                _ => format!("{flag} {text}"),
            },
            why,
        };
        if !keys.contains(&key) {
            let known: Vec<String> = keys.into_iter().collect();
            let why = format!(
                "there is no such property; expected one of {}",
                known.join(", ")
            );
            return Err(refused(why));
        }
        let place = all.pointer_mut(&format!("/{}", key.replace('.', "/")));
        let Some(place) = place else {
            return Err(refused(format!("there is no property {key}")));
        };
        let digits = text.replace('_', "");
        *place = match digits.parse::<i128>() {
            Ok(number) if place.is_number() => serde_json::Number::from_i128(number)
                .ok_or_else(|| refused("the number is out of range".into()))?
                .into(),
            _ => Value::String(normal(text)),
        };
        match serde_json::from_value(all) {
            Ok(value) => self.value = value,
            Err(error) => return Err(refused(without_rust_types(&error.to_string()))),
        }
        self.set.insert(key);
        Ok(())
    }

    /// Sets the shares of the transactions in `mix`, and those of all other transactions to 0.
    pub(super) fn set_mix(&mut self, mix: &[(String, String)]) -> Result<(), SettingsError> {
        if mix.is_empty() {
            return Ok(());
        }
        let all = serde_json::to_value(&self.value).unwrap_or(Value::Null);
        let kinds = all["mix"].as_object().cloned().unwrap_or_default();
        for kind in kinds.keys() {
            self.set("--mix", &format!("mix.{kind}"), "0")?;
        }
        for (kind, share) in mix {
            let kind = normal(kind);
            if !kinds.contains_key(&kind) {
                let known: Vec<&str> = kinds.keys().map(String::as_str).collect();
                return Err(SettingsError {
                    origin: format!("--mix {kind}={share}"),
                    why: format!(
                        "there is no such transaction; expected one of {}",
                        known.join(", ")
                    ),
                });
            }
            self.set("--mix", &format!("mix.{kind}"), share)?;
        }
        Ok(())
    }

    /// Returns whether the file or the command line set an option.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.set.contains(key)
    }

    pub(super) fn into_value(self) -> T {
        self.value
    }
}

/// Parses JSON text. Returns the options, and the keys and values that the text contains.
fn from_json<T: DeserializeOwned>(text: &str) -> Result<(T, Value), String> {
    let value =
        serde_json::from_str(text).map_err(|error| without_rust_types(&error.to_string()))?;
    let present = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok((value, present))
}

/// Parses TOML text, as [`from_json`] does with JSON.
fn from_toml<T: DeserializeOwned>(text: &str) -> Result<(T, Value), String> {
    let value =
        toml::from_str(text).map_err(|error| without_rust_types(error.to_string().trim_end()))?;
    let present = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok((value, present))
}

/// Replaces the names of Rust types in an error of serde by descriptions.
fn without_rust_types(why: &str) -> String {
    let types = [
        (
            "expected u8",
            "expected a whole number of percent, 0 to 100",
        ),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected u64", "expected a whole number, at least 0"),
        ("expected i64", "expected a whole number"),
    ];
    types
        .iter()
        .fold(why.to_owned(), |why, (from, to)| why.replace(from, to))
}

/// Normalizes a key or a name: lower case, with `_` for `-`.
fn normal(text: &str) -> String {
    text.trim().to_lowercase().replace('-', "_")
}

/// Adds the keys of all leaves of `value` to `keys`, as in `mix.balance`.
fn collect_keys(prefix: &str, value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let dot = if prefix.is_empty() { "" } else { "." };
                collect_keys(&format!("{prefix}{dot}{key}"), value, keys);
            }
        }
        _ => _ = keys.insert(prefix.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farm_bench::{smallbank, tatp};

    #[test]
    fn later_options_override_earlier_ones() {
        let mut settings = Settings::<smallbank::Options>::default();
        settings.set("-p", "accounts", "1_000").unwrap();
        settings.set("-p", "savings-rule", "Withdraw").unwrap();
        settings.set("--accounts", "accounts", "2000").unwrap();
        settings
            .set_mix(&[
                ("BALANCE".into(), "60".into()),
                ("write-check".into(), "40".into()),
            ])
            .unwrap();
        assert!(settings.is_set("accounts") && !settings.is_set("hot_accounts"));
        let options = settings.into_value();
        assert_eq!(options.accounts, 2000);
        assert_eq!(options.savings_rule, smallbank::SavingsRule::Withdraw);
        assert_eq!(options.mix.percents(), [0, 60, 0, 0, 0, 40]);
    }

    #[test]
    fn errors_name_the_option_and_what_was_expected() {
        let mut settings = Settings::<tatp::Options>::default();
        for (key, text, words) in [
            (
                "subscribers",
                "many",
                "-p subscribers=many: invalid type: string",
            ),
            (
                "subscribers",
                "-1",
                "expected a whole number from 0 to 4294967295",
            ),
            (
                "mix.update_location",
                "300",
                "expected a whole number of percent, 0 to 100",
            ),
            (
                "choice",
                "even",
                "unknown variant `even`, expected `non_uniform` or `uniform`",
            ),
            (
                "mix",
                "5",
                "no such property; expected one of choice, mix.delete_call",
            ),
            (
                "subscriber",
                "5",
                "no such property; expected one of choice, ",
            ),
        ] {
            let error = settings.set("-p", key, text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let mix = [("balance".to_owned(), "100".to_owned())];
        let error = settings.set_mix(&mix).unwrap_err().to_string();
        assert!(
            error.starts_with("--mix balance=100: there is no such transaction"),
            "{error}"
        );
    }

    #[test]
    fn files_are_toml_or_json() {
        let dir = tempfile::tempdir().unwrap();
        let load = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            Settings::<tatp::Options>::load(Some(&path))
        };
        let toml = load("t.toml", "subscribers = 5\n[mix]\nget_access_data = 35\n").unwrap();
        assert!(toml.is_set("mix.get_access_data") && toml.is_set("subscribers"));
        let json = load("t.json", r#"{"subscribers": 5}"#).unwrap();
        assert_eq!(json.into_value(), toml.into_value());
        for (name, text, words) in [
            (
                "bad.toml",
                "subscriber = 5\n",
                &["bad.toml", "line 1", "subscriber"][..],
            ),
            ("bad.json", "{\"choice\":\n 5}", &["bad.json", "line 2"]),
            ("worse.json", "{", &["worse.json", "line 1"]),
        ] {
            let error = load(name, text).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
