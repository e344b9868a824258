//! Finding peers of the run: identify, Kademlia, multicast DNS, and the dials that follow.

mod book;
mod dialer;
mod routing;

use std::net::IpAddr;

use dnode_protocol::PeerId;
use dnode_protocol::limits::{IDENTIFY_PROTOCOL, KAD_PROTOCOL};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, StreamProtocol, connection_limits, identify, kad, mdns};
use tokio::time::{Duration, Instant};

use crate::address::{from_libp2p, ip, is_loopback, named, to_libp2p, without_peer};
use crate::config::NetworkConfig;
use crate::context::Context;
use crate::errors::innermost;
use crate::event::NetworkEvent;
use crate::limits::{
    ADDRESSES_PER_PEER_MAX, DIALS_MAX, DISCOVER_FIRST, DISCOVER_MAX, DISCOVER_MIN, POSTPONED,
    REPUBLISH,
};
use crate::membership::not_let_in;
use crate::nat::relays::choose;
use crate::sessions::Sessions;
use crate::swarm::streams::{Path, StreamKind};
use book::{Book, Source};
use dialer::{Dialer, Unreachable};
use routing::set_addresses;

/// When to search for peers of the run.
#[derive(Debug)]
struct Schedule {
    next: Instant,
    interval: Duration,
    /// Whether nobody was asked yet.
    first: bool,
    /// Whether there are as many peers as are wanted. Searches then only keep this peer's own record alive.
    enough: bool,
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self { next: now + DISCOVER_MIN, interval: DISCOVER_MIN, first: true, enough: false }
    }

    /// Searches soon. Only the first search comes at once: peers that are met one after the other must not
    /// make many searches.
    fn hasten(&mut self, now: Instant) {
        self.interval = DISCOVER_MIN;
        let wait = if self.first { DISCOVER_FIRST } else { DISCOVER_MIN };
        self.next = self.next.min(now + wait);
    }

    /// Somebody was asked.
    const fn searched(&mut self) {
        self.first = false;
    }

    /// Whether a search is due; the next one is later by a growing interval. `enough`: whether there are as
    /// many peers as are wanted.
    fn is_due(&mut self, now: Instant, enough: bool) -> bool {
        let lacks = self.enough && !enough;
        self.enough = enough;
        if lacks {
            self.hasten(now);
        }
        let due = now >= self.next;
        if due {
            self.next = now + self.interval;
            let most = if enough { REPUBLISH } else { DISCOVER_MAX };
            self.interval = (self.interval * 2).min(most);
        }
        due
    }
}

/// Searches for peers, and dials those that were found and those that were configured.
#[derive(Debug)]
pub(crate) struct Discovery {
    dialer: Dialer,
    book: Book,
    schedule: Schedule,
    /// The key of the run in Kademlia.
    key: kad::RecordKey,
    /// Number of peers to keep by own dials.
    peers_target: usize,
    /// Whether the run is closed.
    closed: bool,
}

impl Discovery {
    pub(crate) fn new(config: &NetworkConfig, now: Instant) -> Self {
        let dialer = Dialer::new(&config.bootstrap, rand::random(), now);
        let mut book = Book::new(rand::random());
        for mut address in config.remembered.iter().cloned() {
            if let Some(Protocol::P2p(id)) = address.pop()
                && let Some(peer) = from_libp2p(id)
            {
                book.remember(peer, &address, now);
            }
        }
        let key = kad::RecordKey::new(config.run.id().as_bytes());
        let schedule = Schedule::new(now);
        let (peers_target, closed) = (config.peers_target, config.secret.is_some());
        Self { dialer, book, schedule, key, peers_target, closed }
    }

