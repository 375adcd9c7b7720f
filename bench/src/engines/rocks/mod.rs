//! RocksDB: pessimistic transactions, no write-ahead log, everything in the block cache.

mod link;
mod tao;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, anyhow};
use rocksdb::{
    BlockBasedOptions, BottommostLevelCompaction, Cache, ColumnFamily, ColumnFamilyDescriptor,
    CompactOptions, DB, DBCompressionType, DataBlockIndexType, ErrorKind, Options, ReadOptions,
    SliceTransform, Transaction, TransactionDB, TransactionDBOptions, TransactionOptions,
    WriteBatch, WriteOptions,
};

use super::Facts;

/// Bytes of the block cache, which is not filled before it is used.
const CACHE_BYTES: usize = 12 << 30;
/// Bytes of a table in memory, of each family.
const MEMTABLE_BYTES: usize = 256 << 20;
/// Bytes of a batch of a load.
const BATCH_BYTES: usize = 4 << 20;

/// A column family. Iterators stay within one prefix of `prefix` bytes; 0 if there are no iterators.
pub(super) struct Family {
    name: &'static str,
    prefix: usize,
}

const fn family(name: &'static str, prefix: usize) -> Family {
    Family { name, prefix }
}

/// The families of LinkBench. `list` contains the visible links, by type and descending time.
pub(super) const LINK_FAMILIES: &[Family] = &[
    family("node", 0),
    family("link", 0),
    family("list", 12),
    family("count", 0),
];

/// The families of TAOBench. `newest` contains the edges by type and descending time.
pub(super) const TAO_FAMILIES: &[Family] =
    &[family("object", 0), family("edge", 0), family("newest", 12)];

/// A database. It is loaded without transactions, and then opened with them.
pub(super) struct Rocks {
    dir: PathBuf,
    families: &'static [Family],
    db: OnceLock<Arc<TransactionDB>>,
}

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_open_files(-1);
    options.increase_parallelism(2);
    options
}

fn options_of(family: &Family, cache: &Cache) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    blocks.set_block_size(4096);
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.05);
    if family.prefix > 0 {
        options.set_prefix_extractor(SliceTransform::create_fixed_prefix(family.prefix));
    }
    options
}

impl Rocks {
    pub(super) fn create(dir: &Path, families: &'static [Family]) -> Self {
        Self {
            dir: dir.join("rocksdb"),
            families,
            db: OnceLock::new(),
        }
    }

    fn own_facts() -> Facts {
        let settings = [
            "pessimistic transactions, deadlock_detect = true",
            "disableWAL = true",
            "compression = none",
            "block_cache = 12 GiB, block_size = 4096, data_block_index_type = kDataBlockBinaryAndHash",
            "filter_policy = bloom(10), memtable_whole_key_filtering = true, memtable_prefix_bloom_size_ratio = 0.05",
            "write_buffer_size = 256 MiB, max_open_files = -1, increase_parallelism(2)",
            "compact_range over everything after the load",
        ];
        Facts {
            version: rocksdb_version().to_owned(),
            settings: settings.map(str::to_owned).to_vec(),
        }
    }

    fn descriptors(&self) -> Vec<ColumnFamilyDescriptor> {
        let cache = Cache::new_lru_cache(CACHE_BYTES);
        let families = self.families.iter();
        families
            .map(|it| ColumnFamilyDescriptor::new(it.name, options_of(it, &cache)))
            .collect()
    }

    /// Writes what `fill` puts, compacts everything, and opens the database for transactions.
    fn load_by(
        &self,
        fill: impl FnOnce(&mut Loader<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let db = DB::open_cf_descriptors(&options(), &self.dir, self.descriptors())?;
        let mut loader = Loader {
            db: &db,
            batch: WriteBatch::default(),
        };
        fill(&mut loader)?;
        loader.write()?;
        let mut all = CompactOptions::default();
        all.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        for family in self.families {
            let family = db
                .cf_handle(family.name)
                .context("the family was created")?;
            db.flush_cf(family)?;
            db.compact_range_cf_opt(family, None::<&[u8]>, None::<&[u8]>, &all);
        }
        drop(db);
        let transactions = TransactionDBOptions::default();
        let db = TransactionDB::open_cf_descriptors(
            &options(),
            &transactions,
            &self.dir,
            self.descriptors(),
        )?;
        self.db
            .set(Arc::new(db))
            .map_err(|_| anyhow!("the database is already loaded"))
    }

    fn client_of(&self) -> anyhow::Result<Client> {
        let db = self.db.get().context("the database is not loaded")?;
        Ok(Client { db: Arc::clone(db) })
    }
}

/// The version of the library, as its crate states it.
fn rocksdb_version() -> &'static str {
    "11.8.1"
}

/// Writes pairs in batches.
struct Loader<'a> {
    db: &'a DB,
    batch: WriteBatch,
}

impl Loader<'_> {
    fn put(&mut self, family: &str, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let family = self.db.cf_handle(family).context("no such family")?;
        self.batch.put_cf(family, key, value);
        if self.batch.size_in_bytes() >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        Ok(self.db.write_opt(batch, &unlogged())?)
    }
}

fn unlogged() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

/// A client.
struct Client {
    db: Arc<TransactionDB>,
}

impl Client {
    fn family(&self, name: &str) -> &ColumnFamily {
        self.db
            .cf_handle(name)
            .expect("the families of the tables exist")
    }

    /// Runs a transaction until it commits; `body` returns `None` to give it up. Locks that would wait for each other,
    /// or were waited for too long, repeat it.
    fn transact<T>(
        &self,
        mut body: impl FnMut(&Tx<'_>) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<Option<T>> {
        loop {
            let mut options = TransactionOptions::new();
            options.set_deadlock_detect(true);
            let tx = Tx {
                client: self,
                tx: self.db.transaction_opt(&unlogged(), &options),
            };
            let result = body(&tx).and_then(|result| {
                if result.is_some() {
                    tx.tx.commit()?;
                }
                Ok(result)
            });
            match result {
                Err(error) if is_conflict(&error) => std::thread::yield_now(),
                result => return result,
            }
        }
    }
}

fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<rocksdb::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain
        )
    })
}

/// A transaction of a client.
struct Tx<'a> {
    client: &'a Client,
    tx: Transaction<'a, TransactionDB>,
}

impl Tx<'_> {
    /// Locks a key, whether or not it exists, and returns its value.
    fn lock(&self, family: &str, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self
            .tx
            .get_for_update_cf(self.client.family(family), key, true)?)
    }

    fn put(&self, family: &str, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.tx.put_cf(self.client.family(family), key, value)?)
    }

    fn delete(&self, family: &str, key: &[u8]) -> anyhow::Result<()> {
        Ok(self.tx.delete_cf(self.client.family(family), key)?)
    }
}

/// Returns the options of an iterator that stays within the prefix at which it begins.
fn within_prefix() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_prefix_same_as_start(true);
    options
}

/// Concatenates parts of a key or value.
fn join<const N: usize>(parts: [&[u8]; N]) -> Vec<u8> {
    parts.concat()
}

/// Takes `N` bytes from the front of a stored value.
fn take<const N: usize>(bytes: &mut &[u8]) -> anyhow::Result<[u8; N]> {
    let (first, rest) = bytes
        .split_first_chunk()
        .context("a stored value is too short")?;
    *bytes = rest;
    Ok(*first)
}
