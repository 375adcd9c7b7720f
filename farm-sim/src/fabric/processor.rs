//! Simulated processors, between a worker's turn and memory: when a store becomes visible to other processors, and when
//! a processor sees a remote write.
//!
//! A store waits in its processor's buffer. Other processors see the stores of one processor one at a time, in any
//! order that its fences and releases allow; the processor itself sees its own stores at once. A remote write is in
//! memory when the write is acknowledged, but the processors of that machine may see it later, word after word. Loads
//! are not reordered: `loom` tests check the code that depends on the order of loads.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use farm_core::ids::{MachineId, WorkerRef};
use farm_core::mem::{Hook, Memory};
use rand::Rng;

use super::buffers::{FastPath, Store, bit};
use super::connection::Location;
use super::state::{Export, State};
use super::trace::Event;

impl Export {
    fn store(&self, offset: usize, value: u64) {
        self.memory.store(offset, value, Ordering::Release);
    }
}

impl State {
    /// Begins a turn of the worker: until the turn ends, memory accesses are attributed to this worker. Returns the
    /// port whose turn was running before.
    pub(super) fn begin_turn(&mut self, worker: WorkerRef) -> Option<usize> {
        // The last one: a machine that was started again has new workers with the names of the earlier ones.
        let port = self.ports.iter().rposition(|port| port.worker == worker);
        let before = std::mem::replace(&mut self.processors.running, port);
        self.processors.publish_own_stores();
        before
    }

    /// Ends a turn: `before` is what [`State::begin_turn`] returned.
    pub(super) fn end_turn(&mut self, before: Option<usize>) {
        self.processors.running = before;
        self.processors.publish_own_stores();
    }

    /// Loads a word as remote operations see it: including words that the machine's own processors do not see yet.
    pub(super) fn look(&self, at: Location) -> u64 {
        let export = &self.exports[at.export];
        if let Some(arriving) = self.processors.arriving.get(&export.machine)
            && let Some((_, value)) = arriving.iter().rev().find(|(place, _)| *place == at)
        {
            return *value;
        }
        export.memory.load(at.offset, Ordering::Relaxed)
    }

    /// Stores a word of a remote write. The machine's processors may see it late; once one word is late, later words
    /// queue behind it.
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
        self.exports[at.export].store(at.offset, value);
    }

    /// By chance, makes a pending store or late word visible.
    pub(super) fn maybe_retire(&mut self) {
        if self.processors.has_pending() && self.chance(self.odds.retire) {
            self.retire_some();
        }
    }

    /// Makes a pending store, or some late words of one machine, visible. Returns false if nothing is pending.
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
            self.retire_store(
                port.expect("`pick` is below the number of ports with buffered stores"),
            );
        } else {
            let machine = self.processors.arriving.keys().nth(pick - waiting).copied();
            self.arrive_some(
                machine.expect(
                    "`pick - waiting` is below the number of machines with arriving stores",
                ),
            );
        }
        true
    }

    fn retire_store(&mut self, port: usize) {
        let buffer = &mut self.processors.buffers[port];
        let Some(store) = buffer.take(&mut self.rng) else {
            return;
        };
        self.processors.waiting -= 1;
        self.processors.publish_own_stores();
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

    /// Makes all late words visible to a machine's processors.
    pub(super) fn arrive_all(&mut self, machine: MachineId) {
        while self.processors.arriving.contains_key(&machine) {
            self.arrive_some(machine);
        }
    }

    /// Makes all buffered stores of a worker visible, in the order in which they were made.
    pub(super) fn drain(&mut self, port: usize) {
        let (buffer, exports) = (&mut self.processors.buffers[port], &self.exports);
        for Store { at, value, .. } in buffer.drain() {
            self.processors.waiting -= 1;
            exports[at.export].store(at.offset, value);
        }
        self.processors.publish_own_stores();
    }

    /// Makes the buffered stores of a machine's workers visible, and the late words in its memory.
    pub(super) fn drain_machine(&mut self, machine: MachineId) {
        for port in 0..self.ports.len() {
            if self.ports[port].worker.machine == machine {
                self.drain(port);
            }
        }
        self.arrive_all(machine);
    }

    /// Makes every buffered store and every late word visible.
    pub(super) fn drain_all(&mut self) {
        for port in 0..self.ports.len() {
            self.drain(port);
        }
        while let Some(machine) = self.processors.arriving.keys().next().copied() {
            self.arrive_all(machine);
        }
    }

    fn count_access_and_check_due(&mut self) -> bool {
        let until_others = &self.processors.fast_path.until_others;
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

/// Intercepts the accesses of one machine's processors to one export.
pub(super) struct ProcessorHook {
    state: Arc<Mutex<State>>,
    fast_path: Arc<FastPath>,
    memory: Memory,
    export: usize,
}

impl ProcessorHook {
    /// Creates the hook of an export's memory.
    pub(super) fn new(state: Arc<Mutex<State>>, export: usize) -> Self {
        let (fast_path, memory) = {
            let state = super::lock(&state);
            let fast_path = Arc::clone(&state.processors.fast_path);
            (fast_path, state.exports[export].memory.clone())
        };
        Self {
            state,
            fast_path,
            memory,
            export,
        }
    }

    /// Returns true if a load can skip the lock, and counts it: no interruption is due, and the worker whose turn is
    /// running has no buffered store there, so that it sees memory as it is. Outside of turns all loads do.
    fn is_plain(&self, offset: usize) -> bool {
        if !self.fast_path.in_turn.load(Ordering::Relaxed) {
            return true;
        }
        let left = self.fast_path.until_others.load(Ordering::Relaxed);
        let own = self.fast_path.own_stores.load(Ordering::Relaxed);
        let plain = left > 1 && own & bit(self.at(offset)) == 0;
        if plain {
            self.fast_path
                .until_others
                .store(left - 1, Ordering::Relaxed);
        }
        plain
    }

    fn at(&self, offset: usize) -> Location {
        Location {
            export: self.export,
            offset,
        }
    }

    /// Locks the state, after an interruption if one is due: the fabric takes steps, and other workers may take turns.
    fn locked(&self) -> MutexGuard<'_, State> {
        let mut state = super::lock(&self.state);
        if state.processors.running.is_none() || !state.count_access_and_check_due() {
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
        if self.is_plain(offset) {
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
                state.processors.publish_own_stores();
            }
            // Outside of any turn, such as during set-up and inspection, stores are not buffered.
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
