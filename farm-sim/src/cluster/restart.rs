//! Starts machines again that have left, as other processes of them would: their heaps are gone, and they connect to the others
//! anew.
//!
//! The workers of the other machines are connected one by one, each at a moment of its own. Until then, some of them know the
//! new start and others do not, and the machine that was started again may have written to all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farm_core::control::Control;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::membership::configuration::Configuration;
use farm_core::membership::manager::Manager;
use farm_core::messaging::LinkPeer;
use farm_core::time::Nanos;
use farm_core::worker::{Linking, Worker};

use super::build::{self, Exported};
use super::kept::SimKept;
use super::{Cluster, Machine, Parts, PendingLink, Process, lock};

/// Maximum number of doublings of the nanosecond within which a worker is connected.
const LINK_DOUBLINGS: u64 = 20;

/// Machines that are connected to those that run, and do not run yet.
pub(super) struct Begun {
    /// Their indices.
    places: Vec<usize>,
    /// The machines that ran, with the numbers of their starts.
    running: Vec<(MachineId, u64)>,
    segments: Vec<Exported>,
}

impl Cluster {
    /// Starts all machines without memory of their own again that do not run, together. Each connects to the others of them, and to
    /// the machines that run. `attach` attaches the layers to each worker. The machines [join](Worker::join) those that run in the steps
    /// that follow. Returns false, and does nothing, if a member that stores regions does not run: they cannot connect to it.
    pub fn restart(&self, attach: impl Fn(&mut Worker)) -> bool {
        let begun = self.begin(|machine| !machine.store().is_used());
        let can_begin = begun.is_some();
        if let Some(begun) = begun {
            self.run(&begun, attach);
        }
        can_begin
    }

    /// As [`Cluster::restart`], for one machine that stores regions, and was killed. While the configuration has its earlier process, the
    /// machine connects to the others, and the result is false.
    pub fn rejoin(&self, machine: usize, attach: impl Fn(&mut Worker)) -> bool {
        let id = self.parts.machines[machine].id;
        let is_usable = |begun: &Begun| begun.running == self.starts();
        let connected = self.parts.connected.borrow_mut().remove(&machine);
        if connected.as_ref().is_some_and(|begun| !is_usable(begun)) {
            // The others have changed. It ends, and begins anew.
            self.parts.fabric.kill(id);
        }
        let begun = connected.filter(is_usable);
        let Some(begun) = begun.or_else(|| self.begin(|machine| machine.id == id)) else {
            return false;
        };
        if self.parts.changes.newest().member(id).is_some() {
            self.parts.connected.borrow_mut().insert(machine, begun);
            return false;
        }
        self.run(&begun, attach);
        true
    }

    /// Returns the machines that run, with the numbers of their starts.
    fn starts(&self) -> Vec<(MachineId, u64)> {
        let running = self.parts.machines.iter();
        let running = running.filter(|machine| machine.is_running());
        let start = |machine: &Machine| (machine.id, self.parts.fabric.boot(machine.id));
        running.map(start).collect()
    }

    /// Has machines that do not run connect to those that do. Returns `None`, and does nothing, if another member that stores regions does
    /// not run.
    fn begin(&self, which: impl Fn(&Machine) -> bool) -> Option<Begun> {
        let parts = &self.parts;
        parts.leave_stopped();
        let newest = parts.changes.newest();
        let all = parts.machines.iter().enumerate();
        let gone = all.filter(|(_, machine)| !machine.is_running());
        let (gone, away): (Vec<_>, Vec<_>) = gone.partition(|one| which(one.1));
        if away.iter().any(|(_, machine)| newest.stores(machine.id)) {
            return None;
        }
        let starting: Vec<MachineId> = gone.iter().map(|one| one.1.id).collect();
        let running = self.starts();
        for machine in &starting {
            parts.fabric.restart(*machine);
            // The items of a worker keep their order.
            parts.submit_links(|link| link.to == *machine);
        }
        let others: Vec<MachineId> = running.iter().map(|one| one.0).collect();
        let segments = self.segments(&starting, &others);
        for machine in &starting {
            for other in &others {
                self.connect(*other, *machine, &segments);
            }
        }
        Some(Begun {
            places: gone.into_iter().map(|one| one.0).collect(),
            running,
            segments,
        })
    }

    /// Runs machines that are connected to the others.
    fn run(&self, begun: &Begun, attach: impl Fn(&mut Worker)) {
        let parts = &self.parts;
        for place in &begun.places {
            let id = parts.machines[*place].id;
            let kept = build::new_kept(&parts.fabric, &parts.limits, id);
            // No configuration names an earlier process that was a member. One that was joining may still be recorded.
            if parts.machines[*place].store().map().is_complete() {
                parts.machines[*place].kept.borrow_mut().clear();
            }
            self.start_process(*place, &begun.segments, (kept, None), &attach);
        }
        for place in &begun.places {
            let boot = parts.fabric.boot(parts.machines[*place].id);
            let running = begun.running.iter().map(|one| one.0);
            let first = place * parts.limits.workers;
            self.on(first, |worker| worker.join(boot, running));
        }
    }

    /// Exports what machines that start need for themselves, for each other and for those that run, and what those need for them.
    pub(super) fn segments(&self, starting: &[MachineId], running: &[MachineId]) -> Vec<Exported> {
        let parts = &self.parts;
        let mut pairs = Vec::new();
        for id in starting {
            pairs.extend(starting.iter().map(|other| (*id, *other)));
            pairs.extend(
                running
                    .iter()
                    .flat_map(|other| [(*id, *other), (*other, *id)]),
            );
        }
        let pairs = pairs.into_iter();
        pairs
            .map(|pair| Exported::new(&parts.fabric, &parts.limits, pair))
            .collect()
    }

