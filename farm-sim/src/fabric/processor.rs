//! Processors between a turn and memory: when a store becomes visible to others, and when a processor
//! sees what the fabric has written.
//!
//! A store waits in its processor's buffer. Others see the stores of one processor one at a time, in
//! any order that its fences and releases allow; the processor itself sees its own at once. What the
//! fabric writes is in memory when it is acknowledged, but the processors of that machine may see it
//! later, word after word. Loads are not reordered: `loom` checks what depends on their order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use farm_core::ids::{MachineId, WorkerRef};
use farm_core::mem::{Hook, Memory};
use rand::Rng;

use super::config::Odds;
use super::connection::Location;
use super::state::State;
use super::trace::Event;

/// Runs others for a while between two accesses of a turn: the scheduler's.
pub(super) type Others = Arc<dyn Fn() + Send + Sync>;

/// A store that others do not see yet.
#[derive(Debug)]
struct Store {
    at: Location,
    value: u64,
    /// It becomes visible after every store of a lower group.
    group: u64,
}

/// The stores of one worker's processor.
#[derive(Debug, Default)]
struct Buffer {
    stores: Vec<Store>,
    /// Group of the next store: one more after each fence.
    group: u64,
}

/// What a load has to know, most often: beside the lock of the state, as there are a thousand loads to
/// everything else. One thread at a time runs a fabric.
#[derive(Debug, Default)]
pub(super) struct Glance {
    /// Accesses before others run.
    until_others: AtomicU32,
    /// Stores that wait in the buffer of the worker whose turn it is; all there can be if it is nobody's.
    own_stores: AtomicUsize,
}

/// The processors of a fabric.
pub(super) struct Processors {
    /// Whether they are simulated; if not, memory is as all see it at any moment.
    simulated: bool,
    /// By port.
    buffers: Vec<Buffer>,
    /// Stores in all buffers.
    waiting: usize,
    /// The port whose worker's turn it is.
    running: Option<usize>,
    /// Words that the fabric has written and the machine's processors do not see yet, oldest first.
    arriving: BTreeMap<MachineId, VecDeque<(Location, u64)>>,
    glance: Arc<Glance>,
    pub(super) others: Option<Others>,
}

impl Processors {
    pub(super) fn new(simulated: bool) -> Self {
        Self {
            simulated,
            buffers: Vec::new(),
            waiting: 0,
            running: None,
            arriving: BTreeMap::new(),
            glance: Arc::new(Glance {
                until_others: AtomicU32::new(1),
                own_stores: AtomicUsize::new(usize::MAX),
            }),
            others: None,
        }
    }

    /// Notes how many stores wait in the buffer of the worker whose turn it is.
    fn look_at_own(&self) {
        let own = self.running.map(|port| self.buffers[port].stores.len());
        let own = own.unwrap_or(usize::MAX);
        self.glance.own_stores.store(own, Ordering::Relaxed);
    }

    pub(super) fn add(&mut self) {
        self.buffers.push(Buffer::default());
    }

    fn something_waits(&self) -> bool {
        self.waiting > 0 || !self.arriving.is_empty()
    }
}

impl Buffer {
    fn add(&mut self, at: Location, value: u64, order: Ordering) {
        let release = matches!(
            order,
            Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
        );
        let mut group = self.group;
        for store in &self.stores {
            if release {
                group = group.max(store.group + 1);
            } else if store.at == at {
                group = group.max(store.group);
            }
        }
        self.stores.push(Store { at, value, group });
    }

    fn newest(&self, at: Location) -> Option<u64> {
        let mut stores = self.stores.iter().rev();
        stores.find(|store| store.at == at).map(|store| store.value)
    }

    fn fence(&mut self) {
        let last = self.stores.iter().map(|store| store.group).max();
        self.group = self.group.max(last.map_or(0, |last| last + 1));
    }

    /// Takes the next to become visible: any of the lowest group, of one place the oldest.
    fn take(&mut self, rng: &mut impl Rng) -> Option<Store> {
        let lowest = self.stores.iter().map(|store| store.group).min()?;
        let ready = self.stores.iter().filter(|store| store.group == lowest);
        let picked = rng.random_range(0..ready.clone().count());
        let at = ready.clone().nth(picked).map(|store| store.at)?;
        let first = self
            .stores
            .iter()
            .position(|store| store.group == lowest && store.at == at)?;
        Some(self.stores.remove(first))
    }
}

impl State {
    /// The worker's turn begins: what is accessed now, it accesses. Gives who did before.
    pub(super) fn begin_turn(&mut self, worker: WorkerRef) -> Option<usize> {
        let port = self.ports.iter().position(|port| port.worker == worker);
        let before = std::mem::replace(&mut self.processors.running, port);
        self.processors.look_at_own();
        before
    }

    /// The turn ends.
    pub(super) fn end_turn(&mut self, before: Option<usize>) {
        self.processors.running = before;
        self.processors.look_at_own();
    }

