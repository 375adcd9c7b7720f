//! Reading text into a [`Config`]: parsing, and all checks of single keys. `check` verifies
//! combinations of keys.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::check;
use super::error::{ConfigError, Place, Problem, ProblemKind, nearest, one_of};
use super::keys::{self, Key, KeyFacts, MACHINE_KEYS};
use super::origin::{WHOLE, origin_of};
use super::value::{Misfit, Value};
use super::{Config, MachineConfig, Sections};
use crate::ids::MachineId;
use crate::limits::Limits;

/// Maximum number of bytes of a configuration file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads, parses and checks the file at `path`.
pub(super) fn load(
    path: &Path,
    sections: &Sections,
    limits: &Limits,
) -> Result<Config, ConfigError> {
    let name = path.display().to_string();
    let bytes = read_file(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    match str::from_utf8(&bytes) {
        Ok(text) => from_str(text, &name, sections, limits),
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()]
                .iter()
                .filter(|b| **b == b'\n')
                .count();
            let problem = Problem {
                kind: ProblemKind::Syntax,
                place: Place::File {
                    name: name.clone(),
                    line,
                },
                key: String::new(),
                found: "bytes that are not text".to_owned(),
                expected: "UTF-8".to_owned(),
                advice: "save the file as UTF-8".to_owned(),
            };
            Err(ConfigError::Invalid {
                name,
                problems: vec![problem],
            })
        }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is larger than 1 MiB",
        ));
    }
    Ok(bytes)
}

/// Parses and checks `text`.
pub(super) fn from_str(
    text: &str,
    name: &str,
    sections: &Sections,
    limits: &Limits,
) -> Result<Config, ConfigError> {
    let mut reader = Reader::new(text, name, sections, limits);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            reader.syntax(&error);
        }
        return ConfigError::from_problems(name, reader.problems).map(|()| Config::default());
    }
    reader.document(table.get_ref());
    let unsure = reader.unsure();
    let checked = check::found(&reader.config, limits);
    let sure = checked
        .into_iter()
        .filter(|found| found.involves.iter().all(|k| !unsure.contains(k)));
    reader.problems.extend(sure.map(|found| found.problem));
    ConfigError::from_problems(name, reader.problems)?;
    Ok(reader.config)
}

