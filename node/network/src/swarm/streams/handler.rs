//! The part of the stream behaviour in one connection: negotiation, and the bounded inbound queue.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use libp2p::Stream;
use libp2p::core::upgrade::{InboundUpgrade, ReadyUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionHandler, ConnectionHandlerEvent, StreamUpgradeError, SubstreamProtocol,
};

use super::{OpenError, StreamKind};
use crate::limits::INBOUND_STREAMS_MAX;

/// What one connection tells the behaviour.
#[derive(Debug)]
pub enum Event {
    /// A stream that we asked for is open.
    Opened(StreamKind, Stream),
    /// The peer opened a stream.
    Accepted(StreamKind, Stream),
    /// A stream that we asked for cannot be had.
    OpenFailed(StreamKind, OpenError),
    /// The peer opened a stream beyond the bound.
    Rejected,
}

/// Accepts both kinds of stream and says which kind it was.
#[derive(Clone, Copy, Debug)]
pub struct Accept;

impl UpgradeInfo for Accept {
    type Info = StreamKind;
    type InfoIter = std::array::IntoIter<StreamKind, 2>;

    fn protocol_info(&self) -> Self::InfoIter {
        StreamKind::ALL.into_iter()
    }
}

impl InboundUpgrade<Stream> for Accept {
    type Output = (StreamKind, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, kind: StreamKind) -> Self::Future {
        ready(Ok((kind, stream)))
    }
}

/// Negotiates the streams of one connection.
#[derive(Debug, Default)]
pub struct Handler {
    /// Streams that the network has asked for and that are not requested yet; it asks for one of each
    /// kind at a time.
    wanted: VecDeque<StreamKind>,
    /// At most [`INBOUND_STREAMS_MAX`] inbound streams, and the results of the streams that were asked
    /// for.
    events: VecDeque<Event>,
    /// Inbound streams in `events`.
    inbound: usize,
    /// Whether a rejection waits to be reported: one report stands for several.
    rejected: bool,
}

impl Handler {
    fn accept(&mut self, kind: StreamKind, stream: Stream) {
        if self.inbound < INBOUND_STREAMS_MAX {
            self.inbound += 1;
            self.events.push_back(Event::Accepted(kind, stream));
        } else {
            self.rejected = true;
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = StreamKind;
    type ToBehaviour = Event;
    type InboundProtocol = Accept;
    type OutboundProtocol = ReadyUpgrade<StreamKind>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = StreamKind;

    fn listen_protocol(&self) -> SubstreamProtocol<Accept> {
        SubstreamProtocol::new(Accept, ())
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<ReadyUpgrade<StreamKind>, StreamKind, Event>> {
        // Only calls by the task of the connection add events, and the task polls after each.
        if let Some(event) = self.events.pop_front() {
            if matches!(event, Event::Accepted(..)) {
                self.inbound -= 1;
            }
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(event));
        }
        if std::mem::take(&mut self.rejected) {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(Event::Rejected));
        }
        if let Some(kind) = self.wanted.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                protocol: SubstreamProtocol::new(ReadyUpgrade::new(kind), kind),
            });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, kind: StreamKind) {
        self.wanted.push_back(kind);
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; only negotiated streams matter here"
    )]
    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, Accept, ReadyUpgrade<StreamKind>, (), StreamKind>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (kind, stream),
                ..
            }) => self.accept(kind, stream),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: stream,
                info: kind,
            }) => self.events.push_back(Event::Opened(kind, stream)),
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info: kind, error }) => {
                let error = match error {
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(kind),
                    StreamUpgradeError::Timeout => {
                        OpenError::Failed(kind, "no answer in time".to_owned())
                    }
                    StreamUpgradeError::Io(error) => OpenError::Failed(kind, error.to_string()),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                self.events.push_back(Event::OpenFailed(kind, error));
            }
            _ => {}
        }
    }
}
