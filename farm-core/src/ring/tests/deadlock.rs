//! Two machines fill each other's rings with requests: every request gets its reply (the argument
//! is at [`ring`](crate::ring), claims 1 and 2).
//!
//! A worker refuses a request while it cannot send the reply, and the refused request blocks the
//! records after it in the ring. Words and reports land when the schedule lands them. The tests
//! check claim 1 in every quiet state that a schedule reaches, not only at its end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::limits::LARGEST_REPLY_BYTES;
use crate::ring::{Capacity, ReplyCredits};

const WORKERS: usize = 2;

/// The rules under test. The tests must detect a broken rule.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Rule 1: calls leave the reserve free.
    reserve: bool,
    /// Rule 2: number of workers among which the reserve is divided; `None`: no credits are taken.
    shares_for: Option<usize>,
}

const SOUND: Rules = Rules {
    reserve: true,
    shares_for: Some(WORKERS),
};

/// A worker with its ring to the other machine, and the state of its own requests.
struct Worker {
    ring: Pair,
    /// Credits per worker of the other machine.
    credits: Vec<ReplyCredits>,
    /// The replying worker and the most bytes of the reply, by token.
    waiting: BTreeMap<u64, (usize, usize)>,
}

struct World {
    rules: Rules,
    /// Workers, by machine, then worker index.
    machines: [Vec<Worker>; 2],
    tokens: u64,
    replies: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Machine, from, to, body bytes, most bytes of the reply, times: sends up to `times` requests.
    Request(usize, usize, usize, usize, usize, usize),
    /// Machine, from, body bytes, times: sends up to `times` one-way messages.
    OneWay(usize, usize, usize, usize),
    /// Machine, from, times: handles at most `times` records of the ring from this worker.
    Poll(usize, usize, usize),
    LandForth(usize, usize, usize),
    LandBack(usize, usize, usize),
    /// Machine, from: checks claim 1 for the request at the head of the ring from this worker, if
    /// there is a request.
    Demand(usize, usize),
}

#[derive(Debug, PartialEq)]
enum Polled {
    Nothing,
    Handled,
    Refused,
}

impl World {
    fn new(capacity: Capacity, rules: Rules, starts: [u64; 2 * WORKERS]) -> Self {
        let reserve = if rules.reserve {
            capacity.reply_reserve_bytes()
        } else {
            0
        };
        let shares = rules.shares_for.unwrap_or(1);
        let mut starts = starts.into_iter();
        let mut worker = || {
            let ring = Pair::with_reserve(
                capacity,
                starts.next().expect("one start per ring"),
                reserve,
            );
            ring.forth.hold();
            ring.back.hold();
            let credits = (0..WORKERS).map(|_| ReplyCredits::new(capacity, shares).unwrap());
            Worker {
                ring,
                credits: credits.collect(),
                waiting: BTreeMap::new(),
            }
        };
        let mut machine = || (0..WORKERS).map(|_| worker()).collect::<Vec<_>>();
        let machines = [machine(), machine()];
        Self {
            rules,
            machines,
            tokens: 0,
            replies: 0,
        }
    }

    fn request(&mut self, m: usize, from: usize, to: usize, bytes: usize, reply: usize) -> bool {
        self.tokens += 1;
        let worker = &mut self.machines[m][from];
        let (bytes, reply) = (
            bytes.max(8),
            reply.min(worker.credits[to].max_body_bytes() as usize),
        );
        let credited = self.rules.shares_for.is_some();
        let prompt = reply <= LARGEST_REPLY_BYTES as usize;
        if credited && !worker.credits[to].try_take(reply, prompt) {
            return false;
        }
        let mut body = body(self.tokens, bytes);
        body[..8].copy_from_slice(&(reply as u64).to_le_bytes());
        let to_worker = WorkerId::new(to as u16).unwrap();
        let header = Header {
            to_worker,
            ..header(Kind::Request, self.tokens)
        };
        match worker
            .ring
            .sender
            .try_send(&mut worker.ring.sender_endpoint, header, &[&body])
        {
            Ok(()) => {
                worker.waiting.insert(self.tokens, (to, reply));
                true
            }
            Err(error) => {
                assert_eq!(error, SendError::Full);
                if credited {
                    worker.credits[to].give(reply);
                }
                false
            }
        }
    }

    fn one_way(&mut self, m: usize, from: usize, bytes: usize) -> bool {
        send(
            &mut self.machines[m][from].ring,
            Kind::OneWay,
            0,
            &vec![1; bytes],
        )
        .is_ok()
    }

