//! Tensors on a bulk connection: frames in turns on several streams, whose windows add up.
//!
//! Frame `i` travels on stream `i mod` [`BULK_STREAMS`], in both ends' order, so the frames keep
//! their order although one stream's window bounds what is on the way.

use std::io;

use bytes::Bytes;
use dnode_quic::{Bulk, BulkConnection, BulkSend};
use libp2p::PeerId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::event::NetworkEvent;
use crate::limits::{BULK_OPEN_MAX, BULK_STREAMS};
use crate::link::{LinkEvent, Origin, Outgoing, ReaderEnd, frames, tensor};
use crate::rate::{PIECE_BYTES, pass};
use crate::service::{Service, from_libp2p};
use crate::streams::StreamKind;

impl Service {
    /// A bulk connection that was asked for, or why there is none: then a stream carries tensors.
    pub(crate) fn bulk_opened(
        &mut self,
        origin: Origin,
        result: Result<BulkConnection, dnode_quic::Error>,
    ) {
        let peer = origin.peer;
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        match result {
            Ok(connection) => session.opened_bulk(origin, connection),
            Err(error) => {
                tracing::debug!(%peer, %error, "no bulk connection");
                session.no_bulk();
                self.open(peer, StreamKind::Bulk);
            }
        }
    }

    /// A bulk connection that a peer opened; nobody's is closed.
    pub(crate) fn bulk_arrived(&mut self, connection: BulkConnection) {
        let peer = from_libp2p(connection.peer());
        let Some(session) = peer.and_then(|peer| self.sessions.get_mut(&peer)) else {
            connection.close();
            return;
        };
        let release = session.accept_bulk(connection);
        self.release(release.into_iter().collect());
    }
}

/// Opens a bulk connection to a peer that a QUIC connection leads to, and reports it.
pub(crate) async fn open(bulk: Bulk, peer: PeerId, origin: Origin, links: mpsc::Sender<LinkEvent>) {
    let result = timeout(BULK_OPEN_MAX, bulk.open_beside(peer)).await;
    let result = result.unwrap_or(Err(dnode_quic::Error::Timeout));
    // An error means that the network has stopped.
    let _ = links.send(LinkEvent::BulkOpened { origin, result }).await;
}

/// Writes the tensors that are queued until the queue ends (what was written is then delivered), the
/// connection fails, or `stop` is dropped.
pub(crate) async fn write(
    connection: BulkConnection,
    origin: Origin,
    mut queue: mpsc::Receiver<Outgoing>,
    links: mpsc::Sender<LinkEvent>,
    stop: oneshot::Receiver<()>,
) {
    tokio::select! {
        result = write_all(&connection, &origin, &mut queue) => {
            if let Err(error) = result {
                tracing::debug!(peer = ?origin.peer, %error, "bulk connection failed");
            }
        }
        // The owner keeps it until the session ends.
        _ = stop => {}
    }
    connection.close();
    // An error means that the network has stopped.
    let _ = links.send(LinkEvent::WriterEnded { origin, queue }).await;
}

async fn write_all(
    connection: &BulkConnection,
    origin: &Origin,
    queue: &mut mpsc::Receiver<Outgoing>,
) -> io::Result<()> {
    let mut streams: Vec<BulkSend> = Vec::with_capacity(BULK_STREAMS);
    let upload = origin.rates.upload.as_ref();
    let mut turn = 0;
    loop {
        let outgoing = tokio::select! {
            outgoing = queue.recv() => outgoing,
            // Noticed here, so that the next tensor finds a connection that lives.
            error = connection.closed() => return Err(error.into()),
        };
        let Some(outgoing) = outgoing else { break };
        let Outgoing::Tensor(header, payload) = outgoing else {
            continue;
        };
        let whole = Bytes::from_owner(payload);
        for (head, slice) in frames(header, &whole) {
            if streams.len() == turn {
                streams.push(connection.open().await?);
            }
            streams[turn].write(Bytes::copy_from_slice(&head)).await?;
            for piece in
                slice.chunks(if upload.is_some() { PIECE_BYTES } else { slice.len().max(1) })
            {
                pass(upload, piece.len()).await;
                streams[turn].write(whole.slice_ref(piece)).await?;
            }
            origin.traffic.iter().for_each(|t| t.add_sent(head.len() + slice.len()));
            turn = (turn + 1) % BULK_STREAMS;
        }
    }
    for stream in &mut streams {
        stream.finish();
    }
    for stream in &mut streams {
        // A peer that does not want the rest has left already.
        let _ = stream.delivered().await;
    }
    Ok(())
}

/// Reads one bulk connection to its end and reports that.
pub(crate) async fn read(
    connection: BulkConnection,
    origin: Origin,
    release: oneshot::Receiver<()>,
    events: mpsc::Sender<NetworkEvent>,
    links: mpsc::Sender<LinkEvent>,
) {
    let (Ok(end) | Err(end)) = read_all(&connection, &origin, release, &events).await;
    // An error means that the network has stopped.
    let _ = links.send(LinkEvent::ReaderEnded { origin, end }).await;
}

async fn read_all(
    connection: &BulkConnection,
    origin: &Origin,
    release: oneshot::Receiver<()>,
    events: &mpsc::Sender<NetworkEvent>,
) -> Result<ReaderEnd, ReaderEnd> {
    // Until the handshake is done flow control keeps the bytes at the sender.
    release.await.map_err(|_| ReaderEnd::Ignored)?;
    let mut streams = Vec::with_capacity(BULK_STREAMS);
    for turn in (0..BULK_STREAMS).cycle() {
        if streams.len() == turn {
            let accepted = connection.accept().await;
            streams.push(accepted.map_err(|error| ReaderEnd::Failed(error.into()))?);
        }
        if !tensor(&mut streams[turn], origin, events).await? {
            break;
        }
    }
    Ok(ReaderEnd::Finished { goodbye: false })
}