/// The state of a reading: the configuration and the problems so far.
struct Reader<'a> {
    name: &'a str,
    limits: &'a Limits,
    /// Offsets at which lines start.
    lines: Vec<usize>,
    config: Config,
    problems: Vec<Problem>,
    /// Keys whose value is unknown, because the written value was rejected.
    refused: BTreeSet<&'static str>,
    /// Sections with an unknown key, which may be a misspelling of any known key of the section.
    doubtful: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    fn new(text: &str, name: &'a str, sections: &Sections, limits: &'a Limits) -> Reader<'a> {
        let after = text
            .bytes()
            .enumerate()
            .filter(|(_, b)| *b == b'\n')
            .map(|(at, _)| at + 1);
        Reader {
            name,
            limits,
            lines: std::iter::once(0).chain(after).collect(),
            config: Config {
                origins: [(
                    WHOLE.to_owned(),
                    Place::File {
                        name: name.to_owned(),
                        line: 0,
                    },
                )]
                .into(),
                sections: sections.clone(),
                ..Config::default()
            },
            problems: Vec::new(),
            refused: BTreeSet::new(),
            doubtful: BTreeSet::new(),
        }
    }

    fn place(&self, offset: usize) -> Place {
        let line = self.lines.partition_point(|start| *start <= offset);
        Place::File {
            name: self.name.to_owned(),
            line,
        }
    }

    fn syntax(&mut self, error: &toml::de::Error) {
        let place = self.place(error.span().map_or(0, |span| span.start));
        if self.problems.last().is_some_and(|last| last.place == place) {
            return; // One mistake often causes several errors in its line.
        }
        self.problems.push(Problem {
            kind: ProblemKind::Syntax,
            place,
            key: String::new(),
            found: format!("this is not TOML: {}", error.message()),
            expected: "[section] headers and lines of `key = value`, each key once".to_owned(),
            advice: "put texts and sizes in quotes, as in ring_bytes = \"1MiB\"".to_owned(),
        });
    }

    fn document(&mut self, table: &DeTable<'_>) {
        let sections = keys::sections(&self.config.sections);
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("machine", DeValue::Array(machines)) => self.machines(machines),
                (section, DeValue::Table(table)) if sections.contains(&section) => {
                    if section == "machine" {
                        self.not_a_list_of_machines(key, value);
                    } else {
                        self.section(section, table);
                    }
                }
                ("machine", _) => self.not_a_list_of_machines(key, value),
                (section, _) if sections.contains(&section) => {
                    self.not_a_section(key, value);
                }
                _ => self.unknown_section(key),
            }
        }
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let path = format!("{section}.{}", name.get_ref());
            let place = self.place(name.span().start);
            let known = keys::all(&self.config.sections).find(|key| key.path == path);
            let value = Value::from(value.get_ref());
            match (known, keys::set(&mut self.config, &path, &value)) {
                (Some(_), Some(Ok(()))) => {
                    self.config.origins.insert(path, place);
                }
                (Some(key), Some(Err(misfit))) => self.refuse(key, place, misfit),
                _ => {
                    self.doubtful.insert(section.to_owned());
                    let sections = &self.config.sections;
                    let problem = unknown_key(sections, &place, section, name.get_ref());
                    self.problems.push(problem);
                }
            }
        }
    }

    fn refuse(&mut self, key: KeyFacts, place: Place, misfit: Misfit) {
        self.refused.insert(key.path);
        self.problems.push(refusal(key, place, misfit, self.limits));
    }

    fn machines(&mut self, machines: &[Spanned<DeValue<'_>>]) {
        let mut lines: Vec<(MachineId, Place)> = Vec::new();
        for entry in machines {
            let DeValue::Table(table) = entry.get_ref() else {
                let place = self.place(entry.span().start);
                self.machine_problem(place, Value::from(entry.get_ref()).to_string());
                continue;
            };
            let Some((machine, places)) = self.machine(table, self.place(entry.span().start))
            else {
                self.refused.insert("machine");
                continue;
            };
            let place = places
                .first()
                .map_or(Place::Program, |(_, place)| place.clone());
            if let Some((_, first)) = lines.iter().find(|(id, _)| *id == machine.id) {
                self.refused.insert("machine.id");
                self.problems.push(Problem {
                    kind: ProblemKind::DuplicateMachine,
                    place,
                    key: "machine.id".to_owned(),
                    found: format!(
                        "id {} is also that of the machine at {first}",
                        machine.id.get()
                    ),
                    expected: "an id that no other machine has".to_owned(),
                    advice: "number the machines 1, 2, 3 …".to_owned(),
                });
                continue;
            }
            lines.push((machine.id, place));
            for (name, place) in places {
                self.config
                    .origins
                    .insert(origin_of(machine.id, name), place);
            }
            self.config.machines.push(machine);
        }
        self.config.machines.sort_by_key(|machine| machine.id);
    }

    /// Reads one machine. Returns the machine and the places of its keys, the id's first, or `None`
    /// if the machine has no valid id.
    fn machine(
        &mut self,
        table: &DeTable<'_>,
        header: Place,
    ) -> Option<(MachineConfig, Vec<(&'static str, Place)>)> {
        let any = MachineId::new(1).expect("1 is a valid machine id");
        let mut machine = MachineConfig::new(any, 1);
        let mut places = Vec::new();
        let mut has_id = false;
        for (name, value) in table {
            let place = self.place(name.span().start);
            let known = MACHINE_KEYS
                .iter()
                .find(|key| key.name() == name.get_ref().as_ref());
            let Some(key) = known else {
                self.doubtful.insert("machine".to_owned());
                let sections = &self.config.sections;
                self.problems
                    .push(unknown_key(sections, &place, "machine", name.get_ref()));
                continue;
            };
            has_id |= key.name() == "id";
            match (key.set)(&mut machine, &Value::from(value.get_ref())) {
                Ok(()) if key.name() == "id" => places.insert(0, (key.name(), place)),
                Ok(()) => places.push((key.name(), place)),
                Err(misfit) => {
                    self.refuse(key.facts(), place, misfit);
                    if key.name() == "id" {
                        return None;
                    }
                }
            }
        }
        if !has_id {
            self.problems.push(Problem {
                kind: ProblemKind::MissingKey,
                place: header,
                key: "machine.id".to_owned(),
                found: "the machine has no id".to_owned(),
                expected: keys::expected(&self.config.sections, "machine.id", self.limits),
                advice: "write id = 1 for the first machine, 2 for the next …".to_owned(),
            });
            return None;
        }
        Some((machine, places))
    }

    fn not_a_list_of_machines(
        &mut self,
        key: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let place = self.place(key.span().start);
        self.machine_problem(place, Value::from(value.get_ref()).to_string());
    }

    fn machine_problem(&mut self, place: Place, found: String) {
        self.refused.insert("machine");
        self.problems.push(Problem {
            kind: ProblemKind::WrongType,
            place,
            key: "machine".to_owned(),
            found,
            expected: "one [[machine]] section per machine".to_owned(),
            advice: "write [[machine]], with two brackets, before the keys of each".to_owned(),
        });
    }

    fn not_a_section(&mut self, key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) {
        let name = key.get_ref();
        self.doubtful.insert(name.to_string());
        self.problems.push(Problem {
            kind: ProblemKind::WrongType,
            place: self.place(key.span().start),
            key: name.to_string(),
            found: Value::from(value.get_ref()).to_string(),
            expected: format!("a section [{name}]"),
            advice: format!("write [{name}] on a line of its own, and its keys below"),
        });
    }

    fn unknown_section(&mut self, key: &Spanned<DeString<'_>>) {
        let name = key.get_ref().as_ref();
        let sections = keys::sections(&self.config.sections);
        // The section may be a misspelling of any section, so all keys that were not written are
        // doubtful.
        self.doubtful
            .extend(sections.iter().map(|section| (*section).to_owned()));
        let advice = match (
            nearest(name, sections.iter().copied()),
            section_of_key(&self.config.sections, name),
        ) {
            (Some("machine"), _) => "did you mean [[machine]]?".to_owned(),
            (Some(near), _) => format!("did you mean [{near}]?"),
            (None, Some(home)) => format!("move the key below [{home}]"),
            (None, None) => "remove it".to_owned(),
        };
        self.problems.push(Problem {
            kind: ProblemKind::UnknownKey,
            place: self.place(key.span().start),
            key: name.to_owned(),
            found: "there is no such section or key".to_owned(),
            expected: format!("one of the sections {}", one_of(&sections)),
            advice,
        });
    }

    /// Returns the keys whose values are uncertain. Problems of combinations that involve such a
    /// key are not reported.
    fn unsure(&self) -> BTreeSet<&'static str> {
        let mut unsure = self.refused.clone();
        for key in keys::all(&self.config.sections) {
            let unsaid = !self.config.origins.contains_key(key.path);
            if unsaid && self.doubtful.contains(key.section()) {
                unsure.insert(key.path);
            }
        }
        if self.doubtful.contains("machine") {
            unsure.extend(MACHINE_KEYS.iter().map(|key| key.path));
            unsure.insert("machine");
        }
        unsure
    }
}

