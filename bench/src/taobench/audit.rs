//! Checks the graph after a run: every object, every edge and every inverse edge is as the last write has left it that
//! committed.
//!
//! A write applies only if its time is later than that of the object or edge. So what each worker has written last
//! ([`Written`]) determines the graph: the latest of these times remains. Each machine writes the times of its workers
//! to a file, and each worker checks its share of the loaded edges, and all that it has added itself.

use std::fs::File;
use std::io::{self, Read as _, Seek, SeekFrom, Write as _};
use std::ops::{AddAssign, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::TimeBounds;
use farm_graph::tasks::alone;
use farm_txn::{Handle, TxError};
use serde::{Deserialize, Serialize};

use super::edges::{Edge, Owner, value};
use super::loaded::Loaded;
use super::store::Effect;
use super::stream::{Book, Known, Pick, Write};
use super::workload::Kind;
use crate::audit::{self, Done, Found};

/// The time of what was deleted: later than all others.
const DELETED: u64 = u64::MAX;

/// The times of a worker's last writes.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Of the first objects of loaded edges, by the number of the edge; 0 if there was no write.
    objects: Vec<u64>,
    /// Of the loaded edges.
    edges: Vec<u64>,
    /// Of the edges that the worker has added.
    own: Vec<u64>,
    /// The objects that the worker has added.
    added: Vec<(u64, u64)>,
}

impl Written {
    /// Creates the times of a worker that has written nothing.
    pub fn new(loaded: usize) -> Self {
        Self {
            objects: vec![0; loaded],
            edges: vec![0; loaded],
            ..Self::default()
        }
    }

    /// Adds a write that has committed, and its new edge to the worker's own ones.
    pub fn add(&mut self, write: &Write, effect: Effect, own: &mut Book) {
        let Effect::Done { node } = effect else {
            return;
        };
        let time = match write.kind {
            Kind::ObjDelete | Kind::EdgeDelete => DELETED,
            _ => write.time,
        };
        let latest = |times: &mut Vec<u64>, at: u32| {
            let at = &mut times[at as usize];
            *at = (*at).max(time);
        };
        match (write.kind, write.of) {
            (Kind::ObjAdd, _) => self.added.push((write.edge.id1, time)),
            (Kind::EdgeAdd, _) => {
                self.own.push(time);
                let edge = write.edge;
                own.push(Known { edge, node });
            }
            (Kind::EdgeUpdate | Kind::EdgeDelete, Some((Pick::Loaded(at), _))) => {
                latest(&mut self.edges, at);
            }
            (Kind::EdgeUpdate | Kind::EdgeDelete, Some((Pick::Own(at), _))) => {
                latest(&mut self.own, at);
            }
            (_, Some((Pick::Loaded(at), _))) => latest(&mut self.objects, at),
            // The objects of added edges do not exist.
            _ => {}
        }
    }

    /// Writes the times of the loaded edges to the file of a worker, for the other workers.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, dir: &Path, worker: u64) -> io::Result<()> {
        let mut file = io::BufWriter::new(File::create(file_of(dir, worker))?);
        for time in self.objects.iter().chain(&self.edges) {
            file.write_all(&time.to_le_bytes())?;
        }
        file.flush()
    }
}

fn file_of(dir: &Path, worker: u64) -> PathBuf {
    dir.join(format!("written-{worker}"))
}

/// Returns the latest times of all workers of a range of `loaded` edges: of their first objects, and of the edges.
fn latest(
    dir: &Path,
    workers: u64,
    loaded: u64,
    numbers: &Range<u64>,
) -> io::Result<[Vec<u64>; 2]> {
    let count = (numbers.end - numbers.start) as usize;
    let mut all = [vec![0; count], vec![0; count]];
    let mut bytes = vec![0; count * 8];
    for worker in 0..workers {
        let mut file = File::open(file_of(dir, worker))?;
        for (times, first) in all.iter_mut().zip([0, loaded]) {
            file.seek(SeekFrom::Start((first + numbers.start) * 8))?;
            file.read_exact(&mut bytes)?;
            for (time, bytes) in times.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *time = (*time).max(u64::from_le_bytes(*bytes));
            }
        }
    }
    Ok(all)
}

