//! Starts all machines again after all had ended: they go on with what their processes have kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use farm_core::ids::MachineId;
use farm_core::marks;
use farm_core::membership::configuration::Process;
use farm_core::worker::Worker;

use super::{Cluster, Machine};

impl Cluster {
    /// Starts all machines with memory again that the newest configuration names, together, if none of them and no other process runs.
    /// The memory of machine `gone` may be lost: if the others have copies of all of it, they go on without it. `attach` attaches the layers
    /// to each worker. Returns the indices of the machines that were started.
    pub fn resume(&self, gone: Option<usize>, attach: impl Fn(&mut Worker)) -> Vec<usize> {
        let parts = &self.parts;
        parts.leave_stopped();
        if parts.machines.iter().any(Machine::is_running) {
            return Vec::new();
        }
        for (machine, _) in std::mem::take(&mut *parts.connected.borrow_mut()) {
            // It was connected to machines that have ended.
            parts.fabric.kill(parts.machines[machine].id);
        }
        parts.links.borrow_mut().clear();
        if let Some(machine) = gone.map(|gone| &parts.machines[gone]) {
            let newest = parts.changes.newest();
            let is_member = newest.stores(machine.id);
            let next = newest.without_memory_of(&BTreeSet::from([machine.id]));
            if let Some(next) = next.ok().filter(|_| is_member) {
                marks::mark("absence: the memory of a machine is gone after all had ended");
                machine.kept.borrow_mut().clear();
                parts.changes.resume(&next);
            }
        }
        let newest = parts.changes.newest();
        let storing = newest.members.iter().filter(|member| member.stores);
        let ids: Vec<MachineId> = storing.map(|member| member.machine).collect();
        let before = |id: MachineId| newest.member(id).map_or(0, |member| member.boot);
        ids.iter().for_each(|id| parts.fabric.restart(*id));
        let next = newest.resumed(|id| Some(parts.fabric.boot(id)));
        let next = Arc::new(next.expect("every simulated machine has a start"));
        let segments = self.segments(&ids, &[]);
        let all = parts.machines.iter().enumerate();
        let places = all.filter(|(_, machine)| ids.contains(&machine.id));
        let places: Vec<usize> = places.map(|one| one.0).collect();
        let mut kept = Vec::new();
        for place in &places {
            let machine = &parts.machines[*place];
            let me = Process {
                machine: machine.id,
                boot: parts.fabric.boot(machine.id),
            };
            let all = machine.kept.borrow();
            let of = all.get(&before(machine.id));
            let of = of.expect("what a configuration names is kept");
            kept.push(Arc::new(of.take_over(me, &newest)));
        }
        parts.changes.resume(&next);
        for (place, kept) in places.iter().zip(kept) {
            // No configuration names the earlier processes any more.
            parts.machines[*place].kept.borrow_mut().clear();
            self.start_process(*place, &segments, (Some(kept), Some(&next)), &attach);
        }
        places
    }
}
