//! The steps of the workloads' transactions. Each step returns one request to the platform, and the next step receives
//! its result. The caller decides how a request is made: at once if all objects are on this machine, otherwise by
//! continuations.

use farm_txn::Tx;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::churn::Churn;
use super::notes::{Got, Notes, Read, Torn, Want};
use super::spec::{BALANCE, Kind, Spec};
use super::value::Value;

/// One try of a transaction.
pub(super) struct Script {
    pub(super) notes: Notes,
    part: Part,
}

enum Part {
    /// Reads some objects, and writes up to `writes` of them.
    Some { left: Vec<usize>, writes: usize },
    /// Moves money from one object to another.
    Transfer {
        from: usize,
        to: usize,
        payer: Option<Read>,
    },
    /// Sums up all accounts.
    Sum { next: usize, sum: u64 },
    /// Swaps two adjacent objects of the cycle.
    Turn { read: Vec<Read> },
    /// Follows the whole cycle.
    Walk { met: Vec<bool>, steps: usize },
    /// A transaction on an entry of churn.
    Churn(Churn),
}

impl Script {
    /// Creates a try. `seed` determines its choices, and the ids of its writes begin with `name`. It accesses `count`
    /// objects from `first` on.
    pub(super) fn new(spec: Spec, seed: u64, name: u64, first: usize, count: usize) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let read_only = rng.random_range(0..100) < spec.read_only;
        let any = |rng: &mut Xoshiro256PlusPlus| first + rng.random_range(0..count);
        let part = match (spec.kind, read_only) {
            (Kind::Cycle, true) => Part::Walk {
                met: vec![false; count],
                steps: 0,
            },
            (Kind::Cycle, false) => Part::Turn { read: Vec::new() },
            (Kind::Bank, true) => Part::Sum { next: 0, sum: 0 },
            (Kind::Bank, false) => Part::Transfer {
                from: any(&mut rng),
                to: any(&mut rng),
                payer: None,
            },
            (Kind::Churn, _) => Part::Churn(Churn::new(any(&mut rng))),
            (_, _) => {
                // Some transactions read so many objects that a message validates them, not one read for each object.
                let many = rng.random_range(0..8) == 0;
                let (most, writes) = if many { (16, 2) } else { (4, 4) };
                let writes = if read_only { 0 } else { writes };
                let mut left = Vec::with_capacity(most);
                for _ in 0..rng.random_range(1..=most) {
                    let object = any(&mut rng);
                    if !left.contains(&object) {
                        left.push(object);
                    }
                }
                Part::Some { left, writes }
            }
        };
        let notes = Notes {
            spec,
            rng,
            first,
            count,
            name,
            accesses: Vec::new(),
            broken: Vec::new(),
            asked: 0,
        };
        Self { notes, part }
    }

    /// Takes the result of the last request, and returns the next request.
    pub(super) fn next(&mut self, tx: &mut Tx, got: Got) -> Result<Want, Torn> {
        let notes = &mut self.notes;
        let want = match &mut self.part {
            Part::Churn(churn) => churn.next(notes, tx, got),
            part => match notes.read(tx, &got) {
                Ok(read) => part.take_step(notes, tx, read),
                Err(torn) => Err(torn),
            },
        };
        if let Ok(Want::Read(object)) = want {
            notes.asked = object;
        }
        want
    }
}

impl Part {
    fn take_step(
        &mut self,
        notes: &mut Notes,
        tx: &mut Tx,
        read: Option<Read>,
    ) -> Result<Want, Torn> {
        match self {
            Part::Some { left, writes } => {
                if let Some(read) = read
                    && *writes > 0
                    && notes.rng.random_range(0..3) > 0
                {
                    *writes -= 1;
                    notes.write(tx, read, [read.value.data[0] + 1, 0, 0]);
                }
                Ok(left.pop().map_or(Want::Commit, Want::Read))
            }
            Part::Transfer { from, to, payer } => {
                let (from, to) = (*from, *to);
                Ok(match (read, *payer) {
                    (None, _) if from == to => Want::Commit,
                    (None, _) => Want::Read(from),
                    (Some(read), None) => {
                        *payer = Some(read);
                        Want::Read(to)
                    }
                    (Some(payee), Some(payer)) => {
                        notes.transfer(tx, payer, payee);
                        Want::Commit
                    }
                })
            }
            Part::Sum { next, sum } => {
                if let Some(read) = read {
                    tx.forget_payload(read.handle);
                    if *next > notes.count {
                        return Ok(Want::Commit);
                    }
                    *sum = sum.wrapping_add(read.value.data[0]);
                }
                *next += 1;
                if *next > notes.count {
                    notes.judge_sum(*sum);
                    // Reads an object again whose payload was forgotten.
                    return Ok(Want::Read(notes.first));
                }
                Ok(Want::Read(notes.first + *next - 1))
            }
            Part::Turn { read: before } => notes.turn(tx, before, read),
            Part::Walk { met, steps } => notes.walk(met, steps, read),
            Part::Churn(_) => {
                unreachable!("`next` handles the steps of churn transactions before this match")
            }
        }
    }
}

impl Notes {
    fn transfer(&mut self, tx: &mut Tx, payer: Read, payee: Read) {
        let amount = self.rng.random_range(1..100);
        let [from, to] = [payer, payee].map(|read| read.value.data[0]);
        self.write(tx, payer, [from.wrapping_sub(amount), 0, 0]);
        self.write(tx, payee, [to.wrapping_add(amount), 0, 0]);
    }

    fn judge_sum(&mut self, sum: u64) {
        let expected = BALANCE * self.count as u64;
        if sum != expected {
            let why = format!("a transaction read accounts whose sum is {sum}, not {expected}");
            self.broken.push(why);
        }
    }

    /// Swaps two adjacent objects: a → b → c → d becomes a → c → b → d.
    fn turn(
        &mut self,
        tx: &mut Tx,
        before: &mut Vec<Read>,
        read: Option<Read>,
    ) -> Result<Want, Torn> {
        let Some(read) = read else {
            return Ok(Want::Read(
                self.first + self.rng.random_range(0..self.count),
            ));
        };
        let next = self.successor(&read.value)?;
        let again = before.iter().any(|one| one.object == read.object);
        before.push(read);
        if again {
            return Ok(Want::Commit);
        }
        let [a, b, c] = before[..] else {
            return Ok(Want::Read(next));
        };
        self.write(tx, a, [c.object as u64, 0, 0]);
        self.write(tx, b, [next as u64, 0, 0]);
        self.write(tx, c, [b.object as u64, 0, 0]);
        Ok(Want::Commit)
    }

    fn walk(
        &mut self,
        met: &mut [bool],
        steps: &mut usize,
        read: Option<Read>,
    ) -> Result<Want, Torn> {
        let Some(read) = read else {
            return Ok(Want::Read(self.first));
        };
        met[read.object - self.first] = true;
        *steps += 1;
        let next = self.successor(&read.value)?;
        if *steps < self.count {
            return Ok(Want::Read(next));
        }
        if next != self.first || met.contains(&false) {
            let why =
                format!("a transaction read a broken cycle of objects; objects reached: {met:?}");
            self.broken.push(why);
        }
        Ok(Want::Commit)
    }

    fn successor(&mut self, value: &Value) -> Result<usize, Torn> {
        let next = value.data[0] as usize;
        if (self.first..self.first + self.count).contains(&next) {
            return Ok(next);
        }
        let id = value.id.0;
        Err(Torn(format!(
            "write {id} names object {next} as the successor, which does not exist"
        )))
    }
}
