//! Rule `delta-set`: what a neighbour has said that it contains, and what it no longer keeps.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::{FragmentId, Origin, Versions};

use crate::contributions::Sharing;

/// What a neighbour has said that its fragments contain; of many fragments one vector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Has {
    fragments: Vec<Arc<Versions>>,
    /// Of which authors it no longer keeps which number, the last one asked for; bounded by what was
    /// asked of it.
    pub(crate) gone: BTreeMap<(FragmentId, Origin), u64>,
}

impl Has {
    /// It has said that these of all `fragments` fragments contain `versions`.
    pub(crate) fn hear(&mut self, fragments: usize, which: Range<usize>, versions: Versions) {
        self.fragments.resize(fragments, Arc::default());
        let shared = Arc::new(versions);
        for known in &mut self.fragments[which] {
            known.clone_from(&shared);
        }
    }

    pub(crate) fn number(&self, fragment: FragmentId, origin: &Origin) -> u64 {
        let Some(versions) = self.fragments.get(fragment.0 as usize) else {
            return 0;
        };
        let at = versions.entries.binary_search_by_key(origin, |(known, _)| *known);
        at.map_or(0, |index| versions.entries[index].1)
    }

    /// Whether it has said that it has `number` and no longer keeps it.
    pub(crate) fn is_gone(&self, fragment: FragmentId, origin: &Origin, number: u64) -> bool {
        self.gone.get(&(fragment, *origin)) == Some(&number)
    }

    /// Forgets what it no longer keeps where that is in the own replica, or not in its own any more:
    /// what it has again it keeps again.
    pub(crate) fn forget_gone(&mut self, own: &Sharing) {
        let mut gone = std::mem::take(&mut self.gone);
        gone.retain(|(fragment, origin), number| {
            own.contained(*fragment, origin) < *number && self.number(*fragment, origin) >= *number
        });
        self.gone = gone;
    }

    /// What it has said of `fragment`; `None` before it has said anything.
    pub(crate) fn of(&self, fragment: FragmentId) -> Option<&Versions> {
        let versions = self.fragments.get(fragment.0 as usize)?;
        (!versions.entries.is_empty()).then_some(versions)
    }
}
