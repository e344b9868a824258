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
        (newest.ahead_of(contents.clock) <= most).then_some(contents)
    }
}
