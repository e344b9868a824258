//! Per fragment: the newest commit of each known peer whose effect the fragment contains.

use dnode_protocol::limits::INFORMATION_MAX;
use dnode_protocol::{Clock, FragmentId, Information, PeerId};

/// The information vectors `I[f][j]` of all fragments (algorithms §4).
///
/// Only the peer itself and its neighbours are tracked, so a vector is bounded by the view.
#[derive(Clone, Debug)]
pub(crate) struct InformationTable {
    fragments: Vec<Vec<(PeerId, Clock)>>,
}

impl InformationTable {
    /// A table for `fragments` fragments that knows `me` at clock 0.
    pub(crate) fn new(fragments: usize, me: PeerId) -> Self {
        Self { fragments: vec![vec![(me, Clock(0))]; fragments] }
    }

    /// What `fragment` contains of `peer`; `None` when the peer is not tracked.
    pub(crate) fn get(&self, fragment: FragmentId, peer: &PeerId) -> Option<Clock> {
        let entries = self.fragments.get(fragment.0 as usize)?;
        let index = entries.binary_search_by(|(other, _)| other.cmp(peer)).ok()?;
        Some(entries[index].1)
    }

    /// Starts to track `peer`, taking all fragments to contain it up to `clock`.
    pub(crate) fn track(&mut self, peer: PeerId, clock: Clock) {
        for entries in &mut self.fragments {
            if let Err(index) = entries.binary_search_by(|(other, _)| other.cmp(&peer))
                && entries.len() < INFORMATION_MAX
            {
                entries.insert(index, (peer, clock));
            }
        }
    }

    /// Stops to track `peer`.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        for entries in &mut self.fragments {
            entries.retain(|(other, _)| other != peer);
        }
    }

    /// All fragments contain `peer` up to `clock`: its own commit.
    pub(crate) fn raise_all(&mut self, peer: &PeerId, clock: Clock) {
        for entries in &mut self.fragments {
            raise(entries, peer, clock);
        }
    }

    /// `fragment` now contains what the other end contained: element-wise maximum.
    pub(crate) fn merge(&mut self, fragment: FragmentId, other: &Information) {
        if let Some(entries) = self.fragments.get_mut(fragment.0 as usize) {
            for (peer, clock) in &other.entries {
                raise(entries, peer, *clock);
            }
        }
    }

    /// The vector of `fragment`, to be sent.
    pub(crate) fn of(&self, fragment: FragmentId) -> Information {
        let entries = self.fragments.get(fragment.0 as usize).cloned().unwrap_or_default();
        Information { entries }
    }

    /// The smallest clock of `peer` over all fragments; `None` when it is not tracked.
    pub(crate) fn oldest(&self, peer: &PeerId) -> Option<Clock> {
        let clock = |index: usize| self.get(FragmentId(u32::try_from(index).ok()?), peer);
        (0..self.fragments.len()).map(clock).min().flatten()
    }
}

fn raise(entries: &mut [(PeerId, Clock)], peer: &PeerId, clock: Clock) {
    if let Ok(index) = entries.binary_search_by(|(other, _)| other.cmp(peer)) {
        entries[index].1 = entries[index].1.max(clock);
    }
}
