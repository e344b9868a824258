//! S1: no commit goes further than the progress gap beyond the slowest neighbour that counts.

use super::super::names::index_of;
use super::super::view::View;
use super::property::{Moment, Property};

/// Recomputes bound B1 at each commit from the clocks that have reached the peer.
#[derive(Debug)]
pub(super) struct ProgressGap;

impl Property for ProgressGap {
    fn name(&self) -> &'static str {
        "progress gap"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Committed { peer, .. } = moment else {
            return Ok(());
        };
        let Some(host) = view.host(*peer) else {
            return Ok(());
        };
        let gap = view.config.bounds.progress_gap;
        for (name, _) in host.core.members().filter(|(_, member)| member.counts()) {
            let other = index_of(name);
            let Some(heard) = view.heard(*peer, other) else {
                return Err(format!("p{peer} counts p{other}, which has named no clock"));
            };
            if host.clock > heard.plus(gap) {
                return Err(format!(
                    "p{peer} committed to clock {} when p{other} had named {heard}, gap {gap}",
                    host.clock
                ));
            }
        }
        Ok(())
    }
}
