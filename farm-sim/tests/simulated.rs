//! Small simulated runs, judged by an exact checker that others wrote.

use farm_check::history::Outcome;
use farm_sim::run::{Plan, RunOptions, run};

use exact::stateright;

#[path = "../check/tests/check/exact.rs"]
mod exact;

/// More transactions than an exact checker tries all orders of in a moment are too many.
const MOST_TRANSACTIONS: usize = 30;

#[test]
fn small_runs_are_strictly_serializable_by_stateright_too() {
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
    assert!(judged > 100, "{judged} runs were small enough");
}
