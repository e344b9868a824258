//! The tasks that read one stream each.

use dnode_protocol::frame::{
    CONTROL_HEADER_BYTES, ControlHeader, DecodeError, TENSOR_HEADER_BYTES, TENSOR_MAGIC,
    TensorHeader, decode_control,
};
use dnode_protocol::invitation::Revocation;
use dnode_protocol::{Message, RunDifference};
use futures::{AsyncRead, AsyncReadExt};
use libp2p::Stream;
use tokio::sync::{mpsc, oneshot};

use super::buffers::Assembly;
use super::rate::{PIECE_BYTES, pass, wire_bytes};
use super::report::{Origin, ReaderEnd, SessionEvent};
use crate::copies::COPY;
use crate::event::{NetworkEvent, OffenceKind};
use crate::swarm::streams::StreamKind;

/// Splits a tensor into frames: the header bytes and the slice of the payload of each.
pub(crate) fn frames(
    header: TensorHeader,
    payload: &[u8],
) -> impl Iterator<Item = ([u8; TENSOR_HEADER_BYTES], &[u8])> {
    header.frames(payload).map(|(piece, slice)| (piece.encode(slice), slice))
}

/// Reads one stream to its end, and reports the end.
pub(crate) async fn read(
    stream: Stream,
    origin: Origin,
    release: oneshot::Receiver<()>,
    events: mpsc::Sender<NetworkEvent>,
    links: mpsc::Sender<SessionEvent>,
) {
    let mut reader = Reader { stream, origin, events };
    let result = match reader.origin.kind {
        StreamKind::Control => reader.control(release, &links).await,
        StreamKind::Bulk => reader.bulk(release).await,
    };
    let (Ok(end) | Err(end)) = result;
    let origin = reader.origin;
    // An error means that the network has stopped.
    let _ = links.send(SessionEvent::ReaderEnded { origin, end }).await;
}

struct Reader {
    stream: Stream,
    origin: Origin,
    events: mpsc::Sender<NetworkEvent>,
}

impl Reader {
    async fn control(
        &mut self,
        release: oneshot::Receiver<()>,
        links: &mpsc::Sender<SessionEvent>,
    ) -> Result<ReaderEnd, ReaderEnd> {
        match self.message().await? {
            None => return Ok(ReaderEnd::Finished { goodbye: false }),
            Some(Message::Hello { run, settings, incarnation, direct_port, chain }) => {
                let (origin, specs) = (self.origin.clone(), Box::new([run, settings]));
                let hello = SessionEvent::Hello { origin, specs, incarnation, direct_port, chain };
                links.send(hello).await.map_err(|_| ReaderEnd::Ignored)?;
            }
            Some(other) => return Err(unexpected(&other, "before hello")),
        }
        // An error means that the reader is not released: the runs differ, which the peer may say as
        // well, or the peer is not wanted.
        let released = release.await.is_ok();
        let mut goodbye = false;
        while let Some(message) = self.message().await? {
            goodbye = message == Message::Goodbye;
            match message {
                Message::Refuse { field, .. } if field == COPY => {
                    let how = format!("peer {} meets both", self.origin.peer.short());
                    self.tell(NetworkEvent::Copied { how }).await?;
                }
                Message::Refuse { field, ours, theirs } => {
                    return Ok(ReaderEnd::Refused(RunDifference {
                        field,
                        ours: theirs,
                        theirs: ours,
                    }));
                }
                // They are signed, so it does not matter whether this peer wants the one that sends them.
                Message::Revocations { statements } => {
                    let origin = self.origin.clone();
                    // The decoder has read them once, and refused what it could not read.
                    let statements = Revocation::from_bytes(&statements).unwrap_or_default();
                    let told = links.send(SessionEvent::Revocations { origin, statements });
                    told.await.map_err(|_| ReaderEnd::Ignored)?;
                }
                Message::Hello { .. } => return Err(unexpected(&message, "twice")),
                Message::Heartbeat(_)
                | Message::Goodbye
                | Message::Propose { .. }
                | Message::Accept { .. }
                | Message::Busy { .. }
                | Message::LeftOut { .. }
                | Message::Stale { .. }
                | Message::Ack { .. }
                | Message::Abort { .. }
                | Message::Aborted { .. }
                | Message::Pull { .. }
                | Message::Snapshot { .. }
                | Message::Have { .. }
                | Message::Fetch { .. }
                | Message::Probe { .. }
                | Message::Alive { .. }
                | Message::Rack { .. }
                | Message::Summaries { .. }
                | Message::Part(_) => {
                    if released {
                        let from = self.origin.peer;
                        self.tell(NetworkEvent::Message { from, message }).await?;
                    }
                }
            }
        }
        Ok(ReaderEnd::Finished { goodbye })
    }

    async fn bulk(&mut self, release: oneshot::Receiver<()>) -> Result<ReaderEnd, ReaderEnd> {
        // Until the handshake is done, flow control keeps the bytes at the sender.
        release.await.map_err(|_| ReaderEnd::Ignored)?;
        let mut assembly = Assembly::new(&self.origin.buffers);
        while tensor(&mut self.stream, &self.origin, &mut assembly, &self.events).await? {}
        Ok(ReaderEnd::Finished { goodbye: false })
    }

    /// The next message, `None` at the end of the stream.
    async fn message(&mut self) -> Result<Option<Message>, ReaderEnd> {
        let mut bytes = [0; CONTROL_HEADER_BYTES];
        if !fill_or_end(&mut self.stream, &mut bytes).await? {
            return Ok(None);
        }
        message(&mut self.stream, &self.origin, bytes).await.map(Some)
    }

    async fn tell(&mut self, event: NetworkEvent) -> Result<(), ReaderEnd> {
        let sent = self.events.send(event).await;
        sent.map_err(|_| ReaderEnd::Ignored)
    }
}

