//! The task that writes what is queued for a peer, on any kind of carrier.

use std::io;

use bytes::Bytes;
use dnode_direct::{Kind, Sender};
use futures::AsyncWriteExt;
use libp2p::Stream;
use tokio::sync::{mpsc, oneshot};

use super::bulk::BulkStreams;
use super::rate::{PIECE_BYTES, pass, wire_bytes};
use super::reader::frames;
use super::report::{Origin, Outgoing, SessionEvent};
use crate::event::Carrier;
use crate::swarm::streams::StreamKind;

/// What a writer writes to.
pub(crate) enum FrameSink {
    /// A libp2p stream.
    Stream(Stream),
    /// A bulk connection.
    Quic(BulkStreams),
    /// A direct path; `None` once it is finished.
    Direct(Option<Sender>),
}

impl FrameSink {
    /// What carries the tensors.
    pub(crate) fn carrier(&self) -> Carrier {
        match self {
            Self::Direct(Some(sender)) => Carrier::Direct(sender.kind()),
            Self::Quic(_) => Carrier::Quic,
            Self::Stream(_) | Self::Direct(None) => Carrier::Stream,
        }
    }

    async fn write(&mut self, head: &[u8], body: Bytes) -> io::Result<()> {
        match self {
            Self::Stream(stream) => {
                stream.write_all(head).await?;
                stream.write_all(&body).await
            }
            Self::Quic(streams) => streams.write(head, body).await,
            Self::Direct(Some(sender)) => sender.write(head, &body).await,
            Self::Direct(None) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Notes the end of a frame: the next one takes the next stream of a bulk connection.
    fn next_frame(&mut self) {
        if let Self::Quic(streams) = self {
            streams.next();
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.flush().await,
            Self::Quic(_) | Self::Direct(_) => Ok(()),
        }
    }

    /// Waits until the carrier fails, where that can be known without writing. The future may be dropped
    /// at any time.
    async fn closed(&mut self) -> io::Error {
        match self {
            Self::Stream(_) | Self::Direct(None) => std::future::pending().await,
            Self::Quic(streams) => streams.closed().await,
            Self::Direct(Some(sender)) => sender.closed().await,
        }
    }

    /// Ends the carrier; what was written still arrives.
    async fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.close().await,
            Self::Quic(streams) => {
                streams.finish().await;
                Ok(())
            }
            Self::Direct(sender) => {
                if let Some(sender) = sender.take() {
                    sender.finish().await;
                }
                Ok(())
            }
        }
    }
}

/// How a writer begins and is stopped.
#[derive(Debug)]
pub(crate) struct Start {
    /// The first frame, for a control stream.
    pub(crate) hello: Option<Vec<u8>>,
    /// Is dropped when the writer shall stop at once and give back its queue.
    pub(crate) stop: oneshot::Receiver<()>,
    /// Gets a message when the writer shall finish what it writes, and then give back its queue.
    pub(crate) leave: oneshot::Receiver<()>,
}

/// Writes the hello, if any, and then what is queued. It ends when the queue ends, when the writer is
/// asked to leave, when the sink fails, or when `stop` is dropped. In the first two cases, what was
/// written is delivered.
pub(crate) async fn write(
    mut sink: FrameSink,
    origin: Origin,
    mut queue: mpsc::Receiver<Outgoing>,
    links: mpsc::Sender<SessionEvent>,
    Start { hello, stop, leave }: Start,
) {
    let mut left = false;
    tokio::select! {
        result = write_all(&mut sink, &origin, hello, &mut queue, leave) => match result {
            Ok(leaving) => left = leaving,
            Err(error) => {
                tracing::debug!(peer = ?origin.peer, kind = %origin.kind, %error, "write failed");
            }
        },
        // The owner keeps the other end of `stop` until the session ends.
        _ = stop => {}
    }
    if let FrameSink::Quic(streams) = &sink {
        streams.close();
    }
    // An error means that the network has stopped.
    let _ = links.send(SessionEvent::WriterEnded { origin, queue, left }).await;
}

/// Returns whether the writer was asked to leave.
async fn write_all(
    sink: &mut FrameSink,
    origin: &Origin,
    hello: Option<Vec<u8>>,
    queue: &mut mpsc::Receiver<Outgoing>,
    mut leave: oneshot::Receiver<()>,
) -> io::Result<bool> {
    if let Some(frame) = hello {
        sink.write(&frame, Bytes::new()).await?;
        sink.flush().await?;
        origin.sent(frame.len());
    }
    let mut left = false;
    loop {
        let outgoing = tokio::select! {
            // Where it is to leave, what waits goes by the other stream.
            biased;
            asked = &mut leave => {
                left = asked.is_ok();
                break;
            }
            // The failure is noticed here, so that the next tensor does not take a dead connection.
            error = sink.closed() => return Err(error),
            outgoing = queue.recv() => outgoing,
        };
        match outgoing {
            None => break,
            // A path inside the host has failed; messages are repeated as after a lost connection.
            Some(Outgoing::Control(_)) if !takes_messages(origin) => {}
            Some(Outgoing::Control(frame)) => {
                sink.write(&frame, Bytes::new()).await?;
                origin.sent(frame.len());
            }
            Some(Outgoing::Tensor(header, payload, written)) => {
                for (head, slice) in frames(header, &payload) {
                    frame(sink, origin, &head, payload.slice_ref(slice)).await?;
                }
                if let Some(written) = written {
                    written.tell();
                }
            }
        }
        if queue.is_empty() {
            sink.flush().await?;
        }
    }
    sink.finish().await?;
    Ok(left)
}

/// Whether messages may be written there.
fn takes_messages(origin: &Origin) -> bool {
    origin.kind == StreamKind::Control || origin.carrier == Carrier::Direct(Kind::Memory)
}

/// Writes one frame of a tensor, no faster than the configured rate.
async fn frame(
    sink: &mut FrameSink,
    origin: &Origin,
    head: &[u8],
    mut body: Bytes,
) -> io::Result<()> {
    let length = head.len() + body.len();
    let bounds = [origin.rates.upload.as_ref(), origin.circuit.as_deref()];
    let bounded = bounds.iter().any(Option::is_some);
    let mut head = head;
    while !body.is_empty() {
        let most = if bounded { PIECE_BYTES } else { body.len() };
        let piece = body.split_to(most.min(body.len()));
        for bound in bounds {
            pass(bound, wire_bytes(origin.carrier, head.len() + piece.len())).await;
        }
        sink.write(head, piece).await?;
        head = &[];
    }
    sink.next_frame();
    origin.sent(length);
    Ok(())
}
