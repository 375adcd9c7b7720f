//! Several reads at the same time in one transaction.

use farm_core::object::FatPointer;
use farm_graph::tasks::{self, alone};
use farm_graph::tx::Range;
use farm_graph::{Found, Read, Results};
use farm_txn::{Handle, Transaction, TxError, block_on};

use crate::common::{PLAIN, assoc, cluster, people};

/// Returns the ids of the associations of a node, read by [`tasks::read_all`].
async fn ids_of(tx: Transaction<'_>, node: FatPointer) -> Result<Vec<u64>, TxError> {
    let reads = [(node, Read::Range(PLAIN, Range::newest(9)))];
    let copy = |results: Results<'_>| -> Vec<u64> {
        let ids = results.iter().flat_map(|found| match found {
            Found::Assocs(assocs) => assocs.iter().map(|it| it.id2).collect(),
            _ => Vec::new(),
        });
        ids.collect()
    };
    tasks::read_all(tx, &reads, copy).await
}

/// Several reads cached the first page of a list that their own transaction had created. The transaction aborted, and the
/// next object in the memory of the page had the same incarnation: the first page of the list of another node. So the
/// cache named that page for the first node, and reads returned the associations of the other node. The simulator found
/// this once in about 150 runs.
#[test]
fn a_first_page_of_a_transaction_that_aborts_is_not_cached() {
    let cluster = cluster("graph-several-abort", 1, 1024);
    let nodes = people(&cluster, 2);
    let done = block_on(&cluster.machines[0], 0, async move |farm: Handle| {
        let [(_, ann), (_, bob)] = nodes[..] else {
            unreachable!("two nodes were added")
        };
        let tx = farm.begin().await.unwrap();
        tasks::assoc_add(*tx, ann, PLAIN, assoc(7, 1, None, b"x"), 1).await?;
        assert_eq!(ids_of(*tx, ann).await?, [7]);
        tx.abort();

        alone::assoc_add(&farm, bob, PLAIN, assoc(8, 1, None, b"x"), 1).await?;
        let found = alone::assoc_range(&farm, ann, PLAIN, Range::newest(9)).await?;
        assert_eq!(found, []);
        let tx = farm.begin().await.unwrap();
        assert_eq!(ids_of(*tx, ann).await?, [0; 0]);
        assert_eq!(ids_of(*tx, bob).await?, [8]);
        tx.commit().await
    });
    done.unwrap().unwrap();
    cluster.stop();
}
