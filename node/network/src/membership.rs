//! The proof of membership on every new connection of a closed run, before the swarm hears of it.
//!
//! No behaviour of the swarm meets a connection that has not passed: neither identify nor Kademlia,
//! neither relay nor AutoNAT. So they tell strangers nothing. Bulk connections and direct paths are
//! read only where a session with that peer exists, which needs such a connection.

use std::error::Error as StdError;
use std::io;
use std::iter::once;
use std::pin::pin;
use std::task::{Context, Poll};

use dnode_protocol::limits::CLOSED_NOISE_PROTOCOL;
use dnode_protocol::membership::{
    ANSWER_BYTES, Answering, Ends, HELLO_BYTES, NONCE_BYTES, Opening, PROOF_BYTES, ProofError,
    RunSecret,
};
use futures::future::poll_fn;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt as _};
use libp2p::core::upgrade::{
    InboundConnectionUpgrade, NegotiationError, OutboundConnectionUpgrade, UpgradeInfo,
};
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::identity::Keypair;
use libp2p::swarm::DialError;
use libp2p::{TransportError, noise};
use rand::Rng as _;
use tokio::time::timeout;

use crate::address::from_libp2p;
use crate::event::NotLetIn;
use crate::limits::MEMBERSHIP_MAX;

/// Lets through the connections whose other end knows the secret.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    me: libp2p::PeerId,
    secret: RunSecret,
}

/// Why a connection did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GateError {
    /// Its other end does not know the secret.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// A name is no Ed25519 key, which every dnode has.
    #[error("the peer there has a name that no dnode has")]
    Name,
    /// It took too long.
    #[error("no proof of membership within {MEMBERSHIP_MAX:?}")]
    Timeout,
    /// The connection ended: so does a peer that takes this one for a stranger.
    #[error("the peer there ended the connection before it was known as a member")]
    Ended(#[from] io::Error),
}

impl Gate {
    pub(crate) const fn new(me: libp2p::PeerId, secret: RunSecret) -> Self {
        Self { me, secret }
    }

    /// Hands on a connection once both ends have proved that they know the secret.
    pub(crate) async fn pass(
        self,
        (peer, mut muxer): (libp2p::PeerId, StreamMuxerBox),
        point: ConnectedPoint,
    ) -> Result<(libp2p::PeerId, StreamMuxerBox), Failed<GateError>> {
        let proved = timeout(MEMBERSHIP_MAX, self.prove(peer, &mut muxer, opens(&point))).await;
        match proved.unwrap_or(Err(GateError::Timeout)) {
            Ok(()) => Ok((peer, muxer)),
            Err(error) => {
                tracing::debug!(%peer, %error, "not let in");
                Err(Failed(error))
            }
        }
    }

    async fn prove(
        self,
        peer: libp2p::PeerId,
        muxer: &mut StreamMuxerBox,
        opens: bool,
    ) -> Result<(), GateError> {
        let (Some(me), Some(other)) = (from_libp2p(self.me), from_libp2p(peer)) else {
            return Err(GateError::Name);
        };
        let mut nonce = [0; NONCE_BYTES];
        rand::rng().fill_bytes(&mut nonce);
        let mut stream = poll_fn(|context| {
            turn(muxer, context)?;
            let stream = if opens {
                muxer.poll_outbound_unpin(context)
            } else {
                muxer.poll_inbound_unpin(context)
            };
            stream.map_err(GateError::Ended)
        })
        .await?;
        let words = async {
            if opens {
                let ends = Ends { dialer: me, listener: other };
                open(&mut stream, Opening::new(&self.secret, ends, nonce)).await
            } else {
                let ends = Ends { dialer: other, listener: me };
                answer(&mut stream, (&self.secret, ends, nonce)).await
            }
        };
        let mut words = pin!(words);
        poll_fn(|context| {
            // A connection whose other end has hung up may still have its last word.
            let turned = turn(muxer, context);
            match words.as_mut().poll(context) {
                Poll::Pending => {
                    turned.map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
                }
                ready @ Poll::Ready(_) => ready,
            }
        })
        .await
    }
}

