//! The handshake of two machines over TCP: each proves to the other that it knows the cluster's
//! secret, then sends the addresses of its queue pairs and the memory that it offers.
//!
//! The calling machine is the one with the greater id.
//!
//! | | caller | called |
//! |---|---|---|
//! | 1 | greeting: version, cluster, id, a random number | |
//! | 2 | | greeting, or refusal |
//! | 3 | sealed: configuration, port, queue pairs, memory | |
//! | 4 | | sealed: the same, or refusal |
//! | 5 | sealed: ready, its queue pairs are connected | |
//! | 6 | | sealed: ready |
//!
//! A sealed message has a code (HMAC-SHA-256) over its sender, its position in the conversation and
//! its text. The key is derived from the secret and both greetings with their random numbers. So
//! the message comes from a machine that knows the secret, and belongs to this conversation and
//! position. Messages are not encrypted, and neither is RDMA traffic: only machines of the cluster
//! may be connected to the network.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, Mac};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::device::{LinkLayer, PortAddress};
use super::queue_pair::QueueAddress;
use crate::fabric::Capability;
use crate::fabric::handshake::{
    excerpt, offers_its_own, random_words, receive_line, same_cluster, same_configuration,
    same_version, send_line,
};
use crate::ids::MachineId;
use crate::limits::MAX_WORKERS;
use crate::time::{Clock, Nanos};

/// Version of the handshake and of all layouts that peers share.
pub(super) const VERSION: u32 = 4;
/// First field of every greeting, to detect callers with another protocol.
pub(super) const PROTOCOL: &str = "farm/verbs";
/// Minimum length of a secret, in bytes.
const LEAST_SECRET_BYTES: usize = 16;

pub(super) type Code = Hmac<Sha256>;

/// The secret that only machines of the cluster know.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a secret of {} bytes", self.0.len())
    }
}

/// Why the secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error(
        "cannot read the cluster's secret {path}: {source}; create it on one machine and copy it to all: \
             (umask 077; head -c 32 /dev/urandom | base64 > {path})"
    )]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: Error,
    },
    /// Other users can read the file.
    #[error("the cluster's secret {path} can be read by others (mode {mode:o}): chmod 600 {path}")]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// The secret is too short.
    #[error("the cluster's secret {path} has {bytes} bytes; at least 16 are needed")]
    Short {
        /// Path of the file.
        path: PathBuf,
        /// Length of the secret in bytes, without surrounding white space.
        bytes: usize,
    },
}

