//! The network's task: one loop over connection events, stream reports, commands and deadlines.

mod connections;
mod handshake;
mod removal;

use std::collections::BTreeSet;

use dnode_direct::Arrival;
use dnode_protocol::PeerId;
use dnode_quic::BulkConnection;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

use crate::address::from_libp2p;
use crate::admission::Admission;
use crate::context::Context;
use crate::copies::Copies;
use crate::discovery::Discovery;
use crate::event::{DownReason, NetworkEvent, OffenceKind};
use crate::handle::Command;
use crate::io::report::SessionEvent;
use crate::limits::{
    CIRCUIT_OPEN_MAX, NOT_INVITED_BACK_OFF, OFFENCE_BACK_OFF, REFUSED_BACK_OFF, RELAYED_AGAIN, TICK,
};
use crate::sessions::Sessions;

/// How long a process that was refused as a copy does not dial the peer that refused it.
const COPY_BACK_OFF: Duration = Duration::from_secs(60);

/// The channels to which the network's task listens besides its swarm, and the one to which it reports.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) links: mpsc::Receiver<SessionEvent>,
    /// Bulk connections and direct paths that peers open.
    pub(crate) bulk: mpsc::Receiver<BulkConnection>,
    pub(crate) direct: mpsc::Receiver<Arrival>,
    pub(crate) events: mpsc::Sender<NetworkEvent>,
}

/// The parts of a running network.
pub(crate) struct Service {
    context: Context,
    sessions: Sessions,
    discovery: Discovery,
    copies: Copies,
    admission: Admission,
    /// Connected libp2p nodes that are no dnode peers.
    strangers: BTreeSet<PeerId>,
}

impl Service {
    pub(crate) fn new(
        context: Context,
        sessions: Sessions,
        discovery: Discovery,
        admission: Admission,
    ) -> Self {
        let (copies, strangers) = (Copies::default(), BTreeSet::new());
        Self { context, sessions, discovery, copies, admission, strangers }
    }

    /// Runs until it is shut down, or until nobody holds a handle or receives events any more.
    pub(crate) async fn run(mut self, inputs: Inputs) {
        let Inputs { mut commands, mut links, mut bulk, mut direct, events } = inputs;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.is_done() {
            let outbox = &self.context.outbox;
            let (may_report, must_deliver) = (!outbox.is_full(), !outbox.is_empty());
            tokio::select! {
                permit = events.reserve(), if must_deliver => {
                    let Ok(permit) = permit else { break };
                    self.context.outbox.deliver(permit);
                }
                Some(connection) = bulk.recv(), if may_report => {
                    self.sessions.on_bulk_arrived(connection, &mut self.context);
                }
                Some(path) = direct.recv(), if may_report => {
                    self.sessions.on_direct_arrived(path, &mut self.context);
                }
                Some(event) = links.recv(), if may_report => self.on_session_event(event).await,
                event = self.context.swarm.select_next_some(), if may_report => {
                    self.on_swarm_event(event).await;
                }
                command = commands.recv() => match command {
                    Some(command) => self.on_command(command).await,
                    None => break,
                },
                _ = tick.tick() => self.on_tick().await,
            }
        }
        self.context.shared.clear();
        self.sessions.end().await;
        self.context.end();
    }

