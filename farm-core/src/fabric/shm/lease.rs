//! Leases between processes on one host (`FaRM'15 §5.1`). A thread of each machine counts in the first file of its start, and looks at
//! the counts of its peers. A peer whose count does not change for the time of a lease has stopped, or is very slow. Of the leases of the two
//! machines, the longer one counts. That is no proof that the peer has ended: before others take its place, they [evict](crate::fabric::Eviction) it.
//!
//! A machine with a worker that [hangs](crate::fabric::turns) gives no sign of life either.
//!
//! A look that was itself late does not count against a peer: after a pause of the whole host no lease has expired.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::shared::{PeerState, Shared};
use crate::fabric::turns::Watch;
use crate::fabric::{Lease, Standing};
use crate::ids::MachineId;
use crate::time::{Clock, Nanos};

/// Number of looks in the time of a lease.
const LOOKS: u32 = 10;

/// One sleep of the thread whose lateness is measured.
const MEASURED_SLEEP: Duration = Duration::from_micros(500);

/// What is known of the lease of a peer.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    /// Number of looks in time at which the count was still the same.
    looks: u32,
    has_expired: bool,
}

/// What a peer shows.
#[derive(Clone, Copy, Debug)]
struct Sign {
    /// The machine, and its start.
    peer: (MachineId, u64),
    count: u64,
    /// Time between two counts.
    period: Duration,
}

/// The leases of the peers of a machine, as far as it can tell.
#[derive(Debug)]
struct Leases {
    /// Time between two looks.
    period: Duration,
    last: Option<Nanos>,
    seen: BTreeMap<(MachineId, u64), Seen>,
}

impl Leases {
    fn new(lease: Duration) -> Self {
        Self {
            period: lease / LOOKS,
            last: None,
            seen: BTreeMap::new(),
        }
    }

    /// Looks at the signs of all peers. Returns what has changed.
    fn look(&mut self, now: Nanos, peers: &[Sign]) -> Vec<Lease> {
        let last = self.last.replace(now);
        let in_time = last.is_some_and(|last| now.since(last) < 2 * self.period);
        self.seen
            .retain(|peer, _| peers.iter().any(|one| one.peer == *peer));
        let mut changes = Vec::new();
        for Sign {
            peer,
            count,
            period,
        } in peers
        {
            let (machine, boot) = *peer;
            let is_new = !self.seen.contains_key(peer);
            let seen = self.seen.entry(*peer).or_default();
            if is_new || seen.count != *count {
                (seen.count, seen.looks) = (*count, 0);
            } else if in_time {
                seen.looks += 1;
            }
            // The longer one of the two leases counts.
            let looks = period.as_nanos().div_ceil(self.period.as_nanos().max(1));
            let looks = LOOKS.saturating_mul(looks.clamp(1, u32::MAX.into()) as u32);
            let has_expired = seen.looks >= looks;
            if std::mem::replace(&mut seen.has_expired, has_expired) != has_expired {
                changes.push(Lease {
                    machine,
                    boot,
                    has_expired,
                });
            }
        }
        changes
    }
}

/// The thread that gives the signs of life of a machine, and looks at those of its peers. Dropping it ends it.
#[derive(Debug)]
pub(super) struct LeaseThread {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseThread {
    /// Starts the thread.
    pub(super) fn start(shared: Arc<Shared>, lease: Duration) -> std::io::Result<Self> {
        let ends = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&ends);
        let name = format!("{}-lease", shared.config.machine);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            go_first();
            run(&shared, lease, &ended);
        })?;
        Ok(Self {
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for LeaseThread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic; if it did, the machine ends all the same.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, lease: Duration, ends: &AtomicBool) {
    let (mut leases, eviction) = (Leases::new(lease), shared.signs.eviction());
    shared.signs.begin(leases.period);
    let (mut changes, mut watch) = (VecDeque::new(), Watch::new(LOOKS));
    let machine = shared.config.machine;
    while !ends.load(Ordering::Acquire) {
        let is_parked = |worker| shared.doorbells.is_parked(worker);
        if watch.look(machine, &shared.turns, is_parked).is_none() {
            shared.signs.give();
        }
        if eviction.standing() == Standing::Evicted {
            // The workers may sleep.
            shared.wake_all();
        }
        // This thread waits for no lock: the thread that has it may not be scheduled for long.
        if let Some(peers) = shared.signs_of_peers() {
            changes.extend(leases.look(Clock::Host.now(), &peers));
        }
        shared.leases_changed(&mut changes);
        std::thread::park_timeout(leases.period);
    }
}

impl Shared {
    /// Returns the signs of all peers that are connected, without this machine; `None` if another thread changes the peers.
    fn signs_of_peers(&self) -> Option<Vec<Sign>> {
        let peers = self.try_peers()?;
        let others = peers.iter().filter(|peer| peer.boot != self.boot);
        let connected = others.filter(|peer| peer.departure().is_none());
        let sign = |peer: &Arc<PeerState>| Sign {
            peer: (peer.machine, peer.boot),
            count: peer.signs.count(),
            period: peer.signs.period(),
        };
        Some(connected.map(sign).collect())
    }
}

/// Has the scheduler run this thread before others, as far as the system allows it. Returns whether it does.
pub(in crate::fabric) fn go_first() -> bool {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure outlives the call, which changes only how this thread is scheduled.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) } != 0;
    let goes_first = !refused || rustix::process::setpriority_process(None, -20).is_ok();
    if !goes_first {
        tracing::debug!("the thread of the leases has no priority over other threads of the host");
    }
    goes_first
}

