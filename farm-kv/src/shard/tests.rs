//! A change of a shard that lacks an object has written nothing.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::complete::add;
use super::*;
use crate::TableSpec;
use crate::blocking::{self, OwnedChange};
use crate::state::kv;
use crate::testing::cluster;
use crate::{KEY_BYTES, Key};
use farm_core::worker::Worker;

const VALUE_BYTES: usize = 24;

/// Returns the payloads of the objects that the transaction has read, and whether it writes each of them.
fn snapshot(tx: &Tx, read: &[(Address, SizeClass)]) -> Vec<(Vec<u8>, bool)> {
    let objects = read.iter().map(|(address, class)| {
        let object = tx.known(*address, *class).unwrap().unwrap();
        (tx.payload(object).to_vec(), tx.is_written(object))
    });
    objects.collect()
}

/// Makes a change in a transaction that is aborted, and compares the transaction before and after each attempt that
/// lacked an object. Returns the outcome and the number of objects that the change needed.
fn attempt(worker: &mut Worker, pair: &[u8], removes: bool) -> (Changed, usize) {
    let key: Key = pair[..KEY_BYTES].try_into().unwrap();
    let open = &kv(worker).tables[&0];
    let home = open.locate(&key).1;
    let place = ShardPlace {
        layout: open.layout,
        first: open.shards[0].first,
        buckets: open.spec.buckets,
    };
    let mut tx = farm_txn::checkout(worker);
    let mut editor = Editor::new(&mut tx, place);
    let mut read = Vec::new();
    let changed = loop {
        let before = snapshot(editor.tx, &read);
        let change = match removes {
            true => editor.remove(home, &key),
            false => editor.put(home, pair, true, true),
        };
        match change {
            Ok(changed) => break changed,
            Err(EditError::Missing(missing)) => {
                assert_eq!(snapshot(editor.tx, &read), before);
                assert!(editor.written.is_empty());
                add(worker, &mut editor, missing).unwrap();
                if let Missing::Object(address, class) = missing {
                    read.push((address, class));
                }
            }
            Err(EditError::Failed(error)) => panic!("{error}"),
        }
    };
    editor.finish();
    tx.abort(worker);
    farm_txn::checkin(worker, tx);
    (changed, read.len())
}

#[test]
fn a_change_that_lacks_an_object_has_written_nothing() {
    const BUCKETS: u32 = 24;
    let cluster = cluster("shard-edits", 1);
    let machine = &cluster.machines[0];
    let spec = TableSpec {
        id: 0,
        neighbourhood: 4,
        key_bytes: crate::KEY_BYTES,
        value_bytes: VALUE_BYTES,
        shards: 1,
        buckets: BUCKETS,
    };
    let table = blocking::open([machine], spec).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(17);
    let mut needed = [[0; 2]; 40];
    for step in 0..4000_u64 {
        // The table overflows its slots, and empties again.
        let fill = if step / 200 % 2 == 0 { 7 } else { 3 };
        let removes = rng.random_range(0..10) >= fill;
        let mut pair = [0; KEY_BYTES + VALUE_BYTES];
        pair[..8].copy_from_slice(&rng.random_range(0..3 * BUCKETS).to_le_bytes().repeat(2));
        pair[KEY_BYTES] = step as u8;
        let (changed, objects) = cluster.on(0, 0, move |worker| attempt(worker, &pair, removes));
        needed[objects][usize::from(removes)] += 1;
        let (key, value) = pair.split_at(KEY_BYTES);
        let change = match removes {
            true => OwnedChange::Remove,
            false => OwnedChange::Upsert(value.to_vec()),
        };
        let made = blocking::change(machine, 0, table, key, change);
        assert_eq!(made.unwrap(), changed);
    }
    let far = |removes: usize| needed[4..].iter().map(|of| of[removes]).sum::<u32>();
    assert!(
        far(0) > 100 && far(1) > 100,
        "few changes displaced pairs or used chains: {needed:?}"
    );
    cluster.stop();
}
