//! The tasks that read one stream each, and what all tasks of a session report.

use std::io;
use std::sync::Arc;

use dnode_direct::Sender;
use dnode_protocol::frame::{
    CONTROL_HEADER_BYTES, ControlHeader, DecodeError, TENSOR_HEADER_BYTES, TensorHeader,
    decode_control,
};
use dnode_protocol::{Message, PeerId, RunDifference, RunSpec};
use dnode_quic::BulkConnection;
use futures::{AsyncRead, AsyncReadExt};
use libp2p::Stream;
use libp2p::swarm::ConnectionId;
use tokio::sync::{mpsc, oneshot};

use crate::copies::COPY;
use crate::event::{Carrier, NetworkEvent, OffenceKind};
use crate::handle::Traffic;
use crate::rate::{PIECE_BYTES, Rate, Rates, pass, wire_bytes};
use crate::session::Via;
use crate::streams::StreamKind;

/// Something to write.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A complete control frame.
    Control(Vec<u8>),
    /// A whole tensor: header of its frames, all elements, and who wants to know when it is written.
    Tensor(TensorHeader, Arc<[u8]>, Option<Written>),
}

/// What is done once a tensor is written to what carries it; left out where it never is.
pub struct Written(Box<dyn FnOnce() + Send>);

impl Written {
    /// `tell` is called from a task of the network and must not block.
    #[must_use]
    pub fn new(tell: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    pub(crate) fn tell(self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Written")
    }
}

/// Whose stream it is.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) peer: PeerId,
    /// Number of the session; a report of an earlier one is stale.
    pub(crate) session: u64,
    /// What it runs on.
    pub(crate) via: Via,
    /// What that is to the rates.
    pub(crate) carrier: Carrier,
    pub(crate) kind: StreamKind,
    /// Number of the stream within the session.
    pub(crate) stream: u64,
    /// Of the peer, and of all peers.
    pub(crate) traffic: [Arc<Traffic>; 2],
    /// Bounds of tensors, of all peers.
    pub(crate) rates: Arc<Rates>,
    /// What a relay on the way lets through.
    pub(crate) circuit: Option<Arc<Rate>>,
}

/// What a task reports.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The peer said which run it is in; the reader waits until it is released.
    Hello {
        origin: Origin,
        /// Run and settings.
        specs: Box<[RunSpec; 2]>,
        incarnation: u64,
        direct_port: u16,
    },
    /// A reader ended.
    ReaderEnded { origin: Origin, end: ReaderEnd },
    /// A bulk connection that was asked for is there, or cannot be had.
    BulkOpened { peer: PeerId, session: u64, result: Result<BulkConnection, dnode_quic::Error> },
    /// A direct path that was asked for is there, or cannot be had.
    DirectOpened { peer: PeerId, session: u64, result: Result<Sender, dnode_direct::Error> },
    /// A writer ended and gives back its queue; whether it was asked to.
    WriterEnded { origin: Origin, queue: mpsc::Receiver<Outgoing>, left: bool },
}

/// Why a reader ended.
#[derive(Debug)]
pub(crate) enum ReaderEnd {
    /// The peer ended the stream between two frames; whether the last one was a goodbye.
    Finished { goodbye: bool },
    /// The connection failed.
    Failed(io::Error),
    /// The peer refused us.
    Refused(RunDifference),
    /// The peer broke the protocol.
    Offence(OffenceKind, String),
    /// The owner of the network no longer listens.
    Ignored,
}

/// The frames of a tensor: header bytes and slice of the payload.
pub(crate) fn frames(
    header: TensorHeader,
    payload: &[u8],
) -> impl Iterator<Item = ([u8; TENSOR_HEADER_BYTES], &[u8])> {
    header.frames(payload).map(|(piece, slice)| (piece.encode(slice), slice))
}

/// Reads one stream to its end and reports that.
pub(crate) async fn read(
    stream: Stream,
    origin: Origin,
    release: oneshot::Receiver<()>,
    events: mpsc::Sender<NetworkEvent>,
    links: mpsc::Sender<LinkEvent>,
) {
    let mut reader = Reader { stream, origin, events };
    let result = match reader.origin.kind {
        StreamKind::Control => reader.control(release, &links).await,
        StreamKind::Bulk => reader.bulk(release).await,
    };
    let (Ok(end) | Err(end)) = result;
    let origin = reader.origin;
    // An error means that the network has stopped.
    let _ = links.send(LinkEvent::ReaderEnded { origin, end }).await;
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
        links: &mpsc::Sender<LinkEvent>,
    ) -> Result<ReaderEnd, ReaderEnd> {
        match self.message().await? {
            None => return Ok(ReaderEnd::Finished { goodbye: false }),
            Some(Message::Hello { run, settings, incarnation, direct_port }) => {
                let (origin, specs) = (self.origin.clone(), Box::new([run, settings]));
                let hello = LinkEvent::Hello { origin, specs, incarnation, direct_port };
                links.send(hello).await.map_err(|_| ReaderEnd::Ignored)?;
            }
            Some(other) => return Err(unexpected(&other, "before hello")),
        }
        // Not released: the run differs, which the peer may say as well, or the peer is not wanted.
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
        // Until the handshake is done flow control keeps the bytes at the sender.
        release.await.map_err(|_| ReaderEnd::Ignored)?;
        while tensor(&mut self.stream, &self.origin, &self.events).await? {}
        Ok(ReaderEnd::Finished { goodbye: false })
    }

    /// The next message, `None` at the end of the stream.
    async fn message(&mut self) -> Result<Option<Message>, ReaderEnd> {
        let mut bytes = [0; CONTROL_HEADER_BYTES];
        if !fill_or_end(&mut self.stream, &mut bytes).await? {
            return Ok(None);
        }
        let header = ControlHeader::decode(bytes).map_err(offence)?;
        let mut body = vec![0; header.body_bytes];
        fill(&mut self.stream, &mut body).await?;
        self.origin.count(bytes.len() + body.len());
        decode_control(&body).map(Some).map_err(offence)
    }

    async fn tell(&mut self, event: NetworkEvent) -> Result<(), ReaderEnd> {
        let sent = self.events.send(event).await;
        sent.map_err(|_| ReaderEnd::Ignored)
    }
}

impl Origin {
    /// The libp2p connection that it runs on.
    pub(crate) const fn connection(&self) -> Option<ConnectionId> {
        self.via.connection()
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.traffic.iter().for_each(|t| t.add_sent(bytes));
    }

    fn count(&self, bytes: usize) {
        self.traffic.iter().for_each(|t| t.add_received(bytes));
    }
}

/// Reads one tensor frame and hands it on; false when the stream ended before it.
pub(crate) async fn tensor<S: AsyncRead + Unpin>(
    stream: &mut S,
    origin: &Origin,
    events: &mpsc::Sender<NetworkEvent>,
) -> Result<bool, ReaderEnd> {
    let mut bytes = [0; TENSOR_HEADER_BYTES];
    if !fill_or_end(stream, &mut bytes).await? {
        return Ok(false);
    }
    let (header, checksum) = TensorHeader::decode(&bytes).map_err(offence)?;
    let mut payload = vec![0; header.payload_bytes()];
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
    sent.map_err(|_| ReaderEnd::Ignored)?;
    Ok(true)
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