/// Lets a connection make progress.
fn turn(muxer: &mut StreamMuxerBox, context: &mut Context<'_>) -> Result<(), GateError> {
    // That the other end has moved meanwhile is of no interest: its next move is reported.
    while let Poll::Ready(event) = muxer.poll_unpin(context) {
        event?;
    }
    Ok(())
}

/// Whether this end opens streams first: where holes are punched, one dialler is told not to.
const fn opens(point: &ConnectedPoint) -> bool {
    matches!(point, ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. })
}

async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    opening: Opening,
) -> Result<(), GateError> {
    stream.write_all(&opening.hello()).await?;
    stream.flush().await?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).await?;
    // The listener needs no further word: what this end does next travels behind the proof.
    stream.write_all(&opening.prove(&answer)?).await?;
    Ok(stream.close().await?)
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    (secret, ends, nonce): (&RunSecret, Ends, [u8; NONCE_BYTES]),
) -> Result<(), GateError> {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let answering = Answering::new(secret, ends, nonce, &hello)?;
    stream.write_all(&answering.answer()).await?;
    stream.flush().await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    answering.verify(&proof)?;
    // The other end may have gone on already and wait for no end of this stream.
    let _ = stream.close().await;
    Ok(())
}

/// Noise under the name of open or closed runs: ends of different kinds part before they have said
/// anything.
#[derive(Clone)]
pub(crate) struct NamedNoise {
    config: noise::Config,
    closed: bool,
}

impl NamedNoise {
    pub(crate) fn new(key: &Keypair, closed: bool) -> Result<Self, noise::Error> {
        Ok(Self { config: noise::Config::new(key)?, closed })
    }
}

impl UpgradeInfo for NamedNoise {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        once(if self.closed { CLOSED_NOISE_PROTOCOL } else { NOISE_PROTOCOL })
    }
}

/// Noise's own name. Source: libp2p specification `noise/README.md`.
const NOISE_PROTOCOL: &str = "/noise";

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> InboundConnectionUpgrade<T>
    for NamedNoise
{
    type Output = (libp2p::PeerId, noise::Output<T>);
    type Error = noise::Error;
    type Future = <noise::Config as InboundConnectionUpgrade<T>>::Future;

    fn upgrade_inbound(self, socket: T, _: &'static str) -> Self::Future {
        self.config.upgrade_inbound(socket, NOISE_PROTOCOL)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> OutboundConnectionUpgrade<T>
    for NamedNoise
{
    type Output = (libp2p::PeerId, noise::Output<T>);
    type Error = noise::Error;
    type Future = <noise::Config as OutboundConnectionUpgrade<T>>::Future;

    fn upgrade_outbound(self, socket: T, _: &'static str) -> Self::Future {
        self.config.upgrade_outbound(socket, NOISE_PROTOCOL)
    }
}

/// Keeps an error apart from those that libp2p wraps around it, so that it can be found by its type.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failed<E: StdError + 'static>(#[source] pub(crate) E);

/// Why a dialled peer and this one are not of one run, if that is why the dial failed. `closed`: whether
/// this peer's run is closed.
pub(crate) fn not_let_in(error: &DialError, closed: bool) -> Option<NotLetIn> {
    let DialError::Transport(errors) = error else { return None };
    let of = |error: &TransportError<io::Error>| {
        let TransportError::Other(error) = error else { return None };
        if let Some(GateError::Proof(_)) = find(error) {
            return Some(NotLetIn::OtherSecret);
        }
        let unsupported =
            |error: &dnode_quic::Error| matches!(error, dnode_quic::Error::Unsupported(_));
        let other_kind = find::<dnode_quic::Error>(error).is_some_and(unsupported)
            || matches!(find::<NegotiationError>(error), Some(NegotiationError::Failed));
        other_kind.then_some(if closed { NotLetIn::Open } else { NotLetIn::Closed })
    };
    errors.iter().find_map(|(_, error)| of(error))
}

/// The first cause of this type.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // Both hide an error of another type, and say only what caused that one.
        let io = match error.downcast_ref::<noise::Error>() {
            Some(noise::Error::Io(io)) => Some(io),
            _ => error.downcast_ref::<io::Error>(),
        };
        next = match io.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
