//! Messages as bytes.
//!
//! ```text
//! kind (1): 1 Suspect, 2 NewConfig, 3 Applied, 4 Commit, 5 Evicted
//! Suspect: machine (2) | boot (8) | NewConfig: the configuration | Applied, Commit: id (8) | Evicted: machine (2) | boot (8) | id (8) | minor (8)
//! ```

use std::sync::Arc;

use super::Message;
use crate::membership::configuration::{Configuration, Process, Version};
use crate::membership::encoding::{DecodeError, EncodeError, Reader};

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAMessage {
    /// The kind is unknown, or a field is impossible, missing or too much.
    #[error("it is not a message about a change of the configuration")]
    Fields,
    /// It has no configuration that can be used.
    #[error("its configuration cannot be used: {0}")]
    Configuration(#[from] DecodeError),
}

impl Message {
    /// Returns the bytes of the message.
    ///
    /// # Errors
    /// [`EncodeError`] if its configuration cannot be encoded.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::new();
        let mut put = |kind: u8, fields: &[&[u8]]| {
            bytes.push(kind);
            fields.iter().for_each(|field| bytes.extend(*field));
        };
        match self {
            Self::Suspect(Process { machine, boot }) => {
                put(1, &[&machine.get().to_le_bytes(), &boot.to_le_bytes()]);
            }
            Self::NewConfig(configuration) => put(2, &[&configuration.encode()?]),
            Self::Applied(id) => put(3, &[&id.to_le_bytes()]),
            Self::Commit(id) => put(4, &[&id.to_le_bytes()]),
            Self::Evicted(Process { machine, boot }, Version { id, minor }) => put(
                5,
                &[
                    &machine.get().to_le_bytes(),
                    &boot.to_le_bytes(),
                    &id.to_le_bytes(),
                    &minor.to_le_bytes(),
                ],
            ),
        }
        Ok(bytes)
    }

    /// Returns the message that the bytes are.
    ///
    /// # Errors
    /// [`NotAMessage`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAMessage> {
        let (kind, rest) = bytes.split_first().ok_or(NotAMessage::Fields)?;
        let mut fields = Reader(rest);
        let message = match kind {
            1 => fields.process().map(Self::Suspect),
            2 => {
                let configuration = Configuration::decode(rest)?;
                return Ok(Self::NewConfig(Arc::new(configuration)));
            }
            3 => fields.u64().map(Self::Applied),
            4 => fields.u64().map(Self::Commit),
            5 => {
                let process = fields.process();
                let version = fields.u64().zip(fields.u64());
                let evicted = process.zip(version);
                evicted.map(|(left, (id, minor))| Self::Evicted(left, Version { id, minor }))
            }
            _ => None,
        };
        let message = message.filter(|_| fields.0.is_empty());
        message.ok_or(NotAMessage::Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::configuration::testing::{configuration, machine};

    #[test]
    fn messages_are_decoded_as_encoded_and_others_are_refused() {
        let next = configuration("test", &[1, 2, 3]).next(true);
        let process = Process {
            machine: machine(1023),
            boot: 1 << 60,
        };
        for message in [
            Message::Suspect(process),
            Message::NewConfig(Arc::new(next)),
            Message::Applied(u64::MAX),
            Message::Commit(1 << 40),
            Message::Evicted(process, Version { id: 3, minor: 4 }),
        ] {
            let mut bytes = message.encode().unwrap();
            assert_eq!(Message::decode(&bytes), Ok(message));
            for length in 0..bytes.len() {
                assert!(Message::decode(&bytes[..length]).is_err(), "{length} bytes");
            }
            bytes.push(0);
            assert!(Message::decode(&bytes).is_err());
        }
        for wrong in [&[][..], &[0], &[6], &[1, 0, 0]] {
            assert_eq!(Message::decode(wrong), Err(NotAMessage::Fields));
        }
    }
}