    /// A word as the fabric sees it.
    pub(super) fn look(&self, at: Location) -> u64 {
        let export = &self.exports[at.export];
        if let Some(arriving) = self.processors.arriving.get(&export.machine)
            && let Some((_, value)) = arriving.iter().rev().find(|(place, _)| *place == at)
        {
            return *value;
        }
        export.memory.load(at.offset, Ordering::Relaxed)
    }

    /// The fabric writes a word.
    pub(super) fn land_word(&mut self, at: Location, value: u64) {
        let machine = self.exports[at.export].machine;
        if self.processors.simulated {
            let late = self.processors.arriving.contains_key(&machine);
            if late || self.odds.late_arrival > 0 && self.chance(self.odds.late_arrival) {
                let arriving = self.processors.arriving.entry(machine).or_default();
                return arriving.push_back((at, value));
            }
        }
        self.store(at, value);
    }

    fn store(&self, at: Location, value: u64) {
        self.exports[at.export]
            .memory
            .store(at.offset, value, Ordering::Release);
    }

    /// Now and then something that waits becomes visible.
    pub(super) fn memory_moves(&mut self) {
        if self.processors.something_waits() && self.chance(Odds::WHOLE / 4) {
            self.retire_some();
        }
    }

    /// Something that waits becomes visible; false if nothing waits.
    pub(super) fn retire_some(&mut self) -> bool {
        let processors = &self.processors;
        let buffers = (0..processors.buffers.len())
            .filter(|port| !processors.buffers[*port].stores.is_empty());
        let waiting = buffers.clone().count();
        let sources = waiting + processors.arriving.len();
        if sources == 0 {
            return false;
        }
        let pick = self.rng.random_range(0..sources);
        if pick < waiting {
            let port = buffers.clone().nth(pick);
            self.retire_store(port.expect("there are so many"));
        } else {
            let machine = self.processors.arriving.keys().nth(pick - waiting).copied();
            self.arrive_some(machine.expect("there are so many"));
        }
        true
    }

    fn retire_store(&mut self, port: usize) {
        let buffer = &mut self.processors.buffers[port];
        let Some(store) = buffer.take(&mut self.rng) else {
            return;
        };
        self.processors.waiting -= 1;
        self.processors.look_at_own();
        self.store(store.at, store.value);
        self.note(Event::Stored {
            worker: self.ports[port].worker,
            export: store.at.export as u64,
            offset: store.at.offset as u64,
            value: store.value,
        });
    }

    fn arrive_some(&mut self, machine: MachineId) {
        let Some(mut arriving) = self.processors.arriving.remove(&machine) else {
            return;
        };
        let words = self.rng.random_range(1..=arriving.len());
        for (at, value) in arriving.drain(..words) {
            self.store(at, value);
        }
        let left = arriving.len() as u64;
        if left > 0 {
            self.processors.arriving.insert(machine, arriving);
        }
        let words = words as u64;
        self.note(Event::Arrived {
            machine,
            words,
            left,
        });
    }

    /// A machine's processors see everything that has landed.
    pub(super) fn arrive_all(&mut self, machine: MachineId) {
        while self.processors.arriving.contains_key(&machine) {
            self.arrive_some(machine);
        }
    }

    /// All stores of a worker become visible, in the order in which they were made.
    pub(super) fn drain(&mut self, port: usize) {
        let stores = std::mem::take(&mut self.processors.buffers[port].stores);
        self.processors.waiting -= stores.len();
        for Store { at, value, .. } in &stores {
            self.store(*at, *value);
        }
        let stores_made = &mut self.processors.buffers[port].stores;
        *stores_made = stores;
        stores_made.clear();
        self.processors.look_at_own();
    }

    /// Everything that any processor has stored or is to see becomes visible.
    pub(super) fn drain_all(&mut self) {
        for port in 0..self.ports.len() {
            self.drain(port);
        }
        while let Some(machine) = self.processors.arriving.keys().next().copied() {
            self.arrive_all(machine);
        }
    }

    fn others_are_due(&mut self) -> bool {
        let until_others = &self.processors.glance.until_others;
        let left = until_others.load(Ordering::Relaxed) - 1;
        until_others.store(left, Ordering::Relaxed);
        if left > 0 {
            return false;
        }
        let mean = self.odds.accesses_between_others;
        let next = self.rng.random_range(1..=2 * mean);
        until_others.store(next, Ordering::Relaxed);
        true
    }
}

/// Stands between the processors of one machine and one piece of its memory.
pub(super) struct ProcessorHook {
    state: Arc<Mutex<State>>,
    glance: Arc<Glance>,
    memory: Memory,
    export: usize,
}

impl ProcessorHook {
    /// Stands before an export's memory.
    pub(super) fn new(state: Arc<Mutex<State>>, export: usize) -> Self {
        let (glance, memory) = {
            let state = super::lock(&state);
            let glance = Arc::clone(&state.processors.glance);
            (glance, state.exports[export].memory.clone())
        };
        Self {
            state,
            glance,
            memory,
            export,
        }
    }

