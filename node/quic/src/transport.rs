//! The transport that the swarm listens, dials and accepts with.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;
use if_watch::tokio::IfWatcher;
use libp2p_core::Multiaddr;
use libp2p_core::transport::{DialOpts, ListenerId, PortUse, TransportError, TransportEvent};
use libp2p_identity::{Keypair, PeerId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::address;
use crate::bulk::{Bulk, BulkConnection};
use crate::config::{Config, Purpose};
use crate::connection::{Connection, dial, finish};
use crate::endpoints::{Endpoints, Live};
use crate::error::{Error, SetUpError};
use crate::limits::{
    ARRIVALS_MAX, BULK_ARRIVALS_MAX, HANDSHAKE_TIMEOUT, PROOF_TIMEOUT, PUNCHES_MAX,
};
use crate::listener::{self, Arrival, Incomer, Outlets};
use crate::punch::punch;

/// Events as the swarm takes them.
type Event = TransportEvent<Upgrade, Error>;

/// A connection in its handshake.
type Upgrade = BoxFuture<'static, Result<(PeerId, Connection), Error>>;

/// QUIC version 1 for libp2p: listens, dials and punches holes from one socket per address.
///
/// Addresses are `/ip4|ip6/…/udp/…/quic-v1[/p2p/…]`. With `/p2p/…` any other peer is refused inside the
/// handshake. All methods must be called in a tokio runtime.
#[derive(Debug)]
pub struct Transport {
    endpoints: Arc<Endpoints>,
    outlets: Outlets,
    arrivals: mpsc::Receiver<Arrival>,
    listeners: HashMap<ListenerId, Task>,
    closed: VecDeque<ListenerId>,
    /// Addresses that need no watching.
    fixed: VecDeque<(ListenerId, SocketAddr)>,
    /// Dials that wait for the other end to come through the hole, by its address.
    punches: BTreeMap<SocketAddr, oneshot::Sender<Incomer>>,
    waker: Option<Waker>,
}

impl Transport {
    /// A transport for the owner of `key`, the bulk side of its sockets, and the bulk connections
    /// that others open.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new(key: &Keypair) -> Result<(Self, Bulk, mpsc::Receiver<BulkConnection>), SetUpError> {
        Self::of(Config::new(key, Purpose::Libp2p)?)
    }

    /// The same for a swarm that lets in only those who know a secret, which its owner checks. Its
    /// connections have a name of their own: an end of another kind is refused inside the handshake.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn closed(
        key: &Keypair,
    ) -> Result<(Self, Bulk, mpsc::Receiver<BulkConnection>), SetUpError> {
        Self::of(Config::new(key, Purpose::Closed)?)
    }

    fn of(config: Config) -> Result<(Self, Bulk, mpsc::Receiver<BulkConnection>), SetUpError> {
        let endpoints = Arc::new(Endpoints::new(config));
        let (sender, arrivals) = mpsc::channel(ARRIVALS_MAX);
        let (bulk, bulk_arrivals) = mpsc::channel(BULK_ARRIVALS_MAX);
        let transport = Self {
            endpoints: Arc::clone(&endpoints),
            outlets: Outlets { arrivals: sender, bulk },
            arrivals,
            listeners: HashMap::new(),
            closed: VecDeque::new(),
            fixed: VecDeque::new(),
            punches: BTreeMap::new(),
            waker: None,
        };
        Ok((transport, Bulk::new(endpoints), bulk_arrivals))
    }

    /// Opens a way in through our NAT for `peer`, which dials us at the same time.
    ///
    /// Source: libp2p DCUtR specification, "The Protocol", step 5 for QUIC: random packets from the
    /// listening socket, at random intervals of 10 to 200 ms, until the connection comes in.
    fn punch(&mut self, remote: SocketAddr, peer: Option<PeerId>) -> Result<Upgrade, Error> {
        let peer = peer.ok_or(Error::NoPeer)?;
        let listening = self.endpoints.listening(remote.ip()).ok_or(Error::NoListener)?;
        self.punches.retain(|_, waiting| !waiting.is_closed());
        if self.punches.contains_key(&remote) {
            return Err(Error::PunchInProgress(remote));
        }
        if self.punches.len() >= PUNCHES_MAX {
            return Err(Error::TooManyPunches);
        }
        let (found, came) = oneshot::channel();
        self.punches.insert(remote, found);
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let endpoints = Arc::clone(&self.endpoints);
        Ok(Box::pin(async move {
            let incomer = tokio::select! {
                // The sender is kept until it is used or this future is dropped.
                incomer = came => incomer.map_err(|_| Error::NoListener)?,
                error = punch(&listening.socket, remote, deadline) => return Err(error),
            };
            let (obtained, connection) = finish(endpoints, incomer).await?;
            if obtained == peer {
                Ok((obtained, connection))
            } else {
                Err(Error::WrongPeer { obtained })
            }
        }))
    }

    /// An inbound connection as the swarm takes it; `None` when a hole was punched for it.
    fn incoming(&mut self, incomer: Incomer) -> Option<Event> {
        let incomer = match self.punches.remove(&incomer.remote) {
            Some(waiting) => waiting.send(incomer).err()?,
            None => incomer,
        };
        Some(TransportEvent::Incoming {
            listener_id: incomer.listener,
            local_addr: address::of(incomer.local),
            send_back_addr: address::of(incomer.remote),
            upgrade: Box::pin(finish(Arc::clone(&self.endpoints), incomer)),
        })
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// What the swarm is told of an arrival; of a stopped listener nothing.
    fn event(&mut self, arrival: Arrival) -> Option<Event> {
        let known = |id| self.listeners.contains_key(&id);
        match arrival {
            Arrival::Up(id, at) if known(id) => {
                Some(TransportEvent::NewAddress { listener_id: id, listen_addr: address::of(at) })
            }
            Arrival::Down(id, at) if known(id) => Some(TransportEvent::AddressExpired {
                listener_id: id,
                listen_addr: address::of(at),
            }),
            Arrival::Blind(id, error) if known(id) => {
                Some(TransportEvent::ListenerError { listener_id: id, error: error.into() })
            }
            Arrival::Incoming(incomer) if known(incomer.listener) => self.incoming(incomer),
            Arrival::Up(..) | Arrival::Down(..) | Arrival::Blind(..) | Arrival::Incoming(_) => None,
        }
    }
}

