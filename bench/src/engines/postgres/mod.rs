//! PostgreSQL: a server on this host, a connection at its Unix domain socket for each client, prepared statements, and
//! functions in the server for what would take several round trips.

mod link;
mod server;
mod tao;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use postgres::error::SqlState;
use postgres::{Client, Row};

use super::Facts;
use server::Server;

pub(super) use link::TABLES as LINK_TABLES;
pub(super) use tao::TABLES as TAO_TABLES;

/// A server with tables.
pub(super) struct Postgres {
    server: Arc<Server>,
}

impl Postgres {
    /// Starts a server and creates tables.
    pub(super) fn create(dir: &Path, tables: &str) -> anyhow::Result<Self> {
        let server = Arc::new(Server::start(dir)?);
        let mut client = server.connect()?;
        client
            .batch_execute(tables)
            .context("cannot create the tables")?;
        Ok(Self { server })
    }

    fn own_facts(&self) -> anyhow::Result<Facts> {
        let mut client = self.server.connect()?;
        let version: String = client.query_one("SHOW server_version", &[])?.try_get(0)?;
        Ok(Facts {
            version,
            settings: server::SETTINGS.iter().map(|&it| it.to_owned()).collect(),
        })
    }

    /// Sorts out what the load has written, so that no run begins with this work.
    fn settle(client: &mut Client) -> anyhow::Result<()> {
        client.batch_execute("VACUUM (FREEZE, ANALYZE)")?;
        Ok(client.batch_execute("CHECKPOINT")?)
    }
}

/// Checks that the programs of the server are installed.
pub(super) fn check() -> anyhow::Result<()> {
    server::find_programs().map(|_| ())
}

/// Repeats a call while it fails because of a conflict with another transaction.
fn retry<T>(mut call: impl FnMut() -> Result<T, postgres::Error>) -> Result<T, postgres::Error> {
    loop {
        match call() {
            Err(error) if is_conflict(&error) => {}
            result => return result,
        }
    }
}

fn is_conflict(error: &postgres::Error) -> bool {
    let states = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
    ];
    error.code().is_some_and(|code| states.contains(code))
}

/// Returns a column whose numbers are not negative.
fn unsigned(row: &Row, at: usize) -> anyhow::Result<u64> {
    Ok(row.try_get::<_, i64>(at)? as u64)
}
