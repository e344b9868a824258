//! Finding peers of the run: identify, Kademlia, multicast DNS, and the dials that follow.

use dnode_protocol::limits::{IDENTIFY_PROTOCOL, KAD_PROTOCOL};
use dnode_protocol::{PeerId, RunId};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, StreamProtocol, identify, kad, mdns};
use tokio::time::{Duration, Instant};

use crate::dialer::{Unreachable, named};
use crate::event::NetworkEvent;
use crate::limits::{ADDRESSES_PER_PEER_MAX, DISCOVER_MAX, DISCOVER_MIN};
use crate::relays::choose;
use crate::service::{Service, from_libp2p, to_libp2p};
use crate::streams::StreamKind;

/// When to search for peers of the run, and under which key.
#[derive(Debug)]
pub(crate) struct Schedule {
    key: kad::RecordKey,
    next: Instant,
    interval: Duration,
}

impl Schedule {
    pub(crate) fn new(run: &RunId, now: Instant) -> Self {
        Self {
            key: kad::RecordKey::new(run.as_bytes()),
            next: now + DISCOVER_MIN,
            interval: DISCOVER_MIN,
        }
    }

    /// Somebody new is there to ask: searches soon.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.interval = DISCOVER_MIN;
        self.next = self.next.min(now + DISCOVER_MIN);
    }
}

/// Whether `address` reaches a socket of this machine only.
fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => false,
    }
}

impl Service {
    /// Publishes that we are of the run and asks who else is, ever less often.
    pub(crate) fn discover(&mut self, now: Instant) {
        if now < self.schedule.next {
            return;
        }
        self.schedule.next = now + self.schedule.interval;
        self.schedule.interval = (self.schedule.interval * 2).min(DISCOVER_MAX);
        let key = self.schedule.key.clone();
        let kad = &mut self.swarm.behaviour_mut().kad;
        if kad.kbuckets().next().is_none() {
            return;
        }
        if let Err(error) = kad.start_providing(key.clone()) {
            tracing::warn!(%error, "cannot publish this peer in Kademlia");
        }
        kad.get_providers(key);
    }

    pub(crate) fn handle_identify(&mut self, event: identify::Event) {
        let identify::Event::Received { connection_id, peer_id, info } = event else {
            return;
        };
        let ours = info.protocol_version == IDENTIFY_PROTOCOL;
        if ours {
            self.identified(connection_id, &info);
        }
        let kad = StreamProtocol::new(KAD_PROTOCOL);
        if !ours || !info.protocols.contains(&kad) {
            return;
        }
        // An address of the peer's own machine helps only on that machine.
        let best = self.remote_address(peer_id);
        let here = best.is_none_or(|address| is_loopback(&address));
        let mut addresses = info.listen_addrs;
        addresses.retain(|address| here || !is_loopback(address));
        let addresses = choose(addresses, ADDRESSES_PER_PEER_MAX);
        for address in &addresses {
            let kad = &mut self.swarm.behaviour_mut().kad;
            kad.add_address(&peer_id, address.clone());
        }
        let speaks = |kind: StreamKind| {
            let mut protocols = info.protocols.iter();
            protocols.any(|protocol| protocol.as_ref() == kind.as_ref())
        };
        if let Some(peer) = from_libp2p(peer_id)
            && speaks(StreamKind::Control)
            && self.sessions.contains_key(&peer)
        {
            self.dialer.learn(peer, &addresses, Instant::now());
            let named = addresses.into_iter().filter_map(|address| address.with_p2p(peer_id).ok());
            self.report(NetworkEvent::Found { peer, addresses: named.collect() });
        }
    }

    fn remote_address(&self, peer: libp2p::PeerId) -> Option<Multiaddr> {
        let peer = from_libp2p(peer)?;
        let session = self.sessions.get(&peer)?;
        session.address.clone()
    }

