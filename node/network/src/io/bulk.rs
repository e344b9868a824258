//! Tensors on a bulk connection. Frames take several streams in turns, so that the windows of the
//! streams add up.
//!
//! Frame `i` travels on stream `i mod` [`BULK_STREAMS`], and both ends use the same order. So the frames
//! keep their order, although each stream has a window of its own.

use std::io;

use bytes::Bytes;
use dnode_quic::{Bulk, BulkConnection, BulkSend};
use libp2p::PeerId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::buffers::Assembly;
use super::reader::tensor;
use super::report::{Origin, ReaderEnd, SessionEvent};
use crate::event::NetworkEvent;
use crate::limits::{BULK_OPEN_MAX, BULK_STREAMS};

/// Opens a bulk connection to a peer to which a QUIC connection leads, and reports the result.
pub(crate) async fn open(
    bulk: Bulk,
    id: PeerId,
    (peer, session): (dnode_protocol::PeerId, u64),
    links: mpsc::Sender<SessionEvent>,
) {
    let result = timeout(BULK_OPEN_MAX, bulk.open_beside(id)).await;
    let result = result.unwrap_or(Err(dnode_quic::Error::Timeout));
    // An error means that the network has stopped.
    let _ = links.send(SessionEvent::BulkOpened { peer, session, result }).await;
}

/// The streams of a bulk connection that frames take in turns.
pub(crate) struct BulkStreams {
    connection: BulkConnection,
    streams: Vec<BulkSend>,
    turn: usize,
}

impl BulkStreams {
    pub(crate) fn new(connection: BulkConnection) -> Self {
        Self { connection, streams: Vec::with_capacity(BULK_STREAMS), turn: 0 }
    }

    /// Writes to the stream whose turn it is.
    pub(crate) async fn write(&mut self, head: &[u8], body: Bytes) -> io::Result<()> {
        if self.streams.len() == self.turn {
            self.streams.push(self.connection.open().await?);
        }
        let stream = &mut self.streams[self.turn];
        stream.write(Bytes::copy_from_slice(head)).await?;
        stream.write(body).await?;
        Ok(())
    }

    /// Moves on to the next stream.
    pub(crate) const fn next(&mut self) {
        self.turn = (self.turn + 1) % BULK_STREAMS;
    }

    pub(crate) async fn closed(&self) -> io::Error {
        self.connection.closed().await.into()
    }

    /// Ends the streams, and waits until the peer has everything.
    pub(crate) async fn finish(&mut self) {
        for stream in &mut self.streams {
            stream.finish();
        }
        for stream in &mut self.streams {
            // A peer that does not want the rest has left already.
            let _ = stream.delivered().await;
        }
    }

    pub(crate) fn close(&self) {
        self.connection.close();
    }
}

/// Reads one bulk connection to its end, and reports the end.
pub(crate) async fn read(
    connection: BulkConnection,
    origin: Origin,
    release: oneshot::Receiver<()>,
    events: mpsc::Sender<NetworkEvent>,
    links: mpsc::Sender<SessionEvent>,
) {
    let (Ok(end) | Err(end)) = read_all(&connection, &origin, release, &events).await;
    // An error means that the network has stopped.
    let _ = links.send(SessionEvent::ReaderEnded { origin, end }).await;
}

async fn read_all(
    connection: &BulkConnection,
    origin: &Origin,
    release: oneshot::Receiver<()>,
    events: &mpsc::Sender<NetworkEvent>,
) -> Result<ReaderEnd, ReaderEnd> {
    // Until the handshake is done, flow control keeps the bytes at the sender.
    release.await.map_err(|_| ReaderEnd::Ignored)?;
    let mut streams = Vec::with_capacity(BULK_STREAMS);
    let mut assembly = Assembly::new(&origin.buffers);
    for turn in (0..BULK_STREAMS).cycle() {
        if streams.len() == turn {
            let accepted = connection.accept().await;
            streams.push(accepted.map_err(|error| ReaderEnd::Failed(error.into()))?);
        }
        if !tensor(&mut streams[turn], origin, &mut assembly, events).await? {
            break;
        }
    }
    Ok(ReaderEnd::Finished { goodbye: false })
}
