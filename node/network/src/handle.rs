//! The owner's handle: sends without blocking, and asks the network to dial, disconnect or stop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dnode_direct::limits::{NEAR_MAX, SUBJECT_BYTES};
use dnode_direct::{Channel, Kind, is_near};
use dnode_protocol::frame::{EncodeError, TensorHeader, encode_control};
use dnode_protocol::invitation::Revocation;
use dnode_protocol::limits::{FRAGMENT_ELEMENTS_MAX, FRAGMENTS_MAX};
use dnode_protocol::{Message, PeerId};
use libp2p::Multiaddr;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::address::ip;
use crate::event::{Carrier, Connection};
use crate::io::buffers::TensorBuffers;
use crate::io::reader::is_of_exchange;
use crate::io::report::{Outgoing, Written};
use crate::io::traffic::{self, Traffic};
use crate::limits::{BULK_QUEUE_MAX, CONTROL_QUEUE_MAX};
use crate::slots::Slots;

/// One connected peer, as the handle needs it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) control: mpsc::Sender<Outgoing>,
    pub(crate) bulk: mpsc::Sender<Outgoing>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) address: Multiaddr,
    pub(crate) incarnation: u64,
    pub(crate) connection: Connection,
    pub(crate) carrier: Option<Carrier>,
    /// Round-trip times: the last one and the shortest one. A busy machine hardly lengthens the shortest
    /// one.
    pub(crate) rtt: Option<(Duration, Duration)>,
    /// Whether it or this peer only relays: nothing of the training is sent to it.
    pub(crate) aside: bool,
}

/// What the network's task and its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Whether channels may be opened.
    has_channels: bool,
    peers: Mutex<BTreeMap<PeerId, Entry>>,
    /// Who keeps a place among the peers.
    slots: Mutex<Slots>,
    /// Where readers put tensors.
    pub(crate) buffers: TensorBuffers,
    pub(crate) total: Arc<Traffic>,
}

impl Shared {
    pub(crate) fn new(has_channels: bool, peers_max: usize) -> Self {
        let (slots, buffers) = (Mutex::new(Slots::new(peers_max)), TensorBuffers::new());
        Self { has_channels, peers: Mutex::default(), slots, buffers, total: Arc::default() }
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        // As with the peers.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No peer is connected any longer.
    pub(crate) fn clear(&self) {
        self.peers().clear();
        self.slots().clear();
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<PeerId, Entry>> {
        // No code panics while it holds the lock; and if it did, the map would stay whole.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connected peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerStatus {
    /// The peer.
    pub peer: PeerId,
    /// The other end of the connection.
    pub address: Multiaddr,
    /// Which start of its process it is.
    pub incarnation: u64,
    /// Over which transport it is reached.
    pub connection: Connection,
    /// What carries the tensors to it; `None` before the first of them can be sent, and between two carriers.
    pub carrier: Option<Carrier>,
    /// Last measured round-trip time.
    pub rtt: Option<Duration>,
    /// Bytes of frames since it was connected.
    pub bytes: traffic::Bytes,
}

/// Why something was not queued; nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The peer is not connected.
    #[error("send to {0}: it is not connected")]
    NotConnected(PeerId),
    /// The peer takes data more slowly than it is sent.
    #[error("send to {peer}: {waiting} {what} wait already")]
    QueueFull {
        /// The peer.
        peer: PeerId,
        /// What waits in the queue.
        what: &'static str,
        /// The bound of the queue.
        waiting: usize,
    },
    /// The message exceeds a limit of the protocol.
    #[error("send to {0}")]
    Encode(PeerId, #[source] EncodeError),
    /// The header does not describe the payload, or exceeds a limit of the protocol.
    #[error(
        "send a tensor: {payload_bytes} bytes of payload do not fit the {elements} elements of fragment {fragment}"
    )]
    Tensor {
        /// Length of the payload.
        payload_bytes: usize,
        /// Elements that the header names.
        elements: u32,
        /// Fragment that the header names.
        fragment: u32,
    },
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Too many commands wait.
    #[error("command the network: {} commands wait already", crate::limits::COMMANDS_MAX)]
    QueueFull,
    /// The network has stopped.
    #[error("command the network: it has stopped")]
    Stopped,
}

/// Why a channel to a peer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The command was not taken.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The channel could not be opened.
    #[error("open a channel to {0}")]
    Open(PeerId, #[source] dnode_direct::Error),
}

impl ChannelError {
    /// Whether the peer has answered, but from further away than channels reach.
    #[must_use]
    pub const fn is_far(&self) -> bool {
        matches!(self, Self::Open(_, dnode_direct::Error::Far { .. }))
    }
}

/// What a handle asks of the network's task.
#[derive(Debug)]
pub(crate) enum Command {
    Dial(Multiaddr),
    OpenChannel(PeerId, [u8; SUBJECT_BYTES], oneshot::Sender<Result<Channel, dnode_direct::Error>>),
    Disconnect(PeerId, Duration),
    Revoke(Vec<Revocation>),
    TellDigest(String),
    Shutdown(oneshot::Sender<()>),
}

/// The owner's side of a running network. Clones act on the same network.
#[derive(Clone, Debug)]
pub struct NetworkHandle {
    pub(crate) me: PeerId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Sender<Command>,
}

impl NetworkHandle {
    /// This peer.
    #[must_use]
    pub const fn peer_id(&self) -> PeerId {
        self.me
    }

