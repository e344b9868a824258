//! Tensors on direct paths: when one is sought, and what happens when it is there.

use std::net::IpAddr;

use dnode_direct::limits::SUBJECT_BYTES;
use dnode_direct::{Arrival, Channel, Direct, Error, Receiver, Sender, Target, is_near};
use dnode_protocol::PeerId;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant};

use crate::config::{NetworkConfig, NetworkError};
use crate::event::NetworkEvent;
use crate::limits::DIRECT_RETRY;
use crate::link::{LinkEvent, Origin, ReaderEnd, tensor};
use crate::outlet::Outlet;
use crate::service::{Service, from_libp2p, to_libp2p};
use crate::session::{Session, Via};
use crate::streams::{Path, StreamKind};

/// Direct paths of this peer: those it opens, and those that others open.
#[derive(Debug)]
pub(crate) struct DirectPlane {
    pub(crate) direct: Direct,
    pub(crate) arrivals: mpsc::Receiver<Arrival>,
}

/// Begins to take direct paths at the addresses that the swarm listens on.
pub(crate) fn start(key: &Keypair, config: &NetworkConfig) -> Result<DirectPlane, NetworkError> {
    let mut ips: Vec<IpAddr> = config.listen.iter().filter_map(ip).collect();
    ips.sort_unstable();
    ips.dedup();
    // A socket on every address of a family leaves no room for one on a single address.
    let any =
        |ip: IpAddr| ips.iter().any(|other| other.is_unspecified() && same_family(*other, ip));
    let ips: Vec<_> = ips
        .iter()
        .copied()
        .filter(|ip| ip.is_unspecified() || (is_near(*ip) && !any(*ip)))
        .collect();
    let (direct, arrivals) = Direct::start((key, config.incarnation), &ips, config.direct)
        .map_err(|error| NetworkError::Prepare(error.to_string()))?;
    Ok(DirectPlane { direct, arrivals })
}

const fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// The address that a multiaddress begins with.
pub(crate) fn ip(address: &Multiaddr) -> Option<IpAddr> {
    let first = address.iter().next()?;
    if let Protocol::Ip4(ip) = first {
        Some(ip.into())
    } else if let Protocol::Ip6(ip) = first {
        Some(ip.into())
    } else {
        None
    }
}

/// What a session knows of direct paths to its peer.
#[derive(Debug)]
pub(crate) struct Search {
    /// The peer's port for direct paths.
    pub(crate) port: u16,
    /// A path that waits for the writer to leave what it writes to.
    pub(crate) ready: Option<Sender>,
    /// Why tensors cannot take a direct path, until it was said.
    pub(crate) because: Option<String>,
    /// When a path may be opened; never when the peer is not near.
    next: Option<Instant>,
    last: Instant,
    wait: Duration,
    /// Whether one is being opened.
    opening: bool,
}

impl Search {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            port: 0,
            ready: None,
            because: None,
            next: Some(now),
            last: now,
            wait: Duration::ZERO,
            opening: false,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.opening && self.ready.is_none() && self.next.is_some_and(|next| next <= now)
    }

    /// An attempt begins; the next may follow after a while, however this one ends.
    fn begins(&mut self, now: Instant) {
        let quiet = now.duration_since(self.last) > self.wait * 2;
        self.wait = if quiet {
            DIRECT_RETRY.0
        } else {
            (self.wait * 2).clamp(DIRECT_RETRY.0, DIRECT_RETRY.1)
        };
        self.last = now;
        self.next = Some(now + self.wait);
        self.opening = true;
    }
}

