//! Why a connection cannot be had.

use std::io;
use std::net::SocketAddr;

use libp2p_identity::PeerId;

/// Why a connection or a listener cannot be had, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine refused a socket operation.
    #[error("use the UDP socket")]
    Socket(#[from] io::Error),
    /// No libp2p connection over QUIC leads to the peer.
    #[error("no QUIC connection to the peer")]
    NotConnected,
    /// No TLS configuration for the dial; the machine is out of randomness.
    #[error("prepare the connection")]
    Prepare(#[from] SetUpError),
    /// The address or the configuration does not allow a connection; nothing was sent.
    #[error("begin the connection")]
    Connect(#[from] quinn::ConnectError),
    /// The connection failed or was closed.
    #[error("keep the connection")]
    Connection(#[from] quinn::ConnectionError),
    /// Another peer than the wanted one answered; it was refused inside the handshake.
    #[error("another peer answered there: {obtained}")]
    WrongPeer {
        /// Who answered.
        obtained: PeerId,
    },
    /// The other end speaks QUIC, but not the protocol that was asked for.
    #[error("the other end does not speak {0}")]
    Unsupported(&'static str),
    /// The other end showed no libp2p certificate.
    #[error("the other end proved no identity")]
    NoIdentity,
    /// The handshake took longer than [`crate::limits::HANDSHAKE_TIMEOUT`].
    #[error("no answer within {:?}", crate::limits::HANDSHAKE_TIMEOUT)]
    Timeout,
    /// A hole can be punched only from a socket that listens.
    #[error("no listening socket of that address family to punch a hole from")]
    NoListener,
    /// The address has no /p2p part, which says whose connection is awaited.
    #[error("the address of a hole punch names no peer")]
    NoPeer,
    /// A hole punch to this address is going on.
    #[error("a hole punch to {0} is going on")]
    PunchInProgress(SocketAddr),
    /// As many hole punches go on as may.
    #[error("{} hole punches are going on", crate::limits::PUNCHES_MAX)]
    TooManyPunches,
}

/// Why a transport cannot be made; nothing runs then.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// No certificate can be made for the key.
    #[error("make the certificate: {0}")]
    Certificate(String),
    /// The TLS library refuses the configuration.
    #[error("configure TLS")]
    Tls(#[from] quinn::rustls::Error),
    /// The cipher suites lack the one that QUIC begins with.
    #[error("configure QUIC: {0}")]
    Quic(String),
}
