//! Changes of the numbers of pairs and blocks of shards by transactions. The owner of a shard keeps the numbers; other workers
//! send it their changes with a short delay.

use std::time::Duration;

use farm_core::messaging::{CallError, MessageId, Request};
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};

use crate::open::when_open;
use crate::owners::look_up_again;
use crate::shard::Delta;
use crate::state::kv;
use crate::table::TableId;

/// Message id of the effect of committed transactions on a shard's counts, sent to the shard's owner.
pub(crate) const COUNTS: MessageId = MessageId(MessageId::KV + 2);
/// Bytes of the message: table, shard, pairs and blocks.
const COUNTS_BYTES: usize = 22;
/// Time for which changes of counts are gathered before they are sent.
const SEND_AFTER: Duration = Duration::from_micros(100);
/// Time after which the opening of a table is first tried again. It is doubled after each try, up to 1 s.
const OPEN_AGAIN: Duration = Duration::from_millis(1);
/// The most doublings of that time.
const MOST_DOUBLINGS: u32 = 10;
/// The most tries to open a table for changes of counts; they take about 11 s.
const MOST_TRIES: u32 = 20;

/// Encodes a change of counts as the context of a continuation.
pub(super) fn pack(table: TableId, shard: u32, delta: Delta) -> u64 {
    let [pairs, blocks] = [delta.pairs, delta.blocks].map(|count| count as i8 as u8);
    u64::from(table.0) << 48 | u64::from(shard) << 16 | u64::from(pairs) << 8 | u64::from(blocks)
}

fn unpack(word: u64) -> (TableId, u32, Delta) {
    let [pairs, blocks] = [word >> 8, word].map(|count| i64::from(count as u8 as i8));
    let delta = Delta { pairs, blocks };
    (TableId((word >> 48) as u16), (word >> 16) as u32, delta)
}

/// Records the change of a shard's counts by a transaction that has committed.
pub(super) fn committed(worker: &mut Worker, word: u64, (): ()) {
    let (table, shard, delta) = unpack(word);
    add_counts(worker, table, shard, delta);
}

/// Adds a change of counts to a shard of this worker, or sends it to the owner.
fn add_counts(worker: &mut Worker, table: TableId, shard: u32, delta: Delta) {
    let me = worker.me();
    let state = kv(worker);
    let open = state.tables.get_mut(&table.0).expect(
        "the table of a transaction was open when it was used, and tables are never closed",
    );
    let known = &mut open.shards[shard as usize];
    if known.owner == me {
        return known.add(delta);
    }
    if mutants::is_on("counts not told to the owner") {
        return;
    }
    let first = state.unsent_counts.is_empty();
    let mut unsent_counts = state.unsent_counts.iter_mut();
    match unsent_counts.find(|unsent_counts| (unsent_counts.0, unsent_counts.1) == (table, shard)) {
        Some((.., sum)) => {
            sum.pairs += delta.pairs;
            sum.blocks += delta.blocks;
        }
        None => state.unsent_counts.push((table, shard, delta)),
    }
    if first {
        worker.set_timer(SEND_AFTER, Cont::new(send_counts, 0));
    }
}

/// Sends changes of counts to the owners, the last one first, while there is room.
fn send_counts(worker: &mut Worker, _: u64, (): ()) {
    while let Some(&(table, shard, delta)) = kv(worker).unsent_counts.last() {
        let owner = look_up_again(worker, table.0, shard);
        let mut body = [0; COUNTS_BYTES];
        body[..2].copy_from_slice(&table.0.to_le_bytes());
        body[2..6].copy_from_slice(&shard.to_le_bytes());
        body[6..14].copy_from_slice(&delta.pairs.to_le_bytes());
        body[14..].copy_from_slice(&delta.blocks.to_le_bytes());
        match worker.send(owner, COUNTS, &[&body]) {
            Err(CallError::Busy) => {
                marks::mark("kv: counts wait for room");
                return worker.when_room(Cont::new(send_counts, 0));
            }
            // If the owner's machine is lost, so are its counts.
            _ => _ = kv(worker).unsent_counts.pop(),
        }
    }
}

/// Describes the changes of counts that were not sent to the owners; `None` if all were sent. A machine must not leave before: the
/// owners would count wrong for ever.
pub(crate) fn unsent_counts(worker: &mut Worker) -> Option<String> {
    if mutants::is_on("a machine leaves before it has sent its counts") {
        return None;
    }
    let state = kv(worker);
    let kept = state.unopened.values().map(|kept| kept.messages.len());
    let unsent = state.unsent_counts.len() + kept.sum::<usize>();
    (unsent > 0).then(|| format!("{unsent} changes of counts"))
}

/// Adds the changes of counts that another worker has made to a shard of this worker. If this worker does not own the shard, it
/// passes them on to the owner.
pub(crate) fn handle_counts(worker: &mut Worker, request: Request, body: &[u8]) {
    let table = decode(body).map(|counts| counts.0);
    when_open(worker, table, (request, body), handle_counts_now);
}

