//! Addresses of machines, as the configuration names them.

use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the first socket address of a host name.
pub(super) fn resolve(address: &str) -> std::io::Result<SocketAddr> {
    let mut found = address.to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| std::io::Error::other("the name resolves to no address"))
}
