//! Storing configurations without blocking a worker.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;

use super::configuration::Configuration;
use super::reconfiguration::Stored;
use super::store::{ConfigStore, StoreError, Swap};

/// Why a configuration was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// Another change came first.
    Lost,
    /// The store does not work, for this reason. Nothing has changed.
    Failed(String),
}

/// Stores configurations, one at a time.
pub trait ConfigWriter: Send {
    /// Begins to store the configuration that follows the current one.
    fn begin(&mut self, next: Configuration);

    /// Returns the outcome of the last [`ConfigWriter::begin`], once, when there is one.
    fn poll(&mut self) -> Option<Result<(), WriteError>>;
}

impl ConfigWriter for Box<dyn ConfigWriter> {
    fn begin(&mut self, next: Configuration) {
        (**self).begin(next);
    }

    fn poll(&mut self) -> Option<Result<(), WriteError>> {
        (**self).poll()
    }
}

/// Keeps the configuration in the process alone: for clusters whose data ends with their processes.
#[derive(Debug, Default)]
pub struct InProcess {
    stored: bool,
}

impl ConfigWriter for InProcess {
    fn begin(&mut self, _: Configuration) {
        self.stored = true;
    }

    fn poll(&mut self) -> Option<Result<(), WriteError>> {
        std::mem::take(&mut self.stored).then_some(Ok(()))
    }
}

/// What a [`ConfigAccess`] was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The newest configuration of the store, or why it cannot be read.
    Read(Result<Configuration, String>),
    /// The store has no configuration.
    Nothing,
    /// How the store has answered the change to this configuration.
    Stored(Arc<Configuration>, Stored),
}

/// The store of the configuration, for a machine that may have to make the next one. Answers come in the order of the requests.
pub trait ConfigAccess: Send {
    /// Begins to read the newest configuration.
    fn read(&mut self);

    /// Begins to store a configuration.
    fn store(&mut self, next: Arc<Configuration>);

    /// Returns the next answer, when there is one.
    fn poll(&mut self) -> Option<Access>;

    /// Returns a writer to the same store.
    ///
    /// # Errors
    /// The reason why the store cannot be accessed.
    fn writer(&self) -> Result<Box<dyn ConfigWriter>, String>;
}

/// Opens the store of the configuration.
pub type OpenStore = dyn Fn() -> Box<dyn ConfigStore> + Send + Sync;

/// A thread that serves requests, one at a time. Dropping it waits for the request that it serves.
#[derive(Debug)]
struct Served<Q, A> {
    /// `None` when the value is dropped, which ends the thread.
    requests: Option<Sender<Q>>,
    answers: Receiver<A>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static, A: Send + 'static> Served<Q, A> {
    fn start(
        name: String,
        mut serve: impl FnMut(Q) -> A + Send + 'static,
    ) -> std::io::Result<Self> {
        let (requests, requested) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            for request in requested {
                if answer.send(serve(request)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            requests: Some(requests),
            answers,
            thread: Some(thread),
        })
    }

    /// Has a request served. If the thread has panicked, there is no answer.
    fn request(&self, request: Q) {
        if let Some(thread) = &self.requests {
            let _ = thread.send(request);
        }
    }
}

impl<Q, A> Drop for Served<Q, A> {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported by the answers that do not come.
            let _ = thread.join();
        }
    }
}

/// Accesses a [`ConfigStore`] by a thread of its own.
pub struct AccessThread {
    name: String,
    open: Arc<OpenStore>,
    /// Requests to store a configuration, or to read one: `None`.
    thread: Served<Option<Arc<Configuration>>, Access>,
}

impl AccessThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's, if it refuses a thread.
    pub fn start(name: String, open: Arc<OpenStore>) -> std::io::Result<Self> {
        let mut store = open();
        let thread = Served::start(name.clone(), move |request: Option<Arc<_>>| match request {
            None => match store.read() {
                Ok(Some(newest)) => Access::Read(Ok(newest)),
                Ok(None) => Access::Nothing,
                Err(error) => Access::Read(Err(error.to_string())),
            },
            Some(next) => {
                let stored = match write(&mut *store, &next) {
                    Ok(()) => Stored::Won,
                    Err(WriteError::Lost) => Stored::Lost,
                    Err(WriteError::Failed(why)) => Stored::Failed(why),
                };
                Access::Stored(next, stored)
            }
        })?;
        Ok(Self { name, open, thread })
    }
}

impl ConfigAccess for AccessThread {
    fn read(&mut self) {
        self.thread.request(None);
    }

