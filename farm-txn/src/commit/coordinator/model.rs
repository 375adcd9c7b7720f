//! Model check of commits: runs the production code of coordinators, primaries, backups and logs, which are values, in every
//! order of their messages.
//!
//! A transaction reads the primaries of all of its objects at one moment, and then commits. The model provides memory, logs,
//! one-sided reads and messages. A coordinator performs one action per step. Between two actions of a coordinator any other
//! step may be taken, but events are delivered to the coordinator only when it has no action left, as within a turn of the
//! event loop. A record is in its log from the moment when it is sent. It is acknowledged, and handled, at any later moment,
//! in any order of the two.
//!
//! | file | what |
//! |---|---|
//! | `world` | the state: transactions, objects and their copies, logs |
//! | `act` | actions of coordinators |
//! | `logs` | records: their receivers, and the coordinator's own log |
//! | `properties` | what must hold, and what must be reached |
//! | `tests` | the scenarios, and the errors that the checker must find |

mod act;
mod logs;
mod properties;
mod tests;
mod world;

use std::sync::Arc;

use farm_core::ids::{Address, RegionId};
use farm_core::region::map::Replicas;
use stateright::{Model, Property};

use self::world::{Flying, World};
use super::*;

/// An error that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A primary grants LOCK for objects that another transaction has locked.
    GrantsLocked,
    /// The one-sided read of a header returns what the header was when the transaction began.
    StaleHeader,
    /// A primary replies that LOCK was granted when it was refused.
    RepliesGranted,
    /// A coordinator lets participants truncate when the first of them has acknowledged.
    TruncatesEarly,
    /// A primary that is to abort leaves its locks.
    KeepsLocks,
    /// A worker does not write records of this kind to its own log.
    OmitsOwn(Kind),
    /// The fabric acknowledges records of this kind without writing them.
    Drops(Kind),
    /// A coordinator aborts if it has lost a machine in step 3.
    AbortsLate,
    /// A backup applies an older change to a newer copy.
    AppliesByArrival,
    /// A backup frees records without applying them.
    SkipsCopies,
    /// A deliberate bug of the production code.
    #[cfg(feature = "mutants")]
    Mutant(&'static str),
}

/// The machine of a coordinator, and what its transaction does with each object.
type Spec = (u16, &'static [Option<Intent>]);

const R: Option<Intent> = Some(Intent::Read);
const W: Option<Intent> = Some(Intent::Write);

/// What the transactions are, and what can happen to them.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    txs: &'static [Spec],
    /// The replicas of each object, its primary first.
    objects: &'static [&'static [u16]],
    /// Whether commits are logged.
    logged: bool,
    /// Whether all transactions have one worker. Otherwise each has a worker of its own.
    one_worker: bool,
    /// Whether all transactions but the first begin at any time. Otherwise all have begun.
    later: bool,
    /// Number of records that can meet a full log.
    stalls: u8,
    /// This machine may be lost at any time; none of the coordinators runs on it.
    may_lose: Option<u16>,
}

impl Scenario {
    /// Returns the greatest number of a machine.
    fn machines(&self) -> u16 {
        let replicas = self.objects.iter().copied().flatten();
        let own = self.txs.iter().map(|tx| &tx.0);
        let greatest = replicas.chain(own).copied().max();
        greatest.expect("a scenario has machines")
    }

    /// Returns the machines with copies of what a transaction writes.
    fn backups(&self, tx: usize) -> Machines {
        let written = self.txs[tx].1.iter().zip(self.objects);
        let written = written.filter(|one| self.logged && *one.0 == W);
        let backups = written.flat_map(|(_, replicas)| &replicas[1..]);
        backups.fold(Machines::default(), |all, one| all.with(*one))
    }
}

/// A set of machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Machines(u8);

impl Machines {
    fn with(self, machine: u16) -> Self {
        Self(self.0 | 1 << machine)
    }

    fn has(self, machine: u16) -> bool {
        self.0 & 1 << machine != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether all of these machines are in `others`.
    fn are_in(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }
}

struct Commits {
    scenario: Scenario,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq)]
