//! Tensors under seal on a path: records of the TLS session that proved the identities.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::handshake::Inbound;
use crate::limits::{OUTBOUND_BYTES, SEAL_BYTES};
use crate::session::{Arrived, broken, seal, sealed_bytes_max};

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

    /// Seals and writes `head`, then `body`.
    pub(crate) async fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let mut filled = 0;
        for piece in head.chunks(SEAL_BYTES).chain(body.chunks(SEAL_BYTES)) {
            if filled + sealed_bytes_max(piece.len()) > self.outbound.len() {
                self.stream.write_all(&self.outbound[..filled]).await?;
                filled = 0;
            }
            filled += seal(&mut self.session, piece, &mut self.outbound[filled..])?;
        }
        self.stream.write_all(&self.outbound[..filled]).await
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
    arrived: Arrived,
}

impl SealedReceiver {
    pub(crate) const fn new(
        stream: TcpStream,
        session: UnbufferedServerConnection,
        inbound: Inbound,
    ) -> Self {
        Self { stream, session, arrived: Arrived::new(inbound) }
    }

    /// Reads at least one byte into `bytes`; 0 at the end.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let count = self.arrived.open(&mut self.session, bytes)?;
            if count > 0 || bytes.is_empty() || self.arrived.closed {
                return Poll::Ready(Ok(count));
            }
            let mut room = ReadBuf::new(self.arrived.inbound.room());
            if room.remaining() == 0 {
                return Poll::Ready(Err(broken("a record without end")));
            }
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
            let count = room.filled().len();
            // The end of a connection at the end of a record; frames tell where they end.
            self.arrived.closed = count == 0;
            self.arrived.inbound.filled(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dnode_quic::tls::Identity;
    use libp2p_identity::Keypair;
    use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
    use tokio::net::TcpListener;

    use super::*;
    use crate::handshake::{accept, open};
    use crate::path::{Kind, Usage};

    async fn pair() -> (SealedSender, SealedReceiver) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opener, acceptor) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let names = [Kind::Tls.name(Usage::Path)];
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
        let length = seal(&mut sender.session, &[2; 100], &mut sender.outbound).unwrap();
        sender.outbound[length - 1] ^= 1;
        sender.stream.write_all(&sender.outbound[..length]).await.unwrap();
        let read = std::future::poll_fn(|cx| receiver.poll_read(cx, &mut [0; 10])).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
