//! Machines that connect to a machine that runs, at any time: those that store nothing, and those that were lost, if the others survive
//! that.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::parts::{between, export_segment, ring_format};
use crate::config::Config;
use crate::control::Control;
use crate::fabric::{Admission, Capability, Exporter, PeerOffer};
use crate::ids::MachineId;
use crate::kept::Kept;
use crate::mem::Memory;
use crate::membership::configuration::Process;
use crate::messaging::{LinkPeer, SegmentLayout};
use crate::worker::{Inbox, Linking};

/// Admits machines, and has the workers connect to them.
pub(super) struct Admit {
    me: MachineId,
    config: Config,
    exporter: Exporter,
    kept: Option<Arc<dyn Kept>>,
    control: Arc<Control>,
    inboxes: Vec<Arc<Inbox>>,
    /// The segment that was last exported for each machine.
    segments: BTreeMap<MachineId, Capability>,
    /// The memory of the segments that are offered to callers.
    offered: BTreeMap<MachineId, Memory>,
}

impl Admit {
    /// Creates the admission of a machine. `segments` are those exported for the machines that have connected.
    pub(super) fn new(
        (me, config): (MachineId, &Config),
        (exporter, kept): (Exporter, Option<Arc<dyn Kept>>),
        control: Arc<Control>,
        (inboxes, segments): (Vec<Arc<Inbox>>, BTreeMap<MachineId, Capability>),
    ) -> Self {
        Self {
            me,
            config: config.clone(),
            exporter,
            kept,
            control,
            inboxes,
            segments,
            offered: BTreeMap::new(),
        }
    }

    fn workers_of(&self, machine: MachineId) -> usize {
        let machine = self.config.machine(machine);
        machine.map_or(0, |machine| usize::from(machine.workers))
    }
}

impl Admission for Admit {
    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String> {
        if self.config.memory_of(caller) > 0 && !self.config.survives_losses() {
            return Err(format!(
                "the machines of the cluster run already, and machine {caller} stores memory, so it cannot join them; stop and \
                 start all of them together"
            ));
        }
        let (ours, theirs) = (self.inboxes.len(), self.workers_of(caller));
        let layout = SegmentLayout::between(ring_format(&self.config), ours, theirs);
        if let Some(before) = self.segments.remove(&caller) {
            self.exporter.withdraw(&before);
        }
        let exporter = between(&self.config, &self.exporter, [self.me, caller]);
        let segment = (caller, layout);
        let exported = export_segment(&self.config, &exporter, segment, self.kept.as_deref());
        let (memory, capability) = exported.map_err(|error| error.to_string())?;
        // Withdrawn by the next call of this machine, also if it does not connect now.
        self.segments.insert(caller, capability);
        self.offered.insert(caller, memory);
        Ok(vec![capability])
    }

    fn is_open(&self) -> bool {
        !self.control.is_stopping() && !self.control.is_leaving()
    }

    fn connected(&mut self, peer: PeerOffer) {
        let machine = peer.machine;
        let (Some(ours), Some(theirs)) = (self.offered.remove(&machine), peer.offer.first()) else {
            tracing::warn!(%machine, "a machine connected without memory for rings; it will end its connection");
            return;
        };
        if let (Some(kept), Some(capability)) = (&self.kept, self.segments.get(&machine)) {
            let boot = theirs.boot;
            kept.connected(Process { machine, boot }, capability);
        }
        let peer = LinkPeer {
            machine,
            workers: self.workers_of(machine),
            ours,
            theirs: *theirs,
        };
        let linking = Arc::new(Linking::new(peer, self.inboxes.len()));
        tracing::info!(%machine, "a machine has connected");
        for inbox in &self.inboxes {
            let linking = Arc::clone(&linking);
            inbox.connect(move |worker| linking.link(worker));
        }
    }
}