    /// Searches soon, because this peer can be reached at another address.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.schedule.hasten(now);
    }

    /// Publishes that this peer is of the run and asks which others are, at growing intervals; `active` is
    /// the number of peers now.
    pub(crate) fn search(&mut self, now: Instant, active: usize, context: &mut Context) {
        if !self.schedule.is_due(now, active >= self.peers_target) {
            return;
        }
        let key = self.key.clone();
        let kad = context.swarm.behaviour_mut().kad.inner();
        if kad.kbuckets().next().is_none() {
            return;
        }
        self.schedule.searched();
        if let Err(error) = kad.start_providing(key.clone()) {
            tracing::warn!(%error, "cannot publish this peer in Kademlia");
        }
        kad.get_providers(key);
    }

    /// Handles the answer of a libp2p node to identify.
    pub(crate) fn on_identify(
        &mut self,
        event: identify::Event,
        sessions: &Sessions,
        context: &mut Context,
    ) {
        let identify::Event::Received { connection_id, peer_id, info } = event else {
            return;
        };
        let ours = info.protocol_version == IDENTIFY_PROTOCOL;
        if ours {
            context.traversal.on_identified(connection_id, &info, &mut context.swarm);
        }
        let kad = StreamProtocol::new(KAD_PROTOCOL);
        if !ours || !info.protocols.contains(&kad) {
            return;
        }
        // An address of the peer's own machine helps only a peer on that machine.
        let best = from_libp2p(peer_id).and_then(|peer| sessions.address(peer));
        let here = best.is_none_or(is_loopback);
        let mut addresses = info.listen_addrs;
        addresses.retain(|address| here || !is_loopback(address));
        let addresses = choose(addresses, ADDRESSES_PER_PEER_MAX);
        set_addresses(context.swarm.behaviour_mut().kad.inner(), peer_id, &addresses);
        let speaks = |kind: StreamKind| {
            let mut protocols = info.protocols.iter();
            protocols.any(|protocol| protocol.as_ref() == kind.as_ref())
        };
        if let Some(peer) = from_libp2p(peer_id)
            && speaks(StreamKind::Control)
            && sessions.contains(peer)
        {
            let at = sessions.address(peer).and_then(ip);
            self.book.told(peer, &addresses, Source::of(at), Instant::now());
            let named = addresses.into_iter().filter_map(|address| address.with_p2p(peer_id).ok());
            context.outbox.report(NetworkEvent::Found { peer, addresses: named.collect(), at });
        }
    }

    /// Handles an event of Kademlia. Returns whether it found peers that may be dialled now.
    pub(crate) fn on_kad(&mut self, event: kad::Event) -> bool {
        let now = Instant::now();
        match event {
            // A new peer can be asked.
            kad::Event::RoutingUpdated { is_new_peer: true, .. } if !self.schedule.enough => {
                self.schedule.hasten(now);
            }
            kad::Event::OutboundQueryProgressed {
                result: kad::QueryResult::GetProviders(Ok(found)),
                ..
            } => {
                let kad::GetProvidersOk::FoundProviders { providers, .. } = found else {
                    return false;
                };
                let mut providers: Vec<_> = providers.into_iter().filter_map(from_libp2p).collect();
                providers.sort_unstable();
                for peer in providers {
                    self.book.learn(peer, &[], Source::Directory, now);
                }
                // The query remembers their addresses only while it runs.
                return true;
            }
            kad::Event::RoutingUpdated { .. }
            | kad::Event::OutboundQueryProgressed { .. }
            | kad::Event::InboundRequest { .. }
            | kad::Event::UnroutablePeer { .. }
            | kad::Event::RoutablePeer { .. }
            | kad::Event::PendingRoutablePeer { .. }
            | kad::Event::ModeChanged { .. } => {}
        }
        false
    }

    /// Handles peers that multicast DNS has found. Returns whether there are any, which may be dialled now.
    pub(crate) fn on_mdns(&mut self, event: mdns::Event) -> bool {
        let mdns::Event::Discovered(found) = event else {
            return false;
        };
        let now = Instant::now();
        for (peer, address) in found {
            if let Some(peer) = from_libp2p(peer) {
                self.book.learn(peer, &[address], Source::Near, now);
            }
        }
        true
    }

    /// Dials every bootstrap address that is due. Dials known peers, too, while there are fewer than
    /// wanted; `active` is the number of peers now. Where there are as many, one at a time while this peer has
    /// dialled too few of them itself: else who comes in numbers would be all that it knows.
    pub(crate) fn dial_due(&mut self, now: Instant, active: usize, context: &mut Context) {
        for (index, address) in self.dialer.due_bootstrap(now) {
            self.dial_bootstrap(index, address, context);
        }
        let enough = active >= self.peers_target;
        if enough && !context.shared.slots().lacks_dialled(now) {
            return;
        }
        let mut due = self.book.due(now);
        if enough {
            let swarm = &context.swarm;
            let connected = |peer| to_libp2p(peer).is_none_or(|peer| swarm.is_connected(&peer));
            due.retain(|(peer, _)| !connected(*peer));
            let strangers: Vec<PeerId> = due.iter().map(|(peer, _)| *peer).collect();
            let picked = self.book.pick(&strangers);
            due.retain(|(peer, _)| Some(*peer) == picked);
        }
        // The others are due still when these have ended.
        let room = DIALS_MAX.saturating_sub(self.dialer.under_way());
        for (peer, addresses) in due.into_iter().take(room) {
            self.book.postpone(&peer, now);
            self.dial_known(peer, addresses, context);
        }
    }

    fn dial_bootstrap(&mut self, index: usize, address: Multiaddr, context: &mut Context) {
        let named = named(&address);
        // The key that answers there shows whether the address leads to this process.
        let own = named.is_some_and(|peer| peer == *context.swarm.local_peer_id());
        let (named, address) = if own { (None, without_peer(address)) } else { (named, address) };
        let connected = named.filter(|peer| context.swarm.is_connected(peer));
        if let Some(peer) = connected.and_then(from_libp2p) {
            self.on_reached(index, peer, context);
            return;
        }
        let options = match named {
            Some(peer) => DialOpts::peer_id(peer)
                .condition(PeerCondition::Disconnected)
                .addresses(vec![address])
                .build(),
            None => DialOpts::unknown_peer_id().address(address).build(),
        };
        self.dialer.dialing(index, options.connection_id());
        match context.swarm.dial(options) {
            Ok(()) => {}
            Err(DialError::Denied { cause })
                if cause.downcast_ref::<connection_limits::Exceeded>().is_some() =>
            {
                self.dialer.wait(index, Instant::now() + POSTPONED);
            }
            Err(error) => self.bootstrap_failed(index, &error, context),
        }
    }

    fn dial_known(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, context: &mut Context) {
        let Some(id) = to_libp2p(peer) else { return };
        if peer == context.me() || context.is_blocked(peer) || context.swarm.is_connected(&id) {
            return;
        }
        if !self.dialer.may_dial(peer) {
            return;
        }
        // When this peer is hidden, too, the other may show up at a relay only after a dial of its inner
        // addresses has begun. Such a dial takes ten seconds to fail.
        let condition = if context.traversal.is_hidden() {
            PeerCondition::Disconnected
        } else {
            PeerCondition::DisconnectedAndNotDialing
        };
        let options = DialOpts::peer_id(id)
            .condition(condition)
            .addresses(addresses)
            .extend_addresses_through_behaviour()
            .build();
        let connection = options.connection_id();
        match context.swarm.dial(options) {
            Ok(()) => self.dialer.began(connection, peer),
            // No dial was made: it says nothing of the peer.
            Err(
                DialError::DialPeerConditionFalse(_)
                | DialError::Denied { .. }
                | DialError::NoAddresses,
            ) => {}
            Err(error) => {
                tracing::debug!(%peer, %error, "cannot dial");
                self.down(peer);
            }
        }
    }

    /// Notes that a dial has led to a connection to `peer`.
    pub(crate) fn on_connected(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        context: &mut Context,
    ) {
        if let Some(index) = self.dialer.bootstrap_of(connection) {
            self.on_reached(index, peer, context);
        }
    }

    fn on_reached(&mut self, index: usize, peer: PeerId, context: &mut Context) {
        let address = self.dialer.reached(index, peer);
        context.outbox.report(NetworkEvent::BootstrapReached { address, peer });
    }

    /// Notes that a dial has ended, with or without success.
    pub(crate) fn on_dial_ended(&mut self, connection: ConnectionId) {
        self.dialer.ended(connection);
    }

    /// Handles a failed dial.
    pub(crate) fn on_dial_failed(
        &mut self,
        connection: ConnectionId,
        peer: Option<libp2p::PeerId>,
        error: &DialError,
        context: &mut Context,
    ) {
        if let Some(index) = self.dialer.bootstrap_of(connection) {
            if matches!(error, DialError::LocalPeerId { .. }) {
                self.dialer.own(index, Instant::now());
            } else {
                self.bootstrap_failed(index, error, context);
            }
            return;
        }
        let Some(id) = peer.filter(|id| !context.swarm.is_connected(id)) else {
            return;
        };
        if let Some(peer) = from_libp2p(id) {
            tracing::debug!(%peer, %error, "dial failed");
            self.down(peer);
        }
    }

    fn bootstrap_failed(&mut self, index: usize, error: &DialError, context: &mut Context) {
        let failed = self.dialer.failed(index, Instant::now());
        if let Some(why) = not_let_in(error, self.closed) {
            let address = failed.address;
            tracing::debug!(%address, ?why, "not let in");
            context.outbox.report(NetworkEvent::NotLetIn { address, why });
            return;
        }
        let mut cause = dial_cause(error);
        if is_loopback(&failed.address) {
            cause += "; a loopback address leads to this machine only";
        }
        report_lost(failed, cause, context);
    }

    /// Notes that the handshake with `peer`, which is at `ip`, is done.
    pub(crate) fn on_up(&mut self, peer: PeerId, ip: Option<IpAddr>) {
        self.book.met(peer, ip, Instant::now());
        self.dialer.up(peer);
    }

    /// Notes that the last connection to `peer` has closed. Returns whether bootstrap addresses led to
    /// it.
    pub(crate) fn on_down(&mut self, peer: PeerId, cause: &str, context: &mut Context) -> bool {
        let failed = self.down(peer);
        let any = !failed.is_empty();
        for failed in failed {
            report_lost(failed, cause.to_owned(), context);
        }
        any
    }

    /// `peer` could not be dialled, or its last connection has closed. Returns the bootstrap addresses that
    /// led to it.
    fn down(&mut self, peer: PeerId) -> Vec<Unreachable> {
        let now = Instant::now();
        self.book.failed(&peer, now);
        self.dialer.down(peer, now)
    }

    /// Forgets `peer`, which left for good.
    pub(crate) fn on_left(&mut self, peer: PeerId) {
        self.book.forget(&peer);
    }

    /// Stops dialling `peer`, which is of another run.
    pub(crate) fn on_refused(&mut self, peer: PeerId) {
        self.book.forget(&peer);
        self.dialer.refused(peer);
    }

    /// Dials `peer` again after `until`, also at its bootstrap addresses.
    pub(crate) fn dial_later(&mut self, peer: PeerId, until: Instant) {
        self.book.hold(peer, until);
        self.dialer.later(peer, until);
    }

    /// Keeps `peer` from being dialled before `until`, unless a bootstrap address names it.
    pub(crate) fn hold(&mut self, peer: PeerId, until: Instant, context: &mut Context) {
        self.book.hold(peer, until);
        if let Some(id) = to_libp2p(peer) {
            context.swarm.behaviour_mut().kad.hold(id, until);
        }
    }

    /// Dials the QUIC addresses of a peer that was reached over TCP: by one of them its streams go faster.
    pub(crate) fn dial_quic(&self, peer: PeerId, context: &mut Context) {
        let mut addresses = self.book.addresses(&peer);
        addresses.retain(|address| Path::of(address) == Path::Quic);
        let Some(id) = to_libp2p(peer).filter(|_| !addresses.is_empty()) else { return };
        let options = DialOpts::peer_id(id).condition(PeerCondition::Always).addresses(addresses);
        if let Err(error) = context.swarm.dial(options.build()) {
            tracing::debug!(%peer, %error, "cannot dial over QUIC");
        }
    }
}

