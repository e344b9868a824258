//! Snapshots that an earlier life of this peer had taken over when it died in the middle of a pull.

use std::collections::BTreeMap;

use dnode_protocol::{Clock, FragmentId, Time};

use crate::gossip::Gossip;
use crate::pull::Pull;
use crate::{Mixing, SnapshotContents, Work};

/// What was kept, for the first catch-up of this life.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptSnapshots {
    fragments: BTreeMap<FragmentId, SnapshotContents>,
    /// Commits between the oldest and the newest of them: how long the pull had lasted.
    span: u64,
}

impl KeptSnapshots {
    fn new(kept: Vec<(FragmentId, SnapshotContents)>) -> Self {
        let clocks = || kept.iter().map(|(_, contents)| contents.clock);
        let (oldest, newest) = (clocks().min(), clocks().max());
        let span = newest.unwrap_or_default().0 - oldest.unwrap_or_default().0;
        Self { fragments: kept.into_iter().collect(), span }
    }

    /// The kept snapshot of a fragment, if it may be used where the newest clock is this.
    fn take(
        &mut self,
        fragment: FragmentId,
        (newest, gap): (Clock, u64),
    ) -> Option<SnapshotContents> {
        let contents = self.fragments.remove(&fragment)?;
        let most = gap.saturating_add(self.span);
        (newest.ahead_of(contents.clock) <= most).then_some(contents)
    }
}

impl Gossip {
    /// The core of a peer that has kept these snapshots from an earlier life; sums of contributions are
    /// pulled anew.
    ///
    /// One is used if its clock is at most the progress gap, and the commits that the earlier pull had
    /// lasted, behind the newest. At the end of the pull it is then no older than the first fragment of
    /// a pull that nothing interrupts, plus the gap.
    #[must_use]
    pub fn keeping(mut self, kept: Vec<(FragmentId, SnapshotContents)>) -> Self {
        if self.config.mixing != Mixing::Set {
            self.kept_snapshots = KeptSnapshots::new(kept);
        }
        self
    }

    /// Has the kept snapshot of the fragment taken over, if there is one that is recent enough.
    pub(crate) fn recall(&mut self, fragment: FragmentId, newest: Clock, now: Time) -> bool {
        let gap = self.config.bounds.progress_gap;
        let Some(contents) = self.kept_snapshots.take(fragment, (newest, gap)) else {
            return false;
        };
        let sequence = self.take_sequence();
        let exchange = self.exchange_id(sequence);
        let pull = Pull {
            fragment,
            donor: self.me,
            asked: now,
            deadline: Time::NEVER,
            oldest: contents.clock,
            announced: Some(contents.clone()),
            arrived: Some(now),
            adopting: true,
        };
        let Some(catch_up) = self.catch_up.as_mut() else { return false };
        catch_up.open.insert(sequence, pull);
        self.leases.insert(fragment, exchange);
        self.work(Work::Recall { exchange, fragment, contents });
        true
    }
}
