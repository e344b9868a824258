//! The peers to which connections exist, and the streams to each.

mod direct;
mod search;
mod session;
mod streams;

use std::collections::BTreeMap;

use dnode_direct::Direct;
use dnode_protocol::frame::encode_control;
use dnode_protocol::invitation::Role;
use dnode_protocol::{Message, PeerId, RunDifference};
use dnode_quic::Bulk;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, ping};
use tokio::time::Instant;

use crate::address::from_libp2p;
use crate::context::Context;
use crate::event::{Connection, Invited, NetworkEvent};
use crate::handle::Entry;
use crate::io::report::{Origin, Outgoing, Via};
use crate::limits::{GUESTS_MAX, MOVE_MAX, PUNCHING_MAX, REFUSE_LINGER, RELAYED_MAX};
use crate::slots::{Issued, Verdict};
use crate::swarm::streams::{Path, StreamKind};
use session::Session;
pub(crate) use session::{Channels, Stage};

/// All sessions, and what opens bulk connections and direct paths for them.
#[derive(Debug)]
pub(crate) struct Sessions {
    sessions: BTreeMap<PeerId, Session>,
    /// Sessions begun so far.
    begun: u64,
    channels: Channels,
    /// Opens bulk connections on the swarm's sockets.
    bulk: Bulk,
    /// Opens direct paths inside this host and local networks.
    direct: Direct,
}

/// A session that has ended; only its tasks still run.
#[derive(Debug)]
pub(crate) struct Ended {
    session: Session,
    /// Whether the peer counted as connected.
    pub(crate) was_up: bool,
    /// Until when a direct path was sought, if only a relay led to the peer.
    pub(crate) sought_until: Option<Instant>,
}

impl Ended {
    /// Whether one of the two only relays.
    pub(crate) const fn is_aside(&self) -> bool {
        self.session.part.aside
    }

    /// Ends every task. After that no reader delivers anything.
    pub(crate) async fn end(self) {
        self.session.end().await;
    }
}

/// What a peer has to do with this one, by the chain that it has shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// By which invitation it came, in a run with owners, and how many may come by it.
    pub(crate) invitation: Option<(Issued, u8)>,
    pub(crate) role: Role,
    /// Whether one of the two only relays: they tell each other who was removed, and nothing else.
    pub(crate) aside: bool,
}

impl Part {
    /// Whether it is one of the peers with which this one may exchange, which have places.
    const fn has_place(&self) -> bool {
        matches!(self.role, Role::Train) && !self.aside
    }

    /// Whether there is room for one of those that have no places, beside so many that do not train, and so many of
    /// at most `most` that are met to relay.
    fn place_beside(&self, guests: usize, (aside, most): (usize, usize)) -> Verdict {
        let full = self.role < Role::Train && guests >= GUESTS_MAX;
        let full = full || self.aside && aside >= most;
        if full { Verdict::Full } else { Verdict::Free }
    }
}

impl Default for Part {
    fn default() -> Self {
        Self { invitation: None, role: Role::Train, aside: false }
    }
}

/// What follows from a hello that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Nothing yet: something else is missing.
    Waits,
    /// The peer is up. The field says which start of its process it is.
    Up(u64),
    /// There is room once this other peer has gone.
    InsteadOf(PeerId),
    /// There is no room for another peer.
    Full,
}

/// What took too long in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// The peer has not greeted.
    Silent,
    /// The peer is refused, and has had the time to read why.
    Refused,
    /// No direct path to the peer was found.
    Relayed,
}

impl Sessions {
    pub(crate) const fn new(channels: Channels, bulk: Bulk, direct: Direct) -> Self {
        Self { sessions: BTreeMap::new(), begun: 0, channels, bulk, direct }
    }

