//! Raw connections for tensors: ALPN `dnode-bulk/1` on the sockets that libp2p listens on.
//!
//! Whoever can be reached for libp2p can be reached for bulk, through the same NAT mapping. Both
//! ends prove the same identities as there.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::AsyncRead;
use libp2p_identity::PeerId;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, WriteError};

use crate::config::Purpose;
use crate::connection::{CLOSED, dial};
use crate::endpoints::Endpoints;
use crate::error::Error;
use crate::limits::SLICE_BYTES_MAX;
use crate::socket::Buffers;

/// Opens bulk connections from the sockets of a [`crate::Transport`]; clones share them.
#[derive(Clone, Debug)]
pub struct Bulk {
    endpoints: Arc<Endpoints>,
}

impl Bulk {
    pub(crate) const fn new(endpoints: Arc<Endpoints>) -> Self {
        Self { endpoints }
    }

    /// Opens a connection beside the newest libp2p connection to `peer`: from the same socket to
    /// where that connection ends now, so through the same NAT mapping.
    ///
    /// # Errors
    /// [`Error::NotConnected`] when there is none, [`Error::Unsupported`] when the other end speaks
    /// QUIC but no bulk, [`Error::WrongPeer`], [`Error::Timeout`], or what the network says; there
    /// is no connection then.
    pub async fn open_beside(&self, peer: PeerId) -> Result<BulkConnection, Error> {
        let (endpoint, remote) = self.endpoints.reach(peer).ok_or(Error::NotConnected)?;
        let to = (&endpoint, remote);
        let dialled = dial(&self.endpoints.config, to, Some(peer), Purpose::Bulk).await;
        let (peer, connection) = dialled?;
        Ok(BulkConnection::new(connection, peer))
    }

    /// The smallest buffers of the UDP sockets opened so far; `None` before the first.
    #[must_use]
    pub fn buffers(&self) -> Option<Buffers> {
        self.endpoints.buffers()
    }
}

/// One bulk connection; clones are the same connection, and the last one closes it.
#[derive(Clone, Debug)]
pub struct BulkConnection {
    connection: quinn::Connection,
    peer: PeerId,
}

impl BulkConnection {
    pub(crate) const fn new(connection: quinn::Connection, peer: PeerId) -> Self {
        Self { connection, peer }
    }

    /// The proven identity of the other end.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Where the other end is now.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Smoothed round-trip time.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.connection.rtt()
    }

    /// Packets taken for lost so far; what they carried was sent again.
    #[must_use]
    pub fn lost_packets(&self) -> u64 {
        self.connection.stats().path.lost_packets
    }

    /// Longest datagram that the path was found to carry, bytes of UDP payload.
    #[must_use]
    pub fn datagram_bytes(&self) -> u16 {
        self.connection.stats().path.current_mtu
    }

    /// A stream to write to; waits while the other end has as many as it allows.
    ///
    /// # Errors
    /// [`ConnectionError`]; the connection is of no more use.
    pub async fn open(&self) -> Result<BulkSend, ConnectionError> {
        self.connection.open_uni().await.map(|send| BulkSend { send })
    }

    /// The next stream that the other end has opened to write to.
    ///
    /// # Errors
    /// [`ConnectionError`]; the connection is of no more use.
    pub async fn accept(&self) -> Result<BulkReceive, ConnectionError> {
        self.connection.accept_uni().await.map(|receive| BulkReceive { receive })
    }

    /// Closes at once; what is on its way is lost.
    pub fn close(&self) {
        self.connection.close(CLOSED, &[]);
    }

    /// Waits for the end, and says why it came.
    pub async fn closed(&self) -> ConnectionError {
        self.connection.closed().await
    }
}

/// The writing end of a stream. Dropping it ends the stream; what was written still arrives.
#[derive(Debug)]
pub struct BulkSend {
    send: SendStream,
}

impl BulkSend {
    /// Writes `bytes` without copying them, in slices of at most
    /// [`SLICE_BYTES_MAX`]; waits while flow control
    /// or the congestion window is full.
    ///
    /// # Errors
    /// [`WriteError`]; the stream is of no more use.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let slice = bytes.split_to(bytes.len().min(SLICE_BYTES_MAX));
            self.send.write_chunk(slice).await?;
        }
        Ok(())
    }

    /// Ends the stream; what was written still arrives.
    pub fn finish(&mut self) {
        // The one error says that it was finished or reset before.
        let _ = self.send.finish();
    }

    /// Waits until the other end has all bytes of a finished stream; false when it does not want
    /// them or the connection ended.
    pub async fn delivered(&mut self) -> bool {
        matches!(self.send.stopped().await, Ok(None))
    }
}

/// The reading end of a stream. Dropping it tells the other end to stop.
#[derive(Debug)]
pub struct BulkReceive {
    receive: RecvStream,
}

impl BulkReceive {
    /// The next bytes as they came, at most [`SLICE_BYTES_MAX`]; `None` at the end.
    ///
    /// # Errors
    /// [`ReadError`]; the stream is of no more use.
    pub async fn read(&mut self) -> Result<Option<Bytes>, ReadError> {
        let chunk = self.receive.read_chunk(SLICE_BYTES_MAX, true).await?;
        Ok(chunk.map(|chunk| chunk.bytes))
    }
}

impl AsyncRead for BulkReceive {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.receive.poll_read(context, bytes));
        Poll::Ready(result.map_err(io::Error::from))
    }
}
