//! One step of the fabric: words of a write land, pieces of a read are collected, an atomic executes, a notification or
//! a completion arrives, or a connection stalls.

use farm_core::fabric::{Atomic, Status};
use farm_core::ids::WorkerRef;
use farm_core::mutants;
use farm_core::time::Nanos;
use rand::Rng;
use rand::seq::SliceRandom;

use super::config::{Defect, Odds};
use super::connection::{Kind, Operation, Reading, Writing};
use super::state::State;
use super::trace::Event;

/// Maximum number of virtual nanoseconds that one step takes.
const STEP_NANOS: u64 = 100;
/// Upper bound of the shortest stalls, in nanoseconds. Each doubling of the bound is half as likely.
const STALL_NANOS: u64 = 1_000;
/// Maximum number of doublings of that bound.
const STALL_DOUBLINGS: u32 = 12;
/// Minimum number of steps of a long operation. On average a long operation takes about twice this number of steps.
const LONG_OPERATION_STEPS: usize = 32;

impl State {
    /// Takes one step. Returns false if nothing is in flight.
    pub(super) fn step(&mut self) -> bool {
        self.run_leases();
        self.maybe_retire();
        let Some(connection) = self.choose_connection() else {
            return self.retire_some();
        };
        let passed = self.rng.random_range(1..=STEP_NANOS);
        self.set_now(self.now + passed);
        if self.chance(self.odds.stall) {
            self.stall(connection);
            return true;
        }
        let mut ready = std::mem::take(&mut self.choices);
        ready.clear();
        self.connections[connection].ready(self.defect, &mut ready);
        let acks = self.connections[connection].acks.len();
        if acks > 0 && (ready.is_empty() || !self.chance(self.odds.late_completion)) {
            self.deliver(connection);
        } else {
            let place = ready[self.rng.random_range(0..ready.len())];
            self.advance(connection, place);
        }
        self.choices = ready;
        true
    }

    /// Draws one of the active connections that are not stalled. If all of them are stalled, advances time to the
    /// earliest end of a stall. Returns `None` if no connection is active.
    fn choose_connection(&mut self) -> Option<usize> {
        let mut choices = std::mem::take(&mut self.choices);
        choices.clear();
        let mut first_to_move = None;
        for (index, connection) in self.connections.iter().enumerate() {
            if !connection.is_active() {
                continue;
            }
            if connection.stalled_until <= self.now {
                choices.push(index);
            } else if first_to_move.is_none_or(|(at, _)| connection.stalled_until < at) {
                first_to_move = Some((connection.stalled_until, index));
            }
        }
        let chosen = if choices.is_empty() {
            // Leases may change before.
            let first_to_move = first_to_move.filter(|(at, _)| *at <= self.next_lease());
            first_to_move.map(|(at, index)| {
                self.set_now(at);
                index
            })
        } else {
            Some(choices[self.rng.random_range(0..choices.len())])
        };
        self.choices = choices;
        chosen
    }

    fn stall(&mut self, index: usize) {
        let doublings = self
            .rng
            .random::<u64>()
            .trailing_ones()
            .min(STALL_DOUBLINGS);
        let until = Nanos(self.now.0 + self.rng.random_range(1..=STALL_NANOS << doublings));
        let connection = &mut self.connections[index];
        connection.stalled_until = until;
        let (port, to) = (connection.port, connection.to);
        self.note(Event::Stalled {
            by: self.ports[port].worker,
            to,
            until,
        });
    }

    /// Delivers a randomly chosen completion of a connection to the endpoint that posted the operation.
    fn deliver(&mut self, index: usize) {
        let pick = self.rng.random_range(0..self.connections[index].acks.len());
        let port = self.connections[index].port;
        let ack = self.connections[index].acks.swap_remove(pick);
        self.note(Event::Completed {
            operation: ack.number,
            status: ack.completion.status,
        });
        if self.has(Defect::CompletionLost) && self.chance(Odds::WHOLE / 16) {
            return;
        }
        let mut again = None;
        if self.has(Defect::CompletedTwice) && self.chance(Odds::WHOLE / 16) {
            again = Some(farm_core::fabric::Completion {
                slot: None,
                ..ack.completion
            });
        }
        let arrived = &mut self.ports[port].arrived;
        arrived.push_back((ack.completion, ack.data));
        arrived.extend(again.map(|completion| (completion, Vec::new())));
    }

    /// Advances one operation by one step. Its last step removes it from the connection and queues its completion.
    fn advance(&mut self, index: usize, place: usize) {
        let operation = self.connections[index].operations.remove(place);
        let Operation {
            number,
            fence,
            kind,
        } = operation.expect("an operation that is ready to take effect has not ended yet");
        let unfinished = match kind {
            Kind::Write(write) => self.land(index, number, write).map(Kind::Write),
            Kind::Read(read) => self.collect(index, number, read).map(Kind::Read),
            Kind::Atomic { .. } => self.execute_atomic(index, number, kind),
            Kind::Notify(worker) => {
                let connection = &self.connections[index];
                let (port, worker) = (connection.port, WorkerRef::new(connection.to, worker));
                // A woken worker must see all earlier writes.
                self.arrive_all(worker.machine);
                let lost = self.has(Defect::WakeLost) && self.chance(Odds::WHOLE / 16);
                if !lost && self.notify(worker) {
                    self.ports[port].counters.wakes += 1;
                }
                None
            }
        };
        if let Some(kind) = unfinished {
            let operations = &mut self.connections[index].operations;
            operations.insert(
                place,
                Operation {
                    number,
                    fence,
                    kind,
                },
            );
        }
    }

