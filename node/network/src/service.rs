//! The network's task: one loop over connection events, stream reports, commands and deadlines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dnode_protocol::{PeerId, RunSpec, SharedSettings};
use futures::StreamExt;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, Swarm};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant};

use crate::config::NetworkConfig;
use crate::copies::Copies;
use crate::dialer::Dialer;
use crate::direct::DirectPlane;
use crate::discovery::Schedule;
use crate::event::{DownReason, NetworkEvent};
use crate::handle::{Command, Shared};
use crate::limits::{
    BLOCKED_PEERS_MAX, OFFENCE_BACK_OFF, OUTBOX_MAX, REFUSED_BACK_OFF, SHUTDOWN_MAX, TICK,
};
use crate::link::LinkEvent;
use crate::session::{Channels, Session, Stage};
use crate::swarm::{Behaviour, BulkPlane};
use crate::traversal::Traversal;

/// What waits for room in the event queue.
#[derive(Debug)]
pub(crate) enum Pending {
    Event(NetworkEvent),
    /// A reader that may deliver once everything before it was delivered.
    Release(oneshot::Sender<()>),
}

/// The state of a running network.
pub(crate) struct Service {
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) me: PeerId,
    pub(crate) run: RunSpec,
    pub(crate) settings: SharedSettings,
    /// The digest of the first step, for those who ask; may be empty.
    pub(crate) digest: String,
    /// Our hello, a complete frame.
    pub(crate) hello: Vec<u8>,
    pub(crate) peers_max: usize,
    pub(crate) peers_target: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) channels: Channels,
    pub(crate) sessions: BTreeMap<PeerId, Session>,
    pub(crate) sessions_begun: u64,
    pub(crate) dialer: Dialer,
    pub(crate) copies: Copies,
    pub(crate) schedule: Schedule,
    /// Bulk connections on the swarm's sockets.
    pub(crate) bulk: BulkPlane,
    /// Direct paths inside this host and local networks.
    pub(crate) direct: DirectPlane,
    /// NATs, this peer's and others'.
    pub(crate) traversal: Traversal,
    outbox: VecDeque<Pending>,
    blocked: BTreeMap<PeerId, Instant>,
    stopping: Option<(oneshot::Sender<()>, Instant)>,
}

/// What the service is made of besides its configuration.
pub(crate) struct Parts {
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) bulk: BulkPlane,
    pub(crate) direct: DirectPlane,
    pub(crate) me: PeerId,
    pub(crate) hello: Vec<u8>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) channels: Channels,
}

/// A blocked or unknown peer id cannot be converted: nothing is to be done with it.
pub(crate) fn to_libp2p(peer: PeerId) -> Option<libp2p::PeerId> {
    libp2p::PeerId::from_bytes(&peer.to_libp2p_bytes()).ok()
}

/// `None` for keys of other kinds than Ed25519: such a node is no dnode peer.
pub(crate) fn from_libp2p(peer: libp2p::PeerId) -> Option<PeerId> {
    PeerId::from_libp2p_bytes(&peer.to_bytes())
}

impl Service {
    pub(crate) fn new(config: NetworkConfig, parts: Parts) -> Self {
        let now = Instant::now();
        let key = parts.me.public_key();
        let seed = key
            .iter()
            .fold(config.incarnation, |seed, byte| seed.rotate_left(7) ^ u64::from(*byte));
        let buffers = parts.bulk.bulk.buffers();
        let buffers = buffers.map(|buffers| NetworkEvent::SocketBuffers { buffers });
        let mut dialer = Dialer::new(&config.bootstrap, seed, now);
        for mut address in config.remembered {
            if let Some(Protocol::P2p(id)) = address.pop()
                && let Some(peer) = from_libp2p(id)
            {
                dialer.remember(peer, &address, now);
            }
        }
        let mut traversal = Traversal::new(*parts.swarm.local_peer_id(), &config.nat);
        for address in parts.swarm.external_addresses() {
            traversal.told_external(address);
        }
        Self {
            traversal,
            swarm: parts.swarm,
            me: parts.me,
            schedule: Schedule::new(&config.run.id(), now),
            run: config.run,
            settings: config.settings,
            digest: config.digest,
            hello: parts.hello,
            peers_max: config.peers_max,
            peers_target: config.peers_target,
            shared: parts.shared,
            channels: parts.channels,
            sessions: BTreeMap::new(),
            sessions_begun: 0,
            dialer,
            copies: Copies::default(),
            outbox: buffers.map(Pending::Event).into_iter().collect(),
            bulk: parts.bulk,
            direct: parts.direct,
            blocked: BTreeMap::new(),
            stopping: None,
        }
    }

