//! One attempt of a transaction as [`attempt`](super::attempt) makes it, but as a task: an `async` function on the worker, which
//! awaits the calls that programs await.

use std::collections::VecDeque;

use farm_core::worker::Worker;
use farm_kv::tasks::{self, ChangeKind};
use farm_txn::{Handle, Transaction, TxError};
use futures_util::future::try_join_all;

use super::attempt::{
    EndedCont, Look, Seen, Stop, Trail, change_of, expect, name_of, new_trail, new_value, settings,
    table_of,
};
use super::{Drawn, RowName, Step};

/// What all attempts on a worker have in common.
struct Attempt<'a> {
    farm: &'a Handle,
    stamped: bool,
    look: Option<Look>,
}

/// Attempts for which no task has begun.
#[derive(Default)]
struct Waiting {
    attempts: VecDeque<(Box<Trail>, EndedCont)>,
    /// Number of tasks that take one of them next.
    takers: usize,
}

/// Runs one attempt of a transaction, as [`attempt::run`](super::attempt::run) does. A task whose attempt has ended makes the
/// next one, as the tasks of a program make one transaction after another.
///
/// # Panics
/// If the layer of the attempts is not attached.
pub fn run(worker: &mut Worker, what: Drawn, number: u64, cont: EndedCont) {
    let trail = new_trail(worker, what, number);
    if worker.layer::<Waiting>().is_none() {
        worker.put_layer(Box::<Waiting>::default());
    }
    let waiting = waiting(worker);
    waiting.attempts.push_back((trail, cont));
    if waiting.attempts.len() > waiting.takers {
        let (stamped, look) = settings(worker);
        farm_txn::spawn(worker, async move |farm: Handle| {
            let attempt = Attempt {
                farm: &farm,
                stamped,
                look,
            };
            attempt.make_all().await;
        });
    }
}

fn waiting(worker: &mut Worker) -> &mut Waiting {
    worker
        .layer()
        .expect("the layer is attached when the first attempt begins")
}

impl Attempt<'_> {
    /// Makes attempts, one after another, while there are any.
    async fn make_all(&self) {
        let mut next = self
            .farm
            .at_once(|worker| waiting(worker).attempts.pop_front());
        while let Some((mut trail, cont)) = next.flatten() {
            let result = self.run(&mut trail).await;
            next = self.farm.at_once(|worker| {
                waiting(worker).takers += 1;
                cont.resume(worker, (trail, result));
                waiting(worker).takers -= 1;
                waiting(worker).attempts.pop_front()
            });
        }
    }

    async fn run(&self, trail: &mut Trail) -> Result<(), Stop> {
        let Some(first) = step(trail)? else {
            return Ok(());
        };
        if trail.lock_free {
            trail.seen[first] = self.look_up(trail.names[first]).await?;
            return match step(trail)? {
                None => Ok(()),
                Some(_) => Err(Stop::Failed("a lookup asked for more rows".to_owned())),
            };
        }
        let tx = self.farm.begin().await?;
        match self.read_and_write(*tx, trail, first).await {
            Ok(()) => {
                if let Some(look) = self.look {
                    self.farm.at_once(|worker| look(worker, trail));
                }
                Ok(tx.commit().await?)
            }
            // A failure is reported only if the reads are mutually consistent.
            Err(why @ (Stop::Failed(_) | Stop::Full(_))) => {
                tx.validate().await?;
                Err(why)
            }
            Err(why) => Err(why),
        }
    }

    async fn read_and_write(
        &self,
        tx: Transaction<'_>,
        trail: &mut Trail,
        mut first: usize,
    ) -> Result<(), Stop> {
        loop {
            match trail.names[first..] {
                [name] => trail.seen[first] = self.row(tx, name).await?,
                ref names => {
                    let rows = names.iter().map(|name| self.row(tx, *name));
                    let rows = try_join_all(rows).await?;
                    trail.seen[first..].copy_from_slice(&rows);
                }
            }
            match step(trail)? {
                Some(next) => first = next,
                None => break,
            }
        }
        let trail = &*trail;
        match trail.decision().writes.len() {
            0 => Ok(()),
            1 => self.write(tx, trail, 0).await,
            count => {
                let writes = (0..count).map(|write| self.write(tx, trail, write));
                try_join_all(writes).await.map(drop)
            }
        }
    }

    /// Looks up a row without a transaction.
    async fn look_up(&self, name: RowName) -> Result<Seen, Stop> {
        let table = self.table_of(&name);
        loop {
            let found = tasks::look_up(self.farm, table, name.table_key(), |value| match value {
                Ok(value) => Some(Seen::of(&name, value, self.stamped).map_err(Stop::Failed)),
                Err(TxError::Busy) => None,
                Err(error) => Some(Err(error.into())),
            });
            match found.await {
                Some(found) => return found,
                None => tasks::when_slot(self.farm, table).await,
            }
        }
    }

    /// Reads a row in the transaction.
    async fn row(&self, tx: Transaction<'_>, name: RowName) -> Result<Seen, Stop> {
        let found = tasks::read(tx, self.table_of(&name), name.table_key(), |value| {
            Seen::of(&name, value?, self.stamped).map_err(Stop::Failed)
        });
        found.await
    }

    async fn write(&self, tx: Transaction<'_>, trail: &Trail, index: usize) -> Result<(), Stop> {
        let write = &trail.decision().writes[index];
        let (name, value) = (name_of(write), new_value(trail, index, self.stamped));
        let kind = ChangeKind::from(change_of(write, &value));
        let table = self.table_of(&name);
        let changed = tasks::write(tx, table, name.table_key(), kind, value).await;
        expect(write, changed)
    }

    fn table_of(&self, name: &RowName) -> farm_kv::TableId {
        let table = self.farm.at_once(|worker| table_of(worker, name));
        table.expect("an attempt is a task of its worker")
    }
}

/// Makes the next step. Returns the index of the first row to read; `None` if the transaction has decided.
fn step(trail: &mut Trail) -> Result<Option<usize>, Stop> {
    match trail.next_step() {
        Ok(Step::Read(names)) => Ok(Some(trail.begin_read(&names))),
        Ok(Step::End(decision)) => {
            trail.decision = Some(decision);
            Ok(None)
        }
        Err(error) => Err(Stop::Failed(error.to_string())),
    }
}