    /// Starts the process of a machine, with what it keeps. It joins others, or begins with a configuration that they begin with, too.
    pub(super) fn start_process(
        &self,
        machine: usize,
        segments: &[Exported],
        (kept, resumed): (Option<Arc<SimKept>>, Option<&Arc<Configuration>>),
        attach: impl Fn(&mut Worker),
    ) {
        let parts = &self.parts;
        let (limits, seed) = (&parts.limits, parts.seed);
        let place = &parts.machines[machine];
        let ids: Vec<MachineId> = self.machines().collect();
        let own = segments.iter().filter(|one| one.owner == place.id);
        own.for_each(|segment| segment.keep(kept.as_deref(), &parts.fabric));
        let boot = parts.fabric.boot(place.id);
        let all_kept = kept.iter().map(|kept| (boot, Arc::clone(kept)));
        place.kept.borrow_mut().extend(all_kept);
        let of = (&parts.fabric, limits, kept.as_ref());
        let store = Arc::new(build::store(of, &ids, place.id, seed));
        match (resumed, &kept) {
            (Some(configuration), Some(kept)) => {
                let resumed = store.resume(Arc::clone(configuration), kept.export_regions());
                resumed.expect("the tables of regions can be read after a kill");
            }
            _ => store.map().begin_joining(),
        }
        let control = Arc::new(Control::default());
        let peers = build::peers(segments, limits, place.id);
        let newest = parts.changes.newest();
        let mut inboxes = Vec::new();
        for index in 0..limits.workers {
            let me = WorkerRef::new(place.id, build::worker_id(index));
            let begun = (&parts.fabric, limits, &newest);
            let members = build::members(begun, me, &parts.changes);
            let own = (&store, &control, kept.as_ref());
            let mut parts = build::worker(begun, me, &peers, own, seed);
            parts.members = members;
            if resumed.is_some() && newest.manager == place.id && index == 0 {
                let changes = self.parts.changes.clone();
                let manager = Manager::new(newest.clone(), changes).among_others();
                parts.manager = Some(Box::new(manager));
            }
            inboxes.push(Arc::clone(&parts.inbox));
            let mut worker = Box::new(Worker::new(parts));
            attach(&mut worker);
            if resumed.is_some() {
                worker.resume();
            }
            let seat = &self.parts.seats[machine * limits.workers + index];
            *lock(&seat.worker) = Some(worker);
        }
        let mut links = parts.links.borrow_mut();
        links.retain(|link| parts.seats[link.seat].machine != machine);
        let own = segments.iter().filter(|one| one.owner == place.id);
        *place.process.borrow_mut() = Process {
            control,
            store,
            segments: own.map(|one| one.kept(&parts.fabric, limits)).collect(),
            inboxes,
            kept,
        };
        place.paused_until.store(0, Ordering::Relaxed);
        place.stopping.store(false, Ordering::Relaxed);
        place.stalls.store(false, Ordering::Relaxed);
        place.ends.store(false, Ordering::Relaxed);
        place.killed.store(false, Ordering::Relaxed);
        place.lost.store(false, Ordering::Relaxed);
        place.gone.store(false, Ordering::Relaxed);
    }

    /// Has the workers of a machine connect to one that was started again, each at a moment of its own.
    fn connect(&self, machine: MachineId, to: MachineId, segments: &[Exported]) {
        let parts = &self.parts;
        let of = |owner: MachineId, peer: MachineId| {
            let mut segments = segments.iter();
            let found = segments.find(|one| (one.owner, one.peer) == (owner, peer));
            found.expect("each machine that runs has exported a segment for the other")
        };
        let (ours, theirs) = (of(machine, to), of(to, machine));
        let peer = LinkPeer {
            machine: to,
            workers: parts.limits.workers,
            ours: ours.memory.clone(),
            theirs: theirs.capability,
        };
        let linking = Arc::new(Linking::new(peer, parts.limits.workers));
        let most = 1 << parts.fabric.draw(LINK_DOUBLINGS + 1);
        let seats = parts.seats.iter().enumerate();
        let seats = seats.filter(|(_, seat)| seat.me.machine == machine);
        let pending = seats.map(|(seat, _)| PendingLink {
            seat,
            to,
            due: self.now() + parts.fabric.draw(most),
            linking: Arc::clone(&linking),
        });
        parts.links.borrow_mut().extend(pending);
        let place = parts.machines.iter().find(|place| place.id == machine);
        let place = place.expect("the machine belongs to the cluster");
        let process = &mut place.process.borrow_mut();
        ours.keep(process.kept.as_deref(), &parts.fabric);
        let segments = &mut process.segments;
        segments.retain(|segment| segment.peer != to);
        segments.push(ours.kept(&parts.fabric, &parts.limits));
    }
}

impl Parts {
    /// Submits the work items that connect workers and are due.
    pub(super) fn submit_due_links(&self) {
        if !self.links.borrow().is_empty() {
            let now = self.fabric.now();
            self.submit_links(|link| link.due <= now);
        }
    }

    /// Returns the earliest moment at which a worker is connected.
    pub(super) fn next_link(&self) -> Option<Nanos> {
        self.links.borrow().iter().map(|link| link.due).min()
    }

    fn submit_links(&self, which: impl Fn(&PendingLink) -> bool) {
        let mut links = self.links.borrow_mut();
        for link in links.extract_if(.., |link| which(link)) {
            self.submit_link(&link);
        }
    }

    fn submit_link(&self, link: &PendingLink) {
        // The items of a process that has ended are gone.
        if self.machines[self.seats[link.seat].machine].is_running() {
            let linking = Arc::clone(&link.linking);
            self.connect(link.seat, move |worker| linking.link(worker));
        }
    }
}
