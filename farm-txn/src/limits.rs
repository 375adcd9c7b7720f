//! Limits of transactions.

/// Limits of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLimits {
    /// Maximum number of objects, including those that are only read.
    pub objects: usize,
    /// Maximum number of bytes of payloads.
    pub bytes: usize,
}

/// The default limits suit a transaction of one turn. Transactions over many turns have the limits of the
/// configuration.
impl Default for TxLimits {
    fn default() -> Self {
        Self {
            objects: 1024,
            bytes: 4 << 20,
        }
    }
}
