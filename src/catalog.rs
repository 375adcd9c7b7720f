//! The catalog: the tables, sequences and the graph of a cluster by their names.
//!
//! It is a table itself, of one shard. All machines know its specification, so that any of them opens it. A row has the
//! name as its key, padded with zeros, and a description as its value. The row of the empty name contains the next number
//! of a table. docs/layouts.md shows the bytes.

use std::future::Future;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_kv::table::SPEC_BYTES;
use farm_kv::tasks::{self, ChangeKind};
use farm_kv::{Change, TableId, TableSpec};
use farm_txn::{Handle, Transaction, TxError};

use crate::access::look_up;
use crate::error::{Error, Kind, Result};

/// Most bytes of a name.
pub const MAX_NAME_BYTES: usize = 64;

/// Bytes of a description.
const ROW_BYTES: usize = 64;
/// The number of the catalog's own table.
pub(crate) const CATALOG: u16 = 0;
/// The first number that the catalog gives. Programs that open tables by their numbers use smaller ones.
const FIRST: u16 = 1 << 12;
/// The version of the layout of a row.
const VERSION: u8 = 1;
/// The kinds of rows: what they describe.
const TABLE: u8 = 1;
const GRAPH: u8 = 2;
const SEQUENCE: u8 = 3;
/// Offset of what follows the specification of a table in the row of a graph.
const GRAPH_AT: usize = 2 + SPEC_BYTES;

/// What a row describes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Entry {
    Table(TableSpec),
    Graph(GraphEntry),
    /// The object of a sequence.
    Sequence(FatPointer),
}

/// A graph, as the catalog describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GraphEntry {
    /// The table of the ids of nodes.
    pub(crate) ids: TableSpec,
    pub(crate) page_bytes: u32,
    /// The object with the text of the schema.
    pub(crate) schema: FatPointer,
    pub(crate) schema_bytes: u32,
}

impl Entry {
    /// Returns what it is, for errors.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Table(_) => "a table",
            Self::Graph(_) => "a graph",
            Self::Sequence(_) => "a sequence",
        }
    }
}

type Row = [u8; ROW_BYTES];
type Name = [u8; MAX_NAME_BYTES];

/// The name of the row with the next number.
const NEXT: Name = [0; MAX_NAME_BYTES];

fn spec() -> TableSpec {
    TableSpec {
        id: CATALOG,
        neighbourhood: 4,
        key_bytes: MAX_NAME_BYTES,
        value_bytes: ROW_BYTES,
        shards: 1,
        buckets: 64,
    }
}