fn handle_counts_now(worker: &mut Worker, request: Request, body: &[u8]) {
    let counts = decode(body).map(|(table, shard, delta)| {
        let open = kv(worker).tables.get(&table);
        (table, shard, delta, open.map(|open| open.spec.shards))
    });
    match counts {
        Some((table, .., None)) => keep(worker, table, request, body),
        Some((table, shard, delta, Some(shards))) if shard < shards => {
            look_up_again(worker, table, shard);
            add_counts(worker, TableId(table), shard, delta);
            // Those that came before the table could be opened.
            let kept = kv(worker).unopened.remove(&table);
            for (request, body) in kept.into_iter().flat_map(|kept| kept.messages) {
                handle_counts_now(worker, request, &body);
            }
        }
        _ => {
            let from = request.from;
            let why = format!("{from} sent a COUNTS message for a shard that does not exist");
            worker.distrust(request.from.machine, why);
        }
    }
}

/// Keeps the message about a table that cannot be opened now, and tries again later.
fn keep(worker: &mut Worker, table: u16, request: Request, body: &[u8]) {
    let kept = kv(worker).unopened.entry(table).or_default();
    kept.messages.push((request, body.to_vec()));
    // The others wait for the same time.
    if kept.messages.len() == 1 {
        let wait = OPEN_AGAIN * 2u32.pow(kept.tries.min(MOST_DOUBLINGS));
        worker.set_timer(wait, Cont::new(open_again, u64::from(table)));
    }
}

/// Tries again to open a table for the messages that wait for it.
fn open_again(worker: &mut Worker, table: u64, (): ()) {
    let table = table as u16;
    let Some(kept) = kv(worker).unopened.get_mut(&table) else {
        return;
    };
    kept.tries += 1;
    if kept.tries > MOST_TRIES {
        kv(worker).unopened.remove(&table);
        tracing::warn!(
            table,
            tries = MOST_TRIES,
            "cannot open a table; the number of its pairs is wrong from now on"
        );
        return;
    }
    for (request, body) in std::mem::take(&mut kept.messages) {
        when_open(worker, Some(table), (request, &body), handle_counts_now);
    }
}

/// Decodes a message: table, shard, and the changes of its counts.
pub(crate) fn decode(body: &[u8]) -> Option<(u16, u32, Delta)> {
    let body: &[u8; COUNTS_BYTES] = body.try_into().ok()?;
    let table = u16::from_le_bytes([body[0], body[1]]);
    let shard = u32::from_le_bytes(body[2..6].try_into().ok()?);
    let count = |at: usize| Some(i64::from_le_bytes(body[at..at + 8].try_into().ok()?));
    let delta = Delta {
        pairs: count(6)?,
        blocks: count(14)?,
    };
    Some((table, shard, delta))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking;
    use crate::table::TableSpec;
    use crate::testing::cluster;

    /// Regression test: the owner dropped changes of counts if it could not open the table at that moment. Here the catalog does
    /// not have the table yet.
    #[test]
    fn counts_of_a_table_that_cannot_be_opened_yet_are_kept() {
        let cluster = cluster("counts-kept", 2);
        let spec = |id| TableSpec::sized(id, 4, 8, 2, 64, 0.9).unwrap();
        // The catalog exists, and has another table with shards on the same machines.
        blocking::open(&cluster.machines, spec(1)).unwrap();
        let owner = cluster.on(0, 0, |worker| kv(worker).tables[&1].shards[1].owner);
        let sender = usize::from(owner.machine == cluster.machines[0].id());
        let owns = 1 - sender;
        let mut body = [0; COUNTS_BYTES];
        body[0] = 2;
        body[2] = 1;
        body[6] = 5;
        for _ in 0..2 {
            cluster.on(sender, 0, move |worker| {
                worker.send(owner, COUNTS, &[&body]).unwrap()
            });
        }
        let kept = |worker: &mut Worker| kv(worker).unopened.get(&2).map_or(0, |kept| kept.tries);
        while cluster.on(owns, 0, kept) < 2 {
            std::thread::yield_now();
        }
        assert!(cluster.on(owns, 0, crate::left_over).is_some());
        blocking::open(&cluster.machines[sender..=sender], spec(2)).unwrap();
        let pairs = |worker: &mut Worker| {
            let open = kv(worker).tables.get(&2);
            open.map_or(0, |open| open.shards[1].pairs)
        };
        while cluster.on(owns, 0, pairs) < 10 {
            std::thread::yield_now();
        }
        assert_eq!(cluster.on(owns, 0, |worker| kv(worker).unopened.len()), 0);
        assert_eq!(cluster.on(owns, 0, crate::left_over), None);
        cluster.stop();
    }
}
