//! The section `[graph]`: its values, the refusal of invalid ones, and the files of the repository, which contain all
//! sections.

use std::fs;
use std::path::Path;

use farm_core::config::ProblemKind;
use farm_graph::config::{self, GraphConfig};

/// Returns the names of all keys.
fn keys() -> Vec<String> {
    let text = config::default_for(1, 1).to_toml();
    let named = text.lines().filter_map(|line| line.split_once(" = "));
    named.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn the_section_is_read_written_and_shown() {
    let text = "[[machine]]\nid = 1\n[graph]\npage_bytes = \"16KiB\"\ncached_heads = 5\n";
    let config = config::from_str(text, "x.toml").expect("a valid configuration");
    let graph = GraphConfig {
        page_bytes: 16 << 10,
        cached_heads: 5,
    };
    assert_eq!(GraphConfig::of(&config), graph);
    let again = config::from_str(&config.to_toml(), "x.toml").expect("the text reads back");
    assert_eq!(again, config);
    assert_eq!(
        GraphConfig::of(&config::default_for(1, 1)),
        GraphConfig::default()
    );
    // Machines compare the size of pages, and not the size of a cache.
    let digest = |key: &str, value: &str| {
        let mut config = config::default_for(1, 1);
        config.set(key, value).expect("a valid value");
        config.digest()
    };
    let usual = config::default_for(1, 1).digest();
    assert_ne!(digest("graph.page_bytes", "4KiB"), usual);
    assert_eq!(digest("graph.cached_heads", "7"), usual);
}

#[test]
fn impossible_values_are_refused() {
    for (line, kind, key, word) in [
        (
            "page_bytes = 100",
            ProblemKind::ImpossibleSize,
            "graph.page_bytes",
            "1KiB",
        ),
        (
            "page_bytes = \"1MiB\"",
            ProblemKind::ImpossibleSize,
            "graph.page_bytes",
            "256KiB",
        ),
        (
            "cached_heads = 99999999",
            ProblemKind::OutOfRange,
            "graph.cached_heads",
            "16777216",
        ),
        (
            "cached_heads = -1",
            ProblemKind::OutOfRange,
            "graph.cached_heads",
            "16777216",
        ),
    ] {
        let text = format!("[[machine]]\nid = 1\n[graph]\n{line}\n");
        let error = config::from_str(&text, "x.toml").expect_err(line);
        let [problem] = error.problems() else {
            panic!("{error}");
        };
        assert_eq!((problem.kind, problem.key.as_str()), (kind, key));
        assert!(problem.to_string().contains(word), "{problem}");
    }
}

#[test]
fn every_file_of_the_repository_loads() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).expect("the directory config") {
        let path = entry.expect("an entry").path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            config::load(&path).unwrap_or_else(|error| panic!("{error}"));
            names.push(
                path.file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
    assert!(names.contains(&"local.toml".to_owned()), "{names:?}");
}

#[test]
fn local_toml_shows_every_key_with_a_comment() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/local.toml");
    let text = fs::read_to_string(path).expect("config/local.toml");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for name in keys() {
        let at = lines
            .iter()
            .position(|line| line.starts_with(&format!("{name} = ")));
        let at = at.unwrap_or_else(|| panic!("{name} is missing"));
        let above = &lines[..at];
        let documented = above
            .iter()
            .rev()
            .find(|line| !line.contains(" = "))
            .expect("a line above");
        assert!(documented.starts_with('#'), "{name} has no comment above");
    }
    let config = config::from_str(&text, "local.toml").expect("a valid configuration");
    assert_eq!((config.machines.len(), config.total_workers()), (3, 3));
    assert_eq!(config.memory.region_bytes, 256 << 20);
}