    /// Polls the ring at its receiving machine, and handles one record if possible.
    fn poll(&mut self, m: usize, from: usize) -> Polled {
        let Some((header, body)) = peek(&mut self.machines[m][from].ring) else {
            return Polled::Nothing;
        };
        let other = 1 - m;
        let to = header.to_worker.index();
        match header.kind {
            Kind::OneWay => {}
            Kind::Request => {
                let bytes = u64::from_le_bytes(body[..8].try_into().unwrap()) as usize;
                let reply = Header {
                    kind: Kind::Reply,
                    to_worker: WorkerId::new(from as u16).unwrap(),
                    ..header
                };
                let ring = &mut self.machines[other][to].ring;
                let endpoint = &mut ring.sender_endpoint;
                if let Err(error) = ring.sender.try_send(endpoint, reply, &[&vec![2; bytes]]) {
                    assert_eq!(error, SendError::Full);
                    return Polled::Refused;
                }
            }
            Kind::Reply => {
                let requester = &mut self.machines[other][to];
                let (replier, most) = requester
                    .waiting
                    .remove(&header.token)
                    .expect("a waiting request");
                assert_eq!((replier, body.len()), (from, most));
                if self.rules.shares_for.is_some() {
                    requester.credits[replier].give(most);
                }
                self.replies += 1;
            }
        }
        let ring = &mut self.machines[m][from].ring;
        ring.receiver.consume(&mut ring.receiver_endpoint);
        Polled::Handled
    }

    /// Lands all writes in flight and lets the receiver poll, without consuming.
    fn settle(&mut self, m: usize, from: usize) {
        let ring = &mut self.machines[m][from].ring;
        ring.forth.land(usize::MAX);
        peek(ring);
        ring.back.land(usize::MAX);
    }

