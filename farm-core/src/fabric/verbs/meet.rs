//! Connecting to the peers: of two machines that start, the one with the greater id calls. A machine that runs already is
//! called, and answers by its door. Both machines prove that they know the secret, create queue pairs for each other and
//! connect them.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::address::resolve;
use super::control::{
    Answer, Conversation, Greeting, Hello, PROTOCOL, Sealed, Secret, Until, VERSION,
};
use super::queue_pair::QueuePair;
use super::shared::{Shared, VerbsConfig};
use crate::fabric::Capability;
use crate::fabric::handshake::{
    Awaited, Callers, ConnectError, Patience, REDIAL, Roster, TurnedAway, random_words,
    receive_line, send_line, wait_readable,
};
use crate::ids::MachineId;
use crate::time::Clock;

/// Longest time until a machine is reached that is only asked whether it runs.
const LONGEST_ASK: Duration = Duration::from_millis(100);
const UNASKED: &str = "the called machine answered a question that was not asked";
/// Longest duration of a conversation with a machine that has proved that it knows the secret. Until then, a called machine does not
/// wait for the caller.
pub(super) const LONGEST_TALK: Duration = Duration::from_secs(5);

/// A peer to which all queue pairs are connected.
pub(super) struct Met {
    pub(super) machine: MachineId,
    pub(super) hello: Hello,
    pub(super) pairs: Vec<QueuePair>,
    pub(super) socket: TcpStream,
}

/// Why a conversation failed.
pub(super) enum Fault {
    /// The peer is not authenticated, or is gone. Other callers may still arrive, and the peer may
    /// call again.
    NotMet(String),
    /// The peer belongs to the cluster and is incompatible.
    Final(ConnectError),
}

impl Fault {
    fn into_text(self) -> String {
        match self {
            Self::NotMet(why) => why,
            Self::Final(error) => error.to_string(),
        }
    }

    /// Classifies an error of the conversation with a machine. A wrong secret or an invalid message
    /// is final; silence or a broken connection is not, because the machine may call again.
    fn of(machine: MachineId, error: std::io::Error) -> Self {
        let why = error.to_string();
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::InvalidData => {
                Self::Final(ConnectError::Refused { machine, why })
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Self::NotMet("the machine did not answer in time".into())
            }
            _ => Self::NotMet(why),
        }
    }
}

/// Calls the machines with smaller ids and answers those with greater ids, until all are connected.
pub(super) fn meet(
    shared: &Shared,
    listener: &TcpListener,
    roster: Roster<'_>,
    offer: &mut dyn FnMut(MachineId) -> Vec<Capability>,
    patience: Patience<'_>,
) -> Result<Vec<Met>, ConnectError> {
    let own = &shared.config;
    let mut awaited = Awaited::new(own.machine, &own.cluster, roster, patience);
    let machines = roster.machines.len();
    let mut all = Vec::with_capacity(machines);
    let mut callers = Callers::new(machines);
    let mut greeted: Callers<TcpStream, Greeted> = Callers::new(machines);
    let identity = Identity::of(shared);
    let mut answers = Callers::new(machines);
    while !awaited.is_complete() {
        let left = awaited.left()?;
        let sockets = all.iter_mut();
        let sockets = sockets.map(|met: &mut Met| (met.machine, &mut met.socket));
        let left_again = awaited.check_met(sockets)?;
        all.retain(|met| !left_again.contains(&met.machine));
        let mut found = Vec::new();
        for machine in awaited.to_dial() {
            let most = match awaited.may_be_absent(machine) {
                true => LONGEST_ASK,
                false => left,
            };
            let socket = match dial(own, machine, most) {
                Ok(socket) => socket,
                Err(why) => {
                    awaited.not_reached(machine, why);
                    awaited.is_absent(machine);
                    continue;
                }
            };
            match call(shared, machine, socket, offer(machine), left) {
                Ok(met) => found.push(met),
                Err(Fault::NotMet(why)) => {
                    awaited.not_connected(machine, why);
                }
                Err(Fault::Final(error)) => return Err(error),
            }
        }
        for machine in awaited.to_ask() {
            if answers.known().any(|known| *known == machine) {
                continue;
            }
            match ask(own, machine) {
                Some(socket) => {
                    awaited.is_present(machine);
                    answers.admit(socket, machine);
                }
                None => awaited.is_absent(machine),
            }
        }
        if found.is_empty() {
            let talking = callers.fds().chain(answers.fds()).chain(greeted.fds());
            wait_readable(talking.chain([listener.as_fd()]), REDIAL);
        }
        for (answer, _, machine) in answers.lines::<Answer<Greeting>>() {
            awaited.answered(machine);
            match answer {
                Answer::Runs(machine) => awaited.runs(machine),
                _ => awaited.waits(machine),
            }
        }
        while let Ok((socket, _)) = listener.accept() {
            callers.accept(socket);
        }
        for (hello, mut socket, ()) in callers.lines::<Greeting>() {
            let called = Starting {
                awaited: &awaited,
                offer,
            };
            let asker = (hello.asks_only && hello.machine < own.machine).then_some(hello.machine);
            match greet(&identity, &called, hello, &mut socket) {
                Ok(Some(caller)) => greeted.admit(socket, caller),
                Ok(None) => asker
                    .into_iter()
                    .for_each(|asker| awaited.is_present(asker)),
                Err(why) => {
                    tracing::warn!("refused a caller: {why}");
                    awaited.refuse(why);
                }
            }
        }
        for (proof, socket, caller) in greeted.lines() {
            let most = awaited.left()?;
            let machine = caller.theirs.machine;
            let mut called = Starting {
                awaited: &awaited,
                offer,
            };
            match answer(shared, &mut called, caller, proof, socket, most) {
                Ok(met) => {
                    awaited.met(met.machine);
                    all.push(met);
                }
                Err(Fault::Final(error)) if !awaited.is_joiner(machine) => return Err(error),
                Err(fault) => {
                    let why = fault.into_text();
                    tracing::warn!("refused a caller: {why}");
                    awaited.refuse(why);
                }
            }
        }
        for met in &found {
            awaited.met(met.machine);
        }
        all.extend(found);
    }
    Ok(all)
}

