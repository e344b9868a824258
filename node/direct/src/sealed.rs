//! Tensors under seal: records of the TLS session that proved the identities.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::handshake::Inbound;
use crate::limits::{OUTBOUND_BYTES, SEAL_BYTES};

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Room for so many bytes under seal, and for a renewal of keys before them: each record of 16 KiB
/// has 22 bytes of overhead (RFC 8446 §5.2).
const fn sealed_bytes_max(bytes: usize) -> usize {
    bytes + bytes / 512 + 256
}

const _: () = assert!(sealed_bytes_max(SEAL_BYTES) + 512 <= OUTBOUND_BYTES);

/// The sending end: the dialler of the TLS session.
pub(crate) struct SealedSender {
    stream: TcpStream,
    session: UnbufferedClientConnection,
    outbound: Box<[u8]>,
}

impl SealedSender {
    pub(crate) fn new(stream: TcpStream, session: UnbufferedClientConnection) -> Self {
        Self { stream, session, outbound: vec![0; OUTBOUND_BYTES].into_boxed_slice() }
    }

    pub(crate) const fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Seals and writes `head`, then `body`. The keys are renewed by the library in time.
    pub(crate) async fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let mut filled = 0;
        for piece in head.chunks(SEAL_BYTES).chain(body.chunks(SEAL_BYTES)) {
            if filled + sealed_bytes_max(piece.len()) > self.outbound.len() {
                self.stream.write_all(&self.outbound[..filled]).await?;
                filled = 0;
            }
            filled += self.seal(piece, filled)?;
        }
        self.stream.write_all(&self.outbound[..filled]).await
    }

    /// Seals `bytes`, at most [`SEAL_BYTES`], behind what is `filled`. Returns the length of it.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; a sender has nothing else to do"
    )]
    fn seal(&mut self, bytes: &[u8], filled: usize) -> io::Result<usize> {
        let mut length = 0;
        loop {
            let room = &mut self.outbound[filled + length..];
            let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut []);
            match state.map_err(broken)? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    return Ok(length + traffic.encrypt(bytes, room).map_err(broken)?);
                }
                // A renewal of keys.
                ConnectionState::EncodeTlsData(mut data) => {
                    length += data.encode(room).map_err(broken)?;
                }
                ConnectionState::TransmitTlsData(sent) => sent.done(),
                _ => return Err(broken("the session cannot be written to")),
            }
        }
    }
}

impl fmt::Debug for SealedSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedSender").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl fmt::Debug for SealedReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedReceiver").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// The receiving end.
pub(crate) struct SealedReceiver {
    stream: TcpStream,
    session: UnbufferedServerConnection,
    inbound: Inbound,
    /// Opened bytes that did not fit into what was asked for, and how many of them are used up.
    opened: (Vec<u8>, usize),
    closed: bool,
}

impl SealedReceiver {
    pub(crate) const fn new(
        stream: TcpStream,
        session: UnbufferedServerConnection,
        inbound: Inbound,
    ) -> Self {
        Self { stream, session, inbound, opened: (Vec::new(), 0), closed: false }
    }

