//! A transport driven by a task, as a swarm would.

use std::future::Future;
use std::io;
use std::time::Duration;

use dnode_quic::{Bulk, BulkConnection, Error, Transport};
use futures::future::poll_fn;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p_core::muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox};
use libp2p_core::transport::{
    Boxed, DialOpts, ListenerId, PortUse, TransportError, TransportEvent,
};
use libp2p_core::{Endpoint, Multiaddr, Transport as _};
use libp2p_identity::{Keypair, PeerId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

pub(crate) type Connected = Result<(PeerId, StreamMuxerBox), io::Error>;
type Any = Boxed<(PeerId, StreamMuxerBox)>;

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(DEADLINE, what).await.expect("in time")
}

enum Command {
    Listen(ListenerId, Multiaddr),
    Remove(ListenerId),
    Dial(Multiaddr, DialOpts, oneshot::Sender<oneshot::Receiver<Connected>>),
}

/// What the transport said, beside connections.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Up(Multiaddr),
    Closed(ListenerId),
}

pub(crate) struct Node {
    pub(crate) id: PeerId,
    commands: mpsc::Sender<Command>,
    said: mpsc::Receiver<Said>,
    inbound: mpsc::Receiver<(Multiaddr, Connected)>,
}

pub(crate) const DIAL: DialOpts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
pub(crate) const PUNCH: DialOpts = DialOpts { role: Endpoint::Listener, port_use: PortUse::Reuse };

pub(crate) fn ours() -> Node {
    with_bulk().0
}

pub(crate) fn with_bulk() -> (Node, Bulk, mpsc::Receiver<BulkConnection>) {
    let key = Keypair::generate_ed25519();
    let (transport, bulk, arrivals) = Transport::new(&key).unwrap();
    let transport = transport.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed();
    (node(&key, transport), bulk, arrivals)
}

pub(crate) fn stock() -> Node {
    let key = Keypair::generate_ed25519();
    let transport = libp2p_quic::tokio::Transport::new(libp2p_quic::Config::new(&key));
    let transport = transport.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed();
    node(&key, transport)
}

fn node(key: &Keypair, transport: Any) -> Node {
    let (commands, command_queue) = mpsc::channel(16);
    let (says, said) = mpsc::channel(64);
    let (accepted, inbound) = mpsc::channel(64);
    tokio::spawn(drive(transport, command_queue, says, accepted));
    Node { id: key.public().to_peer_id(), commands, said, inbound }
}

async fn drive(
    mut transport: Any,
    mut commands: mpsc::Receiver<Command>,
    says: mpsc::Sender<Said>,
    accepted: mpsc::Sender<(Multiaddr, Connected)>,
) {
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                None => return,
                Some(Command::Listen(id, address)) => transport.listen_on(id, address).unwrap(),
                Some(Command::Remove(id)) => assert!(transport.remove_listener(id)),
                Some(Command::Dial(address, options, begun)) => {
                    let (reply, outcome) = oneshot::channel();
                    match transport.dial(address, options) {
                        Ok(dial) => {
                            tokio::spawn(async move { reply.send(dial.await).map_err(drop) });
                        }
                        Err(TransportError::Other(error)) => drop(reply.send(Err(error))),
                        Err(error) => drop(reply.send(Err(io::Error::other(error)))),
                    }
                    let _ = begun.send(outcome);
                }
            },
            event = poll_fn(|context| Pin::new(&mut transport).poll(context)) => match event {
                TransportEvent::NewAddress { listen_addr, .. } => {
                    says.send(Said::Up(listen_addr)).await.unwrap();
                }
                TransportEvent::ListenerClosed { listener_id, reason } => {
                    reason.unwrap();
                    says.send(Said::Closed(listener_id)).await.unwrap();
                }
                TransportEvent::Incoming { upgrade, send_back_addr, .. } => {
                    let accepted = accepted.clone();
                    tokio::spawn(async move {
                        let _ = accepted.send((send_back_addr, upgrade.await)).await;
                    });
                }
                other => panic!("{other:?}"),
            },
        }
    }
}

impl Node {
    /// Listens, and says at which address first.
    pub(crate) async fn listen(&mut self, address: &str) -> Multiaddr {
        self.listen_as(ListenerId::next(), address).await
    }

    pub(crate) async fn listen_as(&mut self, id: ListenerId, address: &str) -> Multiaddr {
        self.commands.send(Command::Listen(id, address.parse().unwrap())).await.unwrap();
        match self.said().await {
            Said::Up(address) => address,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn remove(&mut self, id: ListenerId) {
        self.commands.send(Command::Remove(id)).await.unwrap();
        assert_eq!(self.said().await, Said::Closed(id));
    }

    pub(crate) async fn said(&mut self) -> Said {
        soon(self.said.recv()).await.unwrap()
    }

    /// The outcome of a dial that has begun, when there is one.
    pub(crate) async fn dialing(
        &self,
        address: &Multiaddr,
        options: DialOpts,
    ) -> oneshot::Receiver<Connected> {
        let (begun, outcome) = oneshot::channel();
        self.commands.send(Command::Dial(address.clone(), options, begun)).await.unwrap();
        soon(outcome).await.unwrap()
    }

    pub(crate) async fn dial(&self, address: &Multiaddr) -> Connected {
        soon(self.dialing(address, DIAL).await).await.unwrap()
    }

    pub(crate) async fn accept(&mut self) -> (Multiaddr, Connected) {
        soon(self.inbound.recv()).await.unwrap()
    }
}

/// Two nodes with a connection: how the first and how the second sees it.
pub(crate) async fn connect(from: &mut Node, to: &mut Node) -> (StreamMuxerBox, StreamMuxerBox) {
    let address = to.listen("/ip4/127.0.0.1/udp/0/quic-v1").await;
    let address = address.with_p2p(to.id).unwrap();
    let (dialled, (_, accepted)) = tokio::join!(from.dial(&address), to.accept());
    let ((them, here), (me, there)) = (dialled.unwrap(), accepted.unwrap());
    assert_eq!((them, me), (to.id, from.id));
    (here, there)
}

pub(crate) async fn open(muxer: &mut StreamMuxerBox) -> SubstreamBox {
    soon(poll_fn(|context| muxer.poll_outbound_unpin(context))).await.unwrap()
}

pub(crate) async fn accept(muxer: &mut StreamMuxerBox) -> SubstreamBox {
    soon(poll_fn(|context| muxer.poll_inbound_unpin(context))).await.unwrap()
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let words = (seed..).map(|i| i.wrapping_mul(2_654_435_761));
    words.flat_map(u32::to_le_bytes).take(length).collect()
}

/// Sends `bytes` there and expects the same back.
pub(crate) async fn ask(stream: &mut SubstreamBox, bytes: &[u8]) {
    let (mut read, mut write) = stream.split();
    let sent = async {
        write.write_all(bytes).await.unwrap();
        write.close().await.unwrap();
    };
    let mut back = Vec::new();
    let ((), read) = soon(async { tokio::join!(sent, read.read_to_end(&mut back)) }).await;
    read.unwrap();
    assert!(back == bytes, "{} of {} bytes came back", back.len(), bytes.len());
}

/// Sends back what comes, to its end.
pub(crate) async fn echo(mut stream: SubstreamBox) {
    let (mut read, mut write) = (&mut stream).split();
    soon(futures::io::copy(&mut read, &mut write)).await.unwrap();
    write.close().await.unwrap();
}

/// What our transport said in an error that came through libp2p's wrappers.
pub(crate) fn cause(error: &io::Error) -> &Error {
    error.get_ref().and_then(|inner| inner.downcast_ref()).expect("an error of this transport")
}
