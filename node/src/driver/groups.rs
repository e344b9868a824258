//! The groups that this peer is a rank of: of its rack, or of a synchronous run.

mod forming;
mod rack;
mod ring;

use std::sync::Arc;

use bytes::Bytes;
use dnode_gossip::{Input, Standing};
use dnode_network::Channel;
use dnode_protocol::frame::TensorHeader;
use dnode_protocol::{PeerId, Phase, Stripe};
use tokio::sync::Notify;

use super::host::Host;
use super::terms::Terms;
use crate::training::{Loss, RankGroup, RingChunk};
pub(crate) use rack::rack_name;
use rack::{Change, RackDriver};
use ring::RingDriver;

/// Both kinds of groups; a peer has one of them at most.
#[derive(Debug)]
pub(super) struct Groups {
    ring: RingDriver,
    rack: RackDriver,
    /// Notified when there is something to look at.
    news: Arc<Notify>,
}

impl Groups {
    pub(super) fn new(me: PeerId, terms: &Terms) -> Self {
        let (me, choice) = ((me, terms.incarnation), terms.collective);
        let news = Arc::new(Notify::new());
        Self {
            ring: RingDriver::new(me, (terms.world, choice), Arc::clone(&news)),
            rack: RackDriver::new(me, (terms.rack, choice), Arc::clone(&news)),
            news,
        }
    }

    /// Returns when a group has formed or failed, or the peers that were asked have answered.
    pub(super) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Whether this peer belongs to a rack.
    pub(super) const fn has_rack(&self) -> bool {
        self.rack.name() != 0
    }

    /// A peer has opened a channel for a group.
    pub(super) fn on_channel(&mut self, peer: PeerId, channel: Channel) {
        if self.has_rack() {
            self.rack.channel(peer, channel);
        } else {
            self.ring.channel(peer, channel);
        }
    }

    /// The previous peer of the ring has sent a part of a chunk.
    pub(super) fn on_ring_frame(
        &self,
        from: PeerId,
        header: &TensorHeader,
        payload: Bytes,
        host: &Host,
    ) {
        if let Some(frame) = self.ring.arrive(from, header, payload)
            && !host.training.ring_frame(frame)
        {
            tracing::debug!(peer = %from, "ring frame not wanted");
        }
    }

    /// The training thread has a chunk for the next peer of the ring.
    pub(super) fn on_ring_chunk(&self, chunk: RingChunk, host: &mut Host) {
        if !self.ring.send(&host.network, chunk) {
            self.end("the next peer takes nothing", host);
        }
    }

    /// A neighbour has gone.
    pub(super) fn on_peer_down(&self, peer: &PeerId, host: &mut Host) {
        if self.ring.needs(peer) {
            self.end("a peer has left", host);
        }
    }

    /// The ranks of this group can do nothing together any more.
    pub(super) fn on_rack_lost(&mut self, group: u64, loss: Loss, host: &Host) {
        self.rack.lost(&host.network, group, loss);
    }

    /// Forms the ring of a synchronous run. Returns whether it is formed.
    pub(super) fn form_ring(&mut self, host: &Host) -> bool {
        let Some((place, group)) = self.ring.form(&host.network, host.peers().into_iter()) else {
            return false;
        };
        host.training.ring(place, group);
        true
    }

    /// Has the peers of the rack that are here train as one.
    pub(super) fn look_at_rack(&mut self, host: &mut Host) {
        if !self.has_rack() {
            return;
        }
        let members = mates(self.rack.name(), host);
        match self.rack.look(&host.network, members) {
            Some(Change::Use(group, stripe)) => use_group(Some(group), stripe, host),
            Some(Change::Alone) => use_group(None, Stripe::WHOLE, host),
            None => {}
        }
    }

    /// Ranks of one rack exchange nothing with each other, which is no reason to part. At every tick.
    pub(super) fn keep_mates(&self, host: &Host) {
        if self.has_rack() {
            mates(self.rack.name(), host).for_each(|(peer, _)| host.network.served(peer));
        }
    }

    /// Counts the bytes that groups have moved.
    pub(super) fn count_bytes(&self, host: &Host) {
        host.network.count(self.ring.bytes());
        host.network.count(self.rack.bytes());
    }

    /// Ends every wait of the training thread for other ranks.
    pub(super) fn end(&self, why: &str, host: &mut Host) {
        self.ring.end(why);
        self.rack.end(why);
        host.training.break_ring();
    }
}

/// The near peers of the rack of this name that train, each with its incarnation; none while this one does not.
fn mates(name: u64, host: &Host) -> impl Iterator<Item = (PeerId, u64)> {
    let trains = host.trains();
    let members = host.core().members().filter(move |(peer, member)| {
        let here = member.standing != Standing::Suspected && member.phase == Phase::Training;
        trains && member.rack == name && here && host.network.is_known_near(**peer)
    });
    members.map(|(peer, member)| (*peer, member.incarnation))
}

/// Trains as a rank of a group, or alone.
fn use_group(group: Option<RankGroup>, stripe: Stripe, host: &mut Host) {
    host.training.rack(group);
    host.telemetry.rack(stripe);
    host.audit.rack(stripe);
    host.feed(Input::Stripe(stripe));
}