fn report_lost(failed: Unreachable, error: String, context: &mut Context) {
    let Unreachable { address, retry_in } = failed;
    tracing::debug!(%address, error, ?retry_in, "bootstrap address does not answer");
    context.outbox.report(NetworkEvent::BootstrapUnreachable { address, error, retry_in });
}

/// The cause of a failed dial in a few words.
pub(crate) fn dial_cause(error: &DialError) -> String {
    match error {
        DialError::Transport(errors) => {
            let last = errors.last().map(|(_, error)| innermost(error));
            last.unwrap_or_else(|| "no address".to_owned())
        }
        DialError::WrongPeerId { obtained, .. } => {
            format!("another peer answered there: {obtained}")
        }
        DialError::Denied { cause } => innermost(cause),
        DialError::LocalPeerId { .. }
        | DialError::NoAddresses
        | DialError::DialPeerConditionFalse(_)
        | DialError::Aborted => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KAD_PROVIDER_TTL;

    /// Seconds between the searches of one hour.
    fn waits(schedule: &mut Schedule, begin: Instant, enough: impl Fn(u64) -> bool) -> Vec<f64> {
        let mut at = Vec::new();
        for tick in 0..36_000 {
            let since = Duration::from_millis(100 * tick);
            if schedule.is_due(begin + since, enough(tick / 10)) {
                at.push(since.as_secs_f64());
            }
        }
        at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn who_has_enough_peers_searches_only_to_stay_published() {
        let begin = Instant::now();
        let without = waits(&mut Schedule::new(begin), begin, |_| false);
        assert!(without.iter().all(|wait| *wait <= DISCOVER_MAX.as_secs_f64() + 0.1));
        let with = waits(&mut Schedule::new(begin), begin, |_| true);
        assert!(with.len() < 24 && without.len() > 120, "{} {}", with.len(), without.len());
        assert!(with.iter().all(|wait| *wait < KAD_PROVIDER_TTL.as_secs_f64() / 2.0 + 1.0));
    }

    #[test]
    fn who_lacks_peers_again_searches_at_once() {
        let begin = Instant::now();
        let mut schedule = Schedule::new(begin);
        waits(&mut schedule, begin, |_| true);
        let later = begin + Duration::from_secs(3600);
        assert!(!schedule.is_due(later, true));
        assert!(!schedule.is_due(later, false));
        assert!(schedule.is_due(later + DISCOVER_MIN, false));
    }

    #[test]
    fn only_the_first_search_comes_at_once() {
        let begin = Instant::now();
        let mut schedule = Schedule::new(begin);
        schedule.hasten(begin);
        assert!(!schedule.is_due(begin, false) && schedule.is_due(begin + DISCOVER_FIRST, false));
        schedule.searched();
        schedule.hasten(begin + DISCOVER_FIRST);
        assert!(!schedule.is_due(begin + DISCOVER_FIRST * 2, false));
        assert!(schedule.is_due(begin + DISCOVER_FIRST + DISCOVER_MIN, false));
    }
}
