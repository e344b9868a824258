//! S1: no exchange is applied between clocks that are further apart than the policy allows, but where
//! one of the two is ahead of all others.

use dnode_gossip::{Input, Policy, Work};

use super::super::names::index_of;
use super::super::view::View;
use super::property::{Moment, Property};

/// Compares the clocks in Propose and Accept of everything that is applied.
#[derive(Debug)]
pub(super) struct Lag;

impl Property for Lag {
    fn name(&self) -> &'static str {
        "lag"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Worked {
            peer,
            task: Work::Mix { exchange, .. },
            answer: Input::Mixed { .. },
            ..
        } = moment
        else {
            return Ok(());
        };
        let deal = view.ledger.get(exchange).copied().unwrap_or_default();
        let (Some(proposed), Some(accepted)) = (deal.proposed, deal.accepted) else {
            return Err(format!("{exchange} was applied and never proposed or accepted: {deal:?}"));
        };
        let bounds = &view.config.bounds;
        let most = match view.config.policy {
            Policy::DownWeight | Policy::Block => bounds.progress_gap,
            Policy::Drop => bounds.snapshot_age.max(1).min(bounds.progress_gap),
        };
        let finished = |index: u32| view.peers[index as usize].finished();
        let both_finished = finished(*peer) && finished(index_of(&exchange.initiator));
        let lag = proposed.distance(accepted);
        if lag > most && !both_finished && !deal.at_any_clock {
            return Err(format!(
                "{exchange} was applied between clocks {proposed} and {accepted}, bound {most}"
            ));
        }
        Ok(())
    }
}
