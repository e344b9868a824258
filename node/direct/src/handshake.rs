//! The proof of both identities, the same on every socket: TLS 1.3 with libp2p certificates.
//!
//! The opener of a path is the one that sends on it. It names the kinds of path that it takes; the
//! other end chooses. When both have proved their identities the acceptor says [`WELCOME`] under
//! seal, and only then does the opener send: sealed, in plain, or through memory.

use std::sync::Arc;

use dnode_quic::tls::owner;
use libp2p_identity::PeerId;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::Error;
use crate::limits::{HANDSHAKE_BYTES_MAX, INBOUND_BYTES, RECORD_HEAD_BYTES, SUBJECT_BYTES};
use crate::path::{Kind, Usage};
use crate::session::{Arrived, Session, seal, sealed_bytes_max};

/// What the acceptor says when both identities are proved.
const WELCOME: &[u8; 1] = &[1];

/// Received bytes that are not processed yet.
#[derive(Debug)]
pub(crate) struct Inbound {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; INBOUND_BYTES], begin: 0, end: 0 }
    }

    /// What waits.
    pub(crate) fn waiting(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.end]
    }

    /// Forgets the first `count` bytes that wait.
    pub(crate) fn discard(&mut self, count: usize) {
        self.begin = (self.begin + count).min(self.end);
    }

    /// Room behind what waits; empty when too much waits.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that `count` bytes were read into the room.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }
}

/// What a TLS session wants next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To be asked again.
    Again,
    /// Bytes of the other end.
    Read,
    /// Nothing: it can seal and open.
    Ready,
    /// It has opened one record.
    Opened(Vec<u8>),
    /// The other end has ended the session.
    Closed,
}

/// Takes one step of a session. Returns how many bytes it has used up.
///
/// `outbound`: what is to be sent is appended.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive; whatever else it says is no part of a handshake"
)]
pub(crate) fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outbound: &mut Vec<u8>,
) -> Result<(usize, Step), Error> {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state? {
        ConnectionState::EncodeTlsData(mut data) => {
            let mut room = 0;
            loop {
                let begin = outbound.len();
                outbound.resize(begin + room, 0);
                let encoded = data.encode(&mut outbound[begin..]);
                outbound.truncate(begin + encoded.as_ref().copied().unwrap_or(0));
                match encoded {
                    Ok(_) | Err(EncodeError::AlreadyEncoded) => break Step::Again,
                    Err(EncodeError::InsufficientSize(needed)) if room < needed.required_size => {
                        room = needed.required_size;
                    }
                    Err(EncodeError::InsufficientSize(_)) => return Err(Error::Handshake),
                }
            }
        }
        ConnectionState::TransmitTlsData(sent) => {
            sent.done();
            Step::Again
        }
        ConnectionState::BlockedHandshake => Step::Read,
        ConnectionState::WriteTraffic(_) => Step::Ready,
        ConnectionState::ReadTraffic(mut traffic) => match traffic.next_record() {
            Some(record) => {
                let record = record?;
                discard += record.discard;
                Step::Opened(record.payload.to_vec())
            }
            None => Step::Again,
        },
        ConnectionState::PeerClosed | ConnectionState::Closed => Step::Closed,
        // Nobody is offered early data.
        _ => return Err(Error::Handshake),
    };
    Ok((discard, step))
}

/// Sends what a handshake has to say.
async fn send<S: AsyncWrite + Unpin>(stream: &mut S, outbound: &mut Vec<u8>) -> Result<(), Error> {
    stream.write_all(outbound).await?;
    stream.flush().await?;
    outbound.clear();
    Ok(())
}

/// Reads more of a handshake, within its bound.
async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    inbound: &mut Inbound,
    received: &mut usize,
) -> Result<(), Error> {
    let count = stream.read(inbound.room()).await?;
    arrived(count, inbound, received)
}