fn encode_name(name: &str) -> Result<Name> {
    let invalid = |why: &str| {
        let text = format!("{name:?} is not a name: {why}");
        Err(Error::new(Kind::Invalid, text))
    };
    if name.is_empty() {
        return invalid("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return invalid("it is longer than 64 bytes");
    }
    if name.chars().any(char::is_control) {
        return invalid("it contains a control character");
    }
    let mut bytes = NEXT;
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

fn encode(entry: &Entry) -> Row {
    let mut row = [0; ROW_BYTES];
    row[0] = VERSION;
    let mut put = |at: usize, bytes: &[u8]| row[at..at + bytes.len()].copy_from_slice(bytes);
    match entry {
        Entry::Table(spec) => {
            put(1, &[TABLE]);
            put(2, &spec.to_bytes());
        }
        Entry::Graph(graph) => {
            put(1, &[GRAPH]);
            put(2, &graph.ids.to_bytes());
            put(GRAPH_AT, &graph.page_bytes.to_le_bytes());
            put(GRAPH_AT + 4, &graph.schema_bytes.to_le_bytes());
            put(GRAPH_AT + 8, bytemuck::bytes_of(&graph.schema.to_words()));
        }
        Entry::Sequence(object) => {
            put(1, &[SEQUENCE]);
            put(2, bytemuck::bytes_of(&object.to_words()));
        }
    }
    row
}

fn decode(name: &str, row: &[u8]) -> Result<Entry> {
    parse(row).ok_or_else(|| {
        let text =
            format!("the catalog describes {name:?} in a way that this version does not know");
        Error::new(Kind::Invalid, text)
    })
}

fn parse(row: &[u8]) -> Option<Entry> {
    let row: &Row = row.try_into().ok()?;
    let spec = || Some(TableSpec::from_bytes(row[2..].first_chunk()?));
    let number = |at: usize| Some(u32::from_le_bytes(*row[at..].first_chunk()?));
    let pointer =
        |at: usize| FatPointer::from_words(bytemuck::pod_read_unaligned(&row[at..at + 16]));
    match row[..2] {
        [VERSION, TABLE] => Some(Entry::Table(spec()?)),
        [VERSION, GRAPH] => Some(Entry::Graph(GraphEntry {
            ids: spec()?,
            page_bytes: number(GRAPH_AT)?,
            schema_bytes: number(GRAPH_AT + 4)?,
            schema: pointer(GRAPH_AT + 8)?,
        })),
        [VERSION, SEQUENCE] => Some(Entry::Sequence(pointer(2)?)),
        _ => None,
    }
}

/// Returns the names in the part of the catalog that this worker owns, with what they name. Returns none if the catalog is not
/// open, or is being changed.
pub(crate) fn names(worker: &mut Worker) -> Vec<(String, Entry)> {
    let mut names = Vec::new();
    let visit = |key: &[u8], row: &[u8]| {
        let name = key.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(entry) = parse(row).filter(|_| !name.is_empty()) {
            names.push((name, entry));
        }
    };
    match farm_kv::ops::own_pairs(worker, spec().table(), visit) {
        Ok(()) => names,
        Err(_) => Vec::new(),
    }
}

/// Opens the catalog on the worker of a handle.
async fn open(farm: &Handle) -> Result<TableId> {
    Ok(tasks::open(farm, spec()).await?)
}

/// Returns what has a name; `None` if nothing has.
pub(crate) async fn find(farm: &Handle, name: &str) -> Result<Option<Entry>> {
    let key = encode_name(name)?;
    let mut row = Vec::new();
    let found = look_up(farm, &spec(), key, |bytes| row.extend_from_slice(bytes)).await?;
    found.then(|| decode(name, &row)).transpose()
}

/// Returns what has this name, and whether it is new. If nothing has the name, `create` makes its description, in the
/// transaction that adds it to the catalog.
pub(crate) async fn find_or_create<'f, Fut>(
    farm: &'f Handle,
    name: &str,
    create: impl Fn(Transaction<'f>, TableId) -> Fut,
) -> Result<(Entry, bool)>
where
    Fut: Future<Output = Result<Entry, TxError>>,
{
    let key = encode_name(name)?;
    let catalog = open(farm).await?;
    let (row, is_new) = farm
        .transact(async |tx| {
            if let Some(row) = tasks::get(tx, catalog, &key).await? {
                return Ok((row, false));
            }
            let row = encode(&create(tx, catalog).await?);
            tasks::write(tx, catalog, key, ChangeKind::Insert, row).await?;
            Ok((row.to_vec(), true))
        })
        .await?;
    Ok((decode(name, &row)?, is_new))
}

/// Creates a table, unless it exists. `wanted` has any number; the returned specification has that of the catalog. Returns
/// whether the table is new, too.
///
/// # Errors
/// [`Kind::Exists`] if the name is taken by something else, or by a table with another specification.
pub(crate) async fn create_table(
    farm: &Handle,
    name: &str,
    wanted: TableSpec,
) -> Result<(TableSpec, bool)> {
    let create = async |tx, catalog| Ok(Entry::Table(numbered(tx, catalog, wanted).await?));
    let (found, is_new) = find_or_create(farm, name, create).await?;
    let found = table(name, &found, Kind::Exists)?;
    let wanted = TableSpec {
        id: found.id,
        ..wanted
    };
    match found == wanted {
        true => Ok((found, is_new)),
        false => Err(different(name, &found, &wanted)),
    }
}

/// Returns the specification of a table that has this name.
pub(crate) fn table(name: &str, found: &Entry, kind: Kind) -> Result<TableSpec> {
    match found {
        Entry::Table(spec) => Ok(*spec),
        other => Err(is_other(name, other, "a table", kind)),
    }
}

/// Returns the error of a name that names something else.
pub(crate) fn is_other(name: &str, found: &Entry, wanted: &str, kind: Kind) -> Error {
    let text = format!(
        "{name:?} is {}, not {wanted}; choose another name",
        found.what()
    );
    Error::new(kind, text)
}

/// Removes a table that could not be opened.
pub(crate) async fn remove(farm: &Handle, name: &str, spec: &TableSpec) -> Result<()> {
    let (key, row) = (encode_name(name)?, encode(&Entry::Table(*spec)));
    let catalog = open(farm).await?;
    let removed = farm.transact(async |tx| {
        if tasks::get(tx, catalog, &key).await?.as_deref() == Some(&row[..]) {
            tasks::change(tx, catalog, &key, Change::Remove).await?;
        }
        Ok(())
    });
    Ok(removed.await?)
}

/// Returns the specification with the next number.
pub(crate) async fn numbered(
    tx: Transaction<'_>,
    catalog: TableId,
    wanted: TableSpec,
) -> Result<TableSpec, TxError> {
    let mut counter = counter(tx, catalog).await?;
    let next = u16::from_le_bytes([counter[0], counter[1]]);
    let Some(after) = next.checked_add(1) else {
        let why = format!(
            "the catalog has given all numbers of tables, up to {}",
            u16::MAX
        );
        return Err(TxError::Refused(why));
    };
    counter[..2].copy_from_slice(&after.to_le_bytes());
    tasks::change(tx, catalog, &NEXT, Change::Upsert(&counter)).await?;
    Ok(TableSpec { id: next, ..wanted })
}

/// Records that the cluster has a graph, which can be created once.
pub(crate) async fn only_graph(tx: Transaction<'_>, catalog: TableId) -> Result<(), TxError> {
    let mut counter = counter(tx, catalog).await?;
    if counter[2] != 0 {
        let why = "the cluster has a graph of another name, and cannot have two";
        return Err(TxError::Refused(why.to_owned()));
    }
    counter[2] = 1;
    tasks::change(tx, catalog, &NEXT, Change::Upsert(&counter)).await?;
    Ok(())
}

/// Returns the row of the empty name: the next number of a table, and whether the cluster has a graph.
async fn counter(tx: Transaction<'_>, catalog: TableId) -> Result<Row, TxError> {
    let mut counter = [0; ROW_BYTES];
    match tasks::get(tx, catalog, &NEXT).await? {
        Some(row) => counter.copy_from_slice(&row),
        None => counter[..2].copy_from_slice(&FIRST.to_le_bytes()),
    }
    Ok(counter)
}

/// Returns the error of a table that exists with another specification.
fn different(name: &str, found: &TableSpec, wanted: &TableSpec) -> Error {
    let shape = |spec: &TableSpec| {
        format!(
            "keys of {} bytes, values of {} bytes and {} slots",
            spec.key_bytes,
            spec.value_bytes,
            spec.slots()
        )
    };
    let text = format!(
        "the table {name:?} exists with {}, and cannot be created with {}; open it, or choose another name",
        shape(found),
        shape(wanted)
    );
    Error::new(Kind::Exists, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_back() {
        let spec = TableSpec::sized(77, 6, 300, 9, 1_000_000, 0.8).unwrap();
        let spec = spec.with_key_bytes(31);
        let object = FatPointer::from_words([3 << 32 | 64, 5 << 56 | 9]).unwrap();
        let graph = GraphEntry {
            ids: spec,
            page_bytes: 8192,
            schema: object,
            schema_bytes: 1234,
        };
        for entry in [
            Entry::Table(spec),
            Entry::Graph(graph),
            Entry::Sequence(object),
        ] {
            assert_eq!(decode("x", &encode(&entry)).unwrap(), entry);
            let mut other = encode(&entry);
            other[1] = 200;
            assert_eq!(decode("x", &other).unwrap_err().kind(), Kind::Invalid);
            let mut newer = encode(&entry);
            newer[0] = VERSION + 1;
            assert!(decode("x", &newer).is_err());
        }
        assert!(decode("x", &[]).is_err());
    }

    #[test]
    fn names_are_checked() {
        for name in ["", "a\0b", "line\n", &"x".repeat(65)] {
            let error = encode_name(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
        }
        let long = "ü".repeat(32);
        assert_eq!(encode_name(&long).unwrap(), long.as_bytes());
    }
}
