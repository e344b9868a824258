//! A libp2p transport written on quinn: libp2p connections and raw bulk connections on one UDP
//! socket.
//!
//! ```text
//!   libp2p swarm                                          owner of tensors
//!      │ listen, dial                                        │ Bulk::open_beside
//!   Transport ◀─ arrivals ─┐                 ┌─ queue ─▶ BulkConnection
//!      │               listener task: which protocol?        │
//!      │               libp2p ┴ dnode-bulk/1                 │
//!      └───────────────── Endpoints: one quinn endpoint per listening address ─── UDP
//! ```
//!
//! On the wire it is libp2p's QUIC: version 1, ALPN `libp2p`, certificates of the libp2p TLS
//! specification, one substream per bidirectional stream. It owns what a stock transport keeps to
//! itself: order of ciphers, windows, socket buffers, and a second protocol on the same sockets, so
//! that one hole through a NAT serves both.

mod address;
mod bulk;
mod config;
mod congestion;
mod connection;
mod endpoints;
mod error;
pub mod limits;
mod listener;
mod punch;
mod socket;
mod substream;
pub mod tls;
mod transport;

pub use address::is_near;
pub use bulk::{Bulk, BulkConnection, BulkReceive, BulkSend};
pub use connection::Connection;
pub use error::{Error, SetUpError};
pub use quinn::{ConnectionError, ReadError, WriteError};
pub use socket::Buffers;
pub use substream::Substream;
pub use transport::Transport;