impl Secret {
    /// Reads the secret from a file that other users cannot read. Removes surrounding white space.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        use std::os::unix::fs::PermissionsExt;
        let file = |source| SecretError::File {
            path: path.into(),
            source,
        };
        let bytes = std::fs::read(path).map_err(file)?;
        let mode = std::fs::metadata(path).map_err(file)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Open {
                path: path.into(),
                mode,
            });
        }
        let bytes = bytes.trim_ascii();
        if bytes.len() < LEAST_SECRET_BYTES {
            return Err(SecretError::Short {
                path: path.into(),
                bytes: bytes.len(),
            });
        }
        Ok(Self(bytes.into()))
    }

    /// Returns the secret of the machines of one host: a file in their run directory, which the
    /// first machine creates.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn of_host(run_dir: &Path, cluster: &str) -> Result<Self, SecretError> {
        let dir = run_dir.join(cluster);
        let path = dir.join("secret");
        Self::make(&dir, &path).map_err(|source| SecretError::File {
            path: path.clone(),
            source,
        })?;
        Self::read(&path)
    }

    /// Creates a file with a new secret, atomically with its content, unless the file exists.
    fn make(dir: &Path, path: &Path) -> std::io::Result<()> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let [mark] = random_words()?;
        let words: [u64; 4] = random_words()?;
        let text: String = words.iter().map(|word| format!("{word:016x}")).collect();
        let fresh = dir.join(format!("secret.{mark:016x}"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&fresh)?.write_all(text.as_bytes())?;
        let linked = std::fs::hard_link(&fresh, path);
        std::fs::remove_file(&fresh)?;
        match linked {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// Returns a key for a purpose, which only those know who know the secret.
    pub(super) fn key(&self, purpose: &[&str]) -> Code {
        let mut code = Code::new_from_slice(&self.0).expect("HMAC accepts keys of any length");
        for part in purpose {
            code.update(&(part.len() as u64).to_le_bytes());
            code.update(part.as_bytes());
        }
        let key = code.finalize().into_bytes();
        Code::new_from_slice(&key).expect("HMAC accepts keys of any length")
    }

    /// Creates a secret of these bytes, for tests and machines of one process.
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

/// The first message of either side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) protocol: String,
    pub(super) version: u32,
    pub(super) cluster: String,
    pub(super) machine: MachineId,
    /// Whether the sender only asks whether the called machine runs already.
    pub(super) asks_only: bool,
    /// Number of queue pairs that the sender has for each other machine.
    pub(super) queues: u16,
    pub(super) random: [u64; 4],
}

impl Greeting {
    /// Checks whether a machine of `cluster` can accept the greeting. Returns the reason if it cannot.
    pub(super) fn judge(&self, cluster: &str) -> Result<(), String> {
        if self.protocol != PROTOCOL {
            let theirs = excerpt(&self.protocol);
            return Err(format!(
                "the peer uses the protocol {theirs:?}, not {PROTOCOL:?}"
            ));
        }
        same_version(VERSION, self.version)?;
        same_cluster(cluster, &self.cluster)?;
        match (1..=MAX_WORKERS).contains(&usize::from(self.queues)) {
            true => Ok(()),
            false => Err(format!(
                "the peer requests {} queue pairs, but 1 to {MAX_WORKERS} are allowed",
                self.queues
            )),
        }
    }
}

/// The terms to which a machine must agree.
pub(super) struct Terms {
    pub(super) digest: u64,
    pub(super) link_layer: LinkLayer,
    /// Number of queue pairs to connect.
    pub(super) pairs: usize,
}

/// The properties and offers of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) digest: u64,
    pub(super) boot: u64,
    /// Whether the sender ran before the two machines connected.
    pub(super) runs: bool,
    pub(super) workers: u16,
    /// Whether the machine's workers ever sleep, so that they need notifications.
    pub(super) parks: bool,
    pub(super) port: PortAddress,
    /// Number of reads and atomics that the machine serves concurrently on a connection.
    pub(super) reads: u8,
    pub(super) queues: Vec<QueueAddress>,
    pub(super) offer: Vec<Capability>,
}

impl Hello {
    /// Checks whether the hello of a machine of the cluster is acceptable. Returns the reason if it is
    /// not.
    pub(super) fn judge(&self, machine: MachineId, terms: &Terms) -> Result<(), String> {
        same_configuration(terms.digest, self.digest)?;
        if self.port.link_layer != terms.link_layer {
            return Err("one machine has an Ethernet port and the other an InfiniBand port".into());
        }
        if self.queues.len() != terms.pairs || self.reads == 0 {
            return Err(format!(
                "the peer has {} queue pairs ({} are needed), or its device serves no reads",
                self.queues.len(),
                terms.pairs
            ));
        }
        offers_its_own(machine, self.boot, &self.offer)
    }
}

/// The answer to a message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer<T> {
    Welcome(T),
    /// The called machine refuses the caller, for this reason.
    Refused(String),
    /// The connection may be possible later.
    NotYet(String),
    /// Answer to a greeting that only asks: this machine runs already, so call it.
    Runs(MachineId),
    /// Answer to a greeting that only asks: this machine waits for machines itself.
    Waits,
}

/// A text and its code.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sealed {
    text: String,
    code: Vec<u8>,
}

/// The state with which one side of a conversation seals its messages and opens those of the other
/// side.
struct Seal {
    key: Vec<u8>,
    is_caller: bool,
    /// Number of messages so far, in both directions.
    messages: u64,
}

