//! LOCK-REPLY, and the reply to VALIDATE, which has the same form.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::messaging::CallError;
use farm_core::worker::AddressError;

use crate::error::{Abort, TxError};
use crate::tx::{Tx, wrong_size};

/// Bytes of a reply: the code, the object's address, and its size class.
pub(crate) const REPLY_BYTES: usize = 10;

/// The verdict of a primary about the objects of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// All objects are locked, or unchanged.
    Granted,
    /// The object is locked by another transaction.
    Locked(Address),
    /// The version of the object is not the version that was read.
    Changed(Address),
    /// The object has this size class, not the requested one.
    OtherClass(Address, SizeClass),
    /// No object starts at the address.
    NoObject(Address),
}

impl Verdict {
    /// Returns the bytes of the reply.
    pub(crate) fn encode(self) -> [u8; REPLY_BYTES] {
        let (code, address, class) = match self {
            Verdict::Granted => (0, Address::NULL, 0),
            Verdict::Locked(address) => (1, address, 0),
            Verdict::Changed(address) => (2, address, 0),
            Verdict::OtherClass(address, class) => (3, address, class.get()),
            Verdict::NoObject(address) => (4, address, 0),
        };
        let mut reply = [code; REPLY_BYTES];
        reply[1..9].copy_from_slice(&address.to_bits().to_le_bytes());
        reply[9] = class;
        reply
    }

    /// Decodes a reply; an unknown code counts as a lock conflict, after which the transaction is retried.
    fn decode(reply: &[u8; REPLY_BYTES]) -> Self {
        let address = u64::from_le_bytes(
            reply[1..9]
                .try_into()
                .expect("a slice of eight bytes is one word"),
        );
        let address = Address::from_bits(address).unwrap_or(Address::NULL);
        match reply[0] {
            0 => Verdict::Granted,
            2 => Verdict::Changed(address),
            3 => Verdict::OtherClass(address, SizeClass::new(reply[9])),
            4 => Verdict::NoObject(address),
            _ => Verdict::Locked(address),
        }
    }
}

/// Converts a reply, or the failure of the call, to a result for the transaction.
///
/// # Errors
/// The reason why the transaction aborts.
pub(super) fn verdict(tx: &Tx, reply: Result<&[u8], CallError>) -> Result<(), TxError> {
    if let Err(CallError::PeerLost(machine)) = reply {
        return Err(Abort::Lost(machine).into());
    }
    let reply = reply.ok().and_then(|reply| reply.try_into().ok());
    let Some(verdict) = reply.map(Verdict::decode) else {
        return Err(Abort::Locked(Address::NULL).into());
    };
    Err(match verdict {
        Verdict::Granted => return Ok(()),
        Verdict::Locked(address) => Abort::Locked(address).into(),
        Verdict::Changed(address) => Abort::Changed(address).into(),
        Verdict::NoObject(address) => AddressError::Nowhere(address).into(),
        Verdict::OtherClass(address, is) => {
            let asked = tx.find(address).map_or(is, |object| tx.class(object));
            wrong_size(address, asked, is)
        }
    })
}
