//! The modules of each package form layers: no two files import each other, apart from the circles that this test names.
//!
//! A file imports another one if it names it, or an item of it, by a path that begins with `crate`, `self` or `super`,
//! or with a module that it declares. Code that is compiled for tests or deliberate bugs only does not count, nor does a module that uses
//! the modules that it declares.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use petgraph::graphmap::DiGraphMap;
use quote::ToTokens;
use syn::visit::{self, Visit};

/// A module, as the names on the way to it from the root of its package.
type Module = Vec<String>;

/// The sources of each package.
const PACKAGES: [&str; 10] = [
    "farm-core/src",
    "farm-txn/src",
    "farm-kv/src",
    "farm-graph/src",
    "bench/src",
    "farm-sim/src",
    "farm-sim/check/src",
    "farm-sim/conformance/src",
    "farm-sim/testing/src",
    "src/command/src",
];

/// The circles that remain.
const CIRCLES: [(&str, &[&str]); 1] = [
    // Continuations of calls receive the worker that makes the calls.
    ("farm-core/src", &["messaging", "worker"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files below a directory.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the module that a file contains; `None` for tests.
fn module_of(sources: &Path, file: &Path) -> Option<Module> {
    let inside = file.strip_prefix(sources).unwrap().with_extension("");
    let mut names: Module = inside
        .iter()
        .map(|name| name.to_str().unwrap().to_owned())
        .collect();
    if names.iter().any(|name| name == "tests" || name == "model") {
        return None;
    }
    if names
        .last()
        .is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str()))
    {
        names.pop();
    }
    Some(names)
}

/// The paths that a file names.
#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
}

/// Returns whether code is compiled only for tests, or only with deliberate bugs.
fn only_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.to_token_stream().to_string();
        ["cfg (test)", "cfg (feature = \"mutants\")"].contains(&condition.as_str())
    })
}

impl Paths {
    fn add_use(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.found.push(with(&name.ident)),
            syn::UseTree::Rename(rename) => self.found.push(with(&rename.ident)),
            syn::UseTree::Glob(_) => self.found.push(before.to_vec()),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(before, tree);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Type(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !only_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    /// The path of `pub(super)` is no import.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.found.push(names.collect());
        visit::visit_path(self, path);
    }
}

/// Returns the module that a path leads to, from inside of `from`; `None` if it leads out of the package.
fn target(files: &BTreeMap<Module, PathBuf>, from: &Module, path: &[String]) -> Option<Module> {
    let mut rest = path;
    let mut base = from.clone();
    match rest.first()?.as_str() {
        "crate" => (base, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        child => {
            let declared = [&base[..], &[child.to_owned()]].concat();
            files.get(&declared)?;
        }
    }
    let whole = [&base[..], rest].concat();
    (0..=whole.len())
        .rev()
        .map(|len| whole[..len].to_vec())
        .find(|module| files.contains_key(module))
}

/// Returns the circles of imports among the files of a package.
fn circles(sources: &Path) -> Vec<Vec<String>> {
    let files = rust_files(sources).into_iter();
    let files: BTreeMap<Module, PathBuf> = files
        .filter_map(|file| Some((module_of(sources, &file)?, file)))
        .collect();
    let number: BTreeMap<&Module, usize> = files.keys().zip(0..).collect();
    let mut imports = DiGraphMap::<usize, ()>::new();
    for (module, file) in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let mut paths = Paths::default();
        paths.visit_file(&parsed);
        for path in paths.found {
            let Some(to) = target(&files, module, &path) else {
                continue;
            };
            if !to.starts_with(module) {
                imports.add_edge(number[module], number[&to], ());
            }
        }
    }
    let modules: Vec<&Module> = files.keys().collect();
    let mut found: Vec<Vec<String>> = petgraph::algo::tarjan_scc(&imports)
        .into_iter()
        .filter(|circle| circle.len() > 1)
        .map(|circle| {
            let mut names: Vec<String> = circle.iter().map(|at| modules[*at].join("/")).collect();
            names.sort();
            names
        })
        .collect();
    found.sort();
    found
}

#[test]
fn files_import_each_other_only_where_this_test_says_so() {
    let found: Vec<(&str, Vec<String>)> = PACKAGES
        .iter()
        .flat_map(|package| {
            let circles = circles(&root().join(package));
            circles.into_iter().map(move |circle| (*package, circle))
        })
        .collect();
    let expected: Vec<(&str, Vec<String>)> = CIRCLES
        .iter()
        .map(|(package, circle)| {
            let names = circle.iter().map(|name| (*name).to_owned());
            (*package, names.collect())
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_circle_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("lib.rs", "mod a; mod b; mod c; pub use a::A;");
    write("a.rs", "pub struct A(crate::b::B);");
    write("b.rs", "use super::{c, A}; pub struct B(c::C);");
    write(
        "c.rs",
        "pub struct C; #[cfg(test)] mod tests { use crate::a::A; }",
    );
    // `b` names `A` by the root, which re-exports it from `a`.
    let found = circles(dir.path());
    assert_eq!(found, Vec::<Vec<String>>::new());
    write("b.rs", "use super::a::A; pub struct B(Option<Box<A>>);");
    assert_eq!(circles(dir.path()), [["a".to_owned(), "b".to_owned()]]);
}