impl Seal {
    fn new(
        secret: &Secret,
        (caller, called): (&Greeting, &Greeting),
        is_caller: bool,
    ) -> std::io::Result<Self> {
        let mut code = Code::new_from_slice(&secret.0).expect("HMAC accepts keys of any length");
        for greeting in [caller, called] {
            code.update(&serde_json::to_vec(greeting)?);
        }
        Ok(Self {
            key: code.finalize().into_bytes().to_vec(),
            is_caller,
            messages: 0,
        })
    }

    fn code(&self, text: &str, by_caller: bool) -> Code {
        let mut code = Code::new_from_slice(&self.key).expect("HMAC accepts keys of any length");
        code.update(&[u8::from(by_caller)]);
        code.update(&self.messages.to_le_bytes());
        code.update(text.as_bytes());
        code
    }

    fn seal(&mut self, message: &impl Serialize) -> std::io::Result<Sealed> {
        Ok(self.seal_text(serde_json::to_string(message)?))
    }

    fn seal_text(&mut self, text: String) -> Sealed {
        let code = self.code(&text, self.is_caller).finalize().into_bytes();
        self.messages += 1;
        let code = code.to_vec();
        Sealed { text, code }
    }

    fn open<T: DeserializeOwned>(&mut self, sealed: &Sealed) -> std::io::Result<T> {
        let code = self.code(&sealed.text, !self.is_caller);
        self.messages += 1;
        code.verify_slice(&sealed.code).map_err(|_| {
            let why = "the peer has another secret: use the same secret file on all machines";
            Error::new(ErrorKind::PermissionDenied, why)
        })?;
        Ok(serde_json::from_str(&sealed.text)?)
    }
}

/// A conversation with one machine. Both sides know the key.
pub(super) struct Conversation {
    socket: TcpStream,
    seal: Seal,
    /// Time at which waiting for the other side ends.
    end: Nanos,
}

/// A reader of a socket that fails at a deadline, however slowly the data arrive.
pub(super) struct Until<'a> {
    pub(super) socket: &'a TcpStream,
    pub(super) end: Nanos,
}

impl Read for Until<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let now = Clock::Host.now();
        if now >= self.end {
            return Err(ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(self.end.since(now)))?;
        self.socket.read(out)
    }
}

impl Conversation {
    pub(super) fn new(
        socket: TcpStream,
        secret: &Secret,
        greetings: (&Greeting, &Greeting),
        is_caller: bool,
        end: Nanos,
    ) -> std::io::Result<Self> {
        let seal = Seal::new(secret, greetings, is_caller)?;
        Ok(Self { socket, seal, end })
    }

    /// Seals a message, which must be the next one that is sent.
    pub(super) fn seal(&mut self, message: &impl Serialize) -> std::io::Result<Sealed> {
        self.seal.seal(message)
    }