    /// Draws how many words or pieces of an operation of `len` one step processes.
    fn portion(&mut self, len: usize) -> usize {
        let most = (self.odds.words_per_step as usize).max(len / LONG_OPERATION_STEPS);
        self.rng.random_range(1..=most)
    }

    fn land(&mut self, index: usize, number: u64, mut write: Writing) -> Option<Writing> {
        let total = write.words.len();
        let words = self.portion(total).min(total - write.landed);
        if !self.odds.places_in_order && write.order.is_none() {
            let mut order: Vec<usize> = (0..total).collect();
            order.shuffle(&mut self.rng);
            write.order = Some(order);
        }
        for nth in write.landed..write.landed + words {
            let place = match &write.order {
                Some(order) => order[nth],
                None if self.has(Defect::PlacedBackwards) => total - 1 - nth,
                None => nth,
            };
            self.land_word(write.to.plus(place * 8), write.words[place]);
        }
        write.landed += words;
        let left = total - write.landed;
        self.note(Event::Landed {
            operation: number,
            words: words as u64,
            left: left as u64,
        });
        if left > 0 {
            return Some(write);
        }
        self.acknowledge(
            index,
            number,
            write.signal,
            Status::Ok,
            write.slot,
            0,
            Vec::new(),
        );
        None
    }

    fn collect(&mut self, index: usize, number: u64, mut read: Reading) -> Option<Reading> {
        let pieces = self
            .portion(read.out.len() / read.piece)
            .min(read.left.len());
        if read.headers.is_empty() {
            let now = read
                .header_offsets()
                .map(|at| self.look(read.from.plus(at)));
            read.headers = now.collect();
        }
        let mut digest = 0u64;
        for _ in 0..pieces {
            let pick = self.rng.random_range(0..read.left.len());
            let first = read.left.swap_remove(pick) as usize * read.piece;
            let out = &mut read.out[first..first + read.piece];
            for (word, at) in out.iter_mut().zip((first * 8..).step_by(8)) {
                *word = self.look(read.from.plus(at));
            }
            digest = out
                .iter()
                .fold(digest, |digest, word| digest.rotate_left(7) ^ word);
        }
        self.note(Event::Collected {
            operation: number,
            pieces: pieces as u64,
            digest,
        });
        if !read.left.is_empty() {
            return Some(read);
        }
        let mut status = Status::Ok;
        if !self.has(Defect::HeadersUnchecked) && !self.headers_unchanged(&read) {
            let counters = &mut self.ports[self.connections[index].port].counters;
            if read.retries_left > 0 {
                counters.read_retries += 1;
                read.retries_left -= 1;
                read.restart();
                self.note(Event::Retried { operation: number });
                return Some(read);
            }
            counters.reads_torn += 1;
            status = Status::Torn;
        }
        self.acknowledge(
            index,
            number,
            Some(read.token),
            status,
            Some(read.slot),
            0,
            read.out,
        );
        None
    }

    /// Returns true if every header in memory equals the header that the read collected, and the header when the read
    /// began. Always returns true if a read of objects is one pass.
    fn headers_unchanged(&self, read: &Reading) -> bool {
        if self.odds.one_pass || mutants::is_on("skip the header recheck") {
            return true;
        }
        let mut headers = read.header_offsets().zip(&read.headers);
        headers.all(|(at, begun)| {
            read.out[at / 8] == *begun && self.look(read.from.plus(at)) == *begun
        })
    }

    fn execute_atomic(&mut self, index: usize, number: u64, kind: Kind) -> Option<Kind> {
        let Kind::Atomic {
            at,
            op,
            token,
            seen,
        } = kind
        else {
            return Some(kind);
        };
        let old = seen.unwrap_or_else(|| self.look(at));
        if self.has(Defect::AtomicsTorn) && seen.is_none() {
            return Some(Kind::Atomic {
                at,
                op,
                token,
                seen: Some(old),
            });
        }
        // The whole fabric is stepped under one lock, so a load and a store are one atomic of the device.
        match op {
            Atomic::CompareSwap { expected, new } if old == expected => self.land_word(at, new),
            Atomic::CompareSwap { .. } => {}
            Atomic::FetchAdd { delta } => self.land_word(at, old.wrapping_add(delta)),
        }
        self.note(Event::Swapped {
            operation: number,
            old,
        });
        self.acknowledge(
            index,
            number,
            Some(token),
            Status::Ok,
            None,
            old,
            Vec::new(),
        );
        None
    }
}