impl Service {
    /// Lets the tensors of `peer` take a direct path if one is there or may be sought now. False:
    /// they must take another way.
    pub(crate) fn open_direct(&mut self, peer: PeerId) -> bool {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return false;
        };
        if let Some(sender) = session.search.ready.take() {
            session.opening(StreamKind::Bulk, Via::Direct);
            self.begin(peer, StreamKind::Bulk, Via::Direct, Outlet::Direct(Some(sender)));
            return true;
        }
        let sought = self.search(peer, Instant::now());
        if sought && let Some(session) = self.sessions.get_mut(&peer) {
            session.opening(StreamKind::Bulk, Via::Direct);
        }
        sought
    }

    /// Opens a direct path to `peer` if that is due.
    fn search(&mut self, peer: PeerId, now: Instant) -> bool {
        let Some(target) = self.target(peer) else { return false };
        let Some(session) = self.sessions.get_mut(&peer).filter(|s| s.search.is_due(now)) else {
            return false;
        };
        session.search.begins(now);
        let (direct, number) = (self.direct.direct.clone(), session.number);
        let links = self.channels.links.clone();
        tokio::spawn(async move {
            let result = direct.open(&target).await;
            // An error means that the network has stopped.
            let _ = links.send(LinkEvent::DirectOpened { peer, session: number, result }).await;
        });
        true
    }

    /// Where direct paths to `peer` lead.
    fn target(&self, peer: PeerId) -> Option<Target> {
        let (session, id) = (self.sessions.get(&peer)?, to_libp2p(peer)?);
        let ((incarnation, _), address) = (session.hello?, session.address.as_ref()?);
        // Behind a relay it may still be on this host, which the address does not matter for.
        let near = ip(address).filter(|_| Path::of(address) != Path::Relayed);
        Some(Target {
            peer: id,
            incarnation,
            address: near.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
            port: session.search.port,
        })
    }

    /// Opens a channel to `peer` and hands it over.
    pub(crate) fn open_channel(
        &self,
        (peer, subject): (PeerId, [u8; SUBJECT_BYTES]),
        done: oneshot::Sender<Result<Channel, Error>>,
    ) {
        let (direct, target) = (self.direct.direct.clone(), self.target(peer));
        tokio::spawn(async move {
            let result = match target {
                Some(target) => direct.open_channel(&target, subject).await,
                None => Err(Error::NotNear),
            };
            // An error means that nobody waits any more.
            let _ = done.send(result);
        });
    }

    /// Looks for direct paths to the peers whose tensors take another way.
    pub(crate) fn seek_direct(&mut self, now: Instant) {
        let without = |session: &Session| {
            session.is_up() && session.tensors_elsewhere() && session.search.is_due(now)
        };
        let peers: Vec<_> =
            self.sessions.iter().filter(|(_, s)| without(s)).map(|(p, _)| *p).collect();
        for peer in peers {
            self.search(peer, now);
        }
    }

    /// A direct path that was sought is there, or cannot be had.
    pub(crate) fn direct_opened(&mut self, peer: PeerId, result: Result<Sender, Error>) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        session.search.opening = false;
        let awaited = session.is_opening(StreamKind::Bulk, Via::Direct);
        match result {
            Ok(sender) if awaited => {
                self.begin(peer, StreamKind::Bulk, Via::Direct, Outlet::Direct(Some(sender)));
                return;
            }
            Ok(sender) => {
                session.search.ready = Some(sender);
                session.leave(StreamKind::Bulk);
            }
            Err(Error::NotNear) => session.search.next = None,
            Err(error) => {
                tracing::debug!(%peer, %error, "no direct path");
                session.search.because = awaited.then(|| with_causes(&error));
            }
        }
        session.not_opened(StreamKind::Bulk, Via::Direct);
        self.open(peer, StreamKind::Bulk);
    }

    /// What a peer opened; nobody's is cut.
    pub(crate) fn direct_arrived(&mut self, arrival: Arrival) {
        let path = match arrival {
            Arrival::Path(path) => path,
            Arrival::Channel(channel) => {
                let peer = from_libp2p(channel.peer());
                let is_up = |peer: &PeerId| self.sessions.get(peer).is_some_and(Session::is_up);
                if let Some(peer) = peer.filter(is_up) {
                    self.report(NetworkEvent::Channel { peer, channel });
                }
                return;
            }
        };
        let peer = from_libp2p(path.peer());
        if let Some(session) = peer.and_then(|peer| self.sessions.get_mut(&peer)) {
            let release = session.accept_direct(path);
            self.release(release.into_iter().collect());
        }
    }
}

/// What an error says, with its causes.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// Reads one direct path to its end and reports that.
pub(crate) async fn read(
    mut path: Receiver,
    origin: Origin,
    release: oneshot::Receiver<()>,
    events: mpsc::Sender<NetworkEvent>,
    links: mpsc::Sender<LinkEvent>,
) {
    let read = async {
        // Until the handshake is done flow control keeps the bytes at the sender.
        release.await.map_err(|_| ReaderEnd::Ignored)?;
        while tensor(&mut path, &origin, &events).await? {}
        Ok(ReaderEnd::Finished { goodbye: false })
    };
    let (Ok(end) | Err(end)) = read.await;
    drop(path);
    // An error means that the network has stopped.
    let _ = links.send(LinkEvent::ReaderEnded { origin, end }).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_sought_at_once_then_ever_less_often_and_soon_again_after_a_long_life() {
        let mut now = Instant::now();
        let mut search = Search::new(now);
        let (first, longest) = DIRECT_RETRY;
        for wait in [first, first * 2, first * 4, first * 8, first * 16, longest, longest] {
            assert!(search.is_due(now));
            search.begins(now);
            assert!(!search.is_due(now + longest), "one is being opened");
            search.opening = false;
            assert!(!search.is_due(now + wait - Duration::from_millis(1)));
            now += wait;
        }
        now += longest * 2;
        search.begins(now);
        search.opening = false;
        assert!(search.is_due(now + first));
    }

    #[test]
    fn the_address_of_a_connection_is_where_it_ends() {
        let of = |text: &str| ip(&text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(of("/ip4/10.0.0.1/udp/1/quic-v1").as_deref(), Some("10.0.0.1"));
        assert_eq!(of("/ip6/fd00::1/tcp/1").as_deref(), Some("fd00::1"));
        assert_eq!(of("/dns/example.org/tcp/1"), None);
    }
}