enum Move {
    /// A transaction reads its objects, and its commit begins.
    Begin(usize),
    /// A coordinator performs its next action.
    Act(usize),
    /// As [`Move::Act`], but if it sends a record, the log is full.
    Stall(usize),
    /// The log has room again.
    Resume(usize),
    /// A machine handles the next record of a worker's log.
    Handle(usize, u16),
    /// A machine applies the next COMMIT-BACKUP record of a worker's log.
    Apply(usize, u16),
    /// Something that is on its way to a coordinator goes on.
    Deliver(usize, Flying),
    /// A worker sends its low bound by records of their own.
    Truncate(usize),
    Lose(u16),
}

/// The address of an object. Each has a region of its own.
fn address(object: usize) -> Address {
    let region = RegionId::new(1, object as u32 + 1);
    Address::new(region.expect("a scenario has few objects"), 64)
}

impl Commits {
    /// Switches the deliberate bug on in this thread, and every other one off.
    fn switch(&self) {
        #[cfg(feature = "mutants")]
        mutants::switch(match self.fault {
            Fault::Mutant(name) => Some(name),
            _ => None,
        });
    }

    /// Returns the replicas of the region of an object.
    fn replicas(&self, region: RegionId) -> Option<Replicas> {
        let mut objects = (0..).zip(self.scenario.objects);
        let (_, replicas) = objects.find(|one| address(one.0).region() == region)?;
        Replicas::new(replicas.iter().filter_map(|one| MachineId::new(*one)))
    }
}

impl Model for Commits {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        self.switch();
        let mut world = World::new(self);
        let at_first = match self.scenario.later {
            true => 1,
            false => self.scenario.txs.len(),
        };
        (0..at_first).for_each(|tx| world.begin(self, tx));
        vec![world]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.broken.is_some() {
            return;
        }
        for (tx, node) in world.nodes.iter().enumerate() {
            if !node.has_begun() && world.may_begin(tx) {
                moves.push(Move::Begin(tx));
            }
            if node.runs {
                moves.push(Move::Act(tx));
                if world.stalls > 0 {
                    moves.push(Move::Stall(tx));
                }
            }
            if node.commit.blocked {
                moves.push(Move::Resume(tx));
            }
            let arrives = |one: &&Flying| !node.runs || matches!(one, Flying::Header(_));
            let flying = node.flying.iter().filter(arrives);
            moves.extend(flying.map(|one| Move::Deliver(tx, *one)));
        }
        for (worker, own) in world.workers.iter().enumerate() {
            for (machine, log) in (0..).zip(&own.logs) {
                if log.handled < log.records.len() {
                    moves.push(Move::Handle(worker, machine));
                }
                if log.state.next_to_apply().is_some() {
                    moves.push(Move::Apply(worker, machine));
                }
            }
            let mut machines = own.truncations.machines().iter();
            if machines.any(|machine| own.truncations.has_due(*machine)) {
                moves.push(Move::Truncate(worker));
            }
        }
        let may_lose = self.scenario.may_lose.filter(|_| world.lost.is_none());
        moves.extend(may_lose.map(Move::Lose));
    }

    fn next_state(&self, world: &World, next: Move) -> Option<World> {
        self.switch();
        let mut world = world.clone();
        match next {
            Move::Begin(tx) => world.begin(self, tx),
            Move::Act(tx) => world.act(self, tx, false),
            Move::Stall(tx) => world.act(self, tx, true),
            Move::Resume(tx) => {
                let node = Arc::make_mut(&mut world.nodes[tx]);
                node.commit.on_resumed();
                node.runs = true;
            }
            Move::Handle(worker, machine) => world.handle(self, worker, machine),
            Move::Apply(worker, machine) => world.apply(self, worker, machine),
            Move::Deliver(tx, flying) => world.deliver(self, tx, flying),
            Move::Truncate(worker) => world.send_low_bound(worker),
            Move::Lose(machine) => world.lose(machine),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