/// How late a thread like that of the leases is on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// Whether it has priority over the other threads of the host.
    pub goes_first: bool,
    /// The longest time by which it woke up late.
    pub most: Duration,
}

/// Measures for a time how late a thread like that of the leases is, while threads of normal priority keep this number of cores busy. Returns
/// `None` if the threads cannot be started.
pub fn measure_lateness(time: Duration, cores: usize) -> Option<Lateness> {
    let ends = AtomicBool::new(false);
    let thread = || std::thread::Builder::new().name("farm-lateness".into());
    std::thread::scope(|scope| {
        let is_busy = || {
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let busy = (0..cores).map(|_| thread().spawn_scoped(scope, is_busy));
        let busy = busy.collect::<std::io::Result<Vec<_>>>();
        let measured = busy.and_then(|_| thread().spawn_scoped(scope, || sleep_for(time)));
        let measured = measured.map(std::thread::ScopedJoinHandle::join);
        ends.store(true, Ordering::Relaxed);
        measured.ok()?.ok()
    })
}

/// Sleeps often for a time.
fn sleep_for(time: Duration) -> Lateness {
    let goes_first = go_first();
    let (began, mut most) = (Clock::Host.now(), Duration::ZERO);
    loop {
        let before = Clock::Host.now();
        std::thread::park_timeout(MEASURED_SLEEP);
        let now = Clock::Host.now();
        most = most.max(now.since(before).saturating_sub(MEASURED_SLEEP));
        if now.since(began) >= time {
            return Lateness { goes_first, most };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 1_000_000;

    fn leases() -> Leases {
        Leases::new(Duration::from_nanos(PERIOD * u64::from(LOOKS)))
    }

    fn peer(machine: u16) -> (MachineId, u64) {
        (MachineId::new(machine).unwrap(), 7)
    }

    fn sign(peer: (MachineId, u64), count: u64) -> Sign {
        Sign {
            peer,
            count,
            period: Duration::from_nanos(PERIOD),
        }
    }

    /// A machine with longer leases gives signs less often.
    #[test]
    fn the_longer_one_of_two_leases_counts() {
        let (mut leases, mut now) = (leases(), 0);
        let slow = Sign {
            period: Duration::from_nanos(5 * PERIOD / 2),
            ..sign(peer(1), 1)
        };
        let mut expires = |looks: u32| {
            (0..looks).any(|_| {
                now += PERIOD;
                !leases.look(Nanos(now), &[slow]).is_empty()
            })
        };
        assert!(!expires(3 * LOOKS));
        assert!(expires(1));
    }

    /// Looks `times` times, a period apart. Returns the numbers of looks at which something has changed.
    fn looks(leases: &mut Leases, now: &mut u64, times: u32, count: u64) -> Vec<(u32, bool)> {
        let mut changes = Vec::new();
        for look in 1..=times {
            *now += PERIOD;
            let found = leases.look(Nanos(*now), &[sign(peer(1), count)]);
            changes.extend(found.iter().map(|lease| (look, lease.has_expired)));
        }
        changes
    }

    #[test]
    fn a_lease_expires_without_a_sign_of_life_and_is_renewed_by_one() {
        let (mut leases, mut now) = (leases(), 0);
        assert_eq!(looks(&mut leases, &mut now, LOOKS, 5), []);
        assert_eq!(looks(&mut leases, &mut now, LOOKS, 6), []);
        assert_eq!(looks(&mut leases, &mut now, LOOKS, 6), [(1, true)]);
        assert_eq!(looks(&mut leases, &mut now, 3, 7), [(1, false)]);
    }

    #[test]
    fn a_late_look_does_not_count() {
        let (mut leases, mut now) = (leases(), 0);
        looks(&mut leases, &mut now, LOOKS, 5);
        // The whole host was stopped for a minute.
        now += 60_000 * PERIOD;
        assert_eq!(looks(&mut leases, &mut now, 1, 5), []);
        assert_eq!(looks(&mut leases, &mut now, LOOKS, 6), []);
    }

    #[test]
    fn lateness_is_measured_while_cores_are_busy() {
        let measured = measure_lateness(Duration::from_millis(20), 1).unwrap();
        assert!(measured.most > Duration::ZERO, "a sleep ends late");
    }

    #[test]
    fn another_start_has_another_lease() {
        let (mut leases, mut now) = (leases(), 0);
        looks(&mut leases, &mut now, LOOKS, 5);
        let (machine, boot) = peer(1);
        for _ in 0..LOOKS {
            now += PERIOD;
            assert_eq!(leases.look(Nanos(now), &[sign((machine, boot + 1), 5)]), []);
        }
        now += PERIOD;
        assert_eq!(leases.look(Nanos(now), &[]), []);
        assert!(leases.seen.is_empty());
    }
}
