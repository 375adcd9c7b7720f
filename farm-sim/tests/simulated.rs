//! Small simulated runs, judged by an independent exact checker.

use farm_check::history::Outcome;
use farm_sim::run::{Plan, RunOptions, run};

use exact::stateright;

#[path = "../check/tests/check/exact.rs"]
mod exact;

/// Maximum number of transactions that the exact checker can judge quickly: it tries all orders.
const MOST_TRANSACTIONS: usize = 30;

#[test]
fn stateright_accepts_small_runs_as_strictly_serializable() {
    let mut judged = 0;
    for seed in 0..200 {
        let mut plan = Plan::new(seed, "append".parse().unwrap());
        plan.spec.operations = 1;
        plan.spec.clients = plan.spec.clients.min(2);
        let options = RunOptions {
            trace: true,
            ..RunOptions::default()
        };
        let outcome = run(&plan, options);
        assert_eq!(outcome.failure, None, "seed {seed}");
        let mut transactions = outcome.history.unwrap().transactions;
        transactions.retain(|transaction| transaction.outcome != Outcome::Aborted);
        if transactions.len() <= MOST_TRANSACTIONS {
            assert!(stateright(&transactions), "seed {seed}: {transactions:#?}");
            judged += 1;
        }
    }
    assert!(
        judged > 100,
        "only {judged} runs were small enough to judge"
    );
}