/// Connects a socket to a machine. Returns why it failed, for example because the machine does not
/// listen yet.
fn dial(own: &VerbsConfig, machine: MachineId, most: Duration) -> Result<TcpStream, String> {
    let address = own.addresses.get(&machine);
    let address = address.ok_or("the configuration has no address of the machine")?;
    let named = |error: std::io::Error| format!("{address}: {error}");
    let found = resolve(address).map_err(named)?;
    TcpStream::connect_timeout(&found, most.min(LONGEST_TALK)).map_err(named)
}

/// Asks `machine`, if it listens, whether it runs already. A machine that waits for machines itself gives no such answer.
fn ask(own: &VerbsConfig, machine: MachineId) -> Option<TcpStream> {
    let mut socket = dial(own, machine, LONGEST_ASK).ok()?;
    let identity = Identity {
        cluster: &own.cluster,
        machine: own.machine,
        queues: 1,
    };
    let question = Greeting {
        asks_only: true,
        ..identity.greeting().ok()?
    };
    socket.set_write_timeout(Some(LONGEST_ASK)).ok()?;
    send_line(&mut socket, &question).ok()?;
    Some(socket)
}

/// Returns whether a machine answers that it runs: it has met the others, and others can join it.
pub fn is_running(own: &VerbsConfig, machine: MachineId) -> bool {
    let answer = ask(own, machine).and_then(|socket| {
        let end = Clock::Host.now().after(LONGEST_ASK);
        let socket = &socket;
        receive_line::<Answer<Greeting>>(Until { socket, end }).ok()
    });
    matches!(answer, Some(Answer::Runs(_)))
}

/// What a machine says about itself in its greeting.
pub(super) struct Identity<'a> {
    pub(super) cluster: &'a str,
    pub(super) machine: MachineId,
    /// Number of queue pairs for each other machine.
    pub(super) queues: u16,
}

impl<'a> Identity<'a> {
    pub(super) fn of(shared: &'a Shared) -> Self {
        Self {
            cluster: &shared.config.cluster,
            machine: shared.config.machine,
            queues: shared.groups.len() as u16,
        }
    }

    pub(super) fn greeting(&self) -> std::io::Result<Greeting> {
        Ok(Greeting {
            asks_only: false,
            protocol: PROTOCOL.into(),
            version: VERSION,
            cluster: self.cluster.into(),
            machine: self.machine,
            queues: self.queues,
            random: random_words()?,
        })
    }
}

