//! The store of the configuration of a simulated cluster: it answers after a number of polls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use farm_core::membership::configuration::Configuration;
use farm_core::membership::reconfiguration::Stored;
use farm_core::membership::writer::{Access, ConfigAccess, ConfigWriter, WriteError};

use super::lock;

/// Accesses the one store of a cluster.
#[derive(Clone)]
pub(super) struct SimStore {
    newest: Arc<Mutex<Configuration>>,
    /// Polls until a request is answered.
    polls: u64,
    left: u64,
    requests: VecDeque<Option<Arc<Configuration>>>,
    outcome: Option<Result<(), WriteError>>,
}

impl SimStore {
    pub(super) fn new(first: Configuration, polls: u64) -> Self {
        Self {
            newest: Arc::new(Mutex::new(first)),
            polls,
            left: polls,
            requests: VecDeque::new(),
            outcome: None,
        }
    }

    /// Returns the newest configuration.
    pub(super) fn newest(&self) -> Configuration {
        lock(&self.newest).clone()
    }

    /// Stores the configuration with which all machines begin again.
    pub(super) fn resume(&self, next: &Configuration) {
        let stored = self.swap(next);
        assert_eq!(stored, Stored::Won, "no machine runs that changes it");
    }

    fn swap(&self, next: &Configuration) -> Stored {
        let mut newest = lock(&self.newest);
        match newest.change + 1 == next.change {
            true => {
                *newest = next.clone();
                Stored::Won
            }
            false => Stored::Lost,
        }
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.checked_sub(1).unwrap_or(self.polls);
        is_due
    }
}

impl ConfigAccess for SimStore {
    fn read(&mut self) {
        self.requests.push_back(None);
    }

    fn store(&mut self, next: Arc<Configuration>) {
        self.requests.push_back(Some(next));
    }

    fn poll(&mut self) -> Option<Access> {
        if self.requests.is_empty() || !self.is_due() {
            return None;
        }
        let request = self.requests.pop_front()?;
        Some(match request {
            None => Access::Read(Ok(self.newest())),
            Some(next) => {
                let stored = self.swap(&next);
                Access::Stored(next, stored)
            }
        })
    }

    fn writer(&self) -> Result<Box<dyn ConfigWriter>, String> {
        let writer = Self {
            requests: VecDeque::new(),
            ..self.clone()
        };
        Ok(Box::new(writer))
    }
}

impl ConfigWriter for SimStore {
    fn begin(&mut self, next: Configuration) {
        self.outcome = Some(match self.swap(&next) {
            Stored::Won => Ok(()),
            _ => Err(WriteError::Lost),
        });
    }

    fn poll(&mut self) -> Option<Result<(), WriteError>> {
        match self.outcome.is_some() && self.is_due() {
            true => self.outcome.take(),
            false => None,
        }
    }
}
