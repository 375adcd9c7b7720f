//! Starts a machine again that has left, as another process of the machine would: its heap is gone, and it connects to the others
//! anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farm_core::control::Control;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::messaging::LinkPeer;
use farm_core::worker::Worker;

use super::build::{self, Exported};
use super::{Cluster, Process, lock};

impl Cluster {
    /// Starts a machine without memory of its own again, which has left. `attach` attaches the layers to each worker. The machine
    /// [joins](Worker::join) the others in the turns that follow.
    ///
    /// # Panics
    /// If the machine has not left, or stores memory.
    pub fn restart(&self, machine: usize, attach: impl Fn(&mut Worker)) {
        let parts = &self.parts;
        let (limits, id) = (&parts.limits, parts.machines[machine].id);
        assert!(
            !parts.machines[machine].store().is_used(),
            "machine {id} stores memory, which cannot be recovered yet"
        );
        parts.leave_stopped();
        parts.fabric.restart(id);
        let others = parts
            .machines
            .iter()
            .filter(|other| other.id != id && other.is_running());
        let others: Vec<MachineId> = others.map(|other| other.id).collect();
        // What the machine exports for itself and the others, and the others for it.
        let pairs = others.iter().flat_map(|other| [(id, *other), (*other, id)]);
        let pairs = pairs.chain([(id, id)]);
        let segments: Vec<Exported> = pairs
            .map(|pair| Exported::new(&parts.fabric, limits, pair))
            .collect();
        self.start_process(machine, &segments, attach);
        for other in &others {
            self.connect(*other, id, &segments);
        }
        let boot = parts.fabric.boot(id);
        self.on(machine * limits.workers, |worker| worker.join(boot, others));
    }

    fn start_process(&self, machine: usize, segments: &[Exported], attach: impl Fn(&mut Worker)) {
        let parts = &self.parts;
        let (limits, seed) = (&parts.limits, parts.seed);
        let place = &parts.machines[machine];
        let ids: Vec<MachineId> = self.machines().collect();
        let store = Arc::new(build::store(&parts.fabric, limits, &ids, place.id, seed));
        store.map().begin_joining();
        let control = Arc::new(Control::default());
        // Machines that have gone are listed, but not connected.
        let peers = build::peers(segments, limits, place.id);
        for index in 0..limits.workers {
            let me = WorkerRef::new(place.id, build::worker_id(index));
            let parts = build::worker(&parts.fabric, limits, me, &peers, &store, &control, seed);
            let mut worker = Box::new(Worker::new(parts));
            attach(&mut worker);
            let seat = &self.parts.seats[machine * limits.workers + index];
            *lock(&seat.worker) = Some(worker);
        }
        let own = segments.iter().filter(|one| one.owner == place.id);
        *place.process.borrow_mut() = Process {
            control,
            store,
            segments: own.map(|one| one.kept(&parts.fabric, limits)).collect(),
        };
        place.paused_until.store(0, Ordering::Relaxed);
        place.stopping.store(false, Ordering::Relaxed);
        place.gone.store(false, Ordering::Relaxed);
    }

    /// Has the workers of a machine connect to one that was started again.
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
        for (index, seat) in parts.seats.iter().enumerate() {
            if seat.me.machine == machine {
                let linked = self.on(index, |worker| worker.link(&peer));
                linked.expect("the machine runs and has exported its segment");
                parts.fabric.unpark(seat.me.machine, seat.me.worker);
                if seat.me.worker.index() + 1 == parts.limits.workers {
                    self.on(index, |worker| worker.announce_linked(to));
                }
            }
        }
        let place = parts.machines.iter().find(|place| place.id == machine);
        let place = place.expect("the machine belongs to the cluster");
        let segments = &mut place.process.borrow_mut().segments;
        segments.retain(|segment| segment.peer != to);
        segments.push(ours.kept(&parts.fabric, &parts.limits));
    }
}
