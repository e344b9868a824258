//! A peer played by hand: it says exactly the bytes a test wants, on the streams it wants.

use std::future::Future;

use dnode_network::Multiaddr;
use dnode_network::streams::{self, StreamKind};
use dnode_protocol::frame::{CONTROL_HEADER_BYTES, decode_control, encode_control};
use dnode_protocol::{Message, PeerId, RunSpec};
use dnode_quic::{Bulk, BulkConnection};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Stream, Swarm, SwarmBuilder, Transport as _, identity};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::common::{DEADLINE, stock_quic};

pub(crate) struct Raw {
    pub(crate) id: PeerId,
    pub(crate) swarm: Swarm<streams::Behaviour>,
    /// Streams the other end opened.
    pub(crate) accepted: Vec<(StreamKind, ConnectionId, Stream)>,
    /// Connections that were closed, perhaps while something else was waited for.
    closed: Vec<ConnectionId>,
}

pub(crate) fn hello(run: RunSpec, incarnation: u64) -> Vec<u8> {
    hello_with(run, incarnation, 0)
}

/// A hello that names a port for direct paths.
pub(crate) fn hello_with(run: RunSpec, incarnation: u64, direct_port: u16) -> Vec<u8> {
    hello_of(run, incarnation, direct_port, Vec::new())
}

/// A hello with the bytes of a chain.
pub(crate) fn hello_of(
    run: RunSpec,
    incarnation: u64,
    direct_port: u16,
    chain: Vec<u8>,
) -> Vec<u8> {
    let settings = RunSpec::default();
    encode_control(&Message::Hello { run, settings, incarnation, direct_port, chain }).unwrap()
}

impl Raw {
    pub(crate) fn new(key: u8) -> Self {
        let pair = identity::Keypair::ed25519_from_bytes([key; 32]).unwrap();
        let id = PeerId::from_libp2p_bytes(&pair.public().to_peer_id().to_bytes()).unwrap();
        let swarm = SwarmBuilder::with_existing_identity(pair)
            .with_tokio()
            .with_other_transport(stock_quic)
            .unwrap()
            .with_behaviour(|_| streams::Behaviour::default())
            .unwrap()
            .build();
        Self { id, swarm, accepted: Vec::new(), closed: Vec::new() }
    }

