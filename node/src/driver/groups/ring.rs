//! The ranks of a synchronous run: a group or, if not all are near each other, a ring.
//! The ring goes through the network: it knows its neighbours, and passes on their frames.

use std::sync::Arc;

use dnode_collective::{Choice, Collective, Place};
use dnode_network::{Bytes, Channel, NetworkHandle};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};
use tokio::sync::Notify;

use super::forming::{Formed, Forming, GroupWatch, Members, NotFormed, Ready};
use crate::training::{RingChunk, RingFrame};

/// The ring as the driver sees it; empty for rules without one.
#[derive(Debug)]
pub(super) struct RingDriver {
    me: PeerId,
    world: usize,
    choice: Choice,
    incarnation: u64,
    /// Whether there were more peers than belong to the ring at the last look.
    crowded: bool,
    /// All peers in order, once the ring is complete.
    members: Option<Members>,
    /// A group of them, while it is formed.
    forming: Option<Forming>,
    /// Channels that came before the group began to form.
    early: Vec<(PeerId, Channel)>,
    /// Notified when there is something to look at.
    news: Arc<Notify>,
    group: GroupWatch,
}

impl RingDriver {
    pub(super) fn new(
        (me, incarnation): (PeerId, u64),
        (world, choice): (usize, Choice),
        news: Arc<Notify>,
    ) -> Self {
        Self {
            me,
            world,
            choice,
            incarnation,
            crowded: false,
            members: None,
            forming: None,
            early: Vec::new(),
            news,
            group: GroupWatch::default(),
        }
    }

    /// Forms the ring in the order of the peers' names when all are there, and a group of them if
    /// possible. Returns the own place, and the group if there is one, once that is decided.
    pub(super) fn form(
        &mut self,
        network: &NetworkHandle,
        peers: impl Iterator<Item = PeerId>,
    ) -> Option<(Place, Option<Box<dyn Collective>>)> {
        if self.members.is_none() {
            let members = self.complete(network, peers)?;
            let early = std::mem::take(&mut self.early);
            let news = Arc::clone(&self.news);
            self.forming = Some(Forming::begin(network, members.clone(), early, news));
            self.members = Some(members);
        }
        let place = self.members.as_ref()?.place;
        let group = match self.forming.as_mut()?.result() {
            Formed::NotYet => return None,
            Formed::Group(Ready { group, .. }) => {
                tracing::info!(backend = %group.backend(), ranks = place.size, "all-reduce in a group");
                self.group = GroupWatch::of(&*group);
                Some(group)
            }
            Formed::Not(NotFormed { why, .. }) => {
                tracing::info!(why, ranks = place.size, "all-reduce in a ring through the network");
                None
            }
        };
        self.forming = None;
        Some((place, group))
    }

    /// All members, when there are as many as belong to the ring.
    fn complete(
        &mut self,
        network: &NetworkHandle,
        peers: impl Iterator<Item = PeerId>,
    ) -> Option<Members> {
        let mut all: Vec<PeerId> = peers.chain([self.me]).collect();
        all.sort();
        let rank = all.iter().position(|peer| *peer == self.me)?;
        if self.world == 0 || all.len() != self.world {
            if all.len() > self.world && !self.crowded {
                tracing::warn!(
                    peers = all.len(),
                    world = self.world,
                    "more peers than gossip.world: waiting until the others leave"
                );
            }
            self.crowded = all.len() > self.world;
            return None;
        }
        let connected = network.peers();
        let start = |peer: PeerId| {
            let status = connected.iter().find(|status| status.peer == peer);
            status.map_or(self.incarnation, |status| status.incarnation)
        };
        let place = Place { rank, size: all.len() };
        let peers = all.into_iter().map(|peer| (peer, start(peer))).collect();
        let choice = (self.choice, false);
        Some(Members { place, peers, choice, beside: false, attempt: 0 })
    }

    /// Previous and next peer, once the ring is complete.
    fn neighbours(&self) -> Option<(PeerId, PeerId)> {
        let Members { place: Place { rank, size }, peers, .. } = self.members.as_ref()?;
        Some((peers[(rank + size - 1) % size].0, peers[(rank + 1) % size].0))
    }

    /// Whether the ranks cannot go on without this peer.
    pub(super) fn needs(&self, peer: &PeerId) -> bool {
        self.neighbours().is_some_and(|(previous, next)| previous == *peer || next == *peer)
    }

    /// Aborts the operations of a group.
    pub(super) fn end(&self, why: &str) {
        self.group.end(why);
    }

    /// Bytes that a group has moved since the last call.
    pub(super) fn bytes(&self) -> Bytes {
        self.group.bytes()
    }

    /// Takes a channel that a peer has opened for a group.
    pub(super) fn channel(&mut self, peer: PeerId, channel: Channel) {
        match &self.forming {
            Some(forming) => forming.arrived(peer, channel),
            // The others may form the group a moment before this peer does.
            None if self.members.is_none() => {
                // Who has begun anew meanwhile has closed the one of before.
                self.early.retain(|(_, channel)| channel.is_open());
                if self.early.len() < self.world {
                    self.early.push((peer, channel));
                }
            }
            None => {}
        }
    }

    /// Sends a chunk to the next peer; `false` when it cannot take it.
    pub(super) fn send(&self, network: &NetworkHandle, chunk: RingChunk) -> bool {
        let Some((_, next)) = self.neighbours() else { return false };
        let RingChunk { sequence, numbers } = chunk;
        let Ok(elements) = u32::try_from(numbers.elements) else { return false };
        let header = TensorHeader {
            exchange: ExchangeId { initiator: self.me, incarnation: self.incarnation, sequence },
            leg: Leg::Ring,
            codec: numbers.codec,
            fragment: FragmentId(0),
            clock: Clock(0),
            elements,
            offset: 0,
            count: 0,
        };
        network.send_tensor(next, header, numbers.bytes).is_ok()
    }

    /// Turns a frame of the previous peer into one for the training thread; `None` if none is expected.
    pub(super) fn arrive(
        &self,
        from: PeerId,
        header: &TensorHeader,
        payload: bytes::Bytes,
    ) -> Option<RingFrame> {
        // The others may form the ring a moment before this peer does: the previous one can then be
        // a piece per peer ahead. They wait for the training thread, in order.
        let expected = self.neighbours().is_none_or(|(previous, _)| previous == from);
        let ours = self.world > 0
            && expected
            && header.codec == Codec::F32
            && header.exchange.initiator == from;
        ours.then_some(RingFrame {
            sequence: header.exchange.sequence,
            offset: header.offset as usize,
            elements: header.elements as usize,
            payload,
        })
    }
}