/// Notes what was read of a handshake.
fn arrived(count: usize, inbound: &mut Inbound, received: &mut usize) -> Result<(), Error> {
    *received += count;
    if count == 0 {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    if *received > HANDSHAKE_BYTES_MAX {
        return Err(Error::Handshake);
    }
    inbound.filled(count);
    Ok(())
}

/// Who is at the other end and what was agreed on.
fn proved(
    certificates: Option<&[CertificateDer<'_>]>,
    protocol: Option<&[u8]>,
) -> Result<(PeerId, Kind, Usage), Error> {
    let peer = certificates.and_then(owner).ok_or(Error::NoIdentity)?;
    let (kind, usage) = protocol.and_then(Kind::of).ok_or(Error::Handshake)?;
    Ok((peer, kind, usage))
}

/// Proves who we are to the acceptor and learns what it chose; it is the peer that `config` expects.
pub(crate) async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    config: Arc<ClientConfig>,
) -> Result<(Kind, UnbufferedClientConnection), Error> {
    // libp2p shows no name, so any does.
    let name = ServerName::try_from("libp2p").map_err(|_| Error::Handshake)?;
    let mut session = UnbufferedClientConnection::new(config, name)?;
    let (mut inbound, mut outbound, mut received) = (Inbound::new(), Vec::new(), 0);
    loop {
        let (used, step) = step(session.process_tls_records(inbound.waiting()), &mut outbound)?;
        inbound.discard(used);
        match step {
            Step::Again => {}
            Step::Read | Step::Ready => {
                send(stream, &mut outbound).await?;
                receive(stream, &mut inbound, &mut received).await?;
            }
            // Nothing may follow: the acceptor has nothing else to say, sealed or not.
            Step::Opened(said) if said == *WELCOME && inbound.waiting().is_empty() => break,
            Step::Opened(_) | Step::Closed => return Err(Error::Handshake),
        }
    }
    if session.is_handshaking() {
        return Err(Error::Handshake);
    }
    // It is of the names that were offered.
    let (_, kind, _) = proved(session.peer_certificates(), session.alpn_protocol())?;
    Ok((kind, session))
}

/// An accepted opener.
pub(crate) struct Accepted {
    pub(crate) peer: PeerId,
    pub(crate) kind: Kind,
    pub(crate) usage: Usage,
    pub(crate) session: UnbufferedServerConnection,
    pub(crate) inbound: Inbound,
}

/// Lets the opener prove who it is, and welcomes it.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    config: Arc<ServerConfig>,
) -> Result<Accepted, Error> {
    let mut session = UnbufferedServerConnection::new(config)?;
    let (mut inbound, mut outbound, mut received) = (Inbound::new(), Vec::new(), 0);
    loop {
        let status = session.process_tls_records(inbound.waiting());
        let UnbufferedStatus { discard, state } = status;
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state {
            let mut sealed = [0; 64];
            let length = traffic.encrypt(WELCOME, &mut sealed).map_err(|_| Error::Handshake)?;
            inbound.discard(discard);
            outbound.extend_from_slice(&sealed[..length]);
            break;
        }
        let (used, step) = step(UnbufferedStatus { discard, state }, &mut outbound)?;
        inbound.discard(used);
        match step {
            Step::Again => {}
            Step::Read => {
                send(stream, &mut outbound).await?;
                receive(stream, &mut inbound, &mut received).await?;
            }
            Step::Ready | Step::Opened(_) | Step::Closed => return Err(Error::Handshake),
        }
    }
    // The opener waits for the welcome, so whatever came with its proof is none of it.
    if !inbound.waiting().is_empty() || session.is_handshaking() {
        return Err(Error::Handshake);
    }
    let (peer, kind, usage) = proved(session.peer_certificates(), session.alpn_protocol())?;
    send(stream, &mut outbound).await?;
    Ok(Accepted { peer, kind, usage, session, inbound })
}

/// Says `bytes`, a few, under seal.
pub(crate) async fn say<S: AsyncWrite + Unpin>(
    stream: &mut S,
    session: &mut impl Session,
    bytes: &[u8],
) -> Result<(), Error> {
    let mut sealed = vec![0; sealed_bytes_max(bytes.len())];
    let length = seal(session, bytes, &mut sealed)?;
    stream.write_all(&sealed[..length]).await?;
    Ok(stream.flush().await?)
}

/// Fills `bytes` with what the other end says under seal.
pub(crate) async fn hear<S: AsyncRead + Unpin>(
    stream: &mut S,
    session: &mut impl Session,
    arrived: &mut Arrived,
    bytes: &mut [u8],
) -> Result<(), Error> {
    let (mut filled, mut received) = (0, 0);
    while filled < bytes.len() {
        let count = arrived.open(session, &mut bytes[filled..])?;
        filled += count;
        if arrived.closed {
            return Err(Error::Handshake);
        }
        if count == 0 {
            receive_record(stream, &mut arrived.inbound, &mut received).await?;
        }
    }
    Ok(())
}

/// Reads the rest of a sealed record and nothing behind it: the other end may go on at once, without
/// seals and with files that a read without room for them would drop (unix(7)).
async fn receive_record<S: AsyncRead + Unpin>(
    stream: &mut S,
    inbound: &mut Inbound,
    received: &mut usize,
) -> Result<(), Error> {
    loop {
        let waiting = inbound.waiting();
        let whole = match waiting.get(3..RECORD_HEAD_BYTES) {
            Some(&[high, low]) => RECORD_HEAD_BYTES + usize::from(u16::from_be_bytes([high, low])),
            _ => RECORD_HEAD_BYTES,
        };
        let missing = whole.saturating_sub(waiting.len());
        if missing == 0 {
            return Ok(());
        }
        let room = inbound.room().get_mut(..missing).ok_or(Error::Handshake)?;
        let count = stream.read(room).await?;
        arrived(count, inbound, received)?;
    }
}

/// The last words of a handshake that makes a channel: the opener names the subject and waits until
/// the acceptor has it, so that nothing else is on the way.
pub(crate) async fn name_subject<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    session: &mut impl Session,
    subject: &[u8; SUBJECT_BYTES],
) -> Result<Arrived, Error> {
    let mut arrived = Arrived::new(Inbound::new());
    say(stream, session, subject).await?;
    let mut welcome = [0];
    hear(stream, session, &mut arrived, &mut welcome).await?;
    if welcome != *WELCOME { Err(Error::Handshake) } else { Ok(arrived) }
}

/// The acceptor's part of [`name_subject`].
pub(crate) async fn learn_subject<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    session: &mut impl Session,
    arrived: &mut Arrived,
) -> Result<[u8; SUBJECT_BYTES], Error> {
    let mut subject = [0; SUBJECT_BYTES];
    hear(stream, session, arrived, &mut subject).await?;
    if !arrived.is_empty() {
        return Err(Error::Handshake);
    }
    say(stream, session, WELCOME).await?;
    Ok(subject)
}

#[cfg(test)]
mod tests;