/// Returns what exists after a run of clients of this process: objects and edges, each with the time of its last write, or
/// `None` if it was deleted.
pub(crate) fn expected(
    loaded: &Loaded,
    clients: &[(Written, Book)],
) -> impl Iterator<Item = (Owner, Option<u64>)> {
    let latest = |number: u64, times: fn(&Written) -> &[u64]| {
        let times = clients
            .iter()
            .map(|(written, _)| times(written)[number as usize]);
        times.fold(loaded.time(number), u64::max)
    };
    let of_loaded = (0..loaded.len()).flat_map(move |number| {
        let edge = loaded.get(number);
        [
            (Owner::Object(edge.id1), latest(number, |it| &it.objects)),
            (Owner::Object(edge.id2), loaded.time(number)),
            (Owner::Edge(edge), latest(number, |it| &it.edges)),
        ]
    });
    let of_clients = clients.iter().flat_map(|(written, own)| {
        let edges = own.edges().iter().zip(&written.own);
        let edges = edges.map(|(known, time)| (Owner::Edge(known.edge), *time));
        edges.chain(
            written
                .added
                .iter()
                .map(|(key, time)| (Owner::Object(*key), *time)),
        )
    });
    let all = of_loaded.chain(of_clients);
    all.map(|(owner, time)| (owner, Some(time).filter(|time| *time != DELETED)))
}

