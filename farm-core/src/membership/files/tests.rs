//! All interleavings of writers, over a directory whose operations are atomic. The store's code is that of production.

use std::collections::BTreeMap;

use loom::sync::{Arc, Mutex};

use super::*;
use crate::ids::RegionId;
use crate::membership::configuration::testing::{configuration, region_of};

#[derive(Clone)]
struct Shared(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Shared {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> R) -> R {
        work(&mut self.0.lock().unwrap())
    }
}

impl Directory for Shared {
    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }

    fn make(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn mark(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn unmake(&mut self) {}

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.with(|files| files.keys().cloned().collect()))
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.with(|files| files.get(name).cloned())
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.with(|files| files.insert(name.into(), content.into()));
        Ok(())
    }

    fn link(&mut self, name: &str, new: &str) -> io::Result<()> {
        self.with(|files| match files.contains_key(new) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => {
                let content = files[name].clone();
                files.insert(new.into(), content);
                Ok(())
            }
        })
    }

    // Nothing is lost here: no other thread sees a difference.
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.with(|files| files.remove(name));
        Ok(())
    }

    // The threads live.
    fn remove_abandoned(&mut self, _name: &str) -> io::Result<()> {
        Ok(())
    }
}

/// What a writer found out about its changes, each of which added a region.
#[derive(Default)]
struct Told {
    won: Vec<RegionId>,
    lost: Vec<RegionId>,
    unknown: Vec<RegionId>,
}

fn store(dir: &Shared, kept: u64) -> FileStore<Shared> {
    let mut store = FileStore::new(dir.clone(), "test");
    store.kept = kept;
    store
}

/// Adds regions to the configuration, each in one try. Half of the changes make a configuration with a new number.
fn write(dir: &Shared, kept: u64, regions: std::ops::Range<u32>) -> Told {
    let mut store = store(dir, kept);
    let mut told = Told::default();
    for number in regions {
        let before = store.read().unwrap().unwrap();
        let mut next = before.next(number.is_multiple_of(2));
        let region = region_of(number);
        let at = next
            .regions
            .partition_point(|one| one.region < region.region);
        let id = region.region;
        next.regions.insert(at, region);
        match store.compare_and_swap(&next) {
            Ok(Swap::Won) => told.won.push(id),
            Ok(Swap::Lost) => told.lost.push(id),
            Err(StoreError::Unknown(_)) => told.unknown.push(id),
            Err(error) => panic!("{error}"),
        }
    }
    told
}

/// Two threads change the configuration, `changes` times each. What was reported is what the last configuration has.
fn race(kept: u64, changes: [u32; 2], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let dir = Shared(Arc::new(Mutex::new(BTreeMap::new())));
        let first = configuration("test", &[1, 2]);
        assert_eq!(
            store(&dir, kept).compare_and_swap(&first).unwrap(),
            Swap::Won
        );
        let other = dir.clone();
        let thread = loom::thread::spawn(move || write(&other, kept, 10..10 + changes[0]));
        let mine = write(&dir, kept, 20..20 + changes[1]);
        let told = [mine, thread.join().unwrap()];
        let last = store(&dir, kept).read().unwrap().unwrap();
        let mut explained = 0;
        for told in &told {
            for region in &told.won {
                assert!(
                    last.region(*region).is_some(),
                    "{region} was reported, and is not there"
                );
            }
            for region in &told.lost {
                assert!(
                    last.region(*region).is_none(),
                    "{region} was refused, and is there"
                );
            }
            explained += told.won.len();
            explained += told
                .unknown
                .iter()
                .filter(|one| last.region(**one).is_some())
                .count();
        }
        assert_eq!(last.regions.len(), explained);
        assert_eq!(
            last.change,
            1 + explained as u64,
            "each change has a number of its own"
        );
        let files = dir.with(|files| files.len()) as u64;
        assert!(files <= kept + 1, "{files} files are left");
    });
}

#[test]
fn one_of_two_changes_takes_effect() {
    race(2, [1, 1], 4);
}

/// A writer that stops before it names its file finds that the name was used and removed meanwhile.
#[test]
fn a_name_that_was_removed_is_not_used_again_with_success() {
    race(1, [1, 3], 3);
    race(2, [1, 3], 2);
}

#[test]
fn writers_take_turns() {
    race(2, [2, 2], 2);
}

/// A file that nobody names is damaged, belongs to others, or is newer: each is refused, with what to do.
#[test]
fn files_that_cannot_be_used_are_refused() {
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let text = std::sync::Mutex::new(String::new());
        let text = std::sync::Arc::new(text);
        loom::model({
            let mut bytes = configuration("test", &[1, 2]).encode().unwrap();
            change(&mut bytes);
            let text = std::sync::Arc::clone(&text);
            move || {
                let files = BTreeMap::from([(name(1), bytes.clone())]);
                let dir = Shared(Arc::new(Mutex::new(files)));
                let error = store(&dir, KEPT).read().unwrap_err();
                *text.lock().unwrap() = error.to_string();
            }
        });
        text.lock().unwrap().clone()
    };
    let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let text = refusal(change);
        assert!(text.contains(what) && text.contains(&name(1)), "{text}");
    };
    refused("checksum is wrong", &|bytes| bytes[60] ^= 4);
    refused("were written. Restore this file", &|bytes| {
        bytes.truncate(90)
    });
    refused("is not a configuration", &|bytes| bytes.clear());
    refused(
        "format 5, and this program reads formats up to 4",
        &|bytes| bytes[8] = 5,
    );
    let renamed =
        |bytes: &mut Vec<u8>| *bytes = configuration("test", &[1]).next(true).encode().unwrap();
    refused("is the configuration of change 2: it was renamed", &renamed);
    let other = |bytes: &mut Vec<u8>| *bytes = configuration("other", &[1]).encode().unwrap();
    refused(
        "has the configuration of the cluster \"other\", and this is \"test\"",
        &other,
    );
}

#[test]
fn names_have_numbers() {
    assert_eq!(name(7), "config-00000000000000000007");
    assert_eq!(number(&name(u64::MAX)), Some(u64::MAX));
    for wrong in [
        "config-7",
        "config-+0000000000000000007",
        "config-99999999999999999999",
        "new-config-1",
    ] {
        assert_eq!(number(wrong), None, "{wrong}");
    }
}
