//! How a machine starts: with all others, alone among those that run, or with all others after all of them had ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::admission::Admit;
use super::kept::KeptFiles;
use super::manager::{
    STARTS_AGAIN, begin_stored, begin_with, config_store, joins_survivors, make_manager,
    make_members, may_write, newest_configuration, resume_with, to_resume,
};
use super::meet::{Met, meet};
use super::pages::Pages;
use super::parts::{arena, make_store, reads_in_flight, ring_format, spare};
use super::run::{LastWorker, StopOnPanic, core_of, idle_policy, pin, run};
use super::{
    Attach, Awaited, INBOX_ITEMS, IS_WORKER, JOIN_AGAIN, JOIN_ATTEMPT, Machine, MachineError,
    fabric_config,
};
use crate::config::Config;
use crate::control::Control;
use crate::fabric::{Capability, ConnectError, Departed, ExportError, FabricMachine, Patience};
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::kept::Kept;
use crate::limits::{Limits, READ_TRIES, RECORD_OVERHEAD_BYTES, ReadTries};
use crate::membership::Membership;
use crate::membership::configuration::Configuration;
use crate::membership::files::FileStore;
use crate::membership::manager::Manager;
use crate::messaging::Links;
use crate::time::Clock;
use crate::worker::{Inbox, Worker, WorkerLimits, WorkerParts};

/// Interval at which a machine that waits for all others looks whether they go on without one of them.
const CURRENT_LOOK: Duration = Duration::from_millis(100);

/// How a machine begins.
enum Begin {
    /// With all others, as a new cluster.
    New,
    /// It joins others, which run.
    Joins,
    /// With all others of this configuration, the newest one, which have ended: they go on with what their processes have kept.
    Resumes(Box<Configuration>),
    /// Not yet: others must start or end first.
    Waits(Awaited),
}

impl Begin {
    /// Returns how a machine of a cluster that survives losses begins.
    fn of(config: &Config, id: MachineId) -> Result<Self, MachineError> {
        let newest = newest_configuration(config)?;
        if joins_survivors(config, id, newest.as_ref())? {
            return Ok(Self::Joins);
        }
        let Some(newest) = newest else {
            return Ok(Self::New);
        };
        if !config.keeps_memory() {
            return Ok(Self::Waits(Awaited::Answer));
        }
        if !newest.stores(id) {
            return Ok(Self::Waits(Awaited::Others));
        }
        if let Some(machine) = may_write(config, id, &newest)? {
            return Ok(Self::Waits(Awaited::EndOf(machine)));
        }
        let newest = to_resume(config, id, newest)?;
        Ok(newest.map_or(Self::Waits(Awaited::Others), |newest| {
            Self::Resumes(Box::new(newest))
        }))
    }

    /// Checks that the store still has what this was chosen for, when no other process of this machine can start any more.
    fn check_current(&self, config: &Config) -> Result<(), MachineError> {
        let then = match self {
            Self::New => None,
            Self::Resumes(newest) => Some(&**newest),
            Self::Joins | Self::Waits(_) => return Ok(()),
        };
        let now = newest_configuration(config)?;
        if now.as_ref() == then {
            return Ok(());
        }
        let known = now.as_ref().or(then).map(|known| known.version);
        Err(MachineError::Changed(known.unwrap_or_default()))
    }

    /// Returns whether another try may succeed, because others start or end meanwhile.
    fn may_try_again(&self, error: &MachineError) -> bool {
        match error {
            MachineError::RunsAlready(_) | MachineError::Changed(_) => true,
            error => matches!(self, Self::Resumes(_)) && error.may_be_of_a_change(),
        }
    }

    fn joins(&self) -> bool {
        matches!(self, Self::Joins)
    }
}

/// Starts a machine, and cancels that if it is to resume a configuration and the others go on without the memory of a machine: they store
/// another one, before any of them has met all.
///
/// # Errors
/// [`MachineError::Changed`] in that case.
fn start_while_current(
    config: &Config,
    begin: &Begin,
    patience: Patience<'_>,
    start: impl FnOnce(&Begin, Patience<'_>) -> Result<Machine, MachineError>,
) -> Result<Machine, MachineError> {
    let Begin::Resumes(chosen) = begin else {
        return start(begin, patience);
    };
    let cancelled = AtomicBool::new(false);
    // Dropped when the start ends, also by a panic.
    let (starting, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (cancelled, starting) = (&cancelled, starting);
        let watch = scope.spawn(move || {
            loop {
                let newest = newest_configuration(config).ok().flatten();
                let changed = newest.filter(|newest| chosen.has_lost_members_in(newest));
                if changed.is_some() || patience.is_cancelled() {
                    cancelled.store(true, Ordering::Release);
                    return changed;
                }
                match ended.recv_timeout(CURRENT_LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return None,
                }
            }
        });
        let while_current = Patience {
            cancelled: Some(cancelled),
            ..patience
        };
        let started = start(begin, while_current);
        drop(starting);
        let changed = watch.join().expect("a look at the store does not panic");
        match (started, changed) {
            (Err(MachineError::Connect(ConnectError::Cancelled)), Some(changed)) => {
                Err(MachineError::Changed(changed.version))
            }
            (started, _) => started,
        }
    })
}