impl libp2p_core::Transport for Transport {
    type Output = (PeerId, Connection);
    type Error = Error;
    type ListenerUpgrade = Upgrade;
    type Dial = Upgrade;

    fn listen_on(
        &mut self,
        id: ListenerId,
        address: Multiaddr,
    ) -> Result<(), TransportError<Error>> {
        let Some((socket, _)) = address::parse(&address) else {
            return Err(TransportError::MultiaddrNotSupported(address));
        };
        let listen = || {
            let watcher = socket.ip().is_unspecified().then(IfWatcher::new).transpose()?;
            Ok::<_, Error>((self.endpoints.listen(id, socket)?, watcher))
        };
        let (listening, watcher) = listen().map_err(TransportError::Other)?;
        if watcher.is_none() {
            self.fixed.push_back((id, listening.local));
            self.wake();
        }
        let task = tokio::spawn(listener::run(listening, watcher, self.outlets.clone()));
        self.listeners.insert(id, Task(task));
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let known = self.listeners.remove(&id).is_some();
        if known {
            self.endpoints.stop(id);
            self.closed.push_back(id);
            self.wake();
        }
        known
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Upgrade, TransportError<Error>> {
        let target = address::parse(&address);
        let Some((remote, peer)) = target.filter(|(socket, _)| address::can_be_dialled(socket))
        else {
            return Err(TransportError::MultiaddrNotSupported(address));
        };
        if options.role.is_listener() {
            return self.punch(remote, peer).map_err(TransportError::Other);
        }
        let endpoints = Arc::clone(&self.endpoints);
        Ok(Box::pin(async move {
            let endpoint = endpoints.dialing(remote.ip(), options.port_use)?;
            let to = (&endpoint, remote);
            let dialled = dial(&endpoints.config, to, peer, endpoints.config.swarm);
            // From a port of its own an address is proven; nothing else shall go that way.
            let proof = options.port_use == PortUse::New;
            let limit = if proof { PROOF_TIMEOUT } else { HANDSHAKE_TIMEOUT };
            let (peer, connection) =
                timeout(limit, dialled).await.map_err(|_| Error::Timeout)??;
            let live = Live { connection, endpoint };
            let live = if proof { Arc::new(live) } else { endpoints.connected(peer, live) };
            Ok((peer, Connection::new(live)))
        }))
    }

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        let this = self.get_mut();
        if let Some(listener_id) = this.closed.pop_front() {
            return Poll::Ready(TransportEvent::ListenerClosed { listener_id, reason: Ok(()) });
        }
        while let Some((id, at)) = this.fixed.pop_front() {
            if let Some(event) = this.event(Arrival::Up(id, at)) {
                return Poll::Ready(event);
            }
        }
        // The channel stays open: this transport holds a sender.
        while let Poll::Ready(Some(arrival)) = this.arrivals.poll_recv(context) {
            if let Some(event) = this.event(arrival) {
                return Poll::Ready(event);
            }
        }
        this.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Transport {
    /// Stops to listen; connections stay with their owners.
    fn drop(&mut self) {
        for id in std::mem::take(&mut self.listeners).into_keys() {
            self.endpoints.stop(id);
        }
    }
}

/// A listener's task, which ends with it.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
