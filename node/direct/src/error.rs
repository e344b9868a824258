//! Why a direct path cannot be had.

use std::io;
use std::time::Duration;

use libp2p_identity::PeerId;

/// Why a direct path cannot be had; the peer may be reached in other ways.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer is neither on this host nor at an address of a local network, or takes no direct
    /// paths.
    #[error("the peer is neither on this host nor on a local network where it takes direct paths")]
    NotNear,
    /// The way to the peer's private address is longer than a local network.
    #[error("a round trip of {round_trip:?} is longer than a local network")]
    Far {
        /// What it took.
        round_trip: Duration,
    },
    /// The socket failed, or the other end closed it before it proved its identity or because it
    /// did not like ours.
    #[error("use the socket")]
    Socket(#[from] io::Error),
    /// The other end broke the handshake.
    #[error("prove the identities")]
    Tls(#[from] rustls::Error),
    /// The other end said more before its proof than a handshake has, or something else.
    #[error("the other end does not keep to the handshake")]
    Handshake,
    /// The other end showed no libp2p certificate.
    #[error("the other end proved no identity")]
    NoIdentity,
    /// Another peer than the wanted one answered; it was refused inside the handshake.
    #[error("another peer answered there: {obtained}")]
    WrongPeer {
        /// Who answered.
        obtained: PeerId,
    },
    /// The other process runs as another user of this host.
    #[error("the process at the other end is of another user")]
    OtherUser,
    /// The memory that the other process shares is not what a ring is made of.
    #[error("share memory: {0}")]
    Memory(&'static str),
    /// The handshake took too long.
    #[error("no answer in time")]
    Timeout,
}
