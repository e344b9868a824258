//! The ring of a synchronous run: who is next, and what comes from the previous peer.

use dnode_network::NetworkHandle;
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

use crate::training::{RingChunk, RingFrame, RingPlace};

/// The ring as the driver sees it; empty for rules without one.
#[derive(Debug)]
pub(super) struct RingDriver {
    me: PeerId,
    world: usize,
    incarnation: u64,
    /// Whether more peers than belong to the ring were last seen.
    crowded: bool,
    /// Previous and next peer, once the ring is complete.
    neighbours: Option<(PeerId, PeerId)>,
}

impl RingDriver {
    pub(super) const fn new(me: PeerId, world: usize, incarnation: u64) -> Self {
        Self { me, world, incarnation, crowded: false, neighbours: None }
    }

    /// Forms the ring in the order of the peers' names when all are there; the own place in it.
    pub(super) fn form(&mut self, peers: impl Iterator<Item = PeerId>) -> Option<RingPlace> {
        if self.world == 0 || self.neighbours.is_some() {
            return None;
        }
        let mut all: Vec<PeerId> = peers.chain([self.me]).collect();
        all.sort();
        let rank = all.iter().position(|peer| *peer == self.me)?;
        if all.len() != self.world {
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
        let peers = all.len();
        self.neighbours = Some((all[(rank + peers - 1) % peers], all[(rank + 1) % peers]));
        Some(RingPlace { rank, peers })
    }

    pub(super) fn is_neighbour(&self, peer: &PeerId) -> bool {
        self.neighbours.is_some_and(|(previous, next)| previous == *peer || next == *peer)
    }

    /// Sends a chunk to the next peer; `false` when it cannot take it.
    pub(super) fn send(&self, network: &NetworkHandle, chunk: RingChunk) -> bool {
        let Some((_, next)) = self.neighbours else { return false };
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

    /// A frame of the previous peer, for the training thread; `None` when it is nobody's.
    pub(super) fn arrive(
        &self,
        from: PeerId,
        header: &TensorHeader,
        payload: Vec<u8>,
    ) -> Option<RingFrame> {
        // The others may form the ring a moment before this peer does: the previous one can then be
        // a piece per peer ahead. They wait for the training thread, in order.
        let expected = self.neighbours.is_none_or(|(previous, _)| previous == from);
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
