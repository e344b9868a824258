//! S1: no commit goes further than the progress gap beyond the slowest neighbour that counts.

use super::{Moment, Property, View};

/// Recomputes bound B1 from the neighbours' clocks at each commit.
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
        let counting = host.core.members().filter(|(_, member)| member.counts());
        let Some(slowest) = counting.filter_map(|(_, member)| member.clock).min() else {
            return Ok(());
        };
        let gap = view.config.bounds.progress_gap;
        if host.clock > slowest.plus(gap) {
            return Err(format!(
                "p{peer} committed to clock {} with a neighbour known at {slowest} and a gap of {gap}",
                host.clock
            ));
        }
        Ok(())
    }
}