    pub(crate) fn handle_kad(&mut self, event: kad::Event) {
        let now = Instant::now();
        match event {
            kad::Event::RoutingUpdated { is_new_peer: true, .. } => self.schedule.hasten(now),
            kad::Event::OutboundQueryProgressed {
                result: kad::QueryResult::GetProviders(Ok(found)),
                ..
            } => {
                let kad::GetProvidersOk::FoundProviders { providers, .. } = found else {
                    return;
                };
                let mut providers: Vec<_> = providers.into_iter().filter_map(from_libp2p).collect();
                providers.sort_unstable();
                for peer in providers {
                    self.dialer.learn(peer, &[], now);
                }
                // The query knows their addresses as long as it runs.
                self.dial_due(now);
            }
            kad::Event::RoutingUpdated { .. }
            | kad::Event::OutboundQueryProgressed { .. }
            | kad::Event::InboundRequest { .. }
            | kad::Event::UnroutablePeer { .. }
            | kad::Event::RoutablePeer { .. }
            | kad::Event::PendingRoutablePeer { .. }
            | kad::Event::ModeChanged { .. } => {}
        }
    }

    pub(crate) fn handle_mdns(&mut self, event: mdns::Event) {
        let mdns::Event::Discovered(found) = event else {
            return;
        };
        let now = Instant::now();
        for (peer, address) in found {
            if let Some(peer) = from_libp2p(peer) {
                self.dialer.learn(peer, &[address], now);
            }
        }
    }

    /// Dials every bootstrap address that is due, and known peers while there are too few.
    pub(crate) fn dial_due(&mut self, now: Instant) {
        for (index, address) in self.dialer.due_bootstrap(now) {
            self.dial_bootstrap(index, address, now);
        }
        for (peer, addresses) in self.dialer.due_known(now) {
            if self.active() >= self.peers_target {
                break;
            }
            self.dialer.postpone(peer, now);
            self.dial_known(peer, addresses, now);
        }
    }

    fn dial_bootstrap(&mut self, index: usize, address: Multiaddr, now: Instant) {
        let named = named(&address);
        // Whether it is this process or another with its key is found out by who answers there.
        let own = named.is_some_and(|peer| peer == *self.swarm.local_peer_id());
        let (named, address) = if own { (None, without_peer(address)) } else { (named, address) };
        let connected = named.filter(|peer| self.swarm.is_connected(peer));
        if let Some(peer) = connected.and_then(from_libp2p) {
            self.dialer.reached(index, peer);
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
        if let Err(error) = self.swarm.dial(options) {
            let failed = self.dialer.failed(index, now);
            self.report_unreachable(failed, &error);
        }
    }

    fn dial_known(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, now: Instant) {
        let Some(id) = to_libp2p(peer) else { return };
        if peer == self.me || self.is_blocked(peer) || self.swarm.is_connected(&id) {
            return;
        }
        if !self.dialer.may_dial(peer) {
            return;
        }
        // A peer that is hidden as well may be found at a relay only after a dial of its inner
        // addresses has begun, which takes ten seconds to fail.
        let condition = if self.is_hidden() {
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
        match self.swarm.dial(options) {
            Ok(()) => self.dialer.began(connection, peer),
            Err(DialError::DialPeerConditionFalse(_)) => {}
            Err(error) => {
                tracing::debug!(%peer, %error, "cannot dial");
                self.dialer.down(peer, now);
            }
        }
    }

    pub(crate) fn dial_once(&mut self, address: Multiaddr) {
        if let Err(error) = self.swarm.dial(address.clone()) {
            tracing::warn!(%address, %error, "cannot dial");
        }
    }

    pub(crate) fn report_unreachable(&mut self, failed: Unreachable, error: &DialError) {
        let mut cause = dial_cause(error);
        if is_loopback(&failed.address) {
            cause += "; a loopback address leads to this machine only";
        }
        self.report_lost(failed, cause);
    }

    pub(crate) fn report_lost(&mut self, failed: Unreachable, error: String) {
        let Unreachable { address, retry_in } = failed;
        tracing::debug!(%address, error, ?retry_in, "bootstrap address does not answer");
        self.report(NetworkEvent::BootstrapUnreachable { address, error, retry_in });
    }
}

/// The address of whoever listens there.
pub(crate) fn without_peer(address: Multiaddr) -> Multiaddr {
    address.into_iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
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

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(next) = innermost.source() {
        innermost = next;
    }
    innermost.to_string()
}
