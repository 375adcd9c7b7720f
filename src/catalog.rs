//! The catalog: the tables of a cluster by their names.
//!
//! It is a table itself, of one shard. All machines know its specification, so that any of them opens it. A row has the
//! name as its key, padded with zeros, and a description as its value. The row of the empty name contains the next number
//! of a table. docs/layouts.md shows the bytes.

use farm_kv::shard::Changed;
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
const CATALOG: u16 = 0;
/// The first number that the catalog gives. Programs that open tables by their numbers use smaller ones.
const FIRST: u16 = 1 << 12;
/// The version of the layout of a row.
const VERSION: u8 = 1;
/// The kind of a row that describes a table.
const TABLE: u8 = 1;

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
        let text = format!("{name:?} is not the name of a table: {why}");
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

fn encode(spec: &TableSpec) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    let encoded = spec.to_bytes();
    (row[0], row[1]) = (VERSION, TABLE);
    row[2..2 + encoded.len()].copy_from_slice(&encoded);
    row
}

fn decode(name: &str, row: &[u8]) -> Result<TableSpec> {
    let described = match row {
        [VERSION, TABLE, rest @ ..] => rest.first_chunk(),
        _ => None,
    };
    let spec = described.map(TableSpec::from_bytes);
    spec.ok_or_else(|| {
        let text =
            format!("the catalog describes {name:?} in a way that this version does not know");
        Error::new(Kind::Invalid, text)
    })
}

/// Opens the catalog on the worker of a handle.
async fn open(farm: &Handle) -> Result<TableId> {
    Ok(tasks::open(farm, spec()).await?)
}

/// Returns the specification of a table; `None` if there is no table of this name.
pub(crate) async fn find(farm: &Handle, name: &str) -> Result<Option<TableSpec>> {
    let key = encode_name(name)?;
    let mut row = Vec::new();
    let found = look_up(farm, &spec(), key, |bytes| row.extend_from_slice(bytes)).await?;
    found.then(|| decode(name, &row)).transpose()
}

/// Creates a table, unless it exists. `wanted` has any number; the returned specification has that of the catalog. Returns
/// whether the table is new, too.
///
/// # Errors
/// [`Kind::Exists`] if the table exists with another specification.
pub(crate) async fn create(
    farm: &Handle,
    name: &str,
    wanted: TableSpec,
) -> Result<(TableSpec, bool)> {
    let key = encode_name(name)?;
    let catalog = open(farm).await?;
    let (row, is_new) = farm
        .transact(async |tx| match tasks::get(tx, catalog, &key).await? {
            Some(row) => Ok((row, false)),
            None => Ok((add(tx, catalog, &key, wanted).await?, true)),
        })
        .await?;
    let found = decode(name, &row)?;
    let wanted = TableSpec {
        id: found.id,
        ..wanted
    };
    match found == wanted {
        true => Ok((found, is_new)),
        false => Err(different(name, &found, &wanted)),
    }
}

/// Removes a table that could not be opened.
pub(crate) async fn remove(farm: &Handle, name: &str, spec: &TableSpec) -> Result<()> {
    let (key, row) = (encode_name(name)?, encode(spec));
    let catalog = open(farm).await?;
    let removed = farm.transact(async |tx| {
        if tasks::get(tx, catalog, &key).await?.as_deref() == Some(&row[..]) {
            tasks::change(tx, catalog, &key, Change::Remove).await?;
        }
        Ok(())
    });
    Ok(removed.await?)
}

/// Adds a row with the next number, and returns it.
async fn add(
    tx: Transaction<'_>,
    catalog: TableId,
    name: &Name,
    wanted: TableSpec,
) -> Result<Vec<u8>, TxError> {
    let next = tasks::get(tx, catalog, &NEXT).await?;
    let next = next.map_or(FIRST, |row| u16::from_le_bytes([row[0], row[1]]));
    let Some(after) = next.checked_add(1) else {
        let why = format!(
            "the catalog has given all numbers of tables, up to {}",
            u16::MAX
        );
        return Err(TxError::Refused(why));
    };
    let mut counter = [0; ROW_BYTES];
    counter[..2].copy_from_slice(&after.to_le_bytes());
    tasks::change(tx, catalog, &NEXT, Change::Upsert(&counter)).await?;
    let row = encode(&TableSpec { id: next, ..wanted });
    let added = tasks::write(tx, catalog, *name, ChangeKind::Insert, row).await?;
    debug_assert_eq!(added, Changed::Inserted);
    Ok(row.to_vec())
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
        assert_eq!(decode("x", &encode(&spec)).unwrap(), spec);
        let mut other = encode(&spec);
        other[1] = 2;
        assert_eq!(decode("x", &other).unwrap_err().kind(), Kind::Invalid);
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