    pub(crate) fn contains(&self, peer: PeerId) -> bool {
        self.sessions.contains_key(&peer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(crate) fn stage(&self, peer: PeerId) -> Option<Stage> {
        self.sessions.get(&peer).map(|session| session.stage)
    }

    pub(crate) fn is_up(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_some_and(Session::is_up)
    }

    /// Whether `number` is that of the present session of `peer`, not of an earlier one.
    pub(crate) fn is_current(&self, peer: PeerId, number: u64) -> bool {
        self.sessions.get(&peer).is_some_and(|session| session.number == number)
    }

    /// The other end of the best connection to `peer`.
    pub(crate) fn address(&self, peer: PeerId) -> Option<&Multiaddr> {
        self.sessions.get(&peer)?.address.as_ref()
    }

    /// Whether a peer is up and one of those with which this peer has to do.
    pub(crate) fn exchanges(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_some_and(|session| session.is_up() && !session.part.aside)
    }

    /// Number of peers in the handshake or done with it, without those with which no tensors can be
    /// exchanged and those that do not train.
    pub(crate) fn active(&self) -> usize {
        let counts = |session: &&Session| match session.stage {
            // Who comes and says nothing is none that this peer has.
            Stage::Greeting(_) => session.dialled,
            Stage::Up(_) => session.part.role == Role::Train,
            Stage::Relayed(..) | Stage::Refusing(_) => false,
        };
        self.sessions.values().filter(counts).count()
    }

    /// Whether there is room for one more peer that is reached through a relay alone.
    pub(crate) fn may_be_relayed(&self) -> bool {
        let relayed = |session: &&Session| {
            let waits = matches!(session.stage, Stage::Greeting(_) | Stage::Relayed(..));
            waits && session.address.as_ref().is_some_and(|at| Path::of(at) == Path::Relayed)
        };
        self.sessions.values().filter(relayed).count() < RELAYED_MAX
    }

    /// Begins a session, when the first connection to `peer` is there. `dialled`: whether this peer has
    /// made it.
    pub(crate) fn begin(
        &mut self,
        peer: PeerId,
        (address, dialled): (Multiaddr, bool),
        context: &mut Context,
    ) {
        self.begun += 1;
        let channels = self.channels.clone();
        let mut session = Session::new(peer, self.begun, channels, Instant::now());
        session.dialled = dialled;
        self.sessions.insert(peer, session.reached_at(address));
        self.open(peer, StreamKind::Control, context);
    }

    /// Peers that were reached over TCP and may be dialled over QUIC now.
    pub(crate) fn due_over_quic(&mut self, now: Instant) -> Vec<PeerId> {
        let due =
            self.sessions.iter_mut().filter_map(|(peer, it)| it.is_quic_due(now).then_some(*peer));
        due.collect()
    }

    /// Forgets the session of `peer`. Its connections stay open.
    pub(crate) fn remove(&mut self, peer: PeerId) -> Option<Ended> {
        let session = self.sessions.remove(&peer)?;
        let was_up = session.was_up;
        let sought_until = match session.stage {
            Stage::Relayed(_, until) => Some(until),
            Stage::Greeting(_) | Stage::Up(_) | Stage::Refusing(_) => None,
        };
        Some(Ended { session, was_up, sought_until })
    }

    /// Ends all sessions.
    pub(crate) async fn end(self) {
        for session in self.sessions.into_values() {
            session.end().await;
        }
    }

    /// Drops the senders, so that the writers drain their queues and end their streams. A peer that has
    /// read to the end closes the connection.
    pub(crate) fn drain(&mut self) {
        for session in self.sessions.values_mut() {
            session.senders = None;
        }
    }

    /// Handles the result of a ping: a round-trip time, or no answer.
    pub(crate) fn on_ping(&mut self, event: ping::Event, context: &mut Context) {
        let rtt = match event.result {
            Ok(rtt) => rtt,
            Err(ping::Failure::Timeout) => {
                context.swarm.close_connection(event.connection);
                return;
            }
            Err(ping::Failure::Unsupported | ping::Failure::Other { .. }) => return,
        };
        let Some(peer) = from_libp2p(event.peer) else {
            return;
        };
        let known = context.shared.peers().get_mut(&peer).map(|entry| {
            let least = entry.rtt.map_or(rtt, |(_, least)| least.min(rtt));
            entry.rtt = Some((rtt, least));
            entry.aside
        });
        if let Some(aside) = known {
            if aside {
                return;
            }
            context.outbox.report(NetworkEvent::RoundTrip { peer, rtt });
        } else if let Some(session) = self.sessions.get_mut(&peer) {
            // The first ping ends before the hello arrives, and the next one comes much later.
            session.round_trip = Some(session.round_trip.map_or(rtt, |least| least.min(rtt)));
        }
    }

    /// Notes that a reader has ended. Returns the stage of its session.
    pub(crate) fn on_reader_ended(&mut self, origin: &Origin) -> Option<Stage> {
        let session = self.sessions.get_mut(&origin.peer)?;
        session.read(origin.stream);
        Some(session.stage)
    }

    /// Notes that the peer has ended its control stream. It may open another one on a connection that is
    /// not known here yet.
    pub(crate) fn on_unheard(&mut self, peer: PeerId) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.unheard.get_or_insert_with(|| Instant::now() + MOVE_MAX);
        }
    }

