//! Everything the network tells its owner.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use bytes::BytesMut;
use dnode_direct::Channel;
use dnode_protocol::frame::TensorHeader;
use dnode_protocol::invitation::{Revocation, Role};
use dnode_protocol::{Message, PeerId, RunDifference};
use dnode_quic::Buffers;
use libp2p::Multiaddr;

use crate::admission::InvitationUse;
use crate::swarm::streams::Path;

/// Over which transport a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// QUIC, directly.
    Quic,
    /// TCP with Noise and Yamux: the fall-back for QUIC.
    Tcp,
    /// Through a relay that lets tensors pass.
    Relayed,
}

impl Connection {
    pub(crate) const fn of(path: Path) -> Self {
        match path {
            Path::Quic => Self::Quic,
            Path::Tcp => Self::Tcp,
            Path::Relayed => Self::Relayed,
        }
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
            Self::Relayed => "relayed",
        })
    }
}

/// What carries the tensors to a peer, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carrier {
    /// A direct path inside this host or a local network.
    Direct(dnode_direct::Kind),
    /// A bulk connection beside the QUIC connection.
    Quic,
    /// A stream of the libp2p connection.
    Stream,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(kind) => kind.fmt(f),
            Self::Quic => f.write_str("QUIC"),
            Self::Stream => f.write_str("a libp2p stream"),
        }
    }
}

/// Why a peer is no longer connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// It said goodbye and ended its streams.
    Left,
    /// The last connection failed, or the peer closed it without a goodbye.
    Lost(String),
    /// Another start of its process took its place.
    Restarted,
    /// It broke the protocol; [`NetworkEvent::Offence`] came before.
    Offence,
    /// It found a difference in the run after all; [`NetworkEvent::Refused`] came before.
    Refused,
    /// The owner called [`crate::NetworkHandle::disconnect`].
    Disconnected,
    /// It did no work, and another peer wanted its place.
    PutOut,
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "it left",
            Self::Lost(cause) => return write!(f, "connection lost: {cause}"),
            Self::Restarted => "it started anew",
            Self::Offence => "it broke the protocol",
            Self::Refused => "refused",
            Self::Disconnected => "disconnected by this peer",
            Self::PutOut => "it did no work, and another one came",
        })
    }
}

/// How a peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffenceKind {
    /// A frame that cannot be read, is of another protocol version, or has a statement whose signature is
    /// none.
    Garbage,
    /// A frame longer than the limit.
    Oversize,
    /// A tensor whose checksum does not fit.
    Checksum,
    /// A message that does not belong here, such as anything before Hello or a second Hello.
    Unexpected,
    /// More streams than a peer may open.
    Streams,
}

impl fmt::Display for OffenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Garbage => "garbage",
            Self::Oversize => "oversize frame",
            Self::Checksum => "wrong checksum",
            Self::Unexpected => "unexpected message",
            Self::Streams => "too many streams",
        })
    }
}

/// Why a dialled peer and this one are not of one run, before either has said anything of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLetIn {
    /// That run is closed, and this peer has no secret.
    Closed,
    /// This run is closed, and that one is not, or no dnode of this version answers there.
    Open,
    /// Both runs are closed, and have different secrets.
    OtherSecret,
}

/// By which invitation of an owner a peer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invited {
    /// The owner.
    pub issuer: PeerId,
    /// Its number.
    pub number: u64,
    /// How many machines may come by it; 0 is no bound.
    pub uses: u8,
}

