//! The items that the tasks of a session write, and what the tasks report.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use dnode_direct::Sender;
use dnode_protocol::frame::TensorHeader;
use dnode_protocol::invitation::Revocation;
use dnode_protocol::{PeerId, RunDifference, RunSpec};
use dnode_quic::BulkConnection;
use libp2p::swarm::ConnectionId;
use tokio::sync::mpsc;

use super::buffers::TensorBuffers;
use super::rate::{Rate, Rates};
use super::traffic::Traffic;
use crate::event::{Carrier, OffenceKind};
use crate::swarm::streams::StreamKind;

/// An item to write.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A complete control frame.
    Control(Vec<u8>),
    /// A whole tensor: the header of its frames, all elements, and a callback for when it is written.
    Tensor(TensorHeader, Bytes, Option<Written>),
}

/// A callback for when a tensor is written to its carrier. It is not called if that never happens.
pub struct Written(Box<dyn FnOnce() + Send>);

impl Written {
    /// `tell` is called from a task of the network and must not block.
    #[must_use]
    pub fn new(tell: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    /// Calls `first`, if there is one, and then `tell`, which must not block either.
    #[must_use]
    pub fn after(first: Option<Self>, tell: impl FnOnce() + Send + 'static) -> Self {
        Self::new(move || {
            first.into_iter().for_each(Self::tell);
            tell();
        })
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

/// The stream that a report is about, with its byte counters, the bounds on its rate, and the buffers of
/// its tensors.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) peer: PeerId,
    /// Number of the session; a report of an earlier session is ignored.
    pub(crate) session: u64,
    /// The carrier that the stream runs on.
    pub(crate) via: Via,
    /// The kind of that carrier, for the size of frames on the wire.
    pub(crate) carrier: Carrier,
    pub(crate) kind: StreamKind,
    /// Number of the stream within the session.
    pub(crate) stream: u64,
    /// The byte counters of the peer and of all peers.
    pub(crate) traffic: [Arc<Traffic>; 2],
    /// The bounds on the rate of tensors, shared by all peers.
    pub(crate) rates: Arc<Rates>,
    /// The buffers of tensors, shared by all peers.
    pub(crate) buffers: TensorBuffers,
    /// The rate that a relay on the way lets through, if it sets one.
    pub(crate) circuit: Option<Arc<Rate>>,
}

/// What a task reports.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// The peer said which run it is in; the reader waits to be released.
    Hello {
        origin: Origin,
        /// The run and the settings of the peer.
        specs: Box<[RunSpec; 2]>,
        incarnation: u64,
        direct_port: u16,
        /// The bytes of the peer's chain of certificates; they were checked to be one.
        chain: Vec<u8>,
    },
    /// The peer says who was removed from the run.
    Revocations { origin: Origin, statements: Vec<Revocation> },
    /// A reader ended.
    ReaderEnded { origin: Origin, end: ReaderEnd },
    /// A bulk connection that was asked for is open, or cannot be had.
    BulkOpened { peer: PeerId, session: u64, result: Result<BulkConnection, dnode_quic::Error> },
    /// A direct path that was asked for is open, or cannot be had.
    DirectOpened { peer: PeerId, session: u64, result: Result<Sender, dnode_direct::Error> },
    /// The process of a peer on this host has ended.
    ProcessEnded { peer: PeerId, session: u64 },
    /// A writer ended and gives back its queue; `left` says whether it was asked to.
    WriterEnded { origin: Origin, queue: mpsc::Receiver<Outgoing>, left: bool },
}

/// Why a reader ended.
#[derive(Debug)]
pub(crate) enum ReaderEnd {
    /// The peer ended the stream between two frames; `goodbye` says whether the last one was a goodbye.
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

/// The carrier that a stream of frames runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A stream of this libp2p connection.
    Stream(ConnectionId),
    /// A bulk connection.
    Quic,
    /// A direct path.
    Direct,
}

impl Via {
    pub(crate) const fn connection(self) -> Option<ConnectionId> {
        match self {
            Self::Stream(connection) => Some(connection),
            Self::Quic | Self::Direct => None,
        }
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

    pub(super) fn count(&self, bytes: usize) {
        self.traffic.iter().for_each(|t| t.add_received(bytes));
    }
}