/// Whether the message is one of those by which two peers agree on an exchange. It may come before or
/// after what else its sender says.
pub(crate) const fn is_of_exchange(message: &Message) -> bool {
    matches!(
        message,
        Message::Propose { .. }
            | Message::Accept { .. }
            | Message::Busy { .. }
            | Message::LeftOut { .. }
            | Message::Stale { .. }
            | Message::Ack { .. }
            | Message::Abort { .. }
            | Message::Aborted { .. }
    )
}

/// Reads the message whose header is there.
async fn message<S: AsyncRead + Unpin>(
    stream: &mut S,
    origin: &Origin,
    bytes: [u8; CONTROL_HEADER_BYTES],
) -> Result<Message, ReaderEnd> {
    let header = ControlHeader::decode(bytes).map_err(offence)?;
    let mut body = vec![0; header.body_bytes];
    fill(stream, &mut body).await?;
    origin.count(bytes.len() + body.len());
    decode_control(&body).map_err(offence)
}

/// Reads one frame of a path inside a host and hands it on: of a tensor, or a message of an exchange. False
/// when the path ended before it.
pub(crate) async fn message_or_tensor<S: AsyncRead + Unpin>(
    stream: &mut S,
    origin: &Origin,
    assembly: &mut Assembly,
    events: &mpsc::Sender<NetworkEvent>,
) -> Result<bool, ReaderEnd> {
    let mut first = [0; CONTROL_HEADER_BYTES];
    if !fill_or_end(stream, &mut first).await? {
        return Ok(false);
    }
    if first[0] == TENSOR_MAGIC[0] {
        tensor_behind(stream, origin, assembly, events, &first).await?;
        return Ok(true);
    }
    let message = message(stream, origin, first).await?;
    if !is_of_exchange(&message) {
        return Err(unexpected(&message, "among tensors"));
    }
    let from = origin.peer;
    let sent = events.send(NetworkEvent::Message { from, message }).await;
    sent.map_err(|_| ReaderEnd::Ignored)?;
    Ok(true)
}

/// Reads one tensor frame and hands it on; false when the stream ended before it.
pub(crate) async fn tensor<S: AsyncRead + Unpin>(
    stream: &mut S,
    origin: &Origin,
    assembly: &mut Assembly,
    events: &mpsc::Sender<NetworkEvent>,
) -> Result<bool, ReaderEnd> {
    let mut first = [0; CONTROL_HEADER_BYTES];
    let begins = fill_or_end(stream, &mut first).await?;
    if begins {
        tensor_behind(stream, origin, assembly, events, &first).await?;
    }
    Ok(begins)
}

/// Reads the tensor frame whose first bytes are there, and hands it on.
async fn tensor_behind<S: AsyncRead + Unpin>(
    stream: &mut S,
    origin: &Origin,
    assembly: &mut Assembly,
    events: &mpsc::Sender<NetworkEvent>,
    first: &[u8; CONTROL_HEADER_BYTES],
) -> Result<(), ReaderEnd> {
    let mut bytes = [0; TENSOR_HEADER_BYTES];
    let (begin, rest) = bytes.split_at_mut(first.len());
    begin.copy_from_slice(first);
    fill(stream, rest).await?;
    let (header, checksum) = TensorHeader::decode(&bytes).map_err(offence)?;
    let mut payload = assembly.room(&header);
    let download = origin.rates.download.as_ref();
    pass(download, wire_bytes(origin.carrier, bytes.len())).await;
    let most = if download.is_some() { PIECE_BYTES } else { payload.len().max(1) };
    for piece in payload.chunks_mut(most) {
        pass(download, wire_bytes(origin.carrier, piece.len())).await;
        fill(stream, piece).await?;
    }
    checksum.verify(&payload).map_err(offence)?;
    origin.count(bytes.len() + payload.len());
    let from = origin.peer;
    let sent = events.send(NetworkEvent::Tensor { from, header, payload }).await;
    sent.map_err(|_| ReaderEnd::Ignored)
}

/// Fills `bytes`; false when the stream ended before the first of them.
async fn fill_or_end<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes: &mut [u8],
) -> Result<bool, ReaderEnd> {
    let first = stream.read(bytes).await.map_err(ReaderEnd::Failed)?;
    if first > 0 {
        fill(stream, &mut bytes[first..]).await?;
    }
    Ok(first > 0)
}

async fn fill<S: AsyncRead + Unpin>(stream: &mut S, bytes: &mut [u8]) -> Result<(), ReaderEnd> {
    let result = stream.read_exact(bytes).await;
    result.map_err(ReaderEnd::Failed)
}

fn unexpected(message: &Message, when: &str) -> ReaderEnd {
    ReaderEnd::Offence(OffenceKind::Unexpected, format!("{} {when}", message.name()))
}

fn offence(error: DecodeError) -> ReaderEnd {
    let kind = match &error {
        DecodeError::TooLong(_) | DecodeError::Count { .. } => OffenceKind::Oversize,
        DecodeError::Checksum => OffenceKind::Checksum,
        DecodeError::Version(_)
        | DecodeError::Body(_)
        | DecodeError::Message(_)
        | DecodeError::Magic(_)
        | DecodeError::Leg(_)
        | DecodeError::Codec(_)
        | DecodeError::Reserved(_)
        | DecodeError::Fragment(_)
        | DecodeError::Elements { .. }
        | DecodeError::Range { .. }
        | DecodeError::Length { .. } => OffenceKind::Garbage,
    };
    let mut detail = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        detail.push_str(": ");
        detail.push_str(&next.to_string());
        cause = next.source();
    }
    ReaderEnd::Offence(kind, detail)
}