/// Returns the section that has a key of this name.
fn section_of_key(sections: &Sections, name: &str) -> Option<&'static str> {
    let found = keys::all(sections).find(|key| key.name() == name);
    found.map(|key| key.section())
}

fn names_in(sections: &Sections, section: &str) -> Vec<&'static str> {
    match section {
        "machine" => MACHINE_KEYS.iter().map(Key::name).collect(),
        _ => keys::all(sections)
            .filter(|key| key.section() == section)
            .map(|key| key.name())
            .collect(),
    }
}

fn unknown_key(sections: &Sections, place: &Place, section: &str, name: &str) -> Problem {
    let known = names_in(sections, section);
    let advice = match (
        nearest(name, known.iter().copied()),
        section_of_key(sections, name),
    ) {
        (Some(near), _) => format!("did you mean \"{near}\"?"),
        (None, Some(home)) => format!("move the key below [{home}]"),
        (None, None) => "remove it".to_owned(),
    };
    Problem {
        kind: ProblemKind::UnknownKey,
        place: place.clone(),
        key: format!("{section}.{name}"),
        found: "there is no such key".to_owned(),
        expected: format!("one of {}", one_of(&known)),
        advice,
    }
}

/// Returns the problem for a key that does not accept its value.
pub(super) fn refusal(key: KeyFacts, place: Place, misfit: Misfit, limits: &Limits) -> Problem {
    Problem {
        kind: misfit.kind,
        place,
        key: key.path.to_owned(),
        found: misfit.found,
        expected: (key.expected)(limits),
        advice: misfit
            .advice
            .unwrap_or_else(|| format!("change {}", key.name())),
    }
}
