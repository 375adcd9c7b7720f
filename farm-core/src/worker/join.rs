//! How a machine that stores nothing joins a cluster that runs: one that was started again after it had left.
//!
//! 1. The machine connects to all others, whose workers add rings and logs for it ([`Worker::link`]).
//! 2. Its first worker asks the manager to join, with the number of its start, until the answer is final.
//! 3. The manager records the start in the configuration, then sends all regions that exist, and the catalog. What is recorded
//!    from now on is sent to the machine like to all others.
//! 4. When the machine has answered, its region map is complete, and it begins to work.

use std::collections::{BTreeMap, VecDeque};

use super::regions::{
    ASK_AGAIN, CATALOG_BYTES, CHANGES, DONE, NOT_YET, REFUSED, REGION_BYTES, REPLY_BYTES,
    encode_changes, first_worker,
};
use super::{Cont, Worker};
use crate::ids::{MachineId, RegionId};
use crate::marks;
use crate::membership::manager::{Changes, Recorded};
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::region::map::Replicas;

/// To the manager: the machine joins, with the number of its start. The reply is a code.
const JOIN: MessageId = MessageId(MessageId::CORE + 6);

/// The machines that join, on the worker that runs the manager.
#[derive(Default)]
pub(super) struct Newcomers {
    joining: BTreeMap<MachineId, Newcomer>,
}

/// A machine that joins.
struct Newcomer {
    boot: u64,
    /// Regions that it does not know yet.
    untold: VecDeque<(RegionId, Replicas)>,
    /// Number of regions in the message that it has not answered.
    under_way: usize,
}

impl Newcomer {
    fn knows_all(&self) -> bool {
        self.untold.is_empty() && self.under_way == 0
    }
}

impl Worker {
    pub(super) fn register_join_handlers(&mut self) {
        self.register(JOIN, Self::handle_join);
    }

    /// Begins to join the cluster, with the number of this machine's start: see [the region map](crate::region::map), which is
    /// complete when the machine has joined. To be called on the first worker of a machine.
    pub fn join(&mut self, boot: u64) {
        let manager = self.membership.manager();
        let cont = ReplyCont::new(Self::on_join_reply, boot);
        let body = boot.to_le_bytes();
        match self.call(first_worker(manager), JOIN, &[&body], REPLY_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => {
                self.when_room(Cont::new(|worker, boot, ()| worker.join(boot), boot))
            }
            Err(error) => self.cannot_join(&error.to_string()),
        }
    }

    fn on_join_reply(&mut self, boot: u64, reply: Result<&[u8], CallError>) {
        match reply {
            Ok([NOT_YET]) => {
                let again = Cont::new(|worker: &mut Worker, boot, ()| worker.join(boot), boot);
                self.set_timer(ASK_AGAIN, again);
            }
            Ok([DONE]) => {
                marks::mark("worker: machine joined");
                self.store.map().complete();
            }
            Ok(_) => self.cannot_join("the manager refused it; see its log for the reason"),
            Err(error) => self.cannot_join(&error.to_string()),
        }
    }

    fn cannot_join(&mut self, why: &str) {
        let (me, manager) = (self.me.machine, self.membership.manager());
        self.control.fail(format!(
            "machine {me} cannot join the cluster of manager {manager}: {why}"
        ));
    }

    fn handle_join(&mut self, request: Request, body: &[u8]) {
        let from = request.from.machine;
        let Ok(boot) = body.try_into().map(u64::from_le_bytes) else {
            let why = format!("{} sent a JOIN that is malformed", request.from);
            return self.distrust(from, why);
        };
        let Some(manager) = &mut self.recorder.manager else {
            return self.reply(request, &[&[REFUSED]]);
        };
        let code = match manager.record_start(from, boot) {
            Recorded::Yes => match self.newcomers.joining.get(&from) {
                Some(newcomer) if newcomer.boot != boot => self.introduce(from, boot),
                Some(newcomer) if newcomer.knows_all() => DONE,
                Some(_) => NOT_YET,
                None => self.introduce(from, boot),
            },
            Recorded::NotYet => NOT_YET,
            Recorded::No(why) => {
                tracing::error!(machine = %from, why, "a machine cannot join");
                REFUSED
            }
        };
        self.reply(request, &[&[code]]);
        self.manage();
    }

    /// Begins to send all regions to a machine.
    fn introduce(&mut self, machine: MachineId, boot: u64) -> u8 {
        let known = self.recorder.manager.as_ref();
        let known = known.map_or(&[][..], |manager| &manager.configuration().regions);
        let replicas = |region: &crate::membership::configuration::RegionReplicas| {
            Replicas::new(region.machines()).map(|replicas| (region.region, replicas))
        };
        let newcomer = Newcomer {
            boot,
            untold: known.iter().filter_map(replicas).collect(),
            under_way: 0,
        };
        self.newcomers.joining.insert(machine, newcomer);
        self.tell_newcomer(machine.get().into(), ());
        NOT_YET
    }

    /// Sends the next regions to a machine that joins.
    fn tell_newcomer(&mut self, machine: u64, (): ()) {
        let id = MachineId::new(machine as u16);
        let id = id.expect("the context of this continuation is the id of a machine");
        let most = (self.max_message_body() - CATALOG_BYTES) / REGION_BYTES;
        let manager = self.recorder.manager.as_ref();
        let catalog = manager.and_then(|manager| manager.configuration().catalog);
        let Some(newcomer) = self.newcomers.joining.get_mut(&id) else {
            return;
        };
        let count = newcomer.untold.len().min(most);
        if count == 0 {
            return;
        }
        let regions = newcomer.untold.range(..count).copied().collect();
        let mut body = Vec::new();
        encode_changes(&mut body, &Changes { regions, catalog });
        newcomer.under_way = count;
        let cont = ReplyCont::new(Self::on_newcomer_told, machine);
        match self.call(first_worker(id), CHANGES, &[&body], 0, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::tell_newcomer, machine)),
            Err(_) => _ = self.newcomers.joining.remove(&id),
        }
    }

    fn on_newcomer_told(&mut self, machine: u64, reply: Result<&[u8], CallError>) {
        let Some(id) = MachineId::new(machine as u16) else {
            return;
        };
        if reply.is_err() {
            self.newcomers.joining.remove(&id);
            return;
        }
        if let Some(newcomer) = self.newcomers.joining.get_mut(&id) {
            let told = std::mem::take(&mut newcomer.under_way);
            newcomer.untold.drain(..told.min(newcomer.untold.len()));
        }
        self.tell_newcomer(machine, ());
    }
}