    /// Whether an access is one before others run, of a worker that sees memory as it is.
    fn is_plain(&self) -> bool {
        let left = self.glance.until_others.load(Ordering::Relaxed);
        let plain = left > 1 && self.glance.own_stores.load(Ordering::Relaxed) == 0;
        if plain {
            self.glance.until_others.store(left - 1, Ordering::Relaxed);
        }
        plain
    }

    fn at(&self, offset: usize) -> Location {
        Location {
            export: self.export,
            offset,
        }
    }

    /// Lets others run, now and then, and locks.
    fn locked(&self) -> MutexGuard<'_, State> {
        let mut state = super::lock(&self.state);
        if state.processors.running.is_none() || !state.others_are_due() {
            return state;
        }
        let most = state.odds.steps_per_poll;
        for _ in 0..state.rng.random_range(1..=most) {
            if !state.step() {
                break;
            }
        }
        let share = state.odds.nested_turn;
        if !state.chance(share) {
            return state;
        }
        let others = state.processors.others.clone();
        drop(state);
        if let Some(others) = others {
            others();
        }
        super::lock(&self.state)
    }
}

impl Hook for ProcessorHook {
    fn load(&self, offset: usize, _: Ordering) -> u64 {
        if self.is_plain() {
            return self.memory.load(offset, Ordering::Relaxed);
        }
        let (state, at) = (self.locked(), self.at(offset));
        let running = state.processors.running;
        let own = running.and_then(|port| state.processors.buffers[port].newest(at));
        own.unwrap_or_else(|| self.memory.load(offset, Ordering::Relaxed))
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        let (mut state, at) = (self.locked(), self.at(offset));
        match state.processors.running {
            Some(port) => {
                state.processors.buffers[port].add(at, value, order);
                state.processors.waiting += 1;
                state.processors.look_at_own();
            }
            // Whoever sets the cluster up or looks at it afterwards.
            None => state.store(at, value),
        }
    }

    fn compare_exchange(&self, offset: usize, expected: u64, new: u64) -> Result<u64, u64> {
        let (mut state, at) = (self.locked(), self.at(offset));
        if let Some(port) = state.processors.running {
            state.drain(port);
        }
        let old = self.memory.load(offset, Ordering::Relaxed);
        if old != expected {
            return Err(old);
        }
        state.store(at, new);
        Ok(old)
    }

    fn fetch_add(&self, offset: usize, delta: u64) -> u64 {
        let (mut state, at) = (self.locked(), self.at(offset));
        if let Some(port) = state.processors.running {
            state.drain(port);
        }
        let old = self.memory.load(offset, Ordering::Relaxed);
        state.store(at, old.wrapping_add(delta));
        old
    }

    fn fence(&self, order: Ordering) {
        let mut state = self.locked();
        let Some(port) = state.processors.running else {
            return;
        };
        match order {
            Ordering::SeqCst => state.drain(port),
            Ordering::Release | Ordering::AcqRel => state.processors.buffers[port].fence(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn at(offset: usize) -> Location {
        Location { export: 0, offset }
    }

    /// Every order in which the buffer's stores become visible, over many seeds.
    fn orders(fill: impl Fn(&mut Buffer)) -> std::collections::BTreeSet<Vec<u64>> {
        let order = |seed| {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut buffer = Buffer::default();
            fill(&mut buffer);
            std::iter::from_fn(|| buffer.take(&mut rng).map(|store| store.value)).collect()
        };
        (0..300).map(order).collect()
    }

    #[test]
    fn stores_between_fences_come_in_any_order_and_no_store_passes_a_fence() {
        let seen = orders(|buffer| {
            buffer.add(at(0), 1, Ordering::Relaxed);
            buffer.add(at(8), 2, Ordering::Relaxed);
            buffer.fence();
            buffer.add(at(16), 3, Ordering::Relaxed);
            buffer.add(at(24), 4, Ordering::Relaxed);
        });
        let all = [[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4], [2, 1, 4, 3]];
        assert_eq!(seen, all.map(|order| order.to_vec()).into());
    }

    #[test]
    fn a_release_comes_after_what_was_before_it_and_one_place_keeps_its_order() {
        let seen = orders(|buffer| {
            buffer.add(at(0), 1, Ordering::Relaxed);
            buffer.add(at(8), 2, Ordering::Release);
            buffer.add(at(8), 3, Ordering::Relaxed);
            buffer.add(at(16), 4, Ordering::Relaxed);
            buffer.add(at(0), 5, Ordering::Relaxed);
        });
        assert!(seen.len() > 1);
        for order in seen {
            let place = |value| order.iter().position(|seen| *seen == value).unwrap();
            assert!(
                place(1) < place(2) && place(2) < place(3) && place(1) < place(5),
                "{order:?}"
            );
        }
    }
}