    /// Reads at least one byte into `bytes`; 0 at the end.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let count = self.open(bytes)?;
            if count > 0 || bytes.is_empty() || self.closed {
                return Poll::Ready(Ok(count));
            }
            let mut room = ReadBuf::new(self.inbound.room());
            if room.remaining() == 0 {
                return Poll::Ready(Err(broken("a record without end")));
            }
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
            let count = room.filled().len();
            // The end of a connection at the end of a record; frames tell where they end.
            self.closed = count == 0;
            self.inbound.filled(count);
        }
    }

    /// Opens what has arrived into `bytes`, as far as they go. Returns how many it has filled.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; a receiver has nothing else to do"
    )]
    fn open(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut count = self.take_opened(bytes);
        while count < bytes.len() {
            let status = self.session.process_tls_records(self.inbound.waiting());
            let UnbufferedStatus { mut discard, state } = status;
            let mut ready = false;
            match state.map_err(broken)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(broken)?;
                        discard += record.discard;
                        let fits = record.payload.len().min(bytes.len() - count);
                        bytes[count..count + fits].copy_from_slice(&record.payload[..fits]);
                        count += fits;
                        let (rest, used) = &mut self.opened;
                        if *used == rest.len() {
                            rest.clear();
                            *used = 0;
                        }
                        rest.extend_from_slice(&record.payload[fits..]);
                    }
                }
                ConnectionState::WriteTraffic(_) => ready = true,
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    self.closed = true;
                    ready = true;
                }
                // An answer to a renewal of keys, which the sender does not wait for.
                _ => return Err(broken("the session cannot be read from")),
            }
            self.inbound.discard(discard);
            if ready {
                break;
            }
        }
        Ok(count)
    }

    fn take_opened(&mut self, bytes: &mut [u8]) -> usize {
        let (rest, used) = &mut self.opened;
        let count = (rest.len() - *used).min(bytes.len());
        bytes[..count].copy_from_slice(&rest[*used..*used + count]);
        *used += count;
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dnode_quic::tls::Identity;
    use libp2p_identity::Keypair;
    use tokio::net::TcpListener;

    use super::*;
    use crate::handshake::{accept, open};
    use crate::path::Kind;

    async fn pair() -> (SealedSender, SealedReceiver) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opener, acceptor) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let names = [Kind::Tls.name()];
        let expected = Some(acceptor.public().to_peer_id());
        let (client, _) = Identity::new(&opener).unwrap().client(&names, expected).unwrap();
        let server = Identity::new(&acceptor).unwrap().server(&names).unwrap();
        let dial = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let (kind, session) = open(&mut stream, Arc::new(client)).await.unwrap();
            assert_eq!(kind, Kind::Tls);
            SealedSender::new(stream, session)
        };
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let accepted = accept(&mut stream, Arc::new(server)).await.unwrap();
            assert_eq!(accepted.peer, opener.public().to_peer_id());
            SealedReceiver::new(stream, accepted.session, accepted.inbound)
        };
        tokio::join!(dial, serve)
    }

    async fn read(receiver: &mut SealedReceiver, wanted: usize, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; wanted];
        let mut filled = 0;
        while filled < wanted {
            let end = wanted.min(filled + most);
            let piece = &mut bytes[filled..end];
            let count = std::future::poll_fn(|cx| receiver.poll_read(cx, piece)).await.unwrap();
            assert!(count > 0);
            filled += count;
        }
        bytes
    }

    #[tokio::test]
    async fn bytes_of_any_length_arrive_whole_and_in_order() {
        let (mut sender, mut receiver) = pair().await;
        let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let lengths = [0, 1, 96, 16_384, 16_385, SEAL_BYTES, SEAL_BYTES + 1, 1_000_000];
        let total = lengths.iter().map(|length| length + 96).sum();
        let send = async {
            for length in lengths {
                sender.write(&[7; 96], &body[..length]).await.unwrap();
            }
            sender
        };
        let (_sender, got) = tokio::join!(send, read(&mut receiver, total, 5000));
        let mut rest = &got[..];
        for length in lengths {
            let (head, behind) = rest.split_at(96);
            assert_eq!(head, [7; 96]);
            assert!(behind[..length] == body[..length], "{length}");
            rest = &behind[length..];
        }
    }

    #[tokio::test]
    async fn keys_are_renewed_without_an_answer() {
        let (mut sender, mut receiver) = pair().await;
        for round in 0..100 {
            let UnbufferedStatus { state, .. } = sender.session.process_tls_records(&mut []);
            let ConnectionState::WriteTraffic(traffic) = state.unwrap() else { panic!() };
            traffic.refresh_traffic_keys().unwrap();
            sender.write(&[round], &[round; 999]).await.unwrap();
            assert_eq!(read(&mut receiver, 1000, 1000).await, [round; 1000]);
        }
    }

    #[tokio::test]
    async fn changed_bytes_end_the_path() {
        let (mut sender, mut receiver) = pair().await;
        sender.write(&[1], &[]).await.unwrap();
        assert_eq!(read(&mut receiver, 1, 1).await, [1]);
        let length = sender.seal(&[2; 100], 0).unwrap();
        sender.outbound[length - 1] ^= 1;
        sender.stream.write_all(&sender.outbound[..length]).await.unwrap();
        let read = std::future::poll_fn(|cx| receiver.poll_read(cx, &mut [0; 10])).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