    /// Checks claim 1.
    fn demand(&mut self, m: usize, from: usize) -> Result<(), String> {
        self.settle(m, from);
        let Some((header, _)) = peek(&mut self.machines[m][from].ring) else {
            return Ok(());
        };
        if header.kind == Kind::Request {
            self.settle(1 - m, header.to_worker.index());
            if self.poll(m, from) == Polled::Refused {
                return Err(format!("claim 1: no room for a reply to {header:?}"));
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Request(m, from, to, bytes, reply, times) => {
                _ = (0..times).all(|_| self.request(m, from, to, bytes, reply));
            }
            Step::OneWay(m, from, bytes, times) => {
                _ = (0..times).all(|_| self.one_way(m, from, bytes));
            }
            Step::Poll(m, from, times) => {
                _ = (0..times).all(|_| self.poll(m, from) == Polled::Handled);
            }
            Step::LandForth(m, from, words) => _ = self.machines[m][from].ring.forth.land(words),
            Step::LandBack(m, from, words) => _ = self.machines[m][from].ring.back.land(words),
            Step::Demand(m, from) => return self.demand(m, from),
        }
        Ok(())
    }

    /// Sends no new calls and polls all rings until no record arrives. Then every request must have
    /// its reply.
    fn finish(&mut self) -> Result<(), String> {
        let rings = || (0..2).flat_map(|m| (0..WORKERS).map(move |from| (m, from)));
        loop {
            let mut progress = false;
            rings().for_each(|(m, from)| self.settle(m, from));
            for (m, from) in rings() {
                while self.poll(m, from) == Polled::Handled {
                    progress = true;
                }
            }
            if !progress {
                break;
            }
        }
        for (m, from) in rings() {
            let worker = &mut self.machines[m][from];
            if !worker.waiting.is_empty() {
                return Err(format!(
                    "deadlock: {} requests have no reply",
                    worker.waiting.len()
                ));
            }
            assert!(
                worker
                    .credits
                    .iter()
                    .all(|credits| credits.taken_bytes() == 0)
            );
            assert!(worker.ring.words().iter().all(|word| *word == 0));
            // Check claim 2.
            let most = worker.ring.sender.max_body_bytes() as usize;
            if worker.ring.sender.has_room(Kind::Request, most) != Ok(true) {
                return Err("claim 2: no room for a call in an empty ring".to_owned());
            }
        }
        Ok(())
    }

    fn play(mut self, steps: &[Step]) -> Result<Self, String> {
        for step in steps {
            self.step(*step)?;
        }
        self.finish()?;
        Ok(self)
    }
}

fn capacity(bytes: u64) -> Capacity {
    Capacity::new(bytes).unwrap()
}

/// Both machines send all requests and one-way messages that the rules permit, before any ring is
/// polled; then all rings are polled.
fn flood(bytes: usize, reply: usize) -> Vec<Step> {
    let each =
        |step: &dyn Fn(usize, usize) -> Step| [step(0, 0), step(0, 1), step(1, 0), step(1, 1)];
    let mut steps = Vec::new();
    for to in 0..WORKERS {
        steps.extend(each(&|m, from| {
            Step::Request(m, from, to, bytes, reply, usize::MAX)
        }));
    }
    steps.extend(each(&|m, from| Step::OneWay(m, from, 0, usize::MAX)));
    steps.extend(each(&|m, from| Step::Demand(m, from)));
    steps
}

#[test]
fn a_flood_is_answered_wherever_the_rings_start() {
    for bytes in [1024, 2048] {
        for start in (0..bytes).step_by(8) {
            for (request, reply) in [(8, usize::MAX), (8, 0), (40, 8)] {
                let world = World::new(capacity(bytes), SOUND, [start; 4]);
                let world = world
                    .play(&flood(request, reply))
                    .expect("every request is answered");
                assert!(world.replies >= 4 * WORKERS, "{} replies", world.replies);
            }
        }
    }
}

/// Without any one of the rules, the flood deadlocks for some start of the rings. Without the
/// reserve or the credits, it deadlocks for every start.
#[test]
fn without_the_rules_a_flood_deadlocks() {
    let fatal = |rules| {
        let starts = (0..1024).step_by(8);
        let play =
            |start| World::new(capacity(1024), rules, [start; 4]).play(&flood(8, usize::MAX));
        starts.filter_map(|start| play(start).err()).count()
    };
    assert_eq!(fatal(SOUND), 0);
    assert_eq!(
        fatal(Rules {
            reserve: false,
            ..SOUND
        }),
        128
    );
    assert_eq!(
        fatal(Rules {
            shares_for: None,
            ..SOUND
        }),
        128
    );
    // Shares without space for the filler deadlock only where the replies are placed across the
    // end.
    let without_filler = fatal(Rules {
        shares_for: Some(WORKERS - 1),
        ..SOUND
    });
    assert!((1..128).contains(&without_filler), "{without_filler}");
}

fn step() -> impl Strategy<Value = Step> {
    let ring = || (0usize..2, 0usize..WORKERS);
    let bytes = || prop_oneof![Just(0usize), Just(8), 0usize..=104, Just(104)];
    let times = || prop_oneof![Just(1usize), Just(3), Just(usize::MAX)];
    prop_oneof![
        4 => (ring(), 0usize..WORKERS, bytes(), bytes(), times())
            .prop_map(|((m, from), to, b, r, t)| Step::Request(m, from, to, b, r, t)),
        2 => (ring(), bytes(), times()).prop_map(|((m, from), b, t)| Step::OneWay(m, from, b, t)),
        6 => (ring(), times()).prop_map(|((m, from), t)| Step::Poll(m, from, t)),
        8 => (ring(), 0usize..200).prop_map(|((m, from), n)| Step::LandForth(m, from, n)),
        1 => (ring(), 0usize..2).prop_map(|((m, from), n)| Step::LandBack(m, from, n)),
        1 => ring().prop_map(|(m, from)| Step::Demand(m, from)),
    ]
}

proptest! {
    #[test]
    fn every_request_is_answered(
        shift in 10u32..=11,
        starts in prop::array::uniform4((0u64..256).prop_map(|word| word * 8)),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let world = World::new(capacity(1 << shift), SOUND, starts);
        let played = world.play(&steps).map(|world| world.replies);
        prop_assert!(played.is_ok(), "{played:?}");
    }
}

/// Random schedules also detect a missing rule.
#[test]
fn without_the_rules_random_schedules_deadlock() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let fatal = |rules| {
        let mut runner = TestRunner::deterministic();
        let steps = prop::collection::vec(step(), 300);
        let play = |_| {
            let steps = steps.new_tree(&mut runner).unwrap().current();
            World::new(capacity(1024), rules, [0, 8, 512, 1016])
                .play(&steps)
                .err()
        };
        (0..200).filter_map(play).count()
    };
    assert_eq!(fatal(SOUND), 0);
    let (reserve, credits) = (
        fatal(Rules {
            reserve: false,
            ..SOUND
        }),
        fatal(Rules {
            shares_for: None,
            ..SOUND
        }),
    );
    assert!(
        reserve > 5 && credits > 5,
        "{reserve} without reserve, {credits} without credits"
    );
}
