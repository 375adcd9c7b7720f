//! Costs of operations on the graph.

use farm_core::alloc::SizeClass;
use farm_core::worker::Worker;

use crate::counters::{Costs, counters};

counters! {
    /// Costs of the operations on the graph that a worker has begun.
    pub struct GraphCosts {
        /// Reads of nodes by pointers.
        pub nodes: u64,
        /// Reads of objects by them.
        pub node_reads: u64,
        /// Reads of the numbers of associations.
        pub counts: u64,
        /// Reads of objects by them.
        pub count_reads: u64,
        /// Reads of lists.
        pub ranges: u64,
        /// Reads of objects by them, without those in transactions.
        pub range_reads: u64,
        /// Reads of nodes or lists that needed a transaction, because they extend over several objects.
        pub transactions: u64,
        /// Lookups of the pointers of ids.
        pub finds: u64,
        /// Reads of objects by them.
        pub find_reads: u64,
        /// Reads of lists whose first page was in the cache.
        pub head_hits: u64,
        /// Reads of lists whose first page was not in the cache.
        pub head_misses: u64,
        /// Reads of lists whose cached first page had been freed.
        pub head_stale: u64,
        /// Operations that this worker made for all machines, as the owner of their nodes.
        pub owned: u64,
        /// Transactions of these operations.
        pub owned_transactions: u64,
        /// Conflicts of these transactions, which were retried.
        pub owned_conflicts: u64,
    }
}

impl Costs for GraphCosts {
    fn of(worker: &mut Worker) -> Self {
        let reads = farm_graph::read_counters(worker);
        let heads = farm_graph::head_counters(worker);
        let owner = farm_graph::owner_counters(worker);
        let finds = farm_kv::counters(worker);
        let all = [reads.obj_get, reads.assoc_count, reads.assoc_range];
        Self {
            nodes: reads.obj_get.operations,
            node_reads: reads.obj_get.reads,
            counts: reads.assoc_count.operations,
            count_reads: reads.assoc_count.reads,
            ranges: reads.assoc_range.operations,
            range_reads: reads.assoc_range.reads,
            transactions: all.iter().map(|cost| cost.transactions).sum(),
            finds: finds.hits + finds.misses,
            find_reads: finds.reads_of_hits + finds.reads_of_misses,
            head_hits: heads.hits,
            head_misses: heads.misses,
            head_stale: heads.stale,
            owned: owner.operations,
            owned_transactions: owner.transactions,
            owned_conflicts: owner.conflicts,
        }
    }
}

/// Returns the bytes of the objects that a worker has allocated.
pub fn object_bytes(worker: &Worker) -> u64 {
    let of_class = |class: SizeClass| worker.slab_usage(class).live * class.object_bytes() as u64;
    SizeClass::all().map(of_class).sum()
}