/// Performs the caller's side of the handshake.
fn call(
    shared: &Shared,
    machine: MachineId,
    mut socket: TcpStream,
    offer: Vec<Capability>,
    most: Duration,
) -> Result<Met, Fault> {
    let refused = |why: String| Fault::Final(ConnectError::Refused { machine, why });
    let io = |error: std::io::Error| Fault::of(machine, error);
    let most = most.min(LONGEST_TALK);
    let end = Clock::Host.now() + most.as_nanos() as u64;
    socket.set_nodelay(true).map_err(io)?;
    socket.set_write_timeout(Some(most)).map_err(io)?;
    let ours = Identity::of(shared).greeting().map_err(io)?;
    send_line(&mut socket, &ours).map_err(io)?;
    let reader = Until {
        socket: &socket,
        end,
    };
    let theirs = match receive_line::<Answer<Greeting>>(reader).map_err(io)? {
        Answer::Welcome(theirs) => theirs,
        Answer::Refused(why) => return Err(refused(why)),
        Answer::NotYet(why) => return Err(Fault::NotMet(why)),
        Answer::Runs(_) | Answer::Waits => return Err(refused(UNASKED.into())),
    };
    theirs.judge(&shared.config.cluster).map_err(refused)?;
    if theirs.machine != machine {
        return Err(refused(format!(
            "the greeting of the called machine names another machine, {}",
            theirs.machine
        )));
    }
    let secret = &shared.config.secret;
    let mut talk = Conversation::new(socket, secret, (&ours, &theirs), true, end).map_err(io)?;
    let (mut pairs, hello) = shared
        .prepare(machine, theirs.queues.into(), offer)
        .map_err(Fault::Final)?;
    let sealed = talk.seal(&hello).map_err(io)?;
    talk.send(&sealed).map_err(io)?;
    let sealed = match talk.receive::<Answer<Sealed>>().map_err(io)? {
        Answer::Welcome(sealed) => sealed,
        Answer::Refused(why) => return Err(refused(why)),
        Answer::NotYet(why) => return Err(Fault::NotMet(why)),
        Answer::Runs(_) | Answer::Waits => return Err(refused(UNASKED.into())),
    };
    let hello: Hello = talk.open(&sealed).map_err(io)?;
    hello
        .judge(machine, &shared.terms(pairs.len()))
        .map_err(refused)?;
    shared
        .connect_pairs(machine, &mut pairs, &hello)
        .map_err(Fault::Final)?;
    talk.send_ready().map_err(io)?;
    talk.await_ready().map_err(io)?;
    Ok(Met {
        machine,
        hello,
        pairs,
        socket: talk.into_socket(),
    })
}

/// What a called machine decides.
pub(super) trait Called {
    /// Returns the answer to a greeting that only asks.
    fn about_itself(&self) -> Answer<Greeting>;

    /// Returns why a machine may not connect; `None` if it may.
    fn turn_away(&self, caller: MachineId) -> Option<TurnedAway>;

    /// Returns the memory that is offered to a machine, which has proved that it belongs to the cluster.
    ///
    /// # Errors
    /// The reason why it may not connect.
    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String>;
}

/// A machine that starts.
struct Starting<'a, 'p> {
    awaited: &'a Awaited<'p>,
    offer: &'a mut dyn FnMut(MachineId) -> Vec<Capability>,
}

impl Called for Starting<'_, '_> {
    fn about_itself(&self) -> Answer<Greeting> {
        Answer::Waits
    }

    fn turn_away(&self, caller: MachineId) -> Option<TurnedAway> {
        self.awaited.check_call_of(caller).err()
    }

    fn offer(&mut self, caller: MachineId) -> Result<Vec<Capability>, String> {
        Ok((self.offer)(caller))
    }
}

/// A caller whose greeting was answered: both greetings, from which the key of the conversation follows.
pub(super) struct Greeted {
    theirs: Greeting,
    ours: Greeting,
}