/// What the network tells its owner.
///
/// Events of one peer come in this order: `PeerUp`, then any `Message`, `Tensor` and `RoundTrip`, then
/// `PeerDown`, and so on. The frames of a tensor keep their order, and so do messages, but for those of
/// exchanges inside a host, which may come before or after others. There is no order between messages and
/// tensors, nor between two tensors while the carrier changes. When the last connection is lost while
/// another is being opened, data on its way may be lost.
#[derive(Debug)]
pub enum NetworkEvent {
    /// The network listens on an address, which others may dial; it is complete with this peer's id.
    Listening {
        /// The address.
        address: Multiaddr,
    },
    /// The network listens no more on an address that it had told.
    NotListening {
        /// The address.
        address: Multiaddr,
    },
    /// The real buffer sizes of the UDP sockets; [`Buffers::shortages`] says what limits them.
    SocketBuffers {
        /// The smallest of all sockets.
        buffers: Buffers,
    },
    /// A connected peer has opened a channel.
    Channel {
        /// The peer.
        peer: PeerId,
        /// The channel; its subject says what it is for.
        channel: Channel,
    },
    /// The addresses at which a connected peer says that it can be found.
    Found {
        /// The peer.
        peer: PeerId,
        /// Its addresses, with its name; at most
        /// [`ADDRESSES_PER_PEER_MAX`](crate::limits::ADDRESSES_PER_PEER_MAX).
        addresses: Vec<Multiaddr>,
        /// Where it is seen, whatever it says; `None` behind a relay.
        at: Option<IpAddr>,
    },
    /// A peer of the run is connected; data may be sent to it.
    PeerUp {
        /// The peer.
        peer: PeerId,
        /// The other end of the connection.
        address: Multiaddr,
        /// Which start of its process it is.
        incarnation: u64,
        /// What it may do: train, or observe.
        role: Role,
        /// By which invitation it came, in a run with owners: the first one of its chain.
        invitation: Option<Invited>,
        /// Over which transport it is reached.
        connection: Connection,
        /// Which settings differ that should agree, seen from here.
        differences: Vec<RunDifference>,
    },
    /// A member of the run is connected, and it or this peer only relays. Nothing but who was removed
    /// is said between the two.
    RelayUp {
        /// The member.
        peer: PeerId,
        /// The other end of the connection.
        address: Multiaddr,
        /// What it may do.
        role: Role,
    },
    /// Such a member is no longer connected.
    RelayDown {
        /// The member.
        peer: PeerId,
        /// Why.
        reason: DownReason,
    },
    /// A peer is no longer connected.
    PeerDown {
        /// The peer.
        peer: PeerId,
        /// Why.
        reason: DownReason,
    },
    /// A message of a peer arrived.
    Message {
        /// The peer.
        from: PeerId,
        /// The message; never a Hello or a Refuse.
        message: Message,
    },
    /// A piece of a tensor arrived whole.
    Tensor {
        /// The peer.
        from: PeerId,
        /// What it is; its limits were checked.
        header: TensorHeader,
        /// The bytes; their checksum was verified. Those of a tensor's frames lie one behind the other, so
        /// [`BytesMut::unsplit`] puts the tensor together without a copy.
        payload: BytesMut,
    },
    /// A peer broke the protocol; it was disconnected and is blocked for a while.
    Offence {
        /// The peer.
        peer: PeerId,
        /// How.
        kind: OffenceKind,
        /// What exactly.
        detail: String,
    },
    /// A peer is of another run, or has settings too far from this peer's. It was disconnected and is
    /// not dialled again.
    Refused {
        /// The peer.
        peer: PeerId,
        /// Where the runs differ, seen from here.
        difference: RunDifference,
        /// Whether this peer found the difference first.
        by_us: bool,
    },
    /// Somebody was removed from the run, and this peer hears of it for the first time.
    Revocations {
        /// What is new.
        new: Vec<Revocation>,
        /// All that this peer knows, as bytes to be kept.
        known: Vec<u8>,
        /// The owners of the run: what one says about another is a vote.
        owners: Vec<PeerId>,
    },
    /// Somebody came by an invitation whose uses are counted.
    Uses {
        /// All that this peer has counted, to be kept.
        known: Vec<InvitationUse>,
    },
    /// This peer is no longer a member of the run. It is not connected to any other.
    NoMember {
        /// Why.
        why: String,
    },
    /// A bootstrap address has led to a peer, which may be of another run.
    BootstrapReached {
        /// The configured address.
        address: Multiaddr,
        /// Who answered.
        peer: PeerId,
    },
    /// A bootstrap address did not answer; it will be dialled again.
    BootstrapUnreachable {
        /// The configured address.
        address: Multiaddr,
        /// Why.
        error: String,
        /// When it is dialled again.
        retry_in: Duration,
    },
    /// A bootstrap address led to a peer that does not take this one for a member of its run, or that
    /// is no member of this one's. It will be dialled again.
    NotLetIn {
        /// The configured address.
        address: Multiaddr,
        /// Why.
        why: NotLetIn,
    },
    /// Another process has the identity of this one: a copied data directory or machine.
    Copied {
        /// How it was met.
        how: String,
    },
    /// Two processes have the identity of this peer; the one that started last is kept.
    CopiedPeer {
        /// The peer.
        peer: PeerId,
    },
    /// A direct path to a connected peer ended, because one end closed it or the process at the other
    /// end ended.
    PathLost {
        /// The peer.
        peer: PeerId,
    },
    /// A peer answered a ping.
    RoundTrip {
        /// The peer.
        peer: PeerId,
        /// Round-trip time.
        rtt: Duration,
    },
}
