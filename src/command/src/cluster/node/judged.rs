//! Judged workloads, executed by a driven node.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use farm_check::workload;
use farm_core::ids::Address;
use farm_core::worker::Worker;

use super::{Driven, LOOK, send_news};
use crate::cluster::protocol::{Beginning, News};

/// Time between two looks whether the clients have begun.
const BEGUN_LOOK: Duration = Duration::from_millis(1);

impl Driven<'_> {
    /// Returns an error if the handlers of judged workloads are not attached.
    pub(super) fn check_judged(&self) -> anyhow::Result<()> {
        match self.judged {
            true => Ok(()),
            false => bail!(
                "the launcher ordered a judged workload, but this node was started without --judged"
            ),
        }
    }

    pub(super) fn work(&self, spec: &workload::Spec) -> anyhow::Result<()> {
        self.check_judged()?;
        self.on_all(
            |worker, machine, answer: Sender<()>| {
                let spec = spec.clone();
                let done = Box::new(move |_: &mut Worker| _ = answer.send(()));
                machine.submit(worker, move |worker| workload::start(worker, spec, done))
            },
            || {},
        )?;
        send_news(&News::Worked);
        Ok(())
    }

    /// Begins a workload whose processes are killed.
    pub(super) fn begin(&mut self, beginning: &Beginning) -> anyhow::Result<()> {
        self.check_judged()?;
        let Beginning {
            spec,
            starts,
            known,
            logs,
        } = beginning;
        let known: Vec<Address> = known
            .iter()
            .filter_map(|bits| Address::from_bits(*bits))
            .collect();
        let (ended, working) = channel();
        self.working = Some(working);
        for worker in 0..self.machine.workers() {
            let log = logs.join(format!("{starts}-{}-{worker}", self.id.get()));
            let (spec, starts, known, ended) =
                (spec.clone(), *starts, known.clone(), ended.clone());
            self.machine.submit(worker, move |worker| {
                if let Err(error) = workload::keep_log_in(worker, &log) {
                    let why = format!("cannot keep the records in {}: {error}", log.display());
                    return worker.control().fail(why);
                }
                let done = Box::new(move |_: &mut Worker| _ = ended.send(()));
                workload::start_again(worker, spec, (starts, &known), done);
            })?;
        }
        let addresses = loop {
            let begun = self.on_all(
                |worker, machine, answer: Sender<Option<Vec<Address>>>| {
                    machine.submit(worker, move |worker| {
                        let begun = workload::has_begun(worker);
                        let addresses = begun.then(|| workload::addresses(worker));
                        _ = answer.send(addresses);
                    })
                },
                || {},
            )?;
            let begun: Option<Vec<_>> = begun.into_iter().collect();
            match begun {
                Some(mut begun) => break begun.pop().unwrap_or_default(),
                None => self.check_wanted()?,
            }
            std::thread::sleep(BEGUN_LOOK);
        };
        send_news(&News::Begun {
            addresses: addresses.into_iter().map(Address::to_bits).collect(),
        });
        Ok(())
    }

    /// Ends the clients of that workload.
    pub(super) fn enough(&mut self) -> anyhow::Result<()> {
        let working = self.working.take();
        let working = working.context("the launcher ended a workload that has not begun")?;
        self.on_all(
            |worker, machine, answer: Sender<()>| {
                machine.submit(worker, move |worker| {
                    workload::enough(worker);
                    _ = answer.send(());
                })
            },
            || {},
        )?;
        let mut left = self.machine.workers();
        while left > 0 {
            match working.recv_timeout(LOOK) {
                Ok(()) => left -= 1,
                Err(_) => self.check_wanted()?,
            }
        }
        send_news(&News::Worked);
        Ok(())
    }

    /// Sends the records and the final state of every worker. Repeats the collection until the workers know all slots of the regions that
    /// they own, and have received all freed objects, but only for the time `settle`.
    pub(super) fn send_work(&self, settle: Duration) -> anyhow::Result<()> {
        self.check_judged()?;
        type Collected = (workload::Log, Result<workload::FinalState, String>);
        let until = std::time::Instant::now() + settle;
        let mut logs = Vec::new();
        let finished = loop {
            let collected = self.on_all(
                |worker, machine, answer: Sender<Collected>| {
                    machine.submit(worker, move |worker| {
                        let collected = (workload::take_log(worker), workload::finish(worker));
                        // Fails if the node no longer waits, because the machine is stopping.
                        _ = answer.send(collected);
                    })
                },
                || {},
            )?;
            let (more, finished): (Vec<_>, Vec<_>) = collected.into_iter().unzip();
            logs.extend(more);
            let finished: Result<Vec<_>, String> = finished.into_iter().collect();
            match finished {
                Ok(all) if is_settled(&all) => break all,
                Ok(all) if std::time::Instant::now() > until => break all,
                Err(why) if std::time::Instant::now() > until => bail!("WRONG, {why}"),
                _ => self.check_wanted()?,
            }
            std::thread::sleep(LOOK);
        };
        send_news(&News::Work {
            logs,
            finished: workload::FinalState::all(finished),
        });
        Ok(())
    }
}

/// Returns whether the allocators have received all freed objects: the number of allocated slots is that of objects.
fn is_settled(finished: &[workload::FinalState]) -> bool {
    let taken: u64 = finished.iter().map(|one| one.taken).sum();
    let live: u64 = finished.iter().map(|one| one.live).sum();
    taken == live
}
