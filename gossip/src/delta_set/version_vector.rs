//! Version vectors: what a neighbour has said that its fragments contain, and what it no longer keeps.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::{FragmentId, Origin, Versions};

/// What a neighbour has said that its fragments contain; of many fragments one vector.
#[derive(Clone, Debug, Default)]
pub(super) struct VersionVector {
    fragments: Vec<Arc<Versions>>,
    /// Of which authors it no longer keeps which number, the last one asked for; bounded by what was
    /// asked of it.
    gone: BTreeMap<(FragmentId, Origin), u64>,
}

impl VersionVector {
    /// It has said that these of all `fragments` fragments contain `versions`.
    pub(super) fn hear(&mut self, fragments: usize, which: Range<usize>, versions: Versions) {
        self.fragments.resize(fragments, Arc::default());
        let shared = Arc::new(versions);
        for known in &mut self.fragments[which] {
            known.clone_from(&shared);
        }
    }

    pub(super) fn number(&self, fragment: FragmentId, origin: &Origin) -> u64 {
        let Some(versions) = self.fragments.get(fragment.0 as usize) else {
            return 0;
        };
        let at = versions.entries.binary_search_by_key(origin, |(known, _)| *known);
        at.map_or(0, |index| versions.entries[index].1)
    }

    /// Whether it has said that it has `number` and no longer keeps it.
    pub(super) fn is_gone(&self, fragment: FragmentId, origin: &Origin, number: u64) -> bool {
        self.gone.get(&(fragment, *origin)) == Some(&number)
    }

    /// Forgets what it no longer keeps where that is in the own replica, which says what it contains by `own`, or not in its own any more:
    /// what it has again it keeps again.
    pub(super) fn forget_gone(&mut self, own: impl Fn(FragmentId, &Origin) -> u64) {
        let mut gone = std::mem::take(&mut self.gone);
        gone.retain(|(fragment, origin), number| {
            own(*fragment, origin) < *number && self.number(*fragment, origin) >= *number
        });
        self.gone = gone;
    }

    /// It no longer keeps this contribution.
    pub(super) fn set_gone(&mut self, fragment: FragmentId, origin: Origin, number: u64) {
        self.gone.insert((fragment, origin), number);
    }

    /// What it no longer keeps: the last number of each author that was asked for.
    pub(super) const fn gone(&self) -> &BTreeMap<(FragmentId, Origin), u64> {
        &self.gone
    }

    /// What it has said of `fragment`; `None` before it has said anything.
    pub(super) fn of(&self, fragment: FragmentId) -> Option<&Versions> {
        let versions = self.fragments.get(fragment.0 as usize)?;
        (!versions.entries.is_empty()).then_some(versions)
    }
}