    /// Notes that the peer has greeted and is of the run.
    pub(crate) fn on_hello(
        &mut self,
        peer: PeerId,
        hello: (u64, ConnectionId),
        differences: Option<Vec<RunDifference>>,
        part: Part,
    ) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.greets(hello);
            session.part = part;
            if let Some(differences) = differences {
                session.differences = differences;
            }
        }
    }

    /// Sets the port of the peer for direct paths.
    pub(crate) fn set_direct_port(&mut self, peer: PeerId, port: u16) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.search.port = port;
        }
    }

    /// Lets the readers of a further connection deliver, on which a peer that is up has greeted.
    pub(crate) fn release(
        &mut self,
        peer: PeerId,
        hello: (u64, ConnectionId),
        context: &mut Context,
    ) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.greets(hello);
            if session.part.aside {
                session.withhold();
            } else {
                context.outbox.release(session.releases());
            }
        }
    }

    /// Reports the peer up once its hello has matched, the control stream to it is open, and tensors can
    /// be exchanged.
    pub(crate) fn complete(&mut self, peer: PeerId, context: &mut Context) -> Completion {
        let guests = |session: &&Session| session.is_up() && session.part.role < Role::Train;
        let guests = self.sessions.values().filter(guests).count();
        let aside = self.sessions.values().filter(|it| it.is_up() && it.part.aside).count();
        let Some(session) = self.sessions.get_mut(&peer) else {
            return Completion::Waits;
        };
        let (Stage::Greeting(_) | Stage::Relayed(..), Some(incarnation), true) =
            (session.stage, session.hello, session.can_speak())
        else {
            return Completion::Waits;
        };
        if context.is_stopping() {
            return Completion::Waits;
        }
        let greeting = matches!(session.stage, Stage::Greeting(_));
        if greeting {
            context.allow_punch(peer, true);
        }
        if !context.carries_tensors(peer) {
            if greeting {
                tracing::info!(%peer, "reached through a relay; seeking a direct path");
                session.stage = Stage::Relayed(incarnation, Instant::now() + PUNCHING_MAX);
            }
            return Completion::Waits;
        }
        let (guest, now, part) = (session.guest(), Instant::now(), session.part);
        let verdict = if part.has_place() {
            context.shared.slots().judge(&guest, now)
        } else {
            part.place_beside(guests, (aside, context.shared.slots().most()))
        };
        match verdict {
            Verdict::Free => {}
            Verdict::InsteadOf(other) => return Completion::InsteadOf(other),
            Verdict::Full => {
                tracing::debug!(%peer, "no room for another peer");
                return Completion::Full;
            }
        }
        let (Some([control, bulk]), Some(address)) =
            (session.senders.take(), session.address.clone())
        else {
            return Completion::Waits;
        };
        session.stage = Stage::Up(incarnation);
        session.was_up = true;
        let kind = Connection::of(Path::of(&address));
        let entry = Entry {
            control,
            bulk,
            traffic: session.traffic.clone(),
            address: address.clone(),
            incarnation,
            connection: kind,
            carrier: None,
            rtt: session.round_trip.map(|least| (least, least)),
            aside: part.aside,
        };
        if part.has_place() {
            context.shared.slots().insert(&guest, now);
        }
        context.shared.peers().insert(peer, entry);
        tracing::debug!(%peer, %address, role = %part.role, "peer up");
        report_up(session, (address, kind), incarnation, context);
        Completion::Up(incarnation)
    }

    /// Queues a frame to a peer that is not up yet.
    pub(crate) fn say(&self, peer: PeerId, frame: Vec<u8>) {
        let session = self.sessions.get(&peer);
        if let Some([control, _]) = session.and_then(|session| session.senders.as_ref()) {
            // The queue is full or gone: it is told the next time.
            let _ = control.try_send(Outgoing::Control(frame));
        }
    }

    /// Tells the peer in what it differs; its session ends once it has had the time to read that.
    pub(crate) fn refuse(
        &mut self,
        peer: PeerId,
        difference: RunDifference,
        context: &mut Context,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        if matches!(session.stage, Stage::Refusing(_)) {
            return;
        }
        let message = Message::Refuse {
            field: difference.field.clone(),
            ours: difference.ours.clone(),
            theirs: difference.theirs.clone(),
        };
        if let (Some([control, _]), Ok(frame)) = (&session.senders, encode_control(&message)) {
            // The queue is full or gone: the peer finds the difference by itself.
            let _ = control.try_send(Outgoing::Control(frame));
        }
        session.stage = Stage::Refusing(Instant::now() + REFUSE_LINGER);
        session.withhold();
        tracing::debug!(%peer, %difference, "peer of another run or with other settings");
        context.outbox.report(NetworkEvent::Refused { peer, difference, by_us: true });
    }

    /// Whether what is said to a peer that greeted on `connection` goes out on another one.
    pub(crate) fn speaks_elsewhere(&self, peer: PeerId, connection: ConnectionId) -> bool {
        let here = Via::Stream(connection);
        self.sessions.get(&peer).is_some_and(|session| {
            let is_here = session.via(StreamKind::Control) == Some(here)
                || session.is_opening(StreamKind::Control, here);
            !is_here && !session.is_idle(StreamKind::Control)
        })
    }

    /// Notes that the process of the peer is an older copy of another one, and is refused for that.
    pub(crate) fn mark_copy(&mut self, peer: PeerId) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.copy = true;
        }
    }

    /// Whether the session of a peer ends because its process is an older copy.
    pub(crate) fn is_copy(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_some_and(|session| session.copy)
    }

    /// Sessions of peers that ended their control stream and opened no other in time.
    pub(crate) fn unheard(&mut self, now: Instant) -> Vec<PeerId> {
        let mut unheard = Vec::new();
        for (peer, session) in &mut self.sessions {
            if session.is_read(StreamKind::Control) {
                session.unheard = None;
            }
            unheard.extend(session.unheard.filter(|until| *until <= now).map(|_| *peer));
        }
        unheard
    }

    /// Sessions whose handshake, refusal or search for a direct path took too long.
    pub(crate) fn late(&self, now: Instant) -> Vec<(PeerId, Late)> {
        let late = self.sessions.iter().filter_map(|(peer, session)| {
            let (until, late) = match session.stage {
                Stage::Greeting(until) => (until, Late::Silent),
                Stage::Refusing(until) => (until, Late::Refused),
                Stage::Relayed(_, until) => (until, Late::Relayed),
                Stage::Up(_) => return None,
            };
            (until <= now).then_some((*peer, late))
        });
        late.collect()
    }
}

/// Reports a peer up, at `address`, and lets it be heard, unless one of the two only relays.
fn report_up(
    session: &mut Session,
    (address, connection): (Multiaddr, Connection),
    incarnation: u64,
    context: &mut Context,
) {
    let Part { role, aside, invitation } = session.part;
    let peer = session.peer;
    if aside {
        session.withhold();
        context.outbox.report(NetworkEvent::RelayUp { peer, address, role });
        return;
    }
    let differences = std::mem::take(&mut session.differences);
    let invitation = invitation.map(|((issuer, number), uses)| Invited { issuer, number, uses });
    context.outbox.report(NetworkEvent::PeerUp {
        peer,
        address,
        incarnation,
        role,
        invitation,
        connection,
        differences,
    });
    context.outbox.release(session.releases());
}