/// Answers the greeting of a caller, without waiting for more. Returns `None` if the caller only asked, or must try again.
///
/// # Errors
/// Why the caller was refused.
pub(super) fn greet(
    own: &Identity<'_>,
    called: &dyn Called,
    theirs: Greeting,
    socket: &mut TcpStream,
) -> Result<Option<Greeted>, String> {
    let machine = theirs.machine;
    let gone = |error: std::io::Error| format!("machine {machine}: {error}");
    // The answer fits the buffer of a socket to which nothing was sent.
    socket.set_nonblocking(true).map_err(gone)?;
    socket.set_nodelay(true).map_err(gone)?;
    let judged = theirs.judge(own.cluster).map_err(TurnedAway::Refused);
    let (answer, why) = match judged.map(|()| called.turn_away(machine)) {
        Ok(_) if theirs.asks_only => (called.about_itself(), None),
        Ok(None) => {
            let ours = own.greeting().map_err(gone)?;
            send_line(socket, &Answer::Welcome(ours.clone())).map_err(gone)?;
            return Ok(Some(Greeted { theirs, ours }));
        }
        // The caller tries again.
        Ok(Some(TurnedAway::NotYet(why))) => (Answer::NotYet(why), None),
        Ok(Some(TurnedAway::Refused(why)))
        | Err(TurnedAway::Refused(why) | TurnedAway::NotYet(why)) => {
            (Answer::Refused(why.clone()), Some(why))
        }
    };
    // If the caller is gone, the failure to send is ignored.
    let _ = send_line(socket, &answer);
    match why {
        Some(why) => Err(format!("machine {machine}: {why}")),
        None => Ok(None),
    }
}

/// Opens the conversation with a caller that has sent its proof, the first sealed message.
///
/// # Errors
/// Why the proof does not show that the caller knows the secret.
pub(super) fn open_proof<T: DeserializeOwned>(
    secret: &Secret,
    Greeted { theirs, ours }: &Greeted,
    proof: &Sealed,
    socket: TcpStream,
    most: Duration,
) -> std::io::Result<(Conversation, T)> {
    let end = Clock::Host.now() + most.as_nanos() as u64;
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(most))?;
    let mut talk = Conversation::new(socket, secret, (theirs, ours), false, end)?;
    match talk.open(proof) {
        Ok(hello) => Ok((talk, hello)),
        Err(error) => {
            // If the caller is gone, the failure to send is ignored.
            let _ = talk.send(&Answer::<Sealed>::Refused(error.to_string()));
            Err(error)
        }
    }
}

/// Performs the called machine's side of the handshake from the proof of a caller on.
pub(super) fn answer(
    shared: &Shared,
    called: &mut dyn Called,
    greeted: Greeted,
    proof: Sealed,
    socket: TcpStream,
    most: Duration,
) -> Result<Met, Fault> {
    let machine = greeted.theirs.machine;
    let gone = |error: std::io::Error| Fault::NotMet(format!("machine {machine}: {error}"));
    let (secret, most) = (&shared.config.secret, most.min(LONGEST_TALK));
    let opened = open_proof::<Hello>(secret, &greeted, &proof, socket, most);
    let (mut talk, hello) = opened.map_err(gone)?;
    // From here on, the caller is known to belong to the cluster, so both sides report a problem.
    let refused = |why: String| Fault::Final(ConnectError::Refused { machine, why });
    let refuse = |talk: &mut Conversation, why: String| {
        let _ = talk.send(&Answer::<Sealed>::Refused(why.clone()));
        Err(refused(why))
    };
    // Another call of the machine may have been answered since its greeting.
    if let Some(TurnedAway::Refused(why) | TurnedAway::NotYet(why)) = called.turn_away(machine) {
        let _ = talk.send(&Answer::<Sealed>::NotYet(why.clone()));
        return Err(Fault::NotMet(format!("machine {machine}: {why}")));
    }
    let offer = match called.offer(machine) {
        Ok(offer) => offer,
        Err(why) => return refuse(&mut talk, why),
    };
    let (mut pairs, ours) = shared
        .prepare(machine, greeted.theirs.queues.into(), offer)
        .map_err(Fault::Final)?;
    if let Err(why) = hello.judge(machine, &shared.terms(pairs.len())) {
        return refuse(&mut talk, why);
    }
    let sealed = talk.seal(&ours).map_err(gone)?;
    talk.send(&Answer::Welcome(sealed)).map_err(gone)?;
    shared
        .connect_pairs(machine, &mut pairs, &hello)
        .map_err(Fault::Final)?;
    talk.await_ready().map_err(gone)?;
    talk.send_ready().map_err(gone)?;
    Ok(Met {
        machine,
        hello,
        pairs,
        socket: talk.into_socket(),
    })
}
