//! The version table: for each fragment and known peer, the newest commit that the fragment contains.

use dnode_protocol::limits::INFORMATION_MAX;
use dnode_protocol::{Clock, FragmentId, Information, PeerId};

/// The information vectors `I[f][j]` of all fragments.
///
/// Only the peer itself and its neighbours are tracked, so a vector is bounded by the view.
#[derive(Clone, Debug)]
pub(crate) struct VersionTable {
    /// The tracked peers, sorted.
    peers: Vec<PeerId>,
    /// Number of fragments.
    fragments: usize,
    /// For each of `peers`, in that order, one clock per fragment: `[peers · fragments]`.
    clocks: Vec<Clock>,
}

impl VersionTable {
    /// A table for `fragments` fragments that knows `me` at clock 0.
    pub(crate) fn new(fragments: usize, me: PeerId) -> Self {
        Self { peers: vec![me], fragments, clocks: vec![Clock(0); fragments] }
    }

    /// What every fragment contains of `peer`; empty when the peer is not tracked.
    pub(crate) fn row(&self, peer: &PeerId) -> &[Clock] {
        match self.peers.binary_search(peer) {
            Ok(index) => &self.clocks[index * self.fragments..(index + 1) * self.fragments],
            Err(_) => &[],
        }
    }

    fn row_mut(&mut self, peer: &PeerId) -> &mut [Clock] {
        match self.peers.binary_search(peer) {
            Ok(index) => &mut self.clocks[index * self.fragments..(index + 1) * self.fragments],
            Err(_) => &mut [],
        }
    }

    /// What `fragment` contains of `peer`; `None` when the peer is not tracked.
    pub(crate) fn get(&self, fragment: FragmentId, peer: &PeerId) -> Option<Clock> {
        self.row(peer).get(fragment.0 as usize).copied()
    }

    /// Starts to track `peer`, taking all fragments to contain it up to `clock`.
    pub(crate) fn track(&mut self, peer: PeerId, clock: Clock) {
        if let Err(index) = self.peers.binary_search(&peer)
            && self.peers.len() < INFORMATION_MAX
        {
            self.peers.insert(index, peer);
            let start = index * self.fragments;
            self.clocks.splice(start..start, std::iter::repeat_n(clock, self.fragments));
        }
    }

    /// Stops to track `peer`.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        if let Ok(index) = self.peers.binary_search(peer) {
            self.peers.remove(index);
            self.clocks.drain(index * self.fragments..(index + 1) * self.fragments);
        }
    }

    /// All fragments contain `peer` up to `clock`: its own commit.
    pub(crate) fn raise_all(&mut self, peer: &PeerId, clock: Clock) {
        for contained in self.row_mut(peer) {
            *contained = clock.max(*contained);
        }
    }

    /// `fragment` contains `peer` up to `clock`.
    pub(crate) fn raise(&mut self, fragment: FragmentId, peer: &PeerId, clock: Clock) {
        if let Some(contained) = self.row_mut(peer).get_mut(fragment.0 as usize) {
            *contained = clock.max(*contained);
        }
    }

    /// `fragment` now contains what the other end contained: element-wise maximum.
    ///
    /// Both sides are sorted by peer; entries of `other` out of order are not found.
    pub(crate) fn merge(&mut self, fragment: FragmentId, other: &Information) {
        let fragment = fragment.0 as usize;
        if fragment >= self.fragments {
            return;
        }
        let column = self.clocks.iter_mut().skip(fragment).step_by(self.fragments);
        let mut known = self.peers.iter().zip(column).peekable();
        for (peer, clock) in &other.entries {
            while known.next_if(|(tracked, _)| *tracked < peer).is_some() {}
            if let Some((_, contained)) = known.next_if(|(tracked, _)| *tracked == peer) {
                *contained = (*contained).max(*clock);
            }
        }
    }

    /// The vector of `fragment`, to be sent.
    pub(crate) fn of(&self, fragment: FragmentId) -> Information {
        let fragment = fragment.0 as usize;
        if fragment >= self.fragments {
            return Information::default();
        }
        let column = self.clocks.iter().skip(fragment).step_by(self.fragments);
        Information { entries: self.peers.iter().copied().zip(column.copied()).collect() }
    }

    /// The smallest clock of `peer` over all fragments; `None` when it is not tracked.
    pub(crate) fn oldest(&self, peer: &PeerId) -> Option<Clock> {
        self.row(peer).iter().copied().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_takes_the_newer_clock_of_each_tracked_peer_in_one_fragment() {
        let names = [1_u8, 3, 5, 7].map(|n| PeerId::from_public_key([n; 32]));
        let mut table = VersionTable::new(2, names[1]);
        table.track(names[3], Clock(4));
        table.track(names[0], Clock(2));
        table.raise_all(&names[1], Clock(6));
        let entries = vec![(names[0], Clock(9)), (names[2], Clock(8)), (names[3], Clock(3))];
        table.merge(FragmentId(1), &Information { entries });
        let row = |f: u32| names.map(|name| table.get(FragmentId(f), &name).map(|clock| clock.0));
        assert_eq!(row(0), [Some(2), Some(6), None, Some(4)]);
        assert_eq!(row(1), [Some(9), Some(6), None, Some(4)]);
        assert_eq!(table.oldest(&names[0]), Some(Clock(2)));
        table.forget(&names[0]);
        assert_eq!(table.of(FragmentId(1)).entries, [(names[1], Clock(6)), (names[3], Clock(4))]);
    }
}
