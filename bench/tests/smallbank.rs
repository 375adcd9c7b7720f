//! SmallBank against `WORKLOADS.md` §4: the shares of transactions, the hot set, and that each transaction changes the
//! sum of all balances only as listed.

mod model;

use std::collections::BTreeMap;

use farm_bench::oltp::{BadRow, Decision, Outcome, Row, RowName, Step, StepError};
use farm_bench::smallbank::account::{self, checking, savings};
use farm_bench::smallbank::{
    Balance, Kind, Ledger, Mix, Options, SavingsRule, Stream, Transaction,
};
use model::{Store, assert_shares};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

fn run(store: &Store, transaction: &Transaction) -> Decision {
    store.decide(|rows| transaction.step(rows)).unwrap()
}

fn accounts(transaction: &Transaction) -> (u64, Option<u64>) {
    match *transaction {
        Transaction::Amalgamate { from, to } | Transaction::SendPayment { from, to } => {
            (from, Some(to))
        }
        Transaction::Balance { account }
        | Transaction::DepositChecking { account }
        | Transaction::TransactSavings { account, .. }
        | Transaction::WriteCheck { account } => (account, None),
    }
}

#[test]
fn transactions_and_hot_accounts_have_their_shares() {
    let options = Options::default();
    let stream = Stream::new(&options).unwrap();
    let mut rng = rng(1);
    let mut kinds = [0; Kind::ALL.len()];
    // One draw decides for both accounts of a transaction: with probability 0.9 they come from the hot set, otherwise
    // from all accounts, of which 4 % are hot.
    let (mut hot, mut ones) = (0u64, 0u64);
    let mut pairs = [0u64; 3];
    let mut by_quarter = [0u64; 4];
    for _ in 0..400_000 {
        let transaction = stream.next(&mut rng);
        kinds[transaction.kind().index()] += 1;
        let (one, other) = accounts(&transaction);
        assert!(one < options.accounts && other != Some(one));
        let is_hot = |account: u64| account < options.hot_accounts;
        match other {
            None => {
                ones += 1;
                hot += u64::from(is_hot(one));
            }
            Some(other) => {
                assert!(other < options.accounts);
                pairs[usize::from(is_hot(one)) + usize::from(is_hot(other))] += 1;
            }
        }
        if is_hot(one) {
            by_quarter[(one / 1_000) as usize] += 1;
        }
    }
    assert_shares(&kinds, &Mix::default().percents());
    assert_shares(&by_quarter, &[25; 4]);
    let share = hot as f64 / ones as f64;
    assert!((share - 0.904).abs() < 0.002, "{share}");
    let total: u64 = pairs.iter().sum();
    let share = |place: usize| pairs[place] as f64 / total as f64;
    assert!(
        (share(2) - (0.9 + 0.1 * 0.04 * 0.04)).abs() < 0.003,
        "{pairs:?}"
    );
    assert!(
        (share(1) - 0.1 * 2.0 * 0.04 * 0.96).abs() < 0.001,
        "{pairs:?}"
    );
}

#[test]
fn all_pairs_of_accounts_are_equally_likely() {
    let options = Options {
        accounts: 3,
        hot_accounts: 0,
        hot_percent: 0,
        ..Options::default()
    };
    let stream = Stream::new(&options).unwrap();
    let mut rng = rng(2);
    let mut counts = BTreeMap::new();
    for _ in 0..60_000 {
        if let (one, Some(other)) = accounts(&stream.next(&mut rng)) {
            *counts.entry((one, other)).or_insert(0u64) += 1;
        }
    }
    let counts: Vec<u64> = counts.into_values().collect();
    assert_eq!(counts.len(), 6);
    assert_shares(&counts[..5], &[20; 5]);
}

/// Applies a transaction to plain numbers, as the benchmark's specification describes it. Returns whether it commits.
fn by_hand(bank: &mut BTreeMap<RowName, i64>, transaction: &Transaction) -> bool {
    let of = |bank: &BTreeMap<RowName, i64>, row: RowName| bank[&row];
    match *transaction {
        Transaction::Amalgamate { from, to } => {
            let all = of(bank, savings(from)) + of(bank, checking(from));
            bank.extend([(savings(from), 0), (checking(from), 0)]);
            *bank.get_mut(&checking(to)).unwrap() += all;
        }
        Transaction::Balance { .. } => {}
        Transaction::DepositChecking { account } => {
            *bank.get_mut(&checking(account)).unwrap() += 130;
        }
        Transaction::SendPayment { from, to } => {
            if of(bank, checking(from)) < 500 {
                return false;
            }
            *bank.get_mut(&checking(from)).unwrap() -= 500;
            *bank.get_mut(&checking(to)).unwrap() += 500;
        }
        Transaction::TransactSavings { account, rule } => {
            let row = bank.get_mut(&savings(account)).unwrap();
            match rule {
                SavingsRule::Deposit => *row += 2_020,
                SavingsRule::Withdraw if *row - 2_020 < 0 => return false,
                SavingsRule::Withdraw => *row -= 2_020,
            }
        }
        Transaction::WriteCheck { account } => {
            let both = of(bank, savings(account)) + of(bank, checking(account));
            let row = bank.get_mut(&checking(account)).unwrap();
            *row -= if both < 500 { 600 } else { 500 };
        }
    }
    true
}

/// Returns whether a transaction of this kind may change the sum of all balances by `delta` cents.
fn may_change(kind: Kind, rule: SavingsRule, delta: i64) -> bool {
    match kind {
        Kind::Amalgamate | Kind::Balance | Kind::SendPayment => delta == 0,
        Kind::DepositChecking => delta == 130,
        Kind::TransactSavings if rule == SavingsRule::Deposit => delta == 2_020,
        Kind::TransactSavings => delta == -2_020,
        Kind::WriteCheck => delta == -500 || delta == -600,
    }
}

