//! SQLite: a database in shared memory with a write-ahead log, a connection for each client, and prepared statements.

mod link;
mod tao;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{CachedStatement, Connection, Transaction, TransactionBehavior};

use super::Facts;

pub(super) use link::LINK_TABLES;
pub(super) use tao::TAO_TABLES;

/// Settings of each connection. Readers and a writer do not wait for each other.
const SETTINGS: [(&str, &str); 7] = [
    ("journal_mode", "wal"),
    ("synchronous", "off"),
    ("mmap_size", "17179869184"),
    ("cache_size", "-262144"),
    ("temp_store", "memory"),
    ("wal_autocheckpoint", "10000"),
    ("page_size", "4096"),
];

/// A database.
pub(super) struct Sqlite {
    file: PathBuf,
}

impl Sqlite {
    /// Creates a database with tables.
    pub(super) fn create(dir: &Path, tables: &str) -> anyhow::Result<Self> {
        let own = Self {
            file: dir.join("sqlite"),
        };
        own.connect()?.execute_batch(tables)?;
        Ok(own)
    }

    fn connect(&self) -> anyhow::Result<Connection> {
        let connection = Connection::open(&self.file)?;
        // The page size is fixed when the first table is created.
        for (name, value) in SETTINGS.iter().rev() {
            connection.pragma_update(None, name, value)?;
        }
        // Otherwise a statement with a range is planned again whenever its bounds change.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.busy_handler(Some(|tries| {
            match tries {
                0..100 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
            true
        }))?;
        Ok(connection)
    }

    fn client_of(&self) -> anyhow::Result<Client> {
        Ok(Client {
            connection: self.connect()?,
        })
    }

    fn own_facts() -> Facts {
        let settings = SETTINGS
            .iter()
            .map(|(name, value)| format!("{name} = {value}"));
        let planner = "SQLITE_DBCONFIG_ENABLE_QPSG".to_owned();
        Facts {
            version: rusqlite::version().to_owned(),
            settings: settings.chain([planner]).collect(),
        }
    }
}

/// A client, with a connection of its own.
struct Client {
    connection: Connection,
}

impl Client {
    fn statement(&self, text: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(text)
    }

    /// Begins a transaction that will write. Another kind could fail when it begins to write.
    fn begin(&mut self) -> rusqlite::Result<Transaction<'_>> {
        self.connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
    }
}