    /// Queues a message; never blocks.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send(&self, peer: PeerId, message: &Message) -> Result<(), SendError> {
        let frame = encode_control(message).map_err(|error| SendError::Encode(peer, error))?;
        let mut frame = Outgoing::Control(frame);
        if is_of_exchange(message)
            && let Some(queue) = self.queue_inside_host(peer)
        {
            match queue.try_send(frame) {
                Ok(()) => return Ok(()),
                // The network beside it takes it.
                Err(error) => frame = error.into_inner(),
            }
        }
        let queue = self.queue(peer, |entry| &entry.control)?;
        queue.try_send(frame).map_err(|error| refusal(peer, "messages", CONTROL_QUEUE_MAX, &error))
    }

    /// The queue of the tensors to a peer, where they travel inside this host and as fast as they can:
    /// messages beside them arrive sooner than through the network, and cost less.
    fn queue_inside_host(&self, peer: PeerId) -> Option<mpsc::Sender<Outgoing>> {
        let peers = self.shared.peers();
        let entry = peers.get(&peer).filter(|_| self.shared.has_channels)?;
        let inside = entry.carrier == Some(Carrier::Direct(Kind::Memory));
        inside.then(|| entry.bulk.clone())
    }

    /// Queues a whole tensor; never blocks. It is sent in frames of at most
    /// [`dnode_protocol::limits::TENSOR_PAYLOAD_BYTES_MAX`].
    ///
    /// `header`: describes the tensor; `offset` and `count` are filled in for each frame.
    /// `payload`: all its elements as the codec writes them.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_tensor(
        &self,
        peer: PeerId,
        header: TensorHeader,
        payload: Bytes,
    ) -> Result<(), SendError> {
        self.send_tensor_then(peer, header, payload, None)
    }

    /// Like [`NetworkHandle::send_tensor`], and tells when the tensor is written.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_tensor_then(
        &self,
        peer: PeerId,
        header: TensorHeader,
        payload: Bytes,
        written: Option<Written>,
    ) -> Result<(), SendError> {
        let elements = header.elements as usize;
        let fits = elements > 0
            && elements <= FRAGMENT_ELEMENTS_MAX
            && payload.len() == header.codec.payload_bytes(elements)
            && (header.fragment.0 as usize) < FRAGMENTS_MAX;
        if !fits {
            return Err(SendError::Tensor {
                payload_bytes: payload.len(),
                elements: header.elements,
                fragment: header.fragment.0,
            });
        }
        let queue = self.queue(peer, |entry| &entry.bulk)?;
        queue
            .try_send(Outgoing::Tensor(header, payload, written))
            .map_err(|error| refusal(peer, "tensors", BULK_QUEUE_MAX, &error))
    }

    /// Keeps the buffer of a tensor that was put together of its frames, to be used again when all others
    /// have dropped it.
    pub fn recycle(&self, tensor: &Bytes) {
        self.shared.buffers.keep(tensor);
    }

    /// For an owner that uses nothing of a tensor: puts a frame behind those `before` it, and recycles the
    /// whole after the last one.
    pub fn discard(&self, before: &mut BytesMut, header: &TensorHeader, frame: BytesMut) {
        let follows = before.len() == header.codec.payload_bytes(header.offset as usize);
        if header.offset > 0 && follows {
            before.unsplit(frame);
        } else {
            *before = frame;
        }
        if header.range().end == header.elements as usize {
            self.recycle(&std::mem::take(before).freeze());
        }
    }

    fn queue(
        &self,
        peer: PeerId,
        which: impl Fn(&Entry) -> &mpsc::Sender<Outgoing>,
    ) -> Result<mpsc::Sender<Outgoing>, SendError> {
        let peers = self.shared.peers();
        let entry = peers.get(&peer).filter(|entry| !entry.aside);
        let entry = entry.ok_or(SendError::NotConnected(peer))?;
        Ok(which(entry).clone())
    }

    /// Dials an address once; the outcome is [`crate::NetworkEvent::PeerUp`] or nothing.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn dial(&self, address: Multiaddr) -> Result<(), CommandError> {
        self.command(Command::Dial(address))
    }

    /// Disconnects a peer and neither accepts nor dials it for `back_off`.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn disconnect(&self, peer: PeerId, back_off: Duration) -> Result<(), CommandError> {
        self.command(Command::Disconnect(peer, back_off))
    }

    /// An exchange with a peer was applied, or it has sent numbers that were wanted. Who works keeps its
    /// place when others come for whom there is none.
    pub fn worked(&self, peer: PeerId) {
        self.shared.slots().worked(&peer);
    }

    /// The connected peers that have worked.
    #[must_use]
    pub fn workers(&self) -> Vec<PeerId> {
        self.shared.slots().workers().collect()
    }

    /// A peer is given something that takes its time, or belongs to this one: it is not put out for want of
    /// work in the next seconds.
    pub fn served(&self, peer: PeerId) {
        self.shared.slots().served(&peer, Instant::now());
    }

    /// Tells all members that these certificates are taken back, and hangs up on who came by them.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn revoke(&self, statements: Vec<Revocation>) -> Result<(), CommandError> {
        self.command(Command::Revoke(statements))
    }

    /// Tells this digest of the first step to peers that ask ([`crate::NetworkConfig::digest`]).
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn tell_digest(&self, digest: String) -> Result<(), CommandError> {
        self.command(Command::TellDigest(digest))
    }

    /// Whether channels may be opened: direct paths are on, and no rate is bounded. Channels would not
    /// keep to such a bound.
    #[must_use]
    pub fn has_channels(&self) -> bool {
        self.shared.has_channels
    }

    /// Whether [`NetworkHandle::open_channel`] may reach a peer: it is connected, at an address of
    /// this host or a local network, and no round trip shows that the path is longer than those.
    #[must_use]
    pub fn is_near(&self, peer: PeerId) -> bool {
        self.near(peer, |rtt| rtt.is_none_or(|least| least <= NEAR_MAX))
    }

    /// Like [`NetworkHandle::is_near`], but a round trip must have shown that the peer is near. A peer
    /// on this host needs no such proof.
    #[must_use]
    pub fn is_known_near(&self, peer: PeerId) -> bool {
        self.near(peer, |rtt| rtt.is_some_and(|least| least <= NEAR_MAX))
    }

    /// Whether a peer is connected directly and near: at an address of this host, or at one of a local
    /// network if `close` holds for its shortest round trip.
    fn near(&self, peer: PeerId, close: impl Fn(Option<Duration>) -> bool) -> bool {
        let peers = self.shared.peers();
        let Some(entry) = peers.get(&peer) else { return false };
        let ip = ip(&entry.address).filter(|_| entry.connection != Connection::Relayed);
        let close = close(entry.rtt.map(|(_, least)| least));
        ip.is_some_and(|ip| is_near(ip) && (close || ip.is_loopback()))
    }

    /// Opens a channel to a peer on this host or local network. The peer gets
    /// [`crate::NetworkEvent::Channel`]. Takes a few seconds at most.
    ///
    /// `subject`: what the channel is for, as both ends name it.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn open_channel(
        &self,
        peer: PeerId,
        subject: [u8; SUBJECT_BYTES],
    ) -> Result<Channel, ChannelError> {
        let (done, opened) = oneshot::channel();
        self.command(Command::OpenChannel(peer, subject, done))?;
        let opened = opened.await.map_err(|_| CommandError::Stopped)?;
        opened.map_err(|error| ChannelError::Open(peer, error))
    }

    fn command(&self, command: Command) -> Result<(), CommandError> {
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CommandError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => CommandError::Stopped,
        })
    }

    /// Takes leave of all that are connected, relays included.
    pub fn say_goodbye(&self) {
        let Ok(frame) = encode_control(&Message::Goodbye) else { return };
        for entry in self.shared.peers().values() {
            // The queue is full or gone: the end of the connection says the same.
            let _ = entry.control.try_send(Outgoing::Control(frame.clone()));
        }
    }

    /// The connected peers with which this one has to do.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let status = |(peer, entry): (&PeerId, &Entry)| PeerStatus {
            peer: *peer,
            address: entry.address.clone(),
            incarnation: entry.incarnation,
            connection: entry.connection,
            carrier: entry.carrier,
            rtt: entry.rtt.map(|(last, _)| last),
            bytes: entry.traffic.bytes(),
        };
        let peers = self.shared.peers();
        peers.iter().filter(|(_, entry)| !entry.aside).map(status).collect()
    }

    /// Counts bytes that travelled to and from peers outside the network's own connections.
    pub fn count(&self, bytes: traffic::Bytes) {
        self.shared.total.add(bytes);
    }

    /// Bytes of frames of all peers since the start, with those counted by [`NetworkHandle::count`].
    #[must_use]
    pub fn bytes(&self) -> traffic::Bytes {
        self.shared.total.bytes()
    }

    /// Sends what is queued, closes the connections, and stops. It takes at most
    /// [`crate::limits::SHUTDOWN_MAX`], whether or not the peers take the data. Resolves when it is
    /// done, or at once if the network has stopped.
    pub async fn shutdown(&self) {
        let (done, stopped) = oneshot::channel();
        if self.commands.send(Command::Shutdown(done)).await.is_ok() {
            // An error means that the network's task has ended, which is what was asked.
            let _ = stopped.await;
        }
    }
}

const fn refusal(
    peer: PeerId,
    what: &'static str,
    waiting: usize,
    error: &mpsc::error::TrySendError<Outgoing>,
) -> SendError {
    match error {
        mpsc::error::TrySendError::Full(_) => SendError::QueueFull { peer, what, waiting },
        mpsc::error::TrySendError::Closed(_) => SendError::NotConnected(peer),
    }
}
