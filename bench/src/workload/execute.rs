//! Transactions, where their objects are: today a transaction's objects lie on one machine, so clients
//! ship it there.

use farm_core::messaging::Request;
use farm_core::worker::Worker;
use farm_txn::{ObjectId as TxObject, Tx, TxError};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::history::{Access, ObjectId, WriteId};
use super::log::Tried;
use super::value::Value;
use super::{Kind, Spec, churn, objects, place, work};

/// It committed.
pub(super) const DONE: u8 = 0;
/// It met conflicts: to be shipped again.
pub(super) const CONFLICT: u8 = 1;
/// Nothing of it was done, and will not be.
pub(super) const REFUSED: u8 = 2;

const BODY_BYTES: usize = 17;
/// Tries before a conflict is told to the client. Each has write ids of its own.
const TRIES: u64 = 3;
/// Bits of a write's id that tell the writes of one try apart.
const PLACE_BITS: u32 = 4;
/// Bits that tell the tries of one transaction apart.
const TRY_BITS: u32 = 10;

/// A request to run a transaction.
pub(super) fn encode(number: u64, seed: u64, attempt: u8) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body[8..16].copy_from_slice(&seed.to_le_bytes());
    body[16] = attempt;
    body
}

/// One try of a transaction.
pub(super) struct Try<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) tx: Tx,
    pub(super) spec: Spec,
    pub(super) rng: Xoshiro256PlusPlus,
    /// The first object of this machine.
    pub(super) first: usize,
    /// What the ids of its writes begin with.
    name: u64,
    accesses: Vec<Access>,
    /// Broken invariants, of no meaning unless the transaction commits.
    pub(super) broken: Vec<String>,
}

/// Why a try did not end well.
pub(super) enum Stop {
    /// Of the platform.
    Tx(TxError),
    /// Addresses are not known yet.
    NotReady,
    /// A value that no write wrote: told already.
    Torn,
}

impl From<TxError> for Stop {
    fn from(error: TxError) -> Self {
        Stop::Tx(error)
    }
}

/// Runs a transaction that a client shipped.
pub(super) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let code = match <&[u8; BODY_BYTES]>::try_from(body) {
        Ok(body) => {
            let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("a word"));
            run(worker, word(0), word(8), u64::from(body[16]))
        }
        Err(_) => REFUSED,
    };
    worker.reply(request, &[&[code]]);
}

fn run(worker: &mut Worker, number: u64, seed: u64, attempt: u64) -> u8 {
    for again in 0..TRIES {
        let name = ((number >> 32) + 1) << 40 | (number & 0xFF_FFFF) << (PLACE_BITS + TRY_BITS);
        let name = name | (attempt * TRIES + again) << PLACE_BITS;
        match run_once(worker, number, seed, name) {
            Ok(()) => return DONE,
            Err(Stop::Tx(TxError::Abort(_))) => {}
            Err(Stop::NotReady) => return CONFLICT,
            Err(Stop::Torn) => return REFUSED,
            Err(Stop::Tx(TxError::Alloc(_))) => return REFUSED,
            Err(Stop::Tx(error)) => {
                let violation = format!("transaction {number:#x} failed: {error}");
                work(worker).log.violations.push(violation);
                return REFUSED;
            }
        }
    }
    CONFLICT
}

fn run_once(worker: &mut Worker, number: u64, seed: u64, name: u64) -> Result<(), Stop> {
    let (_, machine) = place(worker);
    let spec = work(worker).spec.clone();
    let tx = farm_txn::take(worker);
    let mut one = Try {
        worker,
        tx,
        first: machine * spec.objects_per_machine,
        spec,
        rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        name,
        accesses: Vec::new(),
        broken: Vec::new(),
    };
    let outcome = one.body().and_then(|()| Ok(one.tx.commit(one.worker)?));
    let Try {
        worker,
        tx,
        accesses,
        broken,
        ..
    } = one;
    farm_txn::give(worker, tx);
    let committed = outcome.is_ok();
    let log = &mut work(worker).log;
    if committed {
        log.violations.extend(broken);
    }
    log.tried.push(Tried {
        number,
        committed,
        accesses,
    });
    outcome
}