    fn is_done(&self) -> bool {
        self.context.is_stopping() && (self.sessions.is_empty() || self.context.is_overdue())
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Dial(address) => {
                if let Err(error) = self.context.swarm.dial(address.clone()) {
                    tracing::warn!(%address, %error, "cannot dial");
                }
            }
            Command::OpenChannel(peer, subject, done) => {
                self.sessions.open_channel((peer, subject), done);
            }
            Command::Disconnect(peer, back_off) => {
                self.end_session(peer, DownReason::Disconnected).await;
                self.context.block(peer, back_off);
            }
            Command::Revoke(statements) => self.on_revocations(None, statements).await,
            Command::TellDigest(digest) => self.context.greeting.tell(digest),
            Command::Shutdown(done) => {
                self.context.shared.clear();
                self.sessions.drain();
                self.context.stop(done);
            }
        }
    }

    async fn on_tick(&mut self) {
        let now = Instant::now();
        self.check_handshakes(now).await;
        self.context.unblock_due(now);
        if self.context.is_stopping() {
            return;
        }
        self.look_at_expiry().await;
        self.tell_uses();
        if let Some(how) = self.copies.met(now) {
            self.context.outbox.report(NetworkEvent::Copied { how });
        }
        for connection in self.copies.told(now) {
            self.context.swarm.close_connection(connection);
        }
        let Context { traversal, swarm, .. } = &mut self.context;
        for (peer, address) in traversal.settle(now, swarm) {
            if let Some(peer) = from_libp2p(peer) {
                self.move_streams(peer, &address).await;
            }
        }
        let Context { traversal, swarm, .. } = &mut self.context;
        traversal.reserve(now, swarm);
        self.dial_due(now);
        for peer in self.sessions.due_over_quic(now) {
            self.discovery.dial_quic(peer, &mut self.context);
        }
        self.discovery.search(now, self.sessions.active(), &mut self.context);
        self.sessions.seek_direct(now);
    }

    fn dial_due(&mut self, now: Instant) {
        self.discovery.dial_due(now, self.sessions.active(), &mut self.context);
    }

    /// Forgets the session of a peer, and reports the peer down if it was up. Its connections stay open.
    async fn end_session(&mut self, peer: PeerId, reason: DownReason) {
        let Some(ended) = self.sessions.remove(peer) else {
            return;
        };
        self.admission.forget(peer);
        let context = &mut self.context;
        context.allow_punch(peer, false);
        if let Some(until) = ended.sought_until {
            no_direct_path(peer, until, context, &mut self.discovery);
        }
        // A later session can be in the map only if this one was removed from it.
        let (was_up, aside) = (ended.was_up, ended.is_aside());
        if was_up {
            context.shared.peers().remove(&peer);
            context.shared.slots().remove(&peer);
        }
        ended.end().await;
        if was_up && !context.is_stopping() {
            tracing::debug!(%peer, %reason, "peer down");
            context.outbox.report(if aside {
                NetworkEvent::RelayDown { peer, reason }
            } else {
                NetworkEvent::PeerDown { peer, reason }
            });
        }
    }

    /// Ends the session of a peer that broke the protocol, and blocks it.
    async fn offend(&mut self, peer: PeerId, kind: OffenceKind, detail: String) {
        tracing::debug!(%peer, %kind, detail, "peer broke the protocol");
        self.context.outbox.report(NetworkEvent::Offence { peer, kind, detail });
        self.end_session(peer, DownReason::Offence).await;
        self.context.block(peer, OFFENCE_BACK_OFF);
    }

    /// Ends the session of a peer and closes its connections.
    async fn hang_up(&mut self, peer: PeerId, reason: DownReason) {
        self.end_session(peer, reason).await;
        self.context.disconnect(peer);
    }

    /// Ends the session of a peer of another run, and neither dials nor accepts it.
    async fn hang_up_refused(&mut self, peer: PeerId) {
        if self.sessions.is_copy(peer) {
            // The process that stays connected has the same name.
            self.hang_up(peer, DownReason::Refused).await;
            return;
        }
        let may_come = self.admission.take_turned_away(peer);
        self.end_session(peer, DownReason::Refused).await;
        self.discovery.on_refused(peer);
        self.context.block(peer, if may_come { NOT_INVITED_BACK_OFF } else { REFUSED_BACK_OFF });
    }

    /// Handles that a peer keeps another process with our key. That one may have gone later, so the peer
    /// is asked again.
    async fn hang_up_as_copy(&mut self, peer: PeerId) {
        self.end_session(peer, DownReason::Refused).await;
        // Dials only after the block has ended.
        self.discovery.dial_later(peer, Instant::now() + COPY_BACK_OFF + TICK * 2);
        self.context.block(peer, COPY_BACK_OFF);
    }
}

/// Handles the end of a session with a peer that was reached through a relay, where a direct path was
/// sought until the time `until`. If that time has nearly come, no path was found; both ends find that
/// out at about the same time.
fn no_direct_path(peer: PeerId, until: Instant, context: &mut Context, discovery: &mut Discovery) {
    let now = Instant::now();
    if context.is_stopping() || until > now + CIRCUIT_OPEN_MAX {
        return;
    }
    discovery.hold(peer, now + RELAYED_AGAIN, context);
    context.traversal.on_no_direct_path(peer);
}