/// What a worker checks.
pub struct Audit {
    /// The edges that were loaded.
    pub loaded: Arc<Loaded>,
    /// The edges that were loaded, with names.
    pub book: Arc<Book>,
    /// The numbers of the worker's share.
    pub numbers: Range<u64>,
    /// The edges that the worker has added.
    pub own: Book,
    /// What the worker has written.
    pub written: Written,
    /// The directory with the files of all workers.
    pub dir: PathBuf,
    /// Number of workers.
    pub workers: u64,
    /// Number of edges that are checked at a time.
    pub in_flight: usize,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditResult {
    /// Number of objects.
    pub objects: u64,
    /// Number of edges, without inverse edges.
    pub edges: u64,
    /// Number of inverse edges.
    pub inverses: u64,
    /// Number of objects and edges that were deleted.
    pub deleted: u64,
    /// The first error, if any.
    pub wrong: Option<String>,
}

impl Found for AuditResult {
    fn wrong(&mut self) -> &mut Option<String> {
        &mut self.wrong
    }
}

impl AddAssign for AuditResult {
    fn add_assign(&mut self, other: AuditResult) {
        self.objects += other.objects;
        self.edges += other.edges;
        self.inverses += other.inverses;
        self.deleted += other.deleted;
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

/// What is checked at a time.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// An edge, with the time of its last write, and with those of its objects if they exist.
    Edge(Known, u64, Option<[u64; 2]>),
    /// An object and its time.
    Object(u64, u64),
}

/// Checks the share of a worker. No request may be in flight on any worker.
pub fn run(worker: &mut Worker, audit: Audit, done: Done<AuditResult>) {
    let Audit {
        loaded,
        book,
        numbers,
        own,
        written,
        ..
    } = audit;
    let [objects, edges] = match latest(&audit.dir, audit.workers, loaded.len(), &numbers) {
        Ok(latest) => latest,
        Err(error) => {
            let wrong = format!("cannot read what the workers have written: {error}");
            return done(AuditResult {
                wrong: Some(wrong),
                ..AuditResult::default()
            });
        }
    };
    let of_loaded = numbers.clone().map(move |number| {
        let at = (number - numbers.start) as usize;
        let first = loaded.time(number);
        let objects = [objects[at].max(first), first];
        let known = book.edges()[number as usize];
        Item::Edge(known, edges[at].max(first), Some(objects))
    });
    let own_edges: Vec<Known> = own.edges().to_vec();
    let of_own = own_edges.into_iter().zip(written.own);
    let of_own = of_own.map(|(known, time)| Item::Edge(known, time, None));
    let added = written.added.into_iter();
    let added = added.map(|(key, time)| Item::Object(key, time));
    let items = of_loaded.chain(of_own).chain(added);
    audit::run(worker, items, audit.in_flight, check, done);
}

async fn check(farm: &Handle, item: Item) -> Result<AuditResult, TxError> {
    let mut result = AuditResult::default();
    let wrong = match item {
        Item::Object(key, time) => check_object(farm, key, None, time, &mut result).await?,
        Item::Edge(known, time, objects) => {
            let mut wrong = check_edge(farm, known, time, &mut result).await?;
            if let Some([first, second]) = objects {
                let Known { edge, node } = known;
                wrong =
                    wrong.or(check_object(farm, edge.id1, Some(node), first, &mut result).await?);
                wrong = wrong.or(check_object(farm, edge.id2, None, second, &mut result).await?);
            }
            wrong
        }
    };
    result.wrong = wrong;
    Ok(result)
}

/// Checks an object. Returns what is wrong.
async fn check_object(
    farm: &Handle,
    key: u64,
    node: Option<FatPointer>,
    time: u64,
    result: &mut AuditResult,
) -> Result<Option<String>, TxError> {
    let node = match node {
        Some(node) => Some(node),
        None => alone::obj_find(farm, key).await?,
    };
    let found = match node {
        Some(node) => alone::obj_get(farm, node).await?,
        None => None,
    };
    let found = found.map(|found| (found.time, found.data));
    if time == DELETED {
        result.deleted += 1;
    } else {
        result.objects += 1;
    }
    Ok(differs(
        &format!("object {key}"),
        found,
        Owner::Object(key),
        time,
    ))
}

/// Checks an edge, the number of edges in its list, and its inverse. Returns what is wrong.
async fn check_edge(
    farm: &Handle,
    known: Known,
    time: u64,
    result: &mut AuditResult,
) -> Result<Option<String>, TxError> {
    let Known { edge, node } = known;
    let exists = time != DELETED;
    if exists {
        result.edges += 1;
    } else {
        result.deleted += 1;
    }
    let found = stored(farm, Some(node), edge).await?;
    let mut wrong = differs(&format!("{edge:?}"), found, Owner::Edge(edge), time);
    let count = alone::assoc_count(farm, node, edge.edge_type.number()).await?;
    // All keys are different, so that each list has at most one edge.
    if count.count != u32::from(exists) {
        let count = count.count;
        wrong.get_or_insert(format!("the list of {edge:?} has {count} edges"));
    }
    if edge.edge_type.has_inverse() {
        result.inverses += u64::from(exists);
        let second = alone::obj_find(farm, edge.id2).await?;
        let found = stored(farm, second, edge.inverse()).await?;
        let what = format!("the inverse of {edge:?}");
        wrong = wrong.or(differs(&what, found, Owner::Edge(edge), time));
    }
    Ok(wrong)
}

async fn stored(
    farm: &Handle,
    node: Option<FatPointer>,
    edge: Edge,
) -> Result<Option<(u64, Vec<u8>)>, TxError> {
    let Some(node) = node else {
        return Ok(None);
    };
    let (edge_type, all) = (edge.edge_type.number(), TimeBounds::default());
    let found = alone::assoc_get(farm, node, edge_type, &[edge.id2], all).await?;
    Ok(found.into_iter().next().map(|it| (it.time, it.data)))
}

/// Compares a time and a value with those of the last write.
fn differs(what: &str, found: Option<(u64, Vec<u8>)>, owner: Owner, time: u64) -> Option<String> {
    match found {
        None if time == DELETED => None,
        None => Some(format!("{what} is missing; it was written at {time}")),
        Some(_) if time == DELETED => Some(format!("{what} exists, but was deleted")),
        Some((found, _)) if found != time => Some(format!(
            "{what} is of time {found}, but was last written at {time}"
        )),
        Some((_, data)) if data != value(owner, time) => Some(format!(
            "{what} has not the value that was written at {time}"
        )),
        Some(_) => None,
    }
}
