//! Snapshots that an earlier life of this peer had taken over when it died in the middle of a pull.

use std::collections::BTreeMap;

use dnode_protocol::{Clock, FragmentId};

use crate::SnapshotContents;

/// What was kept, for the first replacement of this life.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptSnapshots {
    fragments: BTreeMap<FragmentId, SnapshotContents>,
    /// Commits between the oldest and the newest of them: how long the pull had lasted.
    span: u64,
}

impl KeptSnapshots {
    pub(super) fn new(kept: Vec<(FragmentId, SnapshotContents)>) -> Self {
        let clocks = || kept.iter().map(|(_, contents)| contents.clock);
        let (oldest, newest) = (clocks().min(), clocks().max());
        let span = newest.unwrap_or_default().0 - oldest.unwrap_or_default().0;
        Self { fragments: kept.into_iter().collect(), span }
    }

    /// The kept snapshot of a fragment, if it may be used where the newest clock is this.
    pub(super) fn take(
        &mut self,
        fragment: FragmentId,
        (newest, gap): (Clock, u64),
    ) -> Option<SnapshotContents> {
        let contents = self.fragments.remove(&fragment)?;
        let most = gap.saturating_add(self.span);
        let is_recent = newest.ahead_of(contents.clock) <= most;
        // What is ahead of everybody is of another history: the swarm has begun anew since.
        let is_of_theirs = contents.clock.ahead_of(newest) <= gap;
        (is_recent && is_of_theirs).then_some(contents)
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::{ContentHash, Information, Versions};

    use super::*;

    #[test]
    fn what_is_too_old_or_ahead_of_everybody_is_not_used() {
        let contents = |clock| SnapshotContents {
            clock: Clock(clock),
            hash: ContentHash::of(b"numbers"),
            information: Information::default(),
            versions: Versions::default(),
        };
        let kept = [(0, 100), (1, 110), (2, 105)];
        let kept = kept.map(|(index, clock)| (FragmentId(index), contents(clock)));
        let taken = |index: u32, newest: u64| {
            let mut kept = KeptSnapshots::new(kept.to_vec());
            let taken = kept.take(FragmentId(index), (Clock(newest), 4)).is_some();
            assert!(kept.take(FragmentId(index), (Clock(newest), 4)).is_none(), "once");
            taken
        };
        // The gap of 4, and the 10 commits that the pull had lasted.
        assert!(taken(0, 114) && !taken(0, 115) && taken(1, 124) && !taken(1, 125));
        assert!(taken(1, 106) && !taken(1, 105) && !taken(2, 50) && !taken(3, 110));
    }
}