    fn store(&mut self, next: Arc<Configuration>) {
        self.thread.request(Some(next));
    }

    // If the thread has panicked, the machine tries again after a time.
    fn poll(&mut self) -> Option<Access> {
        self.thread.answers.try_recv().ok()
    }

    fn writer(&self) -> Result<Box<dyn ConfigWriter>, String> {
        let thread = StoreThread::start(self.name.clone(), (self.open)());
        let thread = thread.map_err(|error| error.to_string())?;
        Ok(Box::new(thread))
    }
}

/// Stores configurations in a [`ConfigStore`], by a thread of its own.
#[derive(Debug)]
pub struct StoreThread(Served<Box<Configuration>, Result<(), WriteError>>);

impl StoreThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's, if it refuses a thread.
    pub fn start(name: String, mut store: impl ConfigStore + 'static) -> std::io::Result<Self> {
        let serve = move |next: Box<Configuration>| write(&mut store, &next);
        Served::start(name, serve).map(Self)
    }
}

/// Stores a configuration. If the store does not know whether it did, the newest one shows it.
fn write(store: &mut dyn ConfigStore, next: &Configuration) -> Result<(), WriteError> {
    let failed = |error: StoreError| WriteError::Failed(error.to_string());
    match store.compare_and_swap(next) {
        Ok(Swap::Won) => Ok(()),
        Ok(Swap::Lost) => Err(WriteError::Lost),
        Err(StoreError::Unknown(_)) => match store.read().map_err(failed)? {
            Some(newest) if newest == *next => Ok(()),
            Some(newest) if newest.change < next.change => {
                Err(WriteError::Failed("the change did not take effect".into()))
            }
            _ => Err(WriteError::Lost),
        },
        Err(error) => Err(failed(error)),
    }
}

impl ConfigWriter for StoreThread {
    fn begin(&mut self, next: Configuration) {
        // If the thread has panicked, `poll` reports it.
        self.0.request(Box::new(next));
    }

    fn poll(&mut self) -> Option<Result<(), WriteError>> {
        match self.0.answers.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(WriteError::Failed(
                "the thread of the store ended".into(),
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::path::PathBuf;

    use super::*;
    use crate::membership::configuration::testing::configuration;

    struct Scripted {
        swaps: VecDeque<Result<Swap, StoreError>>,
        newest: Option<Configuration>,
    }

    impl ConfigStore for Scripted {
        fn read(&mut self) -> Result<Option<Configuration>, StoreError> {
            Ok(self.newest.clone())
        }
        fn compare_and_swap(&mut self, _: &Configuration) -> Result<Swap, StoreError> {
            self.swaps.pop_front().expect("an answer of the script")
        }
    }

    fn outcome(writer: &mut StoreThread) -> Result<(), WriteError> {
        loop {
            if let Some(outcome) = writer.poll() {
                return outcome;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_the_store_does_not_know_is_read() {
        let next = configuration("test", &[1, 2]).next(false);
        let other = Configuration {
            recovered: 1,
            ..next.clone()
        };
        let unknown = || {
            let path = PathBuf::from("/store");
            Err(StoreError::Unknown(Box::new(StoreError::Restless(path))))
        };
        let later = next.next(false);
        let before = configuration("test", &[1, 2]);
        let failed = |why: &str| Err(WriteError::Failed(why.into()));
        for (swap, newest, expected) in [
            (Ok(Swap::Won), None, Ok(())),
            (Ok(Swap::Lost), None, Err(WriteError::Lost)),
            (unknown(), Some(next.clone()), Ok(())),
            (unknown(), Some(other), Err(WriteError::Lost)),
            (unknown(), Some(later), Err(WriteError::Lost)),
            (
                unknown(),
                Some(before),
                failed("the change did not take effect"),
            ),
            (
                Err(StoreError::Restless("/store".into())),
                None,
                failed("the configurations in /store change faster than one can be read"),
            ),
        ] {
            let swaps = VecDeque::from([swap]);
            let store = Scripted { swaps, newest };
            let mut writer = StoreThread::start("store".into(), store).unwrap();
            assert_eq!(writer.poll(), None);
            writer.begin(next.clone());
            assert_eq!(outcome(&mut writer), expected);
        }
    }

    #[test]
    fn a_thread_that_ended_is_reported() {
        let swaps = VecDeque::new();
        let mut writer = StoreThread::start(
            "store".into(),
            Scripted {
                swaps,
                newest: None,
            },
        )
        .unwrap();
        writer.begin(configuration("test", &[1]));
        assert!(matches!(outcome(&mut writer), Err(WriteError::Failed(_))));
    }
}
