//! The addresses by which Kademlia knows a peer.

use libp2p::kad::store::MemoryStore;
use libp2p::{Multiaddr, PeerId, kad};

/// Has Kademlia know `peer` by these addresses and no others. By itself it would keep all that the peer ever tells,
/// and dial them.
pub(super) fn set_addresses(
    kad: &mut kad::Behaviour<MemoryStore>,
    peer: PeerId,
    addresses: &[Multiaddr],
) {
    let named = |address: &Multiaddr| address.clone().with_p2p(peer).ok();
    let wanted: Vec<Multiaddr> = addresses.iter().filter_map(named).collect();
    let known = known(kad, peer);
    let same = known.len() == wanted.len() && wanted.iter().all(|it| known.contains(it));
    if wanted.is_empty() || same {
        return;
    }
    kad.remove_peer(&peer);
    for address in wanted {
        kad.add_address(&peer, address);
    }
}

fn known(kad: &mut kad::Behaviour<MemoryStore>, peer: PeerId) -> Vec<Multiaddr> {
    let bucket = kad.kbucket(peer);
    let entries = bucket.iter().flat_map(|bucket| bucket.iter());
    let entry = entries.filter(|entry| *entry.node.key.preimage() == peer);
    entry.flat_map(|entry| entry.node.value.iter().cloned().collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_known_by_what_it_told_last() {
        let (me, peer) = (PeerId::random(), PeerId::random());
        let mut kad = kad::Behaviour::new(me, MemoryStore::new(me));
        let at = |port: u16| -> Multiaddr { format!("/ip4/192.0.2.1/tcp/{port}").parse().unwrap() };
        for port in (1..2000).step_by(2) {
            set_addresses(&mut kad, peer, &[at(port), at(port + 1)]);
        }
        let last = [1999, 2000].map(|port| at(port).with_p2p(peer).unwrap());
        assert_eq!(known(&mut kad, peer), last);
        set_addresses(&mut kad, peer, &[]);
        assert_eq!(known(&mut kad, peer).len(), 2);
    }
}