    /// Runs until shut down, or until nobody holds a handle or listens to events.
    pub(crate) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut links: mpsc::Receiver<LinkEvent>,
    ) {
        let events = self.channels.events.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.is_done() {
            let may_report = self.outbox.len() < OUTBOX_MAX;
            tokio::select! {
                permit = events.reserve(), if !self.outbox.is_empty() => {
                    let Ok(permit) = permit else { break };
                    self.deliver(permit);
                }
                Some(connection) = self.bulk.arrivals.recv(), if may_report => {
                    self.bulk_arrived(connection);
                }
                Some(path) = self.direct.arrivals.recv(), if may_report => {
                    self.direct_arrived(path);
                }
                Some(event) = links.recv(), if may_report => self.handle_link(event).await,
                event = self.swarm.select_next_some(), if may_report => {
                    self.handle_swarm(event).await;
                }
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command).await,
                    None => break,
                },
                _ = tick.tick() => self.handle_tick().await,
            }
        }
        self.shared.peers().clear();
        let peers: Vec<_> = self.sessions.keys().copied().collect();
        for peer in peers {
            if let Some(session) = self.sessions.remove(&peer) {
                session.end().await;
            }
        }
        if let Some((done, _)) = self.stopping.take() {
            drop(self.swarm);
            // An error means that nobody waits any more.
            let _ = done.send(());
        }
    }

    fn is_done(&self) -> bool {
        let hung_up = || self.sessions.is_empty();
        let waited = |deadline: Instant| Instant::now() >= deadline;
        matches!(self.stopping, Some((_, deadline)) if hung_up() || waited(deadline))
    }

    /// Hands on the oldest event, and the releases that follow it.
    fn deliver(&mut self, permit: mpsc::Permit<'_, NetworkEvent>) {
        let mut permit = Some(permit);
        while let Some(pending) = self.outbox.pop_front() {
            match (pending, permit.take()) {
                (Pending::Event(event), Some(permit)) => permit.send(event),
                (event @ Pending::Event(_), None) => {
                    self.outbox.push_front(event);
                    break;
                }
                (Pending::Release(release), unused) => {
                    permit = unused;
                    // An error means that the reader has ended.
                    let _ = release.send(());
                }
            }
        }
    }

    pub(crate) fn report(&mut self, event: NetworkEvent) {
        self.outbox.push_back(Pending::Event(event));
    }

    pub(crate) fn release(&mut self, releases: Vec<oneshot::Sender<()>>) {
        self.outbox.extend(releases.into_iter().map(Pending::Release));
    }

    async fn handle_command(&mut self, command: Command) {
        match command {
            Command::Dial(address) => self.dial_once(address),
            Command::OpenChannel(peer, subject, done) => self.open_channel((peer, subject), done),
            Command::Disconnect(peer, back_off) => {
                self.end_session(peer, DownReason::Disconnected).await;
                self.block(peer, back_off);
            }
            Command::Shutdown(done) => {
                // Without senders the writers drain their queues and end their streams; a peer that
                // has read to the end hangs up.
                self.shared.peers().clear();
                for session in self.sessions.values_mut() {
                    session.senders = None;
                }
                self.stopping = Some((done, Instant::now() + SHUTDOWN_MAX));
            }
        }
    }

    pub(crate) const fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    async fn handle_tick(&mut self) {
        let now = Instant::now();
        self.check_handshakes(now).await;
        let free: Vec<_> = self.blocked.iter().filter(|(_, at)| **at <= now).collect();
        let free: Vec<_> = free.into_iter().map(|(peer, _)| *peer).collect();
        for peer in free {
            self.unblock(peer);
        }
        if self.is_stopping() {
            return;
        }
        self.look_for_copies(now);
        self.traverse(now);
        self.dial_due(now);
        self.discover(now);
        self.seek_direct(now);
    }

    /// Closes all connections to `peer` and refuses new ones for `back_off`.
    pub(crate) fn block(&mut self, peer: PeerId, back_off: Duration) {
        let Some(id) = to_libp2p(peer) else { return };
        if self.blocked.len() >= BLOCKED_PEERS_MAX
            && let Some((&soonest, _)) = self.blocked.iter().min_by_key(|(_, at)| **at)
        {
            self.unblock(soonest);
        }
        self.blocked.insert(peer, Instant::now() + back_off);
        self.swarm.behaviour_mut().blocked.block_peer(id);
        // A peer that was blocked already, and one being blocked, keep no connection.
        let _ = self.swarm.disconnect_peer_id(id);
    }

    pub(crate) fn is_blocked(&self, peer: PeerId) -> bool {
        self.blocked.contains_key(&peer)
    }

    fn unblock(&mut self, peer: PeerId) {
        self.blocked.remove(&peer);
        if let Some(id) = to_libp2p(peer) {
            self.swarm.behaviour_mut().blocked.unblock_peer(id);
        }
    }

    /// Forgets the session, and reports the peer down if it was up. Connections stay.
    pub(crate) async fn end_session(&mut self, peer: PeerId, reason: DownReason) {
        let Some(session) = self.sessions.remove(&peer) else {
            return;
        };
        let was_up = session.is_up();
        self.allow_punch(peer, false);
        if let Stage::Relayed(_, until) = session.stage {
            self.no_direct_path(peer, until);
        }
        // A later session may be in the map already only if this one was removed from it.
        if was_up {
            self.shared.peers().remove(&peer);
        }
        session.end().await;
        if was_up && !self.is_stopping() {
            tracing::debug!(%peer, %reason, "peer down");
            self.report(NetworkEvent::PeerDown { peer, reason });
        }
    }

    /// Ends the session of a peer that broke the protocol, and blocks it.
    pub(crate) async fn offend(
        &mut self,
        peer: PeerId,
        kind: crate::event::OffenceKind,
        detail: String,
    ) {
        tracing::debug!(%peer, %kind, detail, "peer broke the protocol");
        self.report(NetworkEvent::Offence { peer, kind, detail });
        self.end_session(peer, DownReason::Offence).await;
        self.block(peer, OFFENCE_BACK_OFF);
    }

    /// Ends the session of a peer of another run, and neither dials nor accepts it.
    pub(crate) async fn hang_up_refused(&mut self, peer: PeerId) {
        if self.is_copy(peer) {
            // The process that is kept has the same name.
            self.hang_up(peer, DownReason::Refused).await;
            return;
        }
        self.end_session(peer, DownReason::Refused).await;
        self.dialer.refused(peer);
        self.block(peer, REFUSED_BACK_OFF);
    }

    /// Ends the session of a peer that has not greeted within [`crate::limits::HELLO_TIMEOUT`].
    /// It may have been stopped or cut off since it connected, so it may come again at once.
    pub(crate) async fn hang_up_silent(&mut self, peer: PeerId) {
        tracing::debug!(%peer, within = ?crate::limits::HELLO_TIMEOUT, "no hello");
        self.hang_up(peer, DownReason::Lost("it did not greet".to_owned())).await;
    }

    /// Ends the session of a peer that no direct path leads to: what it has of a relay serves nobody.
    pub(crate) async fn hang_up_relayed(&mut self, peer: PeerId) {
        self.hang_up(peer, DownReason::Lost("no direct path".to_owned())).await;
    }

    /// Ends the session of a peer and closes its connections.
    pub(crate) async fn hang_up(&mut self, peer: PeerId, reason: DownReason) {
        self.end_session(peer, reason).await;
        if let Some(id) = to_libp2p(peer) {
            // Its last connection may have gone by itself.
            let _ = self.swarm.disconnect_peer_id(id);
        }
    }

    /// Our listening address as another peer dials it.
    pub(crate) fn full_address(&self, address: Multiaddr) -> Multiaddr {
        let plain = address.clone();
        address.with_p2p(*self.swarm.local_peer_id()).unwrap_or(plain)
    }

    /// Peers in the handshake or done with it, but those that no tensors can be exchanged with.
    pub(crate) fn active(&self) -> usize {
        let counts =
            |session: &&Session| matches!(session.stage, Stage::Greeting(_) | Stage::Up(_));
        self.sessions.values().filter(counts).count()
    }
}