impl Machine {
    /// Starts machine `id` of the configuration, waits for the machines that store regions within `patience` (a
    /// [`Duration`] converts to it), and runs its workers. A machine that stores nothing joins these when they run,
    /// and so does one that they have lost. If they survive the loss of a machine, it waits until it has joined, and begins again if they
    /// have changed the configuration meanwhile. If it stores memory, and is connected, it waits as long as it takes: memory for its
    /// copies is made first. If all had ended, the machines go on with what their processes have [kept](crate::kept).
    ///
    /// # Errors
    /// [`MachineError`] when the configuration is invalid, the cluster's name is in use, memory is
    /// insufficient, or a machine is missing or has another configuration.
    pub fn start<'p>(
        config: &Config,
        id: MachineId,
        attach: Attach,
        patience: impl Into<Patience<'p>>,
    ) -> Result<Self, MachineError> {
        let patience = patience.into();
        match config.survives_losses() {
            true => Self::start_or_join(config, id, &attach, patience),
            false => Self::start_once(config, id, attach, patience, &Begin::New),
        }
    }

    /// Starts a machine that joins others if they run. They may change the configuration meanwhile: it joins them as often as it takes.
    fn start_or_join(
        config: &Config,
        id: MachineId,
        attach: &Attach,
        patience: Patience<'_>,
    ) -> Result<Self, MachineError> {
        let began = Clock::Host.now();
        let left = || patience.most.saturating_sub(Clock::Host.now().since(began));
        let not_joined = |awaited| MachineError::NotJoined {
            machine: id,
            waited: patience.most,
            awaited,
        };
        let start = |begin: &Begin, patience: Patience<'_>| {
            Self::start_once(config, id, Arc::clone(attach), patience, begin)
        };
        let within = |most| Patience { most, ..patience };
        loop {
            match Begin::of(config, id)? {
                Begin::Waits(awaited) => {
                    if left().is_zero() || patience.is_cancelled() {
                        return Err(not_joined(awaited));
                    }
                    tracing::debug!("waiting: {awaited}");
                    std::thread::park_timeout(JOIN_AGAIN);
                }
                Begin::Joins => {
                    // A machine that is awaited may be lost, and the next configuration does not have it.
                    match start(&Begin::Joins, within(left().min(JOIN_ATTEMPT))) {
                        Ok(machine) if machine.has_joined(patience, left) => return Ok(machine),
                        Ok(_) => {}
                        Err(error) if error.may_be_of_a_change() && !left().is_zero() => {
                            tracing::debug!(%error, "cannot join yet");
                            std::thread::park_timeout(JOIN_AGAIN);
                        }
                        Err(error) => return Err(error.after(patience.most)),
                    }
                    if left().is_zero() {
                        return Err(not_joined(Awaited::Record));
                    }
                }
                begin => match start_while_current(config, &begin, within(left()), start) {
                    Err(error) if begin.may_try_again(&error) && !left().is_zero() => {
                        tracing::debug!(%error, "cannot start yet");
                        std::thread::park_timeout(JOIN_AGAIN);
                    }
                    started => return started,
                },
            }
        }
    }

    /// Waits until a machine that joins others has joined them, or `left` returns that no time is left. Returns whether it is to go on;
    /// otherwise it begins again.
    fn has_joined(&self, patience: Patience<'_>, left: impl Fn() -> Duration) -> bool {
        // Memory for its copies may take long to make.
        let stores = self.store.is_used();
        let is_over = || left().is_zero() && !stores;
        self.wait_until_joined(|| patience.is_cancelled() || is_over());
        let joined = self.store.map().is_complete();
        let ends = self.control.is_stopping() && !self.control.may_join_again();
        if joined && let Some(files) = &self.files {
            files.on_member();
        }
        joined || ends || patience.is_cancelled()
    }

    fn start_once(
        config: &Config,
        id: MachineId,
        attach: Attach,
        patience: Patience<'_>,
        begin: &Begin,
    ) -> Result<Self, MachineError> {
        config.validate_within(&Limits::TINY)?;
        config.machine(id).ok_or(MachineError::NoSuchMachine(id))?;
        Pages::of(config)
            .check_directory()
            .map_err(ExportError::from)?;
        let fabric = FabricMachine::start(fabric_config(config, id)?)?;
        // After the machine has its name: a second start of a running machine says that the machine runs.
        let exporter = fabric.exporter();
        if config.survives_losses() {
            begin.check_current(config)?;
        }
        let store = match begin {
            Begin::New => config_store(config, id)?,
            _ => None,
        };
        let known = match begin {
            Begin::Joins => newest_configuration(config)?,
            Begin::Resumes(newest) => Some((**newest).clone()),
            Begin::New | Begin::Waits(_) => None,
        };
        let files = match begin {
            Begin::Resumes(newest) => KeptFiles::take_over(config, id, &exporter, newest)?,
            _ => KeptFiles::begin(config, id, &exporter)?,
        };
        let checked = match (&files, &known) {
            // There is no configuration: nothing that was kept may be removed.
            (Some(files), None) => files.check_new(config),
            (Some(files), Some(known)) if known.member(id).is_none() => {
                files.on_no_member();
                Ok(())
            }
            _ => Ok(()),
        };
        let started = checked.and_then(|()| {
            let files = files.clone();
            Self::start_with(
                config,
                (id, begin),
                attach,
                (fabric, files),
                (store, known),
                patience,
            )
        });
        if let (Err(_), Some(files)) = (&started, files) {
            files.on_failed_start(matches!(begin, Begin::Resumes(_)));
        }
        started
    }

    /// Starts a machine that has its name, from what is known.
    fn start_with(
        config: &Config,
        (id, begin): (MachineId, &Begin),
        attach: Attach,
        (mut fabric, kept_files): (FabricMachine, Option<Arc<KeptFiles>>),
        (store, known): (Option<FileStore>, Option<Configuration>),
        patience: Patience<'_>,
    ) -> Result<Self, MachineError> {
        let exporter = fabric.exporter();
        let workers = config.machine(id).map_or(0, |own| usize::from(own.workers));
        let kept = kept_files.clone().map(|files| files as Arc<dyn Kept>);
        let joins = begin.joins();
        let meeting = (known.as_ref(), patience);
        let met = meet(config, (id, joins), &mut fabric, meeting, kept.as_deref())?;
        let departed = || fabric.departed().into_iter().next();
        let while_all_run = (patience, &departed as &dyn Fn() -> Option<Departed>);
        let is_first = matches!(begin, Begin::New) && config.survives_losses();
        let stored = match begin {
            Begin::Resumes(newest) => resume_with(config, (id, newest), &met, while_all_run)
                .map(|(next, store)| (next, Some(store))),
            _ => begin_with(config, (id, joins), &exporter, &met).and_then(|first| {
                let store = match is_first {
                    true => Some(begin_stored(config, (id, &first), while_all_run)?),
                    false => store,
                };
                Ok((first, store))
            }),
        };
        let (configuration, store_files) = stored.inspect_err(|error| {
            // The others may have a configuration with this machine, whose end in order would stop them.
            if config.memory_of(id) > 0 {
                match begin.may_try_again(error) {
                    true => fabric.fail(STARTS_AGAIN),
                    false => fabric.fail(&error.to_string()),
                }
            }
        })?;
        let spare = spare(config, id, &exporter, kept.clone());
        let manager = match begin {
            Begin::Joins => Ok(None),
            _ => {
                let store = (store_files, kept_files.as_ref());
                make_manager(config, id, &configuration, store)
            }
        };
        let mut manager = manager.inspect_err(|error| fabric.fail(&error.to_string()))?;
        let store = Arc::new(make_store(config, id, configuration.seed, spare.clone()));
        if !met.running.is_empty() {
            store.map().begin_joining();
        }
        if let Some(files) = &kept_files {
            files.on_seen(configuration.change);
            if !begin.joins() {
                // The store has the configuration that names this process. The memory of earlier ones may be needed for its copies.
                files.on_member();
            }
        }
        let resumes = matches!(begin, Begin::Resumes(_));
        if resumes && let Some(files) = &kept_files {
            let resumed = files.export_regions().and_then(|regions| {
                let resumed = store.resume(Arc::new(configuration.clone()), regions);
                resumed.map_err(MachineError::NotResumed)
            });
            resumed.inspect_err(|error| {
                fabric.fail(&error.to_string());
                files.forget_own_logs();
            })?;
        }
        let control = Arc::new(Control::default());
        let mut machine = Self {
            id,
            fabric,
            exporter,
            control,
            store,
            spare,
            files: kept_files,
            inboxes: Vec::new(),
            threads: Vec::new(),
        };
        let last = Arc::new(LastWorker {
            control: Arc::clone(&machine.control),
            reporter: machine.fabric.reporter(),
            life: machine.fabric.life(),
            store: Arc::clone(&machine.store),
        });
        for index in 0..workers {
            let part = (&met, &configuration, manager.take());
            let started = machine.start_worker(config, index, part, resumes, (&attach, &last));
            started.inspect_err(|error| machine.fail_to_start(&error.to_string()))?;
        }
        let admitted = machine.admit(config, met.segments);
        admitted.inspect_err(|error| machine.fail_to_start(&error.to_string()))?;
        Ok(machine)
    }

    fn kept(&self) -> Option<Arc<dyn Kept>> {
        let files = self.files.clone();
        files.map(|files| files as Arc<dyn Kept>)
    }

    /// Lets machines connect that are started while this one runs. `segments` are those exported for the connected machines.
    fn admit(
        &mut self,
        config: &Config,
        segments: BTreeMap<MachineId, Capability>,
    ) -> Result<(), MachineError> {
        let exporter = (self.exporter.clone(), self.kept());
        let (control, own) = (Arc::clone(&self.control), (self.inboxes.clone(), segments));
        let admit = Admit::new((self.id, config), exporter, control, own);
        Ok(self.fabric.admit(Box::new(admit))?)
    }

    fn start_worker(
        &mut self,
        config: &Config,
        index: usize,
        (met, configuration, manager): (&Met, &Configuration, Option<Box<Manager>>),
        resumes: bool,
        (attach, last): (&Attach, &Arc<LastWorker>),
    ) -> Result<(), MachineError> {
        let worker = WorkerId::new(index as u16)
            .expect("a machine has no more workers than there are worker ids");
        let me = WorkerRef::new(self.id, worker);
        let operations = config.worker.operations_in_flight as usize;
        let reads = reads_in_flight(config);
        let arena = arena(config, reads);
        let mut endpoint = self.fabric.endpoint(worker, &arena, reads)?;
        let machines = config.machines.iter();
        let machines = machines.map(|machine| (machine.id, usize::from(machine.workers)));
        let mut machines: Vec<(MachineId, usize)> = machines.collect();
        machines.sort_unstable();
        let links = Links::wire(
            &mut endpoint,
            self.id,
            worker,
            (&machines, &met.peers),
            ring_format(config),
        )?;
        let exporter = self.exporter.clone();
        let inbox = Arc::new(Inbox::new(
            INBOX_ITEMS,
            Box::new(move || exporter.wake(worker)),
        ));
        self.inboxes.push(Arc::clone(&inbox));
        let membership = Membership::of(configuration);
        let membership = match config.survives_losses() {
            true => membership.that_survives(),
            false => membership,
        };
        let members = match worker {
            WorkerId::FIRST => {
                let kept = (&self.exporter, self.files.as_ref());
                make_members(config, self.id, kept, configuration)?
            }
            _ => None,
        };
        let parts = WorkerParts {
            me,
            endpoint,
            links,
            store: Arc::clone(&self.store),
            membership,
            manager,
            members,
            control: Arc::clone(&self.control),
            inbox,
            clock: Clock::Host,
            kept: self.kept(),
            seed: u64::from(me.to_bits()),
            limits: WorkerLimits {
                max_message_bytes: (config.rings.max_message_bytes - RECORD_OVERHEAD_BYTES)
                    as usize,
                operations,
                read_tries: match config.survives_losses() {
                    true => ReadTries::of_survivor(config.lease()),
                    false => ReadTries::soon(READ_TRIES),
                },
                fill_rate: config.durability.fill_rate,
                transactions: config.transactions,
            },
        };
        let policy = idle_policy(config, self.id);
        let core = core_of(config, self.id, index);
        let (boot, running) = (self.exporter.boot(), met.running.clone());
        let (control, attach) = (Arc::clone(&self.control), Arc::clone(attach));
        let last = Arc::clone(last);
        let thread = std::thread::Builder::new()
            .name(me.to_string())
            .spawn(move || {
                let _last = last;
                IS_WORKER.set(true);
                if let Some(core) = core {
                    pin(core);
                }
                let _stop_all = StopOnPanic(Arc::clone(&control), me);
                let mut worker = Worker::new(parts);
                // Dropped before the worker, whose drop tells those who wait why it has stopped.
                let _reason = StopOnPanic(Arc::clone(&control), me);
                attach(&mut worker);
                if me.worker == WorkerId::FIRST && !worker.store().map().is_complete() {
                    worker.join(boot, running);
                }
                if resumes {
                    worker.resume();
                }
                run(&mut worker, policy, &control);
            })
            .map_err(MachineError::Thread)?;
        self.threads.push((me, thread));
        Ok(())
    }
}