proptest! {
    /// A few accounts with low balances, so that accounts are overdrawn and payments are declined.
    #[test]
    fn money_changes_only_as_listed(
        accounts in 2u64..6,
        initial_cents in 0i64..6_000,
        withdraw: bool,
        seed: u64,
    ) {
        let rule = if withdraw { SavingsRule::Withdraw } else { SavingsRule::Deposit };
        let options = Options {
            accounts,
            hot_accounts: 2,
            initial_cents,
            savings_rule: rule,
            ..Options::default()
        };
        let stream = Stream::new(&options).unwrap();
        let loaded = (0..accounts).flat_map(|account| account::rows(account, initial_cents));
        let mut store = Store(loaded.collect());
        let mut bank: BTreeMap<RowName, i64> =
            store.0.keys().map(|name| (*name, initial_cents)).collect();
        let mut total = options.initial_total_cents();
        let mut ledger = Ledger::default();
        let mut rng = rng(seed);
        for _ in 0..300 {
            let transaction = stream.next(&mut rng);
            let decision = run(&store, &transaction);
            store.apply(&decision);
            ledger.committed(&decision);
            let commits = by_hand(&mut bank, &transaction);
            prop_assert_eq!(decision.outcome == Outcome::Committed, commits);
            let sum: i128 = bank.values().copied().map(i128::from).sum();
            let change = sum - total;
            total = sum;
            prop_assert_eq!(change, i128::from(decision.delta_cents));
            if commits {
                prop_assert!(may_change(transaction.kind(), rule, decision.delta_cents));
            } else {
                prop_assert!(decision.writes.is_empty() && change == 0);
            }
            prop_assert_eq!(ledger.totals(options.initial_total_cents()), total..=total);
        }
        for (name, cents) in bank {
            prop_assert_eq!(Balance::decode(&store.0[&name]), Ok(Balance { cents }));
        }
    }

    #[test]
    fn balances_are_decoded_from_their_encoding(cents: i64, bytes: Vec<u8>) {
        let row = Balance { cents }.encode();
        prop_assert_eq!(Balance::decode(&row), Ok(Balance { cents }));
        let other = Balance::decode(&bytes);
        prop_assert_eq!(other.is_ok(), bytes.len() == 8);
    }

    /// For any balances, including the greatest, a step returns a decision or an error and does not panic.
    #[test]
    fn no_balances_make_a_step_panic(cents: [i64; 3], near: bool, seed: u64) {
        let cents = cents.map(|cents| if near { cents | (i64::MAX - 0xFFF) } else { cents });
        let stream = Stream::new(&Options::default()).unwrap();
        let transaction = stream.next(&mut rng(seed));
        let rows = cents.map(|cents| Balance { cents }.encode());
        for given in 0..=3 {
            let rows: Vec<Option<&[u8]>> = rows[..given].iter().map(|row| Some(&**row)).collect();
            let _ = transaction.step(&rows);
        }
    }
}

/// A balance that just suffices is accepted, and one cent less is declined or overdrawn.
#[test]
fn amounts_are_compared_exactly() {
    let decide = |transaction: Transaction, cents: &[i64]| {
        let rows: Vec<_> = cents
            .iter()
            .map(|cents| Balance { cents: *cents }.encode())
            .collect();
        let rows: Vec<Option<&[u8]>> = rows.iter().map(|row| Some(&**row)).collect();
        match transaction.step(&rows).unwrap() {
            Step::End(decision) => (decision.outcome, decision.delta_cents),
            Step::Read(names) => {
                panic!("the transaction requested {names:?} instead of a decision")
            }
        }
    };
    let payment = Transaction::SendPayment { from: 1, to: 2 };
    assert_eq!(decide(payment, &[500, 0]), (Outcome::Committed, 0));
    assert_eq!(decide(payment, &[499, 9_000]), (Outcome::Declined, 0));
    let withdrawal = Transaction::TransactSavings {
        account: 1,
        rule: SavingsRule::Withdraw,
    };
    assert_eq!(decide(withdrawal, &[2_020]), (Outcome::Committed, -2_020));
    assert_eq!(decide(withdrawal, &[2_019]), (Outcome::Declined, 0));
    let check = Transaction::WriteCheck { account: 1 };
    assert_eq!(decide(check, &[600, -100]), (Outcome::Committed, -500));
    assert_eq!(decide(check, &[-100, 599]), (Outcome::Committed, -600));
}

#[test]
fn missing_and_invalid_rows_are_typed_errors() {
    let transaction = Transaction::SendPayment { from: 1, to: 2 };
    let rich = Balance { cents: i64::MAX }.encode();
    let rich = Some(&*rich);
    assert_eq!(
        transaction.step(&[rich, None]).unwrap_err().to_string(),
        "the row CHECKING 0x2 is missing, though nothing removes it: load it first, or look for a \
         lost write"
    );
    let row = checking(2);
    assert_eq!(
        transaction.step(&[rich, rich]),
        Err(StepError::Overflow { row })
    );
    assert_eq!(
        transaction.step(&[rich]),
        Err(StepError::Rows { given: 1, asked: 2 })
    );
    let why = BadRow::Size {
        found: 3,
        wanted: 8,
    };
    assert_eq!(
        transaction.step(&[rich, Some(b"abc")]),
        Err(StepError::Bad { row, why })
    );
}