    /// Opens a sealed message of the other side.
    ///
    /// # Errors
    /// When the message was sealed with another secret, or is not of the expected type.
    pub(super) fn open<T: DeserializeOwned>(&mut self, sealed: &Sealed) -> std::io::Result<T> {
        self.seal.open(sealed)
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> std::io::Result<()> {
        send_line(&mut self.socket, message)
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> std::io::Result<T> {
        receive_line(Until {
            socket: &self.socket,
            end: self.end,
        })
    }

    /// Notifies the other side that this side is ready.
    pub(super) fn send_ready(&mut self) -> std::io::Result<()> {
        let ready = self.seal(&"ready")?;
        self.send(&ready)
    }

    /// Waits until the other side is ready.
    pub(super) fn await_ready(&mut self) -> std::io::Result<()> {
        let ready: Sealed = self.receive()?;
        self.open::<String>(&ready).map(drop)
    }

    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }
}

/// Decodes `bytes` as each message of the handshake, both from a stranger and from a machine of the
/// cluster. For fuzzing.
///
/// # Panics
/// When an invalid message is accepted, or an accepted message changes when it is sent and received
/// again.
#[doc(hidden)]
pub fn read_untrusted(bytes: &[u8]) {
    let (theirs, ours) = (greeting(2, 2), greeting(1, 1));
    let machine = theirs.machine;
    let seal = |by_caller| {
        let secret = Secret::of(b"known to the cluster");
        Seal::new(&secret, (&theirs, &ours), by_caller)
            .expect("every greeting can be serialized as JSON")
    };
    if let Ok(greeting) = receive_line::<Greeting>(bytes) {
        assert_eq!(again(&greeting), greeting);
        if greeting.judge("c").is_ok() {
            assert!((1..=MAX_WORKERS).contains(&greeting.queues.into()));
        }
    }
    // A stranger does not know the key of the seal.
    let sealed = match receive_line::<Answer<Sealed>>(bytes) {
        Ok(Answer::Welcome(sealed)) => Some(sealed),
        _ => receive_line(bytes).ok(),
    };
    if let Some(sealed) = sealed {
        assert!(seal(false).open::<Hello>(&sealed).is_err());
    }
    let text = String::from_utf8_lossy(bytes).into_owned();
    if let Ok(hello) = seal(false).open::<Hello>(&seal(true).seal_text(text)) {
        assert_eq!(again(&hello), hello);
        let terms = Terms {
            digest: 1,
            link_layer: LinkLayer::Ethernet,
            pairs: 1,
        };
        if hello.judge(machine, &terms).is_ok() {
            let boot = hello.boot;
            let mut offer = hello.offer.iter();
            assert!(offer.all(|memory| memory.machine == machine && memory.boot == boot));
        }
    }
}

/// Returns a greeting of a machine of cluster "c".
fn greeting(machine: u16, random: u64) -> Greeting {
    Greeting {
        protocol: PROTOCOL.into(),
        version: VERSION,
        cluster: "c".into(),
        machine: MachineId::new(machine).expect("`greeting` is called only with valid machine ids"),
        asks_only: false,
        queues: 1,
        random: [random; 4],
    }
}

/// Returns a message in its encoding on the wire.
fn line_of(message: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::new();
    send_line(&mut line, message)
        .expect("every message of the handshake can be serialized as JSON");
    line
}

/// Returns a message after sending and receiving it.
fn again<T: Serialize + DeserializeOwned>(message: &T) -> T {
    receive_line(&line_of(message)[..])
        .expect("`receive_line` accepts every message that `send_line` wrote")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    fn conversations(secrets: [&[u8]; 2], called_random: u64) -> [Conversation; 2] {
        let (caller, called) = pair();
        let (greets, answers) = (greeting(2, 1), greeting(1, 2));
        let received = greeting(1, called_random);
        let of = |socket, secret, greetings, is_caller| {
            let end = Clock::Host.now() + 10_000_000_000;
            Conversation::new(socket, &Secret::of(secret), greetings, is_caller, end).unwrap()
        };
        [
            of(caller, secrets[0], (&greets, &received), true),
            of(called, secrets[1], (&greets, &answers), false),
        ]
    }

    #[test]
    fn a_message_sealed_with_the_same_secret_is_opened() {
        let [mut caller, mut called] = conversations([b"the same secret!"; 2], 2);
        let sealed = caller.seal(&7u32).unwrap();
        assert_eq!(called.open::<u32>(&sealed).unwrap(), 7);
        called.send_ready().unwrap();
        caller.await_ready().unwrap();
    }

    /// A peer that sends single bytes slowly does not extend the deadline.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the peer is slow")]
    fn a_line_that_arrives_slowly_times_out() {
        let (mut slow, waits) = pair();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Acquire)
                    && slow.write_all(b"1").is_ok()
                {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            let end = Clock::Host.now() + 100_000_000;
            let socket = &waits;
            let timed_out = receive_line::<u32>(Until { socket, end }).unwrap_err();
            stop.store(true, std::sync::atomic::Ordering::Release);
            let kinds = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
            assert!(kinds.contains(&timed_out.kind()), "{timed_out}");
        });
    }

    #[test]
    fn another_secret_or_conversation_is_detected() {
        for (secrets, random) in [
            ([b"the same secret!", b"another secret!!"], 2),
            ([b"the same secret!", b"the same secret!"], 3),
        ] {
            let [mut caller, mut called] = conversations(secrets.map(|s| s.as_slice()), random);
            let sealed = caller.seal(&7u32).unwrap();
            let error = called.open::<u32>(&sealed).unwrap_err();
            assert!(error.to_string().contains("secret"), "{error}");
        }
    }

    /// A message that is replayed, reflected or changed is rejected.
    #[test]
    fn a_sealed_message_is_valid_once_and_in_one_direction() {
        let secrets = || conversations([b"the same secret!"; 2], 2);
        let [mut caller, mut called] = secrets();
        let sealed = caller.seal(&7u32).unwrap();
        called.open::<u32>(&sealed).unwrap();
        assert!(called.open::<u32>(&sealed).is_err(), "replayed");
        let [mut caller, _] = secrets();
        let sealed = caller.seal(&7u32).unwrap();
        let [mut back, _] = secrets();
        assert!(back.open::<u32>(&sealed).is_err(), "reflected");
        let [mut caller, mut called] = secrets();
        let mut sealed = caller.seal(&7u32).unwrap();
        sealed.text = "8".into();
        assert!(called.open::<u32>(&sealed).is_err(), "changed");
    }

    /// Returns the seeds of the fuzzer: each message in its encoding on the wire.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let port = PortAddress {
            link_layer: LinkLayer::Ethernet,
            gid: [1; 16],
            lid: 0,
            mtu: 1024,
        };
        let machine = MachineId::new(2).unwrap();
        let hello = Hello {
            digest: 1,
            boot: 7,
            runs: false,
            workers: 1,
            parks: true,
            port,
            reads: 16,
            queues: vec![QueueAddress {
                number: 17,
                first_packet: 3,
            }],
            offer: vec![Capability {
                machine,
                boot: 7,
                key: 5,
                bytes: 4096,
                writable: true,
            }],
        };
        let greets = greeting(2, 2);
        let secret = Secret::of(b"known to somebody else");
        let mut seal = Seal::new(&secret, (&greets, &greeting(1, 1)), true).unwrap();
        let sealed = seal.seal(&hello).unwrap();
        vec![
            ("greeting", line_of(&greets)),
            ("hello", line_of(&hello)),
            ("sealed", line_of(&sealed)),
            ("refused", line_of(&Answer::<Sealed>::Refused("no".into()))),
        ]
    }

    fn seed_dir() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/handshake")
    }

    /// To be run after a change of the messages: `cargo test -p farm-core --lib control --
    /// --ignored write_seeds`.
    #[test]
    #[ignore = "writes fuzz/corpus/handshake"]
    fn write_seeds() {
        std::fs::create_dir_all(seed_dir()).unwrap();
        for (name, seed) in seeds() {
            std::fs::write(seed_dir().join(name), seed).unwrap();
        }
    }

    #[test]
    fn seeds_on_disk_have_the_current_messages() {
        for (name, seed) in seeds() {
            let found = std::fs::read(seed_dir().join(name))
                .expect("seed file is missing; run write_seeds");
            assert_eq!(
                found, seed,
                "seed {name} has other messages; run write_seeds"
            );
            read_untrusted(&seed);
        }
        assert!(receive_line::<Hello>(&seeds()[1].1[..]).is_ok());
    }

    #[test]
    fn a_secret_that_other_users_can_read_is_rejected() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let set = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            Secret::read(&path)
        };
        assert!(matches!(Secret::read(&path), Err(SecretError::File { .. })));
        let open = set("sixteen bytes of it\n", 0o640);
        assert!(matches!(open, Err(SecretError::Open { mode: 0o640, .. })));
        let short = set("fifteen bytes..\n\n", 0o600);
        assert!(matches!(short, Err(SecretError::Short { bytes: 15, .. })));
        let secret = set("sixteen bytes ..\n", 0o600).unwrap();
        assert_eq!(format!("{secret:?}"), "a secret of 16 bytes");
        let made = || Secret::of_host(dir.path(), "c").unwrap().0;
        assert_eq!(made(), made(), "the machines of a host share one secret");
        assert_eq!(made().len(), 64);
        assert_eq!(std::fs::read_dir(dir.path().join("c")).unwrap().count(), 1);
    }
}
