//! Direct paths to the peers of sessions: when one is sought, and what happens once it is open.

use std::net::{IpAddr, Ipv4Addr};

use dnode_direct::limits::SUBJECT_BYTES;
use dnode_direct::{Arrival, Channel, Error, Sender, Target};
use dnode_protocol::PeerId;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Sessions;
use super::session::Session;
use crate::address::{from_libp2p, ip, to_libp2p};
use crate::context::Context;
use crate::errors::with_causes;
use crate::event::NetworkEvent;
use crate::io::report::{SessionEvent, Via};
use crate::io::writer::FrameSink;
use crate::limits::HOST_ASKED_AFTER;
use crate::swarm::streams::{Path, StreamKind};

impl Sessions {
    /// Lets the tensors of `peer` take a direct path if one is open or may be sought now. Returns
    /// `false` when they must take another path.
    pub(super) fn open_direct(&mut self, peer: PeerId, context: &Context) -> bool {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return false;
        };
        if let Some(sender) = session.search.ready.take() {
            session.opening(StreamKind::Bulk, Via::Direct);
            let sink = FrameSink::Direct(Some(sender));
            self.on_opened(peer, (StreamKind::Bulk, Via::Direct), sink, context);
            return true;
        }
        let sought = self.search(peer, Instant::now());
        if sought && let Some(session) = self.sessions.get_mut(&peer) {
            session.opening(StreamKind::Bulk, Via::Direct);
        }
        sought
    }

    /// Begins to open a direct path to `peer` if it is time for that. Returns whether it did.
    fn search(&mut self, peer: PeerId, now: Instant) -> bool {
        let Some(target) = self.target(peer) else { return false };
        let Some(session) = self.sessions.get_mut(&peer).filter(|s| s.search.is_due(now)) else {
            return false;
        };
        session.search.begins(now);
        let has_path = session.via(StreamKind::Bulk) == Some(Via::Direct);
        let (direct, number) = (self.direct.clone(), session.number);
        let links = self.channels.links.clone();
        tokio::spawn(async move {
            let open = async {
                if has_path {
                    direct.open_memory(&target).await
                } else {
                    direct.open(&target).await
                }
            };
            let result = open.await;
            // An error means that the network has stopped.
            let _ = links.send(SessionEvent::DirectOpened { peer, session: number, result }).await;
        });
        true
    }

    /// The addresses to which direct paths to `peer` lead.
    fn target(&self, peer: PeerId) -> Option<Target> {
        let (session, id) = (self.sessions.get(&peer)?, to_libp2p(peer)?);
        let (incarnation, address) = (session.hello?, session.address.as_ref()?);
        // A peer behind a relay may still be on this host; direct paths inside a host need no address.
        let near = ip(address).filter(|_| Path::of(address) != Path::Relayed);
        Some(Target {
            peer: id,
            incarnation,
            address: near.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            port: session.search.port,
        })
    }

    /// A direct path from `peer` has ended, perhaps with its process: asks this host's kernel, where the
    /// peer is on this host.
    pub(crate) fn ask_host(&self, peer: PeerId) {
        let session = self.sessions.get(&peer).filter(|session| session.search.on_host);
        let (Some(session), Some(target)) = (session, self.target(peer)) else { return };
        let (direct, number) = (self.direct.clone(), session.number);
        let links = self.channels.links.clone();
        tokio::spawn(async move {
            for pause in HOST_ASKED_AFTER {
                tokio::time::sleep(pause).await;
                if direct.has_ended(&target).await {
                    // An error means that the network has stopped.
                    let _ = links.send(SessionEvent::ProcessEnded { peer, session: number }).await;
                    return;
                }
            }
        });
    }

    /// Opens a channel to `peer` and hands it over.
    pub(crate) fn open_channel(
        &self,
        (peer, subject): (PeerId, [u8; SUBJECT_BYTES]),
        done: oneshot::Sender<Result<Channel, Error>>,
    ) {
        let (direct, target) = (self.direct.clone(), self.target(peer));
        tokio::spawn(async move {
            let result = match target {
                Some(target) => direct.open_channel(&target, subject).await,
                None => Err(Error::NotNear),
            };
            // An error means that nobody waits any more.
            let _ = done.send(result);
        });
    }

    /// Looks for direct paths to the peers whose tensors take another path, or one that is not through memory.
    pub(crate) fn seek_direct(&mut self, now: Instant) {
        let without = |session: &Session| {
            session.is_up() && session.wants_another_path() && session.search.is_due(now)
        };
        let peers: Vec<_> =
            self.sessions.iter().filter(|(_, s)| without(s)).map(|(p, _)| *p).collect();
        for peer in peers {
            self.search(peer, now);
        }
    }

    /// Uses a direct path that was sought, or notes why there is none.
    pub(crate) fn on_direct_opened(
        &mut self,
        peer: PeerId,
        result: Result<Sender, Error>,
        context: &mut Context,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        session.search.opening = false;
        let awaited = session.is_opening(StreamKind::Bulk, Via::Direct);
        match result {
            Ok(sender) if awaited => {
                let sink = FrameSink::Direct(Some(sender));
                self.on_opened(peer, (StreamKind::Bulk, Via::Direct), sink, context);
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
        self.open(peer, StreamKind::Bulk, context);
    }

    /// Takes a direct path or channel that a peer opened; one of an unknown peer is dropped.
    pub(crate) fn on_direct_arrived(&mut self, arrival: Arrival, context: &mut Context) {
        let path = match arrival {
            Arrival::Path(path) => path,
            Arrival::Channel(channel) => {
                let peer = from_libp2p(channel.peer());
                if let Some(peer) = peer.filter(|peer| self.exchanges(*peer)) {
                    context.outbox.report(NetworkEvent::Channel { peer, channel });
                }
                return;
            }
        };
        let peer = from_libp2p(path.peer());
        if let Some(session) = peer.and_then(|peer| self.sessions.get_mut(&peer)) {
            let release = session.accept_direct(path);
            context.outbox.release(release);
        }
    }
}
