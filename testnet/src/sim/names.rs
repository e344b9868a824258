//! The index of a simulated peer, which its name holds.

use dnode_protocol::PeerId;

/// The index of a simulated peer, from its name (see [`dnode_gossip::testing::peer`]).
#[must_use]
pub fn index_of(peer: &PeerId) -> u32 {
    let [a, b, c, d, ..] = *peer.public_key();
    u32::from_be_bytes([a, b, c, d])
}
