//! Peers that only watch: they are told what neighbours are told, may take the model over, and count for
//! nothing.

use std::collections::BTreeSet;

use dnode_protocol::PeerId;

/// Most of them.
pub(crate) const WATCHERS_MAX: usize = 16;

/// The watchers that are connected. They are no members: no part that decides about exchanges, bounds,
/// clocks, shards or the end of the run ever sees one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchers {
    here: BTreeSet<PeerId>,
}

impl Watchers {
    /// Takes a watcher in, if there is room.
    pub(crate) fn insert(&mut self, peer: PeerId) -> bool {
        let room = self.here.len() < WATCHERS_MAX || self.here.contains(&peer);
        if room {
            self.here.insert(peer);
        }
        room
    }

    /// Forgets a watcher; whether it was one.
    pub(crate) fn remove(&mut self, peer: &PeerId) -> bool {
        self.here.remove(peer)
    }

    pub(crate) fn contains(&self, peer: &PeerId) -> bool {
        self.here.contains(peer)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PeerId> {
        self.here.iter()
    }
}
