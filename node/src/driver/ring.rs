//! The ring of a synchronous run: who is next, and the pieces that come from the previous peer.

use std::sync::Arc;

use dnode_network::NetworkHandle;
use dnode_protocol::frame::{Codec, Leg, TensorHeader, read_f32s, write_f32s};
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

use crate::training::{RingPiece, RingPlace};

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
    /// The piece that is arriving.
    arriving: RingPiece,
}

impl RingDriver {
    pub(super) const fn new(me: PeerId, world: usize, incarnation: u64) -> Self {
        let arriving = RingPiece { sequence: 0, values: Vec::new() };
        Self { me, world, incarnation, crowded: false, neighbours: None, arriving }
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

    /// Sends a piece to the next peer; `false` when it cannot take it.
    pub(super) fn send(&self, network: &NetworkHandle, piece: &RingPiece) -> bool {
        let Some((_, next)) = self.neighbours else { return false };
        let Ok(elements) = u32::try_from(piece.values.len()) else { return false };
        let header = TensorHeader {
            exchange: ExchangeId {
                initiator: self.me,
                incarnation: self.incarnation,
                sequence: piece.sequence,
            },
            leg: Leg::Ring,
            codec: Codec::F32,
            fragment: FragmentId(0),
            clock: Clock(0),
            elements,
            offset: 0,
            count: 0,
        };
        let mut bytes = Vec::new();
        write_f32s(&piece.values, &mut bytes);
        network.send_tensor(next, header, Arc::from(bytes)).is_ok()
    }

    /// Takes a frame of the previous peer; returns the piece when it is whole.
    pub(super) fn arrive(
        &mut self,
        from: PeerId,
        header: &TensorHeader,
        payload: &[u8],
    ) -> Option<RingPiece> {
        // The others may form the ring a moment before this peer does: the previous one can then be
        // a piece per peer ahead. They wait for the training thread, in order.
        let expected = self.neighbours.is_none_or(|(previous, _)| previous == from);
        if self.world == 0
            || !expected
            || header.codec != Codec::F32
            || header.exchange.initiator != from
        {
            return None;
        }
        let offset = header.offset as usize;
        if offset == 0 {
            self.arriving = RingPiece { sequence: header.exchange.sequence, values: Vec::new() };
        }
        let begin = self.arriving.values.len();
        if offset != begin {
            return None;
        }
        self.arriving.values.resize(begin + payload.len() / 4, 0.0);
        read_f32s(payload, &mut self.arriving.values[begin..]).ok()?;
        (self.arriving.values.len() == header.elements as usize).then(|| {
            let empty = RingPiece { sequence: 0, values: Vec::new() };
            std::mem::replace(&mut self.arriving, empty)
        })
    }
}