    /// One that listens, and speaks bulk: the connections it opens, and those opened to it.
    pub(crate) async fn with_bulk(key: u8) -> (Self, Bulk, mpsc::Receiver<BulkConnection>) {
        let pair = identity::Keypair::ed25519_from_bytes([key; 32]).unwrap();
        let id = PeerId::from_libp2p_bytes(&pair.public().to_peer_id().to_bytes()).unwrap();
        let (transport, bulk, arrivals) = dnode_quic::Transport::new(&pair).unwrap();
        let transport =
            transport.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection))).boxed();
        let swarm = SwarmBuilder::with_existing_identity(pair)
            .with_tokio()
            .with_other_transport(|_| transport)
            .unwrap()
            .with_behaviour(|_| streams::Behaviour::default())
            .unwrap()
            .build();
        let mut raw = Self { id, swarm, accepted: Vec::new(), closed: Vec::new() };
        raw.swarm.listen_on("/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()).unwrap();
        raw.until(|event| matches!(event, SwarmEvent::NewListenAddr { .. }).then_some(())).await;
        (raw, bulk, arrivals)
    }

    /// Waits until the other end has opened a stream of `kind`.
    pub(crate) async fn accepted(&mut self, kind: StreamKind) {
        let found = timeout(DEADLINE, async {
            while !self.accepted.iter().any(|(accepted, ..)| *accepted == kind) {
                self.step().await;
            }
        });
        found.await.expect("the stream in time");
    }

    async fn step(&mut self) -> SwarmEvent<streams::Event> {
        let event = self.swarm.select_next_some().await;
        if let SwarmEvent::ConnectionClosed { connection_id, .. } = &event {
            self.closed.push(*connection_id);
        }
        if let SwarmEvent::Behaviour(streams::Event::Accepted {
            connection, kind, stream, ..
        }) = event
        {
            self.accepted.push((kind, connection, stream));
            return SwarmEvent::Dialing { peer_id: None, connection_id: connection };
        }
        event
    }

    async fn until<T>(
        &mut self,
        mut pick: impl FnMut(SwarmEvent<streams::Event>) -> Option<T>,
    ) -> T {
        let found = timeout(DEADLINE, async {
            loop {
                let event = self.step().await;
                if let Some(found) = pick(event) {
                    return found;
                }
            }
        });
        found.await.expect("the swarm's event in time")
    }

    /// Keeps this peer alive while `future` runs.
    pub(crate) async fn during<T>(&mut self, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        loop {
            tokio::select! {
                done = &mut future => return done,
                _ = self.step() => {}
            }
        }
    }

    /// Makes a further connection.
    pub(crate) async fn connect(&mut self, address: &Multiaddr) -> ConnectionId {
        let peer = address.iter().last();
        let Some(libp2p::multiaddr::Protocol::P2p(peer)) = peer else {
            panic!("{address} names no peer");
        };
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::Always)
            .addresses(vec![address.clone()])
            .build();
        let dialled = options.connection_id();
        self.swarm.dial(options).unwrap();
        self.until(|event| match event {
            SwarmEvent::ConnectionEstablished { connection_id, .. } => {
                (connection_id == dialled).then_some(())
            }
            _ => None,
        })
        .await;
        dialled
    }

    /// Makes a further connection to `to`, greets there, and waits until the other end has closed it.
    pub(crate) async fn is_turned_away(&mut self, to: PeerId, address: &Multiaddr, hello: &[u8]) {
        let connection = self.connect(address).await;
        let to = libp2p::PeerId::from_bytes(&to.to_libp2p_bytes()).unwrap();
        // The connection may be closed before a stream is open, or while the greeting is written.
        let _ = self.swarm.behaviour_mut().open(to, StreamKind::Control);
        let mut streams = Vec::new();
        let closed = timeout(DEADLINE, async {
            while !self.closed.contains(&connection) {
                let event = self.step().await;
                if let SwarmEvent::Behaviour(streams::Event::Opened { mut stream, .. }) = event {
                    let _ = stream.write_all(hello).await;
                    let _ = stream.flush().await;
                    streams.push(stream);
                }
            }
        });
        closed.await.expect("the connection's end in time");
    }

    pub(crate) async fn close(&mut self, connection: ConnectionId) {
        assert!(self.swarm.close_connection(connection));
        self.closed(connection).await;
    }

    /// Waits until `connection` is closed, by whomever.
    pub(crate) async fn closed(&mut self, connection: ConnectionId) {
        let closed = timeout(DEADLINE, async {
            while !self.closed.contains(&connection) {
                self.step().await;
            }
        });
        closed.await.expect("the connection's end in time");
    }

    /// Opens no further stream on `connection`.
    pub(crate) fn forget(&mut self, to: PeerId, connection: ConnectionId) {
        let to = libp2p::PeerId::from_bytes(&to.to_libp2p_bytes()).unwrap();
        self.swarm.behaviour_mut().forget(to, connection);
    }

    /// Opens a stream on the best connection.
    pub(crate) async fn open(&mut self, to: PeerId, kind: StreamKind) -> Stream {
        let to = libp2p::PeerId::from_bytes(&to.to_libp2p_bytes()).unwrap();
        self.swarm.behaviour_mut().open(to, kind).unwrap();
        self.until(|event| match event {
            SwarmEvent::Behaviour(streams::Event::Opened { stream, .. }) => Some(stream),
            _ => None,
        })
        .await
    }

    /// Opens a stream and writes `bytes`; the stream stays open while it is kept.
    pub(crate) async fn say(&mut self, to: PeerId, kind: StreamKind, bytes: &[u8]) -> Stream {
        let mut stream = self.open(to, kind).await;
        stream.write_all(bytes).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }

    /// Waits for the control stream that the other end opens on `connection`.
    pub(crate) async fn control_on(&mut self, connection: ConnectionId) -> Stream {
        let wanted = |(kind, on, _): &(StreamKind, ConnectionId, Stream)| -> bool {
            *kind == StreamKind::Control && *on == connection
        };
        loop {
            if let Some(index) = self.accepted.iter().position(wanted) {
                return self.accepted.remove(index).2;
            }
            timeout(DEADLINE, self.step()).await.expect("an inbound stream in time");
        }
    }
}

/// Reads one control message.
pub(crate) async fn listen(stream: &mut Stream) -> Message {
    let mut header = [0; CONTROL_HEADER_BYTES];
    stream.read_exact(&mut header).await.unwrap();
    let length = u32::from_le_bytes(header[1..].try_into().unwrap());
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await.unwrap();
    decode_control(&body).unwrap()
}
