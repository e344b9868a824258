//! The state that all parts of the network's task share.

mod greeting;
mod outbox;

use std::sync::Arc;

use dnode_protocol::PeerId;
use libp2p::{Multiaddr, Swarm};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use crate::address::to_libp2p;
use crate::handle::Shared;
use crate::limits::{BLOCKED_PEERS_MAX, SHUTDOWN_MAX};
use crate::nat::traversal::Traversal;
use crate::swarm::Behaviour;
use crate::until::Until;
pub(crate) use greeting::Greeting;
pub(crate) use outbox::Outbox;

/// The swarm, and the parts that the others ask or change through their methods.
pub(crate) struct Context {
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) greeting: Greeting,
    /// The state that the network shares with its handles.
    pub(crate) shared: Arc<Shared>,
    pub(crate) outbox: Outbox,
    pub(crate) traversal: Traversal,
    /// Peers that are neither dialled nor let in for a while.
    blocked: Until<PeerId, BLOCKED_PEERS_MAX>,
    me: PeerId,
    /// The caller that waits for the network to end, and the deadline.
    stopping: Option<(oneshot::Sender<()>, Instant)>,
}

impl Context {
    pub(crate) fn new(
        (swarm, me): (Swarm<Behaviour>, PeerId),
        greeting: Greeting,
        shared: Arc<Shared>,
        outbox: Outbox,
        traversal: Traversal,
    ) -> Self {
        let blocked = Until::default();
        Self { swarm, greeting, shared, outbox, traversal, blocked, me, stopping: None }
    }

    pub(crate) const fn me(&self) -> PeerId {
        self.me
    }

    /// Our listening address, in the form in which another peer dials it.
    pub(crate) fn full_address(&self, address: Multiaddr) -> Multiaddr {
        let plain = address.clone();
        address.with_p2p(*self.swarm.local_peer_id()).unwrap_or(plain)
    }

    /// Begins to end the network; `done` waits for that.
    pub(crate) fn stop(&mut self, done: oneshot::Sender<()>) {
        self.stopping = Some((done, Instant::now() + SHUTDOWN_MAX));
    }

    pub(crate) const fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether the deadline for the end of the network has passed.
    pub(crate) fn is_overdue(&self) -> bool {
        self.stopping.as_ref().is_some_and(|(_, deadline)| Instant::now() >= *deadline)
    }

    /// Closes the swarm, and tells the caller that waits for that.
    pub(crate) fn end(self) {
        if let Some((done, _)) = self.stopping {
            drop(self.swarm);
            // An error means that nobody waits any more.
            let _ = done.send(());
        }
    }

    /// Closes all connections to `peer` and refuses new ones for `back_off`.
    pub(crate) fn block(&mut self, peer: PeerId, back_off: Duration) {
        let Some(id) = to_libp2p(peer) else { return };
        let freed = self.blocked.hold(peer, Instant::now() + back_off);
        self.unblock(freed);
        self.swarm.behaviour_mut().blocked.block_peer(id);
        // A peer that was blocked already, or is being blocked, may have no connection.
        let _ = self.swarm.disconnect_peer_id(id);
    }

    pub(crate) fn is_blocked(&self, peer: PeerId) -> bool {
        self.blocked.contains(&peer)
    }

    /// Lets in again the peers whose block has ended.
    pub(crate) fn unblock_due(&mut self, now: Instant) {
        let free = self.blocked.release(now);
        self.unblock(free);
    }

    fn unblock(&mut self, peers: impl IntoIterator<Item = PeerId>) {
        for id in peers.into_iter().filter_map(to_libp2p) {
            self.swarm.behaviour_mut().blocked.unblock_peer(id);
        }
    }

    /// Closes the connections to `peer`.
    pub(crate) fn disconnect(&mut self, peer: PeerId) {
        if let Some(id) = to_libp2p(peer) {
            // Its last connection may have closed by itself.
            let _ = self.swarm.disconnect_peer_id(id);
        }
    }

    /// The address at which the best connection to `peer` ends.
    pub(crate) fn best_address(&self, peer: PeerId) -> Option<Multiaddr> {
        let best = self.swarm.behaviour().streams.best(to_libp2p(peer)?)?;
        self.traversal.address(best).cloned()
    }

    /// Whether tensors may be exchanged with `peer` on the best connection to it.
    pub(crate) fn carries_tensors(&self, peer: PeerId) -> bool {
        let address = self.best_address(peer);
        address.is_some_and(|address| self.traversal.bulk_rate(&address).is_some())
    }

    /// Sets whether holes may be punched to `peer`: allowed as long as it is known to be of the run.
    pub(crate) fn allow_punch(&mut self, peer: PeerId, allowed: bool) {
        let Some(id) = to_libp2p(peer) else { return };
        if let Some(punch) = self.swarm.behaviour_mut().punch.as_mut() {
            if allowed {
                punch.permit(id);
            } else {
                punch.forbid(id);
            }
        }
    }
}
