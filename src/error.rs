//! The error of the interface for programs.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use farm_core::config::ConfigError;
use farm_core::machine::MachineError;
use farm_core::messaging::CallError;
use farm_graph::GraphError;
use farm_kv::KvError;
use farm_txn::{Abort, TxError};

/// The result of most calls. The error is [`Error`], unless it is given.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Something that the program needs does not exist: [`Error::not_found`], an object that was freed, a table that was
    /// not created.
    NotFound,
    /// The program refuses to go on: [`Error::refused`].
    Refused,
    /// An argument, a configuration or a specification is not possible.
    Invalid,
    /// Something of this name exists, and is different.
    Exists,
    /// Every try met a conflict with other transactions, for as long as the configuration allows.
    Conflict,
    /// There is no memory for the operation.
    Full,
    /// The operation is larger than a limit.
    TooLarge,
    /// A machine that stores the data is lost. The operation had no effect.
    Lost,
    /// It is unknown whether the operation took effect: a machine was lost, or the cluster stopped, while it committed.
    Unknown,
    /// The transaction was open for longer than `transactions.open_ms` of the configuration.
    OpenTooLong,
    /// The transaction has ended, and cannot be used any more.
    Ended,
    /// The cluster has stopped, or this machine of it.
    Stopped,
    /// The cluster could not start.
    Start,
    /// Memory has an invalid content: a bug, or overwritten memory.
    Damaged,
}

/// Why a call failed. `Debug` is the text of the error, so that `main() -> farm::Result<()>` prints that.
///
/// ```
/// use farm::{Error, Kind};
///
/// let error = Error::not_found("account 1");
/// assert_eq!(error.kind(), Kind::NotFound);
/// assert_eq!(format!("{error:?}"), "account 1 not found");
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error with this text.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            text: text.into(),
            source: None,
        }))
    }

    /// Creates the error of something that does not exist, which `what` names.
    pub fn not_found(what: impl fmt::Display) -> Self {
        Self::new(Kind::NotFound, format!("{what} not found"))
    }

    /// Creates the error of a program that refuses to go on, for example because an account has too little money.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::new(Kind::Refused, why)
    }

    fn from_source(kind: Kind, source: impl StdError + Send + Sync + 'static) -> Self {
        Self(Box::new(Inner {
            kind,
            text: source.to_string(),
            source: Some(Box::new(source)),
        }))
    }

    /// Returns what went wrong.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the error with `what` before its text: what the program was doing, or with what.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.0.text = format!("{what}: {}", self.0.text);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

/// The source is the error of the layer below. Its text is that of this error.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.0.source.as_deref()?;
        Some(source)
    }
}

impl From<TxError> for Error {
    fn from(error: TxError) -> Self {
        let kind = match &error {
            TxError::Layer(inner) => match (inner.downcast_ref(), inner.downcast_ref()) {
                (Some(error), _) => of_table(error),
                (_, Some(error)) => of_graph(error),
                (None, None) => Kind::Refused,
            },
            error => of_transaction(error),
        };
        Self::from_source(kind, error)
    }
}

fn of_transaction(error: &TxError) -> Kind {
    match error {
        TxError::Abort(Abort::Lost(_)) => Kind::Lost,
        TxError::Abort(_) | TxError::Busy => Kind::Conflict,
        TxError::Alloc(_) | TxError::NoMemory(_) => Kind::Full,
        TxError::Address(_) | TxError::NotAllocated(_) => Kind::NotFound,
        TxError::TooLarge(_)
        | TxError::Limit { .. }
        | TxError::ArrayTooLong { .. }
        | TxError::TooLargeForLog { .. } => Kind::TooLarge,
        TxError::InDoubt(_) => Kind::Unknown,
        TxError::Ended => Kind::Ended,
        TxError::OpenTooLong(_) => Kind::OpenTooLong,
        TxError::Stopped(_) => Kind::Stopped,
        TxError::GivenUp | TxError::Refused(_) | TxError::Layer(_) => Kind::Refused,
        TxError::WrongSize { .. }
        | TxError::EmptyArray
        | TxError::Distributed
        | TxError::OtherTransaction
        | TxError::Forgotten(_) => Kind::Invalid,
    }
}

fn of_table(error: &KvError) -> Kind {
    match error {
        KvError::Busy | KvError::Conflict | KvError::Moved(_) => Kind::Conflict,
        KvError::Full(_)
        | KvError::Crowded(_)
        | KvError::Memory { .. }
        | KvError::TooLarge { .. } => Kind::Full,
        KvError::PeerLost(_) | KvError::Catalog(_) => Kind::Lost,
        KvError::InDoubt(_) => Kind::Unknown,
        KvError::Damaged(_) => Kind::Damaged,
        KvError::NotOpen(_) => Kind::NotFound,
        KvError::KeyLength { .. } | KvError::ValueLength { .. } | KvError::Spec(_) => Kind::Invalid,
    }
}

fn of_graph(error: &GraphError) -> Kind {
    match error {
        GraphError::Tx(error) => of_transaction(error),
        GraphError::Table(error) => of_table(error),
        GraphError::NoNode => Kind::NotFound,
        GraphError::NotUnique(_) | GraphError::IdTaken(_) => Kind::Exists,
        GraphError::Conflict => Kind::Conflict,
        GraphError::Refused(_) => Kind::Refused,
        GraphError::Damaged(_) => Kind::Damaged,
        GraphError::TooLong { .. } => Kind::TooLarge,
        _ => Kind::Invalid,
    }
}

impl From<KvError> for Error {
    fn from(error: KvError) -> Self {
        Self::from_source(of_table(&error), error)
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        Self::from_source(of_graph(&error), error)
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        let kind = match &error {
            CallError::Busy => Kind::Conflict,
            CallError::TooLarge { .. } => Kind::TooLarge,
            CallError::PeerLost(_) => Kind::Unknown,
            CallError::NoWorker(_) => Kind::Invalid,
        };
        Self::from_source(kind, error)
    }
}

impl From<MachineError> for Error {
    fn from(error: MachineError) -> Self {
        let kind = match &error {
            MachineError::Config(_) | MachineError::NoSuchMachine(_) => Kind::Invalid,
            MachineError::Failed(_) | MachineError::Panicked(_) => Kind::Stopped,
            MachineError::TaskPanicked { .. } | MachineError::Full { .. } => Kind::Refused,
            _ => Kind::Start,
        };
        Self::from_source(kind, error)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::from_source(Kind::Invalid, error)
    }
}

/// So that a program can use `?` for its files and sockets, too.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Refused,
        };
        Self::from_source(kind, error)
    }
}
