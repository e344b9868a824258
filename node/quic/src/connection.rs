//! Connections: the handshake to its end, and the swarm's view of one.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use futures::future::BoxFuture;
use libp2p_core::StreamMuxer;
use libp2p_core::muxing::StreamMuxerEvent;
use libp2p_identity::PeerId;
use quinn::rustls::pki_types::CertificateDer;
use quinn::{ConnectionError, Endpoint, RecvStream, SendStream, TransportErrorCode, VarInt};
use tokio::time::{Instant, timeout_at};

use crate::address;
use crate::config::{Config, Purpose};
use crate::endpoints::{Endpoints, Live};
use crate::error::Error;
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::listener::Incomer;
use crate::substream::Substream;
use crate::tls;

/// Nothing is wrong: the owner has closed the connection.
pub(crate) const CLOSED: VarInt = VarInt::from_u32(0);

/// TLS's alert "no application protocol" (RFC 8446 §6.2).
const NO_PROTOCOL: u8 = 120;

/// Who is at the other end; the handshake has checked the certificate.
pub(crate) fn identified(connection: &quinn::Connection) -> Result<PeerId, Error> {
    let identity = connection.peer_identity().ok_or(Error::NoIdentity)?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>();
    let chain = chain.map_err(|_| Error::NoIdentity)?;
    tls::owner(&chain).ok_or(Error::NoIdentity)
}

/// Dials `remote` from `endpoint`, and refuses any peer but `expected` if one is.
pub(crate) async fn dial(
    config: &Config,
    (endpoint, remote): (&Endpoint, SocketAddr),
    expected: Option<PeerId>,
    purpose: Purpose,
) -> Result<(PeerId, quinn::Connection), Error> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let (config, verifier) = config.client((purpose, remote.ip()), expected)?;
    // quinn wants a name to show; libp2p shows none, so any does.
    let connecting = endpoint.connect_with(config, remote, "libp2p")?;
    let connection = match timeout_at(deadline, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            let wrong = verifier.wrong_peer().map(|obtained| Error::WrongPeer { obtained });
            return Err(wrong.unwrap_or_else(|| refusal(error, purpose)));
        }
        Err(_) => return Err(Error::Timeout),
    };
    Ok((identified(&connection)?, connection))
}

fn refusal(error: ConnectionError, purpose: Purpose) -> Error {
    match &error {
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::crypto(NO_PROTOCOL) =>
        {
            Error::Unsupported(purpose.name())
        }
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::ApplicationClosed(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => Error::Connection(error),
    }
}

/// Ends an inbound handshake.
pub(crate) async fn finish(
    endpoints: Arc<Endpoints>,
    incomer: Incomer,
) -> Result<(PeerId, Connection), Error> {
    let Incomer { connecting, endpoint, deadline, .. } = incomer;
    let connection = timeout_at(deadline, connecting).await.map_err(|_| Error::Timeout)??;
    let peer = identified(&connection)?;
    Ok((peer, Connection::new(endpoints.connected(peer, Live { connection, endpoint }))))
}

/// Both halves of a stream, when there is one.
type Opening = BoxFuture<'static, Result<(SendStream, RecvStream), ConnectionError>>;

/// A libp2p connection: QUIC streams are its substreams. Dropping it closes it.
pub struct Connection {
    live: Arc<Live>,
    remote: SocketAddr,
    inbound: Option<Opening>,
    outbound: Option<Opening>,
    closing: Option<BoxFuture<'static, ConnectionError>>,
}

impl Connection {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        let remote = live.connection.remote_address();
        Self { live, remote, inbound: None, outbound: None, closing: None }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("remote", &self.remote).finish_non_exhaustive()
    }
}

/// Goes on with an attempt, or with a new one by `begin`; a finished one is forgotten.
fn poll_stream<F>(
    attempt: &mut Option<Opening>,
    connection: &quinn::Connection,
    begin: impl FnOnce(quinn::Connection) -> F,
    context: &mut Context<'_>,
) -> Poll<Result<Substream, Error>>
where
    F: Future<Output = Result<(SendStream, RecvStream), ConnectionError>> + Send + 'static,
{
    let attempt_now = attempt.get_or_insert_with(|| begin(connection.clone()).boxed());
    let result = ready!(attempt_now.poll_unpin(context));
    *attempt = None;
    let (send, receive) = result?;
    Poll::Ready(Ok(Substream::new(send, receive)))
}

impl StreamMuxer for Connection {
    type Substream = Substream;
    type Error = Error;

    fn poll_inbound(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Substream, Error>> {
        let this = self.get_mut();
        let accept = |connection: quinn::Connection| async move { connection.accept_bi().await };
        poll_stream(&mut this.inbound, &this.live.connection, accept, context)
    }

    fn poll_outbound(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Substream, Error>> {
        let this = self.get_mut();
        let open = |connection: quinn::Connection| async move { connection.open_bi().await };
        poll_stream(&mut this.outbound, &this.live.connection, open, context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let this = self.get_mut();
        let connection = &this.live.connection;
        let closing = this.closing.get_or_insert_with(|| {
            connection.close(CLOSED, &[]);
            let connection = connection.clone();
            async move { connection.closed().await }.boxed()
        });
        // However it ended, it is closed now.
        let _ = ready!(closing.poll_unpin(context));
        Poll::Ready(Ok(()))
    }

    /// Reports when the other end has moved: a NAT on the way forgot it, or its network changed.
    ///
    /// Looked at whenever the swarm polls; nothing depends on when.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Error>> {
        let this = self.get_mut();
        let remote = this.live.connection.remote_address();
        if remote == this.remote {
            return Poll::Pending;
        }
        this.remote = remote;
        Poll::Ready(Ok(StreamMuxerEvent::AddressChange(address::of(remote))))
    }
}
