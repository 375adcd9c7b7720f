//! Options of a benchmark from a file and from the command line, one after the other, each refused
//! with where it stands.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An option that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {why}")]
pub(crate) struct SettingsError {
    /// The file, or the option of the command line.
    origin: String,
    /// What is wrong, and what to do.
    why: String,
}

impl SettingsError {
    /// An option that was refused, and why.
    pub(super) fn new(origin: String, why: String) -> Self {
        Self { origin, why }
    }
}

/// Options that are being set.
#[derive(Debug, Default)]
pub(super) struct Settings<T> {
    value: T,
    /// The keys that were set, other than by default.
    set: BTreeSet<String>,
}

impl<T: Clone + Default + Serialize + DeserializeOwned> Settings<T> {
    /// What a file says; what it does not say has its default.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, SettingsError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let refused = |why: String| SettingsError {
            origin: format!("{} (--properties)", path.display()),
            why,
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| refused(format!("cannot be read: {error}")))?;
        let is_json = path.extension().is_some_and(|end| end == "json");
        let (value, said) = match is_json {
            true => from_json(&text).map_err(refused)?,
            false => from_toml(&text).map_err(refused)?,
        };
        let mut set = BTreeSet::new();
        note_keys("", &said, &mut set);
        Ok(Self { value, set })
    }

    /// Sets one option by its key, as in `mix.balance`.
    pub(super) fn set(&mut self, flag: &str, key: &str, text: &str) -> Result<(), SettingsError> {
        let key = normal(key);
        let mut all = serde_json::to_value(&self.value).unwrap_or(Value::Null);
        let mut keys = BTreeSet::new();
        note_keys("", &all, &mut keys);
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
                "there is no such option; expected one of {}",
                known.join(", ")
            );
            return Err(refused(why));
        }
        let place = all.pointer_mut(&format!("/{}", key.replace('.', "/")));
        let Some(place) = place else {
            return Err(refused("there is no such option".into()));
        };
        let is_number = place.is_number();
        *place = match text.replace('_', "").parse::<i64>() {
            Ok(number) if is_number => number.into(),
            _ => Value::String(normal(text)),
        };
        match serde_json::from_value(all) {
            Ok(value) => self.value = value,
            Err(error) => return Err(refused(mended(&error.to_string()))),
        }
        self.set.insert(key);
        Ok(())
    }

    /// Sets the shares of some kinds; those that are not named get none.
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

    /// Whether an option was set.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.set.contains(key)
    }

    /// The options.
    pub(super) fn into_value(self) -> T {
        self.value
    }
}

/// The options of a text, and the text as keys and values.
fn from_json<T: DeserializeOwned>(text: &str) -> Result<(T, Value), String> {
    let value = serde_json::from_str(text).map_err(|error| mended(&error.to_string()))?;
    let said = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok((value, said))
}

fn from_toml<T: DeserializeOwned>(text: &str) -> Result<(T, Value), String> {
    let value = toml::from_str(text).map_err(|error| mended(error.to_string().trim_end()))?;
    let said = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok((value, said))
}

/// What was expected, in words that those know who do not write Rust.
fn mended(why: &str) -> String {
    let types = [
        (
            "expected u8",
            "expected a whole number of percent, 0 to 100",
        ),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected u64", "expected a whole number from 0"),
        ("expected i64", "expected a whole number"),
    ];
    types
        .iter()
        .fold(why.to_owned(), |why, (from, to)| why.replace(from, to))
}

fn normal(text: &str) -> String {
    text.trim().to_lowercase().replace('-', "_")
}

fn note_keys(prefix: &str, value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let dot = if prefix.is_empty() { "" } else { "." };
                note_keys(&format!("{prefix}{dot}{key}"), value, keys);
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
    fn what_is_said_later_counts() {
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
    fn what_is_wrong_is_told_with_its_place() {
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
                "no such option; expected one of choice, mix.delete_call",
            ),
            (
                "subscriber",
                "5",
                "no such option; expected one of choice, ",
            ),
        ] {
            let said = settings.set("-p", key, text).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        let mix = [("balance".to_owned(), "100".to_owned())];
        let said = settings.set_mix(&mix).unwrap_err().to_string();
        assert!(
            said.starts_with("--mix balance=100: there is no such transaction"),
            "{said}"
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
            let said = load(name, text).unwrap_err().to_string();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
}