impl Try<'_> {
    fn body(&mut self) -> Result<(), Stop> {
        let read_only = self.rng.random_range(0..100) < self.spec.read_only;
        match (self.spec.kind, read_only) {
            (Kind::Cycle, true) => self.walk(),
            (Kind::Cycle, false) => self.turn_round(),
            (Kind::Bank, true) => self.sum(),
            (Kind::Bank, false) => self.transfer(),
            (Kind::Churn, _) => churn::transact(self),
            (Kind::Append | Kind::Table, _) => self.some(read_only),
        }
    }

    fn any(&mut self) -> usize {
        self.rng.random_range(0..self.spec.objects_per_machine)
    }

    /// Reads one of this machine's objects.
    pub(super) fn read(&mut self, local: usize) -> Result<(TxObject, Value), Stop> {
        let object = self.first + local;
        // A worker serves the others' transactions from the moment it runs, before it is told the workload.
        let known = work(self.worker).addresses.get(object).copied();
        let Some(address) = known.filter(|address| !address.is_null()) else {
            return Err(Stop::NotReady);
        };
        let read = self.tx.read(self.worker, address, self.spec.payload())?;
        let version = self.tx.version(read).get();
        let value = Value::read(self.tx.payload(read)).map_err(|torn| {
            let violation = format!("object {object}, version {version}, in a transaction: {torn}");
            work(self.worker).log.violations.push(violation);
            Stop::Torn
        })?;
        self.accesses.push(Access::Read {
            object: ObjectId(object as u32),
            version,
            id: value.id,
            parent: value.parent,
        });
        Ok((read, value))
    }

    /// The id that the next write of this try has.
    pub(super) fn next_id(&self) -> WriteId {
        let writes = self
            .accesses
            .iter()
            .filter(|access| matches!(access, Access::Write { .. }));
        WriteId(self.name | writes.count() as u64)
    }

    /// Replaces the value of an object that was read.
    pub(super) fn write(&mut self, local: usize, object: TxObject, old: &Value, data: [u64; 3]) {
        let id = self.next_id();
        let value = Value {
            id,
            parent: old.id,
            data,
        };
        value.write(self.tx.payload_mut(object));
        self.accesses.push(Access::Write {
            object: ObjectId((self.first + local) as u32),
            id,
            parent: old.id,
        });
    }

    /// One to four objects, each read and perhaps written.
    fn some(&mut self, read_only: bool) -> Result<(), Stop> {
        let mut objects = Vec::with_capacity(4);
        for _ in 0..self.rng.random_range(1..=4) {
            let object = self.any();
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        for object in objects {
            let (read, value) = self.read(object)?;
            if !read_only && self.rng.random_range(0..3) > 0 {
                self.write(object, read, &value, [value.data[0] + 1, 0, 0]);
            }
        }
        Ok(())
    }

    fn transfer(&mut self) -> Result<(), Stop> {
        let (from, to) = (self.any(), self.any());
        if from == to {
            return Ok(());
        }
        let amount = self.rng.random_range(1..100);
        let ((one, payer), (other, payee)) = (self.read(from)?, self.read(to)?);
        self.write(
            from,
            one,
            &payer,
            [payer.data[0].wrapping_sub(amount), 0, 0],
        );
        self.write(
            to,
            other,
            &payee,
            [payee.data[0].wrapping_add(amount), 0, 0],
        );
        Ok(())
    }

    fn sum(&mut self) -> Result<(), Stop> {
        let mut sum = 0u64;
        for account in 0..self.spec.objects_per_machine {
            sum = sum.wrapping_add(self.read(account)?.1.data[0]);
        }
        let expected = objects::BALANCE * self.spec.objects_per_machine as u64;
        if sum != expected {
            let why = format!("a transaction saw accounts that sum up to {sum}, not {expected}");
            self.broken.push(why);
        }
        Ok(())
    }

    /// Turns two successors round: a → b → c → d becomes a → c → b → d.
    fn turn_round(&mut self) -> Result<(), Stop> {
        let a = self.any();
        let (one, first) = self.read(a)?;
        let b = self.successor(&first)?;
        let (two, second) = self.read(b)?;
        let c = self.successor(&second)?;
        let (three, third) = self.read(c)?;
        let d = self.successor(&third)?;
        if a == b || b == c || a == c {
            return Ok(());
        }
        self.write(a, one, &first, [c as u64, 0, 0]);
        self.write(b, two, &second, [d as u64, 0, 0]);
        self.write(c, three, &third, [b as u64, 0, 0]);
        Ok(())
    }

    fn successor(&mut self, value: &Value) -> Result<usize, Stop> {
        let next = value.data[0] as usize;
        if next < self.spec.objects_per_machine {
            return Ok(next);
        }
        let why = format!(
            "write {} names object {next}, which is not there",
            value.id.0
        );
        work(self.worker).log.violations.push(why);
        Err(Stop::Torn)
    }

    fn walk(&mut self) -> Result<(), Stop> {
        let (mut at, objects) = (0, self.spec.objects_per_machine);
        let mut met = vec![false; objects];
        for _ in 0..objects {
            met[at] = true;
            let (_, value) = self.read_again(at)?;
            at = self.successor(&value)?;
        }
        if at != 0 || met.contains(&false) {
            self.broken.push(format!(
                "a transaction walked a cycle that is broken: {met:?}"
            ));
        }
        Ok(())
    }

    /// As [`Try::read`], of an object that may have been read before.
    fn read_again(&mut self, local: usize) -> Result<(TxObject, Value), Stop> {
        let known = self.accesses.len();
        let read = self.read(local)?;
        let object = ObjectId((self.first + local) as u32);
        let is_this = |access: &Access| matches!(access, Access::Read { object: other, .. } if *other == object);
        if self.accesses[..known].iter().any(is_this) {
            self.accesses.truncate(known);
        }
        Ok(read)
    }
}
